"""Bad input: a clear error each, bounded memory, other callers unharmed."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pydantic_core
import pytest

from stockade.gateway.api import bodies
from stockade.port.fake import Scripted
from stockade.serving import Bounds

from .conftest import Gateway, OpenGateway
from .test_executions import FOREVER, JOB, PROGRAM

JSON = {"Content-Type": "application/json"}


@contextlib.asynccontextmanager
async def connected(gateway: Gateway) -> Any:
    """A connection by hand."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def head(gateway: Gateway, line: str, *more: str) -> bytes:
    """A request's head with Alice's key."""
    lines = [line + " HTTP/1.1", "Host: x", f"Authorization: {gateway.headers()['Authorization']}"]
    return "\r\n".join([*lines, *more, "", ""]).encode()


NOT_UNDERSTOOD: tuple[tuple[bytes, str], ...] = (
    (b"", "body"),
    (b"{", "body"),
    (b"null", "body"),
    (b"[]", "body"),
    (b'"x"', "body"),
    (b"\xff\xfe", "body"),
    (b'{"program": {"kind": "python", "source": "\\ud800"}}', "body"),
    (b'{"program": {"kind": "python", "source": NaN}}', "body"),
    (b"[" * 100_000, "body"),
    (b'{"a":' * 10_000, "body"),
    (b'{"program": 1}', "program"),
    (b'{"program": {"kind": "nonsense", "source": ""}}', "program"),
    (b'{"program": {"kind": "python", "source": 1}}', "program.source"),
    (b'{"program": {"kind": "python", "source": {"base64": "!"}}}', "program.source"),
    (b'{"program": {"kind": "python", "source": ""}, "unknown": 1}', "unknown"),
    (b'{"program": {"kind": "command", "argv": []}}', "program.argv"),
    (b'{"program": {"kind": "command", "argv": ["a\\u0000b"]}}', "program.argv[0]"),
    (b'{"program": {"kind": "script", "name": "../x", "source": ""}}', "program.name"),
    (b'{"program": {"kind": "python", "source": ""}, "files": {"../../x": ""}}', "files"),
    (b'{"program": {"kind": "python", "source": ""}, "files": {"/etc/x": ""}}', "files"),
    (b'{"program": {"kind": "python", "source": ""}, "artefacts": ["a/../../b"]}', "artefacts"),
    (b'{"program": {"kind": "python", "source": ""}, "environment": {"A=B": ""}}',
     "environment"),
    (b'{"program": {"kind": "python", "source": ""}, "sandbox": {"limits": '
     b'{"wall_seconds": 1e9}}}', "limits.wall_seconds"),
    (b'{"program": {"kind": "python", "source": ""}, "sandbox": {"limits": '
     b'{"memory_bytes": "1"}}}', "sandbox.limits.memory_bytes"),
    (b'{"program": {"kind": "python", "source": ""}, "sandbox": {"limits": '
     b'{"memory_bytes": 99999999999999999999999999}}}', "limits.memory_bytes"),
    (b'{"program": {"kind": "python", "source": ""}, "sandbox": {"trust": "hostile", "tier": '
     b'"namespace"}}', "tier"),
    (b'{"program": {"kind": "python", "source": ""}, "terminal": {"rows": 0, "columns": 1}}',
     "terminal.rows"),
    (b'{"program": {"kind": "python", "source": "", "fresh": "yes"}}', "program.fresh"),
)  # fmt: skip


