"""Sessions: files, leases, pauses, workspaces, terminals, and what becomes of them."""

import asyncio
import io
import json
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from stockade.gateway.service import open_gateway
from stockade.gateway.tenants import Tenants
from stockade.port import Outcome
from stockade.port.fake import Call, FakeEnvironment, Scripted, cat

from .conftest import Gateway, OpenGateway, executor_over, gateway_settings
from .test_executions import FOREVER, JOB, PROGRAM, until_ended


async def open_sandbox(gateway: Gateway, **more: Any) -> str:
    """Its path."""
    answer = await gateway.ask("POST", "/v1/sandboxes", more)
    assert answer.status == 201, answer.body
    assert answer.headers["Location"] == f"/v1/sandboxes/{answer.json['id']}"
    return str(answer.headers["Location"])


async def gone(gateway: Gateway, path: str) -> None:
    """Wait until it is."""
    async with asyncio.timeout(10):
        while (await gateway.ask("GET", path)).status != 404:
            await asyncio.sleep(0.05)


async def test_a_sessions_life(open_fake: OpenGateway) -> None:
    """Open, run, list, close; and then it is as if it had never been."""
    async with open_fake([Scripted(stdout=b"1"), Scripted(stdout=b"2")]) as gateway:
        path = await open_sandbox(gateway, lease_seconds=60)
        state = (await gateway.ask("GET", path)).json
        assert state["state"] == "open"
        assert 0 < state["lease_seconds"] <= 60
        for expected in ("1", "2"):
            answer = await gateway.ask("POST", path + "/executions", PROGRAM)
            assert answer.json["record"]["stdout"]["head"] == expected
        listed = (await gateway.ask("GET", "/v1/sandboxes")).json["sandboxes"]
        assert [one["id"] for one in listed] == [path.rpartition("/")[2]]
        mine = await gateway.ask("GET", f"/v1/executions?sandbox={listed[0]['id']}")
        assert len(mine.json["executions"]) == 2
        assert (await gateway.ask("DELETE", path)).status == 204
        for method in ("GET", "DELETE"):
            assert (await gateway.ask(method, path)).code == "not_found"
        assert (await gateway.ask("GET", "/v1/usage")).json["open_sandboxes"] == 0
        assert gateway.environment.sessions[0].closed


@pytest.mark.parametrize(
    "name",
    ["plain.txt", "a b", "日本語 ë.txt", "a?b#c", "%2e%2e", "..x", ".hidden", "deep/er/x", "new\nline",
     "percent%41", "quote\"'", "a\\b"],
)  # fmt: skip
async def test_files_keep_their_names(open_fake: OpenGateway, name: str) -> None:
    """Whatever bytes they are made of."""
    async with open_fake() as gateway:
        path = await open_sandbox(gateway)
        where = f"{path}/files/{quote(name)}"
        data = bytes(range(256)) * 300
        assert (await gateway.ask("PUT", where, data=data)).status == 204
        assert gateway.environment.sessions[0].workspace == {name: data}
        back = await gateway.ask("GET", where)
        assert (back.status, back.body) == (200, data)
        assert back.headers["Content-Disposition"] == "attachment"
        assert back.headers["X-Content-Type-Options"] == "nosniff"
        folder = await gateway.ask("GET", f"{path}/folders/{quote(name.rpartition('/')[0])}")
        (entry,) = folder.json["entries"]
        assert entry == {"name": name.rpartition("/")[2], "kind": "file", "size": len(data)}


async def test_a_name_need_not_be_text(open_fake: OpenGateway) -> None:
    """Bytes that are no UTF-8 come back as they were."""
    async with open_fake() as gateway:
        path = await open_sandbox(gateway)
        assert (await gateway.ask("PUT", path + "/files/a%ff", data=b"x")).status == 204
        assert list(gateway.environment.sessions[0].workspace) == ["a\udcff"]
        entries = (await gateway.ask("GET", path + "/folders/")).json["entries"]
        assert (await gateway.ask("GET", path + "/folders")).json["entries"] == entries
        assert entries[0]["name"] == {"base64": "Yf8="}


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "%2e%2e/x", "%2e%2e%2fx", "/x", "a//b", "a/./b", "a%00b", "", "a/"],
)
async def test_no_name_leaves_the_workspace(open_fake: OpenGateway, name: str) -> None:
    """Refused before anything of the body is read."""
    async with open_fake() as gateway:
        path = await open_sandbox(gateway)
        for method in ("PUT", "GET"):
            answer = await gateway.ask(method, f"{path}/files/{name}", data=b"x")
            assert answer.code in ("invalid_request", "file_refused"), answer.body
        assert gateway.environment.sessions[0].workspace == {}


