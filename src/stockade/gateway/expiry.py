"""Throwing away what is over: a bounded number at a time, so that nobody waits long behind it."""

from typing import Final

from sqlalchemy import delete, select

from stockade.gateway.admission import SKEW, WINDOW
from stockade.gateway.clock import DAY, SECOND
from stockade.gateway.policy import Retention
from stockade.gateway.schema import executions, idempotency, rates, records, sandboxes, usage
from stockade.gateway.writer import Turn

_TOGETHER: Final = 500


def expire(turn: Turn, retention: Retention) -> None:
    """Of everything but the audit trail, which is never thrown away."""
    connection, now = turn.connection, turn.now
    second = now // SECOND
    listed_since = now - retention.execution_seconds * SECOND
    connection.execute(
        delete(rates).where((rates.c.second <= second - WINDOW) | (rates.c.second > second + SKEW))
    )
    connection.execute(delete(idempotency).where(idempotency.c.expires_at <= now))
    over = (
        select(records.c.execution_id)
        .where(records.c.expires_at <= now)
        .order_by(records.c.expires_at)
        .limit(_TOGETHER)
    )
    connection.execute(delete(records).where(records.c.execution_id.in_(over)))
    has_record = (
        select(records.c.execution_id).where(records.c.execution_id == executions.c.id).exists()
    )
    old = (
        select(executions.c.id)
        .where(
            executions.c.begun_at <= listed_since, executions.c.ended_at.is_not(None), ~has_record
        )
        .order_by(executions.c.begun_at)
        .limit(_TOGETHER)
    )
    connection.execute(delete(executions).where(executions.c.id.in_(old)))
    closed = select(sandboxes.c.id).where(sandboxes.c.closed_at <= listed_since).limit(_TOGETHER)
    connection.execute(delete(sandboxes).where(sandboxes.c.id.in_(closed)))
    connection.execute(delete(usage).where(usage.c.day < now // DAY - retention.usage_days))
