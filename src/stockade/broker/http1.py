"""HTTP/1.1 on both sides, by h11: each message is read whole in its meaning and written anew."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import h11

from stockade.broker.messages import Answer, Body, Header, Request, end_to_end, nothing, refusal
from stockade.egress.names import BadHost, Destination, read_authority
from stockade.egress.turns import Turns
from stockade.port import KIB
from stockade.port.egress import Scheme

Handle = Callable[[Request], Awaitable[Answer]]

MOST_HEAD: Final = 64 * KIB
MOST_HEADERS: Final = 200
_READ: Final = 64 * KIB
_HEAD_SECONDS: Final = 60.0
_DISCARD_SECONDS: Final = 2.0
_MOST_DISCARDED: Final = 1024 * KIB
_BYTES: Final = re.compile(r"(?:bytearray\()?\bb['\"]")
_PORTS: Final = {Scheme.HTTPS: 443, Scheme.HTTP: 80}


class BadRequest(Exception):
    """What a guest sent is not a request that can be read in one way only."""

    def __init__(self, sentence: str, status: int = 400, code: str = "bad-request") -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code


class UpstreamBroken(Exception):
    """The destination's answer is none, or ends before its end."""

    def __init__(self, sentence: str, *, unused: bool = False) -> None:
        super().__init__(sentence)
        self.unused = unused
        """It closed before it said anything: an old connection, which it may have closed earlier."""


# --- the guest's side ---


async def serve_http1(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    destination: Destination,
    scheme: Scheme,
    handle: Handle,
) -> None:
    """Answer a guest's requests until it or an answer ends the connection."""
    guest = _Guest(reader, writer)
    while await guest.one(destination, scheme, handle):
        pass


