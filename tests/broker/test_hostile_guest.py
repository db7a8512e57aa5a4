"""One guest, or one tenant, that takes all it can of the broker: the others still have theirs."""

import asyncio
import contextlib
import io
import logging
import socket
from collections.abc import AsyncIterator

import h2.config
import h2.connection
import pytest
from tests.broker.brokered import (
    DATA_TOKEN,
    LOCAL,
    SECRET,
    TENANT,
    Brokered,
    Recorder,
    connected,
    destination,
    hear,
    plain,
    say,
    served,
)

from stockade.broker.data import DataServer
from stockade.broker.exchange import _pieces
from stockade.broker.logs import ToLog, make_log
from stockade.broker.masking import Masks, forms
from stockade.broker.messages import Body
from stockade.broker.room import SANDBOX_REQUESTS, SandboxRoom
from stockade.broker.sandboxes import Sandboxes
from stockade.broker.store import Opened, Store
from stockade.broker.tickets import Tickets, TooManyTickets
from stockade.egress.names import Destination, Host
from stockade.egress.room import NoRoom, Room

BEARER = {"kind": "bearer"}


async def granted(brokered: Brokered, port: int, path: str = "") -> None:
    await brokered.store("key", f"https://api.test:{port}{path} {LOCAL}", BEARER)


def asking(port: int, path: str = "/v1", *headers: str, method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: api.test:{port}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@pytest.mark.parametrize(
    "name", ["X-Original-URL", "x-rewrite-url", "X_Original_Url", "X-Original-URI"]
)
async def test_no_header_says_another_path_than_was_granted(brokered: Brokered, name: str) -> None:
    seen = Recorder()
    async with destination(brokered.authority, seen) as port:
        await granted(brokered, port, "/v1")
        sandbox = await brokered.open("key")
        head, _ = await say(
            sandbox, "api.test", port, asking(port, "/v1/x", f"{name}: /admin", "X-Other: kept")
        )
    assert head.startswith(b"HTTP/1.1 200 ")
    (request,) = seen.requests
    assert SECRET.encode() in request
    assert b"/admin" not in request
    assert b"kept" in request


async def test_an_answer_with_two_lengths_has_one(brokered: Brokered) -> None:
    both = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    seen = Recorder(lambda _head, _body: both + b"5\r\nhello\r\n0\r\n\r\n")
    async with destination(brokered.authority, seen) as port:
        await granted(brokered, port)
        head, body = await say(await brokered.open("key"), "api.test", port, asking(port))
    assert b"content-length" not in head.lower()
    assert body == b"hello"


async def test_many_connections_in_one_moment(brokered: Brokered) -> None:
    async with served(brokered, "http/1.1") as (port, _):
        await granted(brokered, port)
        sandbox = await brokered.open("key")
        opened = await asyncio.gather(
            *(sandbox.connect("api.test", port, True) for _ in range(250)), return_exceptions=True
        )
        streams = [each for each in opened if not isinstance(each, BaseException)]
        for _, writer in streams:
            writer.transport.abort()
    assert len(streams) == 250


def many_streams(port: int, count: int) -> bytes:
    http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    http.initiate_connection()
    for number in range(1, 2 * count, 2):
        headers = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", f"api.test:{port}"),
            (":path", "/"),
        ]
        http.send_headers(number, headers, end_stream=True)
    return http.data_to_send()


async def test_streams_do_not_become_connections_without_end(brokered: Brokered) -> None:
    """Each stream towards a destination of HTTP/1.1 is a descriptor of the broker's."""
    asked = 0
    all_there, go_on = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await hear(reader)
        asked += 1
        if asked >= SANDBOX_REQUESTS:
            all_there.set()
        await go_on.wait()
        writer.write(plain(b"late"))
        await writer.drain()
        await reader.read()

    async with destination(brokered.authority, slow) as port, contextlib.AsyncExitStack() as stack:
        await granted(brokered, port)
        sandbox = await brokered.open("key")
        for _ in range(3):
            _, writer = await stack.enter_async_context(connected(sandbox, "api.test", port, "h2"))
            writer.write(many_streams(port, 100))
            await writer.drain()
        await asyncio.wait_for(all_there.wait(), 60)
        # One more is told so at once, and a sandbox beside it has its own share.
        head, body = await say(sandbox, "api.test", port, asking(port))
        assert head.startswith(b"HTTP/1.1 429 ")
        assert str(SANDBOX_REQUESTS).encode() in body
        assert asked == SANDBOX_REQUESTS
        other = await brokered.open("key", execution="run2")
        async with connected(other, "api.test", port) as (reader, writer):
            writer.write(asking(port))
            go_on.set()
            head, body = await hear(reader)
        assert (head[:13], body) == (b"HTTP/1.1 200 ", b"late")


