"""Every error as a problem (RFC 9457)."""

from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from stockade.api import fields
from stockade.api.problems import MEDIA_TYPE, Code, Problem, Violation
from stockade.gateway.journal import Action
from stockade.gateway.keys import Caller
from stockade.port import Refused, StockadeError

_MOST_ERRORS = 20
_LONGEST = 300

_CODE_OF_STATUS = {
    401: Code.UNAUTHENTICATED,
    403: Code.FORBIDDEN,
    404: Code.NOT_FOUND,
    405: Code.METHOD_NOT_ALLOWED,
    406: Code.NOT_ACCEPTABLE,
    409: Code.CONFLICT,
    413: Code.TOO_LARGE,
    415: Code.UNSUPPORTED_MEDIA_TYPE,
    503: Code.UNAVAILABLE,
}
_NOT_FOUND = "there is no such thing"
_FAULT = "a fault of Stockade itself; its log has more under this request_id"


def shown(text: object, longest: int = _LONGEST) -> str:
    """What a caller wrote, for a sentence: printable, and not long."""
    spelled = str(text)
    if len(spelled) > longest:
        spelled = spelled[:longest] + " [...]"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in spelled)


def request_id(scope: object) -> str | None:
    """The id of the request whose scope this is."""
    if isinstance(scope, dict):
        state = scope.get("state")
        if isinstance(state, dict):
            found = state.get("request_id")
            return found if isinstance(found, str) else None
    return None


def answer(problem: Problem, scope: object, headers: dict[str, str] | None = None) -> Response:
    """The response for a problem."""
    problem = problem.model_copy(update={"request_id": request_id(scope)})
    more = dict(headers or {})
    if problem.retry_after is not None:
        # Whole seconds, and never a moment too early.
        more["Retry-After"] = str(int(problem.retry_after) + (problem.retry_after % 1 > 0))
    if problem.code is Code.UNAUTHENTICATED:
        more["WWW-Authenticate"] = 'Bearer realm="stockade"'
    if isinstance(scope, dict) and isinstance(state := scope.get("state"), dict):
        state["problem"] = problem.code
    return Response(problem.body(), problem.status, more, MEDIA_TYPE)


def problem_of(error: StockadeError) -> Problem:
    """For an error of the port's."""
    problem = Problem.of(error)
    if problem.code is Code.INTERNAL:
        return fault()
    return problem.model_copy(
        update={
            "detail": shown(problem.detail, 2000),
            "errors": tuple(
                Violation(field=shown(one.field), message=shown(one.message, 2000))
                for one in problem.errors
            ),
        }
    )


def fault() -> Problem:
    """For whatever nobody foresaw. It reveals nothing."""
    return Problem.make(Code.INTERNAL, _FAULT)


RecordRefusal = Callable[[Caller | None, Action, str, Refused], None]


def install(app: FastAPI, record_refusal: RecordRefusal) -> None:
    """Answer with problems, whatever is raised on purpose; what is forbidden goes into the audit."""

    @app.exception_handler(StockadeError)
    async def of_the_port(request: Request, error: StockadeError) -> Response:
        if Problem.of(error).code is Code.INTERNAL:
            request.scope["state"]["log"].error("fault", raised=type(error).__name__)
        if isinstance(error, Refused) and error.code == Code.FORBIDDEN:
            caller = request.scope["state"].get("caller")
            route = getattr(request.scope.get("route"), "path", "none")
            record_refusal(caller, Action.REQUEST_REFUSED, route, error)
        return answer(problem_of(error), request.scope)

    @app.exception_handler(RequestValidationError)
    async def of_validation(request: Request, error: RequestValidationError) -> Response:
        found = error.errors()
        errors = tuple(
            Violation(field=_field(one.get("loc", ())), message=shown(one.get("msg", "")))
            for one in found[:_MOST_ERRORS]
        )
        first = errors[0] if errors else Violation(field="request", message="is not understood")
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        detail = f"{first.field}: {first.message}{more}"
        return answer(Problem.make(Code.INVALID_REQUEST, detail, errors=errors), request.scope)

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> Response:
        code = _CODE_OF_STATUS.get(error.status_code)
        if code is None:
            code = Code.INVALID_REQUEST if 400 <= error.status_code < 500 else Code.INTERNAL
        detail = {
            Code.NOT_FOUND: _NOT_FOUND,
            Code.METHOD_NOT_ALLOWED: f"{shown(request.method, 20)} is not done to this",
        }.get(code, shown(error.detail))
        if code is Code.INTERNAL:
            detail = _FAULT
        return answer(Problem.make(code, detail), request.scope, dict(error.headers or {}))


def _field(place: object) -> str:
    return shown(fields.spell(place if isinstance(place, tuple | list) else ()) or "body", 200)
