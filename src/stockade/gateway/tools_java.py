"""Tools in Java, by way of the tenant's own executions: each compilation and each call is one.

What a sandbox made of a source is kept in memory for the next call, per tenant; a gateway that is
started anew compiles once more.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

from stockade.gateway.executions import ExecutionEntry
from stockade.port import (
    Execution,
    ExecutionRequest,
    InvalidRequest,
    SandboxRequest,
    ToolFailed,
)
from stockade.tools import json_text
from stockade.tools.definition import Tool
from stockade.tools.java import JavaTools, ParkingPolicy, SourceRefused
from stockade.tools.java.answers import Failure

_KINDS: Final = frozenset({"raised", "not_json", "too_large", "no_main", "no_result"})
_LONGEST: Final = 500

Run = Callable[
    [ExecutionRequest, SandboxRequest, bytes, bool], Awaitable[Execution | ExecutionEntry]
]
"""Runs it as an execution of the tenant's. The last: whether it is the call itself, and not what
comes before one."""

_RUN: ContextVar[tuple[Run, bool]] = ContextVar("stockade_java_run")


class Repeated(Exception):
    """The call was made before; ``entry`` is what became of it."""

    def __init__(self, entry: ExecutionEntry) -> None:
        super().__init__(entry.id)
        self.entry = entry


class _Tenants:
    """As far as :class:`JavaTools` needs an environment: each caller's own way to run something."""

    async def run(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest,
        *,
        stdin: bytes = b"",
        on_output: None = None,
        on_egress: None = None,
    ) -> Execution:
        del on_output, on_egress
        run, is_call = _RUN.get()
        # A toolchain that was dropped meanwhile is made within a call; alone of the two it makes files.
        done = await run(request, sandbox, stdin, is_call and not request.artefacts)
        if isinstance(done, ExecutionEntry):
            raise Repeated(done)
        return done


class Java:
    """Compiles and calls."""

    def __init__(self) -> None:
        # Nothing waits ahead of a call: that would be an execution that nobody asked for.
        self._tools = JavaTools(_Tenants(), ParkingPolicy(most=0))  # type: ignore[arg-type]

    async def close(self) -> None:
        """Nothing lives here."""
        await self._tools.close()

    async def compile(self, tool: Tool, sandbox: SandboxRequest, run: Run) -> Any:
        """Its classes. Raises :class:`InvalidRequest` with what is wrong in its source."""
        token = _RUN.set((run, False))
        try:
            return await self._tools.compile(tool.source, None, sandbox)
        except SourceRefused as refused:
            told = [
                f"line {one.line}, column {one.column}: {one.rule}: {one.sentence}"
                for one in refused.findings[:5]
            ]
            raise InvalidRequest("source", "; ".join(told)) from None
        finally:
            _RUN.reset(token)

    async def call(
        self, tool: Tool, content: bytes, sandbox: SandboxRequest, run: Run
    ) -> Execution:
        """One call; its record. Raises :class:`Repeated`."""
        compiled = await self.compile(tool, sandbox, run)
        token = _RUN.set((run, True))
        try:
            return (await self._tools.call(compiled, content, sandbox)).execution
        finally:
            _RUN.reset(token)


def output(tool: Tool, execution: Execution) -> Any:
    """What it returned, of its record. Raises :class:`ToolFailed`."""
    from stockade.tools.java import calling

    call = calling.read(execution, parked=False)
    if call.failure is not None or call.output is None:
        raise _failed(call.failure)
    try:
        return json_text.load(call.output, tool.limits.result_bytes)
    except json_text.SecondValue:
        raise ToolFailed("two_results", "it gave more than one output") from None
    except json_text.NoJson as error:
        raise ToolFailed("not_json", f"its output {error}") from None


def _failed(failure: Failure | None) -> ToolFailed:
    if failure is None:
        return ToolFailed("no_result", "it ended without an output")
    reason = failure.kind if failure.kind in _KINDS else "outcome"
    place = failure.place if failure.line is None else f"line {failure.line}"
    return ToolFailed(reason, failure.message[:_LONGEST], place)
