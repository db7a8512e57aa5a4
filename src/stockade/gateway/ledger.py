"""Executions and sandboxes: admitted, begun, ended, found.

Everything is written by the :class:`~stockade.gateway.writer.Writer` in one transaction each: a row,
what it costs, and its audit record are there together or not at all.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import structlog

from stockade.gateway import listing
from stockade.gateway.bookkeeping import Books
from stockade.gateway.database import Database
from stockade.gateway.executions import (
    Begun,
    ExecutionEntry,
    KeptRecord,
    Repeated,
    RequestFacts,
    lost,
)
from stockade.gateway.expiry import expire
from stockade.gateway.instances import Instances, lock_for_one
from stockade.gateway.journal import Action
from stockade.gateway.keys import Caller, Keys, write_used
from stockade.gateway.listing import ExecutionPage, SandboxEntry, SandboxPage, UsageReport
from stockade.gateway.names import check_workspace
from stockade.gateway.policy import Retention
from stockade.gateway.refusals import Counted, Refusals
from stockade.gateway.writer import Turn, Unit, Work, Writer
from stockade.port import (
    Execution,
    InvalidRequest,
    Outcome,
    Refused,
    SandboxRequest,
    Unavailable,
)

Result = TypeVar("Result")

HEARTBEAT_SECONDS: Final = 5.0
DEAD_SECONDS: Final = 20.0
"""An instance whose heartbeat stood still for so long is dead."""
_PERSIST_SECONDS: Final = 60.0


class Ledger:
    """What a gateway writes while it serves."""

    def __init__(
        self,
        database: Database,
        keys: Keys | None = None,
        *,
        retention: Retention = Retention(),  # noqa: B008 - it is frozen
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        dead_seconds: float = DEAD_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._keys = keys
        self._retention = retention
        self._heartbeat_seconds = heartbeat_seconds
        self._monotonic = monotonic
        self._writer = Writer(database)
        self._refusals = Refusals(monotonic)
        self._books = Books(retention, self._refusals)
        self._instances = Instances(self._books, dead_seconds, monotonic)
        self._instance = ""
        self._abandoned: dict[str, Execution] = {}
        self._heart: asyncio.Task[None] | None = None
        self._lock: int | None = None
        self._log = structlog.get_logger("stockade.gateway.ledger")

    @property
    def instance(self) -> str:
        """This gateway's id."""
        return self._instance

    # --- lifetime -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to write, and end what gateways left that are known to be dead.

        Raises :class:`DatabaseFault` where another gateway has the SQLite file.
        """
        alone = self._database.is_sqlite
        if alone:
            self._lock = lock_for_one(Path(self._database.engine.url.database or ""))
        self._writer.start()
        try:
            self._instance = await self._writer.write(self._instances.register)
            if alone:
                await self._writer.write(
                    lambda turn: self._instances.bury_all_others(turn, self._instance)
                )
        except BaseException:
            await self._stop()
            raise
        self._heart = asyncio.create_task(self._beat_for_ever())

    async def close(self) -> None:
        """End what still runs as lost, write what waits, and stop."""
        if self._heart is not None:
            self._heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heart
            self._heart = None
        try:
            await self._writer.write(lambda turn: self._instances.depart(turn, self._instance))
        finally:
            await self._stop()

    async def _stop(self) -> None:
        await self._writer.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def write(self, work: Work[Result]) -> Result:
        """A unit of work of another part of the gateway."""
        return await self._writer.write(work)

    # --- executions -----------------------------------------------------------------------------

    async def begin_execution(
        self,
        caller: Caller,
        execution_id: str,
        facts: RequestFacts,
        *,
        sandbox_id: str | None = None,
        idempotency_key: str | None = None,
        request_digest: str | None = None,
        job: bool = False,
    ) -> Begun | Repeated:
        """Admit it, or find what became of the same request before.

        Raises :class:`Refused`: ``budget_exhausted`` with when to try again,
        ``idempotency_conflict``, or ``not_found`` for a sandbox that is not the tenant's own.
        Whoever goes away while it waits leaves nothing that runs.
        """
        if (idempotency_key is None) != (request_digest is None):
            raise ValueError("an idempotency key and the request's digest go together")
        if idempotency_key is not None:
            _check_idempotency_key(idempotency_key)
        return await self._begin(
            execution_id,
            lambda turn: self._books.begin(
                turn,
                self._instance,
                caller,
                execution_id,
                facts,
                sandbox_id,
                idempotency_key,
                request_digest,
                job,
            ),
            # A key that a power cut took back would let its request run twice.
            durable=idempotency_key is not None,
        )

    async def end_execution(
        self,
        execution_id: str,
        execution: Execution,
        artefacts: Sequence[str] = (),
    ) -> None:
        """Keep the record, charge what was used, and say so in the audit trail.

        ``artefacts``: the digests of those that were kept. Raises :class:`Refused`
        (``conflict``) where it has ended before, and :class:`Unavailable` where the database
        could not be written for a minute.
        """
        kept = KeptRecord.of(execution, self._retention.record_bytes)
        await self._persist(
            execution_id,
            lambda turn: self._books.end(turn, execution_id, execution, kept, tuple(artefacts)),
        )

    async def find_execution(self, tenant: str, execution_id: str) -> ExecutionEntry:
        """With its record. Raises :class:`Refused`: another tenant's is as one that never was."""
        return await self._database.run(
            lambda connection: listing.find_execution(connection, tenant, execution_id)
        )

    async def list_executions(
        self,
        tenant: str,
        cursor: str | None = None,
        limit: int = 100,
        *,
        sandbox_id: str | None = None,
        running: bool | None = None,
        tool: str | None = None,
    ) -> ExecutionPage:
        """Without records, the latest first. Raises :class:`InvalidRequest`."""
        return await self._database.run(
            lambda connection: listing.list_executions(
                connection, tenant, cursor, limit, sandbox_id, running, tool
            )
        )

    # --- sandboxes ------------------------------------------------------------------------------

    async def begin_sandbox(
        self,
        caller: Caller,
        sandbox_id: str,
        request: SandboxRequest,
        lease_seconds: float,
        workspace: str | None = None,
    ) -> SandboxEntry:
        """Admit a session; with a workspace, take it for this one alone.

        Raises :class:`Refused`: ``budget_exhausted``, or ``conflict`` for a workspace that
        another open session has. Raises :class:`InvalidRequest` for a name that is none.
        """
        if workspace is not None:
            check_workspace(workspace)
        return await self._begin(
            sandbox_id,
            lambda turn: self._books.open_sandbox(
                turn, self._instance, caller, sandbox_id, request, lease_seconds, workspace
            ),
        )

    async def extend_lease(self, caller: Caller, sandbox_id: str, seconds: float) -> SandboxEntry:
        """A lease from now on. Raises :class:`Refused`.

        The ceiling of one lease is for the caller to judge (``Ceilings.judge_lease``); that of
        the whole session, and the budget, are judged here.
        """
        return await self._writer.write(
            lambda turn: self._books.extend_lease(turn, caller, sandbox_id, seconds)
        )

    async def end_sandbox(self, sandbox_id: str, reason: str) -> None:
        """It is closed, and nothing of it lives. One that was closed before stays as it was.

        ``reason``: ``closed``, ``lease``, ``lost``, or the like.
        """
        await self._persist(
            sandbox_id, lambda turn: self._books.close_sandbox(turn, sandbox_id, reason)
        )

    async def find_sandbox(self, tenant: str, sandbox_id: str) -> SandboxEntry:
        """An open one. Raises :class:`Refused`."""
        return await self._database.run(
            lambda connection: listing.open_sandbox(connection, tenant, sandbox_id)
        )

    async def list_sandboxes(
        self, tenant: str, cursor: str | None = None, limit: int = 100
    ) -> SandboxPage:
        """The open ones, the latest first. Raises :class:`InvalidRequest`."""
        return await self._database.run(
            lambda connection: listing.list_sandboxes(connection, tenant, cursor, limit)
        )

    # --- what else ------------------------------------------------------------------------------

    def record_refusal(
        self, caller: Caller | None, action: Action, subject: str, refused: Refused
    ) -> None:
        """Put a refusal into the audit trail; a flood of them as one record a minute.

        It is not waited for: a refusal is answered at once.
        """
        tenant = None if caller is None else caller.tenant
        key_id = None if caller is None else caller.key_id
        if self._refusals.first(tenant, key_id, action, refused.code):
            with contextlib.suppress(Unavailable):
                unit = self._writer.submit(
                    lambda turn: self._books.refuse(turn, tenant, key_id, action, subject, refused)
                )
                unit.future.add_done_callback(_retrieve)

    async def record(
        self, caller: Caller, action: Action, subject: str, facts: dict[str, Any] | None = None
    ) -> None:
        """Put something else into the audit trail, such as an artefact that was fetched."""
        await self._writer.write(
            lambda turn: turn.journal.add(
                action, subject, tenant=caller.tenant, key_id=caller.key_id, facts=facts
            )
        )

    async def usage(self, tenant: str, first_day: int, last_day: int) -> UsageReport:
        """Days that are not there were without any use. Raises :class:`InvalidRequest`."""
        if not 0 <= last_day - first_day <= 400:
            raise InvalidRequest("days", "it is not 1 to 401 days, the first one first")
        return await self._database.run(
            lambda connection: listing.report_usage(
                connection, tenant, first_day, last_day, self._database.clock()
            )
        )

    # --- what must not get lost -----------------------------------------------------------------

    async def _begin(self, this: str, work: Work[Result], *, durable: bool = False) -> Result:
        unit: Unit[Result] = self._writer.submit(work, durable=durable)
        try:
            return await asyncio.shield(unit.future)
        except asyncio.CancelledError:
            unit.dropped = True
            unit.future.add_done_callback(_retrieve)
            self._abandon(this, Execution(Outcome.CANCELLED, "its caller went away"))
            raise
        except self._database.driver.IntegrityError as error:
            raise Refused("conflict", "the id was used before") from error
        except Unavailable:
            # Whether it was written is unknown. If it was, it is ended: nothing will run.
            self._abandon(this, lost("the database failed as it began"))
            raise

    def _abandon(self, this: str, execution: Execution) -> None:
        """See to it that nothing is left of what may have begun and has nobody who ends it."""
        self._abandoned[this] = execution

        def forget(done: "asyncio.Future[None]") -> None:
            # Else the next beat tries it again.
            if not done.cancelled() and done.exception() is None:
                self._abandoned.pop(this, None)

        with contextlib.suppress(Unavailable):
            unit: Unit[None] = self._writer.submit(
                lambda turn: self._books.end_if_begun(turn, this, execution)
            )
            unit.future.add_done_callback(forget)

    async def _persist(self, this: str, work: Work[None]) -> None:
        """Write an end, and try again while the database is away: it must not get lost."""
        until, pause, unsure = self._monotonic() + _PERSIST_SECONDS, 0.1, False
        while True:
            try:
                return await asyncio.shield(self._writer.submit(work).future)
            except Unavailable:
                if self._monotonic() >= until:
                    # Else it would run for ever, and hold its place in the tenant's budget.
                    self._abandoned[this] = lost("the database failed for long as it ended")
                    raise
                unsure = True
                await asyncio.sleep(pause)
                pause = min(2.0, pause * 2)
            except Refused:
                # It may have been written although the answer did not come.
                if not unsure:
                    raise
                return None

    # --- the heartbeat --------------------------------------------------------------------------

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            try:
                await self.beat()
            except Exception:  # noqa: BLE001 - a heart that stops is a gateway that is taken for dead
                self._log.exception("ledger.beat_failed")

    async def beat(self) -> None:
        """Say that this gateway lives, find those that do not, and throw away what is over."""
        counted, abandoned = self._refusals.take(), dict(self._abandoned)
        used = {} if self._keys is None else self._keys.take_used()
        try:
            alive = await self._writer.write(
                lambda turn: self._tick(turn, counted, abandoned, used)
            )
            if not alive:
                self._log.error("ledger.declared_dead", instance=self._instance)
                self._instance = await self._writer.write(self._instances.register)
        except Unavailable:
            self._refusals.give_back(counted)  # the fault was logged
            return
        for this in abandoned:
            self._abandoned.pop(this, None)

    def _tick(
        self,
        turn: Turn,
        counted: list[Counted],
        abandoned: dict[str, Execution],
        used: dict[str, int],
    ) -> bool:
        alive = self._instances.beat(turn, self._instance)
        if alive:
            self._instances.bury_dead(turn, self._instance)
        for this, execution in abandoned.items():
            self._books.end_if_begun(turn, this, execution)
        for each in counted:
            turn.journal.add(
                each.action,
                "",
                tenant=each.tenant,
                key_id=each.key_id,
                facts={"code": each.code, "more": each.count},
            )
        write_used(turn.connection, used)
        expire(turn, self._retention)
        return alive


def _check_idempotency_key(key: str) -> None:
    if not 1 <= len(key) <= 128 or not key.isascii() or not key.isprintable():
        raise InvalidRequest("Idempotency-Key", "it is not 1 to 128 printable characters of ASCII")


def _retrieve(done: "asyncio.Future[Any]") -> None:
    """Nobody waits for it; the writer has logged what went wrong."""
    if not done.cancelled():
        done.exception()
