"""How a gateway starts, refuses to start, drains and stops; as a process where that matters."""

import asyncio
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stockade.gateway.api.app import create_app
from stockade.gateway.database import DatabaseFault
from stockade.gateway.executors import _Late
from stockade.gateway.logs import open_log
from stockade.gateway.service import Refusal, open_gateway, open_services
from stockade.gateway.tracing import Tracing
from stockade.port.fake import FakeEnvironment, Scripted
from stockade.serving import BoundedServer, Bounds, Listening

from .conftest import TOKEN, Gateway, executor_over, gateway_settings, make_tenants
from .test_executions import FOREVER, JOB, PROGRAM, until_ended


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"executors": []}, "executors"),
        ({"listen": {"host": "0.0.0.0"}}, "tls"),
        ({"listen": {"host": "0.0.0.0"}, "auth_mode": "dev"}, "listen.host"),
        ({"token": "changeme"}, "token_file"),
        ({"token": "x" * 40}, "token_file"),
        ({"mode": 0o644}, "token_file"),
        ({"url": "http://192.0.2.1:80"}, "url"),
    ],
)
async def test_it_fails_closed(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    """Each refusal names the key; nothing was opened."""
    token = tmp_path / "token"
    token.write_text(change.pop("token", TOKEN))
    token.chmod(change.pop("mode", 0o600))
    url = change.pop("url", "http://127.0.0.1:1")
    settings = gateway_settings(tmp_path, [url], **change)
    with pytest.raises(Refusal, match=re.escape(named)):
        async with open_services(settings, open_log(io.StringIO())):
            pass
    assert not (tmp_path / "gateway.db").exists()


async def test_a_database_that_is_not_this_versions_is_refused(tmp_path: Path) -> None:
    """Outside dev nothing is made in silence."""
    settings = gateway_settings(tmp_path, ["http://127.0.0.1:1"])
    with pytest.raises(DatabaseFault, match="--migrate"):
        async with open_services(settings, open_log(io.StringIO())):
            pass


async def test_a_trace_goes_through_to_the_execution(tmp_path: Path) -> None:
    """A caller's ``traceparent``, the gateway's spans, and the header that the executor gets."""
    spans = InMemorySpanExporter()
    seen: list[str] = []
    environment = FakeEnvironment([Scripted()])
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with executor_over(environment) as executor:
        settings = gateway_settings(tmp_path, [executor.url])
        keys = make_tenants(settings.database_url)
        tracing = Tracing(SimpleSpanProcessor(spans))
        outgoing = tracing.outgoing

        def watched() -> dict[str, str]:
            headers = outgoing()
            seen.append(headers.get("traceparent", ""))
            return headers

        tracing.outgoing = watched  # type: ignore[method-assign]
        log = open_log(io.StringIO())
        async with (
            open_services(settings, log, tracing) as services,
            BoundedServer.open(create_app(services), Listening(), Bounds()) as server,
            aiohttp.ClientSession() as http,
        ):
            gateway = Gateway(server.url, services, http, keys, environment, io.StringIO())
            await gateway.ask(
                "POST",
                "/v1/executions",
                PROGRAM,
                headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"},
            )
            await gateway.ask("GET", "/v1/usage", headers={"traceparent": "nonsense"})
    found = {span.name: span for span in spans.get_finished_spans()}
    request = [one for one in spans.get_finished_spans() if one.name == "gateway.request"]
    mine = [one for one in request if f"{one.context.trace_id:032x}" == trace]
    assert len(mine) == 1
    assert len(request) == 2
    execution = found["gateway.execution"]
    assert f"{execution.context.trace_id:032x}" == trace
    assert execution.attributes is not None
    assert execution.attributes["stockade.outcome"] == "ok"
    assert any(trace in header for header in seen)


async def test_an_executor_that_is_late_once_is_not_left(tmp_path: Path) -> None:
    """A loaded machine is; one that stays late is left, and taken again when it is back."""
    late = False

    async with executor_over(FakeEnvironment()) as executor:
        settings = gateway_settings(tmp_path, [executor.url])
        make_tenants(settings.database_url)
        async with open_services(settings, open_log(io.StringIO())) as services:
            (one,) = services.executors.all
            check = one.check

            async def checked() -> None:
                if late:
                    raise _Late("it does not answer")
                await check()

            one.check = checked  # type: ignore[method-assign]
            late = True
            for healthy in (True, True, False):
                await services.executors.check_all()
                assert one.healthy is healthy
            late = False
            await services.executors.check_all()
            assert one.healthy


async def test_what_runs_when_it_stops_ends_in_a_record(tmp_path: Path) -> None:
    """And a sandbox is closed with its workspace saved. The next gateway knows both."""
    environment = FakeEnvironment(lambda _: FOREVER)
    async with executor_over(environment) as executor:
        settings = gateway_settings(tmp_path, [executor.url])
        keys = make_tenants(settings.database_url)

        async def ask(*requests: tuple[Any, ...]) -> list[Any]:
            async with (
                open_gateway(settings, open_log(io.StringIO())) as (server, services),
                aiohttp.ClientSession() as http,
            ):
                gateway = Gateway(server.url, services, http, keys, None, io.StringIO())
                return [await gateway.ask(*one[:3], headers=one[3]) for one in requests]

        job, opened = await ask(
            ("POST", "/v1/executions", PROGRAM, JOB),
            ("POST", "/v1/sandboxes", {"workspace": "w"}, None),
        )
        ended, gone, kept = await ask(
            ("GET", job.headers["Location"], None, None),
            ("GET", opened.headers["Location"], None, None),
            ("GET", "/v1/workspaces", None, None),
        )
    assert ended.json["record"]["outcome"] == "cancelled"
    assert gone.code == "not_found"
    assert [one["name"] for one in kept.json["workspaces"]] == ["w"]


class _Process:
    """``stockade gateway``."""

    def __init__(self, folder: Path, url: str) -> None:
        token = folder / "token"
        config = folder / "stockade.toml"
        config.write_text(
            f'[gateway]\ndatabase_url = "sqlite:///{folder}/gateway.db"\ndrain_seconds = 10.0\n'
            "[gateway.listen]\nport = 0\n"
            f'[gateway.artefacts.store]\nwhere = "{folder}/store"\n'
            f'[[gateway.executors]]\nname = "e0"\nurl = "{url}"\ntoken_file = "{token}"\n'
        )
        self._log = folder / "log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stockade.cli.main", "gateway", "--config", str(config)],
                stdout=log,
                stderr=log,
                cwd="/",
            )

    async def url(self) -> str:
        """Once it serves."""
        deadline = time.monotonic() + 60
        while True:
            for line in self._log.read_text().splitlines()[::-1]:
                said = json.loads(line) if line.startswith("{") else {}
                if said.get("event") == "listening" and said.get("pid") == self.process.pid:
                    return str(said["url"])
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            await asyncio.sleep(0.1)


