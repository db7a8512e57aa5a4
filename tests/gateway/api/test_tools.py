"""Tools at the gateway: stored whole or not at all, called with JSON for JSON, each call audited."""

import asyncio
import io
import json
from typing import Any

import pytest

from stockade.gateway import tools as registry
from stockade.gateway.policy import Budgets, TenantPolicy
from stockade.gateway.tenants import Tenants
from stockade.port import ExpressionSource, Outcome, PythonSource, Tier, TrustLevel
from stockade.port.fake import Call, FakeEnvironment, Scripted

from .conftest import Answer, Gateway, OpenGateway

BODY: dict[str, Any] = {
    "description": "Adds VAT.",
    "language": "python",
    "source": "def main(input):\n    return {'gross': input['net'] * 2}\n",
    "input_schema": {
        "type": "object",
        "properties": {"net": {"type": "number"}},
        "required": ["net"],
        "additionalProperties": False,
    },
    "output_schema": {"type": "object", "properties": {"gross": {"type": "number"}}},
    "examples": [{"input": {"net": 1}, "output": {"gross": 2}}],
}
VERSIONS = "/v1/tools/vat/versions"
CALL = "/v1/tools/vat/call"


def is_check(call: Call) -> bool:
    program = call.request.program
    assert isinstance(program, PythonSource)
    return b"Looks at Python source" in bytes(program.source)[:100]  # type: ignore[arg-type]


async def doubling(call: Call) -> Scripted:
    """Plays the check of a source, and the tool."""
    said = b"".join([piece async for piece in call.stdin])
    if is_check(call):
        return Scripted(result=b'{"findings": []}')
    output = {"gross": json.loads(said)["net"] * 2}
    return Scripted(result=json.dumps({"output": output}).encode())


async def stored(gateway: Gateway, path: str = VERSIONS, **changes: Any) -> Answer:
    body = io.BytesIO(json.dumps({**BODY, **changes}).encode())
    headers = {"Content-Type": "application/json"}
    return await gateway.ask("POST", path, data=body, headers=headers)


async def test_a_tool_is_stored_listed_called_and_removed(open_fake: OpenGateway) -> None:
    async with open_fake(doubling) as gateway:
        made = await stored(gateway)
        assert made.status == 201, made.body
        told = made.json
        assert (told["version"], told["live"], told["tested"]) == (1, True, 1)
        assert told["chosen_tier"] == "namespace"
        assert "lightest tier for untested python" in told["reason"]
        assert told["definition"]["source"] == BODY["source"]
        called = await gateway.ask("POST", CALL, {"input": {"net": 21}})
        assert called.status == 200, called.body
        assert called.json["output"] == {"gross": 42}
        assert called.json["version"] == 1
        assert "lightest" in called.json["reason"]
        # It is an execution like any other.
        record = await gateway.ask("GET", f"/v1/executions/{called.json['execution']}")
        assert record.json["record"]["outcome"] == "ok"
        logs = await gateway.ask("GET", "/v1/executions?tool=vat")
        assert [each["purpose"] for each in logs.json["executions"]] == ["call", "example", "check"]
        assert (await gateway.ask("GET", "/v1/executions?tool=other")).json["executions"] == []
        (day,) = (await gateway.ask("GET", "/v1/usage")).json["days"]
        assert day["executions"] == 3
        listed = (await gateway.ask("GET", "/v1/tools")).json["tools"]
        assert [(each["name"], each["input_schema"]) for each in listed] == [
            ("vat", BODY["input_schema"])
        ]
        assert (await gateway.ask("DELETE", "/v1/tools/vat")).status == 204
        assert (await gateway.ask("POST", CALL, {"input": {"net": 1}})).status == 404
        assert (await gateway.ask("GET", "/v1/tools/vat")).status == 404
        trail = (await gateway.ask("GET", "/v1/audit")).json["records"]
        actions = [each["action"] for each in trail]
        assert {"tool.stored", "tool.removed"} <= set(actions)
        of_call = [
            each for each in trail
            if each["action"] == "execution.begun" and each["facts"]["tool"]["purpose"] == "call"
        ]  # fmt: skip
        assert of_call[0]["facts"]["tool"]["version"] == 1
        assert "lightest" in of_call[0]["facts"]["tool"]["reason"]


