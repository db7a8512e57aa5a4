"""Executions and sandboxes: admitted, begun, ended, found.

Everything here is written by the :class:`~stockade.gateway.writer.Writer` in one transaction each:
a row, what it costs, and its audit record are there together or not at all.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import structlog
from sqlalchemy import Connection, bindparam, delete, insert, select, update

from stockade.gateway import cursors
from stockade.gateway.admission import SKEW, WINDOW, Account, rate_refusal
from stockade.gateway.clock import DAY, SECOND
from stockade.gateway.database import Database, DatabaseFault
from stockade.gateway.executions import (
    Begun,
    ExecutionEntry,
    KeptRecord,
    Repeated,
    RequestFacts,
    entry,
    lost,
    memory_time,
)
from stockade.gateway.journal import Action, canonical
from stockade.gateway.keys import Caller, Keys, write_used
from stockade.gateway.policy import Budgets, Retention
from stockade.gateway.refusals import Refusals
from stockade.gateway.schema import (
    executions,
    idempotency,
    instances,
    rates,
    records,
    sandboxes,
    usage,
    workspaces,
)
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
MAX_PAGE: Final = 500
_PERSIST_SECONDS: Final = 60.0
_EXPIRE_TOGETHER: Final = 500


@dataclass(frozen=True, slots=True)
class SandboxEntry:
    """A session as the gateway knows it."""

    id: str
    tenant: str
    key_id: str
    opened_at: int
    lease_until: int
    closed_at: int | None
    reason: str | None
    workspace: str | None
    fence: int | None
    """Of its workspace: see :mod:`~stockade.gateway.workspaces`."""


@dataclass(frozen=True, slots=True)
class DayUsage:
    """What a tenant used in one day, UTC."""

    day: int
    """Since 1970."""
    executions: int = 0
    sandboxes: int = 0
    cpu_seconds: float = 0.0
    memory_gib_seconds: float = 0.0
    wall_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What a tenant used, and what it may."""

    days: tuple[DayUsage, ...]
    budgets: Budgets
    running: int
    open_sandboxes: int
    begun_last_minute: int


