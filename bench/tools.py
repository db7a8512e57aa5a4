"""What a call of a tool costs through a gateway: in each tier, beside a bare program."""

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from bench.contestants import BARE
from bench.report import Promise, Report, Summary, Table, milliseconds
from bench.services import Services
from bench.turns import COLUMNS, Once, figures, rows, sample, time_program
from stockade.client import RemoteEnvironment
from stockade.port import ExecutionRequest, PythonSource, SandboxRequest, Tier
from stockade.tools.definition import Example, Language, Tool

PLAIN = "print(1) through the gateway, namespace"
EXPRESSION = "an expression tool through the gateway"
NAMESPACE = "a Python tool through the gateway, namespace, parked"
GVISOR = "a Python tool through the gateway, gVisor, parked"
TARGETS = {NAMESPACE: 0.005, GVISOR: 0.008}
# After a call its sandbox is destroyed, and the next one parked.
_SETTLE_SECONDS = {NAMESPACE: 0.06, GVISOR: 0.6, EXPRESSION: 0.0}
_SCHEMA = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
_TOOL = Tool(
    name="double",
    language=Language.PYTHON,
    source='def main(input):\n    return {"n": input["n"] * 2}\n',
    input_schema=_SCHEMA,
    output_schema=_SCHEMA,
    examples=(Example({"n": 1}, {"n": 2}),),
)


async def measure(rounds: int) -> Report:
    """In turns, one call at a time."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stockade-bench-"))
        tiers = (Tier.NAMESPACE, Tier.GVISOR, Tier.EXPRESSION)
        services = await stack.enter_async_context(Services(Path(folder), tiers).running())
        key = services.add_tenant("bench")
        gateway = await stack.enter_async_context(services.open_gateway(key))
        await gateway.tools.store(_tool("namespace", tier=Tier.NAMESPACE))
        await gateway.tools.store(_tool("gvisor", tier=Tier.GVISOR))
        expression = _tool("expression", language=Language.EXPRESSION, source="{'n': input.n * 2}")
        await gateway.tools.store(expression)
        entries: dict[str, Once] = {
            BARE.name: lambda: time_program(BARE),
            PLAIN: lambda: _plain(gateway),
            EXPRESSION: lambda: _call(gateway, "expression", EXPRESSION),
            NAMESPACE: lambda: _call(gateway, "namespace", NAMESPACE),
            GVISOR: lambda: _call(gateway, "gvisor", GVISOR),
        }
        summaries = {
            name: Summary.of(times) for name, times in (await sample(entries, rounds)).items()
        }
    return Report(
        "tools",
        (
            Table(
                "Tools: latency of a call",
                COLUMNS,
                rows(summaries, ()),
                (
                    "In turns, in a random order per round, one call at a time, over unix sockets: "
                    "key, policy, budget, both schemas, ledger and audit trail included.",
                ),
            ),
        ),
        tuple(
            Promise(
                f"{name}, median",
                f"<= {milliseconds(target)} ms",
                f"{milliseconds(summaries[name].median)} ms",
                summaries[name].median <= target,
            )
            for name, target in TARGETS.items()
        ),
        figures(summaries),
    )


def _tool(name: str, **changes: object) -> Tool:
    return replace(_TOOL, name=name, **changes)  # type: ignore[arg-type]


async def _call(gateway: RemoteEnvironment, name: str, what: str) -> float:
    began = time.perf_counter()
    output = await gateway.tools.call(name, {"n": 21})
    took = time.perf_counter() - began
    if output != {"n": 42}:
        raise RuntimeError(f"{name}: {output}")
    await asyncio.sleep(_SETTLE_SECONDS[what])
    return took


async def _plain(gateway: RemoteEnvironment) -> float:
    began = time.perf_counter()
    execution = await gateway.run(
        ExecutionRequest(PythonSource("print(1)")), SandboxRequest(tier=Tier.NAMESPACE)
    )
    took = time.perf_counter() - began
    if not execution.ok:
        raise RuntimeError(f"{execution.outcome}: {execution.detail}")
    await asyncio.sleep(_SETTLE_SECONDS[NAMESPACE])
    return took