async def test_each_version_is_another_and_an_earlier_one_can_be_called_again(
    open_fake: OpenGateway,
) -> None:
    async with open_fake(doubling) as gateway:
        first = await stored(gateway)
        second = await stored(gateway, description="Another.")
        assert (first.json["version"], second.json["version"]) == (1, 2)
        assert first.json["digest"] != second.json["digest"]
        versions = (await gateway.ask("GET", VERSIONS)).json["versions"]
        assert [(each["version"], each["live"]) for each in versions] == [(2, True), (1, False)]
        named = await gateway.ask("POST", CALL, {"input": {"net": 1}, "version": 1})
        assert named.json["version"] == 1
        assert (await gateway.ask("POST", CALL, {"input": {"net": 1}})).json["version"] == 2
        assert (await gateway.ask("POST", "/v1/tools/vat/live", {"version": 1})).status == 204
        assert (await gateway.ask("POST", CALL, {"input": {"net": 1}})).json["version"] == 1
        old = await gateway.ask("GET", "/v1/tools/vat?version=2")
        assert old.json["definition"]["description"] == "Another."
        for number in (3, 2**31 - 1):
            gone = await gateway.ask("POST", "/v1/tools/vat/live", {"version": number})
            assert gone.status == 404
        # The next is a third, whatever was rolled back.
        assert (await stored(gateway)).json["version"] == 3


async def test_what_is_disabled_is_not_called(open_fake: OpenGateway) -> None:
    async with open_fake(doubling) as gateway:
        await stored(gateway)
        assert (await gateway.ask("POST", "/v1/tools/vat/disable")).status == 204
        refused = await gateway.ask("POST", CALL, {"input": {"net": 1}})
        assert refused.code == "conflict"
        assert "disabled" in refused.json["detail"]
        assert (await gateway.ask("GET", "/v1/tools/vat")).json["disabled"] is True
        assert (await gateway.ask("POST", "/v1/tools/vat/enable")).status == 204
        assert (await gateway.ask("POST", CALL, {"input": {"net": 1}})).status == 200


NOTHING_STORED: list[tuple[dict[str, Any], str, str]] = [
    ({"source": "x" * 10_000_000}, "source", "exceed"),
    ({"source": "def main("}, "source", "line 1"),
    ({"input_schema": {"type": "string"}}, "input_schema", "object"),
    ({"output_schema": {"$ref": "https://example.com/s"}}, "output_schema/$ref", "nothing is fetched"),
    ({"output_schema": {"properties": {"a": {"type": "strin"}}}},
     "output_schema/properties/a/type", "strin"),
    ({"output_schema": {"pattern": "(?=a)"}}, "output_schema/pattern", "regex"),
    ({"examples": [{"input": {}, "output": {}}]}, "examples/0/input", "required"),
    ({"examples": [{"input": {"net": 1}, "output": {"gross": "2"}}]},
     "examples/0/output/gross", "number"),
    ({"examples": [{"input": {"net": 1}, "output": {"gross": 3}}]}, "examples/0", "expected"),
    ({"tier": "expression"}, "tier", "does not run python"),
    ({"tier": "namespace", "trust": "hostile"}, "tier", "too weak"),
    ({"limits": {"wall_seconds": 1e9}}, "limits.wall_seconds", "outside"),
    ({"egress": ["nonsense//"]}, "egress", "is not"),
    ({"credentials": ["nobodys"]}, "", ""),
    ({"unknown": 1}, "unknown", "not permitted"),
]  # fmt: skip


async def test_what_is_refused_names_its_place_and_leaves_nothing(open_fake: OpenGateway) -> None:
    async def play(call: Call) -> Scripted:
        if is_check(call):
            source = b"".join([piece async for piece in call.stdin])
            if source.endswith(b"def main("):
                finding = {"line": 1, "column": 10, "rule": "syntax", "sentence": "never closed",
                           "suggestion": ""}  # fmt: skip
                return Scripted(result=json.dumps({"findings": [finding]}).encode())
            return Scripted(result=b'{"findings": []}')
        return Scripted(result=b'{"output":{"gross":2}}')

    async with open_fake(play) as gateway:
        for changes, field, words in NOTHING_STORED:
            refused = await stored(gateway, **changes)
            assert refused.status in (403, 413, 422, 503), (changes, refused.body)
            if field:
                assert refused.json["errors"][0]["field"] == field, (changes, refused.json)
            assert words in refused.json["detail"], (changes, refused.json)
        assert (await gateway.ask("GET", "/v1/tools")).json["tools"] == []
        assert (await gateway.ask("GET", VERSIONS)).status == 404


