"""What is known of an execution: the facts of its request, its row, its record as it is kept."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from stockade.api.records import RecordMessage
from stockade.gateway.clock import SECOND
from stockade.gateway.journal import canonical
from stockade.port import (
    MIB,
    Captured,
    Command,
    Execution,
    ExecutionRequest,
    ExpressionSource,
    JavaScriptSource,
    Limits,
    Outcome,
    Program,
    PythonScript,
    PythonSource,
    SandboxRequest,
    WasmModule,
)

_MAX_KEPT_SOURCE = 32 * 1024


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """Which tool an execution was for."""

    name: str
    version: int | None
    """None: it was no version yet."""
    digest: str
    purpose: str
    """``call``, ``example`` or ``check``."""
    reason: str
    """Why it ran in the tier that it ran in."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the audit trail says of a request: never a variable's value, input, or a file's bytes."""

    kind: str
    source_digest: str
    limits: Limits
    trust: str
    tier: str | None
    source: str | None = None
    """Only where the tenant keeps it; bytes that are no text are escaped."""
    files: int = 0
    file_bytes: int = 0
    variables: int = 0
    artefacts: int = 0
    tool: "ToolFacts | None" = None
    """Of a call of a tool, or of what looked at its source."""

    @classmethod
    def of(
        cls,
        request: ExecutionRequest,
        sandbox: SandboxRequest,
        *,
        keep_source: bool = False,
        tool: "ToolFacts | None" = None,
    ) -> Self:
        """The facts of a request of the port's."""
        kind, source = _source(request.program)
        kept = None
        if keep_source:
            kept = source[:_MAX_KEPT_SOURCE].decode("utf-8", "backslashreplace")
        return cls(
            kind=kind,
            source_digest="sha256:" + hashlib.sha256(source).hexdigest(),
            limits=sandbox.limits,
            trust=sandbox.trust.value,
            tier=None if sandbox.tier is None else sandbox.tier.value,
            source=kept,
            files=len(request.files),
            file_bytes=sum(map(len, request.files.values())),
            variables=len(request.environment),
            artefacts=len(request.artefacts),
            tool=tool,
        )

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        data: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        data["limits"] = {name: getattr(self.limits, name) for name in Limits.__slots__}
        if self.source is None:
            del data["source"]
        if self.tool is None:
            del data["tool"]
        else:
            data["tool"] = asdict(self.tool)
        return data

    @property
    def most_cpu(self) -> int:
        """Microseconds of CPU that it may use at the most."""
        limits = self.limits
        return _up(min(limits.cpu_seconds, limits.wall_seconds * limits.cpus) * SECOND)

    @property
    def most_memory(self) -> int:
        """MiB-milliseconds of memory that it may use at the most."""
        return memory_time(self.limits.memory_bytes, self.limits.wall_seconds)


def memory_time(size: int, seconds: float) -> int:
    """In MiB-milliseconds, rounded up."""
    return _up(size / MIB * seconds * 1000)


def _up(value: float) -> int:
    return -int(-value // 1)


def _source(program: Program) -> tuple[str, bytes]:
    match program:
        case PythonSource(source=source):
            data = source.encode("utf-8", "surrogateescape") if isinstance(source, str) else source
            return "python", data
        case PythonScript():
            return "script", program.source
        case Command():
            return "command", canonical(list(program.argv)).encode()
        case ExpressionSource(source=text):
            return "expression", text.encode("utf-8", "surrogateescape")
        case JavaScriptSource(source=source):
            data = source.encode("utf-8", "surrogateescape") if isinstance(source, str) else source
            return "javascript", data
        case WasmModule():
            return "wasm", program.module


@dataclass(frozen=True, slots=True)
class ExecutionEntry:
    """An execution as the gateway knows it."""

    id: str
    tenant: str
    key_id: str
    sandbox_id: str | None
    job: bool
    begun_at: int
    ended_at: int | None
    outcome: Outcome | None
    facts: Mapping[str, Any]
    record: RecordMessage | None = None
    """Once it has ended, and where it is asked for, until it expires."""
    shortened: tuple[str, ...] = ()
    """What the record that is kept has only in part: ``stdout``, ``stderr``, ``result``."""

    @property
    def state(self) -> str:
        """``running`` or ``ended``."""
        return "running" if self.ended_at is None else "ended"


@dataclass(frozen=True, slots=True)
class Begun:
    """It may run now."""

    id: str


@dataclass(frozen=True, slots=True)
class Repeated:
    """Its idempotency key was used for the same request before: this is what became of it."""

    earlier: ExecutionEntry


def entry(row: Any, record: bytes | None = None, shortened: str = "") -> ExecutionEntry:
    """Of a row of ``executions``."""
    return ExecutionEntry(
        id=row.id,
        tenant=row.tenant,
        key_id=row.key_id,
        sandbox_id=row.sandbox_id,
        job=bool(row.job),
        begun_at=row.begun_at,
        ended_at=row.ended_at,
        outcome=None if row.outcome is None else Outcome(row.outcome),
        facts=json.loads(row.facts),
        record=None if record is None else RecordMessage.model_validate_json(record),
        shortened=tuple(shortened.split()),
    )


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A record as it is kept: JSON of a bounded size."""

    json: bytes
    shortened: tuple[str, ...]

    @classmethod
    def of(cls, execution: Execution, most_bytes: int) -> Self:
        """``most_bytes``: of each stream, and of the result."""
        stdout = _shorter(execution.stdout, most_bytes)
        stderr = _shorter(execution.stderr, most_bytes)
        shortened = []
        if stdout is not execution.stdout:
            shortened.append("stdout")
        if stderr is not execution.stderr:
            shortened.append("stderr")
        execution = replace(execution, stdout=stdout, stderr=stderr)
        if execution.result is not None and len(execution.result) > most_bytes:
            # Half a result is no result: it is left out, and `shortened` says so.
            execution = replace(execution, result=None)
            shortened.append("result")
        return cls(RecordMessage.of(execution).model_dump_json().encode(), tuple(shortened))


def _shorter(captured: Captured, most_bytes: int) -> Captured:
    """Half of what may be kept from the beginning, the rest from the end."""
    if len(captured.head) + len(captured.tail) <= most_bytes:
        return captured
    if captured.dropped:
        first, last = captured.head, captured.tail
    else:
        first = last = captured.head + captured.tail
    head = first[: most_bytes // 2]
    rest = most_bytes - len(head)
    return Captured(head, last[-rest:] if rest else b"", captured.total)


def lost(detail: str) -> Execution:
    """The record of one whose gateway died under it."""
    return Execution(Outcome.LOST, detail)
