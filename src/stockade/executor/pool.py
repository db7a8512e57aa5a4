"""Sandboxes started ahead of need. Each serves once."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from stockade.executor.sandbox import Profile, Sandbox
from stockade.port import StockadeError

_PATIENCE_SECONDS = 0.02

Create = Callable[[Profile], Awaitable[Sandbox]]


@dataclass(slots=True)
class _Shelf:
    """The parked sandboxes of one profile."""

    parked: deque[Sandbox] = field(default_factory=deque)
    refill: asyncio.Task[None] | None = None


class Pool:
    """Keeps ``target`` sandboxes parked for each of the last ``profiles`` profiles used.

    A call that finds none gets one made for it alone; it never waits for the refill, and
    no sandbox ever comes back.
    """

    def __init__(self, create: Create, target: int, profiles: int = 8) -> None:
        self._create = create
        self._target = target
        self._profiles = profiles
        self._shelves: dict[Profile, _Shelf] = {}  # in order of last use
        self._endings: set[asyncio.Task[None]] = set()
        self._closed = False
        self.hits = 0
        self.misses = 0

    def __repr__(self) -> str:
        parked = sum(len(shelf.parked) for shelf in self._shelves.values())
        return (
            f"<Pool {len(self._shelves)} profiles, {parked} parked | "
            f"{self.hits} hits, {self.misses} misses>"
        )

    async def take(self, profile: Profile) -> Sandbox:
        """A sandbox that has run nothing yet. It is the caller's to destroy."""
        shelf = self._use(profile)
        while shelf.parked:
            sandbox = shelf.parked.popleft()
            if sandbox.alive:
                self.hits += 1
                self._plan_fill(profile)
                return sandbox
            self.dispose(sandbox)
        self.misses += 1
        sandbox = await self._create(profile)
        self._plan_fill(profile)
        return sandbox

    async def fill(self, profile: Profile) -> None:
        """Wait until ``target`` sandboxes of the profile are parked. Raises what creation raises."""
        shelf = self._use(profile)
        while len(shelf.parked) < self._target:
            self._fill(profile, shelf)
            if shelf.refill is None:
                return
            await asyncio.shield(shelf.refill)

    def dispose(self, sandbox: Sandbox) -> None:
        """Destroy a sandbox in the background; ``close`` waits for it."""
        task = asyncio.create_task(sandbox.destroy())
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def close(self) -> None:
        """Destroy all that is parked."""
        self._closed = True
        for shelf in self._shelves.values():
            if shelf.refill is not None:
                shelf.refill.cancel()
                with contextlib.suppress(asyncio.CancelledError, StockadeError):
                    await shelf.refill
        for shelf in self._shelves.values():
            while shelf.parked:
                self.dispose(shelf.parked.popleft())
        self._shelves.clear()
        await asyncio.gather(*self._endings)

    def _use(self, profile: Profile) -> _Shelf:
        shelf = self._shelves.pop(profile, None) or _Shelf()
        self._shelves[profile] = shelf
        for other in list(self._shelves)[: -self._profiles]:
            old = self._shelves[other]
            if old.refill is None:
                del self._shelves[other]
                while old.parked:
                    self.dispose(old.parked.popleft())
        return shelf

    def refill(self, profile: Profile) -> None:
        """Replace what was taken: the call that took it is over."""
        shelf = self._shelves.get(profile)
        if shelf is not None:
            self._fill(profile, shelf)

    def _plan_fill(self, profile: Profile) -> None:
        # Making a sandbox takes a core for milliseconds, of which the call that goes on
        # now is in more need. A call that lasts must not keep the pool empty, though.
        asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self.refill, profile)

    def _fill(self, profile: Profile, shelf: _Shelf) -> None:
        if self._target and shelf.refill is None and not self._closed:
            shelf.refill = asyncio.create_task(self._refill(profile, shelf))

    async def _refill(self, profile: Profile, shelf: _Shelf) -> None:
        try:
            while len(shelf.parked) < self._target and not self._closed:
                shelf.parked.append(await self._create(profile))
        finally:
            shelf.refill = None
