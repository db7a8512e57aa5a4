"""The three forms of an answer: JSON at the end, server-sent events, binary frames."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from enum import Enum
from typing import Final

from fastapi import Response
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from stockade.api.answers import OmittedMessage, OutputMessage, StartedMessage
from stockade.api.frames import (
    GATHERED_BYTES,
    GATHERED_SECONDS,
    FrameType,
    encode_output,
    encode_record,
)
from stockade.api.frames import MEDIA_TYPE as FRAMES
from stockade.api.frames import encode as frame
from stockade.api.problems import Code, Problem
from stockade.api.records import EgressEventMessage, RecordMessage
from stockade.gateway.api.bodies import or_gone
from stockade.gateway.api.problems import fault, problem_of
from stockade.gateway.calls import Call
from stockade.gateway.watching import Omitted, Piece, Reader, Told, TooSlow
from stockade.port import EgressEvent, Execution, Refused, StockadeError, Stream

EVENTS: Final = "text/event-stream"
JSON: Final = "application/json"
KEEPALIVE_SECONDS: Final = 4.0
"""A client takes 20 seconds of silence for a cut."""

_STILL_THERE: Final = b": still there\n\n"


class Form(Enum):
    """How an answer comes."""

    JSON = JSON
    EVENTS = EVENTS
    FRAMES = FRAMES


def negotiated(accept: str, *, among: tuple[Form, ...] = tuple(Form)) -> Form:
    """What ``Accept`` prefers of these (RFC 9110, 12.5.1). Raises for what is not to be had."""
    if not accept.strip():
        return among[0]
    ranked: list[tuple[float, int, Form]] = []
    for part in accept[:2000].split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        for place, form in enumerate(among):
            if kind in (form.value, "*/*", form.value.partition("/")[0] + "/*") and quality > 0:
                # What is named goes before what a wildcard takes in.
                ranked.append((quality, -place - (100 if "*" in kind else 0), form))
    if not ranked:
        there = ", ".join(form.value for form in among)
        raise Refused("not_acceptable", f"Accept names nothing that is to be had: {there}")
    return max(ranked, key=lambda one: one[:2])[2]


class JsonAnswer(Response):
    """A message as JSON."""

    media_type = JSON

    def __init__(
        self, message: BaseModel, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message.model_dump_json(), status, headers)


class StreamAnswer(Response):
    """An answer that comes in pieces. ``gone`` is called when the caller leaves before its end."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        media_type: str,
        *,
        headers: dict[str, str] | None = None,
        gone: Callable[[], None] = lambda: None,
        status: int = 200,
    ) -> None:
        super().__init__(None, status, headers, media_type)
        # A body of unknown length: Response has announced an empty one.
        del self.headers["content-length"]
        if headers and "Content-Length" in headers:
            self.headers["Content-Length"] = headers["Content-Length"]
        self._pieces = pieces
        self._gone = gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = False
        try:
            await or_gone(receive, self._send(send))
            whole = True
        except ClientDisconnect:
            scope["state"]["left"] = True
        finally:
            if not whole:
                self._gone()
            # Now, and not whenever it is collected: it may hold a program back.
            await self._pieces.aclose()

    async def _send(self, send: Send) -> None:
        head = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        # Frames come soon, and a head before them would be one more thing to read.
        alone = self.media_type != FRAMES
        if alone:
            await send(head)
        async for piece in self._pieces:
            if not alone:
                await send(head)
                alone = True
            more = not isinstance(piece, Last)
            await send({"type": "http.response.body", "body": piece, "more_body": more})
            if not more:
                return
        await send({"type": "http.response.body", "body": b""})


class Last(bytes):
    """A piece behind which nothing comes: it goes out together with the answer's end."""


async def begun(call: Call) -> None:
    """Give it a moment to start: what refuses it is then the answer's status."""
    try:
        async with asyncio.timeout(KEEPALIVE_SECONDS):
            await call.started.wait()
    except TimeoutError:
        return
    if call.refused:
        await call.wait()  # raises what kept it from running


async def pauses_until_started(call: Call) -> AsyncIterator[None]:
    """Until its program may have begun: each time that nothing was to be said for so long."""
    while not call.started.is_set():
        try:
            async with asyncio.timeout(KEEPALIVE_SECONDS):
                await call.started.wait()
        except TimeoutError:
            yield None


