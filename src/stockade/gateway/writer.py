"""The one that writes: a thread that commits what is waiting together.

Each unit of work is a function over one transaction. What waits while a commit is on its way to the
disk becomes the next transaction, so that many callers share one wait for the disk.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from stockade.gateway.database import Database
from stockade.gateway.journal import Journal
from stockade.port import Refused, Unavailable

Result = TypeVar("Result")

_MOST_TOGETHER = 256
_MOST_WAITING = 20_000


@dataclass(frozen=True, slots=True)
class Turn:
    """One unit's view of the transaction."""

    connection: Connection
    journal: Journal
    now: int


Work = Callable[[Turn], Result | Refused]
"""A refusal is returned, and raised where it is waited for: what it wrote itself is kept. An error
that is raised undoes the unit."""


class Unit(Generic[Result]):
    """Work that waits, and who waits for it."""

    def __init__(self, work: Work[Result], *, durable: bool) -> None:
        self.work = work
        self.durable = durable
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Result] = self.loop.create_future()
        self.dropped = False
        """Set by a caller that went away. It is honoured only before the work is begun."""
        self.result: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Tell who waits. Called in the loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        elif isinstance(self.result, Refused):
            self.future.set_exception(self.result)
        else:
            self.future.set_result(self.result)


class Writer:
    """Queue, thread, connection."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: queue.SimpleQueue[Unit[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="stockade-ledger", daemon=True)
        self._connection: Connection | None = None
        self._closed = False
        self._log = structlog.get_logger("stockade.gateway.ledger")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def close(self) -> None:
        """Finish what waits, and end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    def submit(self, work: Work[Result], *, durable: bool = False) -> Unit[Result]:
        """Queue a unit. Raises :class:`Unavailable` where too many wait.

        ``durable``: it outlives a power cut, too, which takes a wait for the disk.
        """
        if self._closed:
            raise Unavailable("the gateway is stopping")
        if self._queue.qsize() >= _MOST_WAITING:
            raise Unavailable("the database does not keep up; try again later")
        unit = Unit(work, durable=durable)
        self._queue.put(unit)
        return unit

    async def write(self, work: Work[Result]) -> Result:
        """Queue a unit, and wait until it is committed."""
        return await self.submit(work).future

    # --- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        while (unit := self._queue.get()) is not None:
            units, ends = [unit], False
            while len(units) < _MOST_TOGETHER:
                try:
                    another = self._queue.get_nowait()
                except queue.Empty:
                    break
                if another is None:
                    ends = True
                    break
                units.append(another)
            self._carry_out([each for each in units if not each.dropped])
            if ends:
                break
        self._disconnect()

    def _carry_out(self, units: list[Unit[Any]]) -> None:
        try:
            self._commit(units)
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for it
            if len(units) > 1:
                # One of them is at fault; nothing of the others' work was kept either.
                for unit in units:
                    self._carry_out([unit])
                return
            for unit in units:
                unit.error = self._spoken(error)
        _settle(units)

    def _commit(self, units: list[Unit[Any]]) -> None:
        for attempt in (1, 2):
            begun = False
            try:
                connection = self._connect()
                durable = any(unit.durable for unit in units)
                with self._database.write_on(connection, durable=durable) as journal:
                    begun = True
                    now = self._database.clock()
                    for unit in units:
                        unit.result = unit.work(Turn(connection, journal, now))
                return
            except (SQLAlchemyError, self._database.driver.Error) as error:
                if not self._is_integrity(error):
                    self._disconnect()
                # A connection that was dead before anything was asked of it is made anew.
                if begun or attempt == 2:
                    raise

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.engine.connect().execution_options(
                stockade_writes=True
            )
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.invalidate()
                connection.close()
            except SQLAlchemyError:
                pass  # it is of no use any more either way

    def _is_integrity(self, error: BaseException) -> bool:
        """Whether the database refused it, and not failed."""
        return isinstance(error, IntegrityError | self._database.driver.IntegrityError)

    def _spoken(self, error: Exception) -> BaseException:
        """A database's fault as an error of the port; everything else as it is."""
        if self._is_integrity(error) or not isinstance(
            error, SQLAlchemyError | self._database.driver.Error
        ):
            return error
        self._log.error("ledger.write_failed", error=type(error).__name__, detail=str(error)[:500])
        fault = Unavailable("the database cannot be written at present; try again later")
        fault.__cause__ = error
        return fault


def _settle(units: Iterable[Unit[Any]]) -> None:
    """Wake each loop once for all that is done."""
    loops: dict[asyncio.AbstractEventLoop, list[Unit[Any]]] = {}
    for unit in units:
        loops.setdefault(unit.loop, []).append(unit)
    for loop, done in loops.items():
        try:
            loop.call_soon_threadsafe(_settle_all, done)
        except RuntimeError:
            pass  # the loop is closed: nobody waits


def _settle_all(units: list[Unit[Any]]) -> None:
    for unit in units:
        unit.settle()
