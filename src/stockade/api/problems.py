"""Errors over HTTP: problems (RFC 9457) with stable codes, and the port's errors in them."""

from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field

from stockade.port import (
    FileRefused,
    InvalidRequest,
    Refused,
    SandboxLost,
    StockadeError,
    Tier,
    ToolFailed,
    Unavailable,
)

MEDIA_TYPE: Final = "application/problem+json"


class Code(StrEnum):
    """What went wrong, for a program. A code never changes its meaning."""

    INVALID_REQUEST = "invalid_request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    """The key or the tenant's policy does not allow it."""
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_ACCEPTABLE = "not_acceptable"
    CONFLICT = "conflict"
    """The thing is not in a state for it: a program runs in the session already."""
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    """The key was used for another request."""
    TOO_LARGE = "too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    FILE_REFUSED = "file_refused"
    BUDGET_EXHAUSTED = "budget_exhausted"
    """``retry_after`` says when to try again."""
    TOOL_FAILED = "tool_failed"
    """A tool ran and gave no output, or none of its schema; ``reason`` says which."""
    SANDBOX_LOST = "sandbox_lost"
    UNAVAILABLE = "unavailable"
    """No boundary that is strong enough, no executor, or the service is stopping."""
    INTERNAL = "internal"


STATUS: Final[dict[Code, HTTPStatus]] = {
    Code.INVALID_REQUEST: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    Code.FORBIDDEN: HTTPStatus.FORBIDDEN,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.METHOD_NOT_ALLOWED: HTTPStatus.METHOD_NOT_ALLOWED,
    Code.NOT_ACCEPTABLE: HTTPStatus.NOT_ACCEPTABLE,
    Code.CONFLICT: HTTPStatus.CONFLICT,
    Code.IDEMPOTENCY_CONFLICT: HTTPStatus.CONFLICT,
    Code.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Code.UNSUPPORTED_MEDIA_TYPE: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    Code.FILE_REFUSED: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.BUDGET_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    Code.TOOL_FAILED: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.SANDBOX_LOST: HTTPStatus.GONE,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}

_TITLE: Final[dict[Code, str]] = {
    Code.INVALID_REQUEST: "The request contradicts a rule",
    Code.UNAUTHENTICATED: "No valid key",
    Code.FORBIDDEN: "Not allowed",
    Code.NOT_FOUND: "There is no such thing",
    Code.METHOD_NOT_ALLOWED: "Not done to this",
    Code.NOT_ACCEPTABLE: "Not to be had in that form",
    Code.CONFLICT: "Not in its present state",
    Code.IDEMPOTENCY_CONFLICT: "The idempotency key was used for another request",
    Code.TOO_LARGE: "Too large",
    Code.UNSUPPORTED_MEDIA_TYPE: "Not understood in that form",
    Code.FILE_REFUSED: "The file cannot be read or written",
    Code.BUDGET_EXHAUSTED: "The budget is used up",
    Code.TOOL_FAILED: "The tool gave no output",
    Code.SANDBOX_LOST: "The sandbox is gone",
    Code.UNAVAILABLE: "Nothing here can serve it",
    Code.INTERNAL: "A fault of Stockade itself",
}


class Violation(BaseModel):
    """One field of a request that contradicts a rule."""

    field: str
    message: str


class Problem(BaseModel):
    """A problem. ``code`` is for a program, ``detail`` for a person."""

    # A later version may say more: a client keeps what it knows.
    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str = "about:blank"
    title: str
    status: int
    code: Code
    detail: str
    request_id: str | None = None
    errors: tuple[Violation, ...] = ()
    retry_after: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds."""
    missing: dict[Tier, str] = Field(default_factory=dict)
    """Of ``unavailable``: each tier that would have done, and why it is missing."""
    path: str | None = None
    """Of ``file_refused``."""
    reason: str | None = None
    """Of ``tool_failed``: a code of docs/tools.md."""
    execution: str | None = None
    """Of ``tool_failed``: whose record says more."""

    @classmethod
    def make(cls, code: Code, detail: str, **more: Any) -> Self:
        """One with its code's status and title."""
        return cls(title=_TITLE[code], status=int(STATUS[code]), code=code, detail=detail, **more)

    @classmethod
    def of(cls, error: StockadeError) -> Self:
        """For an error of the port's."""
        match error:
            case InvalidRequest():
                message = str(error).removeprefix(f"{error.field}: ")
                return cls.make(
                    Code.INVALID_REQUEST,
                    str(error),
                    errors=(Violation(field=error.field, message=message),),
                )
            case Unavailable():
                return cls.make(Code.UNAVAILABLE, str(error), missing=error.missing)
            case SandboxLost():
                return cls.make(Code.SANDBOX_LOST, str(error))
            case FileRefused():
                path = error.path.encode("utf-8", "replace").decode()
                return cls.make(Code.FILE_REFUSED, error.reason, path=path)
            case ToolFailed():
                place = () if error.place is None else (error.place,)
                return cls.make(
                    Code.TOOL_FAILED,
                    error.message,
                    errors=tuple(Violation(field=each, message=error.message) for each in place),
                    reason=error.reason,
                    execution=error.execution,
                )
            case Refused():
                return cls.make(Code(error.code), str(error), retry_after=error.retry_after)
        return cls.make(Code.INTERNAL, "a fault of Stockade itself; its log says more")

    def to_error(self) -> StockadeError:
        """The port's error for it."""
        match self.code:
            case Code.INVALID_REQUEST:
                if self.errors:
                    return InvalidRequest(self.errors[0].field, self.errors[0].message)
                return InvalidRequest("request", self.detail)
            case Code.UNAVAILABLE:
                return Unavailable(self.detail, self.missing)
            case Code.SANDBOX_LOST:
                return SandboxLost(self.detail)
            case Code.FILE_REFUSED:
                return FileRefused(self.path or "", self.detail)
            case Code.TOOL_FAILED:
                place = self.errors[0].field if self.errors else None
                return ToolFailed(self.reason or "outcome", self.detail, place, self.execution)
        return Refused(self.code, self.detail, self.retry_after)

    def body(self) -> bytes:
        """As JSON, without what it does not say."""
        return self.model_dump_json(exclude_defaults=True).encode()


def repeated(header: str) -> Problem:
    """For a header that may come once: of two, whoever reads takes one, and another the other."""
    message = "it is there more than once; send one"
    problem = Problem.make(
        Code.INVALID_REQUEST,
        f"{header}: {message}",
        errors=(Violation(field=header, message=message),),
    )
    return problem.model_copy(update={"status": int(HTTPStatus.BAD_REQUEST)})
