"""Programs in WebAssembly: a call each, beside the same program without a boundary."""

import asyncio
import shutil
import time
from typing import Final

from bench.contestants import PYTHON
from bench.report import Promise, Report, Summary, Table, absent_row, milliseconds, ratio
from bench.turns import Once, sample
from stockade.executor.environment import LocalEnvironment
from stockade.executor.local import open_local
from stockade.executor.pool import PoolPolicy
from stockade.port import (
    ExecutionRequest,
    JavaScriptSource,
    Program,
    PythonSource,
    SandboxRequest,
    Tier,
    Unavailable,
    WasmModule,
)

COLUMNS: Final = ("what", "median ms", "p99 ms", "median / bare python", "runs")
BARE_PYTHON: Final = "bare python: python3 -c 'print(1)'"
BARE_NODE: Final = "bare node: node -e 'console.log(1)'"
MODULE: Final = "an empty module of 36 bytes"
PYTHON_INSIDE: Final = "CPython for WASI, print(1)"
JAVASCRIPT: Final = "QuickJS, console.log(1)"
NAMESPACE: Final = "the tier namespace, print(1)"
# What each call may take at the median, in seconds.
TARGETS: Final = {MODULE: 1e-3, PYTHON_INSIDE: 45e-3, JAVASCRIPT: 3e-3}
SETTLE_SECONDS: Final = 0.05
# (module (func (export "_start")))
_EMPTY: Final = bytes.fromhex(
    "0061736d0100000001040160000003020100070a01065f737461727400000a040102000b"
)
_PROGRAMS: Final[dict[str, Program]] = {
    MODULE: WasmModule(_EMPTY),
    PYTHON_INSIDE: PythonSource("print(1)"),
    JAVASCRIPT: JavaScriptSource("console.log(1)"),
}


async def measure(rounds: int) -> Report:
    """In turns, each from a full pool."""
    entries: dict[str, Once] = {BARE_PYTHON: _bare(PYTHON, "-c", "print(1)")}
    if node := shutil.which("node"):
        entries[BARE_NODE] = _bare(node, "-e", "console.log(1)")
    try:
        async with open_local(
            pool=PoolPolicy.fixed(1), tiers={Tier.WASM, Tier.NAMESPACE}
        ) as environment:
            entries |= {
                name: _call(environment, program, Tier.WASM) for name, program in _PROGRAMS.items()
            }
            entries[NAMESPACE] = _call(environment, _PROGRAMS[PYTHON_INSIDE], Tier.NAMESPACE)
            samples = await sample(entries, rounds)
    except Unavailable as error:
        absent = Table("WebAssembly", COLUMNS, (absent_row(len(COLUMNS), "wasm", str(error)),))
        return Report("wasm", (absent,), (), {})
    return _report({name: Summary.of(times) for name, times in samples.items()})


def _bare(*argv: str) -> Once:
    async def once() -> float:
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        await process.communicate()
        return time.perf_counter() - began

    return once


def _call(environment: LocalEnvironment, program: Program, tier: Tier) -> Once:
    wanted = SandboxRequest(tier=tier)

    async def once() -> float:
        await environment.warm_up(wanted)
        await asyncio.sleep(SETTLE_SECONDS)
        began = time.perf_counter()
        execution = await environment.run(ExecutionRequest(program), wanted)
        took = time.perf_counter() - began
        if not execution.ok:
            raise RuntimeError(f"{execution.outcome}: {execution.detail} {execution.stderr}")
        return took

    return once


def _report(summaries: dict[str, Summary]) -> Report:
    bare = summaries[BARE_PYTHON]
    rows = tuple(
        (
            name,
            milliseconds(own.median),
            milliseconds(own.p99),
            ratio(own.median, bare.median),
            str(own.count),
        )
        for name, own in summaries.items()
    )
    promises = tuple(
        Promise(
            f"{name}: median of a call",
            f"<= {most * 1e3:g} ms",
            f"{milliseconds(summaries[name].median)} ms",
            summaries[name].median <= most,
        )
        for name, most in TARGETS.items()
    )
    table = Table(
        "A call in WebAssembly",
        COLUMNS,
        rows,
        (
            "In a random order per round, each from a parked sandbox, from the request to the "
            "record. Compiled before, but for the module, which is compiled in each call.",
        ),
    )
    return Report(
        "wasm",
        (table,),
        promises,
        {
            name: {"median_seconds": own.median, "p99_seconds": own.p99, "runs": own.count}
            for name, own in summaries.items()
        },
    )
