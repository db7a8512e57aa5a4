"""One execution over HTTP: its frames read, its input sent, its record checked."""

import asyncio
import hashlib
import json
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from signal import Signals
from typing import Any, Final

import aiohttp
from pydantic import ValidationError

from stockade.api import headers as names
from stockade.api.frames import (
    MEDIA_TYPE,
    MOST_JSON_BYTES,
    Frame,
    FrameDecoder,
    FrameType,
    FrameViolation,
    RecordAssembler,
)
from stockade.api.problems import Code, Problem
from stockade.api.records import DetachedRecord, EgressEventMessage
from stockade.client.transport import (
    BYTES_PER_SECOND,
    Interrupted,
    Outgoing,
    Transport,
    error_of,
    parsed,
    spoken,
)
from stockade.port import (
    EgressSink,
    Execution,
    InvalidRequest,
    Limits,
    Outcome,
    OutputSink,
    Refused,
    SandboxLost,
    StandardInput,
    StockadeError,
    Stream,
    TerminalSize,
    Unavailable,
)
from stockade.port.capture import Capture

MAY_HAVE_RUN: Final = "; the program may have run"
SINK_SECONDS: Final = 0.5
"""How long a sink may still take output after the execution was cancelled."""
_END_SECONDS = 30.0
_TAIL_SECONDS = 1.0
_BEYOND = 2**63
_MOST_STARTED_BYTES = 4096
_MOST_RECORD_BYTES = 256 * 1024
# A name has 4095 bytes, of which JSON makes up to six each.
_MOST_BYTES_PER_ARTEFACT = 32 * 1024
_STREAMS = {FrameType.STDOUT: Stream.STDOUT, FrameType.STDERR: Stream.STDERR}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for, as far as what comes is judged by it."""

    limits: Limits
    artefacts: tuple[str, ...] | None
    """``None``: nobody here knows."""

    @property
    def most_bytes(self) -> int:
        """Of everything in the record."""
        limits = self.limits
        return 2 * limits.record_bytes + limits.result_bytes + limits.artefact_bytes

    @property
    def most_record_bytes(self) -> int:
        """Of the record without its bytes."""
        if self.artefacts is None:
            return MOST_JSON_BYTES
        return _MOST_RECORD_BYTES + len(self.artefacts) * _MOST_BYTES_PER_ARTEFACT


class FrameReader:
    """The frames of one response. All that goes wrong is an :class:`Interrupted`."""

    def __init__(self, transport: Transport, response: aiohttp.ClientResponse) -> None:
        self._transport = transport
        self._response = response
        self._decoder = FrameDecoder()
        self._ready: deque[Frame] = deque()
        self.deadline = math.inf
        """When it must have ended, on the loop's clock; looked at whenever something came."""
        self.broken = ""
        """Why we broke it off ourselves."""

    async def next(self) -> Frame:
        """The next frame."""
        while not self._ready:
            try:
                data = await self._transport.piece(self._response)
            except Interrupted:
                if self.broken:
                    raise Interrupted(self.broken) from None
                raise
            if not data:
                raise Interrupted("the stream was cut")
            if asyncio.get_running_loop().time() > self.deadline:
                raise Interrupted("it went on for longer than its limits allow")
            try:
                self._ready.extend(self._decoder.feed(data))
            except FrameViolation as violation:
                raise Interrupted(f"it broke the protocol: {violation}") from None
        return self._ready.popleft()

    async def finish(self) -> None:
        """Behind the last frame: let the connection serve again, if the body ends soon."""
        if not self._ready and self._response.content.at_eof():
            return  # the usual case: the end came with the frame, and the connection is free
        try:
            async with asyncio.timeout(_TAIL_SECONDS):
                if self._ready or await self._transport.piece(self._response):
                    self._response.close()  # who says more than all is not asked again
        except (TimeoutError, Interrupted):
            self._response.close()
        self._response.release()

    def break_off(self, reason: str) -> None:
        """Close the connection: whoever waits for a frame finds out."""
        self.broken = self.broken or reason
        self._response.close()


