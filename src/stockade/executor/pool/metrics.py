"""What an operator sees of a pool: plain numbers, at one moment."""

from dataclasses import dataclass

from stockade.port import Tier


@dataclass(slots=True)
class Tally:
    """The running totals behind :class:`PoolMetrics`; that says what they mean."""

    hits: int = 0
    misses: int = 0
    refused: int = 0
    timed_out: int = 0
    waits: int = 0
    wait_seconds: float = 0.0
    wait_seconds_max: float = 0.0
    starts: int = 0
    failures: int = 0
    refills: int = 0
    refill_seconds: float = 0.0
    refill_seconds_max: float = 0.0
    evicted_age: int = 0
    evicted_idle: int = 0
    evicted_memory: int = 0
    evicted_room: int = 0
    found_dead: int = 0
    unwanted: int = 0
    not_destroyed: int = 0
    last_error: str | None = None

    def count_wait(self, seconds: float) -> None:
        """A call waited, and was served."""
        self.waits += 1
        self.wait_seconds += seconds
        self.wait_seconds_max = max(self.wait_seconds_max, seconds)

    def count_refill(self, seconds: float) -> None:
        """A refill took so long."""
        self.refills += 1
        self.refill_seconds += seconds
        self.refill_seconds_max = max(self.refill_seconds_max, seconds)


@dataclass(frozen=True, slots=True)
class ShelfMetrics:
    """One profile of one tenant, now."""

    tier: Tier
    tenant: str
    target: int
    """Sandboxes that the demand, the floor and the ceiling ask for."""
    allotted: int
    """What the memory budget leaves of the target."""
    parked: int
    parked_bytes: int
    in_use: int
    """Sandboxes that a call or a session has, those being destroyed included."""
    waiting: int
    failures: int
    """Starts that failed since the last one that did not."""


@dataclass(frozen=True, slots=True)
class PoolMetrics:
    """Of one executor's pool: totals since it was opened, then what there is now."""

    hits: int
    """Calls that were served from what was parked."""
    misses: int
    """Calls that found nothing parked, whatever became of them."""
    refused: int
    """Calls that found the queue full."""
    timed_out: int
    """Calls that waited too long."""
    waits: int
    """Misses that were served, and below how long they waited."""
    wait_seconds: float
    wait_seconds_max: float
    starts: int
    """Sandboxes that were begun, for a call or to be parked."""
    failures: int
    """Starts that failed."""
    refills: int
    """Starts to be parked that came up, and below how long they took."""
    refill_seconds: float
    refill_seconds_max: float
    evicted_age: int
    """Parked sandboxes that were destroyed because they had become too old,"""
    evicted_idle: int
    """because the demand had fallen or other profiles were used later,"""
    evicted_memory: int
    """because the memory budget was needed elsewhere,"""
    evicted_room: int
    """because ``most_alive`` was reached and a call waited."""
    found_dead: int
    """Parked sandboxes that had died."""
    unwanted: int
    """Sandboxes that came up when nobody wanted them any more."""
    not_destroyed: int
    """Sandboxes and zygotes whose end failed: something of them may be left on this host."""
    last_error: str | None
    """What the last failed start said."""

    parked: int
    parked_bytes: int
    making: int
    """Sandboxes in the making."""
    waiting: int
    """Calls that wait for a sandbox."""
    alive: int
    """All sandboxes: parked, in the making, in use, and being destroyed."""
    most_alive: int
    """The most there may be, after what the limit of open files allows."""
    shelves: tuple[ShelfMetrics, ...]
    """Each profile, the one used last first."""
