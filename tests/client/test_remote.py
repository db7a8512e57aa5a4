"""The port over HTTP keeps its promises, whatever the other end does."""

import asyncio

import pytest

from stockade.api.frames import FrameType, encode
from stockade.client import open_remote
from stockade.port import Captured, Execution, ExecutionRequest, Outcome, PythonSource, Stream

from .peer import Exchange, serving

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio]

PROGRAM = ExecutionRequest(PythonSource("print(42)"))
RECORD = Execution(Outcome.OK, "", exit_code=0, stdout=Captured(b"42\n", b"", 3))


async def test_a_program_runs_and_its_output_is_heard() -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.record(RECORD, encode(FrameType.STDOUT, b"42\n"))

    heard: list[tuple[Stream, bytes]] = []

    async def sink(stream: Stream, data: bytes) -> None:
        await asyncio.sleep(0)
        heard.append((stream, data))

    async with serving(play) as peer, open_remote(peer.url, key="k") as stockade:
        for _ in range(3):
            assert await stockade.run(PROGRAM, stdin=b"in", on_output=sink) == RECORD
        assert heard == [(Stream.STDOUT, b"42\n")] * 3
        assert peer.connections == 1
    asked = peer.asked[0]
    assert asked.headers["authorization"] == "Bearer k"
    assert asked.headers["accept"] == "application/vnd.stockade.frames"
    assert "stockade-tenant" not in asked.headers
    assert asked.json["stdin"] == "in"
