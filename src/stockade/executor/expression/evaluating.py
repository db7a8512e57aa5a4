"""The expression tier behind the port: JSON from standard input in, JSON as the result out."""

import asyncio
import json
import time
from collections.abc import Coroutine, Mapping
from dataclasses import fields
from typing import Final
from weakref import WeakValueDictionary

from stockade.executor.expression.engine import ExpressionEngine
from stockade.executor.expression.errors import EvaluationFailed, InvalidExpression, OverLimit
from stockade.executor.expression.limits import ExpressionLimits
from stockade.executor.expression.values import JSON
from stockade.executor.wire import WireViolation
from stockade.executor.wire.bounded_json import load_value
from stockade.port import (
    NO_EGRESS,
    Execution,
    ExecutionRequest,
    ExpressionSource,
    InvalidRequest,
    LimitHit,
    Outcome,
    SandboxRequest,
    StandardInput,
    TerminalSize,
    Tier,
    Timings,
    Usage,
)

_TEXT_PER_BYTE: Final = 4
"""Blanks and escapes: how much longer than what it means an input's text may be."""
_SLOW_SECONDS: Final = 0.001
"""From here on, an evaluation is followed by a rest as long as it took."""
_EMPTY: Final[Mapping[str, object]] = {
    "environment": {},
    "files": {},
    "artefacts": (),
    "working_directory": "",
    "terminal": None,
}
_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)


class Expressions:
    """Evaluates the expressions of every tenant, in this process and on its loop.

    An evaluation blocks the loop, for some tens of milliseconds at the worst. Many of them at once
    would block it for seconds: so after a slow one the loop has as long for everybody else, and who
    waits for that does it tenant by tenant.
    """

    def __init__(self, limits: ExpressionLimits | None = None) -> None:
        self._limits = limits or ExpressionLimits()
        self._engine = ExpressionEngine(self._limits)
        self._rests_until = 0.0
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Expressions {self._engine!r}>"

    def start(
        self, request: ExecutionRequest, sandbox: SandboxRequest, stdin: StandardInput
    ) -> "Evaluation":
        """Evaluate: at once where the input is here, and nobody rests. Raises
        :class:`InvalidRequest` for a request with what no expression has."""
        source = _source(request, sandbox)
        began = time.monotonic()
        if isinstance(stdin, bytes) and not self._waiting and began >= self._rests_until:
            evaluation = Evaluation(self._evaluate(source, sandbox, stdin, began))
        else:
            evaluation = Evaluation(None)
            evaluation.follow(self._evaluate_all(source, sandbox, stdin, began, evaluation))
        return evaluation

    async def _evaluate_all(
        self,
        source: str,
        sandbox: SandboxRequest,
        stdin: StandardInput,
        began: float,
        evaluation: "Evaluation",
    ) -> Execution:
        try:
            async with asyncio.timeout(sandbox.limits.wall_seconds):
                content = await self._read(stdin)
            return await self._evaluate_in_turn(source, sandbox, content, began)
        except TimeoutError:
            ceiling = sandbox.limits.wall_seconds
            return _record(
                Outcome.WALL_CLOCK,
                f"its input was not complete after {ceiling:g} s",
                began,
                limit=LimitHit("wall_seconds", ceiling, ceiling),
            )
        except asyncio.CancelledError:
            if not evaluation.cancelled:
                raise
            return _record(Outcome.CANCELLED, "it was cancelled before it was evaluated", began)

    async def _read(self, stdin: StandardInput) -> bytes:
        if isinstance(stdin, bytes):
            return stdin
        content = bytearray()
        async for piece in stdin:
            content += piece
            if len(content) > self._longest_text:
                break  # said later, by its length
        return bytes(content)

    async def _evaluate_in_turn(
        self, source: str, sandbox: SandboxRequest, content: bytes, began: float
    ) -> Execution:
        own = self._turns.setdefault(sandbox.tenant, asyncio.Lock())
        self._waiting += 1
        try:
            async with own, self._turn:
                if (left := self._rests_until - time.monotonic()) > 0:
                    await asyncio.sleep(left)
                return self._evaluate(source, sandbox, content, began)
        finally:
            self._waiting -= 1

    @property
    def _longest_text(self) -> int:
        return self._limits.input_bytes * _TEXT_PER_BYTE

    def _evaluate(
        self, source: str, sandbox: SandboxRequest, content: bytes, began: float
    ) -> Execution:
        starts = time.monotonic()
        try:
            return self._evaluate_now(source, sandbox, content, began)
        finally:
            ends = time.monotonic()
            if ends - starts > _SLOW_SECONDS:
                self._rests_until = 2 * ends - starts

    def _evaluate_now(
        self, source: str, sandbox: SandboxRequest, content: bytes, began: float
    ) -> Execution:
        cpu = time.thread_time()
        try:
            expression = self._engine.compile(source, tenant=sandbox.tenant)
            value: JSON = None
            if len(content) > self._longest_text or content.strip():
                value = load_value(content, "the input", self._longest_text)  # type: ignore[assignment]
            result = _ENCODER.encode(expression.evaluate(value)).encode()
        except (InvalidExpression, WireViolation) as error:
            return _record(Outcome.INVALID, str(error), began)
        except EvaluationFailed as error:
            return _record(Outcome.NONZERO_EXIT, str(error), began, exit_code=1)
        except OverLimit as error:
            return _record(_outcome_of(error), str(error), began)
        ceiling = sandbox.limits.result_bytes
        if len(result) > ceiling:
            return _record(
                Outcome.OUTPUT,
                f"result_bytes: {len(result)} bytes of result exceed {ceiling}",
                began,
                limit=LimitHit("result_bytes", ceiling, len(result)),
            )
        cpu = time.thread_time() - cpu
        return _record(Outcome.OK, "", began, exit_code=0, result=result, cpu=cpu)


