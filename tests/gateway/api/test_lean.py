"""Lean routes: what they give a function, and what they refuse to be made for."""

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Cookie, Depends, Header, Request, Response
from starlette.requests import ClientDisconnect

from stockade.gateway.api.bodies import or_gone
from stockade.gateway.api.lean import LeanRoute


async def _nested(request: Request, word: Annotated[str, Header()]) -> str:
    return word


async def _with_cookie(word: Annotated[str, Cookie()]) -> Response:
    return Response(word)


async def _with_work(work: BackgroundTasks) -> Response:
    return Response()


async def _with_deep_dependency(word: Annotated[str, Depends(_nested)]) -> Response:
    return Response(word)


@pytest.mark.parametrize("endpoint", [_with_cookie, _with_work, _with_deep_dependency])
def test_a_signature_that_asks_for_more_is_refused_as_the_route_is_made(endpoint: Any) -> None:
    """Else its function would be called without what it is promised, at the first request."""
    with pytest.raises(TypeError, match="asks for more"):
        LeanRoute("/somewhere", endpoint)


async def test_a_wait_ends_when_the_caller_leaves() -> None:
    """What was waited for is cancelled, and the task that waited goes on as if nothing were."""
    leaves, ended = asyncio.Event(), False

    async def receive() -> dict[str, Any]:
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def forever() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended = True

    asyncio.get_running_loop().call_later(0.01, leaves.set)
    with pytest.raises(ClientDisconnect):
        await or_gone(receive, forever())
    task = asyncio.current_task()
    assert ended
    assert task is not None
    assert not task.cancelling()
    await asyncio.sleep(0)


async def test_a_wait_that_is_over_hears_of_no_caller() -> None:
    """Who leaves as the answer is there cancels nothing that comes after."""
    leaves = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def last_moment() -> int:
        leaves.set()
        return 7

    assert await or_gone(receive, last_moment()) == 7
    await asyncio.sleep(0.01)


async def test_a_wait_that_somebody_cancels_is_cancelled() -> None:
    """A caller who leaves at the same time does not turn it into something else."""
    leaves = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await leaves.wait()
        return {"type": "http.disconnect"}

    waiting = asyncio.ensure_future(or_gone(receive, asyncio.Event().wait()))
    await asyncio.sleep(0.01)
    leaves.set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
