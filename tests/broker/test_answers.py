"""What comes back through the broker, by real clients: masked, whole, and not delayed."""

import asyncio
import base64
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest
import websockets
from tests.broker.brokered import (
    LOCAL,
    SECRET,
    Brokered,
    Recorder,
    connected,
    destination,
    front,
    guest_httpx,
    hear,
    plain,
    served,
    trusting,
)
from websockets.asyncio.client import connect as websocket
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websocket

BEARER = {"kind": "bearer"}
PAIR = base64.b64encode(f"me:{SECRET}".encode())


def get(port: int, target: str = "/", *more: str) -> bytes:
    lines = [f"GET {target} HTTP/1.1", f"Host: api.test:{port}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


RAW = SECRET.encode()
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
ECHOES = {
    "body": plain(b"you said " + RAW),
    "header": plain(b"", b"X-Echo: " + RAW, b"Set-Cookie: a=" + RAW),
    "reason": plain(b"", status=b"200 " + RAW.replace(b" ", b"")),
    "error page": plain(b"<b>" + RAW + b"</b>", status=b"500 Oh"),
    "status line that is none": b"HTTP/1.1 " + RAW + b"\r\n\r\n",
    "header that is none": b"HTTP/1.1 200 OK\r\n" + RAW + b"\r\n\r\n",
    "chunk border": CHUNKED
    + b"\r\n"
    + b"".join(chunk(RAW[n : n + 1]) for n in range(len(RAW)))
    + b"0\r\n\r\n",
    "trailer": CHUNKED + b"\r\n" + chunk(b"x") + b"0\r\nX-Echo: " + RAW + b"\r\n\r\n",
    "gzip": plain(gzip.compress(b"you said " + RAW), b"Content-Encoding: gzip"),
    "deflate": plain(zlib.compress(b"you said " + RAW), b"Content-Encoding: deflate"),
    "base64": plain(base64.b64encode(b"??" + RAW + b"?")),
    "basic": plain(b"Basic " + PAIR),
    "twice encoded": plain(gzip.compress(gzip.compress(RAW)), b"Content-Encoding: gzip, gzip"),
    "another encoding": plain(b"who knows", b"Content-Encoding: br"),
    "until the end": b"HTTP/1.1 200 OK\r\n\r\n" + RAW,
}


@pytest.mark.parametrize("kind", sorted(ECHOES))
async def test_an_echo_is_masked(brokered: Brokered, kind: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hear(reader)
        # In small pieces: the secret is never in one of them.
        for n in range(0, len(ECHOES[kind]), 5):
            writer.write(ECHOES[kind][n : n + 5])
            await writer.drain()
            await asyncio.sleep(0)

    async with destination(brokered.authority, answer) as port:
        await brokered.store(
            "key", f"https://api.test:{port} {LOCAL}", {"kind": "basic", "user": "me"}
        )
        sandbox = await brokered.open("key")
        async with connected(sandbox, "api.test", port) as (reader, writer):
            writer.write(get(port, "/", "Accept-Encoding: gzip, br", "Connection: close"))
            said = await reader.read()
        assert said.startswith(b"HTTP/1.1 "), said
        assert RAW not in said
        assert PAIR not in said
        if kind == "base64":
            assert RAW not in base64.b64decode(said.split(b"\r\n\r\n")[1].replace(b"*", b"A"))
        if kind in (
            "another encoding",
            "twice encoded",
            "status line that is none",
            "header that is none",
        ):
            assert said.startswith(b"HTTP/1.1 502 ")
        else:
            assert b"***" in said


async def test_a_compressed_bomb_is_cut(brokered: Brokered) -> None:
    bomb = gzip.compress(bytes(256 * 1024 * 1024), 9)
    async with destination(
        brokered.authority, Recorder(lambda _h, _b: plain(bomb, b"Content-Encoding: gzip"))
    ) as port:
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
        sandbox = await brokered.open("key")
        async with connected(sandbox, "api.test", port) as (reader, writer):
            writer.write(get(port))
            size = 0
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                while True:
                    size += len(await reader.readexactly(65_536))
            assert size < 100 * 1024 * 1024


@pytest.mark.parametrize("upstream_alpn", ["http/1.1", "h2"])
@pytest.mark.parametrize("http2", [False, True])
async def test_httpx_by_either_http(brokered: Brokered, http2: bool, upstream_alpn: str) -> None:
    async with served(brokered, upstream_alpn) as (port, seen):
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
        sandbox = await brokered.open("key")
        async with guest_httpx(sandbox, port, http2=http2) as client:
            answers = await asyncio.gather(
                *(client.get(f"https://api.test:{port}/echo?n={n}") for n in range(20))
            )
            assert {answer.status_code for answer in answers} == {200}
            assert {answer.http_version for answer in answers} == {
                "HTTP/2" if http2 else "HTTP/1.1"
            }
            assert all(SECRET not in answer.text and "***" in answer.text for answer in answers)
            assert sorted(answer.headers["x-target"] for answer in answers) == sorted(
                f"/echo?n={n}" for n in range(20)
            )
            # A large body each way, none of it held whole.
            size = 8 * 1024 * 1024

            async def large() -> AsyncIterator[bytes]:
                for _ in range(size // 65_536):
                    yield bytes(65_536)

            answer = await client.post(f"https://api.test:{port}/count", content=large())
            assert answer.text == str(size)
            answer = await client.get(f"https://api.test:{port}/large")
            assert len(answer.content) == size
        assert len(seen) == 22
        assert all(("authorization", f"Bearer {SECRET}") in headers for headers in seen)
        (use,) = await sandbox.finish()
        assert use.count == 22


async def test_many_streams_with_a_guest_that_goes_away(brokered: Brokered) -> None:
    async with served(brokered, "h2") as (port, _):
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
        sandbox = await brokered.open("key")
        async with guest_httpx(sandbox, port, http2=True) as client:
            for _ in range(5):
                tasks = [
                    asyncio.create_task(client.get(f"https://api.test:{port}/slow"))
                    for _ in range(10)
                ]
                await asyncio.sleep(0.05)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        # By another client: what this one counts of its streams may be wrong by now.
        async with guest_httpx(sandbox, port, http2=True) as client:
            answer = await client.get(f"https://api.test:{port}/echo")
            assert answer.status_code == 200


async def test_another_authority_on_the_same_connection(brokered: Brokered) -> None:
    """HTTP/2 would have connections be shared by all names that a certificate has."""
    async with served(brokered, "http/1.1") as (port, seen):
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
        sandbox = await brokered.open("key")
        async with guest_httpx(sandbox, port, http2=True) as client:
            for host in (f"evil.test:{port}", "api.test", f"api.test:{port}.evil.test"):
                answer = await client.get(f"https://api.test:{port}/", headers={"Host": host})
                assert answer.status_code == 421, answer.text
        assert seen == []


@pytest.mark.parametrize("http2", [False, True])
async def test_events_are_not_delayed(brokered: Brokered, http2: bool) -> None:
    taken = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hear(reader)
        writer.write(CHUNKED + b"Content-Type: text/event-stream\r\n\r\n")
        for n in range(5):
            writer.write(chunk(b"data: %d\n\n" % n))
            # The next one comes only when the guest has this one.
            await taken.wait()
            taken.clear()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with destination(brokered.authority, answer) as port:
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
        sandbox = await brokered.open("key")
        async with (
            guest_httpx(sandbox, port, http2=http2) as client,
            client.stream("GET", f"https://api.test:{port}/") as events,
        ):
            found = []
            async for data in events.aiter_bytes():
                found.append(data)
                taken.set()
        assert b"".join(found) == b"".join(b"data: %d\n\n" % n for n in range(5))


async def test_a_websocket(brokered: Brokered) -> None:
    asked: list[websockets.Headers] = []

    async def echo(connection: ServerConnection) -> None:
        assert connection.request is not None
        asked.append(connection.request.headers)
        async for message in connection:
            await connection.send(message)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    brokered.authority.issue_cert("api.test").configure_cert(context)
    async with serve_websocket(echo, "127.0.0.1", 0, ssl=context) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
        sandbox = await brokered.open("key")
        async with (
            front(sandbox, "api.test", port) as local,
            websocket(
                f"wss://api.test:{port}/ws",
                host="127.0.0.1",
                port=local,
                ssl=trusting(sandbox),
                proxy=None,
            ) as connection,
        ):
            assert not connection.protocol.extensions
            for message in ("hello", b"\x00\x01", "x" * 200_000):
                await connection.send(message)
                assert await connection.recv() == message
            await connection.send(f"it is {SECRET}!")
            assert await connection.recv() == "it is " + "*" * len(SECRET) + "!"
        assert asked[0]["Authorization"] == f"Bearer {SECRET}"
        assert "Sec-WebSocket-Extensions" not in asked[0]
        (use,) = await brokered.uses()
        assert use["status"] == 101


async def test_grpc_has_its_trailers(brokered: Brokered) -> None:
    async with served(brokered, "h2") as (port, seen):
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
        sandbox = await brokered.open("key")
        async with connected(sandbox, "api.test", port, "h2") as (reader, writer):
            http = h2.connection.H2Connection()
            http.initiate_connection()
            http.send_headers(
                1,
                [
                    (":method", "POST"),
                    (":scheme", "https"),
                    (":authority", f"api.test:{port}"),
                    (":path", "/pkg.Service/Call"),
                    ("content-type", "application/grpc"),
                    ("te", "trailers"),
                    ("grpc-accept-encoding", "gzip"),
                ],
            )
            writer.write(http.data_to_send())
            trailers: dict[bytes, bytes] = {}
            data = b""
            # The answer to each message comes before the next one is sent.
            for n in range(3):
                http.send_data(1, b"\0\0\0\0\1%d" % n)
                writer.write(http.data_to_send())
                while not data.endswith(b"%d" % n):
                    for event in http.receive_data(await reader.read(65_536)):
                        if isinstance(event, h2.events.DataReceived):
                            data += event.data or b""
            http.end_stream(1)
            writer.write(http.data_to_send())
            while not trailers:
                for event in http.receive_data(await reader.read(65_536)):
                    if isinstance(event, h2.events.TrailersReceived):
                        trailers = dict(event.headers)
            assert trailers == {b"grpc-status": b"0", b"x-echo": b"*" * len(f"Bearer {SECRET}"[7:])}
        (headers,) = seen
        assert ("te", "trailers") in headers
        assert ("grpc-accept-encoding", "identity") in headers


async def test_a_method_of_connect_and_bad_frames(brokered: Brokered) -> None:
    async with served(brokered, "h2") as (port, seen):
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
        sandbox = await brokered.open("key")
        for headers in (
            [(":method", "CONNECT"), (":authority", f"api.test:{port}")],
            [
                (":method", "CONNECT"),
                (":protocol", "websocket"),
                (":scheme", "https"),
                (":path", "/"),
                (":authority", f"api.test:{port}"),
            ],
            [
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "/"),
                (":authority", f"api.test:{port}"),
            ],
            [(":method", "GET"), (":scheme", "https"), (":path", "/")],
            [
                (":method", "GET"),
                (":scheme", "https"),
                (":path", "/"),
                (":authority", f"api.test:{port}"),
                ("host", "evil.test"),
            ],
            [
                (":method", "GET"),
                (":scheme", "https"),
                (":path", "/ HTTP/1.1\r\nX: y"),
                (":authority", f"api.test:{port}"),
            ],
        ):
            config = h2.config.H2Configuration(
                validate_outbound_headers=False, normalize_outbound_headers=False
            )
            http = h2.connection.H2Connection(config)
            http.initiate_connection()
            http.send_headers(1, headers, end_stream=True)
            async with connected(sandbox, "api.test", port, "h2") as (reader, writer):
                writer.write(http.data_to_send())
                status = b""
                while not status and (data := await reader.read(65_536)):
                    for event in http.receive_data(data):
                        match event:
                            case h2.events.ResponseReceived():
                                status = dict(event.headers)[b":status"]
                            case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                                status = b"reset"
                assert status[:1] in (b"4", b"r", b""), (headers, status)
        assert seen == []


async def test_curl(brokered: Brokered, tmp_path: Path) -> None:
    async with served(brokered, "h2") as (port, seen):
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
        sandbox = await brokered.open("key")
        (tmp_path / "ca.pem").write_text(sandbox.certificate)
        (tmp_path / "large").write_bytes(bytes(5_000_000))
        async with front(sandbox, "api.test", port) as local:
            for version in ("--http1.1", "--http2"):
                for more in ([], ["-T", str(tmp_path / "large"), "-H", "Expect: 100-continue"]):
                    process = await asyncio.create_subprocess_exec(
                        "curl", "-sS", version, "--cacert", str(tmp_path / "ca.pem"), "--noproxy", "*",
                        "--connect-to", f"api.test:{port}:127.0.0.1:{local}", *more,
                        f"https://api.test:{port}/{'count' if more else 'echo'}",
                        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                    )  # fmt: skip
                    out, errors = await process.communicate()
                    assert process.returncode == 0, errors
                    assert SECRET.encode() not in out
                    assert out == b"5000000" if more else b"***" in out
        assert len(seen) == 4
