"""HTTP/2 on both sides, by h2: streams with flow control of their own, each way."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from stockade.broker.http1 import (
    MOST_HEAD,
    MOST_HEADERS,
    BadRequest,
    Handle,
    UpstreamBroken,
    check_authority,
    check_target,
    said_of,
)
from stockade.broker.messages import Answer, Body, Header, Request, end_to_end, refusal
from stockade.egress.names import Destination
from stockade.port import KIB
from stockade.port.egress import Scheme

_STREAMS: Final = 100
_STREAM_WINDOW: Final = 256 * KIB
_WINDOW: Final = 1024 * KIB
_READ: Final = 64 * KIB
_MOST_RESETS: Final = 1000
"""By a guest on one connection, before it is taken for an attack (CVE-2023-44487)."""


_IDLE_FRAMES: Final = 1000
"""That carry nothing, such as pings, which a peer may send beyond what the frames that do carry
something account for. Each costs us time that is others' too (CVE-2019-9512, -9515)."""
_FRAMES_FOR_A_REQUEST: Final = 16
_FRAMES_FOR_DATA: Final = 2


class StreamReset(UpstreamBroken):
    """The peer gave it up."""


class Http2Stream:
    """One exchange."""

    def __init__(self, link: "Http2Link", number: int) -> None:
        self.number = number
        self.headers: asyncio.Future[list[Header]] = asyncio.get_running_loop().create_future()
        self.trailers: list[Header] = []
        self.body: Body | None = None
        """Of what comes."""
        self.ended = False
        self.sent = False
        """So is what we had to say."""
        self.error: Exception | None = None
        self.news = asyncio.Event()
        """Something came, or there is room to send."""
        self.work: asyncio.Task[None] | None = None
        self._link = link
        self._pieces: deque[tuple[bytes, int]] = deque()

    def push(self, data: bytes, flow: int) -> None:
        """What came."""
        self._pieces.append((data, flow))
        self.news.set()

    def end(self) -> None:
        """Nothing more comes."""
        self.ended = True
        self.news.set()

    def fail(self, error: Exception) -> None:
        """It is over."""
        if self.error is None:
            self.error = error
        if not self.headers.done():
            self.headers.set_exception(error)
            self.headers.exception()  # nobody may be waiting
        self.news.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """What comes. There is room for more when a piece has been taken."""
        while True:
            if self._pieces:
                data, flow = self._pieces.popleft()
                yield data
                await self._link.taken(self, flow)
            elif self.error is not None:
                raise self.error
            elif self.ended:
                return
            else:
                self.news.clear()
                await self.news.wait()

    def unread(self) -> int:
        """How much came that nobody took; it is forgotten."""
        size = sum(flow for _, flow in self._pieces)
        self._pieces.clear()
        return size