async def as_frames(call: Call, reader: Reader) -> AsyncGenerator[bytes, None]:
    """A call's output and record, as binary frames; what comes within a moment goes together."""
    loop = asyncio.get_running_loop()
    # Who sends its input apart waits for STARTED, and perhaps for an echo.
    patience = GATHERED_SECONDS if call.inlet is None else 0.0
    held = bytearray()
    due = loop.time() + patience
    try:
        async for _ in pauses_until_started(call):
            yield frame(FrameType.KEEPALIVE)
        if not call.refused:
            held += frame(FrameType.STARTED, StartedMessage(id=call.id).model_dump_json().encode())
            due = loop.time() + patience
            if not patience:
                yield bytes(held)
                held.clear()
        async for piece in reader.pieces(patience if held else KEEPALIVE_SECONDS):
            if not held:
                due = loop.time() + patience
            match piece:
                case Piece(Stream.STDOUT, data):
                    held += frame(FrameType.STDOUT, data)
                case Piece(Stream.STDERR, data):
                    held += frame(FrameType.STDERR, data)
                case Told(told):
                    held += frame(FrameType.EGRESS, _as_json(told))
                case _ if not held:
                    yield frame(FrameType.KEEPALIVE)
            if held and (len(held) > GATHERED_BYTES or loop.time() >= due):
                yield bytes(held)
                held.clear()
            reader.pause = max(0.0, due - loop.time()) if held else KEEPALIVE_SECONDS
        for part in encode_record(await call.wait()):
            if len(held) > GATHERED_BYTES:
                yield bytes(held)
                held.clear()
            held += part
        yield Last(held)
    except TooSlow:
        yield bytes(held) + frame(FrameType.PROBLEM, _too_slow().body())
    except StockadeError as error:
        yield bytes(held) + frame(FrameType.PROBLEM, problem_of(error).body())
    except (OSError, RuntimeError):
        yield bytes(held) + frame(FrameType.PROBLEM, fault().body())
    finally:
        reader.close()


def record_as_frames(id: str, execution: Execution) -> "list[bytes]":
    """A record that was there before, as the frames of the call that made it."""
    pieces = [frame(FrameType.STARTED, StartedMessage(id=id).model_dump_json().encode())]
    for kind, captured in (
        (FrameType.STDOUT, execution.stdout),
        (FrameType.STDERR, execution.stderr),
    ):
        for data in (captured.head, captured.tail):
            pieces.extend(encode_output(kind, data))
    pieces.extend(encode_record(execution))
    return pieces


async def as_events(call: Call, reader: Reader) -> AsyncGenerator[bytes, None]:
    """A call's output and record, as server-sent events. An output's id is where to go on."""
    try:
        async for _ in pauses_until_started(call):
            yield _STILL_THERE
        if call.running is not None:
            yield event("started", StartedMessage(id=call.id).model_dump_json())
        async for piece in reader.pieces(KEEPALIVE_SECONDS):
            match piece:
                case Piece(stream, data, end):
                    yield output_event(stream, data, end)
                case Told(told):
                    yield event("egress", _as_json(told).decode())
                case Omitted(count):
                    yield event("omitted", OmittedMessage(bytes=count).model_dump_json())
                case None:
                    yield _STILL_THERE
        yield event("record", RecordMessage.of(await call.wait()).model_dump_json())
    except TooSlow:
        yield event("problem", _too_slow().body().decode())
    except StockadeError as error:
        yield event("problem", problem_of(error).body().decode())
    except (OSError, RuntimeError):
        yield event("problem", fault().body().decode())
    finally:
        reader.close()


def record_as_events(id: str, record: RecordMessage, after: int = 0) -> "list[bytes]":
    """A record that was there before. What it kept of the output comes first, for a new reader."""
    pieces = [event("started", StartedMessage(id=id).model_dump_json())]
    if not after:
        end = 0
        for stream, captured in ((Stream.STDOUT, record.stdout), (Stream.STDERR, record.stderr)):
            dropped = captured.total - len(captured.head) - len(captured.tail)
            if captured.head:
                end += len(captured.head)
                pieces.append(output_event(stream, captured.head, end))
            if dropped > 0:
                end += dropped
                pieces.append(event("omitted", OmittedMessage(bytes=dropped).model_dump_json()))
            if captured.tail:
                end += len(captured.tail)
                pieces.append(output_event(stream, captured.tail, end))
    pieces.append(event("record", record.model_dump_json()))
    return pieces


def event(name: str, data: str, id: int | None = None) -> bytes:
    """One server-sent event. ``data`` is JSON, which has no line breaks."""
    mark = "" if id is None else f"id: {id}\n"
    return f"event: {name}\n{mark}data: {data}\n\n".encode()


def output_event(stream: Stream, data: bytes, end: int) -> bytes:
    """Some output."""
    return event("output", OutputMessage(stream=stream, data=data).model_dump_json(), end)


async def each(pieces: "list[bytes]") -> AsyncGenerator[bytes, None]:
    """What is there already."""
    for piece in pieces:
        yield piece


def _as_json(told: EgressEvent) -> bytes:
    return EgressEventMessage.of(told).model_dump_json().encode()


def _too_slow() -> Problem:
    return Problem.make(
        Code.TOO_LARGE,
        "more was printed than is kept for who reads this slowly; the execution goes on: read it "
        "anew from here, or wait for its record",
    )
