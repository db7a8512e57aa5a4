"""Gateways that serve, and those that died.

Each writes a heartbeat, which is a counter. Whoever watches measures with its own monotonic clock how
long another's has stood still: no clock that is set can declare anybody dead. What a dead one left is
ended as lost, once, by whoever finds it first; should it live all the same, its own ends are refused.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select, update

from stockade.gateway.bookkeeping import Books
from stockade.gateway.database import DatabaseFault
from stockade.gateway.journal import Action
from stockade.gateway.schema import instances
from stockade.gateway.writer import Turn


class Instances:
    """This gateway among others. Its methods are work for the writer."""

    def __init__(
        self,
        books: Books,
        dead_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._books = books
        self._dead_seconds = dead_seconds
        self._monotonic = monotonic
        self._seen: dict[str, tuple[int, float]] = {}

    def register(self, turn: Turn) -> str:
        """Enter a new one; return its id."""
        instance = secrets.token_hex(16)
        turn.connection.execute(
            insert(instances).values(id=instance, started_at=turn.now, heartbeat=0)
        )
        turn.journal.add(Action.GATEWAY_STARTED, instance)
        return instance

    def beat(self, turn: Turn, instance: str) -> bool:
        """Say that this one lives. False: others have declared it dead."""
        beaten = turn.connection.execute(
            update(instances)
            .where(instances.c.id == instance, instances.c.ended_at.is_(None))
            .values(heartbeat=instances.c.heartbeat + 1)
        )
        return beaten.rowcount == 1

    def bury_all_others(self, turn: Turn, instance: str) -> None:
        """Where there can be one gateway only."""
        for row in self._others(turn, instance):
            self._end(turn, row.id, Action.GATEWAY_LOST, "its gateway died")

    def bury_dead(self, turn: Turn, instance: str) -> None:
        """Those whose heartbeat stood still for too long while this one looked on."""
        now, seen = self._monotonic(), {}
        for row in self._others(turn, instance):
            heartbeat, since = self._seen.get(row.id, (-1, now))
            if heartbeat != row.heartbeat:
                since = now
            elif now - since >= self._dead_seconds:
                self._end(turn, row.id, Action.GATEWAY_LOST, "its gateway died")
                continue
            seen[row.id] = (row.heartbeat, since)
        self._seen = seen

    def depart(self, turn: Turn, instance: str) -> None:
        """This one stops; what still runs of it is lost."""
        self._end(turn, instance, Action.GATEWAY_STOPPED, "its gateway was stopped")

    def _others(self, turn: Turn, instance: str) -> Sequence[Any]:
        query = select(instances.c.id, instances.c.heartbeat).where(
            instances.c.id != instance, instances.c.ended_at.is_(None)
        )
        return turn.connection.execute(query).all()

    def _end(self, turn: Turn, instance: str, action: Action, why: str) -> None:
        turn.connection.execute(
            update(instances)
            .where(instances.c.id == instance, instances.c.ended_at.is_(None))
            .values(ended_at=turn.now)
        )
        left = self._books.end_all_of(turn, instance, why)
        turn.journal.add(action, instance, facts=left)


def lock_for_one(database: Path) -> int:
    """SQLite's file is one gateway's, which then knows that all others are dead."""
    path = database.with_name(database.name + ".gateway")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DatabaseFault(
            f"another gateway serves with {database}; several of them need PostgreSQL"
        ) from None
    return descriptor
