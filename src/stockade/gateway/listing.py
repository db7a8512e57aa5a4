"""Reading what the ledger wrote. Each query is bound to a tenant."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, select

from stockade.gateway import cursors
from stockade.gateway.admission import Account
from stockade.gateway.clock import SECOND
from stockade.gateway.executions import ExecutionEntry, entry
from stockade.gateway.policy import Budgets
from stockade.gateway.schema import executions, records, sandboxes, usage
from stockade.port import Refused

MAX_PAGE: Final = 500


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
    reserved_cpu_seconds: float
    """Of today's budget, for what runs."""
    reserved_memory_gib_seconds: float


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


def find_execution(connection: Connection, tenant: str, execution_id: str) -> ExecutionEntry:
    """With its record. Raises :class:`Refused`."""
    row = connection.execute(
        select(executions, records.c.record, records.c.shortened)
        .outerjoin(records, records.c.execution_id == executions.c.id)
        .where(executions.c.id == cursors.plain(execution_id), executions.c.tenant == tenant)
    ).one_or_none()
    if row is None:
        raise Refused("not_found", "there is no such execution")
    record = None if row.record is None else bytes(row.record)
    return entry(row, record, row.shortened or "")


def list_executions(
    connection: Connection,
    tenant: str,
    cursor: str | None,
    limit: int,
    sandbox_id: str | None = None,
    running: bool | None = None,
    tool: str | None = None,
) -> ExecutionPage:
    """Raises :class:`InvalidRequest`."""
    query = select(executions).where(executions.c.tenant == tenant)
    if sandbox_id is not None:
        query = query.where(executions.c.sandbox_id == cursors.plain(sandbox_id))
    if tool is not None:
        query = query.where(executions.c.tool == cursors.plain(tool))
    if running is not None:
        ended = executions.c.ended_at
        query = query.where(ended.is_(None) if running else ended.is_not(None))
    rows, following = cursors.page(
        connection, query, executions.c.begun_at, executions.c.id, cursor, limit, MAX_PAGE
    )
    return ExecutionPage(tuple(entry(row) for row in rows), following)


def list_sandboxes(
    connection: Connection, tenant: str, cursor: str | None, limit: int
) -> SandboxPage:
    """The open ones. Raises :class:`InvalidRequest`."""
    query = select(sandboxes).where(sandboxes.c.tenant == tenant, sandboxes.c.closed_at.is_(None))
    rows, following = cursors.page(
        connection, query, sandboxes.c.opened_at, sandboxes.c.id, cursor, limit, MAX_PAGE
    )
    return SandboxPage(tuple(sandbox(row) for row in rows), following)


def open_sandbox(connection: Connection, tenant: str, sandbox_id: str) -> SandboxEntry:
    """An open one. Raises :class:`Refused`."""
    row = connection.execute(
        select(sandboxes).where(
            sandboxes.c.id == cursors.plain(sandbox_id),
            sandboxes.c.tenant == tenant,
            sandboxes.c.closed_at.is_(None),
        )
    ).one_or_none()
    if row is None:
        raise Refused("not_found", "there is no such sandbox")
    return sandbox(row)


def sandbox(row: Any) -> SandboxEntry:
    """Of a row of ``sandboxes``."""
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


def report_usage(
    connection: Connection, tenant: str, first: int, last: int, now: int
) -> UsageReport:
    """Days that are not there were without any use."""
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
    return UsageReport(
        days,
        account.budgets,
        account.running,
        account.open,
        account.recent,
        account.reserved_cpu / SECOND,
        account.reserved_memory / (1024 * 1000),
    )