class Evaluation:
    """A :class:`~stockade.port.RunningExecution` that mostly has ended when it has begun."""

    def __init__(self, record: Execution | None) -> None:
        self._record = record
        self._life: asyncio.Task[Execution] | None = None
        self.cancelled = False

    def __repr__(self) -> str:
        return f"<Evaluation {'done' if self.done else 'waits for its input'}>"

    @property
    def done(self) -> bool:
        """Whether the record is here."""
        return self._life is None or self._life.done()

    def follow(self, life: Coroutine[object, object, Execution]) -> None:
        """Its record comes from there."""
        self._life = asyncio.create_task(life)

    async def signal(self, number: int) -> None:
        """There is no process that it could reach."""
        del number

    async def resize(self, size: TerminalSize) -> None:
        """There is no terminal."""
        del size

    async def cancel(self) -> None:
        """Wait for its input no more."""
        if not self.done:
            self.cancelled = True
            assert self._life is not None
            self._life.cancel()

    async def wait(self) -> Execution:
        """The record. Cancelling the waiter ends it first."""
        if self._life is None:
            assert self._record is not None
            return self._record
        try:
            return await asyncio.shield(self._life)
        except asyncio.CancelledError:
            self._life.cancel()
            await asyncio.wait({self._life})
            raise


def _source(request: ExecutionRequest, sandbox: SandboxRequest) -> str:
    program = request.program
    assert isinstance(program, ExpressionSource)
    for field in fields(ExecutionRequest):
        if field.name in _EMPTY and getattr(request, field.name) != _EMPTY[field.name]:
            raise InvalidRequest(field.name, "an expression has none: it has its input and a value")
    if sandbox.egress != NO_EGRESS:
        raise InvalidRequest("egress", "an expression reaches nothing; leave it out")
    return program.source


def _outcome_of(error: OverLimit) -> Outcome:
    if error.limit == "iterations":
        return Outcome.CPU_TIME
    return Outcome.OUTPUT if error.limit.startswith("output") else Outcome.INVALID


def _record(
    outcome: Outcome,
    detail: str,
    began: float,
    *,
    exit_code: int | None = None,
    limit: LimitHit | None = None,
    result: bytes | None = None,
    cpu: float | None = None,
) -> Execution:
    ran = time.monotonic() - began
    written = len(result or b"")
    return Execution(
        outcome,
        detail,
        exit_code=exit_code,
        limit=limit,
        result=result,
        usage=Usage(wall_seconds=ran, cpu_seconds=cpu, written_bytes=written),
        timings=Timings(ran=ran),
        tier=Tier.EXPRESSION,
    )
