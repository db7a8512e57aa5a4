"""Whether a tenant's budgets allow one more. Asked within the transaction that begins it."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sqlalchemy import Connection, bindparam, func, select, true

from stockade.gateway.clock import DAY, SECOND
from stockade.gateway.policy import Budgets
from stockade.gateway.prepared import Prepared
from stockade.gateway.schema import executions, rates, sandboxes, tenants, usage
from stockade.port import GIB, MIB, Refused

WINDOW: Final = 60
# Two gateways' clocks may differ by this. What lies farther ahead was written before a clock was
# set back, and counts no more.
SKEW: Final = 5
_SOON: Final = 1.0
_GIB_SECOND: Final = GIB // MIB * 1000  # in MiB-milliseconds

_running = (
    select(
        func.count().label("running"),
        func.coalesce(func.sum(executions.c.reserved_cpu), 0).label("running_cpu"),
        func.coalesce(func.sum(executions.c.reserved_memory), 0).label("running_memory"),
    )
    .where(executions.c.tenant == bindparam("tenant"), executions.c.ended_at.is_(None))
    .subquery("running")
)
_open = (
    select(
        func.count().label("open"),
        func.coalesce(func.sum(sandboxes.c.reserved_memory), 0).label("open_memory"),
    )
    .where(sandboxes.c.tenant == bindparam("tenant"), sandboxes.c.closed_at.is_(None))
    .subquery("open")
)
_recent = (
    select(func.coalesce(func.sum(rates.c.begun), 0).label("recent"))
    .where(
        rates.c.tenant == bindparam("tenant"),
        rates.c.second > bindparam("second") - WINDOW,
        rates.c.second <= bindparam("second") + SKEW,
    )
    .subquery("recent")
)
_today = (
    select(
        func.coalesce(func.sum(usage.c.cpu), 0).label("used_cpu"),
        func.coalesce(func.sum(usage.c.memory), 0).label("used_memory"),
    )
    .where(usage.c.tenant == bindparam("tenant"), usage.c.day == bindparam("day"))
    .subquery("today")
)
_ACCOUNT: Final = Prepared(
    select(tenants.c.disabled_at, tenants.c.budgets, _running, _open, _recent, _today)
    .select_from(
        tenants.join(_running, true())
        .join(_open, true())
        .join(_recent, true())
        .join(_today, true())
    )
    .where(tenants.c.name == bindparam("tenant"))
)


@dataclass(frozen=True, slots=True)
class Account:
    """What a tenant uses at this moment, and what it may."""

    budgets: Budgets
    running: int
    open: int
    recent: int
    used_cpu: int
    used_memory: int
    reserved_cpu: int
    reserved_memory: int
    now: int

    @classmethod
    def read(cls, connection: Connection, tenant: str, now: int) -> "Account":
        """Raises :class:`Refused` for a tenant that is disabled."""
        row = _ACCOUNT.one(connection, tenant=tenant, second=now // SECOND, day=now // DAY)
        if row is None or row.disabled_at is not None:
            raise Refused("unauthenticated", "the tenant is disabled")
        return cls(
            budgets=_budgets(row.budgets),
            running=row.running,
            open=row.open,
            recent=int(row.recent),
            used_cpu=int(row.used_cpu),
            used_memory=int(row.used_memory),
            reserved_cpu=int(row.running_cpu),
            reserved_memory=int(row.running_memory) + int(row.open_memory),
            now=now,
        )

    def admit_execution(self, cpu: int, memory: int) -> None:
        """Raises :class:`Refused`. ``cpu`` and ``memory`` are what it may use at the most."""
        budget = self.budgets.concurrency
        if self.running >= budget:
            raise _exhausted(
                f"{self.running} executions run, and {budget} may at once; wait for one to end",
                _SOON if budget else None,
            )
        self._admit_use("cpu", self.used_cpu, self.reserved_cpu, cpu)
        self._admit_use("memory", self.used_memory, self.reserved_memory, memory)

    def admit_sandbox(self, memory: int) -> None:
        """Raises :class:`Refused`. ``memory`` is what it may hold until its lease ends."""
        budget = self.budgets.sandboxes
        if self.open >= budget:
            raise _exhausted(
                f"{self.open} sandboxes are open, and {budget} may be at once; close one",
                _SOON if budget else None,
            )
        self.admit_memory(memory)

    def admit_memory(self, memory: int) -> None:
        """Of a lease that is extended. Raises :class:`Refused`."""
        self._admit_use("memory", self.used_memory, self.reserved_memory, memory)

    def _admit_use(self, what: str, used: int, reserved: int, more: int) -> None:
        """What runs is reserved at its ceiling, so that a day's budget is never overdrawn."""
        if what == "cpu":
            unit, scale, budget = "CPU-seconds", SECOND, self.budgets.cpu_seconds_per_day
        else:
            unit, scale, budget = "GiB-seconds of memory", _GIB_SECOND, (
                self.budgets.memory_seconds_per_day
            )  # fmt: skip
        if not more or used + reserved + more <= budget * scale:
            return
        # What is reserved comes back as things end; what is used, with the next day.
        soon = used + more <= budget * scale
        raise _exhausted(
            f"of {budget} {unit} a day {used / scale:.6g} are used and {reserved / scale:.6g} "
            f"reserved for what runs; this may take {more / scale:.6g} more: lower its limits, or "
            + ("wait for something to end" if soon else "wait for the next day (UTC)"),
            _SOON if soon else math.ceil((DAY - self.now % DAY) / SECOND),
        )


def rate_refusal(connection: Connection, account: Account, tenant: str) -> Refused | None:
    """Where too many were begun within a minute: the refusal, with when there is room again."""
    budget = account.budgets.executions_per_minute
    if account.recent < budget:
        return None
    second, left = account.now // SECOND, account.recent
    text = f"{account.recent} executions were begun within a minute, and {budget} may be"
    if not budget:
        return _exhausted(text, None)
    oldest_first = connection.execute(
        select(rates.c.second, rates.c.begun)
        .where(
            rates.c.tenant == tenant,
            rates.c.second > second - WINDOW,
            rates.c.second <= second + SKEW,
        )
        .order_by(rates.c.second)
    )
    wait = WINDOW
    for row in oldest_first:
        left -= row.begun
        if left < budget:
            wait = max(1, row.second + WINDOW - second)
            break
    return _exhausted(f"{text}; wait {wait} s", float(wait))


def _exhausted(text: str, retry_after: float | None) -> Refused:
    return Refused("budget_exhausted", text, retry_after)


@lru_cache(1024)
def _budgets(text: str) -> Budgets:
    return Budgets.model_validate_json(text)
