"""Whatever the other end does: an error for what was refused, ``lost`` for what may have run."""

import asyncio
import dataclasses
import hashlib
import json
import math
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from stockade.api.frames import (
    MEDIA_TYPE,
    MOST_BYTES,
    FrameType,
    encode,
    encode_output,
    encode_record,
)
from stockade.api.problems import Code, Problem
from stockade.client import Timeouts, open_remote
from stockade.client.execution import Wanted, contradiction
from stockade.client.remote import RemoteEnvironment
from stockade.port import (
    Artefact,
    Captured,
    Execution,
    ExecutionRequest,
    InvalidRequest,
    Limits,
    Outcome,
    PythonSource,
    Refused,
    SandboxLost,
    SandboxRequest,
    StockadeError,
    Stream,
    Tier,
    Unavailable,
)

from .peer import STARTED, Exchange, Peer, Play, serving

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio]

PROGRAM = ExecutionRequest(PythonSource("print(42)"), artefacts=("a",))
DATA = b"artefact"
RECORD = Execution(
    Outcome.OK,
    "",
    exit_code=0,
    stdout=Captured(b"42\n", b"", 3),
    result=b"result",
    artefacts=(Artefact("a", DATA, "sha256:" + hashlib.sha256(DATA).hexdigest()),),
)
HURRIED = Timeouts(connect=0.5, reach=0.3, silence=0.3, answer=1.0, start=2.0, grace=0.5)


def remote(
    peer: Peer, timeouts: Timeouts = HURRIED
) -> AbstractAsyncContextManager[RemoteEnvironment]:
    return open_remote(peer.url, key="k", timeouts=timeouts)


async def lost(play: Play, *, timeouts: Timeouts = HURRIED) -> Execution:
    """The record of a call that this answers."""
    async with serving(play) as peer, remote(peer, timeouts) as stockade:
        async with asyncio.timeout(10):
            execution = await stockade.run(PROGRAM)
    assert execution.outcome is Outcome.LOST, execution
    assert execution.exit_code is None
    assert execution.detail.startswith(f"{peer.url}: ")
    assert execution.detail.endswith("; the program may have run")
    assert execution.detail.isprintable()
    return execution


# --- the stream ---


def everything() -> bytes:
    return (
        STARTED
        + encode(FrameType.STDOUT, b"42\n")
        + encode(FrameType.KEEPALIVE)
        + b"".join(encode_record(RECORD))
    )


@pytest.mark.parametrize("how", ["cut", "stall", "end"])
async def test_a_stream_that_stops_anywhere_is_lost(how: str) -> None:
    """At the boundary of each frame, and inside each: never exit 0, never an exception."""
    whole = everything()
    places = range(len(whole)) if how == "cut" else (0, 3, 17, 25, 40, len(whole) - 5)
    at = iter(places)

    async def play(exchange: Exchange) -> None:
        if not exchange.asked.path.endswith("/executions"):
            await exchange.answer(204)
            return
        await exchange.frames(whole[: next(at)] or encode(FrameType.KEEPALIVE))
        if how == "cut":
            exchange.cut()
        elif how == "end":
            await exchange.end()
        else:
            await exchange.gone()

    async with serving(play) as peer, remote(peer) as stockade:
        for _ in places:
            execution = await stockade.run(PROGRAM)
            assert execution.outcome is Outcome.LOST, execution
            assert execution.exit_code is None


async def test_the_whole_of_it_is_a_record() -> None:
    """However it is cut into pieces."""
    whole = everything()

    async def play(exchange: Exchange) -> None:
        await exchange.frames(*(whole[place : place + 1] for place in range(len(whole))))
        await exchange.end()

    async with serving(play) as peer, remote(peer) as stockade:
        assert await stockade.run(PROGRAM) == RECORD


async def test_what_was_heard_before_a_cut_is_kept() -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.frames(STARTED, encode(FrameType.STDOUT, b"some"))
        await exchange.chunk(encode(FrameType.STDERR, b"words"))
        exchange.cut()

    execution = await lost(play)
    assert (execution.stdout.content, execution.stderr.content) == (b"some", b"words")


