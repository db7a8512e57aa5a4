"""The pool: each sandbox has one owner, and none is left over."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stockade.executor.pool import Pool
from stockade.executor.sandbox import Profile
from stockade.port import SandboxLost, Tier

pytestmark = pytest.mark.plain_user


def profile(tenant: str = "a") -> Profile:
    return Profile(Tier.NAMESPACE, tenant, 1, 1, 1.0, 1, 1)


class FakeSandbox:
    def __init__(self, factory: "Factory", made_for: Profile) -> None:
        self.factory = factory
        self.profile = made_for
        self.alive = True
        self.destroyed = 0

    async def destroy(self) -> None:
        await asyncio.sleep(0)
        self.destroyed += 1
        self.factory.living.discard(self)


class Factory:
    """Makes sandboxes, and knows which live and how many were in the making at once."""

    def __init__(self, pause: float = 0.001) -> None:
        self.pause = pause
        self.living: set[FakeSandbox] = set()
        self.made: list[FakeSandbox] = []
        self.making = 0
        self.most_making = 0
        self.most_living = 0
        self.fails = False

    async def __call__(self, wanted: Profile) -> FakeSandbox:
        self.making += 1
        self.most_making = max(self.most_making, self.making)
        try:
            await asyncio.sleep(self.pause)
            if self.fails:
                raise SandboxLost("none today")
            sandbox = FakeSandbox(self, wanted)
        finally:
            self.making -= 1
        self.made.append(sandbox)
        self.living.add(sandbox)
        self.most_living = max(self.most_living, len(self.living))
        return sandbox


class FakePool(Pool):
    """The pool under test, over fakes."""

    async def take(self, profile: Profile) -> Any:
        return await super().take(profile)


def pool_of(factory: Factory, target: int, profiles: int = 8) -> FakePool:
    return FakePool(factory, target, profiles)  # type: ignore[arg-type]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(3):
        while not condition():
            await asyncio.sleep(0.002)


async def test_no_sandbox_has_two_owners() -> None:
    """CASES 70: two were adopted for one claim."""
    factory = Factory()
    pool = pool_of(factory, 10)
    await pool.fill(profile())
    taken = await asyncio.gather(*(pool.take(profile()) for _ in range(200)))
    assert len({id(one) for one in taken}) == 200
    assert all(one.profile == profile() for one in taken)
    for one in taken:
        await one.destroy()
    await pool.close()
    assert factory.living == set()


async def test_tenants_never_share() -> None:
    factory = Factory()
    pool = pool_of(factory, 3)
    tenants = [f"t{number % 5}" for number in range(100)]
    taken = await asyncio.gather(*(pool.take(profile(tenant)) for tenant in tenants))
    assert [one.profile.tenant for one in taken] == tenants
    for one in taken:
        await one.destroy()
    await pool.close()
    assert factory.living == set()


async def test_a_parked_one_is_taken_first() -> None:
    factory = Factory()
    pool = pool_of(factory, 2)
    await pool.fill(profile())
    first = factory.made[0]
    assert await pool.take(profile()) is first
    assert (pool.hits, pool.misses) == (1, 0)
    await pool.close()
    await first.destroy()
    assert factory.living == set()


async def test_what_was_taken_is_replaced() -> None:
    factory = Factory()
    pool = pool_of(factory, 3)
    await pool.fill(profile())
    taken = await pool.take(profile())
    await until(lambda: len(factory.living) == 4)
    await asyncio.sleep(0.05)
    assert len(factory.living) == 4
    await taken.destroy()
    await pool.close()
    assert factory.living == set()


async def test_dead_ones_are_thrown_away() -> None:
    factory = Factory()
    pool = pool_of(factory, 4)
    await pool.fill(profile())
    dead = list(factory.made)
    for one in dead:
        one.alive = False
    taken = await pool.take(profile())
    assert taken.alive
    assert taken not in dead
    await until(lambda: all(one.destroyed == 1 for one in dead))
    await taken.destroy()
    await pool.close()
    assert factory.living == set()


async def test_refill_is_single_flight() -> None:
    """CASES 69: 5,537 were made for a target of 500."""
    factory = Factory(pause=0.01)
    pool = pool_of(factory, 5)
    for _ in range(50):
        pool.refill(profile())
    await asyncio.gather(*(pool.fill(profile()) for _ in range(50)))
    for _ in range(50):
        pool.refill(profile())
    await asyncio.sleep(0.05)
    assert len(factory.made) == 5
    assert factory.most_making == 1
    await pool.close()
    assert factory.living == set()


async def test_never_more_than_target_and_those_in_flight() -> None:
    factory = Factory()
    pool = pool_of(factory, 5)

    async def use() -> None:
        for _ in range(10):
            one = await pool.take(profile())
            await asyncio.sleep(0.001)
            await one.destroy()
            pool.refill(profile())

    await asyncio.gather(*(use() for _ in range(20)))
    # Twenty in use, five parked, one in the making, and those whose destruction is under way.
    assert factory.most_living <= 20 + 5 + 1
    await asyncio.sleep(0.1)
    assert len(factory.living) == 5
    await pool.close()
    assert factory.living == set()


async def test_a_launcher_that_fails_is_not_hammered() -> None:
    """CASES 69: a launcher that never becomes ready."""
    factory = Factory()
    factory.fails = True
    pool = pool_of(factory, 5)
    with pytest.raises(SandboxLost):
        await pool.fill(profile())
    with pytest.raises(SandboxLost):
        await pool.take(profile())
    await asyncio.sleep(0.1)
    assert factory.most_making <= 2
    factory.fails = False
    taken = await pool.take(profile())
    await taken.destroy()
    await pool.close()
    assert factory.living == set()


async def test_a_target_of_none_parks_none() -> None:
    factory = Factory()
    pool = pool_of(factory, 0)
    taken = await pool.take(profile())
    pool.refill(profile())
    await pool.fill(profile())
    await asyncio.sleep(0.05)
    assert factory.living == {taken}
    await taken.destroy()
    await pool.close()


async def test_the_profile_used_least_is_given_up() -> None:
    factory = Factory()
    pool = pool_of(factory, 2, profiles=3)
    for tenant in "abcd":
        await pool.fill(profile(tenant))
    await until(lambda: len(factory.living) == 6)
    assert {one.profile.tenant for one in factory.living} == set("bcd")
    await pool.close()
    assert factory.living == set()


async def test_a_given_up_profile_is_not_filled_again() -> None:
    """A refill that was planned before the profile was given up parks for nobody."""
    factory = Factory()
    pool = pool_of(factory, 2, profiles=2)
    for tenant in "abcdef":
        one = await pool.take(profile(tenant))
        await one.destroy()
    await asyncio.sleep(0.15)
    assert {one.profile.tenant for one in factory.living} <= set("ef")
    await pool.close()
    assert factory.living == set()


async def test_closing_while_one_is_made() -> None:
    factory = Factory(pause=0.02)
    pool = pool_of(factory, 3)
    filling = asyncio.ensure_future(pool.fill(profile()))
    await asyncio.sleep(0.005)
    await pool.close()
    await asyncio.wait({filling}, timeout=1)
    filling.cancel()
    await asyncio.gather(filling, return_exceptions=True)
    await asyncio.sleep(0.05)
    assert factory.living == set()


async def test_nothing_is_made_after_the_end() -> None:
    factory = Factory()
    pool = pool_of(factory, 3)
    one = await pool.take(profile())
    await pool.close()
    await one.destroy()
    pool.refill(profile())
    await asyncio.sleep(0.1)
    assert factory.living == set()


async def test_closing_waits_until_all_are_gone() -> None:
    factory = Factory()
    pool = pool_of(factory, 5)
    await pool.fill(profile("a"))
    await pool.fill(profile("b"))
    assert len(factory.living) == 10
    await pool.close()
    assert factory.living == set()
    await pool.close()


async def test_a_cancelled_take_leaves_no_trace() -> None:
    factory = Factory(pause=0.01)
    pool = pool_of(factory, 2)
    takers = [asyncio.ensure_future(pool.take(profile())) for _ in range(20)]
    await asyncio.sleep(0.005)
    for taker in takers:
        taker.cancel()
    await asyncio.gather(*takers, return_exceptions=True)
    assert factory.making == 0
    one = await pool.take(profile())
    await one.destroy()
    await pool.close()
    assert factory.living == set()


async def test_its_state_is_visible() -> None:
    factory = Factory()
    pool = pool_of(factory, 2)
    await pool.fill(profile())
    assert "2 parked" in repr(pool)
    await pool.close()
    assert "0 parked" in repr(pool)
