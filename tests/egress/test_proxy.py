"""Connections through the proxy, over real sockets."""

import asyncio
import contextlib
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest
from tests.egress.kit import QUICK, Site, client_hello, echo, listening, running
from tests.egress.test_client_hello import with_extension

from stockade.egress import BrokerDown
from stockade.egress.room import Room
from stockade.port.egress import MAX_DENIED, EgressUse, Scheme

HERE = "in 127.0.0.0/8"


async def test_nothing_is_allowed_that_no_rule_names() -> None:
    async with running(policy_watched=True) as it:
        answer = await it.say(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n")
        first = answer.partition(b"\r\n")[0]
        # Many clients show this line and no more.
        assert first.startswith(b"HTTP/1.1 403 Forbidden: no rule allows ")
        assert b"--allow " in first
        assert b"X-Stockade-Egress: no-rule\r\n" in answer
        assert b"--allow api.example.com:443 " in answer
        assert it.names.asked == []
        (denied,) = it.proxy.use.denied
        assert (denied.destination, denied.reason) == ("api.example.com:443", "no-rule")


async def test_a_tcp_tunnel_carries_bytes_both_ways_and_both_ends() -> None:
    async with listening(echo) as port, running(f"tcp://localhost:{port} {HERE}") as it:
        head, reader, writer = await it.connect(f"localhost:{port}")
        assert head == b"HTTP/1.1 200 Connection established\r\n\r\n"
        writer.write(b"x" * 1_000_000)
        writer.write_eof()
        assert await reader.read(-1) == b"x" * 1_000_000
        writer.close()
        for _ in range(100):
            if it.events[-1].verdict == "ended":
                break
            await asyncio.sleep(0.01)
        assert [each.verdict for each in it.events] == ["allowed", "ended"]
        assert it.proxy.use == EgressUse(1, 1_000_000, 1_000_000)


@pytest.mark.parametrize("name", [b"\x03\x09localhost", b"\x01\x7f\x00\x00\x01"])
async def test_socks(name: bytes) -> None:
    async with listening(echo) as port:
        rules = (f"tcp://localhost:{port} {HERE}", f"tcp://127.0.0.1:{port}")
        async with running(*rules) as it:
            reader, writer = await it.open()
            writer.write(b"\x05\x01\x00")
            assert await reader.readexactly(2) == b"\x05\x00"
            writer.write(b"\x05\x01\x00" + name + port.to_bytes(2, "big"))
            assert (await reader.readexactly(10))[:2] == b"\x05\x00"
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()


async def test_plain_http_is_written_anew() -> None:
    site = Site()
    async with listening(site) as port, running(f"localhost:{port} {HERE}") as it:
        answer = await it.say(
            f"GET http://LOCALHOST.:{port}/x?y HTTP/1.1\r\nHost: localhost:{port}\r\n"
            "Proxy-Authorization: Basic eA==\r\nConnection: close, X-Gone\r\nX-Gone: 1\r\n"
            "Accept: */*\r\n\r\n".encode()
        )
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nok")
        assert site.heads == [
            f"GET /x?y HTTP/1.1\r\nHost: localhost:{port}\r\nAccept: */*\r\n\r\n".encode()
        ]


async def test_each_request_on_a_connection_is_judged() -> None:
    site = Site()
    async with listening(site) as port, running(f"GET http://localhost:{port}/v1 {HERE}") as it:
        reader, writer = await it.open()

        async def ask(line: str) -> bytes:
            writer.write(f"{line} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2 if b"200" in head else 4)
            return head

        assert b" 200 " in await ask(f"GET http://localhost:{port}/v1/x")
        assert b" 200 " in await ask(f"GET http://localhost:{port}/v1?x")
        head = await ask(f"GET http://localhost:{port}/v1beta")
        assert b"X-Stockade-Egress: path" in head
        assert site.connections == 1
        assert len(site.heads) == 2
        writer.close()


async def test_tls_goes_where_it_says() -> None:
    async with listening(echo) as port, running(f"localhost:{port} {HERE}") as it:
        hello = client_hello("localhost")
        _, reader, writer = await it.connect(f"localhost:{port}")
        for each in range(len(hello)):
            writer.write(hello[each : each + 1])
            await writer.drain()
        assert await reader.readexactly(len(hello)) == hello
        writer.close()
        for name, reason in (("other.example", "sni-mismatch"), (None, "no-sni")):
            _, reader, writer = await it.connect(f"localhost:{port}")
            writer.write(client_hello(name))
            assert await reader.read(-1) == b"\x15\x03\x03\x00\x02\x02\x31"
            assert it.reasons[-1] == reason
            writer.close()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("2852039166:80", "numeric-host"),
        ("0xA9FEA9FE:80", "numeric-host"),
        ("0251.0376.0251.0376:80", "numeric-host"),
        ("169.254.43518:80", "numeric-host"),
        ("169.16689662:80", "numeric-host"),
        ("\u2460\u2465\u2468.254.169.254:80", "bad-host"),
        ("169.254.169.254.:80", "numeric-host"),
        ("169.254.169.254:80", "no-rule"),
        ("[::ffff:169.254.169.254]:80", "no-rule"),
        ("[fe80::1%25eth0]:80", "bad-host"),
        ("localhost:80", "no-rule"),
        ("localhost.:80", "no-rule"),
        ("LOCALHOST:80", "no-rule"),
        ("host.docker.internal:80", "no-rule"),
        ("metadata.google.internal:80", "no-rule"),
        ("api.example.com@evil.example:443", "userinfo"),
        ("api.example.com.evil.example:443", "no-rule"),
        ("evilapi.example.com:443", "no-rule"),
        ("api.example.com:22", "no-rule"),
        ("api.example.com:53", "no-rule"),
        ("api.example.com:853", "no-rule"),
    ],
)
async def test_connect_targets(target: str, reason: str) -> None:
    async with running("api.example.com", "*.files.example") as it:
        data = f"CONNECT {target} HTTP/1.1\r\n\r\n".encode()
        answer = await it.say(data)
        if not target.isascii():
            assert answer.startswith(b"HTTP/1.1 400 ")
            return
        assert f"X-Stockade-Egress: {reason}\r\n".encode() in answer
        assert it.reasons == [reason]
        assert it.names.asked == []
        host, _, port = target.rpartition(":")
        socks = b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(host)]) + host.encode()
        assert (await it.say(socks + int(port).to_bytes(2, "big")))[:4] == b"\x05\x00\x05\x02"


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (["127.0.0.1"], "loopback-address"),
        (["0.0.0.0"], "loopback-address"),
        (["::1"], "loopback-address"),
        (["10.0.0.1"], "private-address"),
        (["169.254.169.254"], "metadata-address"),
        (["::ffff:169.254.169.254"], "metadata-address"),
        (["64:ff9b::a9fe:a9fe"], "metadata-address"),
        (["2002:a9fe:a9fe::1"], "metadata-address"),
        (["93.184.216.34", "10.0.0.1"], "mixed-addresses"),
        (["10.0.0.1", "93.184.216.34"], "mixed-addresses"),
        (["198.51.100.7"], "own-address"),
    ],
)
async def test_answers_that_lead_inside(answers: list[str], reason: str) -> None:
    own = [ip_address("198.51.100.7")]
    names = {"api.example.com": [answers]}
    async with running(
        "api.example.com", "api.example.com:80", names=names, own_addresses=lambda: own
    ) as it:
        _, _, writer = await it.connect("api.example.com:443")
        writer.close()
        await it.say(b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
        assert it.reasons == [reason, reason]
        assert it.proxy.use.connections == 0


async def test_an_answer_that_changes_is_not_asked_for_again() -> None:
    """Rebinding: what was checked is what is connected to."""
    site = Site()
    async with listening(site) as port:
        names = {"rebinding.example": [["127.0.0.1"], ["169.254.169.254"]]}
        rule = f"rebinding.example:{port} {HERE}"
        async with running(rule, names=names) as it:
            line = f"GET http://rebinding.example:{port}/ HTTP/1.1\r\n"
            head = f"{line}Host: rebinding.example:{port}\r\n\r\n".encode()
            answer = await it.say(head + head)
            assert answer.count(b"200 OK") == 2
            assert it.names.asked == ["rebinding.example"]
            # And the next connection is judged by its own answer.
            assert b"metadata-address" in await it.say(head)
            assert len(site.heads) == 2


async def test_a_name_without_an_answer_and_a_destination_that_is_not_there() -> None:
    async with listening(echo) as port:
        pass
    async with running("gone.example", f"localhost:{port} {HERE}") as it:
        head, _, writer = await it.connect("gone.example:443")
        assert head.startswith(b"HTTP/1.1 502 ")
        writer.close()
        head, _, writer = await it.connect(f"localhost:{port}")
        assert head.startswith(b"HTTP/1.1 502 ")
        writer.close()
        assert it.proxy.use.denials == 0
        assert [each.verdict for each in it.events] == ["failed", "failed"]


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (client_hello("LOCALHOST"), ""),
        (client_hello("localhost."), ""),
        (client_hello("localhost.evil.example"), "sni-mismatch"),
        (client_hello("evil.localhost"), "sni-mismatch"),
        (with_extension(0xFE0D, b"\0" * 40, client_hello("localhost")), "encrypted-hello"),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", "bad-hello"),
        (b"\x16\x03\x01\x00\x02\x02\x00", "bad-hello"),
        (b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\x00", ""),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "not-tls-or-http"),
        (b"\x00\x01\x02\x03garbage", "not-tls-or-http"),
        (b"PROPFINDPROPFINDPROPFINDPROPFIND / HTTP/1.1\r\n\r\n", "not-tls-or-http"),
        (b"", "not-tls-or-http"),
    ],
)
async def test_what_is_said_in_a_tunnel(hello: bytes, reason: str) -> None:
    heard: list[bytes] = []

    async def hearing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(100_000))

    async with listening(hearing) as port, running(f"localhost:{port} {HERE}") as it:
        _, reader, writer = await it.connect(f"localhost:{port}")
        writer.write(hello)
        await reader.read(-1)
        assert it.reasons == ([reason] if reason else [])
        # A hello that never comes whole is no denial, and goes nowhere either.
        passed = not reason and hello[-2:] != b"\xff\x00"
        assert any(heard) is passed
        writer.close()


