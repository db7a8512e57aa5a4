"""Plain HTTP through the proxy: what is carried, and what is not."""

import asyncio

import pytest
from tests.egress.kit import Site, listening, running

HERE = "in 127.0.0.0/8"
OK = b"HTTP/1.1 200 OK\r\n"


def lines(*each: str) -> bytes:
    return "\r\n".join((*each, "", "")).encode("latin-1")


SMUGGLED = [
    ["Content-Length: 5", "Transfer-Encoding: chunked"],
    ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
    ["Transfer-Encoding: chunked, identity"],
    ["Transfer-Encoding: xchunked"],
    ["Transfer-Encoding:\x0bchunked"],
    ["Transfer-Encoding : chunked"],
    [" Transfer-Encoding: chunked"],
    ["Content-Length: 5", "Content-Length: 6"],
    ["Content-Length: 5", "Content-Length: 5"],
    ["Content-Length: 5, 5"],
    ["Content-Length: +5"],
    ["Content-Length: -1"],
    ["Content-Length: 0x5"],
    ["Content-Length: 99999999999999999999"],
    ["X: a", " folded"],
    ["X: a", "\tfolded"],
    ["X: a\nTransfer-Encoding: chunked"],
    ["X: a\rY: b"],
    ["X: a\0b"],
    ["X a"],
    [": a"],
    ["Host: other.example"],
]


@pytest.mark.parametrize("headers", SMUGGLED)
async def test_smuggling_shapes_are_refused(headers: list[str]) -> None:
    site = Site()
    async with listening(site) as port, running(f"localhost:{port} {HERE}") as it:
        answer = await it.say(
            lines(f"POST http://localhost:{port}/ HTTP/1.1", f"Host: localhost:{port}", *headers)
        )
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert site.heads == []
        assert it.reasons == ["malformed"]


@pytest.mark.parametrize(
    "line",
    [
        "GET http://localhost:{port}/\n HTTP/1.1",
        "GET  http://localhost:{port}/ HTTP/1.1",
        "GET http://localhost:{port}/ HTTP/1.1 ",
        "GET http://localhost:{port}/ HTTP/1.2",
        "GET http://localhost:{port}/ HTTP/0.9",
        "GET http://localhost:{port}/",
        "GET http://localhost:{port}/#x HTTP/1.1",
        "GET http://localhost:{port}/\x80 HTTP/1.1",
        "GET /x HTTP/1.1",
        "GET localhost:{port} HTTP/1.1",
        "GET https://localhost:{port}/ HTTP/1.1",
        "GET ftp://localhost:{port}/ HTTP/1.1",
        "G(T http://localhost:{port}/ HTTP/1.1",
    ],
)
async def test_request_lines_that_are_refused(line: str) -> None:
    site = Site()
    async with listening(site) as port, running(f"localhost:{port} {HERE}") as it:
        answer = await it.say(lines(line.format(port=port), f"Host: localhost:{port}"))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert site.heads == []


@pytest.mark.parametrize(
    ("target", "host", "reason"),
    [
        ("http://localhost:{port}/", "other.example", "host-mismatch"),
        ("http://localhost:{port}/", "localhost", "host-mismatch"),
        ("http://localhost:{port}/", "localhost:{port}@other.example", "userinfo"),
        ("http://user@localhost:{port}/", "localhost:{port}", "userinfo"),
        ("http://localhost:{port}@other.example/", "other.example", "userinfo"),
        ("http://other.example\\@localhost:{port}/", "localhost:{port}", "userinfo"),
        ("http://2130706433:{port}/", "2130706433:{port}", "numeric-host"),
        ("http://127.1:{port}/", "127.1:{port}", "numeric-host"),
        ("http://127.0.0.1:{port}/", "127.0.0.1:{port}", "no-rule"),
        ("http://[::ffff:127.0.0.1]:{port}/", "[::ffff:127.0.0.1]:{port}", "no-rule"),
        ("http://localhost.evil.example:{port}/", "localhost.evil.example:{port}", "no-rule"),
        ("http://localhost%2eexample:{port}/", "localhost:{port}", "bad-host"),
    ],
)
async def test_targets_and_hosts(target: str, host: str, reason: str) -> None:
    site = Site()
    async with listening(site) as port, running(f"localhost:{port} {HERE}") as it:
        answer = await it.say(
            lines(f"GET {target.format(port=port)} HTTP/1.1", f"Host: {host.format(port=port)}")
        )
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert f"X-Stockade-Egress: {reason}\r\n".encode() in answer
        assert it.reasons == [reason]
        assert site.heads == []


