"""The pool: each sandbox has one owner, none is left over, and nothing is without bound."""

import asyncio
import logging
from itertools import pairwise

import pytest

from stockade.executor.descriptors import Room
from stockade.executor.pool.pool import PATIENCE_SECONDS
from stockade.port import MIB, SandboxLost, Unavailable

from .pool_kit import Factory, now, profile, virtual_time

pytestmark = pytest.mark.plain_user


# --- each call gets a sandbox of its own ---


@virtual_time
async def test_no_sandbox_has_two_owners() -> None:
    """CASES 70: two were adopted for one claim."""
    factory = Factory()
    pool = factory.pool(floor=10)
    await pool.fill(profile())
    taken = await asyncio.gather(*(pool.take(profile()) for _ in range(200)))
    assert len({id(one) for one in taken}) == 200
    assert all(one.profile == profile() for one in taken)
    for one in taken:
        await one.destroy()
    await pool.close()
    assert factory.living == set()


@virtual_time
async def test_tenants_never_share() -> None:
    factory = Factory()
    pool = factory.pool(floor=3)
    tenants = [f"t{number % 5}" for number in range(100)]
    taken = await asyncio.gather(*(pool.take(profile(tenant)) for tenant in tenants))
    assert [one.profile.tenant for one in taken] == tenants
    for one in taken:
        await one.destroy()
    await pool.close()
    assert factory.living == set()


@virtual_time
async def test_a_parked_one_is_taken_first_and_without_waiting() -> None:
    factory = Factory()
    pool = factory.pool(floor=2)
    await pool.fill(profile())
    first = factory.made[0]
    # Not even one turn of the loop passes: a coroutine that waits for nothing ends at once.
    with pytest.raises(StopIteration) as ended:
        pool.take(profile()).send(None)
    assert ended.value.value is first
    metrics = pool.metrics()
    assert (metrics.hits, metrics.misses) == (1, 0)
    await pool.close()
    await first.destroy()
    assert factory.living == set()


@virtual_time
async def test_an_empty_pool_makes_one_for_the_call() -> None:
    factory = Factory(pause=0.25)
    pool = factory.pool(floor=0)
    one = await pool.take(profile())
    assert now() == pytest.approx(0.25)
    metrics = pool.metrics()
    assert (metrics.hits, metrics.misses, metrics.waits, metrics.starts) == (0, 1, 1, 1)
    assert metrics.wait_seconds == metrics.wait_seconds_max == pytest.approx(0.25)
    await one.destroy()
    await pool.close()
    assert factory.living == set()


@virtual_time
async def test_a_refill_that_is_under_way_serves_the_call() -> None:
    factory = Factory(pause=0.1)
    pool = factory.pool(floor=1)
    filling = asyncio.ensure_future(pool.fill(profile()))
    await asyncio.sleep(0.09)
    one = await pool.take(profile())
    assert now() == pytest.approx(0.1)
    assert len(factory.begun) == 1
    await filling
    assert len(factory.living) == 2
    await one.destroy()
    await pool.close()


@virtual_time
async def test_dead_ones_are_thrown_away() -> None:
    factory = Factory()
    pool = factory.pool(floor=4)
    await pool.fill(profile())
    dead = list(factory.made)
    for one in dead:
        one.alive = False
    taken = await pool.take(profile())
    assert taken.alive
    assert taken not in dead
    await asyncio.sleep(1)
    assert all(one.destroyed == 1 for one in dead)
    assert pool.metrics().found_dead == 4
    await taken.destroy()
    await pool.close()
    assert factory.living == set()


# --- refill ---


@virtual_time
async def test_what_was_taken_is_replaced() -> None:
    factory = Factory()
    pool = factory.pool(floor=3)
    await pool.fill(profile())
    taken = await pool.take(profile())
    await asyncio.sleep(1)
    assert len(factory.living) == 4
    await taken.destroy()
    await pool.close()
    assert factory.living == set()


