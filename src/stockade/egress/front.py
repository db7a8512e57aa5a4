"""The first bytes of a guest's connection: an HTTP proxy's request, or SOCKS5. No I/O."""

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from stockade.egress.answers import Refusal
from stockade.egress.http_head import find_head, read_head
from stockade.egress.names import BadHost, Destination, Host, printable, read_authority, read_host


class Kind(StrEnum):
    """What the guest speaks to the proxy."""

    CONNECT = "connect"
    HTTP = "http"
    """Requests with a whole URL in them; each says anew where it goes."""
    SOCKS = "socks"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a guest asked for. What it sent behind that is in :attr:`Front.rest`."""

    kind: Kind
    destination: Destination | None
    """``None`` for HTTP."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Bytes to send to the guest before it says more."""

    data: bytes


_SOCKS5: Final = 5
_SUCCEEDED: Final = b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
_SOCKS_REPLIES: Final = {400: 1, 403: 2, 429: 2, 502: 4, 503: 1, 504: 6, 501: 7}


class Front:
    """Reads what a guest sends first."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._greeted = False
        self.kind: Kind | None = None
        """Known from the first byte on, which is what a refusal needs."""

    @property
    def rest(self) -> bytes:
        """What is not read yet: of the guest's own."""
        return bytes(self._buffer)

    def receive(self, data: bytes) -> None:
        """Take what came."""
        self._buffer += data

    def next(self) -> Asked | Reply | None:
        """What is to be done; ``None``: wait for more. Raises :class:`Refusal`."""
        if not self._buffer:
            return None
        if self.kind is None:
            first = self._buffer[0]
            if first == _SOCKS5:
                self.kind = Kind.SOCKS
            elif first == 4:
                raise Refusal(400, "malformed", "SOCKS4 is not spoken here; SOCKS5 is")
            elif 0x41 <= first <= 0x7A:
                self.kind = Kind.HTTP
            else:
                raise Refusal(400, "malformed", "it is neither an HTTP proxy's request nor SOCKS5")
        if self.kind is Kind.SOCKS:
            return self._socks()
        return self._http()

    def accepted(self) -> bytes:
        """What tells a guest that it is connected."""
        if self.kind is Kind.SOCKS:
            return _SUCCEEDED
        return b"HTTP/1.1 200 Connection established\r\n\r\n"

    def refused(self, refusal: Refusal) -> bytes:
        """What tells a guest no, before it was told yes."""
        if self.kind is Kind.SOCKS:
            if not self._greeted:
                return b"\x05\xff"
            code = _SOCKS_REPLIES.get(refusal.status, 1)
            return bytes((5, code)) + _SUCCEEDED[2:]
        return refusal.http() if self.kind is not None else b""

    def _http(self) -> Asked | None:
        # Only CONNECT is read here: other requests are for the relay, the first like the rest.
        start = bytes(self._buffer[:8])
        if start != b"CONNECT "[: len(start)]:
            return Asked(Kind.HTTP, None)
        end = find_head(self._buffer)
        if end is None:
            return None
        self.kind = Kind.CONNECT
        head = read_head(bytes(self._buffer[:end]))
        del self._buffer[:end]
        if head.all(b"transfer-encoding") or head.all(b"content-length") not in ([], [b"0"]):
            raise Refusal(400, "malformed", "a CONNECT has no body")
        shown = printable(head.target)
        try:
            destination = read_authority(head.target)
            for host in head.all(b"host"):
                named = read_authority(host.decode("latin-1"), destination.port)
                if named.host != destination.host:
                    raise Refusal(
                        403,
                        "host-mismatch",
                        f"CONNECT is for {destination.host}, and its Host says {named.host}",
                        str(destination),
                    )
        except BadHost as error:
            raise Refusal(403, error.reason, error.detail, shown) from None
        return Asked(Kind.CONNECT, destination)

    def _socks(self) -> Asked | Reply | None:
        buffer = self._buffer
        if not self._greeted:
            if len(buffer) < 2 or len(buffer) < 2 + buffer[1]:
                return None
            methods = bytes(buffer[2 : 2 + buffer[1]])
            if 0 not in methods:
                raise Refusal(400, "malformed", "SOCKS5 without a password is all there is")
            del buffer[: 2 + buffer[1]]
            self._greeted = True
            return Reply(b"\x05\x00")
        if len(buffer) < 5:
            return None
        version, command, reserved, kind, size = buffer[:5]
        if version != _SOCKS5 or reserved != 0 or kind not in (1, 3, 4):
            raise Refusal(400, "malformed", "the SOCKS5 request is malformed")
        length = {1: 4, 3: 1 + size, 4: 16}[kind]
        if len(buffer) < 4 + length + 2:
            return None
        raw = bytes(buffer[4 : 4 + length])
        port = int.from_bytes(buffer[4 + length : 6 + length], "big")
        del buffer[: 6 + length]
        host = self._socks_host(kind, raw, port)
        if command != 1:
            raise Refusal(
                501, "socks-command", "SOCKS5 is spoken for CONNECT only", f"{host}:{port}"
            )
        if port == 0:
            raise Refusal(400, "bad-port", f"{host} has no port from 1 to 65535", f"{host}:0")
        return Asked(Kind.SOCKS, Destination(host, port))

    def _socks_host(self, kind: int, raw: bytes, port: int) -> Host:
        if kind == 1:
            address = IPv4Address(raw)
            return Host(str(address), address)
        if kind == 4:
            wide = IPv6Address(raw)
            return Host(str(wide), wide)
        text = raw[1:].decode("utf-8", "replace")
        try:
            return read_host(text)
        except BadHost as error:
            raise Refusal(403, error.reason, error.detail, f"{printable(text)}:{port}") from None
