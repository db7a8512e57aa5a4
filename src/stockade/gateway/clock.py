"""Times in the database: microseconds since 1970, UTC."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND

Clock = Callable[[], int]


def now() -> int:
    """The system's clock. It may be set: nothing that must not go back depends on it."""
    return time.time_ns() // 1000


def to_datetime(microseconds: int) -> datetime:
    """For people and messages."""
    return datetime.fromtimestamp(microseconds / SECOND, UTC)


def from_datetime(moment: datetime) -> int:
    """For the database. Raises ``ValueError`` for a time without a zone."""
    if moment.tzinfo is None:
        raise ValueError("the time has no zone")
    return round(moment.timestamp() * SECOND)


def spell(microseconds: int) -> str:
    """Like ``2026-11-30T18:45:00.000000Z``."""
    return to_datetime(microseconds).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