async def test_ports_say_what_is_spoken() -> None:
    async with running("localhost:80 in 127.0.0.0/8", "*.files.example:443") as it:
        verdicts = {
            "https://localhost:80": b"CONNECT localhost:80 HTTP/1.1\r\n\r\n",
            "http://a.files.example:443": b"GET http://a.files.example:443/ HTTP/1.1\r\nHost: a.files.example:443\r\n\r\n",
        }
        answer = await it.say(verdicts["http://a.files.example:443"])
        assert b"X-Stockade-Egress: scheme\r\n" in answer
        assert b"--allow http://a.files.example:443 " in answer


async def test_rules_that_look_into_tls_need_a_broker() -> None:
    async with running("GET https://api.example.com/v1") as it:
        head, reader, writer = await it.connect("api.example.com:443")
        assert b"X-Stockade-Egress: needs-broker\r\n" in head
        assert b"broker" in await reader.read(-1)
        assert it.names.asked == []
        writer.close()


class Broker:
    """Takes connections for one host."""

    def __init__(self, port: int, down: str = "") -> None:
        self.port = port
        self.down = down
        self.asked: list[tuple[str, int, bool]] = []

    def handles(self, host: str, port: int, scheme: Scheme) -> bool:
        return host == "api.example.com"

    async def connect(
        self, host: str, port: int, tls: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.asked.append((host, port, tls))
        if self.down:
            raise BrokerDown(self.down)
        return await asyncio.open_connection("127.0.0.1", self.port)


async def test_a_brokered_host_goes_to_the_broker_unresolved() -> None:
    async with listening(echo) as port:
        broker = Broker(port)
        async with running(broker=broker, policy_credentials=("key",)) as it:
            hello = client_hello("api.example.com")
            _, reader, writer = await it.connect("api.example.com:443")
            writer.write(hello)
            assert await reader.readexactly(len(hello)) == hello
            writer.close()
            _, reader, writer = await it.connect("api.example.com:443")
            writer.write(client_hello("other.example"))
            assert (await reader.read(-1))[:1] == b"\x15"
            writer.close()
            assert broker.asked == [("api.example.com", 443, True)] * 2
            assert it.names.asked == []
            assert it.reasons == ["sni-mismatch"]
            assert b"no-rule" in await it.say(b"CONNECT other.example:443 HTTP/1.1\r\n\r\n")


async def test_a_brokered_host_over_plain_http() -> None:
    site = Site()
    async with listening(site) as port:
        broker = Broker(port)
        async with running(broker=broker, policy_credentials=("key",)) as it:
            head = b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
            assert b"200 OK" in await it.say(head)
            assert broker.asked == [("api.example.com", 80, False)]


async def test_a_broker_that_is_down_is_a_clear_502() -> None:
    broker = Broker(0, "the broker does not answer")
    async with running(broker=broker, policy_credentials=("key",)) as it:
        head, reader, writer = await it.connect("api.example.com:443")
        assert head.startswith(b"HTTP/1.1 502 Bad Gateway: ")
        assert b"the broker does not answer" in await reader.read(-1)
        writer.close()
        answer = await it.say(
            b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 502 Bad Gateway: ")


# --- ceilings, and peers that do not play along --------------------------------------------------


async def test_connections_at_once() -> None:
    async with (
        listening(echo) as port,
        running(f"tcp://localhost:{port} {HERE}", policy_connections=2) as it,
    ):
        held = [await it.connect(f"localhost:{port}") for _ in range(2)]
        answer = await it.say(f"CONNECT localhost:{port} HTTP/1.1\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 429 Too Many Requests: ")
        assert it.reasons == ["connections"]
        for _, reader, writer in held:
            writer.write(b"still there")
            assert await reader.readexactly(11) == b"still there"
            writer.write_eof()
            await reader.read(-1)
            writer.close()
        head = b""
        for _ in range(100):
            head, _, writer = await it.connect(f"localhost:{port}")
            writer.close()
            if b"200" in head:
                break
            await asyncio.sleep(0.01)
        assert b"200" in head


async def test_connections_in_total() -> None:
    async with running(policy_watched=True, policy_total_connections=3) as it:
        answers = [await it.say(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n") for _ in range(4)]
        assert [each[9:12] for each in answers] == [b"403", b"403", b"403", b"429"]


@pytest.mark.parametrize(
    ("ceilings", "reason"),
    [
        ({"policy_sent_bytes": 100_000}, "sent-bytes"),
        ({"policy_received_bytes": 100_000}, "received-bytes"),
    ],
)
async def test_bytes_each_way(ceilings: dict[str, Any], reason: str) -> None:
    async with listening(echo) as port:
        rule = f"tcp://localhost:{port} {HERE}"
        async with running(rule, **ceilings) as it:
            _, reader, writer = await it.connect(f"localhost:{port}")
            writer.write(b"x" * 300_000)
            with contextlib.suppress(ConnectionError):
                assert len(await reader.read(-1)) <= 100_000
            for _ in range(100):
                if it.reasons:
                    break
                await asyncio.sleep(0.01)
            assert it.reasons == [reason]
            use = it.proxy.use
            assert min(use.sent_bytes, use.received_bytes) <= 100_000
            writer.close()


async def test_bytes_each_way_of_http() -> None:
    site = Site(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000)
    async with (
        listening(site) as port,
        running(f"localhost:{port} {HERE}", policy_received_bytes=100_000) as it,
    ):
        said = await it.say(
            f"GET http://localhost:{port}/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode()
        )
        assert len(said) <= 100_000
        assert it.reasons == ["received-bytes"]


async def test_a_rate_holds_bytes_back_and_loses_none() -> None:
    async with listening(echo) as port:
        rule = f"tcp://localhost:{port} {HERE}"
        async with running(rule, policy_bytes_per_second=200_000) as it:
            began = asyncio.get_running_loop().time()
            _, reader, writer = await it.connect(f"localhost:{port}")
            writer.write(b"x" * 200_000)
            writer.write_eof()
            assert len(await reader.read(-1)) == 200_000
            assert asyncio.get_running_loop().time() - began > 0.5
            writer.close()


async def test_a_connection_lives_so_long_and_no_longer() -> None:
    async with (
        listening(echo) as port,
        running(f"tcp://localhost:{port} {HERE}", policy_seconds=0.2) as it,
    ):
        _, reader, writer = await it.connect(f"localhost:{port}")
        assert await reader.read(-1) == b""
        writer.close()
        assert it.events[-1].reason == "seconds"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"CONNECT a.example",
        b"CONNECT a.example:443 HTTP/1.1\r\nX: ",
        b"GET http://a.example/ HTTP/1.1\r\nX: ",
        b"\x05",
        b"\x05\x01\x00",
        b"\x05\x01\x00\x05\x01\x00\x03\xff",
    ],
)
async def test_whoever_is_slow_is_left(data: bytes) -> None:
    async with running(policy_watched=True) as it:
        reader, writer = await it.open()
        writer.write(data)
        answer = await asyncio.wait_for(reader.read(-1), 20)
        if data[:1] in (b"C", b"G"):
            assert answer.startswith(b"HTTP/1.1 408 Request Timeout: ")
        writer.close()


async def test_a_half_open_connection_is_left() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        await asyncio.Event().wait()

    async with listening(silent) as port, running(f"tcp://localhost:{port} {HERE}") as it:
        _, reader, writer = await it.connect(f"localhost:{port}")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(-1), 20) == b""
        writer.close()


async def test_closing_ends_all_connections() -> None:
    async with listening(echo) as port, running(f"tcp://localhost:{port} {HERE}") as it:
        held = [await it.connect(f"localhost:{port}") for _ in range(5)]
        await it.proxy.aclose()
        for _, reader, writer in held:
            assert await reader.read(-1) == b""
            writer.close()
        assert repr(it.proxy) == "<EgressProxy 0 open, 5 let through, 0 denied>"
        assert [each.reason for each in it.events if each.verdict == "ended"] == ["closed"] * 5
        assert await it.say(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n") == b""


async def test_the_record_is_bounded_and_shows() -> None:
    async with running(policy_watched=True, policy_connections=256) as it:
        for each in range(MAX_DENIED + 3):
            await it.say(f"CONNECT a{each}.example:443 HTTP/1.1\r\n\r\n".encode())
        await it.say(b"CONNECT \x1b[31m:443 HTTP/1.1\r\n\r\n")
        name = b"\x1b[31m\xff\n" + b"x" * 240
        await it.say(b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(name)]) + name + b"\x01\xbb")
        use = it.proxy.use
        assert len(use.denied) == MAX_DENIED
        assert use.denials == MAX_DENIED + 5
        for event in it.events:
            assert event.destination.isprintable()
            assert event.destination.isascii()
            assert event.detail.isprintable()
            assert len(event.destination) <= 300


