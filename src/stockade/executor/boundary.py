"""What every tier's boundary can do, whatever it is built on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from stockade.port import Attestation, Enforcement, Limits, Tier


@dataclass(frozen=True, slots=True)
class BoundaryUsage:
    """Counters that the host reads of a sandbox, since it was made. ``None``: unknown here."""

    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    peak_processes: int | None = None
    oom_kills: int = 0
    processes_refused: int = 0


class Boundary(Protocol):
    """One sandbox's walls, seen from the host."""

    tier: Tier
    image: str
    enforcement: Mapping[str, Enforcement]
    counts_processes: bool
    """Whether ``usage().processes_refused`` is counted on this machine."""
    parked_bytes: int
    """An estimate of the memory that the sandbox holds on the host while it is parked."""
    attestation: Attestation | None
    """What it was made of, where the tier tells."""

    def pause(self) -> None:
        """Let it use no CPU while it is parked, where one that waits would."""
        ...

    def resume(self) -> None:
        """Let it go on: it was taken."""
        ...

    async def freeze(self) -> None:
        """Stop everything of the guest's, until ``thaw``."""
        ...

    async def thaw(self) -> None:
        """Let it go on."""
        ...

    def thaw_to_end(self) -> None:
        """Of one that is frozen: let the agent end the program."""
        ...

    def set_ceilings(self, limits: Limits) -> None:
        """Set what may still be set of the ceilings: memory, processes."""
        ...

    def cpu_rlimit(self, limits: Limits) -> int | None:
        """RLIMIT_CPU of a program, a second net of seconds; ``None``: none."""
        ...

    def process_rlimit(self, limits: Limits) -> int:
        """The ``RLIMIT_NPROC`` for a program, by which it has as many processes as it may."""
        ...

    def inner_ceilings(self, limits: Limits) -> tuple[int, int] | None:
        """Bytes of memory and processes that a kernel inside keeps, and counts; None: the host does."""
        ...

    def watch_memory(self, callback: Callable[[], None]) -> None:
        """Call back, in the event loop, when the memory ceiling is hit, from now on."""
        ...

    def usage(self) -> BoundaryUsage:
        """The counters now; they stay readable until ``release``."""
        ...

    def kill(self) -> None:
        """Kill everything inside, at once. Harmless when nothing is left."""
        ...

    @property
    def stops_whole(self) -> bool:
        """Whether after ``stop`` no process of it runs on, and ``usage`` misses nothing."""
        ...

    def stop(self) -> None:
        """``kill``; where ``stops_whole`` what is left is the kernel's clearing away."""
        ...

    async def gone(self) -> None:
        """Wait until nothing of it lives."""
        ...

    async def release(self) -> None:
        """Give back what the host held for it; nothing may live any more."""
        ...
