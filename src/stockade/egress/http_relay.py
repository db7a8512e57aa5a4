"""HTTP/1.1 read from a guest and written anew, one request after the other.

The proxy uses it for what is not encrypted, the broker for what it has decrypted. Nothing of the
guest's framing goes on: h11 reads each message and writes another, and a destination sees one
request for each one that was judged.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

import h11

from stockade.egress.answers import Refusal
from stockade.egress.http_head import MAX_HEAD, Head, Headers, find_head, read_head
from stockade.egress.names import BadHost, Destination, printable, read_authority
from stockade.egress.traffic import Source, Traffic, tunnel
from stockade.egress.turns import Turns
from stockade.port.egress import Scheme

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_READ_AHEAD: Final = 64 * 1024
_DRAINED: Final = 1024 * 1024

# Of one connection, never of a message; and what tells a client of another way to come.
_OF_THE_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
_NOT_FOR_GUESTS: Final = _OF_THE_HOP | {b"alt-svc"}
# What Connection may not name, or a guest would remove what was judged.
_STAYS: Final = frozenset({b"host", b"content-length", b"authorization", b"cookie", b"expect"})


@dataclass(slots=True)
class HttpRequest:
    """A request that was read whole but for its body."""

    scheme: Scheme
    destination: Destination
    method: str
    target: str
    """Path and query."""
    headers: Headers
    """Without Host, which says the destination, and without what is of the hop."""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


class ResponseHook(Protocol):
    """Sees an answer on its way to the guest."""

    def head(self, status: int, headers: Headers) -> Headers:
        """The headers to send. Without a Content-Length the body is sent in chunks."""
        ...

    def data(self, piece: bytes) -> bytes:
        """What to send for a piece of the body, or of what follows a 101. May be empty."""
        ...

    def end(self) -> bytes:
        """What was held back."""
        ...


@dataclass(slots=True)
class Onward:
    """How a request goes on."""

    request: HttpRequest
    """As the destination shall see it."""
    connect: Callable[[], Awaitable[Streams]]
    """Called where no connection to the same ``key`` is open. May raise :class:`Refusal`."""
    key: object = None
    """Requests with equal keys may go over one connection; by default, over that for the
    destination."""
    response: ResponseHook | None = None


class RequestHook(Protocol):
    """Judges each request, and may write it anew."""

    async def request(self, request: HttpRequest) -> Onward:
        """Raises :class:`Refusal` for what goes no further."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a peer is waited for. A connection's whole time is another's to bound."""

    head_seconds: float = 10.0
    """For a request's head, from its first byte."""
    idle_seconds: float = 75.0
    """Between two requests."""
    half_closed_seconds: float = 60.0
    """For an answer to go on, once the guest has closed its side."""


