"""What the pool knows of one profile."""

import asyncio
from collections import deque
from typing import NamedTuple

from stockade.executor.pool.demand import Demand
from stockade.executor.sandbox import Profile, Sandbox

Call = asyncio.Future[Sandbox]
"""A call that waits for a sandbox."""


class Parked(NamedTuple):
    """A sandbox that waits for a call. Times are of the event loop's clock."""

    sandbox: Sandbox
    size: int
    """Its memory in bytes, by the tier's estimate."""
    replace_at: float
    """From then on a younger one is made in its place; different for each."""
    expires_at: float
    """From then on it is not handed out any more."""


class Shelf:
    """One profile: what is parked of it, in the making, in use, and who waits for one."""

    __slots__ = (
        "alive",
        "demand",
        "ended_at",
        "failures",
        "filled",
        "in_use",
        "making",
        "not_before",
        "parked",
        "profile",
        "retry",
        "size",
        "taken_at",
        "waiting",
    )

    def __init__(self, profile: Profile, demand: Demand) -> None:
        self.profile = profile
        self.demand = demand
        self.parked: deque[Parked] = deque()  # the oldest first
        self.waiting: deque[Call] = deque()  # in the order of their arrival
        self.in_use: set[Sandbox] = set()
        self.making = 0
        self.alive = 0
        """Parked, in the making, in use, and being destroyed."""
        self.size = 0
        """Bytes of the largest that came up; 0 until there was one."""
        self.taken_at = 0.0
        """When a call last wanted a sandbox,"""
        self.ended_at = 0.0
        """and when one that a call had was last released."""
        self.failures = 0
        """Starts that failed since the last one that did not."""
        self.not_before = 0.0
        """Until then nothing is refilled, because starts fail."""
        self.retry: asyncio.TimerHandle | None = None
        self.filled: asyncio.Future[None] | None = None
        """Done when the refill that goes on has come to its end."""

    def __repr__(self) -> str:
        return (
            f"<Shelf {self.profile.tier} {self.profile.tenant}: {len(self.parked)} parked, "
            f"{self.making} in the making, {len(self.in_use)} in use, "
            f"{len(self.waiting)} waiting>"
        )

    @property
    def short(self) -> bool:
        """Whether calls wait for which no sandbox is in the making."""
        return len(self.waiting) > self.making

    def fresh(self, now: float) -> int:
        """How many are parked that need not be replaced yet."""
        return sum(each.replace_at > now for each in self.parked)

    def settle(self, error: BaseException | None = None) -> None:
        """Tell who waits for the refill that it has come to its end."""
        filled, self.filled = self.filled, None
        if filled is None or filled.done():
            return
        if error is None:
            filled.set_result(None)
        else:
            filled.set_exception(error)
            filled.exception()  # who waited may have gone