async def test_http_inside_connect_is_judged_like_any_other() -> None:
    site = Site()
    async with listening(site) as port, running(f"GET http://localhost:{port}/a {HERE}") as it:
        _, reader, writer = await it.connect(f"localhost:{port}")
        writer.write(lines("GET /a HTTP/1.1", f"Host: localhost:{port}"))
        assert (await reader.readuntil(b"ok")).startswith(OK)
        writer.write(lines("GET /a HTTP/1.1", "Host: other.example"))
        assert b"host-mismatch" in await reader.read(-1)
        writer.close()
        assert len(site.heads) == 1


async def test_a_body_in_chunks_and_a_pipelined_request() -> None:
    site = Site()
    async with listening(site) as port, running(f"localhost:{port} {HERE}") as it:
        start = f"http://localhost:{port}/ HTTP/1.1\r\nHost: localhost:{port}\r\n"
        answer = await it.say(
            f"POST {start}Transfer-Encoding: chunked\r\n\r\n"
            "3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n"
            f"PUT {start}Content-Length: 3\r\n\r\nxyz"
            f"GET {start}Connection: close\r\n\r\n".encode()
        )
        assert answer.count(OK) == 3
        assert site.bodies == [b"abcde", b"xyz", b""]


async def test_headers_that_say_another_method_or_path_do_not_go_on() -> None:
    site = Site()
    rules = (f"POST http://localhost:{{}}/a {HERE}",)
    async with listening(site) as port, running(*(each.format(port) for each in rules)) as it:
        await it.say(
            lines(
                f"POST http://localhost:{port}/a HTTP/1.1",
                f"Host: localhost:{port}",
                "X-HTTP-Method-Override: DELETE",
                "x-method-override: DELETE",
                "X-Original-URL: /admin",
                "Connection: close",
            )
        )
        assert site.heads == [lines("POST /a HTTP/1.1", f"Host: localhost:{port}")]


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"d\r\nuntil the end\r\n0\r\n\r\n"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"3\r\nold\r\n0\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
         b"1\r\nx\r\n0\r\n\r\n"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", b""),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x"),
    ],
)  # fmt: skip
async def test_framings_of_answers(answer: bytes, body: bytes) -> None:
    async with listening(Site(answer)) as port, running(f"localhost:{port} {HERE}") as it:
        said = await it.say(
            lines(
                f"GET http://localhost:{port}/ HTTP/1.1",
                f"Host: localhost:{port}",
                "Connection: close",
            )
        )
        assert said.rpartition(b"\r\n\r\n")[2] == body or said.endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
    ],
)
async def test_answers_that_are_none(answer: bytes) -> None:
    async with listening(Site(answer)) as port, running(f"localhost:{port} {HERE}") as it:
        said = await it.say(
            lines(f"GET http://localhost:{port}/ HTTP/1.1", f"Host: localhost:{port}")
        )
        assert said.startswith(b"HTTP/1.1 502 Bad Gateway: ")
        assert it.proxy.use.denials == 0


async def test_what_is_of_the_hop_does_not_reach_the_guest() -> None:
    site = Site(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nAlt-Svc: h3=x\r\nConnection: X-Gone\r\n"
        b"X-Gone: 1\r\nProxy-Authenticate: Basic\r\nKeep-Alive: timeout=5\r\nX-Stays: 1\r\n\r\nok"
    )
    async with listening(site) as port, running(f"localhost:{port} {HERE}") as it:
        said = await it.say(
            lines(
                f"GET http://localhost:{port}/ HTTP/1.1",
                f"Host: localhost:{port}",
                "Connection: close",
            )
        )
        assert said == lines(
            "HTTP/1.1 200 OK", "Content-Length: 2", "X-Stays: 1", "Connection: close"
        ) + b"ok"  # fmt: skip