async def test_a_request_gives_its_place_back_however_it_ends(brokered: Brokered) -> None:
    async with served(brokered, "http/1.1") as (port, _):
        await granted(brokered, port)
        sandbox = await brokered.open("key")
        for _ in range(3):
            await say(sandbox, "api.test", port, asking(port))
            await say(sandbox, "api.test", port, asking(port, "/v1", method="CONNECT"))
            async with connected(sandbox, "api.test", port) as (_reader, writer):
                writer.write(asking(port, "/slow"))
                await writer.drain()
        # A destination that breaks off, and one that is not there.
        await say(sandbox, "api.test", 9, asking(9))
        async with connected(sandbox, "api.test", port) as (reader, writer):
            for _ in range(SANDBOX_REQUESTS + 1):
                writer.write(asking(port, "/count"))
                head, _ = await hear(reader)
                assert head.startswith(b"HTTP/1.1 200 "), head


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return (
        len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content
    )


@pytest.mark.parametrize(
    "flood",
    [
        frame(6, 0, 0, b"12345678"),
        frame(4, 0, 0, b""),
        frame(2, 0, 3, b"\0\0\0\0\1"),
        frame(8, 0, 0, b"\0\0\0\1"),
    ],
    ids=["ping", "settings", "priority", "window"],
)
async def test_frames_that_carry_nothing_end_the_connection(
    brokered: Brokered, flood: bytes
) -> None:
    async with served(brokered, "http/1.1") as (port, _):
        await granted(brokered, port)
        sandbox = await brokered.open("key")
        async with connected(sandbox, "api.test", port, "h2") as (reader, writer):
            writer.write(many_streams(port, 1) + flood * 5000)
            with contextlib.suppress(ConnectionError):
                while await asyncio.wait_for(reader.read(65_536), 60):
                    pass  # it ends
        # And what is no flood does not.
        async with connected(sandbox, "api.test", port, "h2") as (reader, writer):
            writer.write(many_streams(port, 1) + flood * 500 + frame(6, 0, 0, b"the last"))
            said = b""
            while frame(6, 1, 0, b"the last") not in said:
                piece = await asyncio.wait_for(reader.read(65_536), 60)
                assert piece
                said += piece


