"""Whose turn it is: capacity is shared between tenants, not between calls.

A free place goes to the tenant that holds the fewest, and among those to the one that was served
longest ago; within a tenant the first call comes first. No tenant may hold all places, so a burst
of one never makes another wait for an end of its programs.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from stockade.port import Refused


class Turns:
    """Places for calls. ``share``: the part of them that one tenant may hold."""

    def __init__(self, places: int = 0, *, share: float = 0.75, most_waiting: int = 10_000) -> None:
        self._places = places
        self._share = share
        self._most_waiting = most_waiting
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._served: dict[str, int] = {}
        self._clock = count(1)

    def __repr__(self) -> str:
        return f"<Turns: {self.held} of {self._places} held, {self.waiting} waiting>"

    @property
    def held(self) -> int:
        """Places that are taken."""
        return self._held.total()

    @property
    def waiting(self) -> int:
        """Calls that wait."""
        return sum(map(len, self._waiting.values()))

    def resize(self, places: int) -> None:
        """There are more places, or fewer: nothing that has one loses it."""
        self._places = places
        self._grant()

    @asynccontextmanager
    async def turn(self, tenant: str, patience: float) -> AsyncIterator[None]:
        """A place for one call. Raises :class:`~stockade.port.Refused` when none came in time."""
        await self._take(tenant, patience)
        try:
            yield
        finally:
            self._release(tenant)

    async def _take(self, tenant: str, patience: float) -> None:
        if self.waiting >= self._most_waiting:
            raise Refused("unavailable", f"{self.waiting} calls wait already; try again later", 1.0)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(place)
        self._grant()
        try:
            async with asyncio.timeout(patience):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self._release(tenant)
            else:
                self._forget(tenant, place)
            if isinstance(error, TimeoutError):
                raise Refused(
                    "unavailable", f"no executor had a place for it within {patience:g} s", patience
                ) from None
            raise

    def _release(self, tenant: str) -> None:
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
            if tenant not in self._waiting:
                self._served.pop(tenant, None)
        self._grant()

    def _forget(self, tenant: str, place: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant)
        if queue is not None and place in queue:
            queue.remove(place)
            if not queue:
                del self._waiting[tenant]

    def _grant(self) -> None:
        most = self._most_of_one()
        while self.held < self._places:
            allowed = [tenant for tenant in self._waiting if self._held[tenant] < most]
            if not allowed:
                return
            tenant = min(allowed, key=lambda name: (self._held[name], self._served.get(name, 0)))
            queue = self._waiting[tenant]
            place = queue.popleft()
            if not queue:
                del self._waiting[tenant]
            if place.done():
                continue
            self._held[tenant] += 1
            self._served[tenant] = next(self._clock)
            place.set_result(None)

    def _most_of_one(self) -> int:
        if self._places <= 1:
            return self._places
        return min(max(1, int(self._places * self._share)), self._places - 1)
