"""A call of a tool: what starts its JVM, and what its record says."""

from dataclasses import dataclass
from typing import Final

from stockade.port import MIB, Command, Execution, ExecutionRequest, Limits, Outcome
from stockade.tools.answers import NoAnswer, plain
from stockade.tools.java.answers import Failure, read_output
from stockade.tools.java.compiling import CLASSES, Compiled
from stockade.tools.java.toolchain import HARNESS, RUN_ARCHIVE, Toolchain
from stockade.tools.java.virtual_machine import options

LARGEST_INPUT: Final = 16 * MIB
READY: Final = b"."
"""What a JVM that is to wait for its input says first, on standard output."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its record, and either an output or why there is none."""

    execution: Execution
    output: bytes | None
    """JSON, as the guest wrote it: nobody has read it yet."""
    failure: Failure | None
    parked: bool
    """Whether its JVM was started ahead of it."""


def request(
    toolchain: Toolchain, compiled: Compiled, limits: Limits, *, waits: bool
) -> ExecutionRequest:
    """Starts a JVM that reads one input to its end, and ends with the answer."""
    return ExecutionRequest(
        Command(
            (
                "java",
                *options(limits.memory_bytes),
                f"-XX:SharedArchiveFile={RUN_ARCHIVE}",
                "-cp",
                f"{HARNESS}:{CLASSES}",
                "stockade.tool.Run",
                str(LARGEST_INPUT),
                str(limits.result_bytes),
                *(("wait",) if waits else ()),
            )
        ),
        files={**toolchain.files(RUN_ARCHIVE), CLASSES: compiled.jar},
    )


def read(execution: Execution, *, parked: bool) -> Call:
    """What came of it. The record's outcome is believed before any word of the guest's."""
    if execution.outcome not in (Outcome.OK, Outcome.NONZERO_EXIT):
        failure = Failure("outcome", f"{execution.outcome}: {plain(execution.detail)}")
        return Call(execution, None, failure, parked)
    try:
        answer = read_output(execution.result)
    except NoAnswer as error:
        failure = Failure(
            "no_result", f"it ended without an output: {error}; {plain(execution.detail)}"
        )
        return Call(execution, None, failure, parked)
    if isinstance(answer, Failure):
        return Call(execution, None, answer, parked)
    if not execution.ok:
        failure = Failure("outcome", f"{execution.outcome}: {plain(execution.detail)}")
        return Call(execution, None, failure, parked)
    return Call(execution, answer, None, parked)
