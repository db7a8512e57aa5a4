"""A pool over sandboxes that are none, on a clock that jumps to whatever comes next."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from stockade.executor.descriptors import Room
from stockade.executor.pool import Pool, PoolPolicy
from stockade.executor.sandbox import Profile, Sandbox
from stockade.port import MIB, SandboxLost, Tier


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps: the time that it was to sleep has passed at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen: everybody waits"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on only when nothing is left to do."""

    def __init__(self) -> None:
        self.selector = _JumpingSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a virtual loop: seconds pass in no time, always in the same order."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(asyncio.wait_for(test(*args, **kwargs), 100_000))

    return run


def now() -> float:
    return asyncio.get_running_loop().time()


def profile(tenant: str = "a", disk_bytes: int = 1, tier: Tier = Tier.NAMESPACE) -> Profile:
    return Profile(tier, tenant, disk_bytes, 1, 1.0, 0, 1, 1)


class FakeBoundary:
    """As much of one as a pool sees."""

    def __init__(self, parked_bytes: int) -> None:
        self.parked_bytes = parked_bytes
        self.paused = False

    def pause(self) -> None:
        """It is parked."""
        assert not self.paused
        self.paused = True

    def resume(self) -> None:
        """It was taken."""
        assert self.paused
        self.paused = False


class FakeSandbox:
    """Lives from its making to its end, and knows its maker."""

    def __init__(self, factory: "Factory", made_for: Profile) -> None:
        self.factory = factory
        self.profile = made_for
        self.alive = True
        self.made_at = now()
        self.destroyed = 0
        self.boundary = FakeBoundary(factory.size)
        self._at_release: Callable[[], None] = lambda: None

    def at_release(self, callback: Callable[[], None]) -> None:
        self._at_release = callback
        self.factory.when_made()

    async def destroy(self) -> None:
        self.alive = False
        await asyncio.sleep(self.factory.destroying)
        self.destroyed += 1
        self.factory.living.discard(self)
        self._at_release()


class Factory:
    """Makes sandboxes, and knows which live and how many were in the making at once."""

    def __init__(
        self, pause: float = 0.005, size: int = 2 * MIB, destroying: float = 0.001
    ) -> None:
        self.pause = pause
        self.size = size
        self.destroying = destroying
        self.living: set[FakeSandbox] = set()
        self.made: list[FakeSandbox] = []
        self.begun: list[tuple[float, Profile]] = []
        """When each start was begun, and of what."""
        self.making = 0
        self.most_making = 0
        self.most_living = 0
        self.fails = False
        self.dies = False
        self.forgotten: list[str] = []
        self.when_made: Callable[[], object] = lambda: None
        """Called just before the pool does anything with a sandbox that came up."""

    async def create(self, wanted: Profile) -> Sandbox:
        self.begun.append((now(), wanted))
        self.making += 1
        self.most_making = max(self.most_making, self.making)
        self.most_living = max(self.most_living, len(self.living) + self.making)
        try:
            await asyncio.sleep(self.pause)
        finally:
            self.making -= 1
        if self.fails:
            raise SandboxLost("none today")
        sandbox = FakeSandbox(self, wanted)
        self.made.append(sandbox)
        self.living.add(sandbox)
        if self.dies:
            sandbox.alive = False
        return sandbox  # type: ignore[return-value]

    async def forget(self, tenant: str) -> None:
        self.forgotten.append(tenant)

    def pool(self, room: Room | None = None, **policy: Any) -> "FakePool":
        return FakePool(self.create, PoolPolicy(**policy), forget=self.forget, room=room)


class FakePool(Pool):
    """The pool under test, over fakes."""

    async def take(self, profile: Profile) -> Any:
        return await super().take(profile)
