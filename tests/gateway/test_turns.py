"""One tenant's burst does not make another wait."""

import asyncio

import pytest

from stockade.gateway.turns import Turns
from stockade.port import Refused


async def _hold(turns: Turns, tenant: str, log: list[str], until: asyncio.Event) -> None:
    async with turns.turn(tenant, 10):
        log.append(tenant)
        await until.wait()


async def test_a_tenant_never_holds_every_place() -> None:
    """Another one's call is served although not one program of the burst ends."""
    turns, never = Turns(4), asyncio.Event()
    log: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        burst = [tasks.create_task(_hold(turns, "loud", log, never)) for _ in range(50)]
        await asyncio.sleep(0)
        assert log == ["loud"] * 3
        other = tasks.create_task(_hold(turns, "quiet", log, never))
        await asyncio.sleep(0.01)
        assert log[-1] == "quiet"
        assert repr(turns) == "<Turns: 4 of 4 held, 47 waiting>"
        for task in (*burst, other):
            task.cancel()
    assert repr(turns) == "<Turns: 0 of 4 held, 0 waiting>"


async def test_free_places_go_round_the_tenants() -> None:
    """Five calls of a tenant come in before its neighbours' first: they do not go first."""
    turns, go = Turns(2), asyncio.Event()
    log: list[str] = []

    async def call(tenant: str) -> None:
        async with turns.turn(tenant, 10):
            log.append(tenant)
            await asyncio.sleep(0)

    blocked = asyncio.create_task(_hold(turns, "x", [], go))
    await asyncio.sleep(0)
    names = ["a"] * 5 + ["b", "c", "b", "c"]
    await asyncio.gather(*(call(name) for name in names))
    go.set()
    await blocked
    assert log[:3] == ["a", "b", "c"]
    assert set(log[3:6]) == {"a", "b", "c"}


async def test_who_gave_up_leaves_no_trace() -> None:
    """A place that was given in the moment of leaving goes to the next."""
    turns, go = Turns(1), asyncio.Event()
    first = asyncio.create_task(_hold(turns, "a", [], go))
    await asyncio.sleep(0)
    second = asyncio.create_task(_hold(turns, "b", [], go))
    third = asyncio.create_task(_hold(turns, "c", [], go))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    second.cancel()
    go.set()
    await third
    assert (turns.held, turns.waiting) == (0, 0)


async def test_nobody_waits_for_ever() -> None:
    """It hears when to try again."""
    turns = Turns(0)
    with pytest.raises(Refused) as refused:
        async with turns.turn("a", 0.01):
            pass
    assert refused.value.code == "unavailable"
    assert refused.value.retry_after
    assert turns.waiting == 0