async def test_bodies_that_are_kept_to_be_signed_have_a_bound(
    brokered: Brokered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stockade.broker.room.SANDBOX_BODIES", 100_000)
    seen = Recorder()
    async with destination(brokered.authority, seen) as port:
        await brokered.store(
            "aws",
            f"https://api.test:{port} {LOCAL}",
            {"kind": "sigv4", "region": "eu-west-1", "service": "sqs"},
            secret="AKIAABCDEFGHIJKLMNOP:a-key-that-is-secret",
        )
        sandbox = await brokered.open("aws")
        for size, status in ((90_000, 200), (110_000, 429), (90_000, 200)):
            request = asking(port, "/", f"Content-Length: {size}", method="POST") + bytes(size)
            head, _ = await say(sandbox, "api.test", port, request)
            assert head.startswith(b"HTTP/1.1 %d " % status), head
    assert len(seen.requests) == 2


async def test_uses_are_rows_that_stay_and_have_a_bound(
    brokered: Brokered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stockade.broker.room.SANDBOX_USES", 2)
    async with served(brokered, "http/1.1") as (port, seen):
        await granted(brokered, port)
        sandbox = await brokered.open("key")
        said = [(await say(sandbox, "api.test", port, asking(port)))[0] for _ in range(3)]
    assert [head[9:12] for head in said] == [b"200", b"200", b"429"]
    assert len(seen) == 2
    assert len(await brokered.uses()) == 2


def test_a_room_is_given_back_once_and_with_the_one_around_it() -> None:
    whole = Room(10, "places")
    one, other = Room(8, "places", whole), Room(8, "places", whole)
    first, second = one.take(6), other.take(4)
    with pytest.raises(NoRoom, match="places: 10 are taken"):
        one.take(1)
    assert (one.taken, whole.taken) == (6, 10)  # what failed took nothing
    first()
    first()
    assert (one.taken, whole.taken) == (0, 4)
    second()
    assert whole.taken == 0
    assert SandboxRoom.within(whole).bodies.take(10) is not None
    with pytest.raises(NoRoom):
        SandboxRoom.within(whole).bodies.take(1)


def test_tickets_of_one_tenant_leave_some_for_the_others() -> None:
    now = 0.0
    tickets = Tickets(clock=lambda: now)
    given = [tickets.issue("greedy", "e", ("key",)) for _ in range(1000)]
    with pytest.raises(TooManyTickets, match="of this tenant"):
        tickets.issue("greedy", "e", ("key",))
    assert tickets.issue("modest", "e", ("key",))
    tickets.redeem(given[0], "greedy", "e")
    tickets.issue("greedy", "e", ("key",))
    now = 61.0
    tickets.issue("greedy", "e", ("key",))
    assert repr(tickets) == "<Tickets 1 out>"


async def test_a_credential_that_is_deleted_while_a_sandbox_opens_is_not_used(
    brokered: Brokered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read before it was deleted, and the sandbox is known only after that."""
    await granted(brokered, 9)
    ticket = await brokered.ticket("key")
    read = Store.open_credentials
    removed = False

    async def slowly(store: Store, tenant: str, names: object) -> tuple[Opened, ...]:
        nonlocal removed
        found = await read(store, tenant, names)  # type: ignore[arg-type]
        if not removed:
            removed = True
            path = f"http://broker/v1/tenants/{TENANT}/credentials/key"
            async with brokered.control.delete(path) as answer:
                assert answer.status == 204
        return found

    monkeypatch.setattr(Store, "open_credentials", slowly)
    with pytest.raises(Exception, match="there is no credential 'key'"):
        await brokered.link.open(tenant=TENANT, execution="run1", ticket=ticket, rules=[])


async def test_a_machine_that_fails_silently_ends_its_leases() -> None:
    """Nothing says so but the connection, which has to be asked."""
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    data = DataServer(
        store=None,  # type: ignore[arg-type]
        tickets=Tickets(),
        sandboxes=Sandboxes(),
        reach=None,  # type: ignore[arg-type]
        token=DATA_TOKEN,
    )

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data.accept(reader, writer)
        accepted.set_result(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        peer = (await accepted).get_extra_info("socket")
        assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert 0 < peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
        assert 0 < peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 120_000
        writer.transport.abort()
    finally:
        server.close()
        await data.close()


def test_no_log_repeats_what_an_exception_says() -> None:
    """As asyncio does, of a task whose exception nobody asked for."""
    file = io.StringIO()
    said = f"Task exception was never retrieved\nfuture: <exception={SECRET!r}>"
    ToLog(make_log("debug", file)).handle(
        logging.LogRecord("asyncio", logging.ERROR, __file__, 1, said, None, None)
    )
    assert "never retrieved" in file.getvalue()
    assert "secret" not in file.getvalue()


async def test_an_answer_in_tiny_pieces_leaves_others_their_turn() -> None:
    """All of them come in one read, and each is looked through for secrets."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def tiny() -> AsyncIterator[bytes]:
        for _ in range(20_000):
            yield b"x"

    counting = asyncio.create_task(count())
    try:
        masked = _pieces(Body(tiny()), Masks(forms(SECRET)), None, Destination(Host("a"), 443))
        body = b"".join([piece async for piece in masked])
    finally:
        counting.cancel()
    assert body == b"x" * 20_000
    assert turns > 20_000 // 64


@pytest.mark.parametrize("secret", ["abcd" * 1000, "x" * 500 + "yza"])
async def test_what_repeats_itself_is_no_secret(brokered: Brokered, secret: str) -> None:
    path = f"http://broker/v1/tenants/{TENANT}/credentials/key"
    body = {"secret": secret, "grants": [{"rule": "https://api.test", "way": BEARER}]}
    async with brokered.control.put(path, json=body) as answer:
        said = await answer.text()
    assert answer.status == 422
    assert "repeats itself" in said
    assert secret not in said


@pytest.mark.parametrize("line", [b"HTTP/1.1 200 OK\r\nbroken ", b"no HTTP "])
async def test_a_broken_answer_is_told_without_what_it_said(
    brokered: Brokered, line: bytes
) -> None:
    """Python spells bytes in a way of its own, which is none of those that are masked."""
    secret = "with-'both\"-quotes-and-\u00e9-in-it"
    seen = Recorder(lambda _head, _body: line + secret.encode() + b"\r\n\r\n")
    async with destination(brokered.authority, seen) as port:
        rule, way = f"https://api.test:{port} {LOCAL}", {"kind": "query", "name": "key"}
        await brokered.store("odd", rule, way, secret=secret)
        head, body = await say(await brokered.open("odd"), "api.test", port, asking(port))
    assert head.startswith(b"HTTP/1.1 502 ")
    assert b"does not speak HTTP as it should" in body
    assert b"quotes" not in body


async def test_an_echo_in_utf_16_is_masked(brokered: Brokered) -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        seen = Recorder(lambda _head, _body, name=encoding: plain(f"<{SECRET}>".encode(name)))  # type: ignore[misc]
        async with destination(brokered.authority, seen) as port:
            await granted(brokered, port)
            _, body = await say(await brokered.open("key"), "api.test", port, asking(port))
        assert b"*" * (2 * len(SECRET)) in body
        assert SECRET.encode(encoding)[2:-2] not in body
