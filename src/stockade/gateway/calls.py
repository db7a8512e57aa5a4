"""One execution's way through the gateway.

What the ledger has begun lives in a task of its own, whoever waits for it: it takes its turn, runs
through an executor, and ends in exactly one record, whatever breaks. A caller that goes away cancels
it, unless it is a job.
"""

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from opentelemetry.trace import SpanKind

from stockade.gateway.executions import ExecutionEntry, Repeated, RequestFacts, ToolFacts
from stockade.gateway.keys import Caller
from stockade.gateway.ledger import Ledger
from stockade.gateway.logs import Log
from stockade.gateway.metrics import Metrics
from stockade.gateway.tracing import Tracing
from stockade.gateway.watching import OutputLog
from stockade.port import (
    EgressSink,
    Execution,
    ExecutionRequest,
    InvalidRequest,
    MissingArtefact,
    Outcome,
    OutputSink,
    Refused,
    RunningExecution,
    SandboxLost,
    SandboxRequest,
    StandardInput,
    StockadeError,
    TerminalSize,
    Unavailable,
)

_START_SECONDS: Final = 15.0
Result = TypeVar("Result")


class Place(Protocol):
    """Where a program is started: an executor for one of its own, or a session."""

    async def start(
        self,
        id: str,
        request: ExecutionRequest,
        stdin: StandardInput,
        on_output: OutputSink,
        on_egress: EgressSink | None,
    ) -> RunningExecution:
        """Raises what the port says."""
        ...


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A caller's key, and what the request was."""

    key: str
    digest: str

    @classmethod
    def of(cls, key: str, where: str, body: bytes) -> "Idempotency":
        """``where``: the path, for the same body means another thing elsewhere."""
        return cls(key, hashlib.sha256(where.encode() + b"\n" + body).hexdigest())


class Inlet:
    """Standard input that comes in a request of its own, piece after piece."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._taken = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """For the executor."""
        while (piece := await self._pieces.get()) is not None:
            yield piece

    def claim(self) -> None:
        """Take it for one request. Raises :class:`~stockade.port.Refused` for a second."""
        if self._taken:
            raise Refused("conflict", "its standard input is being sent, or was")
        self._taken = True

    async def put(self, piece: bytes) -> None:
        """Hand on a piece; returns when there is room for the next."""
        await self._pieces.put(piece)

    async def end(self) -> None:
        """It is complete."""
        await self._pieces.put(None)


class Call:
    """An execution that was begun."""

    def __init__(
        self,
        id: str,
        caller: Caller,
        sandbox_id: str | None,
        job: bool,
        stdin: bytes | None,
        watch_egress: bool = False,
        keep_artefacts: bool = True,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.id = id
        self.caller = caller
        self.tenant = caller.tenant
        self.sandbox_id = sandbox_id
        self.job = job
        self.log = OutputLog()
        self.watch_egress = watch_egress
        self.keep_artefacts = keep_artefacts
        """Not: who began it takes them from the record, and nobody fetches them later."""
        self.inlet = Inlet() if stdin is None else None
        self.stdin: StandardInput = self.inlet.pieces() if self.inlet else (stdin or b"")
        self.started: asyncio.Event = asyncio.Event()
        """Set when the program may have begun, and when all is over."""
        self.running: RunningExecution | None = None
        self.cancelled: asyncio.Future[None] = loop.create_future()
        """Done when somebody wants its end."""
        self._ended: asyncio.Future[Execution] = loop.create_future()
        self._ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def __repr__(self) -> str:
        state = "ended" if self.done else "running" if self.running else "waiting"
        return f"<Call {self.id}: {state}>"

    @property
    def done(self) -> bool:
        """Whether its record is written."""
        return self._ended.done()

    @property
    def refused(self) -> bool:
        """Whether it ended without anything that ran."""
        return self.done and self._ended.exception() is not None

    async def wait(self) -> Execution:
        """Its record, once it is written. Raises where there was no sandbox to run it in."""
        return await asyncio.shield(self._ended)

    async def end(self) -> None:
        """Wait until it has ended, however."""
        await asyncio.wait([self._ended])

    def cancel(self) -> None:
        """End it: at once, wherever it is."""
        if not self.cancelled.done():
            self.cancelled.set_result(None)

    async def signal(self, number: int) -> None:
        """Raises :class:`~stockade.port.Refused` for one that has not begun, or has ended."""
        await (await self._live()).signal(number)

    async def resize(self, size: TerminalSize) -> None:
        """Likewise."""
        await (await self._live()).resize(size)

    async def feed(self, pieces: AsyncIterator[bytes]) -> None:
        """Send its standard input. What breaks off cancels it: half an input is none."""
        if self.inlet is None:
            raise Refused("conflict", "its standard input came with the request")
        self.inlet.claim()
        ending = asyncio.ensure_future(self.end())
        try:
            while (piece := await self._or_ended(anext(pieces, None), ending)) is not None:
                await self._or_ended(self.inlet.put(piece), ending)
            await self._or_ended(self.inlet.end(), ending)
        except BaseException:
            if not self.done:
                self.cancel()
            raise
        finally:
            ending.cancel()

    async def _or_ended(
        self, step: Awaitable[Result], ending: "asyncio.Future[None]"
    ) -> Result | None:
        """A program that has ended reads no more: the rest of its input is not waited for."""
        stepping = asyncio.ensure_future(_awaited(step))
        either: list[asyncio.Future[Any]] = [stepping, ending]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return stepping.result() if stepping.done() else None
        finally:
            if not stepping.done():
                stepping.cancel()
                await asyncio.wait([stepping])

    async def _live(self) -> RunningExecution:
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self.started.wait()
        except TimeoutError:
            raise Refused("conflict", "it still waits for its turn", 1.0) from None
        if self.running is None or self.done:
            raise Refused("conflict", "it has ended")
        return self.running

    def _finish(self, execution: Execution | BaseException) -> None:
        if isinstance(execution, BaseException):
            self._ended.set_exception(execution)
        else:
            self._ended.set_result(execution)
        self.started.set()
        self.log.end()


async def _awaited(step: Awaitable[Result]) -> Result:
    return await step


class Exclusive(Protocol):
    """A session, as far as one call is concerned."""

    id: str

    def require_idle(self) -> None:
        """Raises :class:`~stockade.port.Refused` while another program runs in it."""
        ...

    def claim(self, call: Call) -> None:
        """The same, and take it for this one."""
        ...


Choose = Callable[[], "contextlib.AbstractAsyncContextManager[Place]"]
"""Waits for a place to run in, and gives it back."""


Keep = Callable[[Caller, Execution], Awaitable[tuple[Execution, list[str]]]]
"""Keeps a record's artefacts: the record, where those that are not kept are missing, and digests."""


