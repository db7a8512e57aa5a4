"""The first flight of TLS: whom the client says it wants to talk to.

Only as much is read as decides, and every length is checked against what is there. What two
readers could read differently is refused.
"""

from dataclasses import dataclass
from typing import Final

MAX_HELLO: Final = 64 * 1024
"""Bytes of the handshake message. With post-quantum shares they are about 2 KiB."""
MAX_RECORDS: Final = 32
"""That it may come in: they are read from the first one again whenever more has come."""

_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_MAX_RECORD: Final = 1 << 14
_MAX_EXTENSIONS: Final = 256
_SERVER_NAME: Final = 0
_ALPN: Final = 16
_ENCRYPTED_NAMES: Final = (0xFE0D, 0xFFCE)  # ECH, and ESNI before it

# A fatal alert "access_denied": what a client can show of a refusal.
ACCESS_DENIED: Final = b"\x15\x03\x03\x00\x02\x02\x31"


class BadHello(Exception):
    """It is no ClientHello, or one that is not to be trusted."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What of it decides."""

    server_name: str | None
    alpn: tuple[bytes, ...]
    encrypted: bool
    """Whether the name in it may be there for show, and another one be meant."""


def read_hello(data: bytes) -> ClientHello | None:
    """Read it from the first bytes of a connection; ``None``: more are needed.

    Raises :class:`BadHello`.
    """
    message = bytearray()
    position = 0
    wanted = 4
    for _ in range(MAX_RECORDS):
        if len(data) > position and data[position] != _HANDSHAKE:
            raise BadHello("it does not begin with a TLS handshake")
        if len(data) > position + 1 and data[position + 1] != 3:
            raise BadHello("its TLS record has an unknown version")
        if len(data) < position + 5:
            return None
        length = int.from_bytes(data[position + 3 : position + 5], "big")
        if not 0 < length <= _MAX_RECORD:
            raise BadHello(f"its TLS record has {length} bytes")
        piece = data[position + 5 : position + 5 + length]
        message += piece
        if message and message[0] != _CLIENT_HELLO:
            raise BadHello("its first TLS message is not a ClientHello")
        if len(message) >= 4:
            wanted = 4 + int.from_bytes(message[1:4], "big")
            if wanted > MAX_HELLO:
                raise BadHello(f"its ClientHello has {wanted} bytes; at most {MAX_HELLO}")
            if len(message) >= wanted:
                break
        if len(piece) < length:
            return None
        position += 5 + length
    else:
        raise BadHello(f"its ClientHello comes in more than {MAX_RECORDS} records")
    if len(message) > wanted:
        raise BadHello("something follows its ClientHello in the same record")
    return _hello(_Reader(bytes(message[4:])))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) != size:
            raise BadHello("its ClientHello is cut short")
        self._at += size
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> "_Reader":
        return _Reader(self.take(self.number(size)))

    def take_all(self) -> bytes:
        return self.take(self.left)

    @property
    def left(self) -> int:
        return len(self._data) - self._at


def _hello(body: _Reader) -> ClientHello:
    body.take(2 + 32)  # version, random
    body.vector(1)  # session
    body.vector(2)  # cipher suites
    body.vector(1)  # compression
    name: str | None = None
    alpn: tuple[bytes, ...] = ()
    seen: set[int] = set()
    if body.left:
        extensions = body.vector(2)
        while extensions.left:
            kind = extensions.number(2)
            content = extensions.vector(2)
            if kind in seen or len(seen) >= _MAX_EXTENSIONS:
                raise BadHello("an extension comes twice in its ClientHello")
            seen.add(kind)
            if kind == _SERVER_NAME:
                name = _server_name(content)
            elif kind == _ALPN:
                alpn = _protocols(content)
    if body.left:
        raise BadHello("something follows the extensions of its ClientHello")
    return ClientHello(name, alpn, any(kind in seen for kind in _ENCRYPTED_NAMES))


def _server_name(content: _Reader) -> str:
    names = content.vector(2)
    kind = names.number(1)
    name = names.vector(2).take_all()
    if kind != 0 or names.left or content.left:
        raise BadHello("its server name is not one name of a host")
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise BadHello("its server name is not ASCII") from None


def _protocols(content: _Reader) -> tuple[bytes, ...]:
    listed = content.vector(2)
    found = []
    while listed.left:
        found.append(listed.vector(1).take_all())
    if content.left:
        raise BadHello("its ALPN is malformed")
    return tuple(found)
