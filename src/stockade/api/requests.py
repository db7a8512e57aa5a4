"""What a caller asks for, as JSON, and how it becomes the port's requests."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field

from stockade.api.content import Content, Name
from stockade.port import (
    NO_EGRESS,
    Command,
    EgressPolicy,
    EgressRule,
    ExecutionRequest,
    ExpressionSource,
    InvalidRequest,
    JavaScriptSource,
    Limits,
    Program,
    PythonScript,
    PythonSource,
    SandboxRequest,
    TerminalSize,
    Tier,
    TrustLevel,
    WasmModule,
)
from stockade.port.egress import MAX_CREDENTIALS, MAX_RULES
from stockade.port.limits import _LARGEST, _SMALLEST
from stockade.port.program import MAX_SOURCE_BYTES


class Message(BaseModel):
    """Unknown means refuse: a field that nobody knows is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Names = Annotated[tuple[Name, ...], FailFast()]
"""One that is wrong says enough: a problem for each of a hundred thousand takes a second."""


class PythonSourceMessage(Message):
    """Python source, run like ``python3 -c SOURCE ARGUMENTS``."""

    kind: Literal["python"] = "python"
    source: Content
    arguments: Names = ()
    fresh: bool = Field(default=False, strict=True)
    """Start a newly executed interpreter."""


class PythonScriptMessage(Message):
    """A Python file, written into the workspace and run like ``python3 NAME ARGUMENTS``."""

    kind: Literal["script"] = "script"
    name: Name
    source: Content
    arguments: Names = ()
    fresh: bool = Field(default=False, strict=True)


class CommandMessage(Message):
    """Any program of the image."""

    kind: Literal["command"] = "command"
    argv: Names


class ExpressionMessage(Message):
    """An expression over the JSON on standard input; tier ``expression`` alone."""

    kind: Literal["expression"] = "expression"
    source: Annotated[str, Field(max_length=MAX_SOURCE_BYTES)]


class JavaScriptMessage(Message):
    """JavaScript source; tier ``wasm`` alone."""

    kind: Literal["javascript"] = "javascript"
    source: Content
    arguments: Names = ()


class WasmModuleMessage(Message):
    """A WebAssembly module that is a WASI command; tier ``wasm`` alone."""

    kind: Literal["wasm"] = "wasm"
    module: Content
    arguments: Names = ()


ProgramMessage = Annotated[
    PythonSourceMessage
    | PythonScriptMessage
    | CommandMessage
    | ExpressionMessage
    | JavaScriptMessage
    | WasmModuleMessage,
    Field(discriminator="kind"),
]


class TerminalMessage(Message):
    """A terminal's size, in characters."""

    rows: int = Field(ge=1, le=65_535, strict=True)
    columns: int = Field(ge=1, le=65_535, strict=True)


_DEFAULTS = Limits()


def _limit(name: str) -> Any:
    """The port judges the value, in a sentence of its own; the schema says the range."""
    return Field(
        default=getattr(_DEFAULTS, name),
        strict=True,
        json_schema_extra={"minimum": _SMALLEST[name], "maximum": _LARGEST[name]},
    )


class LimitsMessage(Message):
    """Ceilings of one sandbox. What is left out has its default."""

    wall_seconds: float = _limit("wall_seconds")
    cpu_seconds: float = _limit("cpu_seconds")
    cpus: float = _limit("cpus")
    memory_bytes: int = _limit("memory_bytes")
    processes: int = _limit("processes")
    open_files: int = _limit("open_files")
    disk_bytes: int = _limit("disk_bytes")
    inodes: int = _limit("inodes")
    output_bytes: int = _limit("output_bytes")
    result_bytes: int = _limit("result_bytes")
    artefact_bytes: int = _limit("artefact_bytes")
    record_bytes: int = _limit("record_bytes")


RuleText = Annotated[str, Field(max_length=4096)]
_NO_EGRESS = EgressPolicy()


class EgressMessage(Message):
    """What a sandbox may reach on the network: by default nothing."""

    rules: tuple[RuleText, ...] = Field(default=(), max_length=MAX_RULES)
    """As they are written: ``api.example.com:443``, ``GET https://api.example.com/v1/``."""
    credentials: tuple[Annotated[str, Field(max_length=64)], ...] = Field(
        default=(), max_length=MAX_CREDENTIALS
    )
    """Names of the tenant's credentials, which a broker puts in on the way out."""
    watched: bool = Field(default=False, strict=True)
    """Say what is denied even where nothing is granted."""
    connections: int = Field(default=_NO_EGRESS.connections, strict=True)
    total_connections: int = Field(default=_NO_EGRESS.total_connections, strict=True)
    sent_bytes: int = Field(default=_NO_EGRESS.sent_bytes, strict=True)
    received_bytes: int = Field(default=_NO_EGRESS.received_bytes, strict=True)
    bytes_per_second: int | None = Field(default=None, strict=True)
    seconds: float = Field(default=_NO_EGRESS.seconds, strict=True)

    def to_port(self) -> EgressPolicy:
        """Raises :class:`~stockade.port.InvalidRequest`."""
        return EgressPolicy(**{**dict(self), "rules": tuple(map(EgressRule.parse, self.rules))})

    @classmethod
    def of(cls, policy: EgressPolicy) -> Self:
        """The message for a policy of the port's."""
        plain = {name: getattr(policy, name) for name in cls.model_fields}
        return cls(**{**plain, "rules": tuple(map(str, policy.rules))})


