"""A request and its answer, whichever HTTP they came by."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from urllib.parse import quote

from stockade.egress.http_head import says_other

Header = tuple[bytes, bytes]
"""Its name in lower case."""

_HOP: Final = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer "
    b"transfer-encoding upgrade http2-settings".split()
)


class Stream(Protocol):
    """What bytes are written to, as :class:`asyncio.StreamWriter` does."""

    def write(self, data: bytes, /) -> None:
        """Without waiting."""

    async def drain(self) -> None:
        """Until there is room for more."""


class Body:
    """What comes in pieces; its trailers are known at its end."""

    def __init__(self, pieces: AsyncIterator[bytes], length: int | None = None) -> None:
        self._pieces = pieces
        self.length = length
        self.trailers: list[Header] = []

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces


def nothing() -> Body:
    """No body."""
    return whole(b"")


def whole(data: bytes) -> Body:
    """One that is all there."""

    async def pieces() -> AsyncIterator[bytes]:
        if data:
            yield data

    return Body(pieces(), len(data))


@dataclass(frozen=True, slots=True)
class Request:
    """What a guest asks for. The host it goes to is the connection's, and not said again."""

    method: str
    target: str
    """Path and query, as they came."""
    headers: tuple[Header, ...]
    """Without Host, and without those that are for one hop."""
    body: Body | None = None
    """``None``: it has none, and says so."""
    websocket: bool = False
    """It asks to become one."""
    trailers_wanted: bool = False

    @property
    def path(self) -> str:
        """Without the query."""
        return self.target.partition("?")[0]

    def header(self, name: bytes) -> bytes | None:
        """The first of that name."""
        return next((value for key, value in self.headers if key == name), None)

    def with_headers(self, *headers: Header) -> "Request":
        """With these in place of all of their names."""
        names = {name for name, _ in headers}
        rest = (header for header in self.headers if header[0] not in names)
        return replace(self, headers=(*rest, *headers))

    def without_headers(self, *names: bytes) -> "Request":
        """Without any of these."""
        return replace(
            self, headers=tuple(header for header in self.headers if header[0] not in names)
        )

    def without_kin(self, names: frozenset[bytes]) -> "Request":
        """Without any that a server may take for one of these."""
        return replace(
            self,
            headers=tuple(header for header in self.headers if not says_other(header[0], names)),
        )


async def _nothing_to_close() -> None:
    pass


@dataclass(slots=True)
class Answer:
    """What comes back."""

    status: int
    headers: list[Header]
    body: Body
    reason: bytes = b""
    tunnel: "Tunnel | None" = None
    """Of a WebSocket that was let through."""
    close: Callable[[], Awaitable[None]] = field(default=_nothing_to_close)
    """Called when nobody will read on."""


class Tunnel(Protocol):
    """The two directions of a WebSocket's bytes."""

    async def read(self) -> bytes:
        """What the destination says; empty at its end."""

    async def write(self, data: bytes) -> None:
        """To the destination."""

    def end(self) -> None:
        """Nothing more is written."""


def refusal(status: int, code: str, sentence: str) -> Answer:
    """An answer of our own, which a person reads."""
    data = (sentence.rstrip(".") + ".\n").encode()
    return Answer(
        status,
        [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(data)).encode()),
            (b"x-stockade-egress", code.encode()),
            (b"cache-control", b"no-store"),
        ],
        whole(data),
    )


def end_to_end(headers: list[Header]) -> list[Header]:
    """Without those that are for one hop alone (RFC 9110, 7.6.1)."""
    named = {
        part.strip().lower()
        for name, value in headers
        if name == b"connection"
        for part in value.split(b",")
    }
    # Content-Length is never one: named in Connection it would be taken from the next hop.
    hop = _HOP | (named - {b"content-length", b"host"})
    return [header for header in headers if header[0] not in hop]


def printable(text: str, most: int = 300) -> str:
    """Something a guest said, as it may stand in a sentence or a record."""
    return quote(text, safe="!#$%&'()*+,-./:;<=>?@[]^_`{|}~ ")[:most]
