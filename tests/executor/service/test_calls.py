"""Executions over HTTP, before a fake: what is asked, answered and refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from stockade.api.frames import Frame, FrameType
from stockade.executor.service import executions
from stockade.executor.service.app import create_app
from stockade.executor.service.settings import ExecutorSettings
from stockade.port import (
    EgressSink,
    ExecutionRequest,
    Outcome,
    OutputSink,
    SandboxRequest,
    StandardInput,
    Stream,
    Tier,
)
from stockade.port.fake import Call, FakeEnvironment, FakeRunningExecution, Scripted, cat

from .kit import FRAMES, TOKEN, Caller, record_of, serving

MUCH = {"limits": {"output_bytes": 10**12}}


async def play(call: Call) -> Scripted:
    """What its source says, in a word."""
    source = getattr(call.request.program, "source", b"")
    word = source.decode() if isinstance(source, bytes) else source
    if word == "cat":
        return await cat(call)
    if word == "hold":
        await cat(call)
        return Scripted(delay=60)
    if word == "endless":
        while True:
            await call.write(Stream.STDOUT, b"x" * 65_536)
            await asyncio.sleep(0)
    if word == "sleep":
        return Scripted(stdout=b"up\n", delay=60)
    if word == "fault":
        raise ZeroDivisionError
    return Scripted(stdout=b"out\n", stderr=b"\x00\xff", result=b"{}", artefacts={"a": b"made"})


@pytest_asyncio.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    async with FakeEnvironment(play) as environment, serving(environment, tmp_path) as found:
        yield found


async def test_one_execution(caller: Caller) -> None:
    answer = await caller.run(artefacts=["a", "b"])
    assert answer.headers["content-type"] == FRAMES
    kinds = [frame.type for frame in answer.frames]
    assert kinds[0] is FrameType.STARTED
    assert kinds[-1] is FrameType.END
    assert (FrameType.STDOUT, b"out\n") in answer.frames
    assert (FrameType.STDERR, b"\x00\xff") in answer.frames
    record = answer.record
    assert record.outcome is Outcome.OK
    assert record.stdout.content == b"out\n"
    assert record.result == b"{}"
    assert [(each.name, each.data) for each in record.artefacts] == [("a", b"made")]
    assert [missing.name for missing in record.missing_artefacts] == ["b"]


async def test_the_request_arrives_as_it_was_meant(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    async with serving(environment, tmp_path) as caller:
        answer = await caller.of("größe").call(
            "POST",
            "/v1/executions",
            {
                "program": {"kind": "command", "argv": ["a", {"base64": "/w=="}]},
                "environment": {"A": "1"},
                "files": {"d/f": {"base64": "AP8="}},
                "terminal": {"rows": 2, "columns": 3},
                "stdin": "in",
                "sandbox": {"tier": "namespace", "limits": {"wall_seconds": 3}},
            },
            {"Stockade-Tenant": "gr%C3%B6%C3%9Fe"},
        )
    assert answer.record.tier is Tier.NAMESPACE
    call = environment.calls[0]
    assert call.request.program.argv == ("a", "\udcff")  # type: ignore[union-attr]
    assert call.request.files == {"d/f": b"\0\xff"}
    assert call.sandbox.tenant == "größe"
    assert call.sandbox.limits.wall_seconds == 3


@pytest.mark.parametrize(
    ("headers", "code", "status"),
    [
        ({"Authorization": None}, "unauthenticated", 401),
        ({"Authorization": "Bearer "}, "unauthenticated", 401),
        ({"Authorization": "Bearer wrong"}, "unauthenticated", 401),
        ({"Authorization": "Basic 0f1e2d3c4b5a69788796a5b4c3d2e1f0"}, "unauthenticated", 401),
        ({"Stockade-Tenant": None}, "invalid_request", 422),
        ({"Stockade-Tenant": ""}, "invalid_request", 422),
        ({"Stockade-Tenant": "a" * 129}, "invalid_request", 422),
        ({"Stockade-Tenant": "a%0Ab"}, "invalid_request", 422),
        ({"Stockade-Tenant": "a%00b"}, "invalid_request", 422),
        ({"Stockade-Tenant": "%61"}, "invalid_request", 422),
        ({"Stockade-Tenant": "%FF"}, "invalid_request", 422),
        ({"Stockade-Id": "../x"}, "invalid_request", 422),
        ({"Stockade-Id": "a" * 65}, "invalid_request", 422),
        ({"Stockade-Id": ""}, "invalid_request", 422),
        ({"Accept": "application/json"}, "not_acceptable", 406),
        ({"Accept": "text/event-stream"}, "not_acceptable", 406),
        ({"Content-Type": "text/plain"}, "unsupported_media_type", 415),
        ({"Authorization": "Bearer a\r\nAuthorization: Bearer b"}, "invalid_request", 400),
        ({"Stockade-Tenant": "a\r\nStockade-Tenant: b"}, "invalid_request", 400),
    ],
)
async def test_headers_that_are_refused(
    caller: Caller, headers: dict[str, str | None], code: str, status: int
) -> None:
    answer = await caller.run(headers=headers)
    assert (answer.code, answer.status) == (code, status)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"program": null}',
        b'{"program": {"kind": "python"}}',
        b'{"program": {"kind": "nope", "source": ""}}',
        b'{"program": {"kind": "python", "source": "", "extra": 1}}',
        b'{"program": {"kind": "python", "source": ""}, "files": {"../x": ""}}',
        b'{"program": {"kind": "python", "source": ""}, "sandbox": {"limits": {"cpus": 1e9}}}',
        b'{"program": {"kind": "python", "source": ""}, "sandbox": {"limits": {"cpus": NaN}}}',
        b'{"program": {"kind": "python", "source": ""}, "sandbox": {"tenant": "other"}}',
        b'{"program": {"kind": "python", "source": "\\ud800"}}',
        b'{"program": {"kind": "python", "source": {"base64": "*"}}}',
        b'{"program": {"kind": "command", "argv": []}}',
        b"[" * 100_000,
        b'{"program": ' * 100_000,
        b'{"a": 1' + b"1" * 100_000 + b"}",
        b"\xff\xfe",
    ],
)
async def test_bodies_that_are_refused(caller: Caller, body: bytes) -> None:
    answer = await caller.call("POST", "/v1/executions", body)
    assert answer.code == "invalid_request"
    assert len(answer.body) < 10_000
    assert (await caller.run()).record.ok


async def test_content_of_a_request_is_not_said_back(caller: Caller) -> None:
    answer = await caller.call("POST", "/v1/executions", {"program": "hush-hush"})
    assert b"hush-hush" not in answer.body
    assert "hush-hush" not in caller.log.getvalue()


async def test_a_refusal_of_the_environment(tmp_path: Path) -> None:
    environment = FakeEnvironment(tiers=[Tier.NAMESPACE])
    async with serving(environment, tmp_path) as caller:
        answer = await caller.run(headers={"Stockade-Id": "one"}, sandbox={"trust": "hostile"})
        assert (answer.code, answer.status) == ("unavailable", 503)
        assert set(answer.json["missing"]) == {"gvisor", "microvm"}
        # Nothing ran: the same id may be tried where it can be served.
        assert (await caller.run(headers={"Stockade-Id": "one"})).record.ok


async def test_an_id_runs_once(caller: Caller) -> None:
    headers: dict[str, str | None] = {"Stockade-Id": "one"}
    assert json.loads((await caller.run(headers=headers)).frames[0].payload) == {"id": "one"}
    for _ in range(2):
        assert (await caller.run(headers=headers)).code == "conflict"
    async with caller.running(source="sleep", headers={"Stockade-Id": "two"}):
        assert (await caller.run(headers={"Stockade-Id": "two"})).code == "conflict"
        # Another tenant's ids are his own: it does not even show that one is in use.
        assert (await caller.of("other").run(headers={"Stockade-Id": "two"})).record.ok


async def test_of_many_at_once_with_one_id_one_runs(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    async with serving(environment, tmp_path) as caller:
        answers = await asyncio.gather(
            *(caller.run(headers={"Stockade-Id": "one"}) for _ in range(20))
        )
    assert sorted(answer.status for answer in answers) == [200] + [409] * 19
    assert len(environment.calls) == 1


async def test_a_fault_of_ours_is_an_answer(caller: Caller) -> None:
    frames = (await caller.run("fault")).frames
    assert frames[-1].type is FrameType.PROBLEM
    assert json.loads(frames[-1].payload)["code"] == "internal"
    assert b"ZeroDivision" not in frames[-1].payload
    assert "ZeroDivisionError" in caller.log.getvalue()


async def test_cancelling(caller: Caller) -> None:
    async with caller.running(source="sleep") as (identity, _, frames):
        assert (await caller.call("POST", f"/v1/executions/{identity}/cancel")).status == 204
        rest = [frame async for frame in frames]
    assert rest[-1].type is FrameType.END
    answer = await caller.call("POST", f"/v1/executions/{identity}/cancel")
    assert answer.code == "not_found", "it has ended"


async def test_signal_and_resize(tmp_path: Path) -> None:
    environment = FakeEnvironment(play)
    async with (
        serving(environment, tmp_path) as caller,
        caller.running(source="sleep") as (identity, _, frames),
    ):
        path = f"/v1/executions/{identity}"
        answer = await caller.call("POST", f"{path}/resize", {"rows": 5, "columns": 7})
        assert answer.status == 204
        assert (await caller.call("POST", f"{path}/resize", {"rows": 0})).status == 422
        assert (await caller.call("POST", f"{path}/signal", {"number": 65})).status == 422
        assert (await caller.call("POST", f"{path}/signal", {"number": 15})).status == 204
        rest = [frame async for frame in frames]
    assert environment.calls[0].signals == [15]
    assert (environment.calls[0].sizes[0].rows, environment.calls[0].sizes[0].columns) == (5, 7)
    assert rest[-1].type is FrameType.END


async def test_standard_input_apart(caller: Caller) -> None:
    data = bytes(range(256)) * 2000
    async with caller.running(source="cat", stdin=None) as (identity, _, frames):
        path = f"/v1/executions/{identity}/stdin"
        putting = asyncio.create_task(caller.call("PUT", path, data))
        rest = [frame async for frame in frames]
        assert (await putting).status == 204
    assert b"".join(f.payload for f in rest if f.type is FrameType.STDOUT) == data


async def test_standard_input_comes_once(caller: Caller) -> None:
    async with caller.running(source="hold", stdin=None) as (identity, _, _frames):
        path = f"/v1/executions/{identity}/stdin"
        assert (await caller.call("PUT", path, b"x")).status == 204
        assert (await caller.call("PUT", path, b"x")).code == "conflict"
    async with caller.running(source="sleep") as (identity, _, _frames):
        answer = await caller.call("PUT", f"/v1/executions/{identity}/stdin", b"x")
        assert answer.code == "conflict"


async def test_standard_input_that_breaks_off_cancels(caller: Caller) -> None:
    """A program is never told an end that nobody meant."""
    async with caller.running(source="cat", stdin=None) as (identity, _, frames):
        async with await caller.connect() as wire:
            await wire.send(caller.head("PUT", f"/v1/executions/{identity}/stdin", None, 1000))
            await wire.send(b"part")
            assert (await anext(frames)).payload == b"part"
        started = Frame(FrameType.STARTED, b"")
        record = record_of([started, *[frame async for frame in frames]])
    assert record.outcome is Outcome.CANCELLED


async def test_a_caller_who_leaves_cancels(tmp_path: Path) -> None:
    environment = FakeEnvironment(play)
    async with serving(environment, tmp_path) as caller:
        for source in ("sleep", "endless"):
            async with caller.running(source=source, sandbox=MUCH):
                await asyncio.sleep(0.05)
            async with asyncio.timeout(5):
                while (execution := environment.calls[-1].execution) is None:
                    await asyncio.sleep(0.01)
            assert execution.outcome is Outcome.CANCELLED
        assert caller.service is not None
        async with asyncio.timeout(5):
            await caller.service.executions.ended()


async def test_a_slow_reader_holds_the_guest_back_and_nobody_else(tmp_path: Path) -> None:
    environment = FakeEnvironment(play)
    async with (
        serving(environment, tmp_path) as caller,
        caller.running(source="endless", sandbox=MUCH),
    ):
        await asyncio.sleep(0.3)
        written = environment.calls[0].captured(Stream.STDOUT).total
        assert (await caller.run()).record.ok
        await asyncio.sleep(0.3)
        assert environment.calls[0].captured(Stream.STDOUT).total == written < 20_000_000


async def test_a_reader_who_stands_still_is_left(tmp_path: Path) -> None:
    environment = FakeEnvironment(play)
    async with (
        serving(environment, tmp_path, stalled_seconds=0.3) as caller,
        caller.running(source="endless", sandbox=MUCH) as (_, wire, _frames),
    ):
        assert caller.service is not None
        async with asyncio.timeout(5):
            await caller.service.executions.ended()
        async with asyncio.timeout(5):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                while True:
                    await wire.reader.readexactly(65_536)


async def test_silence_is_filled(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions, "KEEP_ALIVE_SECONDS", 0.05)
    async with caller.running(source="sleep") as (_, _, frames):
        assert (await anext(frames)).payload == b"up\n"
        for _ in range(3):
            assert (await anext(frames)).type is FrameType.KEEPALIVE


class SlowToStart(FakeEnvironment):
    """Its sandboxes take their time."""

    async def start(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> FakeRunningExecution:
        await asyncio.sleep(0.3)
        return await super().start(
            request, sandbox, stdin=stdin, on_output=on_output, on_egress=on_egress
        )


async def test_one_that_waits_for_a_sandbox_keeps_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executions, "KEEP_ALIVE_SECONDS", 0.05)
    environment = SlowToStart(tiers=[Tier.NAMESPACE])
    async with serving(environment, tmp_path) as caller:
        frames = (await caller.run()).frames
        assert frames[0].type is FrameType.KEEPALIVE
        assert record_of(frames).ok
        refused = (await caller.run(sandbox={"trust": "hostile"})).frames
        assert FrameType.STARTED not in [frame.type for frame in refused]
        assert json.loads(refused[-1].payload)["code"] == "unavailable"


async def test_one_that_waits_for_a_sandbox_is_cancelled(tmp_path: Path) -> None:
    environment = SlowToStart()
    async with serving(environment, tmp_path) as caller:
        running = asyncio.create_task(caller.run(headers={"Stockade-Id": "one"}))
        await asyncio.sleep(0.1)
        path = "/v1/executions/one"
        assert (await caller.call("POST", f"{path}/signal", {"number": 9})).code == "conflict"
        assert (await caller.call("POST", f"{path}/cancel")).status == 204
        assert (await running).record.outcome is Outcome.CANCELLED
        assert environment.calls == []
        assert (await caller.run(headers={"Stockade-Id": "one"})).code == "conflict"


async def test_paths_and_methods_that_are_none(caller: Caller) -> None:
    for method, path, code in [
        ("GET", "/", "not_found"),
        ("GET", "/v1/executions", "method_not_allowed"),
        ("GET", "/v1", "not_found"),
        ("POST", "/v1/executions/", "not_found"),
        ("POST", "/v1/executions/a%2Fb/cancel", "not_found"),
        ("POST", "/v1%2Fexecutions", "not_found"),
        ("POST", "//v1/executions", "not_found"),
        ("DELETE", "/v1/sandboxes", "method_not_allowed"),
        ("GET", "/v1/sandboxes/x/../../../metrics", "not_found"),
    ]:
        assert (await caller.call(method, path)).code == code, path


async def test_every_path_but_three_wants_the_token(caller: Caller) -> None:
    """Whatever the paths are, by the application's own list of them."""
    assert caller.service is not None
    app = create_app(FakeEnvironment(), ExecutorSettings(token=TOKEN))  # type: ignore[arg-type]
    open_paths = set()
    for route in app.routes:
        path = route.path.replace("{id}", "x").replace("{path:path}", "y")  # type: ignore[attr-defined]
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            async with await caller.connect() as wire:
                await wire.send(caller.head(method, path, {"Authorization": None}, 0))
                status, _ = await wire.head()
            if status != 401:
                open_paths.add(path)
    assert open_paths == {"/healthz", "/readyz", "/metrics"}


async def test_health_readiness_and_metrics(caller: Caller) -> None:
    nobody = Caller(caller.path, token="none")
    assert (await caller.run()).record.ok
    assert (await nobody.call("GET", "/healthz")).json == {"status": "ok"}
    assert (await nobody.call("GET", "/readyz")).status == 200
    metrics = (await nobody.call("GET", "/metrics")).body.decode()
    assert 'stockade_executor_executions_total{outcome="ok",tier="microvm"} 1.0' in metrics
    assert "stockade_executor_ran_seconds_bucket" in metrics
    assert "acme" not in metrics


async def test_a_log_line_is_one_line_of_ascii(tmp_path: Path) -> None:
    async with serving(FakeEnvironment(), tmp_path) as caller:
        tenant = "a\u2028b\u00e9"
        await caller.of("x").run(headers={"Stockade-Tenant": "b%C3%A9"})
        log = caller.log.getvalue()
    assert tenant not in log
    for line in log.splitlines():
        assert line.isascii()
        assert json.loads(line)["event"]
    assert "b\\u00e9" in log
