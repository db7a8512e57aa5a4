"""A secret goes into the requests it is granted for, whatever the guest does, and into no other."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from tests.broker.brokered import (
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
)

BEARER = {"kind": "bearer"}


@pytest.fixture
def upstream() -> Recorder:
    return Recorder()


@pytest.fixture
async def port(brokered: Brokered, upstream: Recorder) -> AsyncIterator[int]:
    async with destination(brokered.authority, upstream) as found:
        yield found


def get(
    port: int, target: str = "/", *more: str, host: str = "api.test", method: str = "GET"
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}:{port}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.mark.parametrize(
    ("way", "wanted"),
    [
        ({"kind": "bearer"}, f"authorization: Bearer {SECRET}"),
        ({"kind": "header", "name": "X-Api-Key"}, f"x-api-key: {SECRET}"),
        (
            {"kind": "header", "name": "Authorization", "prefix": "Token "},
            f"authorization: Token {SECRET}",
        ),
        (
            {"kind": "basic", "user": "me"},
            f"authorization: Basic {base64.b64encode(f'me:{SECRET}'.encode()).decode()}",
        ),
        ({"kind": "query", "name": "key"}, f"GET /v1?a=1&key={quote(SECRET, safe='')} HTTP/1.1"),
    ],
)
async def test_each_way_takes_the_place_of_the_guests_own(
    brokered: Brokered, upstream: Recorder, port: int, way: dict[str, Any], wanted: str
) -> None:
    await brokered.store("key", f"https://api.test:{port} {LOCAL}", way)
    sandbox = await brokered.open("key")
    head, body = await say(
        sandbox,
        "api.test",
        port,
        get(
            port,
            "/v1?a=1&key=guests&%6bey=guests",
            "Authorization: guests",
            "AUTHORIZATION: guests",
            "X-Api-Key: guests",
        ),
    )
    assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"fine")
    (request,) = upstream.requests
    lines = request.decode().split("\r\n")
    assert [line for line in lines if wanted.partition(":")[0] in line or line == wanted][
        -1
    ] == wanted
    name = wanted.partition(":")[0] if ":" in wanted.split(" ", maxsplit=1)[0] else "?"
    assert sum(line.startswith(f"{name}:") for line in lines) <= 1
    assert "guests" not in wanted.split(" ", maxsplit=1)[0]
    if way["kind"] == "query":
        assert "guests" not in lines[0]
    (use,) = await sandbox.finish()
    assert (use.credential, use.destination, use.count) == ("key", f"api.test:{port}", 1)
    (said,) = await brokered.uses()
    assert (said["path"], said["method"], said["status"]) == ("/v1", "GET", 200)


async def test_sigv4_is_what_the_reference_makes(
    brokered: Brokered, upstream: Recorder, port: int
) -> None:
    secret = "AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY:session-token-1234"
    way = {"kind": "sigv4", "region": "us-east-1", "service": "dynamodb"}
    await brokered.store("aws", f"https://api.test:{port} {LOCAL}", way, secret)
    sandbox = await brokered.open("aws")
    request = get(
        port,
        "/?Action=x&X-Amz-Signature=guests",
        "Authorization: AWS4-HMAC-SHA256 guests",
        "X-Amz-Date: 20000101T000000Z",
        "Content-Type: application/x-amz-json-1.0",
        "Content-Length: 2",
        method="POST",
    )
    head, _ = await say(sandbox, "api.test", port, request + b"{}")
    assert head.startswith(b"HTTP/1.1 200")
    sent = upstream.requests[0].decode()
    assert "guests" not in sent
    assert "wJalrXUtnFEMI" not in sent
    assert "x-amz-security-token: session-token-1234" in sent
    date = re.search(r"x-amz-date: (\d{8}T\d{6}Z)", sent)
    assert date is not None
    assert date[1] != "20000101T000000Z"
    assert re.search(
        r"authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/\d{8}/us-east-1/dynamodb/"
        r"aws4_request, SignedHeaders=\S*host\S*, Signature=[0-9a-f]{64}",
        sent,
    )
    # Done again by hand from what was sent.
    import hashlib
    import hmac

    signed = re.search(r"SignedHeaders=([^,]+), Signature=([0-9a-f]+)", sent)
    assert signed is not None
    given = dict(line.split(": ", 1) for line in sent.split("\r\n")[1:] if ": " in line)
    canonical = "\n".join(
        [
            "POST",
            "/",
            "Action=x",
            *(f"{name}:{given[name]}" for name in signed[1].split(";")),
            "",
            signed[1],
            hashlib.sha256(b"{}").hexdigest(),
        ]
    )
    day = date[1][:8]
    to_sign = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            date[1],
            f"{day}/us-east-1/dynamodb/aws4_request",
            hashlib.sha256(canonical.encode()).hexdigest(),
        ]
    )
    key = b"AWS4" + secret.split(":")[1].encode()
    for part in (day, "us-east-1", "dynamodb", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    assert hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest() == signed[2]


async def test_a_placeholder_is_replaced_towards_its_own_host_only(brokered: Brokered) -> None:
    own, other = Recorder(), Recorder()
    async with (
        destination(brokered.authority, own) as port,
        destination(brokered.authority, other, host="other.test") as port2,
    ):
        way = {"kind": "placeholder", "name": "API_KEY"}
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", way)
        sandbox = await brokered.open("key", rules=[f"GET https://other.test:{port2} {LOCAL}"])
        mark = sandbox.environment["API_KEY"]
        assert SECRET not in mark
        pair = base64.b64encode(f"user:{mark}".encode()).decode()
        lines = (f"X-Key: {mark}", f"Authorization: Basic {pair}", f"X-Two: a{mark}b{mark}")
        await say(sandbox, "api.test", port, get(port, f"/x?k={mark}", *lines))
        await say(
            sandbox, "other.test", port2, get(port2, f"/x?k={mark}", *lines, host="other.test")
        )
        sent = own.requests[0].decode()
        assert mark not in sent
        assert f"x-key: {SECRET}\r\n" in sent
        assert f"x-two: a{SECRET}b{SECRET}" in sent
        assert f"/x?k={quote(SECRET, safe='')} " in sent
        assert base64.b64encode(f"user:{SECRET}".encode()).decode() in sent
        unsent = other.requests[0].decode()
        assert SECRET not in unsent
        assert unsent.count(mark) == 4
        assert pair in unsent
        # It is told when it goes, and only then.
        assert [use.count for use in await sandbox.finish()] == [1]


async def test_each_request_of_a_connection_is_decided_anew(
    brokered: Brokered, upstream: Recorder, port: int
) -> None:
    await brokered.store("key", f"GET https://api.test:{port}/v1 {LOCAL}", BEARER)
    sandbox = await brokered.open("key", rules=[f"GET https://api.test:{port}/open {LOCAL}"])
    async with connected(sandbox, "api.test", port) as (reader, writer):
        for target, method, status in (
            ("/v1/a", "GET", b"200"),
            ("/open/b", "GET", b"200"),
            ("/v2", "GET", b"403"),
            ("/v1beta", "GET", b"403"),
            ("/v1/a", "DELETE", b"403"),
            ("/v1/../v2", "GET", b"403"),
            ("/v1/%2e%2e/v2", "GET", b"403"),
            ("/v1//x", "GET", b"403"),
            ("/v1", "GET", b"200"),
        ):
            writer.write(get(port, target, "X-HTTP-Method-Override: DELETE", method=method))
            head, body = await hear(reader)
            assert head.split()[1] == status, (target, head, body)
            if status == b"403":
                assert b"x-stockade-egress:" in head.lower()
    sent = [request.decode() for request in upstream.requests]
    assert [request.split()[1] for request in sent] == ["/v1/a", "/open/b", "/v1"]
    assert [SECRET in request for request in sent] == [True, False, True]
    assert not any("override" in request.lower() for request in sent)
    uses = await sandbox.finish()
    assert [use.count for use in uses] == [2]
    assert sum(denied.count for denied in sandbox.denied) == 6


@pytest.mark.parametrize(
    "request_",
    [
        "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: api.test\r\n\r\n",  # the port is another one
        "GET / HTTP/1.1\r\nHost: api.test.evil.test:{port}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x@api.test:{port}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: api.test:{port}\r\nHost: evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET https://evil.test/ HTTP/1.1\r\nHost: api.test:{port}\r\n\r\n",
        "GET //evil.test/\\@x HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n",
        "CONNECT evil.test:443 HTTP/1.1\r\nHost: api.test:{port}\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: api.test:{port}\r\nContent-Length: 3\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: api.test:{port}\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: api.test:{port}\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: api.test:{port}\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: api.test:{port}\r\nX: " + "y" * 70_000 + "\r\n\r\n",
        "GARBAGE\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_shapes_that_could_be_read_in_two_ways_go_nowhere(
    brokered: Brokered, upstream: Recorder, port: int, request_: str
) -> None:
    await brokered.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
    sandbox = await brokered.open("key")
    head, _ = await say(sandbox, "api.test", port, request_.replace("{port}", str(port)).encode())
    assert head.split()[1].startswith(b"4") or head.split()[1] == b"501", head
    assert upstream.requests == []
    assert await sandbox.finish() == ()


async def test_a_smuggled_second_request_is_only_a_request(
    brokered: Brokered, upstream: Recorder, port: int
) -> None:
    await brokered.store("key", f"POST https://api.test:{port}/v1 {LOCAL}", BEARER)
    sandbox = await brokered.open("key")
    async with connected(sandbox, "api.test", port) as (reader, writer):
        first = get(port, "/v1", "Content-Length: 4", method="POST") + b"body"
        writer.write(first + get(port, "/admin"))
        head, _ = await hear(reader)
        assert b" 200 " in head
        head, _ = await hear(reader)
        assert b" 403 " in head
    assert [request.split()[1] for request in upstream.requests] == [b"/v1"]


@pytest.mark.parametrize("status", [b"302 Found", b"307 Temporary Redirect"])
async def test_a_redirect_is_the_guests_business(brokered: Brokered, status: bytes) -> None:
    thief = Recorder()
    async with destination(brokered.authority, thief, host="evil.test") as port2:
        there = f"Location: https://evil.test:{port2}/?k={SECRET}".encode()
        teller = Recorder(lambda _h, _b: plain(b"", there, status=status))
        async with destination(brokered.authority, teller) as port:
            await brokered.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
            sandbox = await brokered.open("key", rules=[f"GET https://evil.test:{port2} {LOCAL}"])
            head, _ = await say(sandbox, "api.test", port, get(port))
            assert status in head
            assert SECRET.encode() not in head
            assert thief.requests == []
            await say(sandbox, "evil.test", port2, get(port2, host="evil.test"))
            assert SECRET.encode() not in thief.requests[0]
            assert b"authorization" not in thief.requests[0]


async def test_a_deleted_credential_is_not_used_by_what_is_open(
    brokered: Brokered, upstream: Recorder, port: int
) -> None:
    await brokered.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
    sandbox = await brokered.open("key")
    async with connected(sandbox, "api.test", port) as (reader, writer):
        writer.write(get(port))
        assert b" 200 " in (await hear(reader))[0]
        path = f"http://broker/v1/tenants/{TENANT}/credentials/key"
        async with brokered.control.delete(path) as answer:
            assert answer.status == 204
        writer.write(get(port))
        assert b" 403 " in (await hear(reader))[0]
    assert len(upstream.requests) == 1


async def test_many_sandboxes_at_once_never_mix(brokered: Brokered) -> None:
    echo = Recorder(lambda head, _b: plain(re.search(rb"x-mine: (\S+)", head)[1]))  # type: ignore[index]
    async with destination(brokered.authority, echo) as port:
        for n in range(8):
            secret = f"secret-number-{n}-of-eight"
            await brokered.store(f"key{n}", f"https://api.test:{port} {LOCAL}", BEARER, secret)

        async def one(n: int) -> None:
            sandbox = await brokered.open(f"key{n}", execution=f"run{n}")
            for _ in range(5):
                _, body = await say(sandbox, "api.test", port, get(port, "/", f"X-Mine: me{n}"))
                assert body == f"me{n}".encode()
            (use,) = await sandbox.finish()
            assert (use.credential, use.count) == (f"key{n}", 5)

        await asyncio.gather(*(one(n) for n in range(8)))
    for request in echo.requests:
        mine = re.search(rb"x-mine: me(\d)", request)
        assert mine is not None
        assert b"Bearer secret-number-%s-of-eight" % mine[1] in request


async def test_what_is_allowed_without_a_credential_is_judged_by_method_and_path(
    brokered: Brokered, upstream: Recorder, port: int
) -> None:
    sandbox = await brokered.open(rules=[f"GET https://api.test:{port}/open {LOCAL}"])
    assert sandbox.destinations == (("api.test", port),)
    assert b" 200 " in (await say(sandbox, "api.test", port, get(port, "/open")))[0]
    head, body = await say(sandbox, "api.test", port, get(port, "/open", method="DELETE"))
    assert b" 403 " in head
    assert b"--allow" in body
    assert len(upstream.requests) == 1