async def test_what_is_not_understood_is_refused_by_field(open_fake: OpenGateway) -> None:
    """422, the field, and nothing ran."""
    async with open_fake() as gateway:
        for body, field in NOT_UNDERSTOOD:
            answer = await gateway.ask("POST", "/v1/executions", data=body, headers=JSON)
            assert (answer.status, answer.code) == (422, "invalid_request"), (
                body[:80],
                answer.body,
            )
            fields = [error["field"] for error in answer.json["errors"]]
            assert any(found.startswith(field) for found in fields), (body[:80], fields)
            assert len(answer.body) < 20_000
        assert gateway.environment.calls == []
        assert (await gateway.ask("POST", "/v1/executions", PROGRAM)).status == 200


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ({"Content-Type": ""}, 415, "unsupported_media_type"),
        (JSON | {"Accept": "image/png"}, 406, "not_acceptable"),
        (JSON | {"Accept": "application/json;q=0"}, 406, "not_acceptable"),
        (JSON | {"Idempotency-Key": "a b"}, 422, "invalid_request"),
        (JSON | {"Idempotency-Key": "x" * 129}, 422, "invalid_request"),
        (JSON | {"Idempotency-Key": ""}, 422, "invalid_request"),
        (JSON | {"Stockade-Id": "mine"}, 422, "invalid_request"),
        (JSON | {"Origin": "http://evil.example"}, 403, "forbidden"),
        (JSON | {"Sec-Fetch-Site": "cross-site"}, 403, "forbidden"),
        (JSON | {"Authorization": "Basic YWxpY2U6"}, 401, "unauthenticated"),
    ],
)
async def test_headers(
    open_fake: OpenGateway, headers: dict[str, str], status: int, code: str
) -> None:
    """Each with the status that HTTP has for it."""
    async with open_fake() as gateway:
        answer = await gateway.ask(
            "POST", "/v1/executions", data=json.dumps(PROGRAM).encode(), headers=headers
        )
        assert (answer.status, answer.code) == (status, code), answer.body
        assert gateway.environment.calls == []


@pytest.mark.parametrize(
    "name",
    ["Authorization", "Idempotency-Key", "X-Request-Id", "Content-Type", "Stockade-Id",
     "Last-Event-ID", "Range"],
)  # fmt: skip
async def test_a_header_that_comes_twice_is_refused(open_fake: OpenGateway, name: str) -> None:
    """Of two, one would be taken, and a proxy may have judged the other."""
    async with open_fake() as gateway:
        headers = [*gateway.headers().items(), *JSON.items()]
        value = dict(headers).get(name, "1")
        if name not in dict(headers):
            headers.append((name, value))
        async with gateway.http.post(
            gateway.url + "/v1/executions", json=PROGRAM, headers=[*headers, (name, value)]
        ) as response:
            problem = await response.json(content_type="application/problem+json")
        assert (response.status, problem["status"]) == (400, 400)
        assert problem["code"] == "invalid_request"
        assert problem["errors"] == [
            {"field": name, "message": "it is there more than once; send one"}
        ]
        assert response.headers["X-Request-Id"] != "1"
        assert gateway.environment.calls == []


async def test_fields_are_named_as_the_documentation_has_them(open_fake: OpenGateway) -> None:
    """Not as a framework finds them."""
    async with open_fake() as gateway:
        data = json.dumps(PROGRAM).encode()
        for headers, path, field in (
            (JSON | {"Idempotency-Key": "x" * 129}, "/v1/executions", "Idempotency-Key"),
            (JSON | {"Prefer": "x" * 201}, "/v1/executions", "Prefer"),
        ):
            answer = await gateway.ask("POST", path, data=data, headers=headers)
            assert [error["field"] for error in answer.json["errors"]] == [field]
            assert answer.json["detail"].startswith(f"{field}: ")
        listed = await gateway.ask("GET", "/v1/executions?limit=0")
        assert [error["field"] for error in listed.json["errors"]] == ["limit"]


