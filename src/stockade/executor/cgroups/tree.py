"""What every kind of cgroup tree offers, and the data that goes in and out."""

import asyncio
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from stockade.port import Enforcement

CPU_PERIOD_MICROSECONDS = 100_000
# Names that the trees use for themselves.
RESERVED_NAMES = frozenset({"executor", "probe"})

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class CgroupError(Exception):
    """A cgroup could not be made, set, read or removed; the message names the path and why."""


@dataclass(frozen=True, slots=True)
class GuestCeilings:
    """The limits that a cgroup keeps for all processes of one sandbox together."""

    memory_bytes: int
    processes: int
    cpus: float


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """Counters since the cgroup was made. ``None`` where this kernel does not count."""

    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    peak_processes: int | None = None
    oom_kills: int = 0
    """Processes killed because the memory ceiling was reached."""
    pids_refused: int = 0
    """Processes and threads that were not started because of the ceiling on them."""


class GuestCgroup(Protocol):
    """The cgroups of one sandbox."""

    @property
    def name(self) -> str:
        """The name it was created under."""
        ...

    def join_fds(self) -> list[int]:
        """Descriptors of ``cgroup.procs``, one per hierarchy: write ``0`` to each to enter.

        They must be closed in the guest before its program runs.  The same ones are
        returned until :meth:`close_fds`.
        """
        ...

    def close_fds(self) -> None:
        """Close what :meth:`join_fds` opened. What was inherited elsewhere stays open there."""
        ...

    def set_ceilings(self, limits: GuestCeilings) -> None:
        """Change the ceilings. Raises :class:`CgroupError` where one cannot be set."""
        ...

    def open_counters(self) -> None:
        """Open what ``usage`` reads, so that reading takes the less time when it is urgent."""
        ...

    def usage(self) -> CgroupUsage:
        """Read the counters."""
        ...

    def watch_oom(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever the memory ceiling could not be kept without a kill.

        It may be called more than once, and before ``usage().oom_kills`` has grown.
        Watching ends with :meth:`remove`.
        """
        ...

    def empty(self) -> bool:
        """Whether no process is in it. Zombies do not count."""
        ...

    def kill(self) -> None:
        """SIGKILL everything inside, as a second net; does not wait for it to be gone."""
        ...

    async def remove(self, patience: float = 2.0) -> None:
        """Stop watching, close every descriptor, remove it.

        Tries for ``patience`` seconds while the kernel says it is busy, then raises
        :class:`CgroupError` with the path. May be called again.
        """
        ...


class CgroupTree(Protocol):
    """One executor's place for cgroups."""

    @property
    def description(self) -> str:
        """One line for people: which kind, where, what is missing and why."""
        ...

    @property
    def remedies(self) -> list[str]:
        """What to type to get the limits that are missing."""
        ...

    @property
    def leftovers(self) -> list[str]:
        """What a dead executor left and could not be removed, one sentence each."""
        ...

    def enforcement(self) -> dict[str, Enforcement]:
        """Field of ``Limits`` to how this tree keeps it."""
        ...

    def create(self, name: str, limits: GuestCeilings, *, everywhere: bool = False) -> GuestCgroup:
        """Make the cgroups of one sandbox. Raises :class:`CgroupError`; leaves nothing then.

        ``everywhere``: in each hierarchy, also in one that has no limit to keep.
        """
        ...

    def close(self) -> None:
        """Kill and remove everything below. Raises :class:`CgroupError` if something stays."""
        ...


def enforcement_of(kept: Collection[str]) -> dict[str, Enforcement]:
    """Spell out every limit that cgroups can keep, given those that they do keep."""
    return {
        field: Enforcement.ENFORCED if field in kept else Enforcement.ABSENT
        for field in ("memory_bytes", "processes", "cpu_seconds", "cpus")
    }


def check_name(name: str) -> None:
    """Refuse what is not one plain path component, or is ours."""
    if not _NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise CgroupError(f"{name!r} is not a name for a cgroup")


def cpu_quota(cpus: float) -> int:
    """Microseconds of CPU time per period. Below 1000 the kernel refuses."""
    return max(1000, round(cpus * CPU_PERIOD_MICROSECONDS))