TWO_MEANINGS = (
    '{"input": {"net": 1, "net": 2}}',
    '{"input": {"net": 1}, "input": {"net": 2}}',
    '{"input": {"net": 1e999}}',
    '{"input": {"net": ' + "9" * 200 + "}}",
    '{"input": ' + "[" * 200 + "]" * 200 + "}",
    '{"input": {"net": "\\ud800"}}',
    '{"input": {"net": NaN}}',
)


async def test_an_input_that_has_two_meanings_is_refused(open_fake: OpenGateway) -> None:
    async with open_fake(doubling) as gateway:
        await stored(gateway)
        for text in TWO_MEANINGS:
            refused = await gateway.ask(
                "POST", CALL, data=text, headers={"Content-Type": "application/json"}
            )
            assert refused.code in ("invalid_request", "too_large"), refused.body
        assert len(gateway.environment.calls) == 2


async def test_an_input_that_is_not_of_the_schema_runs_nothing(open_fake: OpenGateway) -> None:
    async with open_fake(doubling) as gateway:
        await stored(gateway)
        for value, field in (
            ({}, "input"),
            ({"net": "1"}, "input/net"),
            ({"net": 1, "more": 2}, "input"),
            (None, "input"),
            ([], "input"),
        ):
            refused = await gateway.ask("POST", CALL, {"input": value})
            assert refused.code == "invalid_request", refused.body
            assert refused.json["errors"][0]["field"] == field, refused.json
        assert len(gateway.environment.calls) == 2


NO_OUTPUT: list[tuple[bytes | None, Outcome | None, str, str]] = [
    (None, None, "no_result", "without an output"),
    (b'{"output":null}', None, "output_schema", "returned nothing"),
    (b'{"output":{"gross":"x"}}', None, "output_schema", '"x" is not of type "number"'),
    (b'{"output":NaN}', None, "not_json", "NaN"),
    (b'{"output":1}{"output":2}', None, "two_results", "more than one"),
    (b'{"error":{"kind":"raised","message":"KeyError: 1","place":"line 2"}}',
     Outcome.NONZERO_EXIT, "raised", "KeyError"),
    (b'{"output":{"gross":1}}', Outcome.MEMORY, "outcome", "memory"),
    (b'{"output":{"gross":1}}', Outcome.LOST, "outcome", "lost"),
]  # fmt: skip


async def test_a_tool_that_gives_no_output_says_why(open_fake: OpenGateway) -> None:
    ending: list[tuple[bytes | None, Outcome | None]] = [(None, None)]

    async def play(call: Call) -> Scripted:
        if is_check(call) or b'{"net":7}' not in [piece async for piece in call.stdin]:
            return Scripted(
                result=b'{"findings": []}' if is_check(call) else b'{"output":{"gross":2}}'
            )
        return Scripted(result=ending[0][0], outcome=ending[0][1])

    async with open_fake(play) as gateway:
        assert (await stored(gateway)).status == 201
        for result, outcome, reason, words in NO_OUTPUT:
            ending[0] = (result, outcome)
            failed = await gateway.ask("POST", CALL, {"input": {"net": 7}})
            assert failed.code == "tool_failed", failed.body
            assert failed.json["reason"] == reason
            assert words in failed.json["detail"]
            record = await gateway.ask("GET", f"/v1/executions/{failed.json['execution']}")
            assert record.status == 200
        assert (await gateway.ask("POST", "/v1/tools/vat/test", {})).json["passed"] is True


@pytest.mark.parametrize("where", ["check", "example"])
async def test_a_sandbox_that_is_lost_is_no_fault_of_what_is_stored(
    open_fake: OpenGateway, where: str
) -> None:
    """Of an executor that is killed meanwhile: whoever stores it tries again."""

    async def play(call: Call) -> Scripted:
        if is_check(call) is (where == "check"):
            return Scripted(outcome=Outcome.LOST)
        return await doubling(call)

    async with open_fake(play) as gateway:
        lost = await stored(gateway)
        assert lost.code == "sandbox_lost", lost.body
        assert (await gateway.ask("GET", "/v1/tools/vat")).status == 404


async def test_a_failing_example_is_told_by_a_test(open_fake: OpenGateway) -> None:
    broken = False

    async def play(call: Call) -> Scripted:
        return Scripted(result=b'{"output":{}}') if broken else await doubling(call)

    async with open_fake(play) as gateway:
        await stored(gateway)
        broken = True
        (tried,) = (await gateway.ask("POST", "/v1/tools/vat/test", {})).json["examples"]
        assert tried["failure"] == 'it gave {}, and {"gross":2} was expected'
        assert tried["execution"]


