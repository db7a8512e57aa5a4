"""How many sandboxes are parked, made at once, alive at once, and waited for."""

import math
import os
from dataclasses import dataclass, field, fields
from typing import Self

from stockade.port import GIB, MIB, InvalidRequest

_MOST = 100_000
_LONGEST_SECONDS = 24 * 3600.0
# The lowest and the highest value that can be meant seriously, per field.
_RANGES: dict[str, tuple[float, float]] = {
    "floor": (0, _MOST),
    "ceiling": (0, _MOST),
    "memory_budget_bytes": (0, 1024 * GIB),
    "max_age_seconds": (0.1, _LONGEST_SECONDS),
    "idle_seconds": (0.1, _LONGEST_SECONDS),
    "profiles": (1, _MOST),
    "starts": (1, 1024),
    "most_alive": (1, _MOST),
    "queue": (1, _MOST),
    "wait_seconds": (0.01, _LONGEST_SECONDS),
    "machines": (1, _MOST),
}


def _default_starts() -> int:
    # A start waits now and then: for the kernel, for another of its processes.
    return 2 * len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """The rules of one executor's pool, for all its tiers; docs/pool.md says how they act.

    A value outside the range of its field raises :class:`~stockade.port.InvalidRequest`;
    nothing is clamped.
    """

    floor: int = 4
    """Sandboxes parked for each profile in use, however little it is used."""
    ceiling: int = 32
    """Sandboxes parked for one profile at the most, whatever the demand; 0 parks nothing."""
    memory_budget_bytes: int = 512 * MIB
    """Memory of all that is parked in the executor, of every tier, by the tiers' estimates."""
    max_age_seconds: float = 600.0
    """No parked sandbox that is older is handed out; it is replaced before that."""
    idle_seconds: float = 300.0
    """A profile that nobody used for so long keeps nothing parked, and its tenant nothing warm."""
    profiles: int = 64
    """For how many profiles sandboxes are parked and tenants' zygotes kept: those used last."""
    starts: int = field(default_factory=_default_starts)
    """Sandboxes in the making at once; by default two per CPU. Refill has half of them."""
    most_alive: int = 512
    """Sandboxes that exist at once: parked, in the making, in use, or being destroyed."""
    queue: int = 1000
    """Calls that may wait for a sandbox; one more is refused at once."""
    wait_seconds: float = 60.0
    """How long a call may wait for a sandbox before it is refused."""
    machines: int = 4
    """Dedicated machines that exist at once, beside all of these. They are not pooled: one is
    booted for each call, and a call that has no turn within ``wait_seconds`` is refused."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            name = f"pool.{each.name}"
            whole = each.type in (int, "int")
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                kind = "a whole number" if whole else "a number"
                raise InvalidRequest(name, f"{value!r} is not {kind}")
            low, high = _RANGES[each.name]
            if not math.isfinite(value) or not low <= value <= high:
                raise InvalidRequest(name, f"{value!r} is outside {low:g} to {high:g}")
        if self.floor > self.ceiling:
            raise InvalidRequest(
                "pool.floor",
                f"{self.floor} exceeds pool.ceiling ({self.ceiling}): no more than the ceiling is "
                "ever parked; raise it, or lower the floor",
            )

    @classmethod
    def fixed(cls, parked: int) -> Self:
        """So many sandboxes parked for each profile, whatever the demand. 0: none ever."""
        return cls(floor=parked, ceiling=parked)