async def test_what_a_file_is_refused_for_is_said(open_fake: OpenGateway) -> None:
    """As a status, not as a cut answer."""
    async with open_fake() as gateway:
        path = await open_sandbox(gateway, sandbox={"limits": {"disk_bytes": 100_000}})
        assert (await gateway.ask("GET", path + "/files/absent")).code == "file_refused"
        large = await gateway.ask("PUT", path + "/files/large", data=b"x" * 200_000)
        assert large.code == "file_refused"
        huge = await gateway.ask("PUT", path + "/files/huge", data=io.BytesIO(b"x" * 3_000_000))
        assert huge.code in ("too_large", "file_refused")
        assert (await gateway.ask("GET", path)).json["state"] == "open"


async def test_one_program_at_a_time(open_fake: OpenGateway) -> None:
    """The second is told so, costs nothing, and may come again when the first has ended."""
    async with open_fake([FOREVER, Scripted()]) as gateway:
        path = await open_sandbox(gateway)
        first = await gateway.ask("POST", path + "/executions", PROGRAM, headers=JOB)
        assert (await gateway.ask("GET", path)).json["execution"] == first.json["id"]
        answers = await asyncio.gather(
            *(gateway.ask("POST", path + "/executions", PROGRAM) for _ in range(5))
        )
        assert {answer.code for answer in answers} == {"conflict"}
        await gateway.ask("POST", first.headers["Location"] + "/cancel")
        await until_ended(gateway, first.json["id"])
        assert (await gateway.ask("POST", path + "/executions", PROGRAM)).status == 200


async def test_a_lease_ends_the_session(open_fake: OpenGateway) -> None:
    """What runs in it is cancelled; extending puts it off; asking does not."""
    async with open_fake(lambda _: FOREVER) as gateway:
        short = await open_sandbox(gateway, lease_seconds=0.6)
        kept = await open_sandbox(gateway, lease_seconds=0.6)
        job = await gateway.ask("POST", short + "/executions", PROGRAM, headers=JOB)
        extended = await gateway.ask("POST", kept + "/lease", {"seconds": 60})
        assert extended.json["lease_seconds"] > 50
        await gone(gateway, short)
        assert (await until_ended(gateway, job.json["id"]))["outcome"] == "cancelled"
        assert (await gateway.ask("GET", kept)).json["state"] == "open"


async def test_a_lease_beyond_the_executors_ceiling_is_refused_at_once(
    open_fake: OpenGateway,
) -> None:
    """An executor is asked for more, in which the workspace is saved; a tenant hears what he may."""
    ceilings = {"lease_seconds": 7 * 86_400, "session_seconds": 30 * 86_400}
    async with open_fake(ceilings=ceilings) as gateway:
        tenants = Tenants(gateway.services.database)
        policy = tenants.get("alice").policy
        generous = policy.ceilings.model_copy(update=ceilings)
        tenants.set("alice", policy.model_copy(update={"ceilings": generous}))
        path = await open_sandbox(gateway, lease_seconds=86_380)
        for where, body in (
            ("/v1/sandboxes", {"lease_seconds": 86_390}),
            (path + "/lease", {"seconds": 86_390}),
        ):
            answer = await gateway.ask("POST", where, body)
            assert (answer.status, answer.code) == (403, "forbidden")
            assert "86390 seconds exceeds the executors' ceiling of 86380;" in answer.json["detail"]
        assert len(gateway.environment.sessions) == 1
        assert len((await gateway.ask("GET", "/v1/sandboxes")).json["sandboxes"]) == 1


@pytest.mark.parametrize("asked", [{}, {"tier": "microvm"}])
async def test_a_session_says_which_tier_serves_it(
    open_fake: OpenGateway, asked: dict[str, str]
) -> None:
    """Also where none was named; in the list, too."""
    async with open_fake() as gateway:
        opened = await gateway.ask("POST", "/v1/sandboxes", {"sandbox": asked})
        tier = gateway.environment.sessions[0].tier
        assert tier == asked.get("tier", tier)
        assert opened.json["tier"] == tier
        path = "/v1/sandboxes/" + opened.json["id"]
        assert (await gateway.ask("GET", path)).json["tier"] == tier
        assert (await gateway.ask("GET", "/v1/sandboxes")).json["sandboxes"][0]["tier"] == tier


async def test_a_lease_is_refused_and_never_clamped(open_fake: OpenGateway) -> None:
    """With the ceiling in the message; nothing is left behind."""
    async with open_fake() as gateway:
        for seconds in (10**6, 365 * 86_400):
            answer = await gateway.ask("POST", "/v1/sandboxes", {"lease_seconds": seconds})
            assert (answer.status, answer.code) == (403, "forbidden")
            assert "3600" in answer.json["detail"]
        for wrong in (0, -1, "60", None, float("1e400")):
            body = json.dumps({"lease_seconds": wrong}).replace("Infinity", "1e400")
            answer = await gateway.ask(
                "POST", "/v1/sandboxes", data=body, headers={"Content-Type": "application/json"}
            )
            assert answer.code == "invalid_request", (wrong, answer.body)
        assert gateway.environment.sessions == []