async def test_the_same_call_with_the_same_key_runs_once(open_fake: OpenGateway) -> None:
    async with open_fake(doubling) as gateway:
        await stored(gateway)
        key = {"Idempotency-Key": "k"}
        first = await gateway.ask("POST", CALL, {"input": {"net": 4}}, headers=key)
        await stored(gateway, description="Another.")
        before = len(gateway.environment.calls)
        again = await gateway.ask("POST", CALL, {"input": {"net": 4}}, headers=key)
        assert again.json == first.json
        assert len(gateway.environment.calls) == before
        other = await gateway.ask("POST", CALL, {"input": {"net": 5}}, headers=key)
        assert other.code == "idempotency_conflict"


async def test_a_call_has_what_the_version_says_and_nothing_of_the_callers(
    open_fake: OpenGateway,
) -> None:
    async with open_fake(doubling) as gateway:
        Tenants(gateway.services.database).set(
            "alice", policy=TenantPolicy(tiers=tuple(Tier), egress=("https://api.test:443",))
        )
        made = await stored(
            gateway, egress=["https://api.test:443"], limits={"wall_seconds": 5}, trust="hostile"
        )
        assert made.json["chosen_tier"] == "gvisor"
        await gateway.ask("POST", CALL, {"input": {"net": 1}})
        sandbox = gateway.environment.calls[-1].sandbox
        assert [str(rule) for rule in sandbox.egress.rules] == ["https://api.test:443"]
        assert sandbox.limits.wall_seconds == 5
        assert (sandbox.tier, sandbox.trust) == (Tier.GVISOR, TrustLevel.HOSTILE)
        # A check reaches nothing, whatever the tool may.
        check = next(call for call in gateway.environment.calls if is_check(call))
        assert not check.sandbox.egress.rules


async def test_a_policy_is_held_when_it_is_stored_and_when_it_is_called(
    open_fake: OpenGateway,
) -> None:
    async with open_fake(doubling, key_cache_seconds=0) as gateway:
        tenants = Tenants(gateway.services.database)
        refused = await stored(gateway, egress=["https://api.test:443"])
        assert refused.code == "forbidden"
        tenants.set("alice", policy=TenantPolicy(tiers=tuple(Tier), egress=("https://api.test",)))
        assert (await stored(gateway, egress=["https://api.test:443"])).status == 201
        tenants.set("alice", policy=TenantPolicy(tiers=tuple(Tier)))
        before = len(gateway.environment.calls)
        assert (await gateway.ask("POST", CALL, {"input": {"net": 1}})).code == "forbidden"
        assert len(gateway.environment.calls) == before


async def test_a_tier_that_cannot_be_started_is_passed_over_and_said(
    open_fake: OpenGateway,
) -> None:
    environment = FakeEnvironment(doubling, tiers=[Tier.GVISOR, Tier.MICROVM])
    async with open_fake(environment=environment) as gateway:
        made = await stored(gateway)
        assert made.json["chosen_tier"] == "gvisor", made.body
        assert "namespace (cannot be started" in made.json["reason"]


async def test_nothing_that_can_be_started_stores_nothing(open_fake: OpenGateway) -> None:
    async with open_fake(environment=FakeEnvironment(doubling, tiers=[])) as gateway:
        assert (await stored(gateway)).status == 503
        assert (await gateway.ask("GET", "/v1/tools")).json["tools"] == []


async def test_the_budget_counts_calls_of_tools(open_fake: OpenGateway) -> None:
    async with open_fake(doubling, budgets=Budgets(executions_per_minute=3)) as gateway:
        assert (await stored(gateway)).status == 201
        assert (await gateway.ask("POST", CALL, {"input": {"net": 1}})).status == 200
        assert (await gateway.ask("POST", CALL, {"input": {"net": 1}})).code == "budget_exhausted"


async def test_who_leaves_ends_what_runs_and_stores_nothing(open_fake: OpenGateway) -> None:
    begun = asyncio.Event()

    async def play(call: Call) -> Scripted:
        begun.set()
        await asyncio.Event().wait()
        return Scripted()

    async with open_fake(play) as gateway:
        storing = asyncio.create_task(stored(gateway))
        await begun.wait()
        storing.cancel()
        await asyncio.wait([storing])
        while len(gateway.services.calls):
            await asyncio.sleep(0.01)
        (entry,) = (await gateway.ask("GET", "/v1/executions")).json["executions"]
        assert entry["outcome"] == "cancelled"
        assert (await gateway.ask("GET", "/v1/tools")).json["tools"] == []