async def test_a_silence_is_a_cut_and_a_sign_of_life_is_none() -> None:
    async def alive(exchange: Exchange) -> None:
        await exchange.frames(encode(FrameType.KEEPALIVE))
        for _ in range(4):
            await asyncio.sleep(0.15)
            await exchange.chunk(encode(FrameType.KEEPALIVE))
        await exchange.chunk(everything())
        await exchange.end()

    async with serving(alive) as peer, remote(peer) as stockade:
        assert await stockade.run(PROGRAM) == RECORD

    async def silent(exchange: Exchange) -> None:
        await exchange.frames(STARTED)
        await exchange.gone()

    assert "nothing came from it for 0.3 seconds" in (await lost(silent)).detail


async def test_a_stream_that_never_ends_is_lost() -> None:
    """It lives by its signs of life only as long as the limits can have lasted."""

    async def play(exchange: Exchange) -> None:
        await exchange.frames(STARTED)
        while True:
            await exchange.chunk(encode(FrameType.KEEPALIVE))
            await asyncio.sleep(0.02)

    async with serving(play) as peer, remote(peer) as stockade:
        since = time.monotonic()
        limits = Limits(wall_seconds=0.2)
        execution = await stockade.run(PROGRAM, SandboxRequest(limits=limits))
        assert execution.outcome is Outcome.LOST
        assert "longer than its limits allow" in execution.detail
        assert time.monotonic() - since < 5


async def test_a_program_that_never_starts_is_lost() -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.frames()
        while True:
            await exchange.chunk(encode(FrameType.KEEPALIVE))
            await asyncio.sleep(0.05)

    assert "nothing of a start within 2 seconds" in (await lost(play)).detail


async def test_a_record_that_trickles_is_lost() -> None:
    async def play(exchange: Exchange) -> None:
        whole = everything()
        await exchange.frames(whole[:-200])
        for place in range(len(whole) - 200, len(whole)):
            await exchange.chunk(whole[place : place + 1])
            await asyncio.sleep(0.05)

    await lost(play)


HEADER = struct.Struct(">BI")


@pytest.mark.parametrize(
    "pieces",
    [
        [b"<html><body>Bad gateway</body></html>"],
        [b"\x00\x00\x00\x00\x00"],
        [HEADER.pack(99, 0)],
        [HEADER.pack(FrameType.STARTED, 0xFFFFFFFF)],
        [HEADER.pack(FrameType.STARTED, MOST_BYTES + 1)],
        [encode(FrameType.STARTED)],
        [encode(FrameType.STARTED, b"[]")],
        [encode(FrameType.STARTED, b'{"id": 3}')],
        [encode(FrameType.STARTED, b'{"id": "../../x"}')],
        [encode(FrameType.STARTED, b'{"id": "a b\\r\\nX: y"}')],
        [encode(FrameType.STARTED, b'{"id": "' + b"a" * 10_000 + b'"}')],
        [encode(FrameType.STARTED, b"[" * 4000)],
        [encode(FrameType.STDOUT, b"x")],
        [encode(FrameType.END)],
        [encode(FrameType.PROBLEM, b"{}")],
        [STARTED, STARTED],
        [STARTED, encode(FrameType.END)],
        [STARTED, encode(FrameType.BLOB, b"x")],
        [STARTED, encode(FrameType.KEEPALIVE, b"x")],
        [STARTED, HEADER.pack(200, 1), b"x"],
        [STARTED, HEADER.pack(FrameType.STDOUT, MOST_BYTES + 1)],
        [STARTED, HEADER.pack(FrameType.RECORD, 9 * MOST_BYTES)],
        [STARTED, encode(FrameType.RECORD, b"{}")],
        [STARTED, encode(FrameType.RECORD, b"[" * 100_000)],
        [STARTED, encode(FrameType.RECORD, b'{"outcome": "' + b"x" * MOST_BYTES + b'"}')],
        [STARTED, encode(FrameType.PROBLEM, b"\xff")],
        [STARTED, *encode_output(FrameType.STDOUT, b"x" * (Limits().output_bytes + 1))],
        [STARTED, next(encode_record(RECORD))[:-5], encode(FrameType.STDOUT, b"x")],
        [STARTED, next(encode_record(RECORD))[:-5], encode(FrameType.BLOB, b"x")],
        [STARTED, next(encode_record(RECORD))[:-5], next(encode_record(RECORD))],
    ],
)  # fmt: skip
async def test_what_breaks_the_protocol_is_lost(pieces: list[bytes]) -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.frames(*pieces)
        await exchange.end()

    await lost(play)


