"""The executions that run, each as long as its caller stays, or until it has ended."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.context import Context
from starlette.types import Receive, Send

from stockade.api.problems import Code, Problem
from stockade.executor.service.bodies import CallerGone, pieces
from stockade.executor.service.frames_answer import FramesAnswer
from stockade.executor.service.identities import SeenIds
from stockade.executor.service.logs import Log
from stockade.executor.service.metrics import Metrics
from stockade.executor.service.problems import conflict, not_found, problem_of
from stockade.executor.service.standard_input import StandardInputPipe
from stockade.executor.service.tracing import Tracing
from stockade.executor.submitted import SubmittedExecution
from stockade.port import (
    EgressSink,
    Execution,
    InvalidRequest,
    Outcome,
    OutputSink,
    RunningExecution,
    StandardInput,
    StockadeError,
    TerminalSize,
)

_DISCARD_SECONDS: Final = 2.0
KEEP_ALIVE_SECONDS: Final = 4.0
"""docs/api.md promises five."""

Start = Callable[[StandardInput, OutputSink, EgressSink], Awaitable[RunningExecution]]
"""Starts the program with this input and these sinks."""


@dataclass(slots=True, eq=False)
class Served:
    """One execution, and who asked for it."""

    id: str
    tenant: str
    sandbox: str | None
    """The session it runs in."""
    stdin: StandardInputPipe | None
    """None: it came with the request."""
    trace: Context | None = None
    began: float = field(default_factory=time.monotonic)
    running: RunningExecution | None = None
    task: "asyncio.Task[Execution] | None" = None
    cancelled: bool = False

    async def cancel(self) -> None:
        """End it as ``cancelled``, also while it waits for a sandbox."""
        self.cancelled = True
        if self.running is not None:
            await self.running.cancel()
        elif self.task is not None:
            self.task.cancel()


class Executions:
    """Those of one service."""

    def __init__(
        self, seen: SeenIds, metrics: Metrics, tracing: Tracing, log: Log, stalled_seconds: float
    ) -> None:
        self._seen = seen
        self._metrics = metrics
        self._tracing = tracing
        self._log = log
        self._stalled_seconds = stalled_seconds
        self._living: dict[tuple[str, str], Served] = {}
        self._none_lives = asyncio.Event()
        self._none_lives.set()

    def __repr__(self) -> str:
        return f"<Executions {len(self._living)} living>"

    def __len__(self) -> int:
        return len(self._living)

    def find(self, tenant: str, identity: str) -> Served:
        """One that lives. Raises :class:`Refusal`, the same whether it never was or is another's."""
        served = self._living.get((tenant, identity))
        if served is None:
            raise not_found("execution, or it has ended")
        return served

    async def ended(self) -> None:
        """Wait until none lives."""
        await self._none_lives.wait()

    async def cancel_all(self) -> None:
        """End all of them."""
        for served in list(self._living.values()):
            await served.cancel()

    async def serve(self, served: Served, start: Start, receive: Receive, send: Send) -> None:
        """See one through. When this returns, nothing of it lives."""
        key = served.tenant, served.id
        if not self._seen.take(*key):
            raise conflict(f"the id {served.id} was seen before: nothing with an id runs twice")
        self._living[key] = served
        self._none_lives.clear()
        self._metrics.running.inc()
        # Who sends its input apart waits for STARTED, and perhaps for an echo.
        answer = FramesAnswer(
            send, served.id, self._stalled_seconds, brisk=served.stdin is not None
        )
        try:
            task = await self._see_through(served, start, receive, answer)
            await self._answer(served, task, answer)
        finally:
            answer.close()

    async def _see_through(
        self, served: Served, start: Start, receive: Receive, answer: FramesAnswer
    ) -> "asyncio.Task[Execution]":
        """Until nothing of it lives."""
        key = served.tenant, served.id
        served.task = asyncio.create_task(_conduct(served, start, answer))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await _wait(served.task, gone, answer)
        finally:
            gone.cancel()
            if not served.task.done():
                served.task.cancel()
                await asyncio.wait({served.task})
            del self._living[key]
            if not self._living:
                self._none_lives.set()
            self._metrics.running.dec()
            # What was refused never ran: the same id may be tried again.
            (self._seen.end if _may_have_run(served) else self._seen.release)(*key)
        return served.task

    async def _answer(
        self, served: Served, task: "asyncio.Task[Execution]", answer: FramesAnswer
    ) -> None:
        try:
            execution = _result(served, task)
        except StockadeError as error:
            problem = problem_of(error)
            self._note_problem(served, problem)
            if not answer.began:
                raise
            await answer.problem(problem)
            return
        except CallerGone:
            self._log.info("execution_abandoned", **_names(served))
            self._tracing.record(
                served.trace, served.began, served.id, served.sandbox, "the caller went away"
            )
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours, told as one
            self._log.error("fault", **_names(served), exc_info=error)
            problem = Problem.make(
                Code.INTERNAL, "a fault of Stockade itself; the executor's log says more"
            )
            self._note_problem(served, problem)
            await answer.problem(problem)
            return
        try:
            await answer.record(execution)
            # A turn's second write leaves at its end: not behind what is noted here.
            await asyncio.sleep(0)
        except ValueError as error:
            # Thousands of artefacts with long names, and nothing of it was sent.
            await answer.problem(Problem.make(Code.TOO_LARGE, f"the record: {error}"))
        finally:
            self._metrics.record(execution)
            self._tracing.record(served.trace, served.began, served.id, served.sandbox, execution)
            self._log.info(
                "execution_ended",
                **_names(served),
                outcome=str(execution.outcome),
                tier=str(execution.tier),
                seconds=round(time.monotonic() - served.began, 4),
            )

    def _note_problem(self, served: Served, problem: Problem) -> None:
        self._metrics.problems.labels(str(problem.code)).inc()
        self._tracing.record(
            served.trace, served.began, served.id, served.sandbox, str(problem.code)
        )
        self._log.info(
            "execution_refused", **_names(served), code=str(problem.code), detail=problem.detail
        )

    async def feed(self, served: Served, receive: Receive) -> None:
        """Standard input from a body: its end is the input's, and its breaking off is not."""
        if served.stdin is None:
            raise conflict("its standard input came with the request")
        if served.stdin.taken:
            raise conflict("its standard input has come already, or is coming")
        served.stdin.taken = True
        feeding = asyncio.create_task(_feed(served.stdin, receive))
        assert served.task is not None
        try:
            await asyncio.wait({feeding, served.task}, return_when=asyncio.FIRST_COMPLETED)
            # Nobody reads any more: the rest is taken and thrown away, within reason.
            served.stdin.close()
            await asyncio.wait({feeding}, timeout=_DISCARD_SECONDS)
            if feeding.done():
                feeding.result()
        except CallerGone:
            await served.cancel()
            raise
        finally:
            feeding.cancel()

    async def signal(self, served: Served, number: int) -> None:
        """To its process group."""
        await _started(served).signal(number)

    async def resize(self, served: Served, size: TerminalSize) -> None:
        """Of its terminal."""
        await _started(served).resize(size)


