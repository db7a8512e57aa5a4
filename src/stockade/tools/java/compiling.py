"""From a source to classes that may be called: two sandboxes, of which neither runs the tool.

One compiles. What it made comes out as bytes and goes into the other, whose verifier was in no
process with the source or the compiler. Both are defence in depth; the boundary is the sandbox in
which the tool runs.
"""

from dataclasses import dataclass, replace
from typing import Final

from stockade.port import (
    KIB,
    MIB,
    NO_EGRESS,
    Command,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    Limits,
    Outcome,
    SandboxLost,
    SandboxRequest,
    StockadeError,
    Unavailable,
)
from stockade.tools.answers import (
    LARGEST_ANSWER,
    Finding,
    NoAnswer,
    findings,
    load,
    unchecked,
)
from stockade.tools.java.toolchain import ASM, COMPILE_ARCHIVE, HARNESS, Toolchain
from stockade.tools.java.virtual_machine import options

LARGEST_SOURCE: Final = 1 * MIB
LARGEST_CLASSES: Final = 4 * MIB
MOST_FINDINGS: Final = 100
MOST_CLASSES: Final = 500
CLASSES: Final = "tool.jar"
COMPILE_LIMITS: Final = Limits(
    wall_seconds=30.0,
    cpu_seconds=30.0,
    memory_bytes=512 * MIB,
    disk_bytes=32 * MIB,
    output_bytes=64 * KIB,
    result_bytes=LARGEST_ANSWER,
    artefact_bytes=LARGEST_CLASSES + 1 * MIB,
    record_bytes=4 * KIB,
)

# Not the tool's doing: there is nothing to correct in the source.
_OURS: Final = frozenset({Outcome.LOST, Outcome.CANCELLED})


class SourceRefused(StockadeError):
    """It does not compile, or refers to what the rules do not allow."""

    def __init__(self, findings: list[Finding]) -> None:
        first = findings[0]
        more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        super().__init__(f"line {first.line}: {first.sentence} ({first.rule}){more}")
        self.findings = findings


@dataclass(frozen=True, slots=True)
class Compiled:
    """The classes of one tool, as a sandbox of its tenant made them."""

    tenant: str
    digest: str
    """SHA-256 of ``jar``, in hexadecimal."""
    jar: bytes


async def compile_source(
    environment: ExecutionEnvironment,
    toolchain: Toolchain,
    source: bytes,
    rules: bytes,
    sandbox: SandboxRequest,
) -> bytes:
    """The classes, as a jar. Raises :class:`SourceRefused`, :class:`Unavailable`, :class:`SandboxLost`."""
    if len(source) > LARGEST_SOURCE:
        raise SourceRefused(
            [unchecked("size", f"it has {len(source)} bytes; at most {LARGEST_SOURCE}")]
        )
    jar = await _compile(environment, toolchain, source, sandbox)
    await verify(environment, toolchain, jar, rules, sandbox)
    return jar


async def _compile(
    environment: ExecutionEnvironment, toolchain: Toolchain, source: bytes, sandbox: SandboxRequest
) -> bytes:
    bounds = (LARGEST_SOURCE, LARGEST_CLASSES, MOST_CLASSES, MOST_FINDINGS)
    execution = await environment.run(
        ExecutionRequest(
            Command(
                (
                    "java",
                    *options(COMPILE_LIMITS.memory_bytes),
                    f"-XX:SharedArchiveFile={COMPILE_ARCHIVE}",
                    "-cp",
                    HARNESS,
                    "stockade.tool.Compile",
                    *(str(bound) for bound in bounds),
                )
            ),
            files=toolchain.files(COMPILE_ARCHIVE),
            artefacts=(CLASSES,),
        ),
        _quiet(sandbox),
        stdin=source,
    )
    _refuse(execution, "compiler")
    if not execution.artefacts:
        raise SourceRefused([unchecked("checker", "the compiler made no classes of it")])
    return execution.artefacts[0].data


async def verify(
    environment: ExecutionEnvironment,
    toolchain: Toolchain,
    jar: bytes,
    rules: bytes,
    sandbox: SandboxRequest,
) -> None:
    """Raises :class:`SourceRefused`, :class:`Unavailable`, :class:`SandboxLost`."""
    bounds = (LARGEST_CLASSES, MOST_CLASSES, MOST_FINDINGS)
    execution = await environment.run(
        ExecutionRequest(
            Command(
                (
                    "java",
                    *options(COMPILE_LIMITS.memory_bytes),
                    "--add-exports",
                    ASM,
                    "-cp",
                    HARNESS,
                    "stockade.tool.Verify",
                    *(str(bound) for bound in bounds),
                )
            ),
            files={HARNESS: toolchain.harness, CLASSES: jar},
        ),
        _quiet(sandbox),
        stdin=rules,
    )
    _refuse(execution, "verifier")


def _quiet(sandbox: SandboxRequest) -> SandboxRequest:
    return replace(sandbox, limits=COMPILE_LIMITS, egress=NO_EGRESS, ticket=None)


def _refuse(execution: Execution, who: str) -> None:
    """Raises for whatever is not exactly an empty list of findings."""
    if execution.outcome in _OURS:
        raise SandboxLost(f"the source was not compiled: {execution.detail}")
    if execution.outcome is Outcome.UNAVAILABLE:
        raise Unavailable(execution.detail)
    if not execution.ok:
        raise SourceRefused(
            [
                unchecked(
                    "checker",
                    f"the {who} did not come to an end with it: "
                    f"{execution.outcome}, {execution.detail}",
                )
            ]
        )
    try:
        found = findings(load(execution.result), MOST_FINDINGS)
    except NoAnswer as error:
        raise SourceRefused(
            [unchecked("checker", f"the answer of the {who} is no list of findings: {error}")]
        ) from None
    if found:
        raise SourceRefused(sorted(found, key=lambda each: (each.line, each.column)))