def changed(**fields: object) -> bytes:
    """The record with something else in it, as a peer that makes its own JSON can say."""
    frame = next(encode_record(RECORD))
    said = json.loads(frame[5 : 5 + struct.unpack(">I", frame[1:5])[0]])
    for name, value in fields.items():
        *path, last = name.split("__")
        place = said
        for part in path:
            place = place[part]
        place[last] = value
    blobs = [encode(FrameType.BLOB, data) for data in (b"42\n", b"result", DATA)]
    record = json.dumps(said).encode()
    return STARTED + encode(FrameType.RECORD, record) + b"".join(blobs) + encode(FrameType.END)


@pytest.mark.parametrize(
    "fields",
    [
        {"outcome": "fine"},
        {"outcome": "nonzero_exit"},
        {"outcome": "signal"},
        {"exit_code": 3},
        {"exit_code": None},
        {"exit_code": 256},
        {"exit_code": -1},
        {"exit_code": 10**30},
        {"signal": 65},
        {"signal": 0},
        {"stdout__total": 2},
        {"stdout__total": -1},
        {"stdout__head": 2**41},
        {"stdout__head": 2**39},
        {"stdout__head": 2},
        {"stdout__head": 4},
        {"usage__wall_seconds": math.nan},
        {"usage__wall_seconds": math.inf},
        {"usage__wall_seconds": -1},
        {"usage__peak_memory_bytes": 10**30},
        {"timings__ran": math.nan},
        {"limit": {"name": "x", "ceiling": math.inf, "used": None}},
        {"artefacts": [{"name": "b", "size": 8, "digest": RECORD.artefacts[0].digest}]},
        {"artefacts": [{"name": "a", "size": 8, "digest": "sha256:" + "0" * 64}]},
        {"artefacts": [{"name": "a", "size": 2**40, "digest": "x"}]},
        {"missing_artefacts": [{"name": "a", "reason": "x"}]},
        {"missing_artefacts": [{"name": "passwd", "reason": "x"}]},
        {"enforcement": {"memory_bytes": "maybe"}},
        {"tier": "none"},
        {"detail": 3},
    ],
    ids=str,
)
async def test_a_record_that_cannot_be_is_lost(fields: dict[str, object]) -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.frames(changed(**fields))
        await exchange.end()

    await lost(play)


async def test_a_record_of_a_later_version_is_read() -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.frames(changed(mood="good", usage__joules=3))
        await exchange.end()

    async with serving(play) as peer, remote(peer) as stockade:
        assert await stockade.run(PROGRAM) == RECORD


@pytest.mark.parametrize("code", list(Code))
async def test_a_problem_behind_the_start_is_lost(code: Code) -> None:
    async def play(exchange: Exchange) -> None:
        problem = Problem.make(code, "so\x1b[31m it is")
        await exchange.frames(STARTED, encode(FrameType.PROBLEM, problem.body()))
        await exchange.end()

    assert "so\\x1b[31m it is" in (await lost(play)).detail


async def test_more_behind_the_end_ends_the_connection_and_nothing_else() -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.frames(everything() + encode(FrameType.STDOUT, b"more"))
        await exchange.gone()

    async with serving(play) as peer, remote(peer) as stockade:
        for _ in range(2):
            assert await stockade.run(PROGRAM) == RECORD
        assert peer.connections == 2


