"""For whoever operates it: without a key, and without a word about tenants."""

import asyncio

from fastapi import APIRouter, Request, Response
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from stockade.api.answers import HealthMessage
from stockade.api.problems import Code, Problem
from stockade.gateway.api.forms import JsonAnswer
from stockade.gateway.api.lean import LeanRoute
from stockade.gateway.api.problems import answer
from stockade.gateway.api.services import Services

_DATABASE_SECONDS = 2.0


def router(services: Services) -> APIRouter:
    """``/healthz``, ``/readyz`` and ``/metrics``."""
    routes = APIRouter(tags=["operation"], route_class=LeanRoute)

    @routes.get(
        "/healthz", response_model=HealthMessage, summary="It lives", operation_id="healthz"
    )
    async def healthz() -> Response:
        """Its event loop runs: nothing is asked of anything else."""
        return JsonAnswer(HealthMessage(status="ok"))

    @routes.get(
        "/readyz", response_model=HealthMessage, summary="It takes calls", operation_id="readyz"
    )
    async def readyz(request: Request) -> Response:
        """Its database answers, an executor takes calls, and it is not stopping."""
        why = None
        if services.calls.draining:
            why = "it is stopping"
        elif not services.executors.ready:
            why = "no executor takes calls"
        elif not await _database_answers():
            why = "the database does not answer"
        if why is not None:
            return answer(Problem.make(Code.UNAVAILABLE, why), request.scope)
        return JsonAnswer(HealthMessage(status="ok"))

    async def _database_answers() -> bool:
        try:
            async with asyncio.timeout(_DATABASE_SECONDS):
                await services.database.run(lambda connection: connection.scalar(text("SELECT 1")))
        except (TimeoutError, SQLAlchemyError):
            return False
        return True

    if services.settings.metrics.enabled:

        @routes.get(
            "/metrics",
            response_class=Response,
            responses={
                200: {
                    "content": {"text/plain": {"schema": {"type": "string"}}},
                    "description": "In Prometheus's text format.",
                }
            },
            summary="Prometheus",
            operation_id="metrics",
        )
        async def metrics() -> Response:
            return Response(
                services.metrics.text(), headers={"Content-Type": services.metrics.media_type}
            )

    return routes
