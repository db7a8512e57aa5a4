"""One zygote per tenant, however its calls and its end meet."""

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from stockade.executor.namespace import zygotes as module
from stockade.executor.namespace.identity import IdentitySlice
from stockade.executor.namespace.zygotes import Zygotes
from stockade.port import Unavailable

pytestmark = pytest.mark.plain_user


class FakeZygote:
    """Takes a moment to start, and another to end."""

    living: ClassVar[set[object]] = set()
    started = 0
    fails = False

    def __init__(self, identity: IdentitySlice) -> None:
        self.identity = identity
        self.dead = False

    @classmethod
    async def start(
        cls, image: object, identity: Any, preloaded: object, boot: str
    ) -> "FakeZygote":
        await asyncio.sleep(0.01)
        if cls.fails:
            raise Unavailable("none today")
        cls.started += 1
        zygote = cls(identity)
        cls.living.add(zygote)
        return zygote

    async def end(self) -> None:
        self.dead = True
        await asyncio.sleep(0.01)
        self.living.discard(self)


class FakeIdentities:
    """Slices, and how many are out."""

    def __init__(self) -> None:
        self.out: list[IdentitySlice] = []

    def slice(self) -> IdentitySlice:
        self.out.append(IdentitySlice(1000 * len(self.out), 10))
        return self.out[-1]

    def give_back(self, taken: IdentitySlice) -> None:
        assert not taken.in_use
        self.out.remove(taken)


@pytest.fixture
def zygotes(monkeypatch: pytest.MonkeyPatch) -> Zygotes:
    monkeypatch.setattr(module, "Zygote", FakeZygote)
    monkeypatch.setattr(FakeZygote, "living", set())
    monkeypatch.setattr(FakeZygote, "started", 0)
    monkeypatch.setattr(FakeZygote, "fails", False)
    return Zygotes(SimpleNamespace(), FakeIdentities(), ())  # type: ignore[arg-type]


async def test_first_calls_at_the_same_time_share_one(zygotes: Zygotes) -> None:
    got = await asyncio.gather(*(zygotes.get("a") for _ in range(10)), zygotes.get("b"))
    assert len(set(map(id, got))) == FakeZygote.started == 2
    await zygotes.close()
    assert FakeZygote.living == set()


async def test_a_failed_start_is_tried_again_by_the_next(zygotes: Zygotes) -> None:
    FakeZygote.fails = True
    got = await asyncio.gather(*(zygotes.get("a") for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in got] == ["none today"] * 3
    FakeZygote.fails = False
    assert (await zygotes.get("a")) in FakeZygote.living
    await zygotes.close()


async def test_a_forgotten_tenants_ends(zygotes: Zygotes) -> None:
    await zygotes.get("a")
    await zygotes.forget("a")
    assert FakeZygote.living == set()
    await zygotes.forget("a")
    await zygotes.forget("never seen")
    assert (await zygotes.get("a")) in FakeZygote.living
    await zygotes.close()


async def test_one_that_is_in_use_stays(zygotes: Zygotes) -> None:
    zygote = await zygotes.get("a")
    offset = zygote.identity.acquire()
    await zygotes.forget("a")
    assert await zygotes.get("a") is zygote
    zygote.identity.release(offset)
    await zygotes.forget("a")
    assert FakeZygote.living == set()


@pytest.mark.parametrize("first", ["forget", "get"])
async def test_a_call_that_comes_with_the_end_gets_one_that_lives(
    zygotes: Zygotes, first: str
) -> None:
    """Whatever comes first, no call has a zygote that is ended under it."""

    async def call() -> None:
        zygote = await zygotes.get("a")
        offset = zygote.identity.acquire()  # as the tier does, in the same turn
        await asyncio.sleep(0.005)
        assert zygote in FakeZygote.living
        zygote.identity.release(offset)

    for turns in range(12):
        await zygotes.get("a")
        tasks = [zygotes.forget("a"), *(call() for _ in range(3))]
        if first == "get":
            tasks.reverse()
        running = []
        for task in tasks:
            running.append(asyncio.ensure_future(task))
            for _ in range(turns):
                await asyncio.sleep(0.001)
        await asyncio.gather(*running)
        assert len(FakeZygote.living) <= 1
    await zygotes.close()
    assert FakeZygote.living == set()
