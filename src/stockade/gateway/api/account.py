"""What a tenant used, and what was done in its name."""

from datetime import date, timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Response

from stockade.api.answers import (
    AuditList,
    AuditRecordMessage,
    BudgetMessage,
    DayUsage,
    UsageReport,
)
from stockade.gateway.api.callers import Audits, Cursor, PageSize, Reads
from stockade.gateway.api.forms import JsonAnswer
from stockade.gateway.api.lean import LeanRoute
from stockade.gateway.api.services import Services
from stockade.gateway.clock import DAY

_EPOCH = date(1970, 1, 1)


def router(services: Services) -> APIRouter:
    """``/v1/usage`` and ``/v1/audit``."""
    routes = APIRouter(prefix="/v1", route_class=LeanRoute)

    @routes.get(
        "/usage",
        tags=["usage"],
        response_model=UsageReport,
        summary="What was used, a day each, and the budget",
        operation_id="get_usage",
    )
    async def get_usage(
        caller: Reads,
        days: Annotated[int, Query(ge=1, le=400, description="Up to today, UTC.")] = 30,
    ) -> Response:
        today = services.database.clock() // DAY
        report = await services.ledger.usage(caller.tenant, max(0, today - days + 1), today)
        return JsonAnswer(
            UsageReport(
                days=tuple(
                    DayUsage(
                        day=_EPOCH + timedelta(days=one.day),
                        executions=one.executions,
                        sandboxes=one.sandboxes,
                        cpu_seconds=one.cpu_seconds,
                        memory_gib_seconds=one.memory_gib_seconds,
                        wall_seconds=one.wall_seconds,
                    )
                    for one in report.days
                ),
                running=report.running,
                open_sandboxes=report.open_sandboxes,
                begun_last_minute=report.begun_last_minute,
                budget=BudgetMessage.model_validate(report.budgets.model_dump()),
            )
        )

    @routes.get(
        "/audit",
        tags=["audit"],
        response_model=AuditList,
        summary="The tenant's own audit records, latest first",
        operation_id="list_audit",
    )
    async def list_audit(
        caller: Audits,
        cursor: Cursor = None,
        limit: PageSize = 100,
        action: Annotated[str | None, Query(max_length=64)] = None,
        subject: Annotated[str | None, Query(max_length=512)] = None,
    ) -> Response:
        page = await services.audit.query(
            caller.tenant, cursor, limit, action=action, subject=subject
        )
        records = tuple(AuditRecordMessage.model_validate(one.for_tenant()) for one in page.records)
        return JsonAnswer(AuditList(records=records, next=page.next))

    return routes
