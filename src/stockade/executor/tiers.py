"""The tiers of one executor: opening them, and choosing among them."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from stockade.executor.cgroups import CgroupError
from stockade.executor.resources import Resources
from stockade.executor.sandbox import Profile, Sandbox
from stockade.port import SandboxRequest, StockadeError, Tier, Unavailable
from stockade.port.policy import (
    DEDICATED,
    OF_LANGUAGES,
    WEAKEST,
    candidates,
    named_by_offer,
    refusal,
)

LEFT_OUT = "this executor was opened without it"
_EMULATED = "it runs in software emulation here, which is no boundary: it serves who names it"


class TierDriver(Protocol):
    """A tier that was opened: it makes sandboxes. Whoever opened it closes it."""

    @property
    def tier(self) -> Tier:
        """Which one it is."""
        ...

    @property
    def emulated(self) -> bool:
        """Whether its machines are software's, which is no boundary.

        It serves who names it, in the request or as the executor's only tier.
        """
        ...

    async def create(self, profile: Profile) -> Sandbox:
        """A sandbox that has proven its walls. Raises :class:`Unavailable` or SandboxLost."""
        ...

    async def forget(self, tenant: str) -> None:
        """Give up what is kept for a tenant without any sandbox; a call may come meanwhile."""
        ...

    async def close(self) -> None:
        """End all that it started, sandboxes included."""
        ...


Opener = Callable[[], Coroutine[object, object, TierDriver]]
"""Opens a tier, or raises :class:`Unavailable` with what is missing and how to get it.

It leaves nothing when it raises or is cancelled. A host that fails under it
(:class:`StockadeError`, :class:`CgroupError`, ``OSError``) makes the tier missing as well;
anything else is a fault, which is raised to whoever asks for the tier.
"""


class Tiers:
    """Each is opened once, when it is first wanted; one that cannot be stays missing.

    The strongest that may serve a request does. A tier that is still being opened is waited
    for where it may be that one, and nowhere else.
    """

    def __init__(self, openers: Mapping[Tier, Opener], resources: Resources) -> None:
        self._openers = openers
        self._resources = resources
        self._opening: dict[Tier, asyncio.Task[None]] = {}
        self._drivers: dict[Tier, TierDriver] = {}
        self._named = named_by_offer(openers)
        self._missing = {tier: LEFT_OUT for tier in Tier if tier not in openers}
        self._stopped = False

    def __repr__(self) -> str:
        parts = [f"{tier} open" for tier in self._drivers]
        parts += [f"{tier} missing" for tier in self._missing]
        return f"<Tiers {', '.join(parts)}>"

    def open_ahead(self) -> None:
        """Begin to open all of them, but those that only whoever names them is served by."""
        for tier in self._openers:
            if tier not in DEDICATED and tier not in OF_LANGUAGES:
                self._begin(tier)

    async def choose(self, wanted: SandboxRequest) -> TierDriver:
        """The strongest that may serve the request. Raises :class:`Unavailable`."""
        missing: dict[Tier, str] = {}
        for tier in candidates(wanted.trust, wanted.tier or self._named):
            driver = self._drivers.get(tier)
            if driver is None and tier not in self._missing:
                await self._settle(self._begin(tier))
                driver = self._drivers.get(tier)
            if driver is None:
                missing[tier] = self._missing[tier]
            elif driver.emulated and not self._names(wanted, tier):
                missing[tier] = _EMULATED
            else:
                return driver
        raise Unavailable(refusal(wanted.trust, wanted.tier, missing), missing)

    def _names(self, wanted: SandboxRequest, tier: Tier) -> bool:
        """Whether it is named, by the request or by having no other.

        A level that no other tier may serve says nothing of that: it asks for the boundary.
        """
        if wanted.tier is not None:
            return wanted.tier is tier
        return len(self._openers) == 1 and WEAKEST[wanted.trust] not in DEDICATED

    def opened(self, tier: Tier) -> TierDriver:
        """The driver of a tier that was chosen before."""
        return self._drivers[tier]

    async def forget(self, tenant: str) -> None:
        """Tell every tier of a tenant that has no sandbox any more, and will hardly want one."""
        for driver in list(self._drivers.values()):
            await driver.forget(tenant)

    async def wait_for_one(self, tiers: Sequence[Tier]) -> dict[Tier, str]:
        """Wait until one of these is open; else why each of them is missing.

        Where none is being opened, they are tried in their order.
        """
        waiting = list(tiers)
        while waiting:
            if any(tier in self._drivers for tier in waiting):
                return {}
            waiting = [tier for tier in waiting if tier not in self._missing]
            begun = [self._opening[tier] for tier in waiting if tier in self._opening]
            if waiting:
                await self._settle(*(begun or [self._begin(waiting[0])]))
        return {tier: self._missing[tier] for tier in tiers}

    def stop(self) -> None:
        """Open nothing more. Whoever waits for a tier is refused."""
        self._stopped = True
        for task in self._opening.values():
            task.cancel()

    async def close(self) -> None:
        """End every tier, and give back what they shared."""
        self.stop()
        if self._opening:
            await asyncio.wait(self._opening.values())
        # Each is closed, also when another one's end fails.
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._resources.close)
            for driver in self._drivers.values():
                stack.push_async_callback(driver.close)

    def _begin(self, tier: Tier) -> asyncio.Task[None]:
        if tier not in self._opening:
            if self._stopped:
                raise Unavailable("the environment is closed")
            self._opening[tier] = asyncio.create_task(self._open(tier))
        return self._opening[tier]

    async def _open(self, tier: Tier) -> None:
        try:
            self._drivers[tier] = await self._openers[tier]()
        except (StockadeError, CgroupError, OSError) as error:
            self._missing[tier] = str(error)

    async def _settle(self, *tasks: asyncio.Task[None]) -> None:
        """Wait for one of them. It goes on when the waiter is cancelled."""
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.cancelled():
                raise Unavailable("the environment is closed")
            task.result()