async def test_a_body_that_does_not_end_holds_up_no_record() -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.frames(everything())
        await exchange.gone()

    async with serving(play) as peer, remote(peer) as stockade:
        since = time.monotonic()
        assert await stockade.run(PROGRAM) == RECORD
        assert time.monotonic() - since < 5


# --- the head of the answer ---


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No\r\n\r\n",
        b"HTTP/1.1 201 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 502 No\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 504 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 599 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 No\r\nContent-Length: 1000000000000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        b"\x16\x03\x01\x02\x00",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        f"HTTP/1.1 200 OK\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Encoding: gzip\r\n"
        "Content-Length: 5\r\n\r\n\x1f\x8b\x08\x00\x00".encode("latin-1"),
    ],
)
async def test_an_answer_that_is_none_is_lost(head: bytes) -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.write(head)
        exchange.cut()

    await lost(play)


async def test_endless_informational_answers_are_lost() -> None:
    async def play(exchange: Exchange) -> None:
        while True:
            await exchange.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await asyncio.sleep(0.01)

    await lost(play)


def refusing(status: int, body: bytes = b"", media: str = "text/html", more: str = "") -> Play:
    async def play(exchange: Exchange) -> None:
        await exchange.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: {media}\r\n{more}"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    return play


async def refused(play: Play) -> tuple[Exception, Peer]:
    async with serving(play) as peer, remote(peer) as stockade:
        with pytest.raises((Refused, Unavailable, InvalidRequest, SandboxLost)) as error:
            await stockade.run(PROGRAM)
    assert str(error.value).isprintable()
    return error.value, peer


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 304])
async def test_no_redirect_is_followed(status: int) -> None:
    """It could lead to whatever can be reached from here, with the key."""
    target = "Location: http://169.254.169.254/latest\r\n"
    error, peer = await refused(refusing(status, more=target))
    assert isinstance(error, Unavailable)
    assert "redirect" in str(error)
    assert len(peer.asked) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "unauthenticated"),
        (403, "forbidden"),
        (404, "not_found"),
        (405, "method_not_allowed"),
        (406, "not_acceptable"),
        (409, "conflict"),
        (410, "sandbox_lost"),
        (413, "too_large"),
        (415, "unsupported_media_type"),
        (418, "forbidden"),
        (422, "invalid_request"),
        (429, "budget_exhausted"),
    ],
)
async def test_a_refusal_without_a_problem_is_one_by_its_status(status: int, code: str) -> None:
    error, _ = await refused(refusing(status, b"<html>", more="Retry-After: 7\r\n"))
    assert isinstance(error, Refused)
    assert error.code == code
    assert f"status {status}" in str(error)
    if status == 429:
        assert error.retry_after == 7


async def test_no_capacity_without_a_problem_is_unavailable() -> None:
    error, _ = await refused(refusing(503))
    assert isinstance(error, Unavailable)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (Problem.make(Code.FORBIDDEN, "no\x1b[2J"), Refused("forbidden", "no\\x1b[2J")),
        (
            Problem.make(Code.BUDGET_EXHAUSTED, "later", retry_after=3.5),
            Refused("budget_exhausted", "later", 3.5),
        ),
        (
            Problem.of(InvalidRequest("tier", "is weak")),
            InvalidRequest("tier", "is weak"),
        ),
        (
            Problem.of(Unavailable("none", {Tier.GVISOR: "no\nrunsc"})),
            Unavailable("none", {Tier.GVISOR: "no\\nrunsc"}),
        ),
        (Problem.of(SandboxLost("it died")), SandboxLost("it died")),
        (Problem.make(Code.TOO_LARGE, "x" * 100_000), None),
    ],
)
async def test_a_refusal_is_the_ports_error(
    problem: Problem, expected: Exception | None, streamed: bool
) -> None:
    """Also where it comes as the first frame: nothing ran."""

    async def play(exchange: Exchange) -> None:
        if streamed:
            await exchange.frames(encode(FrameType.KEEPALIVE))
            await exchange.chunk(encode(FrameType.PROBLEM, problem.body()))
            await exchange.end()
        else:
            await exchange.problem(problem)

    error, _ = await refused(play)
    if expected is None:
        assert len(str(error)) < 2000
        return
    assert (type(error), str(error)) == (type(expected), str(expected))
    assert getattr(error, "missing", None) == getattr(expected, "missing", None)
    assert getattr(error, "retry_after", None) == getattr(expected, "retry_after", None)
    assert getattr(error, "field", None) == getattr(expected, "field", None)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_internal_fault_may_have_run(streamed: bool) -> None:
    """A caller who took it for a refusal would run it again."""
    problem = Problem.make(Code.INTERNAL, "a fault")

    async def play(exchange: Exchange) -> None:
        if streamed:
            await exchange.frames(encode(FrameType.PROBLEM, problem.body()))
            await exchange.end()
        else:
            await exchange.problem(problem)

    await lost(play)