class SandboxMessage(Message):
    """The sandbox that is asked for. Whose it is, the caller's key says."""

    limits: LimitsMessage = Field(default_factory=LimitsMessage)
    trust: TrustLevel = TrustLevel.UNTESTED
    tier: Tier | None = None
    """Exactly this tier; by default the strongest that can be started."""
    egress: EgressMessage | None = None
    """None: nothing is reached, and nobody listens."""
    ticket: Annotated[str, Field(max_length=256)] | None = Field(default=None, repr=False)
    """From a gateway to an executor: a broker's leave to use the credentials. A gateway takes none."""

    def to_port(self, tenant: str) -> SandboxRequest:
        """Raises :class:`~stockade.port.InvalidRequest`."""
        return SandboxRequest(
            tenant=tenant,
            limits=Limits(**dict(self.limits)),
            trust=self.trust,
            tier=self.tier,
            egress=NO_EGRESS if self.egress is None else self.egress.to_port(),
            ticket=self.ticket,
        )

    @classmethod
    def of(cls, request: SandboxRequest) -> Self:
        """The message for a request of the port's."""
        egress = request.egress
        return cls(
            limits=LimitsMessage(**asdict(request.limits)),
            trust=request.trust,
            tier=request.tier,
            egress=None if egress == NO_EGRESS else EgressMessage.of(egress),
            ticket=request.ticket,
        )


class VariableMessage(Message):
    """A variable whose name need not be text."""

    name: Name
    value: Name


class FileMessage(Message):
    """A file whose path need not be text."""

    name: Name
    content: Content


class ProgramRequestMessage(Message):
    """One program, and what goes in and out with it."""

    program: ProgramMessage
    environment: Mapping[str, Name] | tuple[VariableMessage, ...] = Field(default_factory=dict)
    """By name, or a list."""
    files: Mapping[str, Content] | tuple[FileMessage, ...] = Field(default_factory=dict)
    """By path below ``/workspace``, or a list."""
    artefacts: Names = ()
    working_directory: Name = ""
    terminal: TerminalMessage | None = None
    stdin: Content | None = b""
    """All of standard input; ``null``: it comes by ``PUT .../stdin``."""
    watch_egress: bool = Field(default=False, strict=True)
    """Tell of connections while it runs, as they are decided on and ended."""

    def to_port(self) -> ExecutionRequest:
        """Raises :class:`~stockade.port.InvalidRequest`."""
        return ExecutionRequest(
            program=_program(self.program),
            environment=_by_name("environment", self.environment, "value"),
            files=_by_name("files", self.files, "content"),
            artefacts=self.artefacts,
            working_directory=self.working_directory,
            terminal=None if self.terminal is None else TerminalSize(**dict(self.terminal)),
        )


class ExecutionRequestMessage(ProgramRequestMessage):
    """One program in a fresh sandbox of its own."""

    sandbox: SandboxMessage = Field(default_factory=SandboxMessage)


class SessionRequestMessage(Message):
    """A sandbox for several executions."""

    sandbox: SandboxMessage = Field(default_factory=SandboxMessage)
    lease_seconds: float = Field(default=300.0, gt=0, allow_inf_nan=False, strict=True)
    """How long it lives unless the lease is extended; a value above the ceiling is refused."""
    workspace: str | None = Field(default=None, max_length=128)
    """A workspace that is kept: it is put in when the session opens, and saved when it ends."""


class LeaseMessage(Message):
    """A lease from now on."""

    seconds: float = Field(gt=0, allow_inf_nan=False, strict=True)


class SignalMessage(Message):
    """A signal to a program and its process group."""

    number: int = Field(ge=1, le=64, strict=True)


def _program(message: ProgramMessage) -> Program:
    match message:
        case PythonSourceMessage():
            return PythonSource(message.source, message.arguments, message.fresh)
        case PythonScriptMessage():
            return PythonScript(message.name, message.source, message.arguments, message.fresh)
        case CommandMessage():
            return Command(message.argv)
        case ExpressionMessage():
            return ExpressionSource(message.source)
        case JavaScriptMessage():
            return JavaScriptSource(message.source, message.arguments)
        case WasmModuleMessage():
            return WasmModule(message.module, message.arguments)


def _by_name(field: str, pairs: Mapping[str, Any] | tuple[Any, ...], what: str) -> dict[str, Any]:
    if isinstance(pairs, Mapping):
        return dict(pairs)
    found: dict[str, Any] = {}
    for pair in pairs:
        if pair.name in found:
            raise InvalidRequest(field, f"{pair.name!r} is named twice")
        found[pair.name] = getattr(pair, what)
    return found


def program_message(program: Program) -> ProgramMessage:
    """The message for a program of the port's."""
    match program:
        case PythonSource(source=source):
            return PythonSourceMessage(
                source=os.fsencode(source) if isinstance(source, str) else source,
                arguments=program.arguments,
                fresh=program.fresh,
            )
        case PythonScript():
            return PythonScriptMessage(
                name=program.name,
                source=program.source,
                arguments=program.arguments,
                fresh=program.fresh,
            )
        case Command():
            return CommandMessage(argv=program.argv)
        case ExpressionSource(source=text):
            return ExpressionMessage(source=text)
        case JavaScriptSource(source=source):
            return JavaScriptMessage(
                source=os.fsencode(source) if isinstance(source, str) else source,
                arguments=program.arguments,
            )
        case WasmModule():
            return WasmModuleMessage(module=program.module, arguments=program.arguments)


def request_fields(
    request: ExecutionRequest, stdin: bytes | None, watch_egress: bool = False
) -> dict[str, Any]:
    """The fields of a :class:`ProgramRequestMessage` for a request of the port's."""
    size = request.terminal
    return {
        "program": program_message(request.program),
        "environment": dict(request.environment),
        "files": dict(request.files),
        "artefacts": request.artefacts,
        "working_directory": request.working_directory,
        "terminal": None if size is None else TerminalMessage(rows=size.rows, columns=size.columns),
        "stdin": stdin,
        "watch_egress": watch_egress,
    }
