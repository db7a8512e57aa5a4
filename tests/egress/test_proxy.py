"""Connections through the proxy, over real sockets."""

import asyncio

import pytest
from tests.egress.kit import Site, client_hello, echo, listening, running

from stockade.port.egress import EgressUse

HERE = "in 127.0.0.0/8"


async def test_nothing_is_allowed_that_no_rule_names() -> None:
    async with running(policy_watched=True) as it:
        answer = await it.say(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
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
