"""From a program in a sandbox, through the broker, to a destination, and back."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trustme
from tests.broker.brokered import (
    DATA_TOKEN,
    LOCAL,
    SECRET,
    TENANT,
    Brokered,
    Recorder,
    destination,
    plain,
)

from stockade.executor.egress.broker_lease import Leases
from stockade.executor.egress.broker_link import BrokerAddress
from stockade.executor.local import open_local
from stockade.port import (
    EgressPolicy,
    EgressRule,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    InvalidRequest,
    Outcome,
    PythonSource,
    SandboxRequest,
    Tier,
    Unavailable,
)

pytestmark = pytest.mark.tier("namespace")

CALL = """
import json, os, sys, urllib.request, urllib.error
from pathlib import Path
said = []
for url, method, headers in json.loads(sys.argv[1]):
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            said.append([answer.status, answer.read().decode("latin1"), dict(answer.headers)])
    except urllib.error.HTTPError as error:
        said.append([error.code, error.read().decode("latin1"), dict(error.headers)])
    except OSError as error:
        said.append([0, str(error), {}])
environment = dict(os.environ)
files = {}
for folder in ("/workspace", "/tmp"):
    for path in Path(folder).rglob("*"):
        if path.is_file():
            files[str(path)] = path.read_bytes()[:1 << 20].decode("latin1")