async def test_a_problem_of_a_later_version_is_still_a_refusal() -> None:
    body = Problem.make(Code.FORBIDDEN, "no").body().replace(b'"forbidden"', b'"moon_phase"')
    error, _ = await refused(refusing(403, body, "application/problem+json"))
    assert isinstance(error, Refused)
    assert error.code == "forbidden"


# --- connections ---


async def test_nobody_there_is_unavailable_after_some_attempts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with open_remote(url, key="k", timeouts=HURRIED) as stockade:
            since = time.monotonic()
            with pytest.raises(Unavailable, match=r"cannot be reached: .*refused"):
                await stockade.run(PROGRAM)
            assert 0.1 < time.monotonic() - since < 15


async def test_a_service_that_comes_back_in_time_is_reached() -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.record(RECORD)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    timeouts = dataclasses.replace(HURRIED, reach=5.0)
    async with open_remote(f"http://127.0.0.1:{port}", key="k", timeouts=timeouts) as stockade:
        running = asyncio.ensure_future(stockade.run(PROGRAM))
        await asyncio.sleep(0.2)
        peer = Peer()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            from .peer import _read

            asked = await _read(reader, peer)
            assert asked is not None
            await play(Exchange(asked, reader, writer))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", port)
        async with server:
            assert await running == RECORD
        assert len(peer.asked) == 1


async def test_what_was_sent_is_never_sent_again() -> None:
    async def play(exchange: Exchange) -> None:
        exchange.cut()

    async with serving(play) as peer, remote(peer) as stockade:
        assert (await stockade.run(PROGRAM)).outcome is Outcome.LOST
        assert len(peer.asked) == 1
        assert (await stockade.run(PROGRAM, idempotency_key="k1")).outcome is Outcome.LOST
        assert len(peer.asked) == 2


async def test_no_capacity_is_waited_for_with_an_idempotency_key_only() -> None:
    async def play(exchange: Exchange) -> None:
        if len(peer.of("POST", "/executions")) in (1, 2):
            problem = Problem.make(Code.UNAVAILABLE, "starting", retry_after=0.1)
            await exchange.write(
                b"HTTP/1.1 503 X\r\nContent-Type: application/problem+json\r\nRetry-After: 0.1\r\n"
                + f"Content-Length: {len(problem.body())}\r\n\r\n".encode()
                + problem.body()
            )
        else:
            await exchange.record(RECORD)

    async with serving(play) as peer, remote(peer) as stockade:
        with pytest.raises(Unavailable, match="starting"):
            await stockade.run(PROGRAM)
        assert await stockade.run(PROGRAM, idempotency_key="k1") == RECORD
        assert [asked.headers.get("idempotency-key") for asked in peer.asked] == [None, "k1", "k1"]


async def test_no_cookie_is_kept_and_no_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    async def play(exchange: Exchange) -> None:
        await exchange.write(
            b"HTTP/1.1 200 X\r\nSet-Cookie: a=b\r\n"
            + f"Content-Type: {MEDIA_TYPE}\r\nContent-Length: {len(everything())}\r\n\r\n".encode()
            + everything()
        )

    async with serving(play) as peer, remote(peer) as stockade:
        for _ in range(2):
            assert await stockade.run(PROGRAM) == RECORD
    assert all("cookie" not in asked.headers for asked in peer.asked)


