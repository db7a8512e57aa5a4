"""Who comes in: the token is compared before anything else of a request is looked at."""

import asyncio
import hashlib
import hmac
import re
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stockade.api import headers as names
from stockade.api.problems import Code, Problem
from stockade.executor.service.bodies import CallerGone, header
from stockade.executor.service.logs import Log
from stockade.executor.service.problems import Refusal, problem_of, send_problem
from stockade.port import MIB, StockadeError

_OPEN: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_WITHOUT_TENANT: Final = frozenset({"/v1/drain"})
_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_TENANT: Final = names.TENANT.lower().encode()
_BEARER: Final = b"bearer "
_MOST_DISCARDED: Final = 8 * MIB
_DISCARD_SECONDS: Final = 1.0


class Gate:
    """In front of everything. Whatever goes wrong behind it becomes a problem."""

    def __init__(self, app: ASGIApp, token: str, log: Log) -> None:
        if not token:
            raise ValueError("a service without a token would refuse every request")
        self._app = app
        self._digest = hashlib.sha256(token.encode()).digest()
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        answering = body_came = False

        async def noting(message: Message) -> None:
            nonlocal answering
            answering = True
            await send(message)

        async def taking() -> Message:
            nonlocal body_came
            message = await receive()
            body_came = not message.get("more_body", False)
            return message

        request_id: str | None = None
        try:
            request_id = _request_id(scope)
            # Routes are found by what was sent: an escaped slash parts no path.
            scope["path"] = scope.get("raw_path", b"").decode("latin-1")
            if scope["path"] not in _OPEN:
                self._admit(scope)
            await self._app(scope, taking, noting)
            return
        except Refusal as refusal:
            problem = refusal.problem
        except HTTPException:
            # Of the router: which methods a path takes, its endpoint says itself.
            problem = Problem.make(Code.NOT_FOUND, "there is no such path")
        except CallerGone as error:
            problem = Problem.make(Code.INVALID_REQUEST, str(error))
        except StockadeError as error:
            problem = problem_of(error)
        except Exception as error:  # noqa: BLE001 - a fault of ours is an answer, too
            self._log.error("fault", request_id=request_id, path=scope["path"], exc_info=error)
            problem = Problem.make(
                Code.INTERNAL, "a fault of Stockade itself; the executor's log says more"
            )
        if answering:
            # What has begun cannot be unsaid: uvicorn cuts what is not finished.
            self._log.info("answer_cut", request_id=request_id, detail=problem.detail)
            return
        if not body_came:
            await _discard(scope, receive)
        await send_problem(send, problem, request_id)

    def _admit(self, scope: Scope) -> None:
        given = header(scope, b"authorization") or b""
        token = given[len(_BEARER) :] if given[: len(_BEARER)].lower() == _BEARER else b""
        # Of digests: neither length nor first difference shows in the time that it takes.
        if not hmac.compare_digest(hashlib.sha256(token).digest(), self._digest):
            raise Refusal(
                Problem.make(Code.UNAUTHENTICATED, "the executor's token is not this, or missing")
            )
        if scope["path"] in _WITHOUT_TENANT:
            return
        value = header(scope, _TENANT)
        if value is None:
            raise Refusal(
                Problem.make(Code.INVALID_REQUEST, f"the header {names.TENANT} is missing")
            )
        try:
            tenant = names.decode_tenant(value.decode("ascii"))
        except ValueError as error:
            raise Refusal(
                Problem.make(Code.INVALID_REQUEST, f"the header {names.TENANT}: {error}")
            ) from None
        if len(tenant) > 128 or not tenant.isprintable():
            raise Refusal(
                Problem.make(
                    Code.INVALID_REQUEST,
                    f"the header {names.TENANT} is not 1 to 128 printable characters",
                )
            )
        scope["stockade.tenant"] = tenant


async def _discard(scope: Scope, receive: Receive) -> None:
    """Take what is on its way, within reason: a caller who still sends may not hear an answer."""
    if any(name == b"expect" for name, _ in scope["headers"]):
        return  # he waits to be told
    taken = 0
    try:
        async with asyncio.timeout(_DISCARD_SECONDS):
            while taken < _MOST_DISCARDED:
                message = await receive()
                taken += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        pass


def _request_id(scope: Scope) -> str | None:
    value = header(scope, b"x-request-id")
    if value is None or not _REQUEST_ID.fullmatch(value):
        return None
    return value.decode("ascii")
