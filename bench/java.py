"""One call of a tool in Java: parked, cold and compiled first, beside `java Hello`."""

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from bench.contestants import Absent
from bench.report import Promise, Report, Summary, Table, absent_row, milliseconds, ratio
from bench.turns import Once, figures, sample
from stockade.executor.doctor import probe_tiers
from stockade.executor.local import open_local
from stockade.port import SandboxRequest, Tier
from stockade.tools.java import Compiled, JavaTools, ParkingPolicy

ROUNDS: Final = 25
BARE: Final = "bare java Hello, no sandbox"
WARM_TARGET: Final = 0.3
COLD_TARGET: Final = 2.0
COLUMNS: Final = ("what", "median ms", "p99 ms", "median / bare java", "runs")
SOURCE: Final = """
public class Tool {
    public static Object main(java.util.Map<String, Object> input) {
        double net = ((Number) input.get("net")).doubleValue();
        return java.util.Map.of("gross", net * 1.19, "text", "VAT of " + net);
    }
}
"""
_HELLO: Final = (
    'public class Hello { public static void main(String[] a) { System.out.println("Hello"); } }'
)
_INPUT: Final = b'{"net": 100}'
# After a call: its sandbox is destroyed. No sample pays for another.
_SETTLE_SECONDS: Final = 0.1


async def measure(
    rounds: int = ROUNDS, tiers: Collection[Tier] = (Tier.NAMESPACE, Tier.GVISOR)
) -> Report:
    """All of them in turns, in a random order per round."""
    if shutil.which("javac") is None:
        row = absent_row(
            len(COLUMNS), BARE, "there is no JDK: apt-get install openjdk-17-jdk-headless"
        )
        return Report("java", (Table("A call of a tool in Java", COLUMNS, (row,)),))
    statuses = await probe_tiers(tiers, allow_emulation=False)
    absent = [
        Absent(str(t), status.detail) for t, status in statuses.items() if not status.available
    ]
    there = [tier for tier, status in statuses.items() if status.available]
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stockade-bench-")))
        (folder / "Hello.java").write_text(_HELLO)
        subprocess.run(["javac", "Hello.java"], cwd=folder, check=True)
        entries: dict[str, Once] = {BARE: lambda: _bare(folder)}
        environment = await stack.enter_async_context(open_local(tiers=set(there)))
        for tier in there:
            sandbox = SandboxRequest(tenant="bench", tier=tier)
            # Two, so that a cold call starts no JVM beside the others that are measured.
            parked = await stack.enter_async_context(JavaTools(environment))
            cold = await stack.enter_async_context(
                JavaTools(environment, ParkingPolicy(most=0), parked.store)
            )
            tool = await parked.compile(SOURCE, None, sandbox)
            await parked.park(tool, sandbox)
            entries[f"{tier}: a JVM that waits"] = _call(parked, tool, sandbox, parked=True)
            entries[f"{tier}: a new JVM"] = _call(cold, tool, sandbox, parked=False)
            entries[f"{tier}: a new source, compiled and verified"] = _compile(cold, sandbox)
        samples = await sample(entries, rounds)
    return _report({name: Summary.of(times) for name, times in samples.items()}, absent)


async def _bare(folder: Path) -> float:
    began = time.perf_counter()
    ended = subprocess.run(["java", "-cp", str(folder), "Hello"], capture_output=True, check=True)
    took = time.perf_counter() - began
    assert ended.stdout == b"Hello\n"
    return took


def _call(tools: JavaTools, tool: Compiled, sandbox: SandboxRequest, *, parked: bool) -> Once:
    async def once() -> float:
        began = time.perf_counter()
        call = await tools.call(tool, _INPUT, sandbox)
        took = time.perf_counter() - began
        if call.output is None or call.parked != parked:
            raise RuntimeError(f"{call.failure}, parked: {call.parked}")
        if parked:
            await tools.park(tool, sandbox)
        await asyncio.sleep(_SETTLE_SECONDS)
        return took

    return once


def _compile(tools: JavaTools, sandbox: SandboxRequest) -> Once:
    async def once() -> float:
        source = f"{SOURCE}// {time.monotonic_ns()}\n"
        began = time.perf_counter()
        await tools.compile(source, None, sandbox)
        took = time.perf_counter() - began
        await asyncio.sleep(_SETTLE_SECONDS)
        return took

    return once


def _report(summaries: dict[str, Summary], absent: list[Absent]) -> Report:
    bare = summaries[BARE].median
    measured: list[tuple[str, ...]] = [
        (name, milliseconds(s.median), milliseconds(s.p99), ratio(s.median, bare), str(s.count))
        for name, s in summaries.items()
    ]
    measured += [absent_row(len(COLUMNS), other.name, other.reason) for other in absent]
    promises = tuple(
        Promise(
            f"a Java tool, {name}: median over that of bare java Hello",
            f"<= {target:.1f}",
            ratio(summaries[name].median, bare),
            summaries[name].median / bare <= target,
        )
        for name, target in (
            (f"{Tier.NAMESPACE}: a JVM that waits", WARM_TARGET),
            (f"{Tier.NAMESPACE}: a new JVM", COLD_TARGET),
        )
        if name in summaries
    )
    return Report(
        "java",
        (
            Table(
                "A call of a tool in Java",
                COLUMNS,
                tuple(measured),
                (
                    "From the call to the record, in turns, in a random order per round. The tool "
                    "was compiled before; what compiling and verifying takes is a row of its own.",
                ),
            ),
        ),
        promises,
        figures(summaries),
    )