class RemoteExecution:
    """An execution that was started, on the other end of one connection."""

    def __init__(
        self,
        transport: Transport,
        wanted: Wanted,
        *,
        tenant: str | None,
        on_output: OutputSink | None,
        on_egress: EgressSink | None = None,
        id: str | None,  # noqa: A002 - the word of the API
        owned: bool = True,
    ) -> None:
        """``owned``: it lives no longer than somebody waits for it. Else it is watched only."""
        self.id = id or ""
        """Its id, which the service made unless the caller did; empty where none was heard."""
        self._transport = transport
        self._wanted = wanted
        self._tenant = tenant
        self._on_output = on_output
        self._on_egress = on_egress
        self._owned = owned
        self._loop = asyncio.get_running_loop()
        self._record: asyncio.Future[Execution] = self._loop.create_future()
        self._record.add_done_callback(_see)
        self._frames: FrameReader | None = None
        self._captures: dict[Stream, Capture] = {}
        self._heard = 0
        self._muted = False
        self._in_sink = False
        self._sink_left = False
        self._cut = ""
        self._callers_error: BaseException | None = None
        self._cancelling: asyncio.Task[None] | None = None
        self._pumping: asyncio.Task[None] | None = None
        self._feeding: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "running"
        if self._record.done():
            error = self._record.exception()
            state = str(self._record.result().outcome) if error is None else "failed"
        return f"<RemoteExecution {self.id or 'without id'} {state}>"

    @property
    def done(self) -> bool:
        """Whether its record is here."""
        return self._record.done()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call back when its record is here, and its connection serves others again."""
        last: asyncio.Future[Any] = self._pumping or self._record
        last.add_done_callback(lambda _: callback())

    # --- the port ---

    async def signal(self, number: int) -> None:
        """Send a signal to the program's process group. Raises :class:`InvalidRequest`."""
        if type(number) not in (int, Signals) or not 1 <= number <= 64:
            raise InvalidRequest("signal", f"{number!r} is not a signal (1 to 64)")
        await self._command("signal", {"number": int(number)})

    async def resize(self, size: TerminalSize) -> None:
        """Set the terminal's size."""
        await self._command("resize", asdict(size))

    async def cancel(self) -> None:
        """End it with outcome ``cancelled``; ``wait`` then returns the record."""
        if self._record.done():
            return
        if self._cancelling is None:
            self._cancelling = self._loop.create_task(self._cancel())
        await asyncio.shield(self._cancelling)

    async def wait(self) -> Execution:
        """The record. A cancelled waiter cancels the execution and waits for its end."""
        try:
            return await asyncio.shield(self._record)
        except asyncio.CancelledError:
            self._mute()
            await self.cancel()
            await asyncio.wait({self._record})
            raise

    # --- its life ---

    async def follow(self, response: aiohttp.ClientResponse, stdin: StandardInput | None) -> None:
        """Take up the answer: returns when the program may have started.

        ``stdin``: what is sent apart. Raises what a refusal says, or :class:`Interrupted`.
        """
        self._frames = frames = FrameReader(self._transport, response)
        if response.content_type != MEDIA_TYPE:
            raise Interrupted(f"it answers with {spoken(response.content_type)} instead of frames")
        while (frame := await frames.next()).type is FrameType.KEEPALIVE:
            pass
        if frame.type is FrameType.PROBLEM:
            problem = _problem(frame.payload)
            if problem.code is Code.INTERNAL:
                raise Interrupted(spoken(problem.detail))
            raise error_of(problem)
        if frame.type is not FrameType.STARTED:
            raise Interrupted(f"it broke the protocol: {frame.type.name} before STARTED")
        self._take_id(_started_id(frame.payload))
        limits = self._wanted.limits
        # Twice: artefacts are fetched after the program's end, within as much time again.
        allowed = 2 * limits.wall_seconds + self._transport.timeouts.grace
        frames.deadline = self._loop.time() + allowed
        self._pumping = self._loop.create_task(self._pump(frames))
        if stdin is not None:
            self._feeding = self._loop.create_task(self._feed(stdin))

    def lose(self, why: str) -> None:
        """It may have run, and nobody will know."""
        if not self._record.done():
            self._record.set_result(self._lost(why))

    async def end(self) -> None:
        """Cancel it, and wait for its record and for all that works for it."""
        self._mute()
        await self.cancel()
        if self._record.done() and self._frames is not None:
            self._frames.break_off("it was given up")
        working = [task for task in (self._pumping, self._feeding) if task is not None]
        if working:
            await asyncio.wait(working)

    async def _pump(self, frames: FrameReader) -> None:
        whole = False
        try:
            execution = await self._read(frames)
            whole = True
        except Interrupted as error:
            execution = self._lost(str(error))
        except asyncio.CancelledError:
            execution = self._lost("it was given up")
        except ValueError as error:
            execution = self._lost(f"it broke the protocol: {spoken(str(error))}")
        self._end_input()
        if self._cut and execution.outcome is not Outcome.LOST:
            execution = replace(execution, outcome=Outcome.LOST, detail=self._cut)
        if self._callers_error is not None:
            self._record.set_exception(self._callers_error)
        elif not whole and not self._owned:
            self._record.set_exception(
                Unavailable(f"{execution.detail.removesuffix(MAY_HAVE_RUN)}; {self.id} goes on")
            )
        else:
            self._record.set_result(execution)
        # Nobody waits for this any more.
        if whole:
            await frames.finish()
        else:
            frames.break_off("")

    async def _read(self, frames: FrameReader) -> Execution:
        while (frame := await frames.next()).type is not FrameType.RECORD:
            if frame.type in _STREAMS:
                await self._hear(_STREAMS[frame.type], frame.payload, frames)
            elif frame.type is FrameType.EGRESS and self._on_egress is not None:
                await self._hear_of_egress(self._on_egress, frame.payload, frames)
            else:
                _require_harmless(frame)
        if len(frame.payload) > self._wanted.most_record_bytes:
            raise Interrupted(f"it broke the protocol: a record of {len(frame.payload)} bytes")
        try:
            detached = parsed(DetachedRecord, frame.payload)
            assembler = RecordAssembler(detached, self._wanted.most_bytes)
            allowed = self._transport.timeouts.grace + sum(detached.sizes()) / BYTES_PER_SECOND
            frames.deadline = self._loop.time() + allowed
            while (frame := await frames.next()).type is not FrameType.END:
                if frame.type is FrameType.BLOB:
                    assembler.add(frame.payload)
                else:
                    _require_harmless(frame)
            execution = assembler.finish()
        except FrameViolation as violation:
            raise Interrupted(f"it broke the protocol: {violation}") from None
        if (why := contradiction(execution, self._wanted)) is not None:
            raise Interrupted(f"its record contradicts itself or the request: {spoken(why)}")
        return execution

    async def _hear(self, stream: Stream, data: bytes, frames: FrameReader) -> None:
        self._heard += len(data)
        if self._heard > self._wanted.limits.output_bytes:
            raise Interrupted("it broke the protocol: more output than limits.output_bytes")
        if self._owned:  # for a record of what was lost
            if stream not in self._captures:
                self._captures[stream] = Capture(self._wanted.limits.record_bytes)
            self._captures[stream].add(data)
        if self._on_output is not None and data:
            await self._hand_over(partial(self._on_output, stream, data), frames)

    async def _hear_of_egress(self, sink: EgressSink, payload: bytes, frames: FrameReader) -> None:
        event = parsed(EgressEventMessage, payload).to_port()
        await self._hand_over(partial(sink, event), frames)

    async def _hand_over(self, sink: Callable[[], Awaitable[None]], frames: FrameReader) -> None:
        if self._muted:
            return
        since = self._loop.time()
        self._in_sink = True
        try:
            await sink()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not self._sink_left:
                raise
            task.uncancel()  # only the sink was meant: it took too long
        except Exception as error:  # noqa: BLE001 - the caller's own: it ends the execution
            self._fail(error)
        finally:
            self._in_sink = False
        # While it had the word, nothing could come.
        frames.deadline += self._loop.time() - since

    async def _feed(self, pieces: StandardInput) -> None:
        body = Outgoing(pieces, once=True)
        headers = self._transport.headers(
            self._tenant, {"Content-Type": "application/octet-stream"}
        )
        path = f"/v1/executions/{self.id}/stdin"
        try:
            # The program reads when it likes: silence means nothing here.
            response = await self._transport.send("PUT", path, headers, body, silent=True)
            try:
                await self._transport.require(response)
            finally:
                response.release()
        except (Interrupted, StockadeError) as error:
            if error is body.failure and not isinstance(error, Interrupted):
                self._fail(error)
            elif not _has_ended(error):
                self._cut = f"its standard input broke off: {error}"
                await self.cancel()
        except Exception as error:  # noqa: BLE001 - of the caller's own source: it ends the execution
            self._fail(error)

    async def _command(self, what: str, message: dict[str, int]) -> None:
        if self._record.done():
            return
        path = f"/v1/executions/{self.id}/{what}"
        try:
            await self._transport.ask(
                "POST", path, tenant=self._tenant, message=json.dumps(message).encode()
            )
        except Interrupted as error:
            raise SandboxLost(f"{self._transport}: {error}") from None
        except StockadeError as error:
            if not _has_ended(error):
                raise

    async def _cancel(self) -> None:
        if not self._owned and self._frames is not None:
            self._frames.break_off("it is watched no more")
            return
        self._loop.call_later(SINK_SECONDS, self._mute)
        if self._frames is not None:
            soon = self._loop.time() + _END_SECONDS
            self._frames.deadline = min(self._frames.deadline, soon)
        try:
            await self._ask_to_cancel()
        except (Interrupted, StockadeError) as error:
            if not _has_ended(error) and self._frames is not None:
                # A connection that is closed cancels it as well; only, nobody confirms it.
                self._frames.break_off(f"it was cancelled, and nobody confirms its end: {error}")

    async def _ask_to_cancel(self) -> None:
        path = f"/v1/executions/{self.id}/cancel"
        try:
            await self._transport.ask("POST", path, tenant=self._tenant)
        except Interrupted:
            # By a connection that was just being closed, say. Twice cancelled is cancelled.
            await self._transport.ask("POST", path, tenant=self._tenant)

    def _fail(self, error: BaseException) -> None:
        """What the caller's sink or input raises ends the execution, and is raised by wait."""
        if self._callers_error is None:
            self._callers_error = error
        self._muted = True
        if self._cancelling is None:
            self._cancelling = self._loop.create_task(self._cancel())

    def _mute(self) -> None:
        """The sink gets nothing more; one that hangs is left behind."""
        self._muted = True
        if self._in_sink and self._pumping is not None:
            self._sink_left = True
            self._pumping.cancel()

    def _end_input(self) -> None:
        if self._feeding is not None and asyncio.current_task() is not self._feeding:
            self._feeding.cancel()

    def _take_id(self, told: str) -> None:
        if self.id and self.id != told:
            raise Interrupted(f"it broke the protocol: it has the id {told}, not {self.id}")
        self.id = told

    def _lost(self, why: str) -> Execution:
        kept = {stream: capture.captured() for stream, capture in self._captures.items()}
        empty = Capture(0).captured()
        return Execution(
            Outcome.LOST,
            f"{self._transport}: {why}{MAY_HAVE_RUN}",
            stdout=kept.get(Stream.STDOUT, empty),
            stderr=kept.get(Stream.STDERR, empty),
        )


