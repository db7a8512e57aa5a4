"""The pool under anything that calls, time, failures and deaths can do to it, in any order."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stockade.executor.descriptors import Room
from stockade.executor.pool import PoolPolicy
from stockade.port import MIB, SandboxLost, StockadeError, Tier, Unavailable

from .pool_kit import Factory, FakePool, FakeSandbox, VirtualLoop, profile

POLICIES = st.builds(
    lambda floor, more, **rest: PoolPolicy(floor=floor, ceiling=floor + more, **rest),
    floor=st.integers(0, 4),
    more=st.integers(0, 6),
    memory_budget_bytes=st.sampled_from([0, 7 * MIB, 20 * MIB, 1000 * MIB]),
    max_age_seconds=st.sampled_from([20.0, 400.0]),
    idle_seconds=st.sampled_from([30.0, 200.0]),
    profiles=st.integers(1, 4),
    starts=st.integers(1, 4),
    most_alive=st.sampled_from([1, 3, 8, 100]),
    queue=st.sampled_from([1, 5, 100]),
    wait_seconds=st.sampled_from([0.5, 50.0]),
)
PROFILES = st.builds(
    profile,
    st.sampled_from("abc"),
    st.sampled_from([1, 2]),
    st.sampled_from([Tier.NAMESPACE, Tier.GVISOR]),
)
Call = tuple[Any, "asyncio.Task[FakeSandbox]"]


class PoolMachine(RuleBasedStateMachine):
    """What holds is in the invariants, and in ``teardown`` what holds at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.factory = Factory()
        self.calls: list[Call] = []
        self.fills: list[asyncio.Task[None]] = []
        self.taken: list[FakeSandbox] = []
        self.handed_out: set[FakeSandbox] = set()
        self.pool: FakePool | None = None
        self.policy = PoolPolicy()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        async def settle() -> None:
            await work
            for _ in range(8):  # who was told something now hears it; no time passes
                await asyncio.sleep(0)

        self.loop.run_until_complete(settle())

    @initialize(policy=POLICIES, room=st.none() | st.integers(1, 20))
    def open(self, policy: PoolPolicy, room: int | None) -> None:
        async def make() -> None:
            limit = None if room is None else Room(min(room, policy.most_alive), "open files")
            self.pool = FakePool(
                self.factory.create, policy, forget=self.factory.forget, room=limit
            )

        self.policy = policy
        self.run(make())

    @rule(wanted=PROFILES, count=st.integers(1, 12))
    def call(self, wanted: Any, count: int) -> None:
        async def start() -> None:
            assert self.pool is not None
            for _ in range(count):
                task = asyncio.ensure_future(self.pool.take(wanted))
                self.calls.append((wanted, task))

        self.run(start())
        self.collect()

    @rule(wanted=PROFILES)
    def fill(self, wanted: Any) -> None:
        async def start() -> None:
            assert self.pool is not None
            self.fills.append(asyncio.ensure_future(self.pool.fill(wanted)))

        self.run(start())

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        _, task = data.draw(st.sampled_from(self.calls))

        async def cancel() -> None:
            task.cancel()

        self.run(cancel())
        self.collect()

    @rule()
    def cancel_in_the_moment_of_a_hand_over(self) -> None:
        def cancel_oldest() -> None:
            self.factory.when_made = lambda: None
            for _, task in self.calls:
                if not task.done():
                    self.loop.call_soon(task.cancel)
                    return

        self.factory.when_made = cancel_oldest

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.taken))
        self.taken.remove(one)
        self.run(one.destroy())

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        if self.factory.living:
            living = sorted(self.factory.living, key=self.factory.made.index)
            data.draw(st.sampled_from(living)).alive = False

    @rule(
        pause=st.sampled_from([0.001, 0.01, 1.0]),
        size=st.sampled_from([1, 3 * MIB, 25 * MIB]),
        trouble=st.sampled_from(["", "", "fails", "dies"]),
    )
    def change(self, pause: float, size: int, trouble: str) -> None:
        self.factory.pause, self.factory.size = pause, size
        self.factory.fails, self.factory.dies = trouble == "fails", trouble == "dies"

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))
        self.collect()

    def collect(self) -> None:
        """What calls got is what they asked for, and nobody else's."""
        for wanted, task in [each for each in self.calls if each[1].done()]:
            self.calls.remove((wanted, task))
            if task.cancelled():
                continue
            if task.exception() is not None:
                assert isinstance(task.exception(), SandboxLost | Unavailable)
                continue
            one = task.result()
            assert one.profile == wanted
            assert one not in self.handed_out
            assert not one.destroyed
            self.handed_out.add(one)
            self.taken.append(one)

    @invariant()
    def nothing_is_without_bound(self) -> None:
        if self.pool is None:
            return
        policy, pool, metrics = self.policy, self.pool, self.pool.metrics()
        assert metrics.parked_bytes <= policy.memory_budget_bytes
        assert all(shelf.parked <= policy.ceiling for shelf in metrics.shelves)
        assert sum(shelf.parked > 0 for shelf in metrics.shelves) <= policy.profiles
        assert metrics.alive <= metrics.most_alive
        assert len(self.factory.living) + self.factory.making <= metrics.most_alive
        assert self.factory.most_making <= policy.starts
        assert pool._refilling <= max(1, policy.starts // 2)
        assert metrics.waiting == sum(not task.done() for _, task in self.calls) <= policy.queue
        assert metrics.waiting == sum(shelf.waiting for shelf in metrics.shelves)
        assert (
            metrics.alive
            == sum(shelf.parked + shelf.in_use for shelf in metrics.shelves)
            + metrics.making
            + self.ending()
        )
        assert all(shelf.target >= policy.floor or not shelf.target for shelf in metrics.shelves)
        assert all(shelf.allotted <= shelf.target <= policy.ceiling for shelf in metrics.shelves)

    @invariant()
    def what_is_parked_is_paused_and_nothing_else(self) -> None:
        if self.pool is None:
            return
        parked = self.parked()
        assert all(one.boundary.paused for one in self.factory.living if id(one) in parked)
        assert not any(one.boundary.paused for one in self.taken)

    def ending(self) -> int:
        """Sandboxes being destroyed by the pool itself: nobody's any more."""
        parked = self.parked()
        return sum(
            id(one) not in parked and one not in self.taken and one not in self.unclaimed()
            for one in self.factory.living
        )

    def parked(self) -> set[int]:
        assert self.pool is not None
        return {id(each.sandbox) for shelf in self.pool._shelves.all() for each in shelf.parked}

    def unclaimed(self) -> set[FakeSandbox]:
        """Those that a call has, and did not tell yet."""
        return {
            task.result()
            for _, task in self.calls
            if task.done() and not task.cancelled() and task.exception() is None
        }

    def teardown(self) -> None:
        try:
            if self.pool is not None:
                self.run(self.end(self.pool))
        finally:
            self.loop.close()

    async def end(self, pool: FakePool) -> None:
        self.factory.when_made = lambda: None
        self.factory.fails = self.factory.dies = False
        self.factory.pause, self.factory.size = 0.01, 1
        if len(self.factory.made) % 2:
            await self.come_to_rest(pool)
        await pool.close()
        await asyncio.sleep(0.1)
        self.collect()
        assert all(task.done() for _, task in self.calls)
        for each in await asyncio.gather(*self.fills, return_exceptions=True):
            assert each is None or isinstance(each, StockadeError)
        # What is in use is its owner's to destroy; all else is gone.
        assert self.factory.making == 0
        assert self.factory.living == set(self.taken)
        for one in self.taken:
            await one.destroy()
        assert all(one.destroyed == 1 for one in self.factory.made)
        await asyncio.sleep(1000)
        assert self.factory.living == set()

    async def come_to_rest(self, pool: FakePool) -> None:
        """When calls end and starts succeed, all is parked that should be; when idle, nothing."""
        idle, age = self.policy.idle_seconds, self.policy.max_age_seconds
        for _ in range(200):
            await asyncio.sleep(0.5)
            self.collect()
            while self.taken:
                await self.taken.pop().destroy()
            if not self.calls:
                break
        assert not self.calls
        await asyncio.sleep(31 + min(idle, age) / 5)  # a retry, and a sweep
        metrics = pool.metrics()
        assert metrics.making == metrics.waiting == 0
        if metrics.most_alive >= 100:
            assert [shelf.parked for shelf in metrics.shelves] == [
                shelf.allotted for shelf in metrics.shelves
            ]
        tenants = {shelf.tenant for shelf in metrics.shelves}
        self.factory.forgotten.clear()
        await asyncio.sleep(idle * 2)
        assert pool.metrics().shelves == ()
        assert pool.metrics().alive == 0
        assert self.factory.living == set()
        assert sorted(self.factory.forgotten) == sorted(tenants)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
pytestmark = pytest.mark.plain_user