async def test_a_slow_sink_stops_the_reading() -> None:
    """What is not taken stays at the other end."""
    sent = 0
    held = asyncio.Event()

    async def play(exchange: Exchange) -> None:
        nonlocal sent
        exchange.writer.transport.set_write_buffer_limits(high=65_536)
        piece = encode(FrameType.STDOUT, b"x" * 65_536)
        await exchange.frames(STARTED)
        for _ in range(200):
            await exchange.chunk(piece)
            sent += 1
        record = Execution(Outcome.OK, "", exit_code=0, stdout=Captured(b"", b"", 200 * 65_536))
        for frame in encode_record(record):
            await exchange.chunk(frame)
        await exchange.end()

    heard = 0

    async def sink(stream: Stream, data: bytes) -> None:
        nonlocal heard
        await held.wait()
        heard += len(data)

    # The time that the sink takes is neither a silence nor against the limits.
    async with serving(play) as peer, remote(peer) as stockade:
        sandbox = SandboxRequest(limits=Limits(wall_seconds=0.2, record_bytes=0))
        running = await stockade.start(PROGRAM, sandbox, on_output=sink)
        await asyncio.sleep(1.0)
        before = sent
        assert before < 150
        held.set()
        assert (await running.wait()).ok
    assert heard == 200 * 65_536


# --- cancelling, and the caller's own failures ---


def playing(on_cancel: Callable[[Exchange], object] | None = None) -> tuple[Play, asyncio.Event]:
    """A service whose program ends only when it is cancelled."""
    cancelled = asyncio.Event()

    async def play(exchange: Exchange) -> None:
        if exchange.asked.path.endswith("/cancel"):
            cancelled.set()
            await exchange.answer(204)
        elif exchange.asked.path.endswith("/stdin"):
            await exchange.answer(204)
        else:
            await exchange.frames(STARTED, encode(FrameType.STDOUT, b"up\n"))
            while not cancelled.is_set():
                await exchange.chunk(encode(FrameType.KEEPALIVE))
                try:
                    await asyncio.wait_for(cancelled.wait(), 0.1)
                except TimeoutError:
                    pass
            for frame in encode_record(Execution(Outcome.CANCELLED, "the caller ended it")):
                await exchange.chunk(frame)
            await exchange.end()

    return play, cancelled


async def test_a_cancelled_waiter_waits_for_the_confirmed_end() -> None:
    play, cancelled = playing()
    async with serving(play) as peer, remote(peer) as stockade:
        running = await stockade.start(PROGRAM)
        waiting = asyncio.ensure_future(running.wait())
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert cancelled.is_set()
        assert (await running.wait()).outcome is Outcome.CANCELLED


async def test_a_cancel_that_nobody_confirms_is_lost() -> None:
    async def play(exchange: Exchange) -> None:
        if exchange.asked.path.endswith("/cancel"):
            exchange.cut()
            return
        await exchange.frames(STARTED)
        await exchange.gone()

    timeouts = dataclasses.replace(HURRIED, silence=10.0)
    async with serving(play) as peer, remote(peer, timeouts) as stockade:
        running = await stockade.start(PROGRAM)
        await running.cancel()
        execution = await asyncio.wait_for(running.wait(), 5)
        assert execution.outcome is Outcome.LOST
        assert "nobody confirms" in execution.detail


async def test_a_sink_that_hangs_is_left_behind_once_it_is_cancelled() -> None:
    play, _ = playing()

    async def sink(stream: Stream, data: bytes) -> None:
        await asyncio.sleep(3600)

    async with serving(play) as peer, remote(peer) as stockade:
        running = await stockade.start(PROGRAM, on_output=sink)
        await asyncio.sleep(0.1)
        await running.cancel()
        execution = await asyncio.wait_for(running.wait(), 3)
        assert execution.outcome is Outcome.CANCELLED