async def test_an_expression_needs_no_check_and_no_sandbox(open_fake: OpenGateway) -> None:
    async with open_fake(lambda _: Scripted(result=b'{"gross":2}')) as gateway:
        made = await stored(gateway, language="expression", source="{'gross': input.net * 2}")
        assert made.status == 201, made.body
        assert made.json["chosen_tier"] == "expression"
        called = await gateway.ask("POST", CALL, {"input": {"net": 1}})
        assert called.json["output"] == {"gross": 2}
        kinds = [type(call.request.program) for call in gateway.environment.calls]
        assert kinds == [ExpressionSource, ExpressionSource]


async def test_a_tool_is_its_tenants_own(open_fake: OpenGateway) -> None:
    async with open_fake(doubling) as gateway:
        await stored(gateway)
        for method, path, body in (
            ("GET", "/v1/tools/vat", None),
            ("GET", VERSIONS, None),
            ("POST", CALL, {"input": {"net": 1}}),
            ("POST", "/v1/tools/vat/test", {}),
            ("POST", "/v1/tools/vat/live", {"version": 1}),
            ("POST", "/v1/tools/vat/disable", None),
            ("DELETE", "/v1/tools/vat", None),
        ):
            answer = await gateway.ask(method, path, body, key="bob")
            assert answer.status == 404, (path, answer.body)
        bobs = await gateway.ask("POST", VERSIONS, BODY, key="bob")
        assert bobs.json["version"] == 1
        assert (await gateway.ask("DELETE", "/v1/tools/vat", key="bob")).status == 204
        assert (await gateway.ask("POST", CALL, {"input": {"net": 1}})).status == 200


async def test_how_many_are_kept_is_bounded(
    open_fake: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MOST_TOOLS", 1)
    monkeypatch.setattr(registry, "MOST_VERSIONS", 2)
    async with open_fake(doubling) as gateway:
        await stored(gateway)
        full = await stored(gateway, "/v1/tools/other/versions")
        assert full.code == "budget_exhausted"
        for _ in range(2):
            await stored(gateway)
        versions = (await gateway.ask("GET", VERSIONS)).json["versions"]
        assert [each["version"] for each in versions] == [3, 2]


async def test_listings_of_large_ones_are_bounded_in_bytes(
    open_fake: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MOST_BYTES_OF_VERSIONS", 250_000)
    monkeypatch.setattr(registry, "MOST_BYTES_OF_PAGE", 250_000)
    source = BODY["source"] + "#" * 100_000
    async with open_fake(doubling) as gateway:
        for _ in range(4):
            assert (await stored(gateway, source=source)).status == 201
        versions = (await gateway.ask("GET", VERSIONS)).json["versions"]
        assert [each["version"] for each in versions] == [4, 3]
        for name in "abc":
            await stored(gateway, f"/v1/tools/{name}/versions", source=source)
        # One that is larger than all that is kept together is kept, and told.
        await stored(gateway, "/v1/tools/d/versions", source=BODY["source"] + "#" * 300_000)
        pages: list[list[str]] = []
        cursor = ""
        while not pages or cursor:
            page = (await gateway.ask("GET", f"/v1/tools?limit=3{cursor}")).json
            pages.append([each["name"] for each in page["tools"]])
            cursor = f"&cursor={page['next']}" if page["next"] else ""
        assert pages == [["d"], ["c", "b"], ["a", "vat"]]


async def test_two_that_are_stored_at_once_are_two_versions(open_fake: OpenGateway) -> None:
    async with open_fake(doubling) as gateway:
        made = await asyncio.gather(*(stored(gateway) for _ in range(4)))
        assert sorted(each.json["version"] for each in made) == [1, 2, 3, 4]
        versions = (await gateway.ask("GET", VERSIONS)).json["versions"]
        assert [each["live"] for each in versions] == [True, False, False, False]


async def test_the_tenants_own_rules_for_sources_reach_the_check(open_fake: OpenGateway) -> None:
    said: list[bytes] = []

    async def play(call: Call) -> Scripted:
        if is_check(call):
            said.append(b"".join([piece async for piece in call.stdin]))
            return Scripted(result=b'{"findings": []}')
        return await doubling(call)

    async with open_fake(play) as gateway:
        Tenants(gateway.services.database).set(
            "alice", policy=TenantPolicy(tiers=tuple(Tier), python_checks={"imports": ["math"]})
        )
        await stored(gateway)
        policy = json.loads(said[0].partition(b"\n")[0])
        assert policy == {"function": "main", "imports": ["math"], "names": ["input"]}
