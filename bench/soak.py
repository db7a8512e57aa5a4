"""A load that mixes tenants, outcomes, cancels and disconnects, while the services are killed.

Every call must end in a record or in a clear error; no record may be lost or doubled; nothing may
be left behind, and memory may not grow. ``./dev bench soak --seconds 600`` is the full form.
"""

import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from bench.leftovers import adopt_orphans, census, closed, own_temporary_folder
from bench.processes import memory
from bench.report import Promise, Report, Table
from bench.services import Services
from stockade.client import RemoteEnvironment
from stockade.port import (
    MIB,
    Execution,
    ExecutionRequest,
    FileRefused,
    Limits,
    Outcome,
    PythonSource,
    Refused,
    SandboxLost,
    SandboxRequest,
    StockadeError,
    Tier,
    Unavailable,
)

TENANTS: Final = ("alder", "birch", "cedar")
CALLERS: Final = 4
"""Of each tenant, at once."""
_QUIET_SHARE: Final = 0.3
"""Of the time, at its end: nothing is killed, and memory is watched."""
_KILL_SECONDS: Final = (3.0, 8.0)
_GROWTH_BYTES: Final = 24 * MIB
"""What a process may have more at the end of the quiet time than at its beginning."""
_SETTLE_SECONDS: Final = 90.0
_CLEAR: Final = (Refused, Unavailable, SandboxLost, FileRefused)


@dataclass
class Tally:
    """What the callers saw."""

    ends: Counter[str] = field(default_factory=Counter)
    """Of calls: outcomes, and the names of clear errors."""
    problems: list[str] = field(default_factory=list)
    records: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    """Of each tenant, by the execution's id: how a caller saw it end."""
    kills: Counter[str] = field(default_factory=Counter)

    def saw(self, tenant: str, id: str, execution: Execution) -> None:  # noqa: A002
        """A record came."""
        self.ends[execution.outcome] += 1
        if not id or execution.outcome is Outcome.LOST:
            return  # a lost one may have gone on, and ended otherwise
        known = self.records.setdefault(tenant, {}).setdefault(id, execution.outcome)
        if known is not execution.outcome:
            self.problems.append(f"{id} ended as {known}, and as {execution.outcome}")


@dataclass(frozen=True)
class Caller:
    """One caller of a tenant's."""

    tenant: str
    environment: RemoteEnvironment
    services: Services
    key: str
    tally: Tally

    async def call(self) -> None:
        """One call of some kind."""
        kind = random.choices(list(_KINDS), [weight for _, weight in _KINDS.values()])[0]
        try:
            async with asyncio.timeout(120):
                await _KINDS[kind][0](self)
        except _CLEAR as error:
            self.tally.ends[type(error).__name__] += 1
            await asyncio.sleep(0.2)
        except TimeoutError:
            self.tally.problems.append(f"{kind}: it never ended")
        except (StockadeError, OSError, ValueError, RuntimeError) as error:
            self.tally.problems.append(f"{kind}: {error!r}")

    async def run(self, source: str, expected: Outcome, limits: Limits | None = None) -> None:
        """One program, and again with the same key where its end was not heard."""
        key = f"soak-{random.getrandbits(96):x}"
        request = ExecutionRequest(PythonSource(source))
        sandbox = SandboxRequest(tier=Tier.NAMESPACE, limits=limits or Limits())
        ids: set[str] = set()
        execution = Execution(Outcome.LOST, "nothing was heard")
        for _ in range(3):
            running = await self.environment.start(request, sandbox, idempotency_key=key)
            execution = await running.wait()
            if running.id:
                ids.add(running.id)
            self.tally.saw(self.tenant, running.id, execution)
            if execution.outcome is not Outcome.LOST:
                break
            await asyncio.sleep(1)
        if len(ids) > 1:
            self.tally.problems.append(f"one key, and these ran: {', '.join(sorted(ids))}")
        if execution.outcome not in (expected, Outcome.LOST, Outcome.CANCELLED):
            self.tally.problems.append(
                f"{source!r} ended as {execution.outcome}: {execution.detail}"
            )


async def _ok(caller: Caller) -> None:
    await caller.run("print(1)", Outcome.OK)


