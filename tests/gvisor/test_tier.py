"""Sandboxes of one snapshot, of several tenants, and of none at all."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio
from tests.contract.kit import (
    Watch,
    command,
    descendants,
    explain,
    marker,
    source,
    started,
    stdout_of,
    until,
)
from tests.contract.test_record import UNIQUE
from tests.contract.traits import TRAITS

from stockade.executor import PoolPolicy, open_local
from stockade.executor import templates as templates_of_tiers
from stockade.executor.environment import LocalEnvironment
from stockade.executor.gvisor.snapshot import Template
from stockade.executor.gvisor.tier import GvisorTier
from stockade.port import Limits, Outcome, SandboxRequest, Tier

pytestmark = [
    pytest.mark.tier("gvisor"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a plain user's gVisor has no snapshots"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environment() -> AsyncIterator[LocalEnvironment]:
    """One that parks two sandboxes of each profile."""
    async with open_local(pool=PoolPolicy.fixed(2), tiers={Tier.GVISOR}) as opened:
        yield opened


def tier_of(environment: LocalEnvironment) -> GvisorTier:
    driver = environment._tiers.opened(Tier.GVISOR)
    assert isinstance(driver, GvisorTier)
    return driver


def full(environment: LocalEnvironment) -> bool:
    """Whether the pool has all that it wants."""
    metrics = environment.metrics()
    return not metrics.making and all(each.parked >= each.allotted for each in metrics.shelves)


async def test_what_is_parked_stands_still() -> None:
    """gVisor's kernel would wake thousands of times a second; stopped, it is killed as well."""
    async with open_local(pool=PoolPolicy.fixed(1), tiers={Tier.GVISOR}) as environment:
        await environment.warm_up()
        (shelf,) = environment._pool._shelves.all()
        watch = Watch(SimpleNamespace(_sandbox=shelf.parked[0].sandbox))
        await until(lambda: stopped(watch.init))
        spent = watch.cpu_seconds()
        await asyncio.sleep(0.5)
        assert watch.cpu_seconds() == spent
        assert (await environment.run(source("print(6 * 7)"))).stdout.content == b"42\n"
        await environment.warm_up()
        watch = Watch(SimpleNamespace(_sandbox=shelf.parked[0].sandbox))
    assert watch.living() == []


def stopped(init: int) -> bool:
    """Whether every process of a sandbox is."""
    return {state for pid, state in descendants(init).items() if pid != init} == {"T"}


async def templates(environment: LocalEnvironment, tenant: str) -> list[Template]:
    """The tenant's snapshots."""
    made = list(tier_of(environment)._templates._kept.items())
    return [await kept.making for profile, kept in made if profile.tenant == tenant]


async def test_two_of_one_snapshot_share_no_randomness(environment: LocalEnvironment) -> None:
    """Both were parked, and saved as one, before either was asked for anything."""
    request = SandboxRequest(tenant="clones")
    await environment.warm_up(request)
    (template,) = await templates(environment, "clones")
    assert template.saved
    hits = environment.metrics().hits
    one, two = await asyncio.gather(*(environment.run(source(UNIQUE), request) for _ in range(2)))
    assert environment.metrics().hits == hits + 2
    rows = stdout_of(one).splitlines(), stdout_of(two).splitlines()
    assert len(rows[0]) >= 9
    for first, second in zip(*rows, strict=True):
        assert first != second, rows


async def test_two_tenants_have_two_snapshots(environment: LocalEnvironment) -> None:
    """What clones share, the seed of ``hash()`` and where memory lies, no other tenant has."""
    text = source("print(hash('stockade'), id(object()))")
    answers = [
        stdout_of(await environment.run(text, SandboxRequest(tenant=tenant)))
        for tenant in ("one", "one", "another")
    ]
    assert answers[0].split()[0] == answers[1].split()[0] != answers[2].split()[0]
    (one,) = await templates(environment, "one")
    (another,) = await templates(environment, "another")
    assert one.saved
    assert another.saved
    assert one._snapshot != another._snapshot