async def test_events_come_as_they_are_sent() -> None:
    go = asyncio.Event()

    async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await go.wait()
        writer.write(b"data: 2\n\n")

    async with listening(events) as port, running(f"localhost:{port} {HERE}") as it:
        reader, writer = await it.open()
        writer.write(lines(f"GET http://localhost:{port}/ HTTP/1.1", f"Host: localhost:{port}"))
        await reader.readuntil(b"data: 1\n\n")
        go.set()
        await reader.readuntil(b"data: 2\n\n")
        writer.close()


async def test_a_client_that_waits_for_100_is_told_by_the_destination() -> None:
    async def careful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(5)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body)

    async with listening(careful) as port, running(f"localhost:{port} {HERE}") as it:
        reader, writer = await it.open()
        writer.write(
            lines(
                f"POST http://localhost:{port}/ HTTP/1.1",
                f"Host: localhost:{port}",
                "Expect: 100-continue",
                "Content-Length: 5",
            )
        )
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"hello")
        assert (await reader.readuntil(b"hello")).startswith(OK)
        writer.close()


async def test_an_answer_before_the_body_is_through_ends_the_connection() -> None:
    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await reader.read(-1)

    async with listening(hasty) as port, running(f"localhost:{port} {HERE}") as it:
        reader, writer = await it.open()
        writer.write(
            lines(
                f"POST http://localhost:{port}/ HTTP/1.1",
                f"Host: localhost:{port}",
                "Content-Length: 5000000",
            )
            + b"x" * 100_000
        )
        said = await reader.read(-1)
        assert said.startswith(b"HTTP/1.1 413 ")
        assert said.endswith(b"no")
        writer.close()


