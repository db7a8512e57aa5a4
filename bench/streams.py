"""Bytes through the wire, beside the same bytes through a pipe or by a copy."""

import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.report import Report, Table, ratio
from stockade.executor.environment import LocalEnvironment
from stockade.executor.local import open_local
from stockade.executor.pool import PoolPolicy
from stockade.port import (
    GIB,
    MIB,
    Command,
    ExecutionRequest,
    Limits,
    SandboxRequest,
    Session,
    Stream,
    Tier,
)

ROUNDS = 3
OUTPUT_BYTES = 100_000_000
FILE_BYTES = 200_000_000
SANDBOX = SandboxRequest(
    limits=Limits(
        memory_bytes=GIB, disk_bytes=512 * MIB, output_bytes=GIB, artefact_bytes=512 * MIB
    )
)
_SHARED_MEMORY = Path("/dev/shm")

OUTPUT, PIPE = "100 MB of output through the wire", "cat /dev/zero | head -c through a pipe"
FILE_IN, FILE_OUT = "a 200 MB file into a session", "the file out of the session"
COPY, CAT = "cp, tmpfs to tmpfs", "cat through a pipe, tmpfs to tmpfs"
# What each of ours is set against.
BESIDE = {OUTPUT: PIPE, FILE_IN: CAT, FILE_OUT: CAT}

Once = Callable[[], Awaitable[int]]
"""Moves bytes; how many."""


async def measure() -> Report:
    """In turns; each time includes the start of whatever moves the bytes."""
    where = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="stockade-bench-", dir=where) as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        content = random.randbytes(FILE_BYTES)
        source.write_bytes(content)

        async def pipe() -> int:
            return _read_all(f"cat /dev/zero | head -c {OUTPUT_BYTES}")

        async def copy() -> int:
            target.unlink(missing_ok=True)
            subprocess.run(["cp", source, target], check=True)
            return FILE_BYTES

        async def cat() -> int:
            target.unlink(missing_ok=True)
            _read_all(f"cat {source} | cat > {target}")
            return FILE_BYTES

        async with open_local(pool=PoolPolicy.fixed(1), tiers={Tier.NAMESPACE}) as environment:
            await environment.warm_up(SANDBOX)
            async with await environment.open_session(SANDBOX) as session:
                entries: dict[str, Once] = {
                    OUTPUT: lambda: _output(environment),
                    PIPE: pipe,
                    FILE_IN: lambda: _write(session, content),
                    FILE_OUT: lambda: _read(session),
                    CAT: cat,
                    COPY: copy,
                }
                rates: dict[str, list[float]] = {name: [] for name in entries}
                for _ in range(ROUNDS):
                    # Not shuffled: a file must be in before it can come out.
                    for name, once in entries.items():
                        began = time.perf_counter()
                        moved = await once()
                        rates[name].append(moved / (time.perf_counter() - began))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    rows = tuple(
        (
            name,
            f"{rate / 1e6:.0f}",
            ratio(rate, medians[BESIDE[name]]) if name in BESIDE else "1.00",
        )
        for name, rate in medians.items()
        if name != COPY
    )
    rows += ((COPY, f"{medians[COPY] / 1e6:.0f}", ratio(medians[COPY], medians[CAT])),)
    return Report(
        "streams",
        (
            Table(
                "Streams and files",
                ("what", "MB/s", "over the pipe beside it"),
                rows,
                (
                    f"Medians of {ROUNDS} rounds. Output is set against the pipe; a file into or "
                    "out of a session, and cp, against cat.",
                ),
            ),
        ),
        figures={name: {"bytes_per_second": rate} for name, rate in medians.items()},
    )


def _read_all(script: str) -> int:
    count = 0
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        while data := process.stdout.read(65_536):
            count += len(data)
    if process.returncode:
        raise RuntimeError(f"{script}: exit code {process.returncode}")
    return count


async def _output(environment: LocalEnvironment) -> int:
    count = 0

    async def take(_: Stream, data: bytes) -> None:
        nonlocal count
        count += len(data)

    request = ExecutionRequest(Command(("head", "-c", str(OUTPUT_BYTES), "/dev/zero")))
    execution = await environment.run(request, SANDBOX, on_output=take)
    if not execution.ok or count != OUTPUT_BYTES:
        raise RuntimeError(f"{count} bytes, {execution.outcome}: {execution.detail}")
    return count


async def _write(session: Session, content: bytes) -> int:
    await session.write_file("file", content)
    return len(content)


async def _read(session: Session) -> int:
    count = 0
    async for piece in session.read_file("file"):
        count += len(piece)
    if count != FILE_BYTES:
        raise RuntimeError(f"{count} bytes came out")
    return count