async def _nonzero(caller: Caller) -> None:
    await caller.run("raise SystemExit(3)", Outcome.NONZERO_EXIT)


async def _wall_clock(caller: Caller) -> None:
    await caller.run("while True: pass", Outcome.WALL_CLOCK, Limits(wall_seconds=0.3))


async def _memory(caller: Caller) -> None:
    small = Limits(memory_bytes=64 * MIB, disk_bytes=MIB)
    await caller.run("x = b'x' * (1 << 30)", Outcome.MEMORY, small)


async def _flood(caller: Caller) -> None:
    await caller.run("print('x' * 2_000_000)", Outcome.OK)


async def _cancel(caller: Caller) -> None:
    request = ExecutionRequest(PythonSource("import time; print(1, flush=True); time.sleep(20)"))
    running = await caller.environment.start(request, SandboxRequest(tier=Tier.NAMESPACE))
    await asyncio.sleep(random.uniform(0, 0.2))
    await running.cancel()
    caller.tally.saw(caller.tenant, running.id, await running.wait())


async def _disconnect(caller: Caller) -> None:
    """The caller goes away without a word."""
    body = {
        "program": {"kind": "python", "source": "import time; time.sleep(20)"},
        "sandbox": {"tier": "namespace"},
    }
    async with caller.services.raw_gateway(caller.key) as http:
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(random.uniform(0.01, 0.3)):
                async with http.post("/v1/executions", json=body) as answer:
                    await answer.read()
    caller.tally.ends["went away"] += 1


async def _session(caller: Caller) -> None:
    session = await caller.environment.open_session(SandboxRequest(tier=Tier.NAMESPACE))
    try:
        content = random.randbytes(100_000)
        await session.write_file("in", content)
        execution = await session.run(
            ExecutionRequest(PythonSource("import shutil; shutil.copy('in', 'out')"))
        )
        caller.tally.ends[execution.outcome] += 1
        if execution.ok:
            back = b"".join([piece async for piece in session.read_file("out")])
            if back != content:
                caller.tally.problems.append(f"a file of {len(content)} bytes came back otherwise")
    finally:
        with contextlib.suppress(*_CLEAR):
            await session.close()


_KINDS: Final[Mapping[str, tuple[Callable[[Caller], Awaitable[None]], int]]] = {
    "ok": (_ok, 10),
    "nonzero": (_nonzero, 3),
    "wall clock": (_wall_clock, 2),
    "memory": (_memory, 1),
    "flood": (_flood, 2),
    "cancel": (_cancel, 3),
    "disconnect": (_disconnect, 3),
    "session": (_session, 2),
}