async def test_the_snapshots_of_tenants_long_gone_are_removed(
    environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes memory for as long as it is kept; whoever comes back gets a new one."""
    monkeypatch.setattr(templates_of_tiers, "MOST_TEMPLATES", 2)
    folder = tier_of(environment)._state.path

    def kept() -> int:
        return len(list(folder.glob("t*")))

    text = source("print(hash('stockade'))")
    first = stdout_of(await environment.run(text, SandboxRequest(tenant="first")))
    await until(lambda: full(environment), 60)  # else a refill for another makes room for itself
    for number in range(3):
        request = SandboxRequest(tenant=f"later {number}")
        assert (await environment.run(command("true"), request)).ok
    await until(lambda: full(environment), 60)
    await until(lambda: kept() <= 3)
    assert await templates(environment, "first") == []
    # Those who are parked are of the old one still, and live.
    wanted = SandboxRequest(tenant="first")
    while stdout_of(await environment.run(text, wanted)) == first:
        pass
    (template,) = await templates(environment, "first")
    assert template.saved


async def test_the_ceiling_on_files_makes_no_other_snapshot(environment: LocalEnvironment) -> None:
    """gVisor keeps none: what depends on nothing is not made twice."""
    for inodes in (100, 200):
        request = SandboxRequest(tenant="files", limits=Limits(inodes=inodes))
        assert (await environment.run(command("true"), request)).ok
    assert len(await templates(environment, "files")) == 1


async def test_an_interpreter_of_its_own_shares_no_seed(environment: LocalEnvironment) -> None:
    text = source("print(hash('stockade'))", fresh=True)
    request = SandboxRequest(tenant="clones")
    answers = {stdout_of(await environment.run(text, request)) for _ in range(3)}
    assert len(answers) == 3


async def test_what_one_clone_writes_no_other_sees(environment: LocalEnvironment) -> None:
    """A snapshot is read, never written: neither files nor memory of a guest reach it."""
    text = source(
        "import json, os, pathlib\n"
        "print(hasattr(json, 'planted'), os.listdir('/workspace'), os.listdir('/tmp'))\n"
        "json.planted = True\n"
        "pathlib.Path('/workspace/f').write_text('x'); pathlib.Path('/tmp/f').write_text('x')"
    )
    for _ in range(3):
        assert stdout_of(await environment.run(text)) == "False [] []\n"


async def test_its_clock_goes_on(environment: LocalEnvironment) -> None:
    """A guest that was saved and restored knows what time it is."""
    answer = stdout_of(await environment.run(source("import time; print(time.time())")))
    now = stdout_of(await environment.run(command("date", "+%s")))
    assert abs(float(answer) - float(now)) < 60


async def test_a_killed_supervisor_takes_all_of_a_sandbox_along(
    environment: LocalEnvironment,
) -> None:
    running, watch = await started(environment, marker(), TRAITS[Tier.GVISOR])
    stat = Path(f"/proc/{watch.init}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    execution = await asyncio.wait_for(running.wait(), 10)
    assert execution.outcome is Outcome.LOST, explain(execution)
    assert watch.living() == []
    # And the next call is served.
    assert (await environment.run(command("true"))).ok


async def test_without_warmth_each_is_started_cold() -> None:
    """``warm=False``: nothing is saved, nothing is parked, and it is a sandbox like others."""
    async with open_local(warm=False, tiers={Tier.GVISOR}) as environment:
        execution = await environment.run(source("import sys; print('numpy' in sys.modules)"))
        assert stdout_of(execution) == "False\n"
        assert execution.tier is Tier.GVISOR
        (template,) = await templates(environment, SandboxRequest().tenant)
        assert not template.saved
        assert template.bytes_on_disk == 0
        async with await environment.open_session() as session:
            for number in range(2):
                assert stdout_of(await session.run(source(f"print({number})"))) == f"{number}\n"
        rows = [stdout_of(await environment.run(source(UNIQUE))).splitlines() for _ in range(2)]
        assert all(first != second for first, second in zip(*rows, strict=True))


async def test_with_nothing_parked_nothing_waits() -> None:
    before = set(descendants())
    async with open_local(pool=PoolPolicy.fixed(0), tiers={Tier.GVISOR}) as environment:
        folder = tier_of(environment)._state.path
        for _ in range(2):
            running = await environment.start(command("sleep", "30"))
            watch = Watch(running)
            assert watch.init in set(descendants()) - before
            await running.cancel()
            assert (await running.wait()).outcome is Outcome.CANCELLED
            await until(lambda: set(descendants()) == before)
        (template,) = await templates(environment, SandboxRequest().tenant)
        assert template.saved
        assert template.bytes_on_disk > 0
        # Of the sandboxes nothing is left in files; the root and the snapshot are.
        await until(lambda: not list(folder.glob("g*")))
    assert not folder.exists()
    assert set(descendants()) <= before