async def test_a_large_download_and_many_connections() -> None:
    async def large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        for _ in range(50):
            writer.write(bytes(1_000_000))
            await writer.drain()

    async with listening(large) as port:
        rule = f"tcp://localhost:{port} {HERE}"
        async with running(rule, policy_connections=256) as it:
            held = [await it.connect(f"localhost:{port}") for _ in range(200)]
            _, reader, writer = held[0]
            writer.write(b"x")
            got = 0
            while piece := await reader.read(1 << 20):
                got += len(piece)
            assert got == 50_000_000
            for _, _, each in held:
                each.close()


async def test_a_caller_that_is_cancelled_twice_leaves_nothing_open() -> None:
    async with running(policy_watched=True) as it:
        ours, theirs = asyncio.StreamReader(), []

        class Nobody(asyncio.Transport):
            def write(self, data: bytes | bytearray | memoryview) -> None:
                theirs.append(bytes(data))

            closed = False

            def is_closing(self) -> bool:
                return self.closed

            def close(self) -> None:
                self.closed = True

        protocol = asyncio.StreamReaderProtocol(ours)
        writer = asyncio.StreamWriter(Nobody(), protocol, ours, asyncio.get_running_loop())
        serving = asyncio.create_task(it.proxy.serve(ours, writer))
        await asyncio.sleep(0.05)
        serving.cancel()
        await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait((serving,))
        async with asyncio.timeout(10):
            await it.proxy.aclose()
        assert repr(it.proxy).startswith("<EgressProxy 0 open")


