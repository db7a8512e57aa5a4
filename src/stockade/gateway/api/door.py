"""Who comes in: checked before anything else of a request is read, for every path at once.

An endpoint that is added below ``/v1`` is behind the door without saying so.
"""

import re
from collections.abc import Collection
from typing import Final, Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stockade.api.headers import ID, IDEMPOTENCY_KEY
from stockade.api.problems import repeated
from stockade.gateway.api.problems import RecordRefusal, answer, problem_of
from stockade.gateway.journal import Action
from stockade.gateway.keys import Caller
from stockade.port import Refused, StockadeError

TERMINAL_PROTOCOL: Final = "stockade.terminal.v1"
_KEY_PROTOCOL: Final = "stockade.key."
_ONCE: Final = (
    "Authorization",
    "Content-Type",
    IDEMPOTENCY_KEY,
    "If-Range",
    "Last-Event-ID",
    "Range",
    ID,
    "X-Request-Id",
)
"""Headers that are read here and are no lists."""
_NAME: Final = re.compile(r"[^@/?#\\\s]*")
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Authenticator(Protocol):
    """What tells a caller by a key."""

    async def authenticate(self, text: str) -> Caller:
        """Raises :class:`~stockade.port.Refused`."""
        ...


class Door:
    """Authenticates what goes below ``/v1``, and keeps browsers' strangers out everywhere.

    ``nobody``: the caller without a key, in ``auth_mode=dev`` alone. ``hosts``: what ``Host`` may
    say; empty for anything. ``origins``: pages that may call from a browser.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Authenticator,
        *,
        nobody: Caller | None = None,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        refused: RecordRefusal,
    ) -> None:
        self._app = app
        self._refused = refused
        self._keys = keys
        self._nobody = nobody
        # A name that a stranger's page had resolved to us is not one of ours (DNS rebinding).
        self._hosts = frozenset(hosts) | (_LOOPBACK if nobody is not None else frozenset())
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        twice = next((name for name in _ONCE if len(headers.getlist(name)) > 1), None)
        if twice is not None:
            await _refuse(answer(repeated(twice), scope), scope, receive, send)
            return
        try:
            # A probe knows an address, and no name; there is nothing to be had from these two.
            if scope["path"] not in ("/healthz", "/readyz"):
                self._check_host(headers)
            self._check_origin(headers)
            if scope["path"] == "/v1" or scope["path"].startswith("/v1/"):
                scope["state"]["caller"] = await self._caller(scope, headers)
        except StockadeError as error:
            if isinstance(error, Refused):
                self._refused(None, Action.REQUEST_REFUSED, "door", error)
            await _refuse(answer(problem_of(error), scope), scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        said = headers.getlist("host")
        if not self._hosts:
            return
        name = _host(said[0]) if len(said) == 1 else None
        if name not in self._hosts:
            raise Refused(
                "forbidden",
                "the Host header names another service: this one is known as "
                + ", ".join(sorted(self._hosts)),
            )

    def _check_origin(self, headers: Headers) -> None:
        for origin in headers.getlist("origin"):
            if origin not in self._origins:
                raise Refused(
                    "forbidden", "pages of that origin may not call: gateway.origins has none of it"
                )
        # Browsers send it where there is no Origin: an image, a link, a form.
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not headers.get(
            "origin"
        ):
            raise Refused("forbidden", "another site's page may not call")

    async def _caller(self, scope: Scope, headers: Headers) -> Caller:
        said = headers.get("authorization")
        if said is not None:
            scheme, _, key = said.partition(" ")
            if scheme.lower() != "bearer" or not key:
                raise Refused("unauthenticated", "send Authorization: Bearer KEY")
            return await self._keys.authenticate(key.strip(" "))
        if scope["type"] == "websocket":
            for protocol in scope.get("subprotocols", ()):
                if protocol.startswith(_KEY_PROTOCOL):
                    return await self._keys.authenticate(protocol.removeprefix(_KEY_PROTOCOL))
        if self._nobody is not None:
            return self._nobody
        raise Refused("unauthenticated", "send Authorization: Bearer KEY")


async def _refuse(refusal: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await refuse_websocket(scope, send, refusal.status_code, bytes(refusal.body))
    else:
        await refusal(scope, receive, send)


async def refuse_websocket(scope: Scope, send: Send, status: int, body: bytes) -> None:
    """Answer the handshake with a problem; where the server cannot, only close it."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    await send(
        {
            "type": "websocket.http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/problem+json")],
        }
    )
    await send({"type": "websocket.http.response.body", "body": body})


def _host(value: str) -> str | None:
    if not _NAME.fullmatch(value):
        return None  # of "evil@localhost" and "localhost/evil", another reads another name
    try:
        return urlsplit(f"//{value}").hostname
    except ValueError:
        return None
