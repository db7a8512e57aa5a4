"""Bodies that come in: bounded in bytes, in time and together, before anything of them is kept."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pydantic_core
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from stockade.port import MIB, InvalidRequest, Refused
from stockade.serving.values import TooManyValues, ValueCount

MOST_JSON_BYTES: Final = 48 * MIB
"""Of a request in JSON: 16 MiB of source, and files with it, in base64."""
_MOST_TOGETHER: Final = 512 * MIB
_JSON_SECONDS: Final = 60.0
_IDLE_SECONDS: Final = 60.0

T = TypeVar("T")


class Room:
    """Memory for bodies that are read whole, of all callers together."""

    def __init__(self, most: int = _MOST_TOGETHER) -> None:
        self.held = 0
        self._most = most

    @contextmanager
    def reserved(self) -> Iterator[Callable[[int], None]]:
        """Gives a function that takes so many bytes more, until the end of the context."""
        mine = 0

        def take(size: int) -> None:
            nonlocal mine
            if self.held + size > self._most:
                raise Refused(
                    "unavailable", "too many large requests are being read; try again later", 1.0
                )
            self.held += size
            mine += size

        try:
            yield take
        finally:
            self.held -= mine


class BoundedRequest(Request):
    """A request whose JSON is read within bounds."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await self._read()
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            try:
                # Bounded in depth; says where it is wrong; no NaN.
                self._json = pydantic_core.from_json(await self.body(), allow_inf_nan=False)
            except ValueError as error:
                raise RequestValidationError(
                    [{"loc": ("body",), "msg": f"it is no JSON: {error}", "type": "json"}]
                ) from None
        return self._json

    async def _read(self) -> bytes:
        declared = declared_length(self)
        if declared is not None and declared > MOST_JSON_BYTES:
            raise too_large(MOST_JSON_BYTES)
        room: Room = self.scope["state"]["room"]
        found = bytearray()
        values = ValueCount()
        with room.reserved() as take:
            try:
                async with asyncio.timeout(_JSON_SECONDS):
                    async for piece in self.stream():
                        if len(found) + len(piece) > MOST_JSON_BYTES:
                            raise too_large(MOST_JSON_BYTES)
                        take(len(piece))
                        values.add(piece)
                        found += piece
            except TooManyValues as error:
                raise Refused("too_large", f"the body: {error}") from None
            except TimeoutError:
                raise InvalidRequest(
                    "body", f"it did not come within {_JSON_SECONDS:g} s"
                ) from None
            media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
            if found and media_type != "application/json":
                raise Refused(
                    "unsupported_media_type", "send JSON, with Content-Type: application/json"
                )
            return bytes(found)


def declared_length(request: Request) -> int | None:
    """What ``Content-Length`` says."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


async def streamed(
    request: Request, most: int, *, idle_seconds: float | None = _IDLE_SECONDS
) -> AsyncIterator[bytes]:
    """A body as it comes. One that breaks off raises, and is never taken for its end."""
    declared = declared_length(request)
    if declared is not None and declared > most:
        raise too_large(most)
    size = 0
    pieces = request.stream()
    while True:
        try:
            async with asyncio.timeout(idle_seconds):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise InvalidRequest("body", f"nothing of it came for {idle_seconds:g} s") from None
        if piece is None:
            return
        size += len(piece)
        if size > most:
            raise too_large(most)
        if piece:
            yield piece


def too_large(most: int) -> Refused:
    """For a body beyond its ceiling."""
    return Refused("too_large", f"the body exceeds {most} bytes")


async def or_gone(receive: Receive, wanted: Coroutine[Any, Any, T]) -> T:
    """Wait for something as long as the caller does. Raises :class:`ClientDisconnect`.

    In this task, which who leaves cancels: a task of its own for each wait took a tenth of a call.
    """
    task = asyncio.current_task()
    assert task is not None
    before, over, left = task.cancelling(), False, False

    def leave(leaving: "asyncio.Task[None]") -> None:
        nonlocal left
        if not over and not leaving.cancelled():
            leaving.exception()  # a connection that cannot be read is one that is gone
            left = True
            task.cancel()

    leaving = asyncio.ensure_future(_gone(receive))
    leaving.add_done_callback(leave)
    try:
        return await wanted
    except asyncio.CancelledError:
        if left and task.cancelling() <= before + 1:
            raise ClientDisconnect from None
        raise
    finally:
        over = True
        leaving.cancel()
        if left:
            task.uncancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