class Silence(asyncio.Transport):
    """A guest's side on which nothing comes; it knows whether it was closed."""

    closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nobody reads it."""

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def silent() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Silence]:
    reader, transport = asyncio.StreamReader(), Silence()
    protocol = asyncio.StreamReaderProtocol(reader)
    loop = asyncio.get_running_loop()
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop), transport


async def test_a_connection_that_is_ended_before_its_first_step_is_closed() -> None:
    async with running(policy_watched=True) as it:
        reader, writer, transport = silent()
        serving = asyncio.create_task(it.proxy.serve(reader, writer))
        await asyncio.sleep(0)  # it has made its task, which has not begun
        await it.proxy.aclose()
        await serving
        assert transport.closed


async def test_connections_far_beyond_the_ceiling_are_in_the_record() -> None:
    """They are closed unheard, or they would take what their ceiling guards."""
    async with running(policy_watched=True, policy_connections=1) as it:
        tasks = []
        for _ in range(5):
            reader, writer, _ = silent()
            tasks.append(asyncio.create_task(it.proxy.serve(reader, writer)))
            await asyncio.sleep(0)
        assert repr(it.proxy).startswith("<EgressProxy 2 open")
        (denied,) = it.proxy.use.denied
        assert (denied.reason, denied.count) == ("connections", 3)
        assert [each.reason for each in it.events] == ["connections"] * 3
        await it.proxy.aclose()
        await asyncio.gather(*tasks)


async def test_destinations_of_one_connection_count_like_connections() -> None:
    """Two hosts in turn on one connection are a new one each time."""
    async with listening(Site()) as one, listening(Site()) as other:
        rules = [f"http://localhost:{port} {HERE}" for port in (one, other)]
        async with running(*rules, policy_total_connections=3) as it:
            asked = [
                f"GET http://localhost:{port}/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n"
                for port in (one, other, one, other, one)
            ]
            answer = await it.say("".join(asked).encode())
            assert answer.count(b"HTTP/1.1 200 OK") == 3
            assert answer.count(b"HTTP/1.1 429 ") == 1
            assert it.reasons == ["total-connections"]
            assert it.proxy.use.connections == 3


async def test_what_all_sandboxes_have_together_has_a_bound() -> None:
    """It is the executor's own descriptors, without which it starts nothing."""
    room = Room(2, "connections of all sandboxes together")
    async with listening(echo) as port:
        rule = f"tcp://localhost:{port} {HERE}"
        async with running(rule, room=room) as it, running(rule, room=room) as beside:
            held = [await it.connect(f"localhost:{port}") for _ in range(2)]
            head, reader, writer = await beside.connect(f"localhost:{port}")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"together" in await reader.read(-1)
            writer.close()
            assert beside.proxy.use.denials == 0
            assert [each.reason for each in beside.events] == ["no-room"]
            # What is denied takes none.
            assert b"no-rule" in await beside.say(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n")
            for _, reader, writer in held:
                writer.write_eof()
                await reader.read(-1)
                writer.close()
            await it.proxy.aclose()
            assert room.taken == 0
            head, _, writer = await beside.connect(f"localhost:{port}")
            assert b" 200 " in head
            writer.close()


async def test_a_peer_that_times_out_is_broken_and_not_out_of_time() -> None:
    """ETIMEDOUT is a TimeoutError as well; a policy's seconds are something else."""

    class Fails(Broker):
        async def connect(
            self, host: str, port: int, tls: bool
        ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer, _ = silent()
            asyncio.get_running_loop().call_later(
                0.05, reader.set_exception, TimeoutError(110, "Connection timed out")
            )
            return reader, writer

    async with running(broker=Fails(0), policy_credentials=("key",)) as it:
        _, reader, writer = await it.connect("api.example.com:443")
        writer.write(client_hello("api.example.com"))
        await asyncio.wait_for(reader.read(-1), 20)
        writer.close()
        await it.proxy.aclose()
        assert [each.reason for each in it.events if each.verdict == "ended"] == ["broken"]


async def test_a_broker_that_is_slow_is_a_504() -> None:
    class Slow(Broker):
        async def connect(
            self, host: str, port: int, tls: bool
        ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            await asyncio.Event().wait()
            raise AssertionError

    class Late(Broker):
        async def connect(
            self, host: str, port: int, tls: bool
        ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            raise BrokerDown("it said nothing", late=True)

    for broker in (Slow(0), Late(0)):
        waits = replace(QUICK, connect_seconds=0.1)
        async with running(broker=broker, policy_credentials=("key",), waits=waits) as it:
            head, _, writer = await it.connect("api.example.com:443")
            assert head.startswith(b"HTTP/1.1 504 ")
            assert b"X-Stockade-Egress: broker-down\r\n" in head
            writer.close()


async def test_guests_that_read_nothing_are_held_little_for() -> None:
    """What they do not take stands in the executor, which no limit of a sandbox counts."""

    class Full(Silence):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            if bytes(data[:12]) != b"HTTP/1.1 200":
                protocol = self.get_protocol()
                assert isinstance(protocol, asyncio.StreamReaderProtocol)
                protocol.pause_writing()
                full.add(id(self))

        def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
            self._its_protocol = protocol

        def get_protocol(self) -> asyncio.BaseProtocol:
            return self._its_protocol

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await all_open.wait()
        while True:
            writer.write(bytes(1 << 20))
            await writer.drain()

    full: set[int] = set()
    all_open = asyncio.Event()
    async with (
        listening(flood) as port,
        running(f"tcp://localhost:{port} {HERE}", policy_connections=96) as it,
    ):
        tasks = []
        for _ in range(96):
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            transport = Full()
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
            reader.feed_data(f"CONNECT localhost:{port} HTTP/1.1\r\n\r\n".encode())
            tasks.append(asyncio.create_task(it.proxy.serve(reader, writer)))
        async with asyncio.timeout(60):
            while it.proxy.use.connections < 96:
                await asyncio.sleep(0.01)
            all_open.set()
            while len(full) < 96:
                await asyncio.sleep(0.01)
        assert it.proxy.use.received_bytes <= 96 * 65_536
        await it.proxy.aclose()
        await asyncio.gather(*tasks)
