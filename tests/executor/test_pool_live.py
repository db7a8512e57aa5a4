"""The pool with sandboxes that are some: bursts, bad moments, and tenants that come and go."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.contract.kit import descendants, soon, source, until

from stockade.executor import PoolPolicy, open_local
from stockade.executor.environment import LocalEnvironment
from stockade.port import SandboxRequest, Tier, Unavailable

pytestmark = [pytest.mark.plain_user, pytest.mark.tier("namespace")]

NAMESPACE = {Tier.NAMESPACE}
ONE = source("print(1)")


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


async def outcomes(environment: LocalEnvironment, calls: int) -> Counter[str]:
    """How so many calls at once ended."""
    records = await asyncio.gather(*(environment.run(ONE) for _ in range(calls)))
    return Counter(record.outcome.value for record in records)


async def test_a_burst_of_200_calls_is_served_and_nothing_is_left_behind() -> None:
    processes, files = set(descendants()), len(descriptors())
    async with open_local(tiers=NAMESPACE) as environment:
        assert await outcomes(environment, 200) == {"ok": 200}
        await until(lambda: environment.metrics().making == 0, 10)
        metrics = environment.metrics()
        assert metrics.hits + metrics.misses == 200
        assert metrics.waits == metrics.misses > 100
        assert (metrics.failures, metrics.refused, metrics.timed_out) == (0, 0, 0)
        # The demand of such a burst is above the ceiling, and so all that may be is parked.
        await until(lambda: environment.metrics().parked == PoolPolicy().ceiling, 10)
    assert environment.metrics().alive == 0
    assert set(descendants()) <= processes
    assert len(descriptors()) == files


BURST = """
import asyncio, resource, sys
from collections import Counter
from stockade.executor import PoolPolicy, open_local
from stockade.port import ExecutionRequest, PythonSource, Tier

async def main():
    hard = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    one = ExecutionRequest(PythonSource("print(1)"))
    patient = PoolPolicy(wait_seconds=300)
    async with open_local(tiers={Tier.NAMESPACE}, pool=patient) as environment:
        records = await asyncio.gather(*(environment.run(one) for _ in range(200)))
        print(*Counter(record.outcome for record in records).items())

asyncio.run(main())
"""


@pytest.mark.parametrize("hard", [512, 4096])
def test_few_descriptors_make_calls_wait_and_fail_none(hard: int) -> None:
    """They were refused, one by one, each at another step of its start."""
    done = subprocess.run(
        [sys.executable, "-c", BURST, str(hard)],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.stdout == "(<Outcome.OK: 'ok'>, 200)\n", done.stderr[-2000:]


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.1])
async def test_closing_in_the_middle_of_a_burst(moment: float) -> None:
    processes, files = set(descendants()), len(descriptors())
    async with open_local(tiers=NAMESPACE) as environment:
        calls = [asyncio.ensure_future(environment.run(ONE)) for _ in range(60)]
        await asyncio.sleep(moment)
        await soon(environment.close(), 10)
        ends = await asyncio.gather(*calls, return_exceptions=True)
    for end in ends:
        assert isinstance(end, Unavailable) or end.outcome.value in ("ok", "cancelled"), end  # type: ignore[union-attr]
    assert any(isinstance(end, Unavailable) for end in ends)
    assert set(descendants()) <= processes
    assert len(descriptors()) == files


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.1])
async def test_cancelling_in_the_middle_of_a_burst(moment: float) -> None:
    async with open_local(tiers=NAMESPACE, pool=PoolPolicy.fixed(0)) as environment:
        await environment.run(ONE)
        await until(lambda: environment.metrics().alive == 0)
        processes, files = set(descendants()), len(descriptors())
        calls = [asyncio.ensure_future(environment.run(ONE)) for _ in range(60)]
        await asyncio.sleep(moment)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await until(lambda: environment.metrics().alive == 0, 10)
        await until(lambda: set(descendants()) <= processes, 5)
        assert len(descriptors()) == files
        assert (await environment.run(ONE)).ok


def launchers() -> set[int]:
    """Of zygotes of this process."""
    found = set()
    for pid in descendants():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode("stockade-launch") in line:
            found.add(pid)
    return found


async def test_the_first_calls_of_a_tenant_share_one_zygote() -> None:
    async with open_local(tiers=NAMESPACE) as environment:
        before = launchers()
        request = SandboxRequest(tenant="new")
        records = await asyncio.gather(*(environment.run(ONE, request) for _ in range(10)))
        assert all(record.ok for record in records)
        assert len(launchers() - before) == 1


async def test_the_zygotes_of_idle_tenants_end() -> None:
    """About 7 MiB each: a thousand tenants in a day are not to add up."""
    policy = PoolPolicy(floor=1, idle_seconds=0.5)
    async with open_local(tiers=NAMESPACE, pool=policy) as environment:
        before = launchers()
        tenants = [SandboxRequest(tenant=name) for name in "abc"]
        for _ in range(2):
            records = await asyncio.gather(*(environment.run(ONE, one) for one in tenants))
            assert all(record.ok for record in records)
            session = await environment.open_session(tenants[0])
            assert len(launchers() - before) == 3
            # One still has a session, and keeps its zygote.
            await until(lambda: len(launchers() - before) == 1, 5)
            assert (await session.run(ONE)).ok
            await session.close()
            await until(lambda: launchers() == before, 5)
            assert environment.metrics().shelves == ()


async def test_a_tenant_that_comes_back_as_its_zygote_ends_is_served() -> None:
    policy = PoolPolicy(floor=0, ceiling=1, idle_seconds=0.1)
    async with open_local(tiers=NAMESPACE, pool=policy) as environment:
        request = SandboxRequest(tenant="comes and goes")

        async def call_after(pause: float) -> None:
            await asyncio.sleep(pause)
            record = await environment.run(ONE, request)
            assert record.ok, record.detail

        # It is idle after 0.1 s, is found so within another 0.01 s, and takes some to end.
        for step in range(12):
            pause = 0.1 + 0.005 * step
            await asyncio.gather(*(call_after(pause + late) for late in (0, 0.001, 0.004)))
            await until(lambda: environment.metrics().alive == environment.metrics().parked, 5)
        assert environment.metrics().failures == 0
