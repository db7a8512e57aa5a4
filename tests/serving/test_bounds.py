"""What a peer may cost that speaks no HTTP, speaks it slowly, or does not listen."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stockade.serving import BoundedServer, Bounds, Listening

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _application(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    while (await receive()).get("more_body"):
        pass
    size = int(scope["query_string"] or b"0")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(0, size, 65536):
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def _serving(bounds: Bounds) -> AsyncIterator[BoundedServer]:
    async with BoundedServer.open(_application, Listening(), bounds, grace=1) as server:
        yield server


async def _connect(server: BoundedServer) -> Streams:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _answer(streams: Streams) -> tuple[int, dict[str, Any]]:
    """All there is until the end."""
    async with asyncio.timeout(5):
        data = await streams[0].read()
    await _close(streams[1])
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    return int(head.split()[1]), json.loads(body)


def _handshake(more: bytes) -> bytes:
    """A WebSocket's, whose parser is another one."""
    return (
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        + more
        + b"\r\n"
    )


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        pytest.param(b"GARBAGE\r\n\r\n", 400, "invalid_request", id="no HTTP"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n", 408, "invalid_request", id="unfinished"),
        pytest.param(b"", 408, "invalid_request", id="silent"),
        pytest.param(
            b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, 431, "too_large", id="endless headers"
        ),
        pytest.param(
            b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", 431, "too_large", id="long target"
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "invalid_request",
            id="two lengths",
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", 400, "invalid_request", id="NUL"
        ),
        pytest.param(
            _handshake(b"Content-Length: 5\r\n"), 400, "invalid_request", id="WebSocket, body"
        ),
        pytest.param(
            _handshake(b"Transfer-Encoding: chunked\r\n"),
            400,
            "invalid_request",
            id="WebSocket, chunks",
        ),
        pytest.param(
            _handshake(b"X: y\r\n" * 200), 400, "invalid_request", id="WebSocket, many headers"
        ),
    ],
)
async def test_what_is_no_request_is_answered_and_left(sent: bytes, status: int, code: str) -> None:
    """With a problem that says why."""
    async with _serving(Bounds(header_bytes=4096, header_seconds=0.2)) as server:
        streams = await _connect(server)
        streams[1].write(sent)
        answered, problem = await _answer(streams)
        assert (answered, problem["code"], problem["status"]) == (status, code, status)


async def test_one_connection_too_many_is_told_so() -> None:
    """Those that are there go on, and a place that is free again is given."""
    async with _serving(Bounds(connections=3, header_seconds=30)) as server:
        idle = [await _connect(server) for _ in range(3)]
        while server.connections < 3:
            await asyncio.sleep(0.01)
        status, problem = await _answer(await _connect(server))
        assert (status, problem["retry_after"]) == (503, 1.0)
        idle[0][1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await idle[0][0].readline()).startswith(b"HTTP/1.1 200")
        for _, writer in idle:
            await _close(writer)
        while server.connections:
            await asyncio.sleep(0.01)


async def test_a_peer_that_does_not_read_is_left() -> None:
    """However much it is to be sent: a few buffers are held for it, and not for long."""
    async with _serving(Bounds(stalled_seconds=0.3)) as server:
        reader, writer = await _connect(server)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /?100000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(5):
            while not server.connections:
                await asyncio.sleep(0.01)
            while server.connections:
                await asyncio.sleep(0.05)
        await _close(writer)


