"""A whole workspace as bytes: packed and unpacked by a tar inside, and read by nobody else."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Final

from stockade.executor.execution import ProgramExecution
from stockade.port import (
    MIB,
    Command,
    Execution,
    ExecutionRequest,
    FileRefused,
    Limits,
    Outcome,
    OutputSink,
    SandboxLost,
    Stream,
)

_SECONDS: Final = 600.0
"""For either way, whatever the sandbox's programs have: the caller may be slow."""
_BYTES_PER_FILE: Final = 4096
"""What tar may add to a file: headers, a long name, what fills its last block."""
_WORDS: Final = 4096

# Sparse, or one hole would cost more than the disk has. Names and times as they are.
_PACK: Final = Command(
    ("tar", "--create", "--format=posix", "--sparse", "--directory=/workspace", "--file=-", ".")
)
# The workspace itself is there, and not the guest's own to change; a folder that nobody may
# write to gets that mode when what belongs into it is there.
_UNPACK: Final = Command(
    (
        *("tar", "--extract", "--preserve-permissions", "--no-same-owner", "--no-overwrite-dir"),
        *("--delay-directory-restore", "--directory=/workspace", "--file=-"),
    )
)


def limits_to_save(limits: Limits) -> Limits:
    """A sandbox's own, and no more bytes than its disk can have made."""
    most = limits.disk_bytes + limits.inodes * _BYTES_PER_FILE + MIB
    return replace(limits_to_restore(limits), output_bytes=most)


def limits_to_restore(limits: Limits) -> Limits:
    """A sandbox's own, with time for a slow caller."""
    return replace(
        limits, wall_seconds=_SECONDS, cpu_seconds=_SECONDS, output_bytes=MIB, record_bytes=_WORDS
    )


async def save(
    start: Callable[[ExecutionRequest, OutputSink], ProgramExecution],
) -> AsyncIterator[bytes]:
    """The workspace in pieces. Raises :class:`FileRefused` or :class:`SandboxLost`.

    Whoever does not take the last of them has to close the iterator: that ends the program.
    """
    pieces: asyncio.Queue[bytes] = asyncio.Queue(1)

    async def sink(stream: Stream, data: bytes) -> None:
        if stream is Stream.STDOUT:
            await pieces.put(data)

    running = start(ExecutionRequest(_PACK), sink)
    waiting = asyncio.create_task(running.wait())
    try:
        while True:
            getting = asyncio.ensure_future(pieces.get())
            await asyncio.wait({getting, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                getting.cancel()
                break
            yield getting.result()
        _check(await waiting, "saved")
    finally:
        if not waiting.done():
            # Not by cancelling the waiter, which costs the session its sandbox.
            await running.cancel()
            await asyncio.wait({waiting})


async def restore(start: Callable[[ExecutionRequest], ProgramExecution]) -> None:
    """Unpack what standard input has. Raises :class:`FileRefused` or :class:`SandboxLost`."""
    _check(await start(ExecutionRequest(_UNPACK)).wait(), "restored")


def _check(execution: Execution, what: str) -> None:
    if execution.ok:
        return
    if execution.outcome is Outcome.LOST:
        raise SandboxLost(execution.detail)
    reason = f"the workspace cannot be {what}: {execution.detail}"
    words = " ".join(execution.stderr.text().split())[-500:]
    if words:
        reason += f": {ascii(words)[1:-1]}"
    raise FileRefused("", reason)
