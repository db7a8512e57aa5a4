"""What an examination of this machine found. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stockade.port.execution import Enforcement
from stockade.port.policy import candidates
from stockade.port.tier import Tier
from stockade.port.trust import TrustLevel


@dataclass(frozen=True, slots=True)
class TierStatus:
    """Whether one tier can be started here, known by starting it."""

    tier: Tier
    available: bool
    detail: str
    """One sentence: what it is built on, or the first thing that is missing."""
    start_ms: float | None = None
    """Milliseconds from the request until a sandbox was at hand; ``None`` where none came."""
    emulated: bool = False
    """Started, but in software emulation, which is no boundary: it serves no trust level."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that an operator of this machine should know."""

    tiers: tuple[TierStatus, ...]
    enforcement: Mapping[str, tuple[Enforcement, str]] = field(default_factory=dict)
    """Field of ``Limits`` to how it is kept here, and by what."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the machine is: kernel, cgroup version, user, and the like."""
    remedies: tuple[str, ...] = ()
    """What to do so that more can be started or kept, one sentence each."""

    @property
    def serving(self) -> dict[TrustLevel, Tier | None]:
        """Trust level to the tier that serves it here; ``None`` where calls are refused."""
        there = {each.tier for each in self.tiers if each.available and not each.emulated}
        return {
            level: next((tier for tier in candidates(level) if tier in there), None)
            for level in TrustLevel
        }

    @property
    def usable(self) -> bool:
        """Whether at least one tier can be started."""
        return any(status.available for status in self.tiers)
