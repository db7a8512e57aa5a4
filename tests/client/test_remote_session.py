"""A session over HTTP: its lease, its files, and what becomes of it when the other end fails."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator

import pytest

from stockade.api.frames import MEDIA_TYPE, FrameType, encode
from stockade.api.problems import Code, Problem
from stockade.client import BlockingEnvironment, open_remote
from stockade.client.remote import RemoteEnvironment
from stockade.client.session import RemoteSession
from stockade.port import (
    Execution,
    ExecutionRequest,
    FileRefused,
    InvalidRequest,
    Limits,
    Outcome,
    PythonSource,
    Refused,
    SandboxLost,
    SandboxRequest,
    Unavailable,
)

from .peer import Exchange, Play, serving
from .test_faults import HURRIED

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio]

STATE = {"id": "s1", "state": "open", "lease_seconds": 300, "generation": 7, "mood": "good"}
OK = Execution(Outcome.OK, "", exit_code=0)


def opening(play: Play | None = None) -> Play:
    """A service that opens a session, and answers all else so."""

    async def answer(exchange: Exchange) -> None:
        asked = exchange.asked
        if (asked.method, asked.path) == ("POST", "/v1/sandboxes"):
            await exchange.answer(201, json.dumps(STATE).encode())
        elif asked.method == "DELETE":
            await exchange.answer(204)
        elif play is not None:
            await play(exchange)
        elif asked.path.endswith("/lease"):
            await exchange.answer(200, json.dumps(STATE).encode())
        else:
            await exchange.answer(204)

    return answer


async def opened(stockade: RemoteEnvironment, disk_bytes: int = 100_000) -> RemoteSession:
    sandbox = SandboxRequest(limits=Limits(disk_bytes=disk_bytes))
    return await stockade.open_session(sandbox, keep_alive=False)


async def test_what_is_asked_names_the_session_that_is_meant() -> None:
    async def play(exchange: Exchange) -> None:
        if exchange.asked.path.endswith("/executions"):
            await exchange.record(OK)
        else:
            await exchange.answer(200, json.dumps(STATE).encode())

    async with serving(opening(play)) as peer:
        async with open_remote(peer.url, key="k", tenant="t", timeouts=HURRIED) as stockade:
            session = await stockade.open_session(lease_seconds=60, id="s1", workspace="w")
            assert peer.asked[0].json == {
                "sandbox": {"trust": "untested"}, "lease_seconds": 60, "workspace": "w"
            }  # fmt: skip
            assert peer.asked[0].headers["stockade-id"] == "s1"
            assert await session.run(ExecutionRequest(PythonSource("1")), id="e1") == OK
            assert (await session.state()).lease_seconds == 300
            await session.extend(90)
            assert peer.asked[-1].json == {"seconds": 90.0}
            for seconds in (0, -1, float("nan"), float("inf")):
                with pytest.raises(InvalidRequest):
                    await session.extend(seconds)
        # Closing the environment closes the session.
        assert len(peer.of("DELETE", "/v1/sandboxes/s1")) == 1
        told = {(one.headers["stockade-tenant"], one.headers.get("stockade-generation")) for one in peer.asked[1:]}  # fmt: skip
        assert told == {("t", "7")}


async def test_its_lease_is_extended_until_it_is_closed() -> None:
    async with (
        serving(opening()) as peer,
        open_remote(peer.url, key="k", timeouts=HURRIED) as stockade,
    ):
        async with await stockade.open_session(lease_seconds=0.3):
            await asyncio.sleep(0.5)
        extended = len(peer.of("POST", "/lease"))
        assert extended >= 2
        assert peer.of("POST", "/lease")[0].json == {"seconds": 0.3}
        async with await stockade.open_session(lease_seconds=0.3, keep_alive=False):
            await asyncio.sleep(0.4)
        assert len(peer.of("POST", "/lease")) == extended


async def test_a_session_that_is_gone_is_extended_no_more() -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.problem(Problem.make(Code.NOT_FOUND, "no such sandbox"))

    async with (
        serving(opening(play)) as peer,
        open_remote(peer.url, key="k", timeouts=HURRIED) as stockade,
    ):
        session = await stockade.open_session(lease_seconds=0.3)
        await asyncio.sleep(0.5)
        assert len(peer.of("POST", "/lease")) == 1
        with pytest.raises(SandboxLost, match="its lease ended"):
            await session.list_files()


async def test_taking_one_up_changes_no_lease_and_closes_nothing() -> None:
    async with serving(opening()) as peer:
        async with open_remote(peer.url, key="k", timeouts=HURRIED) as stockade:
            session = stockade.session("s9")
            await session.pause()
            with pytest.raises(InvalidRequest):
                stockade.session("../s9")
        assert [(one.method, one.path) for one in peer.asked] == [
            ("POST", "/v1/sandboxes/s9/pause")
        ]


async def test_files_are_sent_whole_or_not_at_all() -> None:
    async def pieces(fail: bool) -> AsyncIterator[bytes]:
        yield b"one"
        yield b""
        if fail:
            raise RuntimeError("the source is gone")
        yield b"two"

    async with serving(opening()) as peer:
        async with open_remote(peer.url, key="k", timeouts=HURRIED) as stockade:
            session = await opened(stockade)
            await session.write_file("a b/é?", b"x" * 100_000)
            await session.write_file("f", pieces(False))
            with pytest.raises(RuntimeError, match="the source is gone"):
                await session.write_file("f", pieces(True))
        put = [one for one in peer.asked if one.method == "PUT"]
        assert put[0].path == "/v1/sandboxes/s1/files/a%20b/%C3%A9%3F"
        assert put[0].headers["content-length"] == "100000"
        assert [one.body for one in put[:2]] == [b"x" * 100_000, b"onetwo"]
        # The third broke off before its end.
        assert put[2].headers["transfer-encoding"] == "chunked"


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 100",
        "Transfer-Encoding: chunked",
        "Connection: close",
    ],
)
async def test_a_file_that_is_cut_is_no_file(head: str) -> None:
    """A body that has no end of its own would look whole wherever it is cut."""

    async def play(exchange: Exchange) -> None:
        chunk = b"4\r\npart\r\n" if "chunked" in head else b"part"
        await exchange.write(
            f"HTTP/1.1 200 X\r\nContent-Type: application/octet-stream\r\n{head}\r\n\r\n".encode()
            + chunk
        )
        exchange.cut()

    async with (
        serving(opening(play)) as peer,
        open_remote(peer.url, key="k", timeouts=HURRIED) as stockade,
    ):
        session = await opened(stockade)
        with pytest.raises(SandboxLost):
            _ = [piece async for piece in session.read_file("f")]


async def test_more_than_the_disk_can_hold_is_not_read() -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.head(200, media="application/octet-stream")
        while True:
            await exchange.chunk(b"x" * 50_000)

    async with (
        serving(opening(play)) as peer,
        open_remote(peer.url, key="k", timeouts=HURRIED) as stockade,
    ):
        session = await opened(stockade)
        taken = 0
        with pytest.raises(SandboxLost, match="more than the 100000 bytes"):
            async for piece in session.read_file("f"):
                taken += len(piece)
        assert taken <= 100_000


@pytest.mark.parametrize("part", ["head", "body"])
async def test_an_answer_that_trickles_is_cut(part: str) -> None:
    """Each byte in time, and the whole of it never."""

    async def play(exchange: Exchange) -> None:
        if part == "body":
            await exchange.head(200, media="application/octet-stream")
        while True:
            await (exchange.chunk(b"x") if part == "body" else exchange.write(b"H"))
            await asyncio.sleep(0.05)

    timeouts = dataclasses.replace(HURRIED, answer=0.3)
    async with (
        serving(opening(play)) as peer,
        open_remote(peer.url, key="k", timeouts=timeouts) as stockade,
    ):
        session = await opened(stockade)
        with pytest.raises(SandboxLost):
            async with asyncio.timeout(5):
                _ = [piece async for piece in session.read_file("f")]


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b"{}",
        b'{"entries": [{"name": "x", "kind": "file", "size": -1}]}',
        b'{"entries": [{"name": 3, "kind": "file", "size": 1}]}',
        b"[" * 200_000,
    ],
)
async def test_a_listing_that_is_none_is_an_error(body: bytes) -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.answer(200, body)

    async with (
        serving(opening(play)) as peer,
        open_remote(peer.url, key="k", timeouts=HURRIED) as stockade,
    ):
        session = await opened(stockade)
        with pytest.raises(SandboxLost):
            await session.list_files()


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (Problem.of(FileRefused("elsewhere", "no such file")), FileRefused("d", "no such file")),
        (Problem.make(Code.CONFLICT, "it is paused"), InvalidRequest("session", "it is paused")),
        (Problem.of(SandboxLost("it died")), SandboxLost("it died")),
        (Problem.make(Code.FORBIDDEN, "no"), Refused("forbidden", "no")),
    ],
)
async def test_refusals_of_a_session(problem: Problem, expected: Exception) -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.problem(problem)

    async with (
        serving(opening(play)) as peer,
        open_remote(peer.url, key="k", timeouts=HURRIED) as stockade,
    ):
        session = await opened(stockade)
        with pytest.raises(type(expected)) as error:
            await session.list_files("d")
        assert str(error.value) == str(expected)


async def test_a_close_that_nobody_confirms_is_said() -> None:
    async def play(exchange: Exchange) -> None:
        if exchange.asked.method == "DELETE":
            exchange.cut()
        else:
            await exchange.answer(201, json.dumps(STATE).encode())

    async with (
        serving(play) as peer,
        open_remote(peer.url, key="k", timeouts=HURRIED) as stockade,
    ):
        session = await opened(stockade)
        with pytest.raises(Unavailable, match="nobody confirms"):
            await session.close()
        with pytest.raises(SandboxLost, match="closed"):
            await session.list_files()


@pytest.mark.parametrize("answer", [b"{}", b'{"id": "../x"}', b'{"id": 3}', b"<html>"])
async def test_an_answer_without_a_session_is_an_error(answer: bytes) -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.answer(201, answer)

    async with (
        serving(play) as peer,
        open_remote(peer.url, key="k", timeouts=HURRIED) as stockade,
    ):
        with pytest.raises(Unavailable):
            await stockade.open_session()


async def test_a_saved_workspace_says_whether_it_is_whole() -> None:
    endings = iter(
        [
            encode(FrameType.END),
            encode(FrameType.PROBLEM, Problem.of(FileRefused("", "g: unreadable")).body()),
            b"",
            encode(FrameType.STDOUT, b"x"),
        ]
    )

    async def play(exchange: Exchange) -> None:
        await exchange.head(200, media=MEDIA_TYPE)
        await exchange.chunk(encode(FrameType.BLOB, b"saved") + next(endings))
        await exchange.end()

    async with (
        serving(opening(play)) as peer,
        open_remote(peer.url, key="k", tenant="t", timeouts=HURRIED) as stockade,
    ):
        session = await opened(stockade)
        assert [piece async for piece in session.save()] == [b"saved"]
        with pytest.raises(FileRefused, match="g: unreadable"):
            _ = [piece async for piece in session.save()]
        for _ in range(2):
            with pytest.raises(SandboxLost):
                _ = [piece async for piece in session.save()]
    async with (
        serving(opening()) as peer,
        open_remote(peer.url, key="k", timeouts=HURRIED) as stockade,
    ):
        session = await opened(stockade)
        with pytest.raises(Unavailable, match="keeps those that have a name"):
            _ = [piece async for piece in session.save()]


async def test_without_an_event_loop_it_is_the_same() -> None:
    """By one other line."""

    async def play(exchange: Exchange) -> None:
        await exchange.record(OK)

    async with serving(opening(play)) as peer:

        def work() -> Execution:
            with BlockingEnvironment(lambda: open_remote(peer.url, key="k")) as stockade:
                with stockade.open_session() as session:
                    assert session.run("1").ok
                return stockade.run("1")

        assert await asyncio.to_thread(work) == OK