@dataclass(frozen=True, slots=True)
class ExecutionPage:
    """Executions, the latest first, and where to go on."""

    executions: tuple[ExecutionEntry, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class SandboxPage:
    """Sandboxes, the latest first, and where to go on."""

    sandboxes: tuple[SandboxEntry, ...]
    next: str | None


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
        self._dead_seconds = dead_seconds
        self._monotonic = monotonic
        self._writer = Writer(database)
        self._refusals = Refusals(monotonic)
        self._instance = ""
        self._seen: dict[str, tuple[int, float]] = {}
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
        if self._database.is_sqlite:
            self._lock = _lock_for_one(Path(self._database.engine.url.database or ""))
        self._writer.start()
        try:
            await self._register()
            if self._database.is_sqlite:
                # There is one gateway with this file: all others are dead.
                await self._writer.write(lambda turn: self._bury(turn, self._others(turn)))
        except BaseException:
            await self._writer.close()
            self._unlock()
            raise
        self._heart = asyncio.create_task(self._beat())

    async def close(self) -> None:
        """End what still runs as lost, write what waits, and stop."""
        if self._heart is not None:
            self._heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heart
            self._heart = None
        try:
            await self._writer.write(self._depart)
        finally:
            await self._writer.close()
            self._unlock()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def write(self, work: Work[Result]) -> Result:
        """A unit of work of another part of the gateway."""
        return await self._writer.write(work)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

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

        def begin(turn: Turn) -> Begun | Repeated | Refused:
            return self._begin(
                turn, caller, execution_id, facts, sandbox_id, idempotency_key,
                request_digest, job,
            )  # fmt: skip

        unit: Unit[Begun | Repeated] = self._writer.submit(begin)
        try:
            return await asyncio.shield(unit.future)
        except asyncio.CancelledError:
            unit.dropped = True
            self._abandon(execution_id, Execution(Outcome.CANCELLED, "its caller went away"))
            raise
        except Unavailable:
            # Whether it was written is unknown: then it is ended, for nothing will run.
            self._abandon(execution_id, lost("the database failed as it began"))
            raise

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
            lambda turn: self._end(turn, execution_id, execution, kept, tuple(artefacts))
        )

    async def find_execution(self, tenant: str, execution_id: str) -> ExecutionEntry:
        """With its record. Raises :class:`Refused`: another tenant's is as one that never was."""
        return await self._database.run(
            lambda connection: _find_execution(connection, tenant, execution_id)
        )

    async def list_executions(
        self,
        tenant: str,
        cursor: str | None = None,
        limit: int = 100,
        *,
        sandbox_id: str | None = None,
        running: bool | None = None,
    ) -> ExecutionPage:
        """Without records, the latest first. Raises :class:`InvalidRequest`."""
        return await self._database.run(
            lambda connection: _list_executions(
                connection, tenant, cursor, limit, sandbox_id, running
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
        another open session has.
        """

        def begin(turn: Turn) -> SandboxEntry | Refused:
            return self._open(turn, caller, sandbox_id, request, lease_seconds, workspace)

        unit: Unit[SandboxEntry] = self._writer.submit(begin)
        try:
            return await asyncio.shield(unit.future)
        except (asyncio.CancelledError, Unavailable) as error:
            if isinstance(error, asyncio.CancelledError):
                unit.dropped = True
            self._abandon(sandbox_id, lost("its caller went away"))
            raise

    async def extend_lease(self, tenant: str, sandbox_id: str, seconds: float) -> SandboxEntry:
        """A lease from now on. Raises :class:`Refused`.

        That it keeps the tenant's ceilings is for the caller to judge.
        """
        return await self._writer.write(
            lambda turn: self._extend(turn, tenant, sandbox_id, seconds)
        )

    async def end_sandbox(self, sandbox_id: str, reason: str) -> None:
        """It is closed, and nothing of it lives. One that was closed before stays as it was.

        ``reason``: ``closed``, ``lease``, ``lost``, or the like.
        """
        await self._persist(lambda turn: self._close_sandbox(turn, sandbox_id, reason))

    async def find_sandbox(self, tenant: str, sandbox_id: str) -> SandboxEntry:
        """An open one. Raises :class:`Refused`."""

        def find(connection: Connection) -> SandboxEntry:
            found = _open_sandbox(connection, tenant, sandbox_id)
            if found is None:
                raise _no_sandbox()
            return found

        return await self._database.run(find)

    async def list_sandboxes(
        self, tenant: str, cursor: str | None = None, limit: int = 100
    ) -> SandboxPage:
        """The open ones, the latest first. Raises :class:`InvalidRequest`."""
        return await self._database.run(
            lambda connection: _list_sandboxes(connection, tenant, cursor, limit)
        )

    # --- what else ------------------------------------------------------------------------------

    async def record_refusal(
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
                    lambda turn: _refuse(turn, tenant, key_id, action, subject, refused)
                )
                unit.future.add_done_callback(_retrieve)

    async def record(
        self,
        caller: Caller,
        action: Action,
        subject: str,
        facts: dict[str, Any] | None = None,
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
            lambda connection: _usage(
                connection, tenant, first_day, last_day, self._database.clock()
            )
        )

    # --- within the writer's transaction --------------------------------------------------------

    def _begin(
        self,
        turn: Turn,
        caller: Caller,
        execution_id: str,
        facts: RequestFacts,
        sandbox_id: str | None,
        idempotency_key: str | None,
        request_digest: str | None,
        job: bool,
    ) -> Begun | Repeated | Refused:
        connection = turn.connection
        try:
            account = Account.read(connection, caller.tenant, turn.now)
            if idempotency_key is not None:
                earlier = _earlier(turn, caller.tenant, idempotency_key, request_digest)
                if earlier is not None:
                    return Repeated(earlier)
            if sandbox_id is not None and not _open_sandbox(connection, caller.tenant, sandbox_id):
                raise _no_sandbox()
            cpu = facts.most_cpu
            # A session's memory is reserved and charged by the session.
            memory = 0 if sandbox_id is not None else facts.most_memory
            account.admit_execution(cpu, memory)
            refused = rate_refusal(connection, account, caller.tenant)
            if refused is not None:
                raise refused
        except Refused as refused:
            if refused.code != "not_found" and self._refusals.first(
                caller.tenant, caller.key_id, Action.EXECUTION_REFUSED, refused.code
            ):
                _refuse(
                    turn, caller.tenant, caller.key_id, Action.EXECUTION_REFUSED, execution_id,
                    refused,
                )  # fmt: skip
            return refused
        data = facts.as_data()
        connection.execute(
            _INSERT_EXECUTION,
            {
                "id": execution_id,
                "tenant": caller.tenant,
                "key_id": caller.key_id,
                "instance": self._instance,
                "sandbox_id": sandbox_id,
                "job": job,
                "begun_at": turn.now,
                "facts": canonical({name: data[name] for name in data if name != "source"}),
                "reserved_cpu": cpu,
                "reserved_memory": memory,
            },
        )
        _count_begun(turn, caller.tenant)
        if idempotency_key is not None:
            connection.execute(
                insert(idempotency),
                {
                    "tenant": caller.tenant,
                    "key": idempotency_key,
                    "execution_id": execution_id,
                    "request_digest": request_digest,
                    "expires_at": turn.now + self._retention.idempotency_seconds * SECOND,
                },
            )
        turn.journal.add(
            Action.EXECUTION_BEGUN,
            execution_id,
            tenant=caller.tenant,
            key_id=caller.key_id,
            facts={**data, "sandbox": sandbox_id, "job": job},
            time=turn.now,
        )
        return Begun(execution_id)

    def _end(
        self,
        turn: Turn,
        execution_id: str,
        execution: Execution,
        kept: KeptRecord,
        artefacts: tuple[str, ...],
    ) -> Refused | None:
        row = turn.connection.execute(
            _END_EXECUTION,
            {"this": execution_id, "moment": turn.now, "how": execution.outcome.value},
        ).one_or_none()
        if row is None:
            return Refused("conflict", "the execution has ended before, or never began")
        self._settle(turn, row, execution, kept, artefacts)
        return None

    def _settle(
        self,
        turn: Turn,
        row: Any,
        execution: Execution,
        kept: KeptRecord,
        artefacts: tuple[str, ...],
        cpu: int | None = None,
        memory: int | None = None,
    ) -> None:
        """What goes with the end of an execution whose row has just been ended."""
        turn.connection.execute(
            _INSERT_RECORD,
            {
                "execution_id": row.id,
                "expires_at": turn.now + self._retention.record_seconds * SECOND,
                "shortened": " ".join(kept.shortened),
                "record": kept.json,
            },
        )
        limits = json.loads(row.facts)["limits"]
        used = execution.usage
        if cpu is None:
            # What could not be measured is charged as all that it may have been.
            seconds = (
                min(limits["cpu_seconds"], used.wall_seconds * limits["cpus"])
                if used.cpu_seconds is None
                else used.cpu_seconds
            )
            cpu = round(seconds * SECOND)
        if memory is None:
            peak = used.peak_memory_bytes
            memory = memory_time(
                limits["memory_bytes"] if peak is None else peak, used.wall_seconds
            )
        _charge(
            turn,
            row.tenant,
            executions=1,
            cpu=cpu,
            memory=0 if row.sandbox_id is not None else memory,
            wall=round(used.wall_seconds * SECOND),
        )
        hit = execution.limit
        turn.journal.add(
            Action.EXECUTION_ENDED,
            row.id,
            tenant=row.tenant,
            key_id=row.key_id,
            time=turn.now,
            facts={
                "outcome": execution.outcome.value,
                "exit_code": execution.exit_code,
                "signal": execution.signal,
                "limit": None if hit is None else hit.name,
                "tier": None if execution.tier is None else execution.tier.value,
                "image": execution.image,
                "cpu_seconds": used.cpu_seconds,
                "wall_seconds": used.wall_seconds,
                "peak_memory_bytes": used.peak_memory_bytes,
                "artefacts": list(artefacts[:64]),
                "artefact_count": len(artefacts),
            },
        )

    def _open(
        self,
        turn: Turn,
        caller: Caller,
        sandbox_id: str,
        request: SandboxRequest,
        lease_seconds: float,
        workspace: str | None,
    ) -> SandboxEntry | Refused:
        size = request.limits.memory_bytes
        memory = memory_time(size, lease_seconds)
        fence = None
        try:
            account = Account.read(turn.connection, caller.tenant, turn.now)
            account.admit_sandbox(memory)
            if workspace is not None:
                fence = _take_workspace(turn, caller.tenant, workspace)
        except Refused as refused:
            if self._refusals.first(
                caller.tenant, caller.key_id, Action.SANDBOX_REFUSED, refused.code
            ):
                _refuse(
                    turn, caller.tenant, caller.key_id, Action.SANDBOX_REFUSED, sandbox_id, refused
                )
            return refused
        facts = {
            "trust": request.trust.value,
            "tier": None if request.tier is None else request.tier.value,
            "memory_bytes": size,
            "lease_seconds": lease_seconds,
            "workspace": workspace,
        }
        row = {
            "id": sandbox_id,
            "tenant": caller.tenant,
            "key_id": caller.key_id,
            "instance": self._instance,
            "opened_at": turn.now,
            "lease_until": turn.now + round(lease_seconds * SECOND),
            "workspace": workspace,
            "fence": fence,
            "facts": canonical(facts),
            "memory_bytes": size,
            "reserved_memory": memory,
        }
        turn.connection.execute(insert(sandboxes), row)
        turn.journal.add(
            Action.SANDBOX_OPENED,
            sandbox_id,
            tenant=caller.tenant,
            key_id=caller.key_id,
            facts=facts,
            time=turn.now,
        )
        return SandboxEntry(
            sandbox_id, caller.tenant, caller.key_id, turn.now,
            turn.now + round(lease_seconds * SECOND), None, None, workspace, fence,
        )  # fmt: skip

    def _extend(
        self, turn: Turn, tenant: str, sandbox_id: str, seconds: float
    ) -> SandboxEntry | Refused:
        row = turn.connection.execute(
            select(sandboxes).where(
                sandboxes.c.id == sandbox_id,
                sandboxes.c.tenant == tenant,
                sandboxes.c.closed_at.is_(None),
            )
        ).one_or_none()
        if row is None:
            return _no_sandbox()
        until = turn.now + round(seconds * SECOND)
        # Never less than was reserved: a clock that was set back frees nothing.
        reserved = max(
            row.reserved_memory, memory_time(row.memory_bytes, (until - row.opened_at) / SECOND)
        )
        try:
            Account.read(turn.connection, tenant, turn.now).admit_memory(
                reserved - row.reserved_memory
            )
        except Refused as refused:
            return refused
        turn.connection.execute(
            update(sandboxes)
            .where(sandboxes.c.id == sandbox_id)
            .values(lease_until=until, reserved_memory=reserved)
        )
        found = _open_sandbox(turn.connection, tenant, sandbox_id)
        assert found is not None
        return found

    def _close_sandbox(self, turn: Turn, sandbox_id: str, reason: str) -> None:
        row = turn.connection.execute(
            _CLOSE_SANDBOX, {"this": sandbox_id, "moment": turn.now, "why": reason[:32]}
        ).one_or_none()
        if row is None:
            return
        held = max(0, turn.now - row.opened_at)
        _charge(
            turn,
            row.tenant,
            sandboxes=1,
            # A clock that was set ahead charges no more than was reserved.
            memory=min(row.reserved, memory_time(row.memory_bytes, held / SECOND)),
        )
        turn.journal.add(
            Action.SANDBOX_CLOSED,
            row.id,
            tenant=row.tenant,
            key_id=row.key_id,
            facts={"reason": reason[:32], "held_seconds": held / SECOND},
            time=turn.now,
        )

    # --- instances ------------------------------------------------------------------------------

    async def _register(self) -> None:
        instance = secrets.token_hex(16)

        def register(turn: Turn) -> None:
            turn.connection.execute(
                insert(instances).values(id=instance, started_at=turn.now, heartbeat=0)
            )
            turn.journal.add(Action.GATEWAY_STARTED, instance)

        await self._writer.write(register)
        self._instance = instance

    def _others(self, turn: Turn) -> list[str]:
        return list(
            turn.connection.scalars(
                select(instances.c.id).where(
                    instances.c.id != self._instance, instances.c.ended_at.is_(None)
                )
            )
        )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            try:
                alive = await self._writer.write(self._tick)
                if not alive:
                    self._log.error("ledger.declared_dead", instance=self._instance)
                    await self._register()
            except Unavailable:
                continue  # it was logged; what is waiting is tried again at the next beat

    def _tick(self, turn: Turn) -> bool:
        """Say that this gateway lives, find those that do not, and throw away what is over."""
        beaten = turn.connection.execute(_BEAT, {"this": self._instance})
        if beaten.rowcount != 1:
            return False
        self._bury(turn, self._dead(turn))
        for abandoned, execution in list(self._abandoned.items()):
            self._end_if_begun(turn, abandoned, execution)
        for refusal in self._refusals.take():
            turn.journal.add(
                refusal.action,
                "",
                tenant=refusal.tenant,
                key_id=refusal.key_id,
                facts={"code": refusal.code, "more": refusal.count},
            )
        if self._keys is not None:
            write_used(turn.connection, self._keys.take_used())
        self._expire(turn)
        return True

    def _dead(self, turn: Turn) -> list[str]:
        """Instances whose heartbeat stood still while this one looked on."""
        now, seen, dead = self._monotonic(), {}, []
        for row in turn.connection.execute(
            select(instances.c.id, instances.c.heartbeat).where(
                instances.c.id != self._instance, instances.c.ended_at.is_(None)
            )
        ):
            heartbeat, since = self._seen.get(row.id, (-1, now))
            if heartbeat != row.heartbeat:
                since = now
            elif now - since >= self._dead_seconds:
                dead.append(row.id)
                continue
            seen[row.id] = (row.heartbeat, since)
        self._seen = seen
        return dead

    def _bury(self, turn: Turn, dead: list[str]) -> None:
        """End what they left. Whoever of them lives all the same finds its ends refused."""
        for instance in dead:
            turn.connection.execute(
                update(instances)
                .where(instances.c.id == instance, instances.c.ended_at.is_(None))
                .values(ended_at=turn.now)
            )
            left = self._end_all(turn, instance, "its gateway died")
            turn.journal.add(Action.GATEWAY_LOST, instance, facts=left)

    def _depart(self, turn: Turn) -> None:
        left = self._end_all(turn, self._instance, "its gateway was stopped")
        turn.connection.execute(
            update(instances).where(instances.c.id == self._instance).values(ended_at=turn.now)
        )
        turn.journal.add(Action.GATEWAY_STOPPED, self._instance, facts=left)

    def _end_all(self, turn: Turn, instance: str, why: str) -> dict[str, Any]:
        running = turn.connection.scalars(
            select(executions.c.id).where(
                executions.c.instance == instance, executions.c.ended_at.is_(None)
            )
        ).all()
        for each in running:
            self._end_if_begun(turn, each, lost(why))
        opened = turn.connection.scalars(
            select(sandboxes.c.id).where(
                sandboxes.c.instance == instance, sandboxes.c.closed_at.is_(None)
            )
        ).all()
        for each in opened:
            self._close_sandbox(turn, each, "lost")
        return {"executions": len(running), "sandboxes": len(opened)}

    def _abandon(self, this: str, execution: Execution) -> None:
        """See to it that nothing is left of what may have begun and has nobody who ends it."""
        self._abandoned[this] = execution

        def end(turn: Turn) -> None:
            self._end_if_begun(turn, this, execution)

        with contextlib.suppress(Unavailable):
            self._writer.submit(end).future.add_done_callback(lambda done: self._forget(this, done))

    def _forget(self, this: str, done: "asyncio.Future[None]") -> None:
        # Else the next beat tries it again.
        if not done.cancelled() and done.exception() is None:
            self._abandoned.pop(this, None)

    def _end_if_begun(self, turn: Turn, this: str, execution: Execution) -> None:
        row = turn.connection.execute(
            _END_EXECUTION, {"this": this, "moment": turn.now, "how": execution.outcome.value}
        ).one_or_none()
        if row is not None:
            # What it used is not known; it ran at the most from then until now.
            limits = json.loads(row.facts)["limits"]
            ran = min(limits["wall_seconds"], max(0, turn.now - row.begun_at) / SECOND)
            self._settle(
                turn,
                row,
                execution,
                KeptRecord.of(execution, self._retention.record_bytes),
                (),
                cpu=round(min(limits["cpu_seconds"], ran * limits["cpus"]) * SECOND),
                memory=memory_time(limits["memory_bytes"], ran),
            )
        self._close_sandbox(turn, this, "lost")

    async def _persist(self, work: Work[None]) -> None:
        """Write an end, and try again while the database is away: it must not get lost."""
        until, pause = self._monotonic() + _PERSIST_SECONDS, 0.1
        while True:
            try:
                return await asyncio.shield(self._writer.submit(work).future)
            except Unavailable:
                if self._monotonic() >= until:
                    raise
                await asyncio.sleep(pause)
                pause = min(2.0, pause * 2)

    def _expire(self, turn: Turn) -> None:
        """A bounded number at a time: nobody waits long behind it."""
        connection, now = turn.connection, turn.now
        second = now // SECOND
        connection.execute(
            delete(rates).where(
                (rates.c.second <= second - WINDOW) | (rates.c.second > second + SKEW)
            )
        )
        connection.execute(delete(idempotency).where(idempotency.c.expires_at <= now))
        over = (
            select(records.c.execution_id)
            .where(records.c.expires_at <= now)
            .order_by(records.c.expires_at)
            .limit(_EXPIRE_TOGETHER)
        )
        connection.execute(delete(records).where(records.c.execution_id.in_(over)))
        old = (
            select(executions.c.id)
            .where(
                executions.c.begun_at <= now - self._retention.execution_seconds * SECOND,
                executions.c.ended_at.is_not(None),
                ~select(records.c.execution_id)
                .where(records.c.execution_id == executions.c.id)
                .exists(),
            )
            .order_by(executions.c.begun_at)
            .limit(_EXPIRE_TOGETHER)
        )
        connection.execute(delete(executions).where(executions.c.id.in_(old)))
        closed = (
            select(sandboxes.c.id)
            .where(
                sandboxes.c.closed_at <= now - self._retention.execution_seconds * SECOND,
            )
            .limit(_EXPIRE_TOGETHER)
        )
        connection.execute(delete(sandboxes).where(sandboxes.c.id.in_(closed)))
        connection.execute(
            delete(usage).where(usage.c.day < now // DAY - self._retention.usage_days)
        )


# --- statements ----------------------------------------------------------------------------------

_INSERT_EXECUTION = insert(executions)
_INSERT_RECORD = insert(records)
_BEAT = (
    update(instances)
    .where(instances.c.id == bindparam("this"), instances.c.ended_at.is_(None))
    .values(heartbeat=instances.c.heartbeat + 1)
)
_END_EXECUTION = (
    update(executions)
    .where(executions.c.id == bindparam("this"), executions.c.ended_at.is_(None))
    .values(
        ended_at=bindparam("moment"),
        outcome=bindparam("how"),
        reserved_cpu=0,
        reserved_memory=0,
    )
    .returning(
        executions.c.id,
        executions.c.tenant,
        executions.c.key_id,
        executions.c.sandbox_id,
        executions.c.begun_at,
        executions.c.facts,
    )
)
_CLOSE_SANDBOX = (
    update(sandboxes)
    .where(sandboxes.c.id == bindparam("this"), sandboxes.c.closed_at.is_(None))
    .values(closed_at=bindparam("moment"), reason=bindparam("why"))
    .returning(
        sandboxes.c.id,
        sandboxes.c.tenant,
        sandboxes.c.key_id,
        sandboxes.c.opened_at,
        sandboxes.c.memory_bytes,
        sandboxes.c.reserved_memory.label("reserved"),
    )
)


def _count_begun(turn: Turn, tenant: str) -> None:
    add = turn.upsert(rates).values(tenant=tenant, second=turn.now // SECOND, begun=1)
    turn.connection.execute(
        add.on_conflict_do_update(
            index_elements=[rates.c.tenant, rates.c.second], set_={"begun": rates.c.begun + 1}
        )
    )


def _charge(
    turn: Turn,
    tenant: str,
    *,
    executions: int = 0,
    sandboxes: int = 0,
    cpu: int = 0,
    memory: int = 0,
    wall: int = 0,
) -> None:
    add = turn.upsert(usage).values(
        tenant=tenant,
        day=turn.now // DAY,
        executions=executions,
        sandboxes=sandboxes,
        cpu=cpu,
        memory=memory,
        wall=wall,
    )
    turn.connection.execute(
        add.on_conflict_do_update(
            index_elements=[usage.c.tenant, usage.c.day],
            set_={
                name: usage.c[name] + add.excluded[name]
                for name in ("executions", "sandboxes", "cpu", "memory", "wall")
            },
        )
    )


def _refuse(
    turn: Turn,
    tenant: str | None,
    key_id: str | None,
    action: Action,
    subject: str,
    refused: Refused,
) -> None:
    turn.journal.add(
        action,
        subject,
        tenant=tenant,
        key_id=key_id,
        facts={"code": refused.code, "reason": str(refused)[:1000]},
    )


def _earlier(
    turn: Turn, tenant: str, key: str, request_digest: str | None
) -> ExecutionEntry | None:
    row = turn.connection.execute(
        select(idempotency).where(idempotency.c.tenant == tenant, idempotency.c.key == key)
    ).one_or_none()
    if row is None:
        return None
    if row.expires_at <= turn.now:
        turn.connection.execute(
            delete(idempotency).where(idempotency.c.tenant == tenant, idempotency.c.key == key)
        )
        return None
    if row.request_digest != request_digest:
        raise Refused(
            "idempotency_conflict",
            "the idempotency key was used for another request; use a new one for each request",
        )
    return _find_execution(turn.connection, tenant, row.execution_id)


def _take_workspace(turn: Turn, tenant: str, name: str) -> int:
    """The fence of whoever takes it now: one more than any before."""
    holder = turn.connection.scalar(
        select(sandboxes.c.id).where(
            sandboxes.c.tenant == tenant,
            sandboxes.c.workspace == name,
            sandboxes.c.closed_at.is_(None),
        )
    )
    if holder is not None:
        raise Refused(
            "conflict", f"the workspace is in use by the sandbox {holder}; close that one first"
        )
    add = turn.upsert(workspaces).values(
        tenant=tenant,
        name=name,
        fence=1,
        generation=0,
        size=0,
        # What is never saved is gone after a day; a save says how long it is kept.
        expires_at=turn.now + DAY,
    )
    fence = turn.connection.scalar(
        add.on_conflict_do_update(
            index_elements=[workspaces.c.tenant, workspaces.c.name],
            set_={"fence": workspaces.c.fence + 1},
        ).returning(workspaces.c.fence)
    )
    assert isinstance(fence, int)
    return fence


# --- reading -------------------------------------------------------------------------------------


def _find_execution(connection: Connection, tenant: str, execution_id: str) -> ExecutionEntry:
    row = connection.execute(
        select(executions, records.c.record, records.c.shortened)
        .outerjoin(records, records.c.execution_id == executions.c.id)
        .where(executions.c.id == cursors.plain(execution_id), executions.c.tenant == tenant)
    ).one_or_none()
    if row is None:
        raise Refused("not_found", "there is no such execution")
    record = None if row.record is None else bytes(row.record)
    return entry(row, record, row.shortened or "")


def _list_executions(
    connection: Connection,
    tenant: str,
    cursor: str | None,
    limit: int,
    sandbox_id: str | None,
    running: bool | None,
) -> ExecutionPage:
    query = select(executions).where(executions.c.tenant == tenant)
    if sandbox_id is not None:
        query = query.where(executions.c.sandbox_id == cursors.plain(sandbox_id))
    if running is not None:
        ended = executions.c.ended_at
        query = query.where(ended.is_(None) if running else ended.is_not(None))
    rows, following = cursors.page(
        connection, query, executions.c.begun_at, executions.c.id, cursor, limit, MAX_PAGE
    )
    return ExecutionPage(tuple(entry(row) for row in rows), following)


def _list_sandboxes(
    connection: Connection, tenant: str, cursor: str | None, limit: int
) -> SandboxPage:
    query = select(sandboxes).where(sandboxes.c.tenant == tenant, sandboxes.c.closed_at.is_(None))
    rows, following = cursors.page(
        connection, query, sandboxes.c.opened_at, sandboxes.c.id, cursor, limit, MAX_PAGE
    )
    return SandboxPage(tuple(_sandbox(row) for row in rows), following)


def _open_sandbox(connection: Connection, tenant: str, sandbox_id: str) -> SandboxEntry | None:
    row = connection.execute(
        select(sandboxes).where(
            sandboxes.c.id == cursors.plain(sandbox_id),
            sandboxes.c.tenant == tenant,
            sandboxes.c.closed_at.is_(None),
        )
    ).one_or_none()
    return None if row is None else _sandbox(row)


def _sandbox(row: Any) -> SandboxEntry:
    return SandboxEntry(
        row.id,
        row.tenant,
        row.key_id,
        row.opened_at,
        row.lease_until,
        row.closed_at,
        row.reason,
        row.workspace,
        row.fence,
    )


def _no_sandbox() -> Refused:
    return Refused("not_found", "there is no such sandbox")


def _usage(connection: Connection, tenant: str, first: int, last: int, now: int) -> UsageReport:
    account = Account.read(connection, tenant, now)
    days = tuple(
        DayUsage(
            row.day,
            row.executions,
            row.sandboxes,
            row.cpu / SECOND,
            row.memory / (1024 * 1000),
            row.wall / SECOND,
        )
        for row in connection.execute(
            select(usage)
            .where(usage.c.tenant == tenant, usage.c.day >= first, usage.c.day <= last)
            .order_by(usage.c.day)
        )
    )
    return UsageReport(days, account.budgets, account.running, account.open, account.recent)


def _check_idempotency_key(key: str) -> None:
    if not 1 <= len(key) <= 128 or not key.isascii() or not key.isprintable():
        raise InvalidRequest("Idempotency-Key", "it is not 1 to 128 printable characters of ASCII")


def _retrieve(done: "asyncio.Future[Any]") -> None:
    """Nobody waits for it; the writer has logged what went wrong."""
    if not done.cancelled():
        done.exception()


def _lock_for_one(database: Path) -> int:
    """SQLite's writers are one machine's, and one gateway's: it then knows all others dead."""
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