def contradiction(execution: Execution, wanted: Wanted) -> str | None:
    """What no record can say, of itself or of what was asked for."""
    code, number, outcome = execution.exit_code, execution.signal, execution.outcome
    if code is not None and not 0 <= code <= 255:
        return "an exit code outside 0 to 255"
    if number is not None and not 1 <= number <= 64:
        return "a signal outside 1 to 64"
    if outcome is Outcome.OK and code != 0:
        return f"outcome ok with exit code {code}"
    if outcome is Outcome.NONZERO_EXIT and not code:
        return f"outcome nonzero_exit with exit code {code}"
    if outcome is Outcome.SIGNAL and number is None:
        return "outcome signal without a signal"
    for captured in (execution.stdout, execution.stderr):
        if captured.dropped < 0 or len(captured.head) + len(captured.tail) > (
            wanted.limits.record_bytes
        ):
            return "more output is kept than there was, or than was to be kept"
    if len(execution.result or b"") > wanted.limits.result_bytes:
        return "a result above limits.result_bytes"
    came = [artefact.name for artefact in execution.artefacts]
    came += [missing.name for missing in execution.missing_artefacts]
    known = came if wanted.artefacts is None else wanted.artefacts
    if len(set(came)) < len(came) or not set(came) <= set(known):
        return "artefacts that nobody asked for"
    for artefact in execution.artefacts:
        if artefact.digest != "sha256:" + hashlib.sha256(artefact.data).hexdigest():
            return f"the digest of {artefact.name!r} is another's"
    usage, timings, limit = execution.usage, execution.timings, execution.limit
    numbers = (
        *(usage.wall_seconds, usage.cpu_seconds, usage.peak_memory_bytes, usage.peak_processes),
        *(usage.disk_bytes, usage.inodes, usage.written_bytes),
        *(timings.waited, timings.set_up, timings.ran),
        *((limit.ceiling, limit.used) if limit is not None else ()),
    )
    for value in numbers:
        if value is not None and not 0 <= value < _BEYOND:  # nor NaN, nor infinite
            return "a number that nothing can have"
    return None


