"""Errors as HTTP answers."""

import math
from typing import Final

from starlette.types import Send

from stockade.api.problems import MEDIA_TYPE, Code, Problem, Violation
from stockade.port import InvalidRequest, StockadeError

_MOST_DETAIL: Final = 2000


class Refusal(Exception):
    """A problem that ends a request."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def not_found(what: str) -> Refusal:
    """The same for what never was and for what is another tenant's."""
    return Refusal(Problem.make(Code.NOT_FOUND, f"there is no such {what}"))


def conflict(detail: str) -> Refusal:
    """The thing is not in a state for it."""
    return Refusal(Problem.make(Code.CONFLICT, detail))


def problem_of(error: StockadeError) -> Problem:
    """For an error of the port's."""
    if isinstance(error, InvalidRequest) and error.field == "session":
        # Nothing is wrong with the request: it comes at the wrong time.
        message = str(error).removeprefix("session: ")
        violation = Violation(field="session", message=message)
        return Problem.make(Code.CONFLICT, message, errors=(violation,))
    return Problem.of(error)


async def send_problem(send: Send, problem: Problem, request_id: str | None) -> None:
    """Answer with a problem."""
    problem = problem.model_copy(
        update={"request_id": request_id, "detail": problem.detail[:_MOST_DETAIL]}
    )
    body = problem.body()
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if problem.retry_after is not None:
        headers.append((b"retry-after", str(math.ceil(problem.retry_after)).encode()))
    if problem.code is Code.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
