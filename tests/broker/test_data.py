"""The data protocol under attack: who may open, what a lease is, and what a dead broker lets out."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokered import (
    DATA_TOKEN,
    KEY,
    LOCAL,
    SECRET,
    TENANT,
    Brokered,
    Recorder,
    connected,
    destination,
    say,
)

from stockade.egress.broker_route import BrokerDown
from stockade.executor.egress.broker_link import BrokerAddress, BrokerLink, BrokerRefused

RULE = f"https://api.test:9 {LOCAL}"
BEARER = {"kind": "bearer"}


@pytest.fixture
async def stored(brokered: Brokered) -> Brokered:
    await brokered.store("key", RULE, BEARER)
    return brokered


async def raw(brokered: Brokered, line: bytes) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(brokered.folder / "data.sock")
    try:
        writer.write(line)
        found: dict[str, Any] = json.loads(await reader.readline())
        return found
    finally:
        writer.transport.abort()


def opening(**other: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "token": DATA_TOKEN,
        "ticket": None,
        "tenant": TENANT,
        "execution": "run1",
        "rules": [],
    }
    return {"open": {**fields, **other}}


async def test_a_ticket_is_good_once_for_its_tenant_and_execution(stored: Brokered) -> None:
    async def attempt(ticket: str, tenant: str, execution: str) -> str:
        said = await raw(
            stored,
            json.dumps(opening(ticket=ticket, tenant=tenant, execution=execution)).encode() + b"\n",
        )
        return str(said.get("error", "opened"))

    ticket = await stored.ticket("key")
    assert await attempt(ticket, TENANT, "run1") == "opened"
    assert await attempt(ticket, TENANT, "run1") == "ticket-refused"
    for tenant, execution in (("evil", "run1"), (TENANT, "run2")):
        ticket = await stored.ticket("key")
        assert await attempt(ticket, tenant, execution) == "ticket-refused"
        assert await attempt(ticket, TENANT, "run1") == "ticket-refused", "it is used up"
    assert await attempt("0" * 64, TENANT, "run1") == "ticket-refused"


async def test_an_unknown_credential_gets_no_ticket(stored: Brokered) -> None:
    for tenant, name in ((TENANT, "other"), ("evil", "key")):
        body = {"tenant": tenant, "execution": "run1", "credentials": [name]}
        async with stored.control.post("http://broker/v1/tickets", json=body) as answer:
            assert answer.status == 404
            assert "there is no credential" in (await answer.json())["detail"]


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b'{"open": null}\n',
        b'{"open": {}, "connect": {}}\n',
        b'{"close": {}}\n',
        b"\xff\xfe\n",
        b"[" * 60_000 + b"\n",
        b"x" * 70_000 + b"\n",
        json.dumps(opening(token="wrong")).encode() + b"\n",
        json.dumps(opening(token=None)).encode() + b"\n",
        json.dumps(opening(rules=["nothing that is a rule at all"])).encode() + b"\n",
        json.dumps(opening(rules=["a.test"] * 5000)).encode() + b"\n",
        json.dumps(opening(rules="a.test")).encode() + b"\n",
        json.dumps(opening(tenant="")).encode() + b"\n",
        json.dumps(opening(tenant="a\nb")).encode() + b"\n",
        json.dumps(opening(more=1)).encode() + b"\n",
        b'{"connect": {"token": "%s", "sandbox": "%s", "host": "api.test", "port": 9, "tls": true}}\n'
        % (DATA_TOKEN.encode(), b"0" * 64),
        b'{"connect": {"token": "x", "sandbox": "%s", "host": "api.test", "port": 9, "tls": true}}\n'
        % (b"0" * 64),
    ],
)
async def test_lines_that_open_nothing(stored: Brokered, line: bytes) -> None:
    said = await raw(stored, line)
    assert set(said) == {"error", "detail"}
    assert DATA_TOKEN not in json.dumps(said)


async def test_a_sandbox_ends_with_its_lease(stored: Brokered) -> None:
    upstream = Recorder()
    async with destination(stored.authority, upstream) as port:
        await stored.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
        sandbox = await stored.open("key")
        async with connected(sandbox, "api.test", port) as (reader, _writer):
            # The executor dies.
            sandbox._writer.transport.abort()
            assert await reader.read() == b"", "what runs is cut"
        with pytest.raises(BrokerDown, match="lease"):
            await stored.link.connect(sandbox._id, "api.test", port, tls=True)
        assert upstream.requests == []


async def test_another_host_than_the_connection_is_for(stored: Brokered) -> None:
    sandbox = await stored.open("key")
    with pytest.raises(OSError):
        async with connected(sandbox, "api.test", 9, name="evil.test"):
            pass
    for host in ("api.test\0evil", "0x7f.1", "api.test@evil", "", "a" * 3000):
        with pytest.raises(BrokerDown):
            await sandbox.connect(host, 9, True)


async def test_who_is_no_executors_user(tmp_path: Path, stored: Brokered) -> None:
    # The same socket, for another user than this one.
    from stockade.broker.data import DataServer
    from stockade.broker.sandboxes import Sandboxes
    from stockade.broker.tickets import Tickets

    server = DataServer(
        store=None,  # type: ignore[arg-type]
        tickets=Tickets(),
        sandboxes=Sandboxes(),
        reach=None,  # type: ignore[arg-type]
        token=DATA_TOKEN,
        users=[os.geteuid() + 1],
    )
    path = stored.folder / "other.sock"
    listening = await asyncio.start_unix_server(server.accept, path)
    link = BrokerLink(BrokerAddress(path=path), DATA_TOKEN)
    with pytest.raises(BrokerRefused, match="no executor's"):
        await link.open(tenant=TENANT, execution="run1", ticket=None, rules=[])
    listening.close()
    await server.close()


async def test_certificates_of_destinations_are_verified(stored: Brokered) -> None:
    import datetime

    import trustme

    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    cases = {
        "has expired": stored.authority.issue_cert("api.test", not_after=past),
        "for another host": stored.authority.issue_cert("other.test"),
        "not trusted": trustme.CA().issue_cert("api.test"),
    }
    for said, certificate in cases.items():
        upstream = Recorder()
        async with destination(stored.authority, upstream, certificate=certificate) as port:
            await stored.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
            sandbox = await stored.open("key")
            head, body = await say(
                sandbox, "api.test", port, b"GET / HTTP/1.1\r\nHost: api.test:%d\r\n\r\n" % port
            )
            assert b" 502 " in head
            assert said.encode() in body
            assert b"api.test" in body
            assert upstream.requests == []


async def test_destinations_that_are_out_of_reach(stored: Brokered, tmp_path: Path) -> None:
    for rule, host, status, said in (
        (f"https://api.test:1 {LOCAL}", "api.test:1", b"502", b"cannot be reached"),
        ("https://api.test:1", "api.test:1", b"403", b"loopback"),
        (f"https://nowhere.invalid:1 {LOCAL}", "nowhere.invalid:1", b"502", b"cannot be resolved"),
    ):
        await stored.store("key", rule, BEARER)
        sandbox = await stored.open("key")
        name, _, port = host.partition(":")
        head, body = await say(
            sandbox, name, int(port), f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        )
        assert status in head.split(b"\r\n")[0], (head, body)
        assert said in body


async def test_no_secret_at_rest_in_logs_or_in_answers(stored: Brokered) -> None:
    upstream = Recorder()
    async with destination(stored.authority, upstream) as port:
        await stored.store("key", f"https://api.test:{port} {LOCAL}", BEARER)
        sandbox = await stored.open("key")
        await say(sandbox, "api.test", port, b"GET / HTTP/1.1\r\nHost: api.test:%d\r\n\r\n" % port)
        assert SECRET.encode() in upstream.requests[0]
    said = [sandbox.certificate, json.dumps(sandbox.environment), stored.log.getvalue()]
    base = f"http://broker/v1/tenants/{TENANT}"
    for path in ("credentials", "uses", "credentials/key"):
        async with stored.control.get(f"{base}/{path}") as answer:
            said.append(await answer.text())
    for body in (
        {"secret": SECRET, "grants": []},
        {"secret": SECRET, "grants": [{"rule": "tcp://a.test:1", "way": BEARER}]},
        {"secret": [SECRET], "grants": [{"rule": "a.test", "way": BEARER}]},
        {"secret": SECRET, "grants": [{"rule": "a.test", "way": {"kind": SECRET}}], SECRET[:5]: 1},
        {"secret": SECRET + "\n", "grants": [{"rule": "a.test", "way": BEARER}]},
    ):
        async with stored.control.put(f"{base}/credentials/key", json=body) as answer:
            assert answer.status == 422
            said.append(await answer.text())
    async with stored.control.put(
        f"{base}/credentials/key", data=b'{"secret": "' + SECRET.encode()
    ) as answer:
        assert answer.status == 422
        said.append(await answer.text())
    for file in stored.folder.glob("broker.db*"):
        assert SECRET.encode() not in file.read_bytes()
    assert not [text for text in said if SECRET in text or SECRET[:12] in text]


async def test_control_without_its_token(stored: Brokered) -> None:
    path = f"http://broker/v1/tenants/{TENANT}/credentials"
    for token in ("", DATA_TOKEN, "x"):
        async with stored.control.get(path, headers={"Authorization": f"Bearer {token}"}) as answer:
            assert answer.status == 401
            assert answer.content_type == "application/problem+json"


@pytest.fixture
async def killable(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Path, Any]]:
    """A broker of its own process."""
    folder = tmp_path_factory.mktemp("k")
    environment = {
        **os.environ,
        "STOCKADE_BROKER__CONTROL__LISTEN": f"unix:{folder}/control.sock",
        "STOCKADE_BROKER__DATA__LISTEN": f"unix:{folder}/data.sock",
        "STOCKADE_BROKER__DATABASE": f"{folder}/broker.db",
        "STOCKADE_BROKER__KEY": KEY,
        "STOCKADE_BROKER__CONTROL__TOKEN": "7b1f" + DATA_TOKEN,
        "STOCKADE_BROKER__DATA__TOKEN": DATA_TOKEN,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stockade.cli.main", "broker",
        env=environment, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    while b'"listening"' not in (line := await process.stderr.readline()):
        assert line, "it did not start"
    yield folder, process
    if process.returncode is None:
        process.terminate()
    await process.wait()


async def test_a_broker_that_is_killed_lets_nothing_out(killable: tuple[Path, Any]) -> None:
    folder, process = killable
    link = BrokerLink(BrokerAddress(path=folder / "data.sock"), DATA_TOKEN)
    sandbox = await link.open(tenant=TENANT, execution="run1", ticket=None, rules=[])
    process.send_signal(signal.SIGKILL)
    await process.wait()
    with pytest.raises(BrokerDown, match="nothing goes out without it"):
        await sandbox.connect("api.test", 443, True)
    with pytest.raises(BrokerDown, match="nothing goes out without it"):
        await link.open(tenant=TENANT, execution="run1", ticket=None, rules=[])
    assert await sandbox.finish() == ()
