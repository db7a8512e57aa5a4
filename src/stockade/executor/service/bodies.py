"""Request bodies, bounded while they come: what a header says of them is believed of nobody."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.types import Message, Receive, Scope

from stockade.api import fields
from stockade.api.problems import Code, Problem, Violation, repeated
from stockade.executor.service.problems import Refusal
from stockade.serving import values as bounded
from stockade.serving.values import TooManyValues, ValueCount

_MOST_VIOLATIONS: Final = 20
_MOST_WORDS: Final = 200
MOST_VALUES: Final = 4 * bounded.MOST_VALUES
"""A gateway writes anew what it took, and a name that is no text becomes an object of it."""
Body = TypeVar("Body", bound=BaseModel)


class CallerGone(Exception):
    """The caller hung up, or stood still for too long."""


class BodyBudget:
    """Bytes of bodies that are held at once, of all requests together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    @contextlib.contextmanager
    def account(self) -> Iterator["BodyAccount"]:
        """What one request holds, given back at the end."""
        account = BodyAccount(self)
        try:
            yield account
        finally:
            self.held -= account.held

    def take(self, count: int) -> None:
        """Hold so many more. Raises :class:`Refusal`."""
        if self.held + count > self._most:
            raise Refusal(
                Problem.make(
                    Code.UNAVAILABLE,
                    f"requests that are coming in hold {self._most} bytes already; try again",
                    retry_after=1.0,
                )
            )
        self.held += count


class BodyAccount:
    """One request's share."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.held = 0

    def take(self, count: int) -> None:
        """Hold so many more. Raises :class:`Refusal`."""
        self._budget.take(count)
        self.held += count


async def receive_soon(receive: Receive, seconds: float) -> Message:
    """The next message. Raises :class:`CallerGone` where none comes in time."""
    try:
        async with asyncio.timeout(seconds):
            return await receive()
    except TimeoutError:
        raise CallerGone(f"nothing of the body came for {seconds:g} s") from None


async def pieces(
    receive: Receive, seconds: float | None, most: int | None = None
) -> AsyncIterator[bytes]:
    """A body as it comes. Raises :class:`CallerGone` for one that is cut, or stands still."""
    total = 0
    more = True
    while more:
        message = await (receive() if seconds is None else receive_soon(receive, seconds))
        if message["type"] != "http.request":
            raise CallerGone("the connection ended before the body did")
        data: bytes = message.get("body", b"")
        total += len(data)
        if most is not None and total > most:
            raise too_large(most)
        if data:
            yield data
        more = message.get("more_body", False)


async def read_json(
    kind: type[Body],
    scope: Scope,
    receive: Receive,
    account: BodyAccount,
    most: int,
    seconds: float,
) -> Body:
    """A whole body as a message. Raises :class:`Refusal`, or :class:`CallerGone`."""
    announced = header(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > most:
        raise too_large(most)
    content = header(scope, b"content-type") or b"application/json"
    if content.partition(b";")[0].strip().lower() != b"application/json":
        raise Refusal(Problem.make(Code.UNSUPPORTED_MEDIA_TYPE, "a body here is application/json"))
    body = bytearray()
    values = ValueCount(MOST_VALUES)
    deadline = asyncio.get_running_loop().time() + seconds
    async for piece in pieces(receive, seconds, most):
        account.take(len(piece))
        try:
            values.add(piece)
        except TooManyValues as error:
            raise Refusal(Problem.make(Code.TOO_LARGE, f"the body: {error}")) from None
        body += piece
        # Slow and never silent is as good as silent: what is this long comes in one go.
        if len(body) < most // 16 and asyncio.get_running_loop().time() > deadline + seconds:
            raise CallerGone(f"the body did not come within {2 * seconds:g} s")
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        raise Refusal(_invalid(error)) from None


def too_large(most: int) -> Refusal:
    """A body that is."""
    return Refusal(
        Problem.make(Code.TOO_LARGE, f"a body of more than {most} bytes is not taken here")
    )


def header(scope: Scope, name: bytes) -> bytes | None:
    """A header's value. Raises :class:`Refusal` for one that comes twice."""
    found: bytes | None = None
    for each, value in scope["headers"]:
        if each == name:
            if found is not None:
                raise Refusal(repeated(name.decode().title()))
            found = value
    return found


def _invalid(error: ValidationError) -> Problem:
    """Which fields, and why; never their content."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    violations = tuple(
        Violation(
            field=fields.spell(each["loc"])[:_MOST_WORDS] or "request",
            message=each["msg"][:_MOST_WORDS],
        )
        for each in found[:_MOST_VIOLATIONS]
    )
    first = violations[0]
    return Problem.make(Code.INVALID_REQUEST, f"{first.field}: {first.message}", errors=violations)