@virtual_time
async def test_a_call_that_goes_on_is_left_the_machine_for_a_moment() -> None:
    factory = Factory()
    pool = factory.pool(floor=3)
    await pool.fill(profile())
    began, before = now(), len(factory.begun)
    long = await pool.take(profile())
    await asyncio.sleep(0.5)
    # The call lasts, and is not waited for.
    assert [when - began for when, _ in factory.begun[before:]] == [pytest.approx(PATIENCE_SECONDS)]
    # Another ends sooner, and its replacement is made at once.
    began, before = now(), len(factory.begun)
    short = await pool.take(profile())
    await asyncio.sleep(0.004)
    await short.destroy()
    await asyncio.sleep(0.5)
    assert [when - began for when, _ in factory.begun[before:]] == [pytest.approx(0.005)]
    await long.destroy()
    await pool.close()


@virtual_time
async def test_refill_is_single_flight() -> None:
    """CASES 69: 5,537 were made for a target of 500."""
    factory = Factory(pause=0.01)
    pool = factory.pool(floor=5, starts=2)
    await asyncio.gather(*(pool.fill(profile()) for _ in range(50)))
    await asyncio.gather(*(pool.fill(profile()) for _ in range(50)))
    await asyncio.sleep(1)
    assert len(factory.made) == 5
    assert factory.most_making == 1
    await pool.close()
    assert factory.living == set()


@virtual_time
async def test_what_is_in_the_making_is_not_made_again() -> None:
    factory = Factory(pause=1)
    pool = factory.pool(floor=3, starts=16)
    await pool.fill(profile())
    assert now() == pytest.approx(1)
    assert len(factory.begun) == 3
    await pool.close()


@virtual_time
async def test_never_more_than_what_is_parked_and_in_flight() -> None:
    factory = Factory()
    pool = factory.pool(floor=5, ceiling=5, starts=2)

    async def use() -> None:
        for _ in range(10):
            one = await pool.take(profile())
            await asyncio.sleep(0.001)
            await one.destroy()

    await asyncio.gather(*(use() for _ in range(20)))
    # Twenty in use, five parked, two in the making.
    assert factory.most_living <= 20 + 5 + 2
    await asyncio.sleep(1)
    assert len(factory.living) == 5
    await pool.close()
    assert factory.living == set()


@virtual_time
async def test_refill_begins_nothing_while_a_call_waits() -> None:
    factory = Factory(pause=0.1)
    pool = factory.pool(floor=8, starts=2)
    await pool.fill(profile("b"))
    for _ in range(8):
        await pool.take(profile("b"))  # which then lacks eight
    calls = [asyncio.ensure_future(pool.take(profile("a"))) for _ in range(5)]
    before = len(factory.begun)
    await asyncio.gather(*calls)
    served_at = now()
    begun = factory.begun[before:]
    assert [of.tenant for when, of in begun if when < served_at] == ["a"] * 5
    await asyncio.sleep(2)
    assert sum(one.profile.tenant == "b" for one in factory.living) == 16
    await pool.close()


@virtual_time
async def test_refill_leaves_a_slot_for_a_call() -> None:
    factory = Factory(pause=0.1)
    pool = factory.pool(floor=8, starts=4)
    filling = asyncio.ensure_future(pool.fill(profile("b")))
    await asyncio.sleep(0.05)
    assert factory.making == 2
    one = await pool.take(profile("a"))
    assert now() == pytest.approx(0.15)
    await one.destroy()
    await filling
    await pool.close()


@virtual_time
async def test_a_target_of_none_parks_none() -> None:
    factory = Factory()
    pool = factory.pool(floor=0, ceiling=0)
    taken = await pool.take(profile())
    await pool.fill(profile())
    await asyncio.sleep(1)
    assert factory.living == {taken}
    await taken.destroy()
    await pool.close()


# --- a launcher that fails ---