json.dump({"said": said, "environment": environment, "files": files}, sys.stdout)
"""


@pytest.fixture
async def environment(brokered: Brokered) -> AsyncIterator[ExecutionEnvironment]:
    leases = Leases(BrokerAddress(path=brokered.folder / "data.sock"), DATA_TOKEN)
    async with open_local(warm=False, tiers={Tier.NAMESPACE}, open_lease=leases) as opened:
        yield opened


async def wanted(
    brokered: Brokered, *names: str, rules: tuple[str, ...] = (), execution: str = "e1"
) -> SandboxRequest:
    ticket = await brokered.ticket(*names, execution=execution) if names else None
    return SandboxRequest(
        tenant=TENANT,
        tier=Tier.NAMESPACE,
        egress=EgressPolicy(rules=tuple(map(EgressRule.parse, rules)), credentials=names),
        ticket=f"{execution}:{ticket}" if ticket else None,
    )


def call(*requests: tuple[str, str, dict[str, str]]) -> ExecutionRequest:
    return ExecutionRequest(PythonSource(CALL, (json.dumps(requests),)))


def told(execution: Execution) -> dict[str, Any]:
    assert execution.stdout.total == len(execution.stdout.content), "cut"
    found: dict[str, Any] = json.loads(execution.stdout.content)
    return found


async def test_the_destination_gets_the_secret_and_the_sandbox_never_has_it(
    brokered: Brokered, environment: ExecutionEnvironment, authority: trustme.CA
) -> None:
    # It echoes what it was sent, in a header and in the body.
    seen = Recorder(
        lambda head, _: plain(head, b"X-Echo: " + head.split(b"uthorization: ")[1].split(b"\r")[0])
    )
    async with destination(authority, seen) as port:
        await brokered.store("key", f"https://api.test:{port}/v1 {LOCAL}", {"kind": "bearer"})
        url = f"https://api.test:{port}/v1/thing"
        execution = await environment.run(
            call((url, "GET", {"Authorization": "Bearer my own"}), (url, "GET", {})),
            await wanted(brokered, "key"),
        )
    assert execution.outcome is Outcome.OK, execution
    assert [request.count(SECRET.encode()) for request in seen.requests] == [1, 1]
    assert b"my own" not in b"".join(seen.requests)
    found = told(execution)
    assert [status for status, _, _ in found["said"]] == [200, 200]
    assert "*" * len(SECRET) in found["said"][0][1]
    assert SECRET not in json.dumps(found)
    assert json.dumps(SECRET)[1:-1] not in json.dumps(found)
    assert execution.egress is not None
    (use,) = execution.egress.credentials
    assert (use.credential, use.count) == ("key", 2)
    uses = await brokered.uses()
    assert {each["execution"] for each in uses} == {"e1"}


async def test_what_was_not_granted_is_denied_and_in_the_record(
    brokered: Brokered, environment: ExecutionEnvironment, authority: trustme.CA
) -> None:
    seen = Recorder()
    async with destination(authority, seen) as port:
        await brokered.store("key", f"GET https://api.test:{port}/v1 {LOCAL}", {"kind": "bearer"})
        base = f"https://api.test:{port}"
        execution = await environment.run(
            call((f"{base}/v2", "GET", {}), (f"{base}/v1", "DELETE", {})),
            await wanted(brokered, "key"),
        )
    assert seen.requests == []
    assert [status for status, _, _ in told(execution)["said"]] == [403, 403]
    assert execution.egress is not None
    assert execution.egress.denials >= 2
    assert execution.egress.credentials == ()


async def test_a_path_rule_over_tls_is_kept_without_any_credential(
    brokered: Brokered, environment: ExecutionEnvironment, authority: trustme.CA
) -> None:
    seen = Recorder()
    async with destination(authority, seen) as port:
        base = f"https://api.test:{port}"
        execution = await environment.run(
            call((f"{base}/v1/a", "GET", {}), (f"{base}/v2", "GET", {})),
            await wanted(brokered, rules=(f"GET {base}/v1 {LOCAL}",)),
        )
    assert [status for status, _, _ in told(execution)["said"]] == [200, 403]
    assert len(seen.requests) == 1


async def test_two_programs_of_a_session_have_their_own_uses(
    brokered: Brokered, environment: ExecutionEnvironment, authority: trustme.CA
) -> None:
    async with destination(authority, Recorder()) as port:
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", {"kind": "bearer"})
        url = f"https://api.test:{port}/"
        sandbox = await wanted(brokered, "key", execution="s1")
        async with await environment.open_session(sandbox) as session:
            one = await session.run(call((url, "GET", {})))
            two = await session.run(call((url, "GET", {}), (url, "GET", {})))
    for execution, count in ((one, 1), (two, 2)):
        assert execution.egress is not None
        assert [each.count for each in execution.egress.credentials] == [count]


async def test_a_placeholder_is_all_that_a_program_sees(
    brokered: Brokered, environment: ExecutionEnvironment, authority: trustme.CA
) -> None:
    seen = Recorder()
    program = (
        "import os, urllib.request\n"
        "key = os.environ['API_KEY']\n"
        "request = urllib.request.Request({url!r}, headers={{'X-Key': key}})\n"
        "print(key, urllib.request.urlopen(request).status)\n"
    )
    async with destination(authority, seen) as port:
        way = {"kind": "placeholder", "name": "API_KEY"}
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", way)
        execution = await environment.run(
            ExecutionRequest(PythonSource(program.format(url=f"https://api.test:{port}/"))),
            await wanted(brokered, "key"),
        )
    assert execution.ok, execution
    placeholder, status = execution.stdout.text().split()
    assert status == "200"
    assert placeholder != SECRET
    assert SECRET.encode() in seen.requests[0]
    assert placeholder.encode() not in seen.requests[0]


async def test_without_a_ticket_or_with_a_used_one_nothing_runs(
    brokered: Brokered, environment: ExecutionEnvironment
) -> None:
    await brokered.store("key", f"https://api.test:9 {LOCAL}", {"kind": "bearer"})
    sandbox = await wanted(brokered, "key")
    program = ExecutionRequest(PythonSource("print(1)"))
    assert (await environment.run(program, sandbox)).ok
    with pytest.raises(InvalidRequest, match="broker refuses"):
        await environment.run(program, sandbox)
    bare = SandboxRequest(
        tenant=TENANT, tier=Tier.NAMESPACE, egress=EgressPolicy(credentials=("key",))
    )
    with pytest.raises(InvalidRequest, match="ticket"):
        await environment.run(program, bare)


async def test_another_tenants_ticket_opens_nothing(
    brokered: Brokered, environment: ExecutionEnvironment
) -> None:
    await brokered.store("key", f"https://api.test:9 {LOCAL}", {"kind": "bearer"})
    ticket = await brokered.ticket("key", execution="e1")
    sandbox = SandboxRequest(
        tenant="another",
        tier=Tier.NAMESPACE,
        egress=EgressPolicy(credentials=("key",)),
        ticket=f"e1:{ticket}",
    )
    with pytest.raises(InvalidRequest, match="broker refuses"):
        await environment.run(ExecutionRequest(PythonSource("print(1)")), sandbox)


async def test_without_a_broker_nothing_goes_out(brokered: Brokered) -> None:
    leases = Leases(BrokerAddress(path=brokered.folder / "nobody.sock"), DATA_TOKEN)
    async with open_local(warm=False, tiers={Tier.NAMESPACE}, open_lease=leases) as environment:
        sandbox = await wanted(brokered, rules=(f"GET https://api.test:9/v1 {LOCAL}",))
        with pytest.raises(Unavailable, match="broker"):
            await environment.run(ExecutionRequest(PythonSource("print(1)")), sandbox)


async def test_the_lease_ends_with_the_sandbox(
    brokered: Brokered, environment: ExecutionEnvironment, authority: trustme.CA
) -> None:
    async with destination(authority, Recorder()) as port:
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", {"kind": "bearer"})
        sandbox = await wanted(brokered, "key")
        running = await environment.start(
            ExecutionRequest(PythonSource("import time; time.sleep(60)")), sandbox
        )
        await running.cancel()
        execution = await running.wait()
        assert execution.outcome is Outcome.CANCELLED
        await asyncio.sleep(0.2)
    # A new one is opened with a new ticket, and is another sandbox at the broker.
    again = await environment.run(
        ExecutionRequest(PythonSource("print(1)")), await wanted(brokered, "key", execution="e2")
    )
    assert again.ok
