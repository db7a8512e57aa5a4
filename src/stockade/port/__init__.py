"""The contract that every zone shares. Pure data and protocols; no I/O."""

from stockade.port.attestation import Attestation
from stockade.port.egress import NO_EGRESS, EgressPolicy
from stockade.port.environment import (
    ExecutionEnvironment,
    OutputSink,
    RunningExecution,
    Session,
    StandardInput,
    WorkspaceEntry,
)
from stockade.port.errors import (
    FileRefused,
    InvalidRequest,
    Refused,
    SandboxLost,
    StockadeError,
    Unavailable,
)
from stockade.port.execution import (
    Artefact,
    Captured,
    Enforcement,
    Execution,
    LimitHit,
    MissingArtefact,
    Stream,
    Timings,
    Usage,
)
from stockade.port.limits import GIB, KIB, MIB, Limits
from stockade.port.outcome import Outcome
from stockade.port.program import (
    Command,
    ExecutionRequest,
    Program,
    PythonScript,
    PythonSource,
    SandboxRequest,
    TerminalSize,
    check_workspace_path,
)
from stockade.port.tier import Tier
from stockade.port.trust import TrustLevel

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "NO_EGRESS",
    "Artefact",
    "Attestation",
    "Captured",
    "Command",
    "EgressPolicy",
    "Enforcement",
    "Execution",
    "ExecutionEnvironment",
    "ExecutionRequest",
    "FileRefused",
    "InvalidRequest",
    "LimitHit",
    "Limits",
    "MissingArtefact",
    "Outcome",
    "OutputSink",
    "Program",
    "PythonScript",
    "PythonSource",
    "Refused",
    "RunningExecution",
    "SandboxLost",
    "SandboxRequest",
    "Session",
    "StandardInput",
    "StockadeError",
    "Stream",
    "TerminalSize",
    "Tier",
    "Timings",
    "TrustLevel",
    "Unavailable",
    "Usage",
    "WorkspaceEntry",
    "check_workspace_path",
]
