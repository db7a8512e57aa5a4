"""uvicorn's protocol with the bounds that it lacks.

It waits for a connection's first headers for ever, takes headers of any size, queues whatever a
peer pipelines, does not tell the request in front of a queue that its peer has left, and waits for
ever for a peer that does not read.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from stockade.api.problems import MEDIA_TYPE, Code, Problem
from stockade.serving.bounds import Bounds
from stockade.serving.joined import JoinedWrites

_LEAST_HELD: Final = 2048
"""For a request's objects, however short it is."""


def bounded(bounds: Bounds) -> type[HttpToolsProtocol]:
    """The protocol's class for these bounds: uvicorn makes its instances itself."""

    class BoundedProtocol(_BoundedProtocol):
        _bounds = bounds

    return BoundedProtocol


@dataclass(slots=True)
class _Unanswered:
    """A request that is served, or waits for its turn."""

    cycle: RequestResponseCycle
    size: int
    """What is held of it: what came before it is served."""


class _BoundedProtocol(HttpToolsProtocol):
    _bounds: Bounds

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._header_bytes = 0
        self._in_headers = True
        self._pieces = 0
        self._barren_bytes = 0
        self._unanswered: deque[_Unanswered] = deque()
        """The one that is served, then those that wait, in the order in which they came."""
        self._headers_due: asyncio.TimerHandle | None = None
        self._read_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        joined: Any = JoinedWrites(transport, self.loop)
        self.transport = joined
        if len(self.connections) > self._bounds.connections:
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                Problem.make(
                    Code.UNAVAILABLE,
                    f"{self._bounds.connections} connections are open, the most; try again later",
                    retry_after=1.0,
                ),
            )
            return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # uvicorn tells the last one alone, and it is the first one that runs.
        self.pipeline.clear()
        for each in self._unanswered:
            each.cycle.disconnected = True
            each.cycle.message_event.set()
        self._stop(self._headers_due)
        self._stop(self._read_due)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_headers:
            self._header_bytes += len(data)
            if self._headers_due is None and not self._unanswered:
                self._expect_headers()
        pieces = self._pieces
        super().data_received(data)
        # Trailers and the extensions of chunks are read, and trailers kept: none is wanted.
        self._barren_bytes = self._barren_bytes + len(data) if self._pieces == pieces else 0
        if not self._in_headers and self._barren_bytes > self._bounds.header_bytes:
            self._refuse_headers()
        # Judged after parsing: what came may have the headers' end and much of a body.
        if self._in_headers and self._header_bytes > self._bounds.header_bytes:
            self._refuse_headers()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._pieces += 1
        self._stop(self._headers_due)
        self._headers_due = None
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._bounds.header_bytes:
            self._refuse_headers()
            return
        if self.parser.should_upgrade() and self._should_upgrade():
            if self._unanswered:
                self.send_400_response("a WebSocket's handshake before the answer to a request")
                return
            if self._announces_body():
                # uvicorn waits for it, and nobody else does: no time is up while it does not come.
                self.send_400_response("a WebSocket's handshake has no body")
                return
        before = self.cycle
        try:
            super().on_headers_complete()
        except ValueError:
            # Of a target that is no URL, or not ASCII; uvicorn lets it end the connection.
            self.send_400_response("the request's target is no path")
            return
        if self.cycle is not before:
            self._unanswered.append(_Unanswered(self.cycle, 0))
            if len(self._unanswered) > 1:
                # Who does not read does not hear that the peer leaves.
                self.flow.resume_reading()
                self._hold(size + _LEAST_HELD)

    def handle_websocket_upgrade(self) -> None:
        if self.transport.is_closing():
            return  # it was refused
        super().handle_websocket_upgrade()
        # Its parser's bounds are other ones, and uvicorn leaves what is beyond them unanswered.
        protocol: Any = self.transport.get_protocol()
        if not protocol.handshake_initiated:
            self.send_400_response("that is no WebSocket's handshake, or too long a one")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        if self._unanswered:
            self._header_bytes = 0
            self._expect_headers()

    def on_message_complete(self) -> None:
        if self.transport.is_closing():
            return
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        if self.transport.is_closing():
            return
        if len(self._unanswered) > 1 and not self._hold(len(body)):
            return
        super().on_body(body)

    def on_response_complete(self) -> None:
        if self._unanswered:
            self._unanswered.popleft()
        super().on_response_complete()
        if not self._unanswered:
            self._in_headers = True
            self._header_bytes = 0
        if self.transport.is_closing():
            self._abort_within(self._bounds.closing_seconds)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_within(self._bounds.stalled_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop(self._read_due)
        self._read_due = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_within(self._bounds.closing_seconds)

    def send_400_response(self, msg: str) -> None:
        """Whatever is no HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, Problem.make(Code.INVALID_REQUEST, msg))

    def _announces_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
            for name, value in self.headers
        )

    def _hold(self, size: int) -> bool:
        """Of the request that came last, and waits; whether it may."""
        self._unanswered[-1].size += size
        held = sum(each.size for each in list(self._unanswered)[1:])
        if held > self._bounds.ahead_bytes:
            self.send_400_response(
                f"more than {self._bounds.ahead_bytes} bytes of requests before the first was "
                "answered: wait for answers, or use several connections"
            )
        return held <= self._bounds.ahead_bytes

    def _expect_headers(self) -> None:
        self._stop(self._headers_due)
        self._headers_due = self.loop.call_later(self._bounds.header_seconds, self._headers_late)

    def _headers_late(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_TIMEOUT,
            Problem.make(
                Code.INVALID_REQUEST,
                f"no complete headers came within {self._bounds.header_seconds:g} s",
            ),
        )

    def _refuse_headers(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            Problem.make(
                Code.TOO_LARGE,
                f"headers of more than {self._bounds.header_bytes} bytes",
            ),
        )

    def _refuse(self, status: HTTPStatus, problem: Problem) -> None:
        if self.transport.is_closing():
            return
        body = problem.model_copy(update={"status": int(status)}).body()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        # An answer that has begun is not to be continued with another one.
        if not self._unanswered or not self._unanswered[0].cycle.response_started:
            self.transport.write(head.encode() + body)
        self.transport.close()
        self._abort_within(self._bounds.closing_seconds)

    def _abort_within(self, seconds: float) -> None:
        self._stop(self._read_due)
        self._read_due = self.loop.call_later(seconds, self.transport.abort)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