class Http2Link:
    """A connection: who opens streams on it, says the subclass."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client: bool
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.http = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=client, header_encoding=None)
        )
        settings = {
            h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: _STREAMS,
            h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
            h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: MOST_HEAD,
        }
        if client:
            settings[h2.settings.SettingCodes.ENABLE_PUSH] = 0
        self.http.local_settings = h2.settings.Settings(client=client, initial_values=settings)
        # The decoder would take what the setting says only after the peer had agreed to it.
        self.http.decoder.max_header_list_size = MOST_HEAD
        self.streams: dict[int, Http2Stream] = {}
        self.closing = False
        self._idle_frames_left = _IDLE_FRAMES

    async def start(self) -> None:
        """The preface."""
        self.http.initiate_connection()
        self.http.increment_flow_control_window(_WINDOW - 65_535)
        await self.flush()

    async def flush(self) -> None:
        """Write what h2 has to say."""
        data = self.http.data_to_send()
        if data:
            self._writer.write(data)
        await self._writer.drain()

    async def read(self) -> None:
        """Take what comes until the connection ends."""
        reason: Exception = StreamReset("the connection ended")
        try:
            while data := await self._reader.read(_READ):
                for event in self.http.receive_data(data):
                    self._take(event)
                await self.flush()
                if self.closing and not self.streams:
                    return
        except (h2.exceptions.ProtocolError, ValueError, KeyError) as error:
            # h2 has put the reason into what is to be sent.
            reason = StreamReset(f"the peer does not speak HTTP/2 as it should: {said_of(error)}")
            with contextlib.suppress(OSError):
                await self.flush()
        except OSError as error:
            reason = StreamReset(f"the connection broke: {error.strerror or error}")
        finally:
            self.closing = True
            for stream in list(self.streams.values()):
                stream.fail(reason)

    def _take(self, event: h2.events.Event) -> None:
        self._count(event)
        match event:
            case h2.events.DataReceived():
                self._data(event)
            case h2.events.TrailersReceived():
                if (stream := self.streams.get(event.stream_id)) is not None:
                    stream.trailers = _bytes(event.headers)
            case h2.events.StreamEnded():
                if (stream := self.streams.get(event.stream_id)) is not None:
                    stream.end()
            case h2.events.StreamReset():
                if (stream := self.streams.get(event.stream_id)) is not None:
                    stream.fail(StreamReset("the peer gave the exchange up"))
                    self._was_reset(stream)
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for stream in self.streams.values():
                    stream.news.set()
            case h2.events.ConnectionTerminated():
                self.closing = True
                last = event.last_stream_id or 0
                for stream in list(self.streams.values()):
                    if stream.number > last and self.http.config.client_side:
                        stream.fail(StreamReset("the peer takes no more requests"))
            case _:
                self._take_more(event)

    def _count(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived() | h2.events.ResponseReceived():
                self._idle_frames_left += _FRAMES_FOR_A_REQUEST
            case h2.events.DataReceived() if event.data:
                self._idle_frames_left += _FRAMES_FOR_DATA
            case (
                h2.events.PingReceived()
                | h2.events.RemoteSettingsChanged()
                | h2.events.PriorityUpdated()
                | h2.events.WindowUpdated()
                | h2.events.DataReceived()
            ):
                self._idle_frames_left -= 1
                if self._idle_frames_left < 0:
                    raise h2.exceptions.ProtocolError("too many frames that carry nothing")

    def _take_more(self, event: h2.events.Event) -> None:
        """What only one side hears."""

    def _was_reset(self, stream: Http2Stream) -> None:
        """By the peer."""

    def _data(self, event: h2.events.DataReceived) -> None:
        stream = self.streams.get(event.stream_id)
        flow = event.flow_controlled_length or 0
        if stream is None:
            self._acknowledge(event.stream_id, flow)
        elif event.data:
            stream.push(event.data, flow)
        else:
            self._acknowledge(event.stream_id, flow)

    def _acknowledge(self, number: int, flow: int) -> None:
        if flow:
            with contextlib.suppress(h2.exceptions.ProtocolError):
                self.http.acknowledge_received_data(flow, number)

    async def taken(self, stream: Http2Stream, flow: int) -> None:
        """So much of what came has gone on."""
        self._acknowledge(stream.number, flow)
        await self.flush()

    def forget(self, stream: Http2Stream) -> None:
        """Nobody reads it any more."""
        self._acknowledge(stream.number, stream.unread())
        self.streams.pop(stream.number, None)

    async def send_headers(
        self, stream: Http2Stream, headers: list[Header], *, end: bool = False
    ) -> None:
        """Raises :class:`StreamReset`."""
        try:
            self.http.send_headers(stream.number, headers, end_stream=end)
            stream.sent = end
        except h2.exceptions.ProtocolError as error:
            raise StreamReset(f"it cannot be sent: {said_of(error)}") from None
        await self.flush()

    async def send_body(self, stream: Http2Stream, body: Body) -> None:
        """All of it, as the peer has room, and the end. Raises :class:`StreamReset`."""
        try:
            async for piece in body:
                view = memoryview(piece)
                while view:
                    size = await self._room(stream, len(view))
                    self.http.send_data(stream.number, bytes(view[:size]))
                    self._idle_frames_left += _FRAMES_FOR_DATA
                    view = view[size:]
                    await self.flush()
            trailers = end_to_end(body.trailers)
            if trailers:
                self.http.send_headers(stream.number, trailers, end_stream=True)
            else:
                self.http.end_stream(stream.number)
            stream.sent = True
        except h2.exceptions.ProtocolError as error:
            raise StreamReset(f"the rest cannot be sent: {said_of(error)}") from None
        await self.flush()

    async def _room(self, stream: Http2Stream, wanted: int) -> int:
        while True:
            if stream.error is not None:
                raise stream.error
            if self.closing and stream.number not in self.streams:
                raise StreamReset("the connection ended")
            room = min(
                self.http.local_flow_control_window(stream.number),
                self.http.max_outbound_frame_size,
            )
            if room > 0:
                return min(room, wanted)
            stream.news.clear()
            await stream.news.wait()

    async def reset(self, stream: Http2Stream, code: h2.errors.ErrorCodes) -> None:
        """Give it up."""
        with contextlib.suppress(h2.exceptions.ProtocolError, OSError):
            self.http.reset_stream(stream.number, code)
            await self.flush()


# --- the guest's side ---


async def serve_http2(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    destination: Destination,
    scheme: Scheme,
    handle: Handle,
) -> None:
    """Answer a guest's requests, many at once, until the connection ends."""
    guest = _Guest(reader, writer, destination, scheme, handle)
    try:
        await guest.start()
        await guest.read()
    finally:
        await guest.end()