def new_id() -> str:
    """For an execution."""
    return "e" + secrets.token_hex(16)


class Calls:
    """The executions that this gateway has begun and not ended."""

    def __init__(
        self,
        ledger: Ledger,
        keep: Keep,
        *,
        metrics: Metrics,
        log: Log,
        tracing: Tracing,
    ) -> None:
        self.draining = False
        self._ledger = ledger
        self._keep = keep
        self._metrics = metrics
        self._log = log
        self._tracing = tracing
        self._calls: dict[str, Call] = {}
        self._lives: set[asyncio.Task[None]] = set()
        self._beginnings: set[asyncio.Future[ExecutionEntry | None]] = set()

    def __repr__(self) -> str:
        return f"<Calls: {len(self._calls)} running>"

    def __len__(self) -> int:
        return len(self._calls)

    def find(self, tenant: str, id: str) -> Call | None:
        """A running one of this tenant's."""
        call = self._calls.get(id)
        return call if call is not None and call.tenant == tenant else None

    async def begin(
        self,
        caller: Caller,
        request: ExecutionRequest,
        sandbox: SandboxRequest,
        choose: Choose,
        *,
        stdin: bytes | None,
        watch_egress: bool = False,
        session: Exclusive | None = None,
        idempotency: Idempotency | None = None,
        job: bool = False,
        id: str | None = None,
        tool: ToolFacts | None = None,
        keep_artefacts: bool = True,
    ) -> Call | ExecutionEntry:
        """Begin one; or what became of the earlier one with the same idempotency key.

        ``session``: what it runs in, which takes one at a time. Raises what refuses it.
        """
        if self.draining:
            raise Unavailable("the gateway is stopping and takes no more calls")
        if session is not None and idempotency is None:
            session.require_idle()  # a repeated request is answered whatever runs there now
        facts = RequestFacts.of(request, sandbox, keep_source=caller.policy.keep_source, tool=tool)
        call = Call(
            id or new_id(),
            caller,
            session.id if session else None,
            job,
            stdin,
            watch_egress,
            keep_artefacts,
        )
        # Shielded: a caller that leaves in this moment must not leave a row behind that has no end.
        beginning = asyncio.ensure_future(
            self._begin(call, facts, request, choose, idempotency, session)
        )
        self._beginnings.add(beginning)
        beginning.add_done_callback(self._beginnings.discard)
        try:
            earlier = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            if not job:
                call.cancel()
            raise
        return call if earlier is None else earlier

    async def _begin(
        self,
        call: Call,
        facts: RequestFacts,
        request: ExecutionRequest,
        choose: Choose,
        idempotency: Idempotency | None,
        session: Exclusive | None,
    ) -> ExecutionEntry | None:
        begun = await self._ledger.begin_execution(
            call.caller,
            call.id,
            facts,
            sandbox_id=call.sandbox_id,
            idempotency_key=idempotency.key if idempotency else None,
            request_digest=idempotency.digest if idempotency else None,
            job=call.job,
        )
        if isinstance(begun, Repeated):
            return begun.earlier
        if session is not None:
            try:
                session.claim(call)
            except Refused as refused:
                # Another was begun in it meanwhile. This one is over before it was.
                await self._ledger.end_execution(
                    call.id, Execution(Outcome.UNAVAILABLE, str(refused))
                )
                raise
        self._calls[call.id] = call
        life = asyncio.create_task(self._live(call, request, choose), name=call.id)
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)
        return None

    async def _live(self, call: Call, request: ExecutionRequest, choose: Choose) -> None:
        """From begin to record. Nothing that happens here leaves it without one."""
        error: BaseException | None = RuntimeError("the gateway stopped before its record was made")
        execution = Execution(Outcome.LOST, "the gateway stopped under it")
        try:
            execution, error = await self._lived(call, request, choose)
        finally:
            self._calls.pop(call.id, None)
            call._finish(error or execution)  # noqa: SLF001

    async def _lived(
        self, call: Call, request: ExecutionRequest, choose: Choose
    ) -> tuple[Execution, BaseException | None]:
        error: BaseException | None = None
        with self._tracing.span(
            "gateway.execution", SpanKind.INTERNAL, attributes={"stockade.execution": call.id}
        ) as span:
            try:
                execution = await self._or_cancelled(call, self._run(call, request, choose))
            except asyncio.CancelledError:
                execution = Execution(Outcome.LOST, "the gateway stopped under it")
            except (Unavailable, SandboxLost, InvalidRequest, Refused) as refusal:
                # There was no sandbox: the caller gets the error, the ledger a record.
                error, execution = refusal, _record_of(refusal)
            except Exception:  # noqa: BLE001 - what was begun has to end, whatever is wrong here
                self._log.exception("fault", execution=call.id)
                error = RuntimeError("a fault under an execution")
                execution = Execution(Outcome.LOST, "a fault of Stockade itself under it")
            try:
                kept: list[str] = []
                if call.keep_artefacts:
                    execution, kept = await self._keep(call.caller, execution)
            except Exception:  # noqa: BLE001 - likewise
                self._log.exception("artefacts were not kept", execution=call.id)
                execution, kept = without_artefacts(execution, "it could not be kept"), []
            span.set_attribute("stockade.outcome", execution.outcome.value)
            written = await self._write(call.id, execution, kept)
        self._metrics.ended(execution.outcome, execution.tier)
        if not written:
            error = RuntimeError("its record could not be written")
        return execution, error

    async def _run(self, call: Call, request: ExecutionRequest, choose: Choose) -> Execution:
        begun = time.monotonic()
        async with choose() as place:
            self._metrics.waited.observe(time.monotonic() - begun)
            told = call.log.tell if call.watch_egress else None
            call.running = await place.start(call.id, request, call.stdin, call.log.add, told)
            call.started.set()
            # Cancelling this wait ends it first: the port says so.
            return await call.running.wait()

    async def _or_cancelled(self, call: Call, running: "Awaitable[Execution]") -> Execution:
        """Run it until it ends or somebody cancels it."""
        run: asyncio.Task[Execution] = asyncio.ensure_future(running)
        either: list[asyncio.Future[Any]] = [run, call.cancelled]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not run.done():
                if call.running is not None:
                    with contextlib.suppress(StockadeError):
                        await call.running.cancel()
                else:
                    run.cancel()
                    await asyncio.wait([run])
                    if run.cancelled():
                        return Execution(Outcome.CANCELLED, "it was cancelled before it began")
            return await run
        finally:
            if not run.done():
                run.cancel()
                await asyncio.wait([run])

    async def _write(self, id: str, execution: Execution, kept: list[str]) -> bool:
        try:
            await self._ledger.end_execution(id, execution, kept)
        except Exception:  # noqa: BLE001 - whoever waits for it has to hear of it
            self._log.exception("a record was not written", execution=id)
            return False
        return True

    async def drain(self, seconds: float) -> None:
        """Begin no more; wait for what runs, and end what does not by then."""
        self.draining = True
        if self._beginnings:
            await asyncio.wait(self._beginnings, timeout=10)
        if not self._lives:
            return
        await asyncio.wait(self._lives, timeout=seconds)
        for call in list(self._calls.values()):
            call.cancel()
        if self._lives:
            await asyncio.wait(self._lives, timeout=20)
        for life in list(self._lives):
            life.cancel()
        if self._lives:
            await asyncio.wait(self._lives, timeout=10)


def without_artefacts(execution: Execution, reason: str) -> Execution:
    """The record where nothing that came out is kept."""
    missing = tuple(MissingArtefact(file.name, reason) for file in execution.artefacts)
    return replace(
        execution,
        artefacts=(),
        missing_artefacts=(*execution.missing_artefacts, *missing),
    )


def _record_of(error: StockadeError) -> Execution:
    match error:
        case InvalidRequest():
            return Execution(Outcome.INVALID, str(error))
        case SandboxLost():
            return Execution(Outcome.LOST, str(error))
    return Execution(Outcome.UNAVAILABLE, str(error))
