"""What is around every request: its id, its span, its line in the log, its numbers, and a problem
for whatever nobody foresaw."""

import asyncio
import re
import secrets
import time
from typing import Any, Final

from opentelemetry.trace import SpanKind
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stockade.gateway.api.bodies import Room
from stockade.gateway.api.problems import answer, fault
from stockade.gateway.logs import Log
from stockade.gateway.metrics import Metrics
from stockade.gateway.tracing import Tracing

REQUEST_ID: Final = "X-Request-Id"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
# Nothing of ours is to be guessed at, framed, or kept by a cache.
_ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
_UNLESS_SAID: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
)


class Envelope:
    """The outermost application."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, log: Log, tracing: Tracing) -> None:
        self._app = app
        self._metrics = metrics
        self._log = log
        self._tracing = tracing
        self._room = Room()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        headers = Headers(scope=scope)
        said = headers.getlist(REQUEST_ID)
        asked = said[0] if len(said) == 1 else ""
        request_id = asked if _REQUEST_ID.fullmatch(asked) else "r" + secrets.token_hex(12)
        state: dict[str, Any] = scope.setdefault("state", {})
        state |= {"request_id": request_id, "room": self._room, "log": self._log}
        status: int | None = None
        whole = False
        begun = time.perf_counter()

        async def enveloped(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.body":
                whole = not message.get("more_body", False)
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                message["headers"] = _with(message.get("headers", ()), request_id)
            elif message["type"] == "websocket.accept":
                status = 101
                message["headers"] = [
                    *message.get("headers", ()),
                    (REQUEST_ID.lower().encode(), request_id.encode()),
                ]
            await send(message)

        method = scope.get("method", "WS")
        method = method if method in _METHODS or method == "WS" else "other"
        with self._tracing.span(
            "gateway.request",
            SpanKind.SERVER,
            parent=self._tracing.incoming(headers),
            attributes={"http.request.method": method, "stockade.request_id": request_id},
        ) as span:
            try:
                await self._app(scope, receive, enveloped)
                if whole:
                    # A turn's second write leaves at its end: not behind what is noted here.
                    await asyncio.sleep(0)
            except ClientDisconnect:
                state["left"] = True
            except Exception:
                self._log.exception("fault", request_id=request_id, route=_route(scope))
                if status is None:
                    await self._tell_fault(scope, receive, enveloped)
                elif not whole:
                    raise  # the answer is cut: the caller is to see that it is not whole
            finally:
                route = _route(scope)
                span.set_attribute("http.route", route)
                if status is not None:
                    span.set_attribute("http.response.status_code", status)
                self._note(scope, method, route, status, time.perf_counter() - begun)

    async def _tell_fault(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await answer(fault(), scope)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1011})

    def _note(
        self, scope: Scope, method: str, route: str, status: int | None, seconds: float
    ) -> None:
        state = scope["state"]
        self._metrics.requests.labels(method, route, str(status or "none")).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        if "problem" in state:
            self._metrics.refused.labels(state["problem"]).inc()
        caller = state.get("caller")
        known = {
            "problem": state.get("problem"),
            "tenant": caller.tenant if caller else None,
            "key": caller.key_id if caller else None,
            "subject": state.get("subject"),
            "left": state.get("left"),
        }
        quiet = route in ("/healthz", "/readyz", "/metrics") and status == 200
        (self._log.debug if quiet else self._log.info)(
            "request",
            method=method,
            route=route,
            status=status,
            seconds=round(seconds, 6),
            request_id=state["request_id"],
            **{name: value for name, value in known.items() if value is not None},
        )


def _route(scope: Scope) -> str:
    """The template. Of a path that is none of ours there is nothing to say."""
    return getattr(scope.get("route"), "path", None) or "none"


def _with(headers: Any, request_id: str) -> list[tuple[bytes, bytes]]:
    found = list(headers)
    said = {name.lower() for name, _ in found}
    found += _ALWAYS
    found += [(name, value) for name, value in _UNLESS_SAID if name not in said]
    found.append((REQUEST_ID.lower().encode(), request_id.encode()))
    return found