async def test_an_error_of_the_sink_cancels_and_is_raised() -> None:
    play, cancelled = playing()

    async def sink(stream: Stream, data: bytes) -> None:
        raise RuntimeError("the sink is full")

    async with serving(play) as peer, remote(peer) as stockade:
        with pytest.raises(RuntimeError, match="the sink is full"):
            await asyncio.wait_for(stockade.run(PROGRAM, on_output=sink), 3)
        assert cancelled.is_set()


async def test_an_error_of_the_input_cancels_and_is_raised() -> None:
    play, cancelled = playing()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"
        raise RuntimeError("the source is gone")

    async with serving(play) as peer, remote(peer) as stockade:
        with pytest.raises(RuntimeError, match="the source is gone"):
            await asyncio.wait_for(stockade.run(PROGRAM, stdin=pieces()), 3)
        assert cancelled.is_set()


async def test_a_cancel_whose_connection_breaks_is_asked_for_again() -> None:
    play, cancelled = playing()
    asked = 0

    async def cutting(exchange: Exchange) -> None:
        nonlocal asked
        if exchange.asked.path.endswith("/cancel"):
            asked += 1
            if asked == 1:
                exchange.cut()
                return
        await play(exchange)

    async with serving(cutting) as peer, remote(peer) as stockade:
        running = await stockade.start(PROGRAM)
        await running.cancel()
        execution = await asyncio.wait_for(running.wait(), 10)
        assert execution.outcome is Outcome.CANCELLED
        assert (asked, cancelled.is_set()) == (2, True)


async def test_standard_input_that_breaks_off_is_lost() -> None:
    """The program saw an end that was none, so that what it did is not what was asked for."""
    play, _ = playing()

    async def cutting(exchange: Exchange) -> None:
        if exchange.asked.path.endswith("/stdin"):
            exchange.cut()
        else:
            await play(exchange)

    async with serving(cutting) as peer, remote(peer) as stockade:
        execution = await asyncio.wait_for(stockade.run(PROGRAM, stdin=b"x" * 500_000), 5)
        assert execution.outcome is Outcome.LOST
        assert "standard input broke off" in execution.detail


async def test_long_standard_input_goes_beside_the_request() -> None:
    done = asyncio.Event()

    async def play(exchange: Exchange) -> None:
        if exchange.asked.path.endswith("/stdin"):
            await exchange.answer(204)
            done.set()
            return
        await exchange.frames(STARTED)
        await done.wait()
        for frame in encode_record(RECORD):
            await exchange.chunk(frame)
        await exchange.end()

    async with serving(play) as peer, remote(peer) as stockade:
        assert await stockade.run(PROGRAM, stdin=b"x" * 1_000_000) == RECORD
    assert peer.asked[0].json["stdin"] is None
    assert peer.of("PUT", "/v1/executions/e1/stdin")[0].body == b"x" * 1_000_000


async def test_closing_cancels_what_runs() -> None:
    play, cancelled = playing()
    async with serving(play) as peer:
        async with remote(peer) as stockade:
            running = await stockade.start(PROGRAM)
            waiting = asyncio.ensure_future(running.wait())
        assert cancelled.is_set()
        assert (await waiting).outcome is Outcome.CANCELLED
        with pytest.raises(Unavailable, match="closed"):
            await stockade.run(PROGRAM)


async def test_the_memory_of_a_caller_is_safe_from_a_flood_of_frames() -> None:
    """The smallest frames that there are, as fast as they go: the time is what ends it."""

    async def play(exchange: Exchange) -> None:
        await exchange.frames(STARTED)
        flood = encode(FrameType.KEEPALIVE) * 10_000
        while True:
            await exchange.chunk(flood)
            await asyncio.sleep(0)

    async with serving(play) as peer, remote(peer) as stockade:
        sandbox = SandboxRequest(limits=Limits(wall_seconds=0.1))
        execution = await asyncio.wait_for(stockade.run(PROGRAM, sandbox), 20)
        assert execution.outcome is Outcome.LOST