async def soak(seconds: float, *, kills: bool = True) -> tuple[Tally, dict[str, list[int]]]:
    """The load. What the callers saw, with all that was found wrong; memory over the quiet time.

    To be called in a process of its own: it adopts orphans from then on.
    """
    tally = Tally()
    with own_temporary_folder() as folder:
        adopt_orphans()
        before = census(folder)
        with tempfile.TemporaryDirectory(prefix="stockade-soak-") as place:
            services = Services(Path(place))
            async with services.running():
                keys = {tenant: services.add_tenant(tenant) for tenant in TENANTS}
                sizes = await _load(services, keys, seconds, kills, tally)
                await _check_ledger(services, keys, tally)
            try:
                services.command("audit", "verify")
            except RuntimeError as error:
                tally.problems.append(str(error))
        after = await closed(folder, before)
    for kind in before:
        if left := sorted(after[kind] - before[kind]):
            tally.problems.append(f"left behind: {kind}: {', '.join(left)[:500]}")
    for name, values in sizes.items():
        fifth = max(1, len(values) // 5)
        grown = sum(values[-fifth:]) / fifth - sum(values[:fifth]) / fifth
        if grown > _GROWTH_BYTES:
            tally.problems.append(f"{name} grew by {grown / MIB:.0f} MiB in the quiet time")
    return tally, sizes


async def _load(
    services: Services, keys: Mapping[str, str], seconds: float, kills: bool, tally: Tally
) -> dict[str, list[int]]:
    ends = time.monotonic() + seconds
    quiet = ends - seconds * _QUIET_SHARE
    sizes: dict[str, list[int]] = {"executor": [], "gateway": []}

    async def call_until_the_end(caller: Caller) -> None:
        while time.monotonic() < ends:
            await caller.call()

    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            for tenant, key in keys.items():
                environment = await stack.enter_async_context(services.open_gateway(key))
                caller = Caller(tenant, environment, services, key, tally)
                for _ in range(CALLERS):
                    group.create_task(call_until_the_end(caller))
            if kills:
                await _kill_until(quiet, services, tally)
            await asyncio.sleep(max(0.0, quiet - time.monotonic()))
            await services.wait_until_ready()
            await asyncio.sleep(seconds * _QUIET_SHARE / 4)  # what was started anew fills its pool
            while time.monotonic() < ends:
                for service in (services.executor, services.gateway):
                    sizes[service.name].append(memory(service.pid)[0])
                await asyncio.sleep(min(1.0, seconds / 50))
        # Who closes may find that what it was to close died with an executor.
        with contextlib.suppress(*_CLEAR):
            await stack.aclose()
    return sizes


async def _kill_until(end: float, services: Services, tally: Tally) -> None:
    victims = itertools.cycle((services.executor, services.gateway))
    for victim in victims:
        await asyncio.sleep(random.uniform(*_KILL_SECONDS))
        if time.monotonic() > end:
            return
        victim.kill()
        tally.kills[victim.name] += 1
        await asyncio.sleep(random.uniform(0, 1))
        victim.start()


async def _check_ledger(services: Services, keys: Mapping[str, str], tally: Tally) -> None:
    """Everything that was begun has ended, once, and as its caller saw it."""
    for tenant, key in keys.items():
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            listed = await _executions(services, key)
            unended = [one for one, entry in listed.items() if entry["state"] != "ended"]
            if not unended or time.monotonic() > deadline:
                break
            await asyncio.sleep(1)
        if unended:
            tally.problems.append(f"{tenant}: these never ended: {', '.join(unended[:5])}")
        for id, outcome in tally.records.get(tenant, {}).items():  # noqa: A001
            if id not in listed:
                tally.problems.append(f"{tenant}: the record of {id} is lost")
            elif (kept := listed[id].get("outcome")) != outcome:
                tally.problems.append(f"{tenant}: {id} ended as {outcome}, and is kept as {kept}")


async def _executions(services: Services, key: str) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    async with services.raw_gateway(key) as http:
        cursor: str | None = None
        while True:
            query = {"limit": "100"} | ({} if cursor is None else {"cursor": cursor})
            async with http.get("/v1/executions", params=query) as answer:
                page = await answer.json()
                if answer.status != 200:
                    raise RuntimeError(str(page))
            for entry in page["executions"]:
                if entry["id"] in found:
                    raise RuntimeError(f"{entry['id']} is listed twice")
                found[entry["id"]] = entry
            cursor = page.get("next")
            if cursor is None:
                return found


async def measure(seconds: float) -> Report:
    """As a table."""
    tally, sizes = await soak(seconds)
    rows = [(end, str(count)) for end, count in tally.ends.most_common()]
    rows += [(f"kill -9 of the {name}", str(count)) for name, count in tally.kills.items()]
    rows += [
        (f"{name}: MiB at the beginning and the end of the quiet time", _spread(values))
        for name, values in sizes.items()
    ]
    return Report(
        "soak",
        (
            Table(
                f"Soak: {len(TENANTS)} tenants, {CALLERS} callers each, {seconds:g} s",
                ("what", "how often"),
                tuple(rows),
                tuple(tally.problems[:20]),
            ),
        ),
        (
            Promise(
                "under kill -9 of either service: lost or doubled records, things left, growth",
                "nothing",
                f"{len(tally.problems)} problems" if tally.problems else "nothing",
                not tally.problems,
            ),
        ),
        {"ends": dict(tally.ends), "kills": dict(tally.kills), "problems": tally.problems},
    )


def _spread(values: list[int]) -> str:
    return f"{values[0] / MIB:.0f}, {values[-1] / MIB:.0f}" if values else "-"