def _require_harmless(frame: Frame) -> None:
    """Nothing but a sign of life may stand where it stands."""
    if frame.type is FrameType.PROBLEM:
        raise Interrupted(spoken(_problem(frame.payload).detail))
    if frame.type is not FrameType.KEEPALIVE:
        raise Interrupted(f"it broke the protocol: {frame.type.name} out of place")
    if frame.payload:
        raise Interrupted("it broke the protocol: KEEPALIVE that is not empty")


def _problem(payload: bytes) -> Problem:
    try:
        return Problem.model_validate_json(payload)
    except ValidationError:
        raise Interrupted("it broke the protocol: PROBLEM that is none") from None


def _started_id(payload: bytes) -> str:
    told: object = None
    if len(payload) <= _MOST_STARTED_BYTES:
        try:
            told = json.loads(payload)
        except (ValueError, RecursionError):
            pass
    found = told.get("id") if isinstance(told, dict) else None
    if not isinstance(found, str) or not names.is_identifier(found):
        raise Interrupted("it broke the protocol: STARTED without an id")
    return found


def _has_ended(error: BaseException) -> bool:
    """Whether an answer means that it runs no more: its record says the rest."""
    if isinstance(error, Refused):
        return error.code in (Code.NOT_FOUND, Code.CONFLICT)
    return isinstance(error, SandboxLost)


def _see(record: "asyncio.Future[Execution]") -> None:
    if not record.cancelled():
        record.exception()  # a caller who went away does not ask for it
