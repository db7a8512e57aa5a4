"""Dedicated machines as the executor sees them: submitted, waited for, given up; with none that boots."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stockade.executor.environment import LocalEnvironment
from stockade.executor.machines import Machines
from stockade.executor.pool import PoolPolicy
from stockade.executor.resources import Resources
from stockade.executor.sandbox import Profile, Sandbox
from stockade.executor.tiers import Tiers
from stockade.port import (
    ExecutionRequest,
    InvalidRequest,
    Outcome,
    PythonSource,
    SandboxRequest,
    Tier,
    Unavailable,
)

REQUEST = ExecutionRequest(PythonSource(""))
WANTED = SandboxRequest(tier=Tier.VM)
CLEANING_SECONDS = 0.05


class Booting:
    """A tier whose machines boot until they are told that they fail."""

    tier = Tier.VM
    emulated = False

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.fail = asyncio.Event()
        self.alive = 0
        self.most = 0

    async def create(self, _: Profile) -> Sandbox:
        self.alive += 1
        self.most = max(self.most, self.alive)
        self.begun.set()
        try:
            await self.fail.wait()
            raise Unavailable("the machine did not boot")
        finally:
            # It takes its time to be gone.
            await asyncio.shield(asyncio.sleep(CLEANING_SECONDS))
            self.alive -= 1

    async def forget(self, tenant: str) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        assert self.alive == 0


@pytest.fixture
async def driver() -> Booting:
    return Booting()


@pytest.fixture
async def environment(driver: Booting) -> AsyncIterator[LocalEnvironment]:
    async def open_it() -> Booting:
        return driver

    policy = PoolPolicy(floor=0, machines=2, wait_seconds=0.1)
    async with LocalEnvironment(Tiers({Tier.VM: open_it}, Resources()), policy) as environment:
        yield environment


async def test_starting_waits_for_no_boot(environment: LocalEnvironment, driver: Booting) -> None:
    async with asyncio.timeout(5):
        running = await environment.start(REQUEST, WANTED)
        await driver.begun.wait()
        before = running.done
        driver.fail.set()
        with pytest.raises(Unavailable, match="the machine did not boot"):
            await running.wait()
        assert (before, running.done) == (False, True)
        assert driver.alive == 0


async def test_what_was_cancelled_while_it_booted(
    environment: LocalEnvironment, driver: Booting
) -> None:
    """Its record is made when nothing of the machine lives."""
    running = await environment.start(REQUEST, WANTED)
    await driver.begun.wait()
    await running.signal(2)
    with pytest.raises(InvalidRequest, match="not a signal"):
        await running.signal(99)
    await running.cancel()
    record = await running.wait()
    assert driver.alive == 0
    assert (record.outcome, record.tier, record.exit_code) == (Outcome.CANCELLED, Tier.VM, None)
    assert "before its machine was up" in record.detail
    assert record.timings.waited > 0
    assert await running.wait() is record


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_a_waiter_that_is_cancelled_takes_the_machine_along(
    environment: LocalEnvironment, driver: Booting, turns: int
) -> None:
    waiting = asyncio.create_task(environment.run(REQUEST, WANTED))
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert driver.alive == 0


async def test_no_more_than_the_policy_says(environment: LocalEnvironment, driver: Booting) -> None:
    running = [await environment.start(REQUEST, WANTED) for _ in range(3)]
    with pytest.raises(Unavailable, match=r"no dedicated machine within 0\.1 s .*pool\.machines"):
        await running[2].wait()
    assert driver.most == 2
    await running[0].cancel()
    await running[0].wait()
    fourth = await environment.start(REQUEST, WANTED)
    await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    assert driver.alive == 2
    for each in (running[1], fourth):
        await each.cancel()
        await each.wait()
    assert (driver.alive, driver.most) == (0, 2)


async def test_closing_gives_up_what_boots(driver: Booting) -> None:
    async def open_it() -> Booting:
        return driver

    tiers = Tiers({Tier.VM: open_it}, Resources())
    environment = LocalEnvironment(tiers, PoolPolicy(machines=1))
    running = [await environment.start(REQUEST, WANTED) for _ in range(3)]
    session = asyncio.create_task(environment.open_session(WANTED))
    await driver.begun.wait()
    async with asyncio.timeout(5):
        await environment.close()
        assert driver.alive == 0
        records = [await each.wait() for each in running]
        with pytest.raises(Unavailable, match="the environment is closed"):
            await session
    assert {record.outcome for record in records} == {Outcome.CANCELLED}


async def test_a_session_that_boots_when_it_is_closed(driver: Booting) -> None:
    machines = Machines(driver.create, 1, 5.0)
    taking = asyncio.create_task(machines.take(Profile.of(Tier.VM, WANTED)))
    await driver.begun.wait()
    await machines.close()
    assert driver.alive == 0
    with pytest.raises(Unavailable, match="the environment is closed"):
        await taking
    with pytest.raises(Unavailable, match="the environment is closed"):
        await machines.take(Profile.of(Tier.VM, WANTED))


async def test_nothing_is_parked(environment: LocalEnvironment, driver: Booting) -> None:
    await environment.warm_up(WANTED)
    assert not driver.begun.is_set()
    assert environment.metrics().parked == environment.metrics().making == 0


async def test_who_has_no_other_tier_has_named_it(
    environment: LocalEnvironment, driver: Booting
) -> None:
    """By the executor that was opened, if not by the request."""
    running = await environment.start(REQUEST)
    await driver.begun.wait()
    await running.cancel()
    assert (await running.wait()).tier is Tier.VM
