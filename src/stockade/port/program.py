"""What may be run: the kinds of program, and where each may be run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from stockade.port.egress import NO_EGRESS, EgressPolicy
from stockade.port.errors import InvalidRequest
from stockade.port.limits import Limits
from stockade.port.policy import candidates
from stockade.port.tier import Tier
from stockade.port.trust import TrustLevel

MAX_SOURCE_BYTES = 16 * 1024 * 1024
MAX_ARGUMENT_BYTES = 131_072  # MAX_ARG_STRLEN, execve(2)
MAX_TOGETHER_BYTES = 1024 * 1024
"""Of all arguments, and of the environment. A kernel may take less of both together when a
program is executed; such a request ends as ``invalid``."""
MAX_PATH_BYTES = 4095  # PATH_MAX less the NUL, path_resolution(7)


def check_workspace_path(field_name: str, path: str) -> None:
    """Refuse a path that is not a plain relative path below ``/workspace``.

    Names are compared as they are: no normalisation, any byte but NUL and ``/``
    (undecodable bytes as surrogates, PEP 383).
    """
    if not isinstance(path, str):
        raise InvalidRequest(field_name, f"{path!r} is not text")
    if not path:
        raise InvalidRequest(field_name, "the path is empty")
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidRequest(field_name, f"{path!r} is not encodable: {error.reason}") from None
    if b"\0" in raw:
        raise InvalidRequest(field_name, f"{path!r} contains a NUL byte")
    if len(raw) > MAX_PATH_BYTES:
        raise InvalidRequest(field_name, f"a path of {len(raw)} bytes exceeds {MAX_PATH_BYTES}")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidRequest(
            field_name, f"{path!r} is not a plain path below /workspace (no leading '/', '.', '..')"
        )
    if any(len(part.encode("utf-8", "surrogateescape")) > 255 for part in parts):
        raise InvalidRequest(field_name, "a component of the path exceeds 255 bytes (NAME_MAX)")


def _require(field_name: str, value: object, kinds: tuple[type, ...], what: str) -> None:
    """Types are declared; a caller who checks none gets a sentence all the same."""
    if not isinstance(value, kinds):
        raise InvalidRequest(field_name, f"{value!r} is not {what}")


def _encoded(field_name: str, text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidRequest(field_name, f"is not encodable: {error.reason}") from None


def _check_source(source: object, kinds: tuple[type, ...]) -> None:
    if not isinstance(source, kinds):
        raise InvalidRequest("program.source", f"{type(source).__name__} is not text or bytes")
    if len(_encoded("program.source", source) if isinstance(source, str) else source) > (  # type: ignore[arg-type]
        MAX_SOURCE_BYTES
    ):
        raise InvalidRequest("program.source", f"exceeds {MAX_SOURCE_BYTES} bytes")


def _check_arguments(field_name: str, arguments: tuple[str, ...]) -> None:
    _require(field_name, arguments, (tuple, list), "a tuple of strings")
    for index, argument in enumerate(arguments):
        if not isinstance(argument, str):
            raise InvalidRequest(f"{field_name}[{index}]", f"{argument!r} is not a string")
        if "\0" in argument:
            raise InvalidRequest(f"{field_name}[{index}]", "contains a NUL byte")
        if len(_encoded(f"{field_name}[{index}]", argument)) >= MAX_ARGUMENT_BYTES:
            raise InvalidRequest(f"{field_name}[{index}]", f"exceeds {MAX_ARGUMENT_BYTES} bytes")
    _check_together(field_name, sum(len(_encoded(field_name, text)) for text in arguments))


def _check_together(field_name: str, size: int) -> None:
    if size > MAX_TOGETHER_BYTES:
        raise InvalidRequest(field_name, f"{size} bytes exceed {MAX_TOGETHER_BYTES} together")


@dataclass(frozen=True, slots=True)
class PythonSource:
    """Python source, run like ``python3 -c SOURCE ARGUMENTS``."""

    source: str | bytes
    arguments: tuple[str, ...] = ()
    fresh: bool = False
    """Start a newly executed interpreter (its own address layout and hash seed)."""

    def __post_init__(self) -> None:
        _check_source(self.source, (str, bytes))
        _check_arguments("program.arguments", self.arguments)
        _require("program.fresh", self.fresh, (bool,), "True or False")


@dataclass(frozen=True, slots=True)
class PythonScript:
    """A Python file, written into the workspace as ``name`` and run like ``python3 NAME ARGUMENTS``."""

    name: str
    source: bytes
    arguments: tuple[str, ...] = ()
    fresh: bool = False

    def __post_init__(self) -> None:
        check_workspace_path("program.name", self.name)
        _check_source(self.source, (bytes,))
        _check_arguments("program.arguments", self.arguments)
        _require("program.fresh", self.fresh, (bool,), "True or False")


@dataclass(frozen=True, slots=True)
class Command:
    """Any program of the image: ``argv[0]`` is a name on ``PATH``, or a path inside."""

    argv: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_arguments("program.argv", self.argv)
        if not self.argv or not self.argv[0]:
            raise InvalidRequest("program.argv", "names no program")


@dataclass(frozen=True, slots=True)
class ExpressionSource:
    """An expression (docs/expressions.md). Its ``input`` is the JSON on standard input, or null
    where there is none; its value is the result, as JSON."""

    source: str

    def __post_init__(self) -> None:
        _check_source(self.source, (str,))


@dataclass(frozen=True, slots=True)
class JavaScriptSource:
    """JavaScript source, run by the engine of the tier ``wasm``."""

    source: str | bytes
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_source(self.source, (str, bytes))
        _check_arguments("program.arguments", self.arguments)


@dataclass(frozen=True, slots=True)
class WasmModule:
    """A WebAssembly module that is a WASI command."""

    module: bytes
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_source(self.module, (bytes,))
        _check_arguments("program.arguments", self.arguments)


Program = PythonSource | PythonScript | Command | ExpressionSource | JavaScriptSource | WasmModule

_ONLY: Final[Mapping[type, Tier]] = {
    ExpressionSource: Tier.EXPRESSION,
    JavaScriptSource: Tier.WASM,
    WasmModule: Tier.WASM,
}
"""Programs that one tier alone runs."""
_OF_LANGUAGE: Final[Mapping[Tier, tuple[type, ...]]] = {
    Tier.EXPRESSION: (ExpressionSource,),
    Tier.WASM: (PythonSource, PythonScript, JavaScriptSource, WasmModule),
}
"""What the tiers of languages run. The others run all that is not in ``_ONLY``."""


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """A terminal's size, in characters."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        for name, value in (("rows", self.rows), ("columns", self.columns)):
            if type(value) is not int or not 1 <= value <= 65_535:
                raise InvalidRequest(f"terminal.{name}", f"{value!r} is outside 1 to 65535")


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """One program, and what goes in and out with it."""

    program: Program
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the sandbox's own small environment; nothing of the host's is inherited."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path below ``/workspace`` to content, written before the program starts."""
    artefacts: tuple[str, ...] = ()
    """Paths below ``/workspace`` that leave the sandbox after the program has ended."""
    working_directory: str = ""
    """A path below ``/workspace``; empty for ``/workspace`` itself."""
    terminal: TerminalSize | None = None
    """Give the program a terminal: its output then all arrives as standard output."""

    def __post_init__(self) -> None:
        if not isinstance(self.program, Program):
            raise InvalidRequest("program", f"{type(self.program).__name__} is no program")
        _require("environment", self.environment, (Mapping,), "a mapping")
        _require("files", self.files, (Mapping,), "a mapping")
        _require("artefacts", self.artefacts, (tuple, list), "a tuple of paths")
        size = 0
        for name, value in self.environment.items():
            _require("environment", name, (str,), "text")
            _require(f"environment[{name!r}]", value, (str,), "text")
            if not name or "=" in name or "\0" in name or "\0" in value:
                raise InvalidRequest("environment", f"{name!r} is not a valid variable")
            length = len(_encoded("environment", f"{name}={value}"))
            if length >= MAX_ARGUMENT_BYTES:
                raise InvalidRequest("environment", f"{name!r} exceeds {MAX_ARGUMENT_BYTES} bytes")
            size += length
        _check_together("environment", size)
        for path, content in self.files.items():
            check_workspace_path("files", path)
            if not isinstance(content, bytes):
                raise InvalidRequest("files", f"the content of {path!r} is not bytes")
        for path in self.artefacts:
            check_workspace_path("artefacts", path)
        _require("working_directory", self.working_directory, (str,), "text")
        _require("terminal", self.terminal, (TerminalSize, type(None)), "a TerminalSize")
        if self.working_directory:
            check_workspace_path("working_directory", self.working_directory)


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """The sandbox that is asked for."""

    tenant: str = "local"
    """The owner; sandboxes, warm interpreters and user ids are never shared across tenants."""
    limits: Limits = field(default_factory=Limits)
    egress: EgressPolicy = NO_EGRESS
    trust: TrustLevel = TrustLevel.UNTESTED
    """Of what is going to run. It decides which tiers are strong enough."""
    tier: Tier | None = None
    """Exactly this tier; ``None`` takes the strongest that can be started."""
    ticket: str | None = field(default=None, repr=False)
    """A broker's leave to use ``egress.credentials``, once. It comes from a gateway, and is never
    written down."""

    def __post_init__(self) -> None:
        if self.ticket is not None and not re.fullmatch(r"[!-~]{1,256}", self.ticket):
            raise InvalidRequest("ticket", "it is not 1 to 256 visible ASCII characters")
        _require("limits", self.limits, (Limits,), "a Limits")
        _require("egress", self.egress, (EgressPolicy,), "an EgressPolicy")
        _require("tenant", self.tenant, (str,), "text")
        if not self.tenant or len(self.tenant) > 128 or not self.tenant.isprintable():
            raise InvalidRequest("tenant", f"{self.tenant!r} is not 1 to 128 printable characters")
        # A plain string may be a mistyped one: unknown means refuse.
        if not isinstance(self.trust, TrustLevel):
            raise InvalidRequest("trust", f"{self.trust!r} is no TrustLevel: {_names(TrustLevel)}")
        if not isinstance(self.tier, Tier | None):
            raise InvalidRequest("tier", f"{self.tier!r} is no Tier: {_names(Tier)}")
        candidates(self.trust, self.tier)  # refuses a tier too weak for the level


def placed(program: Program, sandbox: SandboxRequest) -> SandboxRequest:
    """The sandbox for a program: of the one tier that runs its language, where there is one.

    Raises :class:`InvalidRequest` where the tier that was named does not run such programs.
    """
    only = _ONLY.get(type(program))
    if only is not None and sandbox.tier is None:
        sandbox = replace(sandbox, tier=only)
    if sandbox.tier is not None:
        check_language(program, sandbox.tier)
    return sandbox


def check_language(program: Program, tier: Tier) -> None:
    """Raises :class:`InvalidRequest` where a tier does not run such programs."""
    kind, only = type(program), _ONLY.get(type(program))
    if only is not None and tier is not only:
        raise InvalidRequest("tier", f"{kind.__name__} runs in tier {only} alone, not in {tier}")
    if tier in _OF_LANGUAGE and kind not in _OF_LANGUAGE[tier]:
        known = ", ".join(each.__name__ for each in _OF_LANGUAGE[tier])
        raise InvalidRequest(
            "tier", f"{tier} runs no {kind.__name__}, only {known}; name another, or leave it out"
        )


def _names(kind: type[StrEnum]) -> str:
    return ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
