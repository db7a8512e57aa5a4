"""How many sandboxes are worth parking, and how a budget of memory is divided among profiles."""

import math
from collections.abc import Sequence


class Demand:
    """How many parked sandboxes would lately have served every call of one profile.

    ``owed`` counts the sandboxes that were taken and not yet replaced, misses included: had
    as many been parked as it reached at its highest, no call would have waited. The peak is
    remembered, and halves every ``half_life`` seconds. Whatever makes a refill slow (the
    tier, a busy machine, calls that go first) raises the demand by itself.
    """

    __slots__ = ("_half_life", "_high", "_most", "_owed", "_peak", "_peak_at")

    def __init__(self, most: int, half_life: float) -> None:
        self._most = most
        self._half_life = half_life
        self._owed = 0
        self._high = 0  # its highest since the last look: a call has no time for more
        self._peak = 0.0
        self._peak_at = 0.0

    def __repr__(self) -> str:
        return f"<Demand {self._owed} owed, peak {self._peak:.1f}>"

    def take(self) -> None:
        """A call wanted a sandbox."""
        # Beyond the ceiling it would say nothing more, and take long to be forgotten.
        if self._owed < self._most:
            self._owed += 1
            self._high = max(self._high, self._owed)

    def replace(self) -> None:
        """One more is parked."""
        self._owed = max(self._owed - 1, 0)

    def settle(self) -> None:
        """As many are parked as should be."""
        self._owed = 0

    def look(self, now: float) -> int:
        """The peak as it is remembered now, rounded up."""
        remembered: float = self._peak * 0.5 ** ((now - self._peak_at) / self._half_life)
        self._peak, self._peak_at = max(remembered, self._high), now
        self._high = self._owed
        return math.ceil(self._peak - 1e-9)


def allot(wanted: Sequence[tuple[int, int]], budget: int) -> list[int]:
    """How many sandboxes of each profile may be parked within ``budget`` bytes.

    ``wanted``: how many, and the bytes of each one; the profile used last comes first. Where
    the budget does not suffice, each gets one before any gets a second, in this order.
    So two profiles used in turns do not take everything from one another at each call.
    """
    if sum(count * size for count, size in wanted) <= budget:
        return [count for count, _ in wanted]
    allotted = [0] * len(wanted)
    gave = True
    while gave:
        gave = False
        for index, (count, size) in enumerate(wanted):
            if allotted[index] < count and size <= budget:
                allotted[index] += 1
                budget -= size
                gave = True
    return allotted