class _Guest:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
        self._body: Body | None = None
        self._trailers: list[Header] = []

    async def one(self, destination: Destination, scheme: Scheme, handle: Handle) -> bool:
        """Serve one request; returns whether there may be another."""
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                event = await self._event()
        except TimeoutError:
            return False
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, "bad-request", f"that is no HTTP: {error}")
            return False
        if not isinstance(event, h11.Request):
            return False
        try:
            request = self._read_request(event, destination, scheme)
        except BadRequest as error:
            await self._refuse(error.status, error.code, str(error))
            return False
        answer = await handle(request)
        try:
            if answer.tunnel is not None:
                await self._tunnel(answer)
                return False
            await self._answer(answer, event.http_version)
        finally:
            await answer.close()
        if self._http.their_state is h11.SEND_BODY:
            # What is left of the body, within reason: else the answer may not be heard.
            with contextlib.suppress(TimeoutError, BadRequest):
                async with asyncio.timeout(_DISCARD_SECONDS):
                    await self._discard()
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    def _read_request(self, event: h11.Request, host: Destination, scheme: Scheme) -> Request:
        headers = [(bytes(name), bytes(value)) for name, value in event.headers]
        if len(headers) > MOST_HEADERS:
            raise BadRequest(f"a request has at most {MOST_HEADERS} headers", 431)
        if len(event.target) + sum(len(name) + len(value) for name, value in headers) > MOST_HEAD:
            raise BadRequest(f"a request's head has at most {MOST_HEAD} bytes", 431)
        method = event.method.decode("ascii")
        if method == "CONNECT":
            raise BadRequest("CONNECT is for the proxy, not for a host behind it", 405)
        names = [name for name, _ in headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            raise BadRequest("Content-Length and Transfer-Encoding contradict one another")
        if names.count(b"content-length") > 1 or names.count(b"transfer-encoding") > 1:
            raise BadRequest("the length of the body is said twice")
        check_authority(next((v for n, v in headers if n == b"host"), b""), host, scheme)
        target = check_target(event.target)
        framed = b"transfer-encoding" in names
        length = next((int(v) for n, v in headers if n == b"content-length"), None)
        self._body = Body(self._pieces(), length) if framed or length else None
        upgrade = next((v.lower() for n, v in headers if n == b"upgrade"), b"")
        return Request(
            method,
            target,
            tuple(h for h in end_to_end(headers) if h[0] not in (b"host", b"expect")),
            self._body,
            websocket=upgrade == b"websocket" and method == "GET" and self._body is None,
            trailers_wanted=any(n == b"te" and b"trailers" in v.lower() for n, v in headers),
        )

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            try:
                data = await self._reader.read(_READ)
            except OSError:
                data = b""
            self._http.receive_data(data)

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            self._writer.write(self._http.send(go_on) or b"")
            await self._writer.drain()
        while True:
            try:
                event = await self._event()
            except h11.RemoteProtocolError as error:
                raise BadRequest(f"the body is broken: {error}") from None
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                if self._body is not None:
                    self._body.trailers = [(bytes(n), bytes(v)) for n, v in event.headers]
                return
            else:
                raise BadRequest("the body ends before its end")

    async def _answer(self, answer: Answer, version: bytes) -> None:
        headers = end_to_end(answer.headers)
        head = h11.Response(status_code=answer.status, headers=headers, reason=answer.reason)
        self._write(head)
        await self._writer.drain()
        turns = Turns()
        async for piece in answer.body:
            await turns.step()
            self._write(h11.Data(data=piece))
            await self._writer.drain()
        # Trailers are for chunks alone.
        framed = any(name == b"content-length" for name, _ in headers) or version == b"1.0"
        trailers = [] if framed else end_to_end(answer.body.trailers)
        self._write(h11.EndOfMessage(headers=trailers))
        await self._writer.drain()

    def _write(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")

    async def _refuse(self, status: int, code: str, sentence: str) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        answer = refusal(status, code, sentence)
        answer.headers.append((b"connection", b"close"))
        head = h11.Response(status_code=status, headers=answer.headers)
        self._write(head)
        async for piece in answer.body:
            self._write(h11.Data(data=piece))
        self._write(h11.EndOfMessage())
        await self._writer.drain()

    async def _discard(self) -> None:
        taken = 0
        if self._http.they_are_waiting_for_100_continue:
            return
        while self._http.their_state is h11.SEND_BODY and taken < _MOST_DISCARDED:
            event = await self._event()
            if isinstance(event, h11.Data):
                taken += len(event.data)

    async def _tunnel(self, answer: Answer) -> None:
        tunnel = answer.tunnel
        assert tunnel is not None
        switched = h11.InformationalResponse(
            status_code=101,
            headers=[
                (b"upgrade", b"websocket"),
                (b"connection", b"Upgrade"),
                *end_to_end(answer.headers),
            ],
            reason=answer.reason,
        )
        self._write(switched)
        await self._writer.drain()
        begun, _ = self._http.trailing_data

        async def out() -> None:
            data = begun
            while True:
                if data:
                    await tunnel.write(data)
                data = await self._reader.read(_READ)
                if not data:
                    return

        async def back() -> None:
            while data := await tunnel.read():
                self._writer.write(data)
                await self._writer.drain()

        await first_of(out(), back())


async def first_of(*works: Awaitable[None]) -> None:
    """Until one is done, and then none of them goes on. What the peers do wrong ends it only."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(
                result, OSError | UpstreamBroken | BadRequest
            ):
                raise result


def check_authority(value: bytes, destination: Destination, scheme: Scheme) -> None:
    """Whether Host or :authority is the host that the connection is for. Raises :class:`BadRequest`."""
    try:
        asked = read_authority(value.decode("latin-1"), _PORTS[scheme])
    except BadHost as error:
        raise BadRequest(f"the host of the request: {error.detail}", 421, "host-mismatch") from None
    if asked != destination:
        raise BadRequest(
            f"the request is for {asked}, and the connection is to {destination}",
            421,
            "host-mismatch",
        )


def check_target(target: bytes) -> str:
    """Path and query. Raises :class:`BadRequest`."""
    if not target.startswith(b"/") or not target.isascii() or b"#" in target:
        raise BadRequest("the target of the request is no path that begins with /")
    text = target.decode("ascii")
    if any(not "!" <= char <= "~" for char in text):
        raise BadRequest("the target of the request has characters that no URL has")
    return text


# --- the destination's side ---


class Http1Upstream:
    """One connection to a destination, for one request at a time."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        destination: Destination,
        on_free: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_free`` is called when nobody uses it any more."""
        self._reader = reader
        self._writer = writer
        self._destination = destination
        self._on_free = on_free
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
        self._sending: asyncio.Task[None] | None = None
        self._asked = 0
        self.busy = False

    @property
    def usable(self) -> bool:
        """Whether it may take one more request."""
        return (
            not self.busy
            and self._http.our_state is h11.IDLE
            and not self._reader.at_eof()
            and not self._writer.is_closing()
        )

    def abort(self) -> None:
        """End it at once."""
        if self._sending is not None:
            self._sending.cancel()
        self._writer.transport.abort()

    async def ask(self, request: Request, host: bytes) -> Answer:
        """Send it; returns when the head of the answer is there. Raises :class:`UpstreamBroken`."""
        self.busy = True
        self._asked += 1
        headers: list[Header] = [(b"host", host), *request.headers]
        body = request.body
        headers = [header for header in headers if header[0] != b"content-length"]
        if body is not None and body.length is not None:
            headers.append((b"content-length", str(body.length).encode()))
        elif body is not None:
            headers.append((b"transfer-encoding", b"chunked"))
        elif request.method in ("POST", "PUT", "PATCH"):
            headers.append((b"content-length", b"0"))
        if request.websocket:
            headers += [(b"upgrade", b"websocket"), (b"connection", b"Upgrade")]
        if request.trailers_wanted and not request.websocket:
            headers += [(b"te", b"trailers"), (b"connection", b"TE")]
        try:
            head = h11.Request(method=request.method, target=request.target, headers=headers)
            self._writer.write(self._http.send(head) or b"")
            if body is None:
                self._writer.write(self._http.send(h11.EndOfMessage()) or b"")
                await self._writer.drain()
            else:
                self._sending = asyncio.create_task(self._send_body(body))
            return await self._head(request)
        except (h11.ProtocolError, OSError) as error:
            await self._end()
            raise UpstreamBroken(
                f"{self._destination} does not speak HTTP as it should: {said_of(error)}",
                unused=isinstance(error, OSError) and self._asked > 1,
            ) from None
        except BaseException:
            await self._end()
            raise

    async def _end(self) -> None:
        self.abort()
        # Nobody may still read the request's body when its connection goes on.
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)
        self.busy = False
        self._on_free()

    async def _send_body(self, body: Body) -> None:
        turns = Turns()
        async for piece in body:
            await turns.step()
            self._writer.write(self._http.send(h11.Data(data=piece)) or b"")
            await self._writer.drain()
        trailers = end_to_end(body.trailers) if body.length is None else []
        self._writer.write(self._http.send(h11.EndOfMessage(headers=trailers)) or b"")
        await self._writer.drain()

    async def _head(self, request: Request) -> Answer:
        while True:
            event = await self._event()
            if isinstance(event, h11.InformationalResponse):
                if event.status_code == 101 and request.websocket:
                    return self._switched(event)
                continue
            if isinstance(event, h11.Response):
                break
            raise UpstreamBroken(
                f"{self._destination} closed the connection without an answer",
                unused=self._asked > 1,
            )
        headers = [(bytes(name), bytes(value)) for name, value in event.headers]
        if len(headers) > MOST_HEADERS:
            raise UpstreamBroken(f"{self._destination} sent more than {MOST_HEADERS} headers")
        if any(name == b"transfer-encoding" for name, _ in headers):
            # The chunks count (RFC 9112, 6.3), and two lengths would be two answers.
            headers = [header for header in headers if header[0] != b"content-length"]
        length = next((int(v) for n, v in headers if n == b"content-length"), None)
        body = Body(self._pieces(), length)
        self._answer_body = body
        return Answer(
            event.status_code, end_to_end(headers), body, bytes(event.reason), close=self._close
        )

    def _switched(self, event: h11.InformationalResponse) -> Answer:
        headers = [(bytes(name), bytes(value)) for name, value in event.headers]
        begun, _ = self._http.trailing_data

        answer = Answer(101, end_to_end(headers), nothing(), bytes(event.reason))
        answer.tunnel = _Tunnel(self._reader, self._writer, begun)
        answer.close = self._close
        return answer

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            waiting = asyncio.ensure_future(self._reader.read(_READ))
            sending = self._sending
            if sending is not None and not sending.done():
                # A body that fails ends it all; else nobody would answer to half of one.
                try:
                    await asyncio.wait({waiting, sending}, return_when=asyncio.FIRST_COMPLETED)
                except BaseException:
                    waiting.cancel()
                    raise
            if sending is not None and sending.done() and not sending.cancelled():
                error = sending.exception()
                # The destination may have said why it takes no more.
                if error is not None and not isinstance(error, OSError):
                    waiting.cancel()
                    raise error
            try:
                data = await waiting
            except OSError:
                data = b""
            self._http.receive_data(data)

    async def _pieces(self) -> AsyncIterator[bytes]:
        while True:
            try:
                event = await self._event()
            except h11.RemoteProtocolError as error:
                raise UpstreamBroken(
                    f"the answer of {self._destination} is broken: {said_of(error)}"
                ) from None
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._answer_body.trailers = [(bytes(n), bytes(v)) for n, v in event.headers]
                return
            else:
                raise UpstreamBroken(f"the answer of {self._destination} ends before its end")

    async def _close(self) -> None:
        sending = self._sending
        if sending is not None and sending.done():
            self._sending = sending = None
        if sending is None and (self._http.our_state, self._http.their_state) == (
            h11.DONE,
            h11.DONE,
        ):
            self._http.start_next_cycle()
            self.busy = False
            self._on_free()
            return
        await self._end()


class _Tunnel:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begun: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._begun = begun

    async def read(self) -> bytes:
        if self._begun:
            begun, self._begun = self._begun, b""
            return begun
        return await self._reader.read(_READ)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        self._writer.close()


def said_of(error: Exception) -> str:
    """What is wrong, without the bytes that were: they come as Python spells them, which no mask knows."""
    text = getattr(error, "strerror", None) or _BYTES.split(str(error), maxsplit=1)[0]
    return text.rstrip(" :=(") or type(error).__name__