class _Guest(Http2Link):
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        destination: Destination,
        scheme: Scheme,
        handle: Handle,
    ) -> None:
        super().__init__(reader, writer, client=False)
        self._destination = destination
        self._scheme = scheme
        self._handle = handle
        self._working: set[asyncio.Task[None]] = set()
        self._resets = 0

    async def end(self) -> None:
        """Nothing goes on."""
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    def _take_more(self, event: h2.events.Event) -> None:
        if not isinstance(event, h2.events.RequestReceived):
            return
        stream = Http2Stream(self, event.stream_id)
        if len(self._working) >= 2 * _STREAMS:
            # Streams that were reset at once still have to end here.
            raise h2.exceptions.ProtocolError("too many requests are under way")
        self.streams[stream.number] = stream
        headers = _bytes(event.headers)
        stream.work = asyncio.create_task(
            self._serve(stream, headers, has_body=event.stream_ended is None)
        )
        self._working.add(stream.work)
        stream.work.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a stream failed", "exception": error}
            )

    def _was_reset(self, stream: Http2Stream) -> None:
        self._resets += 1
        if self._resets > _MOST_RESETS:
            raise h2.exceptions.ProtocolError("too many requests were given up")
        if stream.work is not None:
            stream.work.cancel()

    async def _serve(self, stream: Http2Stream, headers: list[Header], *, has_body: bool) -> None:
        try:
            try:
                request = self._request(stream, headers, has_body=has_body)
            except BadRequest as error:
                answer = refusal(error.status, error.code, str(error))
            else:
                answer = await self._handle(request)
            try:
                await self._answer(stream, answer)
            finally:
                await answer.close()
        except (StreamReset, OSError):
            pass  # the guest gave it up
        except UpstreamBroken:
            # The answer had begun: it is cut, which is not to look like its end.
            await self.reset(stream, h2.errors.ErrorCodes.INTERNAL_ERROR)
        finally:
            if not stream.ended and stream.error is None:
                # It was answered before its end: the rest is not wanted (RFC 9113, 8.1).
                await self.reset(stream, h2.errors.ErrorCodes.NO_ERROR)
            self.forget(stream)

    def _request(self, stream: Http2Stream, headers: list[Header], *, has_body: bool) -> Request:
        said = {name: value for name, value in headers if name.startswith(b":")}
        rest = [header for header in headers if not header[0].startswith(b":")]
        if len(headers) > MOST_HEADERS:
            raise BadRequest(f"a request has at most {MOST_HEADERS} headers", 431)
        method = said.get(b":method", b"").decode("latin-1")
        if method == "CONNECT" or b":protocol" in said:
            raise BadRequest("CONNECT is for the proxy, not for a host behind it", 405)
        if not method.isascii() or not method.isalpha():
            raise BadRequest("the request has no method that is one")
        if said.get(b":scheme") != self._scheme.encode():
            raise BadRequest(f"the request's scheme is not {self._scheme}")
        hosts = [value for name, value in rest if name == b"host"]
        authority = said.get(b":authority")
        for value in ([authority] if authority is not None else []) + hosts:
            check_authority(value, self._destination, self._scheme)
        if authority is None and len(hosts) != 1:
            raise BadRequest("the request says no host")
        target = check_target(said.get(b":path", b""))
        length = next(
            (int(value) for name, value in rest if name == b"content-length" and value.isdigit()),
            None,
        )
        body = Body(self._pieces(stream), length) if has_body else None
        stream.body = body
        wanted = any(n == b"te" and v.lower() == b"trailers" for n, v in rest)
        kept = [h for h in end_to_end(_one_cookie(rest)) if h[0] not in (b"host", b"expect")]
        return Request(method, target, tuple(kept), body, trailers_wanted=wanted)

    async def _pieces(self, stream: Http2Stream) -> AsyncIterator[bytes]:
        async for piece in stream.pieces():
            yield piece
        if stream.body is not None:
            stream.body.trailers = stream.trailers

    async def _answer(self, stream: Http2Stream, answer: Answer) -> None:
        headers = [
            (b":status", str(answer.status).encode()),
            *end_to_end(answer.headers),
        ]
        await self.send_headers(stream, headers)
        await self.send_body(stream, answer.body)