@virtual_time
async def test_a_launcher_that_fails_is_not_hammered(caplog: pytest.LogCaptureFixture) -> None:
    """CASES 69: a launcher that never becomes ready: at most a surge, then a pause, and a word."""
    factory = Factory()
    pool = factory.pool(floor=5, starts=2)
    one = await pool.take(profile())
    factory.fails = True
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(100)
    assert len(factory.begun) < 15
    assert [record.message for record in caplog.records] == [
        "no namespace sandbox of tenant 'a' could be parked; it is tried again: none today"
    ]
    metrics = pool.metrics()
    assert (metrics.last_error, metrics.failures) == ("none today", len(factory.begun) - 1)
    # A call is not held back by that: it tries, and gets the error.
    with pytest.raises(SandboxLost, match="none today"):
        await pool.take(profile())
    with pytest.raises(SandboxLost, match="none today"):
        await pool.fill(profile())
    factory.fails = False
    two = await pool.take(profile())
    await asyncio.sleep(1)
    assert len(factory.living) == 2 + 5
    assert pool.metrics().shelves[0].failures == 0
    await one.destroy()
    await two.destroy()
    await pool.close()
    assert factory.living == set()


@virtual_time
async def test_each_failed_start_fails_one_call() -> None:
    factory = Factory(pause=0.1)
    pool = factory.pool(floor=0, starts=2)
    factory.fails = True
    calls = [asyncio.ensure_future(pool.take(profile())) for _ in range(6)]
    await asyncio.sleep(0.15)
    factory.fails = False
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(one, SandboxLost) for one in results] == [True] * 2 + [False] * 4
    await pool.close()


@virtual_time
async def test_one_that_dies_when_it_is_made_is_a_failed_start() -> None:
    factory = Factory()
    factory.dies = True
    pool = factory.pool(floor=3, starts=2)
    with pytest.raises(SandboxLost, match="died as soon as it was made"):
        await pool.take(profile())
    await asyncio.sleep(100)
    assert len(factory.begun) < 15
    assert factory.living == set()
    await pool.close()


@virtual_time
async def test_a_destruction_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    factory = Factory()
    pool = factory.pool(floor=1)
    await pool.fill(profile())
    (one,) = factory.made

    async def destroy() -> None:
        raise OSError("busy")

    one.destroy = destroy  # type: ignore[method-assign]
    await pool.close()
    assert pool.metrics().not_destroyed == 1
    assert [record.message for record in caplog.records] == [
        "a sandbox could not be destroyed: busy"
    ]


# --- the queue ---


@virtual_time
async def test_a_burst_waits_and_nothing_fails() -> None:
    factory = Factory(pause=0.01)
    pool = factory.pool(starts=2)
    taken = await asyncio.gather(*(pool.take(profile()) for _ in range(200)))
    assert factory.most_making == 2
    assert now() == pytest.approx(1.0)
    for one in taken:
        await one.destroy()
    await pool.close()
    assert factory.living == set()


@virtual_time
async def test_beyond_the_queue_a_call_is_refused_at_once() -> None:
    factory = Factory(pause=1)
    pool = factory.pool(queue=5)
    calls = [asyncio.ensure_future(pool.take(profile())) for _ in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable) as refused:
        await pool.take(profile())
    assert now() == 0
    assert str(refused.value) == (
        "5 calls wait for a sandbox already, the limit of the queue (pool.queue); "
        "try again later, or raise it"
    )
    assert pool.metrics().refused == 1
    await asyncio.gather(*calls)
    await pool.close()