async def test_a_body_of_millions_of_values_is_not_parsed(
    open_fake: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parser would hold everybody up. It is refused as it comes, and others are served."""
    parsed: list[int] = []
    parse = pydantic_core.from_json

    def watched(data: bytes, **more: Any) -> Any:
        parsed.append(len(data))
        return parse(data, **more)

    monkeypatch.setattr(pydantic_core, "from_json", watched)
    async with open_fake() as gateway:
        halfway = asyncio.Event()
        served = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b'{"program": {"kind": "python", "source": ""}, "artefacts": ['
            yield b"[]," * 30_000
            halfway.set()
            await served.wait()
            for _ in range(100):
                yield b"[]," * 30_000

        large = asyncio.create_task(
            gateway.ask("POST", "/v1/executions", data=body(), headers=JSON)
        )
        await halfway.wait()
        assert (await gateway.ask("POST", "/v1/executions", PROGRAM)).status == 200
        served.set()
        answer = await large
        assert (answer.status, answer.code) == (413, "too_large")
        assert "100000 values" in answer.json["detail"]
        assert len(parsed) == 1
        assert max(parsed) < 1000


async def test_pages_that_may_call_are_told_so(open_fake: OpenGateway) -> None:
    """Others hear nothing; a known host's name is needed, but by probes."""
    page = "https://console.example"
    async with open_fake(origins=[page], hosts=["127.0.0.1"]) as gateway:
        asking = {"Origin": page, "Access-Control-Request-Method": "POST"}
        allowed = await gateway.ask("OPTIONS", "/v1/executions", key=None, headers=asking)
        assert allowed.headers["Access-Control-Allow-Origin"] == page
        assert "Access-Control-Allow-Credentials" not in allowed.headers
        called = await gateway.ask("POST", "/v1/executions", PROGRAM, headers={"Origin": page})
        assert called.status == 200
        evil = asking | {"Origin": "https://evil.example"}
        refused = await gateway.ask("OPTIONS", "/v1/executions", key=None, headers=evil)
        assert "Access-Control-Allow-Origin" not in refused.headers
        for path, status in (("/v1/usage", 403), ("/docs", 403), ("/healthz", 200)):
            for host in ("evil.example", "evil.example@127.0.0.1", "127.0.0.1/evil.example"):
                answer = await gateway.ask("GET", path, headers={"Host": host})
                assert answer.status == status, host


async def test_methods_and_paths(open_fake: OpenGateway) -> None:
    """404 and 405 are problems too; what may be done is said."""
    async with open_fake() as gateway:
        for method, path, code in (
            ("GET", "/", "not_found"),
            ("GET", "/v1", "not_found"),
            ("GET", "/v2/executions", "not_found"),
            ("GET", "/v1/executions/", "not_found"),
            ("GET", "//v1/executions", "not_found"),
            ("GET", "/v1/sandboxes/../executions/%2e%2e/../../admin", "not_found"),
            ("DELETE", "/v1/executions", "method_not_allowed"),
            ("PATCH", "/healthz", "method_not_allowed"),
        ):
            answer = await gateway.ask(method, path)
            assert answer.code == code, (method, path, answer.status, answer.body)
        assert (await gateway.ask("DELETE", "/v1/executions")).headers["Allow"] in (
            "GET", "POST", "GET, POST", "POST, GET",
        )  # fmt: skip


async def test_a_body_too_large_is_refused_before_it_is_read(
    open_fake: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its announced length at once; chunked, as soon as it is over."""
    monkeypatch.setattr(bodies, "MOST_JSON_BYTES", 100_000)
    async with open_fake() as gateway:
        async with connected(gateway) as (reader, writer):
            writer.write(
                head(gateway, "POST /v1/executions", "Content-Length: 99999999", *_json_header())
            )
            async with asyncio.timeout(5):
                assert b" 413 " in await reader.readline()
        async with connected(gateway) as (reader, writer):
            writer.write(
                head(gateway, "POST /v1/executions", "Transfer-Encoding: chunked", *_json_header())
            )
            with contextlib.suppress(ConnectionError):
                for _ in range(20):
                    writer.write(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
                    await writer.drain()
            async with asyncio.timeout(5):
                assert b" 413 " in await reader.readline()
        assert gateway.services.log is not None
        assert (await gateway.ask("GET", "/healthz")).status == 200


async def test_bodies_together_have_a_ceiling(
    open_fake: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty callers with large requests do not fill the memory: some are told to come again."""
    monkeypatch.setattr(bodies.Room.__init__, "__defaults__", (200_000,))
    async with open_fake() as gateway:
        async with connected(gateway) as (_, writer):
            writer.write(
                head(gateway, "POST /v1/executions", "Content-Length: 180000", *_json_header())
            )
            writer.write(b" " * 150_000)
            await writer.drain()
            await asyncio.sleep(0.2)
            answer = await gateway.ask("POST", "/v1/executions", data=b" " * 100_000, headers=JSON)
            assert (answer.status, answer.code) == (503, "unavailable")
            assert answer.headers["Retry-After"] == "1"
        async with asyncio.timeout(5):
            while (
                await gateway.ask("POST", "/v1/executions", data=b" " * 100_000, headers=JSON)
            ).status != 422:
                await asyncio.sleep(0.05)


async def test_a_slow_writer_is_told_so(
    open_fake: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that trickles in does not hold its place for ever."""
    monkeypatch.setattr(bodies, "_JSON_SECONDS", 0.3)
    async with open_fake() as gateway, connected(gateway) as (reader, writer):
        writer.write(head(gateway, "POST /v1/executions", "Content-Length: 1000", *_json_header()))
        writer.write(b"{")
        async with asyncio.timeout(5):
            assert b" 422 " in await reader.readline()


async def test_a_cut_body_is_nothing(open_fake: OpenGateway) -> None:
    """No program runs of half a request, no file is made of half a file."""
    async with open_fake() as gateway:
        path = (await gateway.ask("POST", "/v1/sandboxes", {})).headers["Location"]
        for line, more in (
            ("POST /v1/executions", _json_header()),
            (f"PUT {path}/files/half", ()),
        ):
            async with connected(gateway) as (_, writer):
                writer.write(head(gateway, line, "Content-Length: 1000", *more) + b'{"program"')
                await writer.drain()
                await asyncio.sleep(0.1)
                writer.transport.abort()
        await asyncio.sleep(0.2)
        assert gateway.environment.calls == []
        assert gateway.environment.sessions[0].workspace == {}
        assert [line for line in gateway.lines if line["event"] == "fault"] == []


async def test_headers_cannot_be_injected(open_fake: OpenGateway) -> None:
    """By a request id, by a name for an artefact, by a key."""
    script = [Scripted(artefacts={"a": b"0123456789"})]
    async with open_fake(script) as gateway:
        done = await gateway.ask("POST", "/v1/executions", {**PROGRAM, "artefacts": ["a"]})
        digest = done.json["record"]["artefacts"][0]["digest"]
        said = ""
        for name in (
            "a%0d%0aX-Injected:%201",
            "%22%3b%20filename%3d%22x.html",
            "../../e%C3%AB.txt",
        ):
            answer = await gateway.ask("GET", f"/v1/artefacts/{digest}?name={name}")
            assert answer.status == 200
            assert "X-Injected" not in answer.headers
            said = answer.headers["Content-Disposition"]
            assert said.startswith('attachment; filename="')
            assert said.count('"') == 2
            assert "/" not in said
        assert said.endswith("filename*=UTF-8''e%C3%AB.txt")
        for sent, kept in (("abc-1.2", True), ("a b", False), ("x" * 65, False), ("ü", False)):
            answer = await gateway.ask("GET", "/healthz", headers={"X-Request-Id": sent})
            assert (answer.headers["X-Request-Id"] == sent) is kept
        # A line's end in a header of a request is no header of ours, nor of the log.
        async with connected(gateway) as (reader, writer):
            writer.write(head(gateway, "GET /healthz", "X-Request-Id: a\nX-Injected: 1"))
            async with asyncio.timeout(5):
                data = await reader.read(4096)
            assert b"X-Injected" not in data


async def test_ranges_of_an_artefact(open_fake: OpenGateway) -> None:
    """Whole, in part, beyond its end, and not at all where it is there already."""
    async with open_fake([Scripted(artefacts={"a": b"0123456789"})]) as gateway:
        done = await gateway.ask("POST", "/v1/executions", {**PROGRAM, "artefacts": ["a"]})
        digest = done.json["record"]["artefacts"][0]["digest"]
        path = f"/v1/artefacts/{digest}"
        whole = await gateway.ask("GET", path)
        assert (whole.status, whole.body) == (200, b"0123456789")
        assert whole.headers["ETag"] == f'"{digest}"'
        assert whole.headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in whole.headers["Content-Security-Policy"]
        for wanted, status, body, said in (
            ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
            ("bytes=8-", 206, b"89", "bytes 8-9/10"),
            ("bytes=-3", 206, b"789", "bytes 7-9/10"),
            ("bytes=-100", 206, b"0123456789", "bytes 0-9/10"),
            ("bytes=5-100", 206, b"56789", "bytes 5-9/10"),
            ("bytes=10-", 416, b"", "bytes */10"),
            ("bytes=-0", 416, b"", "bytes */10"),
            ("bytes=5-2", 200, b"0123456789", None),
            ("bytes=0-1,3-4", 200, b"0123456789", None),
            ("lines=1-2", 200, b"0123456789", None),
            ("bytes=-", 200, b"0123456789", None),
            ("bytes=99999999999999999999-", 200, b"0123456789", None),
        ):
            answer = await gateway.ask("GET", path, headers={"Range": wanted})
            assert (answer.status, answer.body) == (status, body), wanted
            assert answer.headers.get("Content-Range") == said
        other = {"Range": "bytes=0-1", "If-Range": '"another"'}
        assert (await gateway.ask("GET", path, headers=other)).status == 200
        there = await gateway.ask("GET", path, headers={"If-None-Match": f'W/"{digest}"'})
        assert (there.status, there.body) == (304, b"")
        escaped = path.replace(":", "%3A")
        assert (await gateway.ask("GET", escaped)).body == b"0123456789"
        assert (await gateway.ask("DELETE", path)).status == 204
        assert (await gateway.ask("GET", path)).code == "not_found"


async def test_idle_connections_keep_nobody_out(open_fake: OpenGateway) -> None:
    """Those over the bound are told so; those within it go when they say nothing."""
    async with open_fake(bounds=Bounds(connections=60, header_seconds=0.5)) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(200)]
        await asyncio.sleep(1.0)
        async with asyncio.timeout(5):
            assert (await gateway.ask("POST", "/v1/executions", PROGRAM)).status == 200
        for _, writer in idle:
            writer.close()
        for _, writer in idle:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def test_nothing_secret_and_nothing_of_a_guests_is_logged(open_fake: OpenGateway) -> None:
    """Neither a key, nor what was run or printed, nor a path as it was sent; each line is JSON."""
    script = [Scripted(stdout=b"guest-bytes\x1b[31m", detail="guest-detail")]
    async with open_fake(script) as gateway:
        await gateway.ask(
            "POST",
            "/v1/executions",
            {"program": {"kind": "python", "source": "the-source"}},
            headers={"X-Request-Id": "mine-1"},
        )
        await gateway.ask("GET", "/v1/sandboxes/evil%0a%1b[31m/files/secret-name")
        await gateway.ask("GET", "/v1/usage", key="stockade_wrong_key")
        text = gateway.log.getvalue()
        for secret in ("guest-", "the-source", "secret-name", "evil", "\x1b", "wrong_key",
                       *gateway.keys.values()):  # fmt: skip
            assert secret not in text
        (line,) = (one for one in gateway.lines if one.get("request_id") == "mine-1")
        assert line["route"] == "/v1/executions"
        assert (line["tenant"], line["status"]) == ("alice", 200)
        assert line["subject"].startswith("e")


async def test_metrics_have_bounded_labels(open_fake: OpenGateway) -> None:
    """Routes by their template, outcomes, and no tenant or id."""
    async with open_fake([Scripted(), FOREVER]) as gateway:
        done = await gateway.ask("POST", "/v1/executions", PROGRAM)
        job = await gateway.ask("POST", "/v1/executions", PROGRAM, headers=JOB)
        for number in range(5):
            await gateway.ask("GET", f"/v1/executions/nothing-{number}")
            await gateway.ask("GET", f"/nothing-{number}", key=None)
        text = (await gateway.ask("GET", "/metrics", key=None)).body.decode()
        assert 'stockade_gateway_executions_total{outcome="ok",tier="microvm"} 1.0' in text
        assert "stockade_gateway_executions_running 1.0" in text
        assert 'route="/v1/executions/{id}"' in text
        assert 'route="none"' in text
        for word in ("alice", "nothing-", done.json["id"], job.json["id"]):
            assert word not in text
        await gateway.ask("POST", job.headers["Location"] + "/cancel")


async def test_a_fault_reveals_nothing(
    open_fake: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500, a request id, and the rest in the log alone."""

    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the-inner-secret")

    async with open_fake() as gateway:
        monkeypatch.setattr(gateway.services.ledger, "list_executions", broken)
        answer = await gateway.ask("GET", "/v1/executions", headers={"X-Request-Id": "r-1"})
        assert (answer.status, answer.code) == (500, "internal")
        assert answer.json["request_id"] == "r-1"
        assert b"inner-secret" not in answer.body
        (line,) = (one for one in gateway.lines if one["event"] == "fault")
        assert line["request_id"] == "r-1"
        # Where it was raised, and no local variable: the caller's key is one.
        assert "the-inner-secret" in json.dumps(line)
        assert gateway.keys["alice"] not in gateway.log.getvalue()
        assert "locals" not in json.dumps(line)


def _json_header() -> tuple[str, ...]:
    return ("Content-Type: application/json",)
