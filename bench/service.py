"""What the service adds to a call, and how many calls a second it serves."""

import asyncio
import json
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from bench.contestants import BARE, OUTPUT, SOURCE
from bench.report import Promise, Report, Summary, Table, absent_row, milliseconds
from bench.services import Services
from bench.throughput import take_turns
from bench.turns import COLUMNS, Once, figures, rows, sample, time_program
from stockade.executor.local import open_local
from stockade.port import ExecutionEnvironment, ExecutionRequest, PythonSource, SandboxRequest, Tier

EMBEDDED = "embedded: open_local() in the calling process"
EXECUTOR = "executor over a unix socket"
GATEWAY = "gateway and executor over unix sockets"
ADDED_TARGET = 0.003
CALLERS = (1, 8, 64)
WRK_CONNECTIONS = 8
_SETTLE_SECONDS = 0.06
_NAMESPACE = SandboxRequest(tier=Tier.NAMESPACE)
_REQUEST = ExecutionRequest(PythonSource(SOURCE))


async def measure(rounds: int, seconds: float) -> Report:
    """Latency in turns with the embedded executor; then rates of callers at once."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stockade-bench-"))
        services = await stack.enter_async_context(Services(Path(folder)).running())
        key = services.add_tenant("bench")
        gateway = await stack.enter_async_context(services.open_gateway(key))
        executor = await stack.enter_async_context(services.open_executor("bench"))
        embedded = await stack.enter_async_context(open_local(tiers={Tier.NAMESPACE}))
        entries: dict[str, Once] = {BARE.name: lambda: time_program(BARE)}
        for name, environment in (
            (EMBEDDED, embedded),
            (EXECUTOR, executor),
            (GATEWAY, gateway),
        ):
            entries[name] = _once(environment)
        summaries = {
            name: Summary.of(times) for name, times in (await sample(entries, rounds)).items()
        }
        rates = await take_turns(
            {f"{GATEWAY}, {count} at once": _callers(gateway, count) for count in CALLERS}
            | {f"{EMBEDDED}, 8 at once": _callers(embedded, 8)},
            seconds,
        )
    rates |= await _wrk(seconds)
    added = summaries[GATEWAY].median - summaries[EMBEDDED].median
    return Report(
        "service",
        (
            Table(
                "The service: latency of print(1), namespace tier",
                COLUMNS,
                rows(summaries, ()),
                (
                    "In turns, in a random order per round, one call at a time. The gateway checks "
                    "the key, the policy and the budget, and its ledger and audit trail are on disk.",
                ),
            ),
            Table(
                "The service: executions per second",
                ("what", "per second", "worst slice"),
                tuple(
                    (name, f"{sum(values) / len(values):.0f}", f"{min(values):.0f}")
                    if values
                    else absent_row(3, name, "it is not installed")
                    for name, values in rates.items()
                ),
                (f"{seconds:g} s each, in slices that take turns.",),
            ),
        ),
        (
            Promise(
                "the service adds to an embedded call, median, one caller",
                f"<= {milliseconds(ADDED_TARGET)} ms",
                f"{milliseconds(added)} ms",
                added <= ADDED_TARGET,
            ),
        ),
        figures(summaries) | {name: {"slices": values} for name, values in rates.items()},
    )


async def _wrk(seconds: float) -> dict[str, list[float]]:
    """The same load from a program that nobody here wrote, over TCP. Every answer has to be good."""
    name = f"wrk, {WRK_CONNECTIONS} connections, over TCP"
    if (wrk := shutil.which("wrk")) is None:
        return {name: []}
    with tempfile.TemporaryDirectory(prefix="stockade-bench-") as folder:
        services = Services(Path(folder), port=_free_port())
        async with services.running():
            script = Path(folder) / "post.lua"
            body = {
                "program": {"kind": "python", "source": SOURCE},
                "sandbox": {"tier": Tier.NAMESPACE},
            }
            script.write_text(
                'wrk.method = "POST"\n'
                f"wrk.body = [[{json.dumps(body)}]]\n"
                'wrk.headers["Content-Type"] = "application/json"\n'
                f'wrk.headers["Authorization"] = "Bearer {services.add_tenant("wrk")}"\n'
            )
            running = await asyncio.create_subprocess_exec(
                *(wrk, "-t1", f"-c{WRK_CONNECTIONS}", f"-d{max(1, round(seconds))}", "--timeout"),
                *("30s", "-s", str(script), f"{services.gateway_url}/v1/executions"),
                stdout=asyncio.subprocess.PIPE,
            )
            said = (await running.communicate())[0].decode()
    rate = re.search(r"^Requests/sec:\s+([0-9.]+)$", said, re.MULTILINE)
    if running.returncode or rate is None or "Non-2xx" in said or "Socket errors" in said:
        raise RuntimeError(f"wrk: {said}")
    return {name: [float(rate[1])]}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _once(environment: ExecutionEnvironment) -> Once:
    async def call() -> float:
        began = time.perf_counter()
        await _run(environment)
        took = time.perf_counter() - began
        await asyncio.sleep(_SETTLE_SECONDS)  # the pool is full again
        return took

    return call


def _callers(environment: ExecutionEnvironment, count: int) -> Callable[[float], Awaitable[float]]:
    async def work(seconds: float) -> float:
        began = time.perf_counter()
        done = await asyncio.gather(
            *(_run_until(environment, began + seconds) for _ in range(count))
        )
        return sum(done) / (time.perf_counter() - began)

    return work


async def _run_until(environment: ExecutionEnvironment, end: float) -> int:
    done = 0
    while time.perf_counter() < end:
        await _run(environment)
        done += 1
    return done


async def _run(environment: ExecutionEnvironment) -> None:
    execution = await environment.run(_REQUEST, _NAMESPACE)
    if not execution.ok or execution.stdout.content != OUTPUT:
        raise RuntimeError(f"{execution.outcome}: {execution.detail}")
