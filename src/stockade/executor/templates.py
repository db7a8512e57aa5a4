"""Snapshots to start sandboxes from: one for each profile, made once, and anew when it is damaged."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from stockade.executor.sandbox import Profile
from stockade.port import StockadeError, Unavailable

# Each takes memory, and tenants come and go.
MOST_TEMPLATES: Final = 16
SUSPECT: Final = 2
"""After so many failures in a row a snapshot is made anew."""


class TemplateDamaged(Unavailable):
    """No guest will be started from it any more: another one is to be made."""


class Removable(Protocol):
    """A template, as far as it is kept here."""

    def remove(self) -> None:
        """Remove its files; guests that were started live on."""
        ...


T = TypeVar("T", bound=Removable)


@dataclass(slots=True)
class _Kept(Generic[T]):
    """A template that is being made, or was."""

    making: asyncio.Task[T]
    users: int = 0
    """Who waits for it, or starts a sandbox from its files."""
    failures: int = 0
    """Starts from it that failed since one did not."""

    @property
    def failed(self) -> bool:
        """Whether it could not be made."""
        return self.making.done() and (
            self.making.cancelled() or self.making.exception() is not None
        )


class Templates(Generic[T]):
    """The templates of one tier, by what they are made for; those used last are kept."""

    def __init__(self, make: Callable[[Profile], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._kept: dict[Profile, _Kept[T]] = {}  # in order of last use

    def __len__(self) -> int:
        return len(self._kept)

    @asynccontextmanager
    async def use(self, profile: Profile) -> AsyncIterator[T]:
        """The profile's, begun by whoever asks first. It stays while it is used.

        What the user fails with counts against the template, if it is a :class:`StockadeError`.
        """
        kept = self._keep(profile)
        kept.users += 1
        try:
            template = await asyncio.shield(kept.making)
            try:
                yield template
            except StockadeError as error:
                kept.failures += SUSPECT if isinstance(error, TemplateDamaged) else 1
                raise
            kept.failures = 0
        finally:
            kept.users -= 1

    def forget(self, tenant: str) -> None:
        """Remove the tenant's, but one from which a sandbox is being started."""
        for profile in [each for each in self._kept if each.tenant == tenant]:
            self._remove_unless_used(profile)

    async def close(self) -> None:
        """Remove those that were made, and stop making others."""
        making = [kept.making for kept in self._kept.values()]
        for task in making:
            task.cancel()
        if making:
            await asyncio.wait(making)
        for task in making:
            # Of a failure whoever waited for it has heard, or is gone.
            if not task.cancelled() and task.exception() is None:
                task.result().remove()
        self._kept.clear()

    def _keep(self, profile: Profile) -> _Kept[T]:
        """A failure to make one is tried again by the next who asks."""
        kept = self._kept.pop(profile, None)
        if kept is not None and kept.failures >= SUSPECT and not kept.users:
            # It may be the snapshot that was damaged: another is made.
            kept.making.result().remove()
            kept = None
        if kept is None or kept.failed:
            kept = _Kept(asyncio.create_task(self._make(profile)))
        self._kept[profile] = kept
        for other in list(self._kept)[:-MOST_TEMPLATES]:
            self._remove_unless_used(other)
        return kept

    def _remove_unless_used(self, profile: Profile) -> None:
        old = self._kept[profile]
        if old.making.done() and not old.users:
            del self._kept[profile]
            if not old.failed:
                old.making.result().remove()
