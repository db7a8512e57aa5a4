"""Refusals in the audit trail: the first ones each, a flood of them as a number.

Whoever is refused costs nothing else, so without a bound a refused caller could fill the disk.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stockade.gateway.journal import Action

EACH: Final = 20
"""So many a minute are recorded one by one, for each key, action and code."""
_MOST_KINDS: Final = 1000
_MINUTE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Refusals that were counted only."""

    tenant: str | None
    key_id: str | None
    action: Action
    code: str
    count: int


class Refusals:
    """What was recorded in this minute, and how many were not."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._since = monotonic()
        self._counts: dict[tuple[str | None, str | None, Action, str], int] = {}

    def first(self, tenant: str | None, key_id: str | None, action: Action, code: str) -> bool:
        """Count one; return whether it is recorded by itself."""
        kind = (tenant, key_id, action, code)
        with self._lock:
            if kind not in self._counts and len(self._counts) >= _MOST_KINDS:
                kind = (None, None, action, code)
            self._counts[kind] = self._counts.get(kind, 0) + 1
            return self._counts[kind] <= EACH

    def give_back(self, counted: list[Counted]) -> None:
        """Count on from what could not be written."""
        with self._lock:
            for each in counted:
                kind = (each.tenant, each.key_id, each.action, each.code)
                self._counts[kind] = max(self._counts.get(kind, 0), EACH) + each.count

    def take(self) -> list[Counted]:
        """After a minute: what was counted only; and begin anew."""
        now = self._monotonic()
        with self._lock:
            if now - self._since < _MINUTE:
                return []
            self._since = now
            counts, self._counts = self._counts, {}
        return [
            Counted(*kind, count=number - EACH) for kind, number in counts.items() if number > EACH
        ]