async def test_killed_and_started_again_no_record_is_lost_or_doubled(
    tmp_path: Path, prepared: Any
) -> None:
    """What ran is ``lost``, exactly once; SIGTERM lets what runs finish, and takes no more."""

    async def program(_: Any) -> Scripted:
        await asyncio.sleep(1.5)
        return Scripted(stdout=b"whole")

    shutil.copy(prepared[0], tmp_path)
    async with executor_over(FakeEnvironment(program)) as executor:
        gateway_settings(tmp_path, [executor.url])  # writes the token
        first = _Process(tmp_path, executor.url)
        try:
            async with aiohttp.ClientSession() as http:
                gateway = Gateway(
                    await first.url(),
                    None,
                    http,
                    prepared[1],
                    None,
                    io.StringIO(),
                )
                lost = await gateway.ask("POST", "/v1/executions", PROGRAM, headers=JOB)
        finally:
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
        second = _Process(tmp_path, executor.url)
        try:
            async with aiohttp.ClientSession() as http:
                gateway = Gateway(
                    await second.url(),
                    None,
                    http,
                    prepared[1],
                    None,
                    io.StringIO(),
                )
                record = await until_ended(gateway, lost.json["id"])
                assert record["outcome"] == "lost"
                audited = await gateway.ask("GET", f"/v1/audit?subject={lost.json['id']}")
                actions = [one["action"] for one in audited.json["records"]]
                assert actions == ["execution.ended", "execution.begun"]
                waiting = asyncio.create_task(gateway.ask("POST", "/v1/executions", PROGRAM))
                await asyncio.sleep(0.5)
                os.kill(second.process.pid, signal.SIGTERM)
                await asyncio.sleep(0.3)
                refused = await gateway.ask("POST", "/v1/executions", PROGRAM)
                assert refused.code == "unavailable"
                assert (await gateway.ask("GET", "/readyz", key=None)).status == 503
                assert (await waiting).json["record"]["stdout"]["head"] == "whole"
            assert await asyncio.to_thread(second.process.wait, 30) == 0
        finally:
            second.process.kill()
            second.process.wait()