async def test_pause_and_resume(open_fake: OpenGateway) -> None:
    """A paused one takes no program."""
    async with open_fake([Scripted()]) as gateway:
        path = await open_sandbox(gateway)
        assert (await gateway.ask("POST", path + "/pause")).status == 204
        assert (await gateway.ask("GET", path)).json["state"] == "paused"
        assert (await gateway.ask("POST", path + "/executions", PROGRAM)).code == "conflict"
        assert (await gateway.ask("POST", path + "/resume")).status == 204
        assert (await gateway.ask("POST", path + "/executions", PROGRAM)).status == 200


async def test_a_workspace_is_kept_between_sessions(open_fake: OpenGateway) -> None:
    """Put in when the next one opens; one session has it at a time; nobody else's."""
    async with open_fake() as gateway:
        first = await open_sandbox(gateway, workspace="notes")
        await gateway.ask("PUT", first + "/files/a.txt", data=b"kept")
        taken = await gateway.ask("POST", "/v1/sandboxes", {"workspace": "notes"})
        assert taken.code == "conflict"
        assert (await gateway.ask("DELETE", first)).status == 204
        (kept,) = (await gateway.ask("GET", "/v1/workspaces")).json["workspaces"]
        assert (kept["name"], kept["generation"]) == ("notes", 1)
        second = await open_sandbox(gateway, workspace="notes")
        assert (await gateway.ask("GET", second + "/files/a.txt")).body == b"kept"
        bobs = await gateway.ask("POST", "/v1/sandboxes", {"workspace": "notes"}, key="bob")
        assert bobs.status == 201
        empty = await gateway.ask("GET", f"/v1/sandboxes/{bobs.json['id']}/folders/", key="bob")
        assert empty.json["entries"] == []
        assert (await gateway.ask("DELETE", "/v1/workspaces/notes")).code == "conflict"
        await gateway.ask("DELETE", second)
        assert (await gateway.ask("DELETE", "/v1/workspaces/notes")).status == 204
        assert (await gateway.ask("GET", "/v1/workspaces")).json["workspaces"] == []
        for name in ("../x", "a/b", "%2e%2e", "", "x" * 129, "a\r\nb", "-a"):
            answer = await gateway.ask("POST", "/v1/sandboxes", {"workspace": name})
            assert answer.code == "invalid_request", name


async def test_a_lease_that_ends_saves_the_workspace(open_fake: OpenGateway) -> None:
    """As a close does."""
    async with open_fake() as gateway:
        path = await open_sandbox(gateway, workspace="w", lease_seconds=0.5)
        await gateway.ask("PUT", path + "/files/a", data=b"1")
        await gone(gateway, path)
        async with asyncio.timeout(10):
            while not (kept := (await gateway.ask("GET", "/v1/workspaces")).json["workspaces"]):
                await asyncio.sleep(0.05)
        assert [one["generation"] for one in kept] == [1]


async def test_a_terminal(open_fake: OpenGateway) -> None:
    """Typed bytes in, shown bytes out, its size, its end."""
    async with open_fake([cat]) as gateway:
        path = await open_sandbox(gateway)
        async with gateway.http.ws_connect(
            gateway.url + path + "/terminal",
            protocols=["stockade.terminal.v1", "stockade.key." + gateway.keys["alice"]],
        ) as terminal:
            assert terminal.protocol == "stockade.terminal.v1"
            await terminal.send_json({"terminal": {"rows": 10, "columns": 20}})
            assert (await terminal.receive_json())["type"] == "started"
            await terminal.send_bytes(b"typed")
            assert await terminal.receive_bytes() == b"typed"
            await terminal.send_json({"type": "resize", "rows": 30, "columns": 40})
            await terminal.send_json({"type": "signal", "number": 15})
            ended = await terminal.receive_json()
            assert (ended["type"], ended["record"]["outcome"]) == ("record", "signal")
            assert (await terminal.receive()).type is aiohttp.WSMsgType.CLOSE
        (call,) = gateway.environment.calls
        assert call.request.terminal is not None
        assert (call.sizes[0].rows, call.signals) == (30, [15])