@dataclass(slots=True)
class _Upstream:
    key: object
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class HttpRelay:
    """One guest's connection."""

    def __init__(
        self,
        source: Source,
        writer: asyncio.StreamWriter,
        hook: RequestHook,
        traffic: Traffic,
        *,
        fixed: Destination | None = None,
        scheme: Scheme = Scheme.HTTP,
        patience: Patience | None = None,
        on_refusal: Callable[[Refusal], None] = lambda _refusal: None,
    ) -> None:
        """``fixed``: where all requests go, whose targets are paths then; else each has a URL.

        ``on_refusal`` is called before the guest is told.
        """
        self._source = source
        self._writer = writer
        self._hook = hook
        self._traffic = traffic
        self._fixed = fixed
        self._scheme = scheme
        self._patience = patience or Patience()
        self._on_refusal = on_refusal
        self._upstream: _Upstream | None = None
        self._answering = False
        self._whole = False

    async def run(self) -> None:
        """Until the guest or a destination ends it.

        Raises :class:`Refusal`, of which the guest has been told then, and ``OSError``.
        """
        try:
            while await self._exchange():
                pass
        except Refusal as refusal:
            self._on_refusal(refusal)
            refusal.told = True
            if not self._answering:
                await self._refuse(refusal)
            raise
        finally:
            self._hang_up()

    # --- one request, one answer -------------------------------------------------------------

    async def _exchange(self) -> bool:
        self._answering = self._whole = False
        raw = await self._read_head()
        if raw is None:
            return False
        head = read_head(raw)
        request, upgrade = self._request(head)
        onward = await self._hook.request(request)
        upstream = await self._connected(onward)

        guest = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        server = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        try:
            guest.receive_data(raw)
            guest.next_event()
            sent = self._written(server, onward.request, head, upgrade)
        except (h11.RemoteProtocolError, h11.LocalProtocolError) as error:
            raise Refusal(400, "malformed", f"the request is malformed: {error}") from None
        await self._traffic.sent.take(len(sent))
        upstream.writer.write(sent)

        upload = asyncio.create_task(self._upload(guest, server, upstream.writer))
        upload.add_done_callback(lambda _: self._broken(upload, upstream))
        try:
            switched = await self._download(guest, server, upstream, onward, upload)
        finally:
            complete = upload.done() or guest.their_state is not h11.SEND_BODY
            upload.cancel()
            await asyncio.gather(upload, return_exceptions=True)
        if switched:
            await self._switched(server, upstream, onward)
            return False
        if server.our_state is not h11.DONE or not (self._whole or server.their_state is h11.DONE):
            self._hang_up()
        if not complete:
            await self._discard()
            return False
        return guest.our_state is h11.DONE and guest.their_state is h11.DONE

    async def _read_head(self) -> bytes | None:
        source = self._source
        if not source.buffer:
            try:
                async with asyncio.timeout(self._patience.idle_seconds):
                    if not await source.more():
                        return None
            except TimeoutError:
                return None
        try:
            async with asyncio.timeout(self._patience.head_seconds):
                while (end := find_head(source.buffer)) is None:
                    if not await source.more():
                        raise Refusal(400, "malformed", "the request ends in its head")
        except TimeoutError:
            raise Refusal(
                408,
                "slow",
                f"no complete head came within {self._patience.head_seconds:g} s",
            ) from None
        return source.take(end)

    def _request(self, head: Head) -> tuple[HttpRequest, bool]:
        shown = printable(head.target)
        if head.method == "CONNECT":
            raise Refusal(400, "malformed", "a CONNECT inside a connection is not taken", shown)
        try:
            destination, target = self._place(head, shown)
            named = [
                read_authority(each.decode("latin-1"), 443 if self._secure else 80)
                for each in head.all(b"host")
            ]
        except BadHost as error:
            raise Refusal(403, error.reason, error.detail, shown) from None
        if not named and head.minor > 0:
            raise Refusal(400, "malformed", "the request is malformed: it has no Host", shown)
        for each in named:
            if each != destination:
                raise Refusal(
                    403,
                    "host-mismatch",
                    f"the request is for {destination}, and its Host says {each}",
                    str(destination),
                )
        named_by_connection = {
            name.strip().lower()
            for value in head.all(b"connection")
            for name in value.split(b",")
            if name.strip().lower() not in _STAYS
        }
        gone = _OF_THE_HOP | named_by_connection | {b"host"}
        headers = [(name, value) for name, value in head.headers if name.lower() not in gone]
        upgrade = (
            head.method == "GET"
            and head.minor > 0
            and b"upgrade" in named_by_connection
            and [value.lower() for value in head.all(b"upgrade")] == [b"websocket"]
            and not head.all(b"content-length")
            and not head.all(b"transfer-encoding")
        )
        return HttpRequest(self._scheme, destination, head.method, target, headers), upgrade

    @property
    def _secure(self) -> bool:
        return self._scheme is Scheme.HTTPS

    def _place(self, head: Head, shown: str) -> tuple[Destination, str]:
        target = head.target
        if "#" in target:
            raise Refusal(400, "malformed", "a fragment is no part of a request's target", shown)
        if self._fixed is not None and (
            target.startswith("/") or (target == "*" and head.method == "OPTIONS")
        ):
            return self._fixed, target
        scheme, found, rest = target.partition("://")
        wanted = "https" if self._secure else "http"
        if not found or scheme.lower() != wanted:
            if scheme.lower() == "https":
                detail = "a proxy is asked for https by CONNECT"
            elif self._fixed is None:
                detail = "a proxy is asked with a whole URL, such as http://host/path"
            else:
                detail = "the target is no path"
            raise Refusal(400, "malformed", detail, shown)
        end = min((at for mark in "/?" if (at := rest.find(mark)) >= 0), default=len(rest))
        destination = read_authority(rest[:end], 443 if self._secure else 80)
        if self._fixed is not None and destination != self._fixed:
            raise Refusal(
                403,
                "host-mismatch",
                f"the connection is for {self._fixed}, and the request for {destination}",
                str(self._fixed),
            )
        path = rest[end:]
        return destination, path if path.startswith("/") else f"/{path}"

    async def _connected(self, onward: Onward) -> _Upstream:
        key = (onward.request.destination, onward.key)
        upstream = self._upstream
        if upstream is not None:
            if upstream.key == key and not (
                upstream.reader.at_eof() or upstream.writer.is_closing()
            ):
                return upstream
            self._hang_up()
        reader, writer = await onward.connect()
        self._upstream = _Upstream(key, reader, writer)
        return self._upstream

    def _hang_up(self) -> None:
        if self._upstream is not None:
            self._upstream.writer.close()
            self._upstream = None

    def _broken(self, upload: "asyncio.Task[None]", upstream: _Upstream) -> None:
        # Whoever waits for the answer is woken by its end, and finds out why.
        if not upload.cancelled() and upload.exception() is not None:
            upstream.writer.transport.abort()

    # --- towards the destination -------------------------------------------------------------

    def _written(
        self, server: h11.Connection, request: HttpRequest, head: Head, upgrade: bool
    ) -> bytes:
        host = request.destination.host
        usual = 443 if request.scheme is Scheme.HTTPS else 80
        port = request.destination.port
        named = str(host) if port == usual else f"{host}:{port}"
        headers: Headers = [(b"Host", named.encode("ascii")), *request.headers]
        if head.all(b"transfer-encoding"):
            headers.append((b"Transfer-Encoding", b"chunked"))
        if upgrade:
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        event = h11.Request(method=request.method, target=request.target, headers=headers)
        sent = server.send(event)
        assert sent is not None
        return sent

    async def _upload(
        self, guest: h11.Connection, server: h11.Connection, writer: asyncio.StreamWriter
    ) -> None:
        source = self._source
        turns = Turns()
        while True:
            await turns.step()
            event = guest.next_event()
            if event is h11.NEED_DATA:
                if not source.buffer:
                    await source.more(self._traffic.sent.piece)
                guest.receive_data(source.take())
            elif isinstance(event, h11.Data):
                await self._traffic.sent.take(len(event.data))
                writer.write(server.send(h11.Data(data=event.data)) or b"")
                await writer.drain()
            elif isinstance(event, h11.EndOfMessage):
                # A guest's trailers go no further: nobody judged them.
                writer.write(server.send(h11.EndOfMessage()) or b"")
                await writer.drain()
                source.put_back(guest.trailing_data[0])
                break
            else:
                raise Refusal(400, "malformed", "the request's body is malformed")
        # Read on, to notice that the guest went away while it is being answered.
        while len(source.buffer) < _READ_AHEAD:
            if not await source.more():
                await asyncio.sleep(self._patience.half_closed_seconds)
                raise Refusal(408, "half-closed", "the guest has closed its side")

    # --- towards the guest -------------------------------------------------------------------

    async def _download(
        self,
        guest: h11.Connection,
        server: h11.Connection,
        upstream: _Upstream,
        onward: Onward,
        upload: "asyncio.Task[None]",
    ) -> bool:
        hook = onward.response
        destination = str(onward.request.destination)
        writer = self._writer
        turns = Turns()
        while True:
            await turns.step()
            try:
                event = server.next_event()
            except h11.RemoteProtocolError as error:
                self._raise_of(upload)
                raise Refusal(
                    502, "bad-answer", f"{destination} sent no proper answer: {error}", destination
                ) from None
            if event is h11.NEED_DATA:
                server.receive_data(await self._hear(upstream, upload))
            elif isinstance(event, h11.InformationalResponse):
                switched = event.status_code == 101
                if switched or guest.their_http_version != b"1.0":
                    headers = _for_guest(event.headers.raw_items())
                    if switched:
                        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
                        self._answering = True
                        if hook is not None:
                            headers = hook.head(101, headers)
                    await self._give(
                        guest.send(
                            h11.InformationalResponse(
                                status_code=event.status_code, headers=headers, reason=event.reason
                            )
                        )
                    )
                if switched:
                    return True
            elif isinstance(event, h11.Response):
                headers = _for_guest(event.headers.raw_items())
                if any(name == b"transfer-encoding" for name, _ in event.headers):
                    headers = [each for each in headers if each[0].lower() != b"content-length"]
                if hook is not None:
                    headers = hook.head(event.status_code, headers)
                self._answering = True
                await self._give(
                    guest.send(
                        h11.Response(
                            status_code=event.status_code, headers=headers, reason=event.reason
                        )
                    )
                )
                length = _counted(onward.request, event) if hook is None else None
                if length is not None:
                    await self._carry(length, guest, server, upstream, destination, upload)
                    self._whole = self._whole and _stays_open(event)
                    return False
            elif isinstance(event, h11.Data):
                piece = bytes(event.data) if hook is None else hook.data(bytes(event.data))
                if piece:
                    await self._give(guest.send(h11.Data(data=piece)))
            elif isinstance(event, h11.EndOfMessage):
                if hook is not None and (last := hook.end()):
                    await self._give(guest.send(h11.Data(data=last)))
                writer.write(guest.send(h11.EndOfMessage()) or b"")
                await writer.drain()
                return False
            else:
                self._raise_of(upload)
                raise Refusal(
                    502, "bad-answer", f"{destination} closed the connection", destination
                )

    async def _carry(
        self,
        length: int,
        guest: h11.Connection,
        server: h11.Connection,
        upstream: _Upstream,
        destination: str,
        upload: "asyncio.Task[None]",
    ) -> None:
        """A body of a known length. h11 would copy each byte of it several times."""
        left = length
        piece = server.trailing_data[0]  # came with the head
        while left > 0:
            if not piece:
                piece = await self._hear(upstream, upload)
            if not piece:
                raise Refusal(
                    502,
                    "bad-answer",
                    f"{destination} closed the connection {left} bytes before the end of its "
                    f"answer of {length}",
                    destination,
                )
            piece, over = (piece, b"") if len(piece) <= left else (piece[:left], piece[left:])
            left -= len(piece)
            # It counts too, and frames, where the guest is told of a length of its own.
            for part in guest.send_with_data_passthrough(h11.Data(data=piece)) or ():
                await self._give(part)
            piece = over
        for part in guest.send_with_data_passthrough(h11.EndOfMessage()) or ():
            await self._give(part)
        # What came beyond the end is no answer to anything.
        self._whole = not piece

    async def _hear(self, upstream: _Upstream, upload: "asyncio.Task[None]") -> bytes:
        try:
            data = await upstream.reader.read(self._traffic.received.piece)
        except OSError:
            self._raise_of(upload)
            raise
        if not data:
            self._raise_of(upload)
        return data

    async def _give(self, data: bytes | None) -> None:
        if data:
            await self._traffic.received.take(len(data))
            self._writer.write(data)
            await self._writer.drain()

    def _raise_of(self, upload: "asyncio.Task[None]") -> None:
        if upload.done() and not upload.cancelled():
            error = upload.exception()
            if isinstance(error, h11.RemoteProtocolError):
                raise Refusal(400, "malformed", f"the request's body is malformed: {error}")
            if error is not None:
                raise error

    async def _switched(self, server: h11.Connection, upstream: _Upstream, onward: Onward) -> None:
        back = Source(upstream.reader, server.trailing_data[0])
        await tunnel(
            self._source,
            self._writer,
            back,
            upstream.writer,
            self._traffic,
            change=onward.response.data if onward.response is not None else None,
            half_closed_seconds=self._patience.half_closed_seconds,
        )

    async def _refuse(self, refusal: Refusal) -> None:
        self._writer.write(refusal.http())
        await self._writer.drain()
        await self._discard()

    async def _discard(self) -> None:
        """Read on a little: a close with bytes unread may take back the answer on its way."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        left = _DRAINED
        try:
            async with asyncio.timeout(2.0):
                while left > 0 and not self._source.ended:
                    left -= len(self._source.take())
                    await self._source.more()
        except TimeoutError:
            pass  # it was offered


def _counted(request: HttpRequest, answer: h11.Response) -> int | None:
    """The length of the answer's body, where nothing else says where it ends."""
    if request.method == "HEAD" or answer.status_code in (204, 304):
        return None
    lengths = [value for name, value in answer.headers if name == b"content-length"]
    if any(name == b"transfer-encoding" for name, _ in answer.headers) or len(lengths) != 1:
        return None
    return int(lengths[0])  # h11 read it: digits, and not too many


def _stays_open(answer: h11.Response) -> bool:
    named = b",".join(value for name, value in answer.headers if name == b"connection")
    return answer.http_version == b"1.1" and b"close" not in {
        each.strip().lower() for each in named.split(b",")
    }


def _for_guest(headers: "list[tuple[bytes, bytes]]") -> Headers:
    named = {
        name.strip().lower()
        for key, value in headers
        if key.lower() == b"connection"
        for name in value.split(b",")
    } - _STAYS
    gone = _NOT_FOR_GUESTS | named
    return [(name, value) for name, value in headers if name.lower() not in gone]