# --- the destination's side ---


class Http2Upstream(Http2Link):
    """One connection to a destination, for as many requests at once as it takes."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, destination: Destination
    ) -> None:
        super().__init__(reader, writer, client=True)
        self._destination = destination
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """The preface, and reading."""
        await self.start()
        self._reading = asyncio.create_task(self.read())

    @property
    def usable(self) -> bool:
        """Whether it may take one more request."""
        return (
            not self.closing
            and not self._writer.is_closing()
            and len(self.streams) < min(_STREAMS, self.http.remote_settings.max_concurrent_streams)
        )

    def abort(self) -> None:
        """End it at once."""
        if self._reading is not None:
            self._reading.cancel()
        self._writer.transport.abort()

    async def ask(self, request: Request, host: bytes) -> Answer:
        """Send it; returns when the head of the answer is there. Raises :class:`UpstreamBroken`."""
        try:
            stream = Http2Stream(self, self.http.get_next_available_stream_id())
        except h2.exceptions.ProtocolError as error:
            raise UpstreamBroken(f"{self._destination}: {error}", unused=True) from None
        self.streams[stream.number] = stream
        body = request.body
        rest = [header for header in request.headers if header[0] != b"content-length"]
        if body is not None and body.length is not None:
            rest.append((b"content-length", str(body.length).encode()))
        headers = [
            (b":method", request.method.encode()),
            (b":scheme", b"https"),
            (b":authority", host),
            (b":path", request.target.encode()),
            *rest,
            *([(b"te", b"trailers")] if request.trailers_wanted else []),
        ]
        try:
            await self.send_headers(stream, headers, end=body is None)
            if body is not None:
                stream.work = asyncio.create_task(self._send(stream, body))
            found = await stream.headers
        except StreamReset as error:
            await self._close(stream)
            raise UpstreamBroken(f"{self._destination}: {error}") from None
        except OSError as error:
            await self._close(stream)
            raise UpstreamBroken(f"{self._destination}: {error.strerror or error}") from None
        except BaseException:
            await self._close(stream)
            raise
        status = next((value for name, value in found if name == b":status"), b"")
        if not status.isdigit() or not 200 <= int(status) <= 999:
            await self._close(stream)
            raise UpstreamBroken(f"{self._destination} answers without a status")
        rest = [header for header in found if not header[0].startswith(b":")]
        length = next((int(v) for n, v in rest if n == b"content-length" and v.isdigit()), None)
        answer_body = Body(self._pieces(stream), length)
        stream.body = answer_body

        async def close() -> None:
            await self._close(stream)

        return Answer(int(status), end_to_end(rest), answer_body, close=close)

    async def _send(self, stream: Http2Stream, body: Body) -> None:
        try:
            await self.send_body(stream, body)
        except (UpstreamBroken, OSError):
            pass  # the answer may say why
        except BadRequest as error:
            stream.fail(error)

    async def _pieces(self, stream: Http2Stream) -> AsyncIterator[bytes]:
        try:
            async for piece in stream.pieces():
                yield piece
        except StreamReset as error:
            raise UpstreamBroken(f"the answer of {self._destination} is cut: {error}") from None
        if stream.body is not None:
            stream.body.trailers = stream.trailers

    async def _close(self, stream: Http2Stream) -> None:
        if stream.work is not None and not stream.work.done():
            stream.work.cancel()
            await asyncio.gather(stream.work, return_exceptions=True)
        if not (stream.sent and stream.ended):
            await self.reset(stream, h2.errors.ErrorCodes.CANCEL)
        self.forget(stream)
        with contextlib.suppress(OSError):
            await self.flush()

    def _take_more(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            stream = self.streams.get(event.stream_id)
            if stream is not None and not stream.headers.done():
                stream.headers.set_result(_bytes(event.headers))


def _bytes(headers: object) -> list[Header]:
    assert isinstance(headers, list | tuple)
    return [(bytes(name), bytes(value)) for name, value in headers]


def _one_cookie(headers: list[Header]) -> list[Header]:
    """HTTP/2 may part it into many; HTTP/1.1 has one (RFC 9113, 8.2.3)."""
    crumbs = [value for name, value in headers if name == b"cookie"]
    if len(crumbs) < 2:
        return headers
    rest = [header for header in headers if header[0] != b"cookie"]
    return [*rest, (b"cookie", b"; ".join(crumbs))]
