"""Credentials at the gateway: stored by a tenant, told to nobody, lent to its own executions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.broker.brokered import SECRET, Brokered, gateways_broker, open_brokered
from tests.gateway.api.conftest import Gateway, OpenGateway

from stockade.gateway.policy import TenantPolicy
from stockade.gateway.tenants import Tenants
from stockade.port import Unavailable
from stockade.port.fake import FakeEnvironment

RULE = "https://api.test:443/v1"
BODY = {"secret": SECRET, "grants": [{"rule": RULE, "way": {"kind": "bearer"}}]}
PROGRAM = {"program": {"kind": "python", "source": "print(1)"}}


def using(*names: str) -> dict[str, object]:
    return {**PROGRAM, "sandbox": {"egress": {"credentials": list(names)}}}


@asynccontextmanager
async def both(
    open_fake: OpenGateway,
    folder: Path,
    *,
    egress: tuple[str, ...] = (RULE,),
    environment: FakeEnvironment | None = None,
) -> AsyncIterator[tuple[Gateway, Brokered]]:
    async with (
        open_brokered(folder, trustme.CA()) as brokered,
        open_fake(broker=gateways_broker(folder), environment=environment) as gateway,
    ):
        for tenant in ("alice", "bob"):
            Tenants(gateway.services.database).set(tenant, policy=TenantPolicy(egress=egress))
        yield gateway, brokered


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("b")


async def test_a_credential_is_stored_told_of_and_deleted(
    open_fake: OpenGateway, folder: Path
) -> None:
    async with both(open_fake, folder) as (gateway, _):
        stored = await gateway.ask("PUT", "/v1/credentials/key", BODY)
        assert stored.status == 204, stored.body
        listed = await gateway.ask("GET", "/v1/credentials")
        assert [each["name"] for each in listed.json["credentials"]] == ["key"]
        assert SECRET.encode() not in listed.body
        bobs = await gateway.ask("GET", "/v1/credentials", key="bob")
        assert bobs.json["credentials"] == []
        assert (await gateway.ask("DELETE", "/v1/credentials/key", key="bob")).status == 404
        assert (await gateway.ask("DELETE", "/v1/credentials/key")).status == 204
        assert (await gateway.ask("DELETE", "/v1/credentials/key")).status == 404
        trail = await gateway.ask("GET", "/v1/audit")
        actions = [record["action"] for record in trail.json["records"]]
        assert {"credential.stored", "credential.deleted"} <= set(actions)
        assert SECRET.encode() not in trail.body
        assert SECRET not in "".join(map(str, gateway.lines))


async def test_a_key_without_the_scope_neither_stores_nor_lists(
    open_fake: OpenGateway, folder: Path
) -> None:
    async with both(open_fake, folder) as (gateway, _):
        for method, path, body in (
            ("PUT", "/v1/credentials/key", BODY),
            ("GET", "/v1/credentials", None),
            ("DELETE", "/v1/credentials/key", None),
            ("GET", "/v1/credential-uses", None),
        ):
            assert (await gateway.ask(method, path, body, key="reader")).status == 403, path


async def test_an_execution_gets_a_ticket_and_no_secret(
    open_fake: OpenGateway, folder: Path
) -> None:
    async with both(open_fake, folder) as (gateway, _):
        await gateway.ask("PUT", "/v1/credentials/key", BODY)
        done = await gateway.ask("POST", "/v1/executions", using("key"))
        assert done.status == 200, done.body
        (call,) = gateway.environment.calls
        assert call.sandbox.ticket
        assert call.sandbox.egress.credentials == ("key",)
        assert SECRET not in repr(call)
        assert call.sandbox.ticket.encode() not in done.body
        assert call.sandbox.ticket not in repr(call.sandbox)


@pytest.mark.parametrize("name", ["unknown", "bobs"])
async def test_a_credential_that_is_not_ones_own_is_refused_before_anything_runs(
    open_fake: OpenGateway, folder: Path, name: str
) -> None:
    async with both(open_fake, folder) as (gateway, _):
        await gateway.ask("PUT", "/v1/credentials/bobs", BODY, key="bob")
        done = await gateway.ask("POST", "/v1/executions", using(name))
        assert done.status == 422, done.body
        assert name in done.json["detail"]
        assert gateway.environment.calls == []


async def test_a_policy_that_does_not_cover_the_grant_refuses_it(
    open_fake: OpenGateway, folder: Path
) -> None:
    async with both(open_fake, folder, egress=("https://other.test:443",)) as (gateway, _):
        stored = await gateway.ask("PUT", "/v1/credentials/key", BODY)
        assert stored.status == 403, stored.body


async def test_a_ticket_is_the_gateways_to_give(open_fake: OpenGateway, folder: Path) -> None:
    async with both(open_fake, folder) as (gateway, brokered):
        await gateway.ask("PUT", "/v1/credentials/key", BODY)
        ticket = await brokered.ticket("key", tenant="alice")
        body = using("key")
        sandbox = body["sandbox"]
        assert isinstance(sandbox, dict)
        sandbox["ticket"] = f"run1:{ticket}"
        answer = await gateway.ask("POST", "/v1/executions", body)
        assert answer.status == 422, answer.body
        assert gateway.environment.calls == []


async def test_without_a_broker_it_says_so(open_fake: OpenGateway) -> None:
    async with open_fake() as gateway:
        for method, path, body in (
            ("PUT", "/v1/credentials/key", BODY),
            ("GET", "/v1/credentials", None),
        ):
            answer = await gateway.ask(method, path, body)
            assert answer.status in (403, 503), answer.body
        assert (await gateway.ask("POST", "/v1/executions", using("key"))).status in (403, 503)
        assert gateway.environment.calls == []


async def test_a_repeated_request_takes_no_ticket(open_fake: OpenGateway, folder: Path) -> None:
    """Its answer is known: it needs neither a broker nor a secret to be opened once more."""
    async with both(open_fake, folder) as (gateway, brokered):
        await gateway.ask("PUT", "/v1/credentials/key", BODY)
        headers = {"Idempotency-Key": "once"}
        first = await gateway.ask("POST", "/v1/executions", using("key"), headers=headers)
        assert first.status == 200, first.body
        async with brokered.control.delete(
            "http://broker/v1/tenants/alice/credentials/key"
        ) as gone:
            assert gone.status == 204
        again = await gateway.ask("POST", "/v1/executions", using("key"), headers=headers)
        assert again.status == 200, again.body
        assert again.json["id"] == first.json["id"]
        assert len(gateway.environment.calls) == 1


class OneTierFails(FakeEnvironment):
    """The stronger tier takes the ticket, and then has no room."""

    def __init__(self) -> None:
        super().__init__()
        self.tickets: list[str | None] = []

    async def start(self, request: Any, sandbox: Any = None, **more: Any) -> Any:
        self.tickets.append(sandbox.ticket)
        if len(self.tickets) == 1:
            raise Unavailable("there is no room")
        return await super().start(request, sandbox, **more)


async def test_each_try_has_a_ticket_of_its_own(open_fake: OpenGateway, folder: Path) -> None:
    """One that was shown to an executor is used up, whatever became of the try."""
    environment = OneTierFails()
    async with both(open_fake, folder, environment=environment) as (gateway, _):
        await gateway.ask("PUT", "/v1/credentials/key", BODY)
        done = await gateway.ask("POST", "/v1/executions", using("key"))
        assert done.status == 200, done.body
    first, second = environment.tickets
    assert first
    assert second
    assert first != second
    # Both for the one execution, by whose name uses are told.
    assert first.split(":")[0] == second.split(":")[0]
