"""Sessions over HTTP, before a fake: leases, files, whole workspaces, other tenants."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from stockade.api.frames import FrameType
from stockade.port import Outcome, SandboxRequest, Stream
from stockade.port.fake import Call, FakeEnvironment, FakeSession, Scripted

from .kit import Caller, serving

SHORT = {"lease_seconds": 50}


async def play(call: Call) -> Scripted:
    source = getattr(call.request.program, "source", "")
    if source == b"sleep":
        return Scripted(stdout=b"up\n", delay=60)
    if source == b"tick":
        while True:
            await call.write(Stream.STDOUT, b".")
            await asyncio.sleep(0.01)
    return Scripted(stdout=call.workspace.get("f", b""))


@pytest.fixture
def environment() -> FakeEnvironment:
    return FakeEnvironment(play)


@pytest_asyncio.fixture
async def caller(tmp_path: Path, environment: FakeEnvironment) -> AsyncIterator[Caller]:
    async with serving(environment, tmp_path, max_lease_seconds=100) as found:
        yield found


async def test_a_session_from_its_opening_to_its_end(
    caller: Caller, environment: FakeEnvironment
) -> None:
    identity = await caller.open(50)
    path = f"/v1/sandboxes/{identity}"
    assert (await caller.call("PUT", f"{path}/files/f", b"kept")).status == 204
    answer = await caller.call(
        "POST", f"{path}/executions", {"program": {"kind": "python", "source": ""}}
    )
    assert answer.record.stdout.content == b"kept"
    state = (await caller.call("GET", path)).json
    assert state["state"] == "open"
    assert 40 < state["lease_seconds"] <= 50
    assert [
        each["id"] for each in (await caller.call("GET", "/v1/sandboxes")).json["sandboxes"]
    ] == [identity]
    assert (await caller.call("DELETE", path)).status == 204
    assert environment.sessions[0].closed
    for method, below in [("GET", ""), ("DELETE", ""), ("GET", "/files/f"), ("POST", "/pause")]:
        assert (await caller.call(method, path + below)).code == "not_found"
    assert (await caller.call("GET", "/v1/sandboxes")).json == {"sandboxes": []}


async def test_a_lease_ends_it_and_what_runs(caller: Caller, environment: FakeEnvironment) -> None:
    identity = await caller.open(0.3)
    began = time.monotonic()
    path = f"/v1/sandboxes/{identity}"
    async with caller.running(f"{path}/executions", source="sleep") as (_, _, frames):
        assert (await caller.call("GET", path)).json["execution"]
        rest = [frame async for frame in frames]
    assert 0.2 < time.monotonic() - began < 15
    assert environment.calls[0].execution is not None
    assert environment.calls[0].execution.outcome is Outcome.CANCELLED
    assert rest[-1].type is FrameType.END
    assert (await caller.call("GET", path)).code == "not_found"


async def test_asking_extends_nothing_and_extending_does(caller: Caller) -> None:
    path = f"/v1/sandboxes/{await caller.open(0.4)}"
    for _ in range(4):
        await asyncio.sleep(0.05)
        assert (await caller.call("GET", path)).status == 200
    answer = await caller.call("POST", f"{path}/lease", {"seconds": 90})
    assert 80 < answer.json["lease_seconds"] <= 90
    await asyncio.sleep(0.5)
    assert (await caller.call("GET", path)).status == 200
    assert (await caller.call("POST", f"{path}/lease", {"seconds": 0.05})).status == 200
    await asyncio.sleep(0.3)
    assert (await caller.call("GET", path)).code == "not_found"


@pytest.mark.parametrize("seconds", [101, 365 * 24 * 3600, 1e300])
async def test_a_lease_above_the_ceiling_is_refused_with_the_ceiling(
    caller: Caller, environment: FakeEnvironment, seconds: float
) -> None:
    answer = await caller.call("POST", "/v1/sandboxes", {"lease_seconds": seconds})
    assert answer.code == "invalid_request"
    assert "100 s are the most" in answer.json["detail"]
    assert environment.sessions == []
    path = f"/v1/sandboxes/{await caller.open(50)}"
    answer = await caller.call("POST", f"{path}/lease", {"seconds": seconds})
    assert "100 s are the most" in answer.json["detail"]
    assert 40 < (await caller.call("GET", path)).json["lease_seconds"] <= 50


@pytest.mark.parametrize("seconds", [0, -1, "NaN", "Infinity", None, True, "x"])
async def test_leases_that_are_none(caller: Caller, seconds: object) -> None:
    body = json.dumps({"lease_seconds": seconds}).replace('"NaN"', "NaN")
    answer = await caller.call(
        "POST", "/v1/sandboxes", body.replace('"Infinity"', "1e999").encode()
    )
    if seconds is True:
        assert answer.status in (201, 422)
    else:
        assert answer.code == "invalid_request"


async def test_a_kept_workspace_is_the_gateways(caller: Caller) -> None:
    answer = await caller.call("POST", "/v1/sandboxes", {"workspace": "w"})
    assert answer.code == "invalid_request"


async def test_one_program_at_a_time(caller: Caller) -> None:
    path = f"/v1/sandboxes/{await caller.open()}/executions"
    program = {"program": {"kind": "python", "source": ""}}
    async with caller.running(path, source="sleep", headers={"Stockade-Id": "one"}):
        refused = await caller.call("POST", path, program, {"Stockade-Id": "two"})
        assert refused.code == "conflict"
        assert refused.json["errors"][0]["field"] == "session"
        state = (await caller.call("GET", path.removesuffix("/executions"))).json
        assert state["execution"] == "one"
    async with asyncio.timeout(5):
        # The refused one never ran: its id is free, and so is the session.
        while (await caller.call("POST", path, program, {"Stockade-Id": "two"})).status != 200:
            await asyncio.sleep(0.01)


async def test_a_session_outlives_its_callers(caller: Caller) -> None:
    path = f"/v1/sandboxes/{await caller.open()}"
    async with caller.running(f"{path}/executions", source="sleep"):
        pass
    async with asyncio.timeout(5):
        while (await caller.call("GET", path)).json.get("execution"):
            await asyncio.sleep(0.01)
    assert (await caller.call("GET", path)).json["state"] == "open"


async def test_pausing_over_http(caller: Caller) -> None:
    path = f"/v1/sandboxes/{await caller.open()}"
    async with caller.running(f"{path}/executions", source="tick") as (_, _, frames):
        await anext(frames)
        for _ in range(2):
            assert (await caller.call("POST", f"{path}/pause")).status == 204
        assert (await caller.call("GET", path)).json["state"] == "paused"
        answer = await caller.call("GET", f"{path}/files/f")
        assert answer.code == "conflict"
        assert "paused" in answer.json["detail"]
        assert (await caller.call("POST", f"{path}/resume")).status == 204
        assert (await caller.call("GET", path)).json["state"] == "open"


async def test_a_workspace_goes_out_and_in(caller: Caller) -> None:
    first = f"/v1/sandboxes/{await caller.open()}"
    await caller.call("PUT", f"{first}/files/d/f", b"x" * 300_000)
    saved = await caller.call("GET", f"{first}/workspace")
    assert saved.status == 200
    assert saved.headers["content-type"] == "application/octet-stream"
    second = f"/v1/sandboxes/{await caller.open()}"
    assert (await caller.call("PUT", f"{second}/workspace", saved.body)).status == 204
    assert (await caller.call("GET", f"{second}/files/d/f")).body == b"x" * 300_000
    assert (await caller.call("PUT", f"{second}/workspace", b"none")).code == "file_refused"


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("f", "f"),
        ("%66", "f"),
        ("a%2Fb", "a/b"),
        ("a%252Fb", "a%2Fb"),
        ("%E6%97%A5", "日"),
        ("b%FF", "b\udcff"),
        ("a%3Fb", "a?b"),
        ("a%0Ab", "a\nb"),
        ("..x", "..x"),
        ("%2E%2Ehidden", "..hidden"),
        ("a+b%20c", "a+b c"),
    ],
)
async def test_paths_are_what_was_sent(
    caller: Caller, environment: FakeEnvironment, sent: str, meant: str
) -> None:
    path = f"/v1/sandboxes/{await caller.open()}"
    assert (await caller.call("PUT", f"{path}/files/{sent}", b"x")).status == 204
    assert list(environment.sessions[0].workspace) == [meant]
    assert (await caller.call("GET", f"{path}/files/{sent}")).body == b"x"
    assert (await caller.call("GET", f"{path}/folders/")).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        *("../x", "%2e%2e/x", "a/../../x", "a/%2e%2e/x", "%2e%2e%2fx", "/etc/passwd", "%2fetc"),
        *("a%00b", "", ".", "a//b", "a/", "%2e", "x" * 256, "a/" * 3000 + "b"),
    ],
)
async def test_paths_that_are_none(caller: Caller, sent: str) -> None:
    path = f"/v1/sandboxes/{await caller.open()}"
    for method in ("PUT", "GET"):
        answer = await caller.call(method, f"{path}/files/{sent}", b"")
        assert answer.code in ("file_refused", "not_found"), answer
    if sent:
        answer = await caller.call("GET", f"{path}/folders/{sent}")
        assert answer.code in ("file_refused", "not_found"), answer


async def test_a_file_that_breaks_off_is_not_there(caller: Caller) -> None:
    path = f"/v1/sandboxes/{await caller.open()}"
    async with await caller.connect() as wire:
        await wire.send(caller.head("PUT", f"{path}/files/f", None, 1000) + b"part")
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.1)
    assert (await caller.call("GET", f"{path}/files/f")).code == "file_refused"


PATHS = [
    ("GET", ""),
    ("DELETE", ""),
    ("POST", "/executions"),
    ("PUT", "/files/f"),
    ("GET", "/files/f"),
    ("GET", "/folders"),
    ("GET", "/folders/d"),
    ("POST", "/lease"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/workspace"),
    ("PUT", "/workspace"),
]
BODIES = {
    "/executions": {"program": {"kind": "python", "source": ""}},
    "/lease": {"seconds": 10},
}


@pytest.mark.parametrize(("method", "below"), PATHS)
async def test_another_tenants_session_is_one_that_never_was(
    caller: Caller, environment: FakeEnvironment, method: str, below: str
) -> None:
    identity = await caller.open()
    other = caller.of("other")
    body = BODIES.get(below, b"")
    his = await other.call(method, f"/v1/sandboxes/{identity}{below}", body)
    none = await other.call(method, f"/v1/sandboxes/{'0' * len(identity)}{below}", body)
    assert his.code == "not_found"
    assert (his.status, his.body) == (none.status, none.body)
    assert (await caller.call("GET", f"/v1/sandboxes/{identity}")).status == 200
    assert environment.calls == []


@pytest.mark.parametrize("what", ["stdin", "signal", "resize", "cancel"])
async def test_another_tenants_execution_is_one_that_never_was(caller: Caller, what: str) -> None:
    other = caller.of("other")
    bodies: dict[str, object] = {"signal": {"number": 9}, "resize": {"rows": 1, "columns": 1}}
    method = "PUT" if what == "stdin" else "POST"
    async with caller.running(source="sleep", stdin=None) as (identity, _, frames):
        body = bodies.get(what, b"x")
        his = await other.call(method, f"/v1/executions/{identity}/{what}", body)
        none = await other.call(method, f"/v1/executions/{'0' * 32}/{what}", body)
        assert his.code == "not_found"
        assert his.body == none.body
        assert (await anext(frames)).payload == b"up\n"


async def test_a_list_has_ones_own(caller: Caller) -> None:
    await caller.open()
    assert (await caller.of("other").call("GET", "/v1/sandboxes")).json == {"sandboxes": []}


async def test_a_stale_owner_means_another_session(caller: Caller) -> None:
    """After a restart an executor knows no id, and a gateway may make one of that name again."""
    answer = await caller.call("POST", "/v1/sandboxes", SHORT, {"Stockade-Id": "s"})
    assert answer.status == 201, answer
    generation = answer.json["generation"]
    path = "/v1/sandboxes/s/files/f"
    for sent, status in [
        (str(generation), 204),
        (None, 204),
        (str(generation - 1), 404),
        ("", 404),
        (" 1", 404),
        ("x", 404),
    ]:
        answer = await caller.call("PUT", path, b"x", {"Stockade-Generation": sent})
        assert answer.status == status, sent
    again = await caller.call("POST", "/v1/sandboxes", SHORT, {"Stockade-Id": "s"})
    assert again.code == "conflict"
    other = await caller.call("POST", "/v1/sandboxes", SHORT)
    assert other.json["generation"] > generation


async def test_a_session_that_nobody_waits_for_any_more_is_not_opened(
    tmp_path: Path,
) -> None:
    class Slow(FakeEnvironment):
        async def open_session(self, sandbox: SandboxRequest | None = None) -> FakeSession:
            await asyncio.sleep(0.3)
            return await super().open_session(sandbox)

    environment = Slow()
    async with serving(environment, tmp_path) as caller:
        async with await caller.connect() as wire:
            await wire.send(caller.head("POST", "/v1/sandboxes", None, 2) + b"{}")
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        assert environment.sessions == []
        assert (await caller.call("GET", "/v1/sandboxes")).json == {"sandboxes": []}
