"""The application: its routes, behind the door, in the envelope."""

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

import stockade
from stockade.gateway.api import (
    account,
    credentials,
    executions,
    health,
    kept,
    openapi,
    page,
    problems,
    sandboxes,
    terminal,
    tools,
)
from stockade.gateway.api.door import Door
from stockade.gateway.api.envelope import REQUEST_ID, Envelope
from stockade.gateway.api.lean import LeanApi
from stockade.gateway.api.services import Services

_DESCRIPTION = (
    "Runs code that nobody reviewed inside a boundary with stated properties. Every path below /v1 "
    "demands an API key. Errors are problems (RFC 9457) with a stable code."
)


def create_app(services: Services) -> ASGIApp:
    """The gateway's whole API."""
    settings = services.settings
    door = Door(
        RawPaths(create_api(services)),
        services.keys,
        nobody=services.nobody,
        hosts=settings.hosts,
        origins=settings.origins,
        refused=services.ledger.record_refusal,
    )
    return Envelope(
        _shared(door, settings.origins) if settings.origins else door,
        metrics=services.metrics,
        log=services.log,
        tracing=services.tracing,
    )


def create_api(services: Services) -> FastAPI:
    """The routes alone."""
    app = LeanApi(
        title="Stockade",
        version=stockade.__version__,
        description=_DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    problems.install(app, services.ledger.record_refusal)
    runner = executions.Runner(services)
    app.add(executions.router(services, runner))
    app.add(sandboxes.router(services, runner))
    app.add(terminal.router(services))
    app.add(kept.artefacts_router(services))
    app.add(kept.workspaces_router(services))
    app.add(credentials.router(services))
    app.add(tools.router(services))
    app.add(account.router(services))
    app.add(health.router(services))
    openapi.install(app)

    @app.get("/openapi.json", include_in_schema=False)
    async def document() -> Response:
        return JSONResponse(app.openapi())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(
            page.page(app.openapi()), headers={"Content-Security-Policy": page.POLICY}
        )

    return app


def _shared(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Tell browsers which pages may call (CORS). A key is still needed: none goes by itself."""
    return CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=[
            "Accept", "Authorization", "Content-Type", "Idempotency-Key", "If-None-Match",
            "Last-Event-ID", "Prefer", "Range", REQUEST_ID,
        ],
        expose_headers=["Content-Range", "ETag", "Location", "Retry-After", REQUEST_ID],
    )  # fmt: skip


class RawPaths:
    """Routes by the path as it was sent.

    A name in it may be any bytes, and one that was decoded for us may be another one: ``%2F`` is
    no ``/``, and what is no UTF-8 would be replaced.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if raw is not None and scope["path"].startswith("/v1/"):
            scope["path"] = raw.partition(b"?")[0].decode("ascii", "replace")
        await self._app(scope, receive, send)