@virtual_time
async def test_a_call_waits_no_longer_than_it_may() -> None:
    factory = Factory(pause=100)
    pool = factory.pool(wait_seconds=2, starts=2, queue=10)
    calls = [asyncio.ensure_future(pool.take(profile())) for _ in range(3)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert now() == pytest.approx(2)
    assert all(isinstance(one, Unavailable) for one in results)
    assert str(results[0]) == (
        "no sandbox within 2 s (pool.wait_seconds): 3 calls wait, 2 sandboxes are in the making, "
        "2 of at most 512 are alive (pool.most_alive)"
    )
    metrics = pool.metrics()
    assert (metrics.timed_out, metrics.waiting) == (3, 0)
    # Those in the making are not lost: they are parked.
    await asyncio.sleep(150)
    assert pool.metrics().parked >= 2
    await pool.close()
    assert factory.living == set()


@virtual_time
async def test_who_has_many_calls_delays_no_other_tenant() -> None:
    factory = Factory(pause=0.1)
    pool = factory.pool(floor=0, ceiling=0, starts=2)
    many = [asyncio.ensure_future(pool.take(profile("many"))) for _ in range(100)]
    many += [asyncio.ensure_future(pool.take(profile("many", 2))) for _ in range(100)]
    await asyncio.sleep(0.05)
    await pool.take(profile("one"))
    assert now() <= 0.2 + 1e-6
    await asyncio.gather(*many)
    # And of the one tenant's profiles, neither waits for the other.
    assert [of.disk_bytes for _, of in factory.begun[5:15]] == [1, 2] * 5
    await pool.close()


@pytest.mark.parametrize("parking", [True, False])
def test_a_cancelled_call_leaves_nothing_behind(parking: bool) -> None:
    """CASES 117: what was made for a call that gave up lived on."""

    @virtual_time
    async def check() -> None:
        factory = Factory(pause=0.01)
        pool = factory.pool(floor=4 * parking, ceiling=4 * parking, starts=2)
        takers = [asyncio.ensure_future(pool.take(profile())) for _ in range(20)]
        await asyncio.sleep(0.005)
        for taker in takers:
            taker.cancel()
        await asyncio.gather(*takers, return_exceptions=True)
        assert pool.metrics().waiting == 0
        await asyncio.sleep(1)
        assert factory.making == 0
        assert len(factory.living) == pool.metrics().parked == 4 * parking
        # What was in the making for them was parked, or else destroyed.
        assert len(factory.made) == (4 if parking else 2)
        one = await pool.take(profile())
        await one.destroy()
        await pool.close()
        assert factory.living == set()

    check()


@virtual_time
async def test_a_call_cancelled_in_the_moment_it_is_served_gives_the_sandbox_back() -> None:
    factory = Factory(pause=0.01)
    pool = factory.pool(floor=1, ceiling=1, starts=1)
    first = asyncio.ensure_future(pool.take(profile()))
    second = asyncio.ensure_future(pool.take(profile()))

    def cancel_soon() -> None:
        # In the loop's next turn: the call has its sandbox then, and runs only after this.
        factory.when_made = lambda: None
        asyncio.get_running_loop().call_soon(first.cancel)

    factory.when_made = cancel_soon
    with pytest.raises(asyncio.CancelledError):
        await first
    assert pool.metrics().waiting == 0
    assert (await second) is factory.made[0]
    await factory.made[0].destroy()
    await pool.close()
    assert factory.living == set()


@virtual_time
async def test_a_call_cancelled_just_before_it_is_served_is_passed_over() -> None:
    factory = Factory(pause=0.01)
    pool = factory.pool(floor=1, ceiling=1, starts=1)
    first, second = (asyncio.ensure_future(pool.take(profile())) for _ in range(2))

    def cancel() -> None:
        factory.when_made = lambda: None
        first.cancel()

    factory.when_made = cancel
    assert (await second) is factory.made[0]
    with pytest.raises(asyncio.CancelledError):
        await first
    assert pool.metrics().waiting == 0
    await factory.made[0].destroy()
    await pool.close()
    assert factory.living == set()


# --- how many are alive ---


@virtual_time
async def test_calls_wait_where_no_more_may_be_alive() -> None:
    factory = Factory()
    pool = factory.pool(floor=0, ceiling=0, most_alive=10)
    running = 0

    async def call() -> None:
        nonlocal running
        one = await pool.take(profile())
        running += 1
        assert running <= 10
        await asyncio.sleep(0.05)
        running -= 1
        await one.destroy()

    await asyncio.gather(*(call() for _ in range(200)))
    assert factory.most_living == 10
    await pool.close()


@virtual_time
async def test_what_is_parked_gives_way_to_a_call() -> None:
    factory = Factory()
    pool = factory.pool(room=Room(8, "ulimit -n: 256 open files"), starts=2, floor=4)
    await pool.fill(profile("a"))
    taken = [await pool.take(profile("b")) for _ in range(8)]
    assert factory.most_living <= 8
    metrics = pool.metrics()
    assert (metrics.evicted_room, metrics.parked, metrics.most_alive) == (4, 0, 8)
    with pytest.raises(Unavailable, match=r"8 of at most 8 are alive \(ulimit -n: 256 open files"):
        await pool.take(profile("b"))
    for one in taken:
        await one.destroy()
    await pool.close()
    assert factory.living == set()


# --- demand ---


@virtual_time
async def test_a_burst_raises_what_is_parked_and_time_lowers_it() -> None:
    factory = Factory()
    pool = factory.pool(floor=2, ceiling=20, idle_seconds=300)

    async def burst(calls: int) -> None:
        for one in await asyncio.gather(*(pool.take(profile()) for _ in range(calls))):
            await one.destroy()
        await asyncio.sleep(1)

    await burst(1)
    assert pool.metrics().parked == 2
    await burst(8)
    assert pool.metrics().parked == 8
    before = pool.metrics().misses
    await burst(8)
    assert pool.metrics().misses == before
    await burst(100)
    assert pool.metrics().parked == 20
    for expected in (10, 5, 3):
        for _ in range(60):
            await burst(1)
        assert abs(pool.metrics().parked - expected) <= 2
    await asyncio.sleep(400)
    assert factory.living == set()
    assert pool.metrics().shelves == ()
    await pool.close()


@virtual_time
async def test_calls_one_after_the_other_need_no_more_than_the_floor() -> None:
    factory = Factory()
    pool = factory.pool(floor=2, ceiling=20)
    for _ in range(200):
        one = await pool.take(profile())
        await asyncio.sleep(0.01)
        await one.destroy()
        await asyncio.sleep(0.02)
    assert len(factory.living) == 2
    assert pool.metrics().misses == 1
    await pool.close()


# --- memory ---


@virtual_time
async def test_memory_is_bounded_for_all_profiles_together() -> None:
    factory = Factory(size=10 * MIB)
    pool = factory.pool(floor=4, memory_budget_bytes=64 * MIB)
    for tenant in "abc":
        await pool.fill(profile(tenant))
    await asyncio.sleep(10)
    # Two each; no profile takes from another what it has at its own next call.
    assert {shelf.tenant: shelf.parked for shelf in pool.metrics().shelves} == dict.fromkeys(
        "abc", 2
    )
    made = len(factory.made)
    for _ in range(10):
        for tenant in "abc":
            one = await pool.take(profile(tenant))
            await one.destroy()
            await asyncio.sleep(0.1)
    assert pool.metrics().misses == 0
    assert len(factory.made) == made + 30
    await pool.close()


@virtual_time
async def test_the_profile_used_least_recently_gives_way_first() -> None:
    factory = Factory(size=10 * MIB)
    pool = factory.pool(floor=2, memory_budget_bytes=40 * MIB)
    for tenant in "ab":
        await pool.fill(profile(tenant))
    await pool.fill(profile("c"))
    await asyncio.sleep(1)
    metrics = pool.metrics()
    assert [(shelf.tenant, shelf.parked) for shelf in metrics.shelves] == [
        ("c", 2),
        ("b", 1),
        ("a", 1),
    ]
    assert metrics.evicted_memory == 2
    assert metrics.parked_bytes == 40 * MIB
    await pool.close()


@virtual_time
async def test_a_sandbox_larger_than_the_budget_is_never_parked() -> None:
    factory = Factory(size=100 * MIB)
    pool = factory.pool(floor=4, memory_budget_bytes=64 * MIB)
    for _ in range(3):
        await (await pool.take(profile())).destroy()
        await asyncio.sleep(10)
    assert factory.living == set()
    assert len(factory.made) == 3
    await pool.close()


# --- age and idleness ---


@virtual_time
async def test_what_is_parked_too_long_is_replaced_beforehand_and_not_all_at_once() -> None:
    factory = Factory()
    pool = factory.pool(floor=8, max_age_seconds=100, idle_seconds=10_000)
    await pool.fill(profile())
    first = set(factory.made)
    counts = []
    for _ in range(100):
        await asyncio.sleep(1)
        assert pool.metrics().parked == 8
        counts.append(len(first & factory.living))
    assert counts[-1] == 0
    assert max(before - after for before, after in pairwise(counts)) < 8
    assert all(now() - one.made_at <= 100 for one in factory.living)
    assert pool.metrics().evicted_age >= 8
    await pool.close()


@virtual_time
async def test_too_old_a_sandbox_is_never_handed_out() -> None:
    factory = Factory()
    pool = factory.pool(floor=4, max_age_seconds=100, idle_seconds=10_000)
    await pool.fill(profile())
    factory.fails = True  # so that nothing can be replaced
    await asyncio.sleep(95)
    one = await pool.take(profile())
    assert one.alive
    await asyncio.sleep(10)
    with pytest.raises(SandboxLost):
        await pool.take(profile())
    assert factory.living == {one}
    await one.destroy()
    await pool.close()


@virtual_time
async def test_an_idle_profile_keeps_nothing_and_its_tenant_is_forgotten() -> None:
    factory = Factory()
    pool = factory.pool(floor=4, idle_seconds=100)
    await pool.fill(profile("a"))
    await pool.fill(profile("a", disk_bytes=2))
    await asyncio.sleep(90)
    await pool.fill(profile("b"))
    assert factory.forgotten == []
    await asyncio.sleep(30)
    assert factory.forgotten == ["a"]
    assert {one.profile.tenant for one in factory.living} == {"b"}
    metrics = pool.metrics()
    assert (metrics.evicted_idle, len(metrics.shelves)) == (8, 1)
    await asyncio.sleep(100)
    assert factory.forgotten == ["a", "b"]
    await pool.close()


@virtual_time
async def test_a_tenant_that_uses_a_sandbox_is_not_forgotten() -> None:
    factory = Factory()
    pool = factory.pool(floor=4, idle_seconds=100)
    session = await pool.take(profile())
    await asyncio.sleep(1000)
    assert factory.living == {session}
    assert factory.forgotten == []
    await session.destroy()
    await asyncio.sleep(90)
    assert factory.forgotten == []
    await asyncio.sleep(30)
    assert factory.forgotten == ["a"]
    await pool.close()


@virtual_time
async def test_a_tenant_that_comes_back_in_this_very_moment_is_not_forgotten() -> None:
    factory = Factory()
    pool = factory.pool(floor=0, ceiling=0, idle_seconds=100, profiles=1)
    await (await pool.take(profile("a"))).destroy()
    # Another profile squeezes it out; before anybody is told, it is back.
    taking = [asyncio.ensure_future(pool.take(profile(name))) for name in "ba"]
    await asyncio.gather(*taking)
    assert "a" not in factory.forgotten
    await pool.close()


@virtual_time
async def test_the_profile_used_least_is_given_up() -> None:
    factory = Factory()
    pool = factory.pool(floor=2, profiles=3)
    for tenant in "abcd":
        await pool.fill(profile(tenant))
    await asyncio.sleep(1)
    assert len(factory.living) == 6
    assert {one.profile.tenant for one in factory.living} == set("bcd")
    assert factory.forgotten == ["a"]
    await pool.close()
    assert factory.living == set()


@virtual_time
async def test_a_given_up_profile_is_not_filled_again() -> None:
    """A refill that was planned before the profile was given up parks for nobody."""
    factory = Factory()
    pool = factory.pool(floor=2, profiles=2)
    for tenant in "abcdef":
        one = await pool.take(profile(tenant))
        await one.destroy()
    await asyncio.sleep(1)
    assert {one.profile.tenant for one in factory.living} == set("ef")
    await pool.close()
    assert factory.living == set()


@virtual_time
async def test_a_pool_at_rest_wakes_nobody() -> None:
    """Nothing is left that would keep a machine from sleeping."""
    factory = Factory()
    pool = factory.pool()
    for _ in range(100):
        await (await pool.take(profile())).destroy()
    await asyncio.sleep(10)
    loop = asyncio.get_running_loop()
    assert len([timer for timer in loop._scheduled if not timer.cancelled()]) <= 2  # type: ignore[attr-defined]
    await asyncio.sleep(1000)
    assert len([timer for timer in loop._scheduled if not timer.cancelled()]) <= 1  # type: ignore[attr-defined]
    await pool.close()


# --- closing ---


@virtual_time
async def test_closing_while_one_is_made() -> None:
    factory = Factory(pause=0.02)
    pool = factory.pool(floor=3)
    filling = asyncio.ensure_future(pool.fill(profile()))
    waiting = asyncio.ensure_future(pool.take(profile("b")))
    await asyncio.sleep(0.005)
    await pool.close()
    for one in (filling, waiting):
        with pytest.raises(Unavailable, match="closed"):
            await one
    await asyncio.sleep(1)
    assert factory.living == set()
    assert factory.making == 0


@virtual_time
async def test_closing_does_not_wait_for_a_start_that_hangs() -> None:
    factory = Factory(pause=1000)
    pool = factory.pool()
    waiting = asyncio.ensure_future(pool.take(profile()))
    await asyncio.sleep(0)
    await pool.close()
    assert now() < 2
    with pytest.raises(Unavailable, match="closed"):
        await waiting
    assert factory.making == 0


@virtual_time
async def test_nothing_is_made_after_the_end() -> None:
    factory = Factory()
    pool = factory.pool(floor=3)
    one = await pool.take(profile())
    await pool.close()
    begun = len(factory.begun)
    await one.destroy()
    for attempt in (pool.take, pool.fill):
        with pytest.raises(Unavailable, match="closed"):
            await attempt(profile())
    await asyncio.sleep(1000)
    assert len(factory.begun) == begun
    assert factory.living == set()


@virtual_time
async def test_closing_waits_until_all_are_gone() -> None:
    factory = Factory(destroying=5)
    pool = factory.pool(floor=5, ceiling=5)
    await pool.fill(profile("a"))
    await pool.fill(profile("b"))
    assert len(factory.living) == 10
    await pool.close()
    assert factory.living == set()
    await pool.close()


# --- what is to be seen of it ---


@virtual_time
async def test_its_state_is_visible() -> None:
    factory = Factory()
    pool = factory.pool(floor=2)
    await pool.fill(profile())
    await pool.take(profile())
    assert repr(pool) == (
        "<Pool 1 profiles: 1 parked, 0 in the making, 2 alive | 0 waiting | 1 hits, 0 misses>"
    )
    (shelf,) = pool.metrics().shelves
    assert (shelf.tenant, shelf.target, shelf.allotted, shelf.parked) == ("a", 2, 2, 1)
    assert (shelf.in_use, shelf.waiting, shelf.parked_bytes) == (1, 0, 2 * MIB)
    metrics = pool.metrics()
    assert metrics.refills == 2
    assert metrics.refill_seconds_max == pytest.approx(0.005)
    assert metrics.refill_seconds == pytest.approx(0.01)
    await pool.close()
    assert "0 parked" in repr(pool)