def _echo(begun: list[bytes], left: list[bytes], go: asyncio.Event) -> Any:
    """Answers with what it was sent, once it may."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["query_string"])
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        leaving = asyncio.ensure_future(receive())
        going = asyncio.ensure_future(go.wait())
        await asyncio.wait([leaving, going], return_when=asyncio.FIRST_COMPLETED)
        going.cancel()
        if leaving.done():
            left.append(scope["query_string"])
            return
        leaving.cancel()
        answer = scope["query_string"] + b":" + body + b";"
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return application


def _request(name: bytes, body: bytes = b"") -> bytes:
    return b"POST /?%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (
        name,
        len(body),
        body,
    )


@pytest.mark.parametrize("step", [1, 7, 10_000])
async def test_requests_that_are_sent_ahead_are_served_in_order(step: int) -> None:
    """However they are cut up; one begins when the one in front of it is answered."""
    begun: list[bytes] = []
    go = asyncio.Event()
    application = _echo(begun, [], go)
    async with BoundedServer.open(application, Listening(), Bounds(), grace=1) as server:
        reader, writer = await _connect(server)
        sent = b"".join(_request(b"%d" % number, b"b" * number * 300) for number in range(5))
        for start in range(0, len(sent), step * 50):
            writer.write(sent[start : start + step * 50])
            await asyncio.sleep(0)
        while not begun:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert begun == [b"0"]
        go.set()
        async with asyncio.timeout(5):
            for number in range(5):
                answer = await reader.readuntil(b";")
                assert answer.endswith(b"\r\n\r\n%d:%s;" % (number, b"b" * number * 300))
        assert begun == [b"%d" % number for number in range(5)]
        # And the connection is one as before.
        writer.write(_request(b"last"))
        async with asyncio.timeout(5):
            assert (await reader.readuntil(b";")).endswith(b"last:;")
        await _close(writer)


@pytest.mark.parametrize("ahead", [b"", _request(b"second", b"abc"), b"POST / HT"])
async def test_the_request_in_front_hears_that_its_peer_left(ahead: bytes) -> None:
    """Or what it runs would go on for nobody. Those behind it never begin."""
    begun: list[bytes] = []
    left: list[bytes] = []
    application = _echo(begun, left, asyncio.Event())
    async with BoundedServer.open(application, Listening(), Bounds(), grace=1) as server:
        _, writer = await _connect(server)
        writer.write(_request(b"first", b"abc") + ahead)
        while not begun:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        await _close(writer)
        async with asyncio.timeout(5):
            while not left:
                await asyncio.sleep(0.01)
        assert (begun, left) == ([b"first"], [b"first"])


@pytest.mark.parametrize(
    "ahead",
    [
        pytest.param(_request(b"x") * 1000, id="many"),
        pytest.param(_request(b"x", b"y" * 100_000), id="long"),
        pytest.param(_handshake(b""), id="WebSocket"),
    ],
)
async def test_what_is_sent_ahead_is_bounded(ahead: bytes) -> None:
    """A hundred thousand requests would be held otherwise."""
    begun: list[bytes] = []
    application = _echo(begun, [], asyncio.Event())
    async with BoundedServer.open(application, Listening(), Bounds(), grace=1) as server:
        streams = await _connect(server)
        streams[1].write(_request(b"first") + ahead)
        status, problem = await _answer(streams)
        assert (status, problem["code"]) == (400, "invalid_request")
        assert "before the" in problem["detail"]
        assert begun in ([], [b"first"])


async def test_one_request_after_another_is_served() -> None:
    """And the peer that ends its side early hears its answer."""
    async with _serving(Bounds()) as server:
        reader, writer = await _connect(server)
        for _ in range(3):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
            assert b"ok" in await reader.readuntil(b"0\r\n\r\n")
        await _close(writer)


async def test_a_unix_socket_that_was_left_behind_is_taken_over(tmp_path: Path) -> None:
    """One that somebody listens on is not."""
    listening = Listening(path=tmp_path / "socket")
    async with BoundedServer.open(_application, listening, Bounds()) as server:
        assert server.url == f"unix:{tmp_path}/socket"
        with pytest.raises(OSError):
            async with BoundedServer.open(_application, listening, Bounds()):
                pass
        assert (tmp_path / "socket").is_socket()
    import socket

    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "socket"))
    stale.close()
    async with BoundedServer.open(_application, listening, Bounds()):
        pass
    assert not (tmp_path / "socket").exists()