async def test_a_websocket_is_carried_and_no_other_upgrade() -> None:
    async def switching(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"Upgrade: websocket" not in head:
            writer.write(OK + b"Content-Length: 2\r\n\r\nno")
            return
        writer.write(
            lines(
                "HTTP/1.1 101 Switching Protocols",
                "Upgrade: websocket",
                "Connection: Upgrade",
                "Sec-WebSocket-Accept: x",
            )
            + b"first"
        )
        writer.write(await reader.readexactly(4))
        await reader.read(-1)

    async with listening(switching) as port, running(f"localhost:{port} {HERE}") as it:
        start = (f"GET http://localhost:{port}/ HTTP/1.1", f"Host: localhost:{port}")
        reader, writer = await it.open()
        writer.write(
            lines(*start, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")
            + b"\x00\xffab"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"Sec-WebSocket-Accept: x\r\n" in head
        assert await reader.readexactly(9) == b"first\x00\xffab"
        writer.close()
        said = await it.say(
            lines(*start, "Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c",
                  "HTTP2-Settings: x")
        )  # fmt: skip
        assert said.startswith(OK)


async def test_head_has_no_body() -> None:
    site = Site(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    async with listening(site) as port, running(f"localhost:{port} {HERE}") as it:
        start = f"http://localhost:{port}/ HTTP/1.1\r\nHost: localhost:{port}\r\n"
        said = await it.say(f"HEAD {start}\r\nHEAD {start}Connection: close\r\n\r\n".encode())
        assert said.count(b"Content-Length: 1000\r\n") == 2


async def test_one_connection_may_ask_for_several_destinations() -> None:
    one, two = Site(), Site()
    async with listening(one) as first, listening(two) as second:
        rules = (f"localhost:{first} {HERE}", f"localhost:{second} {HERE}")
        async with running(*rules) as it:
            said = await it.say(
                b"".join(
                    lines(f"GET http://localhost:{port}/ HTTP/1.1", f"Host: localhost:{port}")
                    for port in (first, second, first)
                )
                + lines("GET http://other.example/ HTTP/1.1", "Host: other.example")
            )
            assert said.count(OK) == 3
            assert said.count(b"no-rule") == 2
            assert (len(one.heads), len(two.heads)) == (2, 1)


async def test_a_redirect_is_the_clients_to_follow_and_judged_anew() -> None:
    site = Site(
        b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/\r\n"
        b"Content-Length: 0\r\n\r\n"
    )
    async with listening(site) as port, running(f"localhost:{port} {HERE}") as it:
        said = await it.say(
            lines(f"GET http://localhost:{port}/ HTTP/1.1", f"Host: localhost:{port}")
            + lines("GET http://169.254.169.254/latest/ HTTP/1.1", "Host: 169.254.169.254")
        )
        assert said.startswith(b"HTTP/1.1 302 ")
        assert b"X-Stockade-Egress: no-rule\r\n" in said
        assert it.proxy.use.denied[0].destination == "169.254.169.254:80"


async def test_a_body_in_tiny_pieces_leaves_others_their_turn() -> None:
    """All of them come in one read, and none of them waits for anything."""
    tiny = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
    site = Site(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    back = Site(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + tiny)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with listening(site) as there, listening(back) as here:
        rules = [f"http://localhost:{port} in 127.0.0.0/8" for port in (there, here)]
        async with running(*rules) as it:
            head = f"http://localhost:{there}/ HTTP/1.1\r\nHost: localhost:{there}\r\n"
            asked = f"POST {head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            for request in (
                asked.encode() + tiny,
                f"GET http://localhost:{here}/ HTTP/1.1\r\nHost: localhost:{here}\r\n"
                "Connection: close\r\n\r\n".encode(),
            ):
                turns = 0
                counting = asyncio.create_task(count())
                answer = await it.say(request)
                counting.cancel()
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
                assert turns > 20_000 // 64
    assert site.bodies == [b"x" * 20_000]


@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        (b"Content-Length: 2\r\n\r\nok", 1),
        (b"Content-Length: 2\r\nConnection: Close\r\n\r\nok", 2),
        (b"Content-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nextra", 2),
        (b"Content-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nextra", 2),
    ],
)
async def test_what_comes_beyond_an_answer_is_no_answer(answer: bytes, connections: int) -> None:
    site = Site(OK + answer)
    async with listening(site) as port, running(f"localhost:{port} {HERE}") as it:
        asked = (f"GET http://localhost:{port}/ HTTP/1.1", f"Host: localhost:{port}")
        said = await it.say(lines(*asked) + lines(*asked, "Connection: close"))
        assert said.count(b"HTTP/1.1 200 OK") == 2
        assert b"extra" not in said
        assert site.connections == connections


async def test_an_answer_cut_short_looks_cut_short() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Content-Length: 100000\r\n\r\n" + b"x" * 99_999)

    async with listening(cut) as port, running(f"localhost:{port} {HERE}") as it:
        said = await it.say(
            lines(f"GET http://localhost:{port}/ HTTP/1.1", f"Host: localhost:{port}") * 2
        )
        assert said.partition(b"\r\n\r\n")[2] == b"x" * 99_999  # and no second answer
        assert it.proxy.use.connections == 1


async def test_a_long_answer_is_counted_to_the_byte() -> None:
    body = bytes(range(256)) * 4096
    site = Site(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    async with listening(site) as port, running(f"localhost:{port} {HERE}") as it:
        asked = (f"GET http://localhost:{port}/ HTTP/1.1", f"Host: localhost:{port}")
        said = await it.say(lines(*asked, "Connection: close"))
        assert said.partition(b"\r\n\r\n")[2] == body
        assert it.proxy.use.received_bytes == len(said)
    # One byte less, and none beyond the ceiling goes on.
    most = len(said) - 1
    async with (
        listening(site) as port,
        running(f"localhost:{port} {HERE}", policy_received_bytes=most) as it,
    ):
        asked = (f"GET http://localhost:{port}/ HTTP/1.1", f"Host: localhost:{port}")
        said = await it.say(lines(*asked, "Connection: close"))
        assert len(said) <= most
        assert it.proxy.use.received_bytes <= most
        assert it.reasons == ["received-bytes"]
