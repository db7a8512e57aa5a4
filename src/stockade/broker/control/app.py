"""The control service over HTTP. No answer of it has a secret in it, not even a refusal's."""

import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from stockade.api.credentials import (
    MAX_USES,
    CredentialBody,
    CredentialList,
    TicketBody,
    UseList,
)
from stockade.api.problems import MEDIA_TYPE, Code, Problem, Violation
from stockade.broker.keys import KeyFault
from stockade.broker.sandboxes import Sandboxes
from stockade.broker.store import Store, TooMany, UnknownCredential
from stockade.broker.tickets import Tickets, TooManyTickets
from stockade.port import KIB

_log: Final = logging.getLogger(__name__)

_MOST_BODY: Final = 256 * KIB
_BEARER: Final = "bearer "

Name = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class Refusal(Exception):
    """A problem that ends a request."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def _tenant(tenant: Annotated[str, Path(max_length=512)]) -> str:
    if not 0 < len(tenant) <= 128 or not tenant.isprintable():
        raise Refusal(
            Problem.make(Code.INVALID_REQUEST, "the tenant is not 1 to 128 printable characters")
        )
    return tenant


Tenant = Annotated[str, Depends(_tenant)]


def create_app(store: Store, tickets: Tickets, sandboxes: Sandboxes, token: str) -> FastAPI:
    """The application. Everything but ``/healthz`` takes the token."""
    # No pages about itself: who calls it has the messages.
    app = FastAPI(title="Stockade broker", docs_url=None, redoc_url=None, openapi_url=None)
    digest = hashlib.sha256(token.encode()).digest()

    @app.middleware("http")
    async def admit(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        if request.url.path != "/healthz":
            given = request.headers.get("authorization", "")
            shown = given[len(_BEARER) :] if given[: len(_BEARER)].lower() == _BEARER else ""
            # Of digests: neither length nor first difference shows in the time that it takes.
            found = hashlib.sha256(shown.encode("utf-8", "replace")).digest()
            if not hmac.compare_digest(found, digest):
                return _answer(
                    Problem.make(Code.UNAUTHENTICATED, "the control token is not this, or missing")
                )
        length = request.headers.get("content-length", "")
        if request.method in ("PUT", "POST") and (
            not length.isdigit() or len(length) > 9 or int(length) > _MOST_BODY
        ):
            return _answer(
                Problem.make(
                    Code.TOO_LARGE, f"a body says its length, of at most {_MOST_BODY} bytes"
                )
            )
        try:
            return await call_next(request)
        except Exception as error:  # noqa: BLE001 - a fault of ours is an answer, too
            # Its kind alone: what it says may have come from the request.
            _log.error("fault of kind %s in a request to %s", type(error).__name__, request.method)
            return _answer(Problem.make(Code.INTERNAL, "a fault of the broker itself"))

    _answer_faults(app)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.put("/v1/tenants/{tenant}/credentials/{name}", status_code=204)
    async def put(tenant: Tenant, name: Name, body: CredentialBody) -> Response:
        secret = body.secret.get_secret_value()
        made = await store.put(tenant, name, secret, body.grants)
        # What is open goes on without it: it was given the old one.
        await sandboxes.revoke(tenant, name)
        return Response(status_code=201 if made else 204)

    @app.get("/v1/tenants/{tenant}/credentials")
    async def list_all(tenant: Tenant) -> CredentialList:
        return CredentialList(credentials=await store.credentials(tenant))

    @app.delete("/v1/tenants/{tenant}/credentials/{name}", status_code=204)
    async def delete(tenant: Tenant, name: Name) -> Response:
        await store.delete(tenant, name)
        await sandboxes.revoke(tenant, name)
        return Response(status_code=204)

    @app.get("/v1/tenants/{tenant}/uses")
    async def uses(
        tenant: Tenant,
        execution: Annotated[str | None, Query(max_length=64)] = None,
        credential: Annotated[str | None, Query(max_length=64)] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_USES)] = 100,
    ) -> UseList:
        found = await store.uses(tenant, execution=execution, credential=credential, limit=limit)
        return UseList(uses=found)

    @app.post("/v1/tickets")
    async def ticket(body: TicketBody) -> dict[str, Any]:
        known = {each.name: each for each in await store.credentials(body.tenant)}
        for name in body.credentials:
            if name not in known:
                raise UnknownCredential(name)
        rules = [
            str(grant.egress_rule) for name in body.credentials for grant in known[name].grants
        ]
        issued = tickets.issue(body.tenant, body.execution, body.credentials)
        # An executor gives it on as it is: the broker's own words, and opaque to everybody else.
        return {"ticket": f"{body.execution}:{issued}", "rules": list(dict.fromkeys(rules))}

    return app


def _answer_faults(app: FastAPI) -> None:
    async def refused(_request: Request, error: Exception) -> Response:
        match error:
            case Refusal():
                return _answer(error.problem)
            case UnknownCredential():
                return _answer(Problem.make(Code.NOT_FOUND, str(error)))
            case TooMany():
                return _answer(Problem.make(Code.CONFLICT, str(error)))
            case TooManyTickets():
                return _answer(Problem.make(Code.UNAVAILABLE, str(error), retry_after=5.0))
            case RequestValidationError():
                return _answer(_invalid(error))
            case HTTPException():
                code = Code.METHOD_NOT_ALLOWED if error.status_code == 405 else Code.NOT_FOUND
                return _answer(Problem.make(code, "there is no such path, or not for this method"))
        assert isinstance(error, KeyFault)
        return _answer(Problem.make(Code.INTERNAL, str(error)))

    for kind in (
        Refusal,
        UnknownCredential,
        TooMany,
        TooManyTickets,
        RequestValidationError,
        HTTPException,
        KeyFault,
    ):
        app.add_exception_handler(kind, refused)


def _invalid(error: RequestValidationError) -> Problem:
    """Which field, and what is wrong with it; never what was in it."""
    errors = tuple(
        Violation(
            field=".".join(str(part) for part in each["loc"] if part != "body")[:200] or "body",
            message=str(each["msg"]).removeprefix("Value error, ")[:500],
        )
        for each in error.errors()[:20]
    )
    detail = "; ".join(f"{each.field}: {each.message}" for each in errors)
    return Problem.make(Code.INVALID_REQUEST, detail[:2000], errors=errors)


def _answer(problem: Problem) -> Response:
    headers = {"cache-control": "no-store"}
    if problem.code is Code.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(
        problem.model_dump(mode="json", exclude_none=True),
        status_code=problem.status,
        headers=headers,
        media_type=MEDIA_TYPE,
    )