async def test_a_terminal_that_is_closed_ends_its_program(open_fake: OpenGateway) -> None:
    """Nobody is there to see it."""
    async with open_fake([cat]) as gateway:
        path = await open_sandbox(gateway)
        async with gateway.http.ws_connect(
            gateway.url + path + "/terminal", headers=gateway.headers()
        ) as terminal:
            await terminal.send_json({})
            await terminal.receive_json()
        async with asyncio.timeout(5):
            while gateway.environment.calls[0].execution is None:
                await asyncio.sleep(0.01)
        assert gateway.environment.calls[0].execution.outcome is Outcome.CANCELLED


@pytest.mark.parametrize(
    ("key", "origin", "status"),
    [(None, None, 401), ("wrong", None, 401), ("bob", None, 404), ("reader", None, 403),
     ("alice", "http://evil.example", 403)],
)  # fmt: skip
async def test_a_terminal_is_behind_the_door(
    open_fake: OpenGateway, key: str | None, origin: str | None, status: int
) -> None:
    """Refused in the handshake: a stranger's page, a stranger, one whose it is not."""
    async with open_fake() as gateway:
        path = await open_sandbox(gateway)
        headers = gateway.headers(key) | ({"Origin": origin} if origin else {})
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await gateway.http.ws_connect(gateway.url + path + "/terminal", headers=headers)
        assert refused.value.status == status


@pytest.mark.parametrize("first", ["{}x", "[]", '{"program": 1}', '{"nonsense": 1}', b"bytes"])
async def test_a_terminal_takes_no_nonsense(open_fake: OpenGateway, first: str | bytes) -> None:
    """It says what is wrong and closes; nothing ran."""
    async with open_fake() as gateway:
        path = await open_sandbox(gateway)
        async with gateway.http.ws_connect(
            gateway.url + path + "/terminal", headers=gateway.headers()
        ) as terminal:
            if isinstance(first, bytes):
                await terminal.send_bytes(first)
            else:
                await terminal.send_str(first)
            said = await terminal.receive_json()
            assert (said["type"], said["problem"]["code"]) == ("problem", "invalid_request")
        assert gateway.environment.calls == []


async def test_an_executor_that_was_killed_has_lost_its_sessions(
    tmp_path: Any, prepared: Any
) -> None:
    """They end as lost; what ran ends in a record; the next call is served when it is back."""
    import shutil

    from stockade.gateway.logs import open_log

    async def program(call: Call) -> Scripted:
        await asyncio.sleep(30)
        return Scripted()

    shutil.copy(prepared[0], tmp_path)
    before = executor_over(FakeEnvironment(program))
    server = await before.__aenter__()
    port = int(server.url.rpartition(":")[2])
    settings = gateway_settings(tmp_path, [server.url])
    async with (
        open_gateway(settings, open_log(io.StringIO())) as (gateway_server, services),
        aiohttp.ClientSession() as http,
    ):
        gateway = Gateway(gateway_server.url, services, http, prepared[1], None, io.StringIO())
        path = await open_sandbox(gateway)
        job = await gateway.ask("POST", "/v1/executions", PROGRAM, headers=JOB)
        await asyncio.sleep(0.2)
        await before.__aexit__(None, None, None)
        record = await until_ended(gateway, job.json["id"])
        assert record["outcome"] in ("lost", "cancelled")
        refused = await gateway.ask("POST", "/v1/executions", PROGRAM)
        assert refused.status == 503
        for told in (record["detail"], refused.json["detail"]):
            assert str(port) not in told, "where an executor is, is nothing for tenants"
        async with asyncio.timeout(10):
            while (await gateway.ask("GET", "/readyz")).status != 503:
                await asyncio.sleep(0.1)
        refused = await gateway.ask("POST", "/v1/executions", PROGRAM)
        assert (refused.status, refused.code) == (503, "unavailable")
        async with executor_over(FakeEnvironment(), port):
            async with asyncio.timeout(20):
                while (await gateway.ask("POST", "/v1/executions", PROGRAM)).status != 200:
                    await asyncio.sleep(0.1)
            await gone(gateway, path)
            audited = await gateway.ask("GET", "/v1/audit?action=sandbox.closed")
            assert audited.json["records"][0]["facts"]["reason"] == "lost"


async def test_nothing_keeps_the_lease_of_a_session_that_was_closed(open_fake: OpenGateway) -> None:
    """It waited on for the lease's end: with a lease of a day and many sessions, memory grew."""

    def keepers() -> int:
        return sum("_keep_lease" in str(task.get_coro()) for task in asyncio.all_tasks())

    async with open_fake([]) as gateway:
        paths = [await open_sandbox(gateway, lease_seconds=60) for _ in range(3)]
        assert keepers() == 3
        for path in paths:
            assert (await gateway.ask("DELETE", path)).status == 204
        async with asyncio.timeout(10):
            while keepers():
                await asyncio.sleep(0.01)
