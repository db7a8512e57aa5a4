"""No cgroup at all: nothing is kept, and it says so."""

import asyncio
from collections.abc import Callable

from stockade.executor.cgroups.tree import CgroupUsage, GuestCeilings, check_name, enforcement_of
from stockade.port import Enforcement


class NoCgroup:
    """Keeps nothing and counts nothing."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def join_fds(self) -> list[int]:
        """Nothing to enter."""
        return []

    def close_fds(self) -> None:
        """Nothing is open."""

    def set_ceilings(self, limits: GuestCeilings) -> None:
        """Nothing is kept; ``enforcement`` of the tree says so."""

    def open_counters(self) -> None:
        """There is none."""

    def usage(self) -> CgroupUsage:
        """Nothing is counted."""
        return CgroupUsage()

    def watch_oom(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """There is no ceiling that could be reached."""

    def empty(self) -> bool:
        """No process is ever in it."""
        return True

    def kill(self) -> None:
        """No process is ever in it."""

    async def remove(self, patience: float = 2.0) -> None:
        """Nothing was made."""


class NoTree:
    """A host without usable cgroups."""

    def __init__(self, reasons: list[str], remedies: list[str]) -> None:
        self.reasons = reasons
        self.remedies = remedies
        self.leftovers: list[str] = []

    @property
    def description(self) -> str:
        """What is missing and why."""
        return "no cgroups: " + "; ".join(self.reasons)

    def enforcement(self) -> dict[str, Enforcement]:
        """Everything is absent."""
        return enforcement_of(())

    def create(self, name: str, limits: GuestCeilings, *, everywhere: bool = False) -> NoCgroup:
        """Make nothing."""
        check_name(name)
        return NoCgroup(name)

    def close(self) -> None:
        """Nothing was made."""

    def __repr__(self) -> str:
        return "<NoTree>"