# --- what is asked ---


async def test_an_id_that_was_given_must_be_the_one_that_is_told() -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.record(RECORD)

    async with serving(play) as peer, remote(peer) as stockade:
        assert await stockade.run(PROGRAM, id="e1") == RECORD
        assert (await stockade.run(PROGRAM, id="e2")).outcome is Outcome.LOST
        assert [asked.headers["stockade-id"] for asked in peer.asked] == ["e1", "e2"]
        with pytest.raises(InvalidRequest, match="id"):
            await stockade.run(PROGRAM, id="a/b")
        with pytest.raises(InvalidRequest, match="idempotency_key"):
            await stockade.run(PROGRAM, idempotency_key="a\r\nb")


async def test_whose_it_is_the_key_says_or_each_call() -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.record(RECORD)

    async with serving(play) as peer:
        async with remote(peer) as stockade:
            with pytest.raises(InvalidRequest, match="by the key") as error:
                await stockade.run(PROGRAM, SandboxRequest(tenant="other"))
            assert error.value.field == "tenant"
        async with open_remote(peer.url, key="k", tenant="gäste") as stockade:
            await stockade.run(PROGRAM)
            await stockade.run(PROGRAM, SandboxRequest())
            await stockade.run(PROGRAM, SandboxRequest(tenant="a b"))
    told = [asked.headers.get("stockade-tenant") for asked in peer.asked]
    assert told == ["g%C3%A4ste", "local", "a%20b"]


@pytest.mark.parametrize("key", ["", "a b", "a\r\nX: y", "é", "x" * 1025])
async def test_a_key_that_no_header_takes_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        async with open_remote("http://127.0.0.1:1", key=key):
            pass
    assert error.value.field == "key"
    assert not key or key not in str(error.value)


async def test_the_key_is_in_no_repr() -> None:
    async with open_remote("http://127.0.0.1:1", key="hunter2") as stockade:
        assert "hunter2" not in repr(stockade) + repr(stockade._transport)
        assert isinstance(stockade, RemoteEnvironment)


async def test_closing_does_not_wait_for_a_service_that_does_not_answer() -> None:
    """What was sent to it may have run."""

    async def play(exchange: Exchange) -> None:
        await exchange.gone()

    timeouts = dataclasses.replace(HURRIED, silence=60.0, start=60.0)
    async with serving(play) as peer:
        async with remote(peer, timeouts) as stockade:
            running = asyncio.ensure_future(stockade.run(PROGRAM))
            await asyncio.sleep(0.1)
            since = time.monotonic()
        assert time.monotonic() - since < 10
        assert (await asyncio.wait_for(running, 1)).outcome is Outcome.LOST


async def test_whatever_bytes_come() -> None:
    """An answer with a few of its bytes changed: a record, ``lost``, or an error of the port's."""
    chance = random.Random(5)
    body = everything()
    whole = (
        f"HTTP/1.1 200 OK\r\nContent-Type: {MEDIA_TYPE}\r\nTransfer-Encoding: chunked\r\n\r\n"
        f"{len(body):x}\r\n"
    ).encode() + (body + b"\r\n0\r\n\r\n")

    def changed_somewhere() -> bytes:
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    data[at:at] = chance.randbytes(chance.randint(1, 6))
                case 2:
                    del data[at : at + chance.randint(1, 8)]
                case _:
                    data[at:at] = data[at : at + chance.randint(1, 60)]
        return bytes(data)

    async def play(exchange: Exchange) -> None:
        await exchange.write(changed_somewhere())
        exchange.cut()

    async with serving(play) as peer, remote(peer) as stockade:
        for _ in range(150):
            try:
                execution = await asyncio.wait_for(stockade.run(PROGRAM), 20)
            except StockadeError:
                continue
            # What it printed may be another text: only the connection's TLS could tell.
            wanted = Wanted(Limits(), PROGRAM.artefacts)
            assert execution.outcome is Outcome.LOST or contradiction(execution, wanted) is None