async def _conduct(served: Served, start: Start, answer: FramesAnswer) -> Execution:
    stdin: StandardInput = b"" if served.stdin is None else served.stdin.read()
    running = await start(stdin, answer.output, answer.egress)
    served.running = running
    try:
        if isinstance(running, SubmittedExecution):
            # Who reads the answer counts the program's time from this on, and not its boot's.
            await running.begun()
        await answer.started()
    except BaseException:
        await running.cancel()
        await asyncio.shield(running.wait())
        raise
    return await running.wait()


async def _wait(
    task: "asyncio.Task[Execution]", gone: "asyncio.Task[None]", answer: FramesAnswer
) -> None:
    while True:
        done, _ = await asyncio.wait(
            {task, gone}, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if done:
            return
        try:
            await answer.keep_alive()
        except CallerGone:
            return


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _feed(pipe: StandardInputPipe, receive: Receive) -> None:
    # However slowly: a person may be typing. It ends with the execution.
    async for piece in pieces(receive, None):
        await pipe.put(piece)
    await pipe.end()


def _result(served: Served, task: "asyncio.Task[Execution]") -> Execution:
    if not task.cancelled():
        return task.result()
    if not served.cancelled:
        raise CallerGone("the caller went away")
    return Execution(Outcome.CANCELLED, "it was cancelled while it waited for a sandbox")


def _may_have_run(served: Served) -> bool:
    return served.running is not None or served.cancelled


def _started(served: Served) -> RunningExecution:
    if served.running is None:
        raise conflict("it has not started: it waits for a sandbox")
    return served.running


def _names(served: Served) -> dict[str, object]:
    return {"tenant": served.tenant, "execution": served.id, "sandbox": served.sandbox}


def refuse_workspace(name: str | None) -> None:
    """An executor keeps none."""
    if name is not None:
        raise InvalidRequest(
            "workspace", "an executor keeps none: the gateway puts it in and takes it out"
        )
