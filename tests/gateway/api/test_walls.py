"""Tenant walls, as attacks: over every path of the OpenAPI document, so that a new one is covered.

Each operation is tried with ids of another tenant's things, guessed ones and mangled ones, and has to
answer exactly as it does for an id that never was.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from stockade.gateway.api.app import create_api
from stockade.port.fake import Scripted

from .conftest import Answer, Gateway, OpenGateway
from .test_executions import JOB, PROGRAM

BODIES: dict[str, Any] = {
    "signal": {"number": 15},
    "resize": {"rows": 1, "columns": 1},
    "lease": {"seconds": 10},
    "executions": PROGRAM,
    "live": {"version": 1},
    "test": {},
    "call": {"input": {}},
}
TOOL = {
    "language": "expression",
    "source": "'of alice'",
    "input_schema": {"type": "object"},
    "output_schema": True,
}
# What another tenant may find out by asking for itself; each is tested to hold nothing of Alice's.
LISTS = {
    "/v1/executions",
    "/v1/sandboxes",
    "/v1/artefacts",
    "/v1/workspaces",
    "/v1/usage",
    "/v1/audit",
    "/v1/tools",
}


BROKERS = {"/v1/credentials", "/v1/credential-uses"}
"""Lists that the broker has, and this gateway has none: tests/broker tries them."""
CREDENTIAL = {
    "secret": "a-secret-of-a-tool-20",
    "grants": [{"rule": "https://api.example.com:443", "way": {"kind": "bearer"}}],
}


def operations(gateway: Gateway) -> Iterator[tuple[str, str]]:
    """Method and path of each."""
    document = create_api(gateway.services).openapi()
    for path, methods in document["paths"].items():
        for method in methods:
            yield method.upper(), path


async def furnished(gateway: Gateway) -> dict[str, str]:
    """A thing of each kind that is Alice's, by the name of its place in a path."""
    kept = await gateway.ask(
        "POST",
        "/v1/executions",
        {**PROGRAM, "artefacts": ["a"]},
        headers={"Idempotency-Key": "alices"},
    )
    await gateway.ask("POST", "/v1/executions", PROGRAM, headers=JOB)
    opened = await gateway.ask("POST", "/v1/sandboxes", {"workspace": "alices-notes"})
    path = opened.headers["Location"]
    await gateway.ask("PUT", path + "/files/alices", data=b"secret of alice")
    await gateway.ask("DELETE", path)
    opened = await gateway.ask("POST", "/v1/sandboxes", {"workspace": "alices-notes"})
    tool = await gateway.ask("POST", "/v1/tools/alices-notes/versions", TOOL)
    assert tool.status == 201, tool.body
    (artefact,) = kept.json["record"]["artefacts"]
    return {
        "execution": kept.json["id"],
        "sandbox": opened.json["id"],
        "digest": artefact["digest"],
        "name": "alices-notes",
    }


def filled(path: str, things: dict[str, str]) -> str:
    """A path with ids in it."""
    kind = "sandbox" if "/sandboxes/" in path else "execution"
    return (
        path.replace("{id}", things[kind])
        .replace("{digest}", things["digest"])
        .replace("{name}", things["name"])
        .replace("{path}", "alices")
    )


async def tried(gateway: Gateway, method: str, path: str, key: str | None) -> Answer:
    """One request, with a body that would do."""
    body = BODIES.get(path.rpartition("/")[2]) if method == "POST" else None
    if method == "PUT" and path.startswith("/v1/credentials/"):
        return await gateway.ask(method, path, CREDENTIAL, key=key)
    data = b"x" if method == "PUT" else None
    return await gateway.ask(method, path, body, key=key, data=data)


def told(answer: Answer) -> Any:
    """What an attacker could tell two answers apart by."""
    body = answer.json if answer.body else None
    if isinstance(body, dict):
        body.pop("request_id", None)
    names = {name for name in answer.headers if name != "X-Request-Id"}
    return answer.status, body, names


async def test_anothers_things_are_as_those_that_never_were(open_fake: OpenGateway) -> None:
    """Byte for byte, by every operation."""
    async with open_fake(
        lambda _: Scripted(stdout=b"of alice", artefacts={"a": b"of alice"}, delay=0.0)
    ) as gateway:
        alices = await furnished(gateway)
        never = {
            "execution": "e" + "0" * 32,
            "sandbox": "s" + "0" * 32,
            "digest": "sha256:" + "0" * 64,
            "name": "never-was",
        }
        tried_paths = set()
        for method, path in operations(gateway):
            if "{" not in path:
                continue
            tried_paths.add(path)
            mine = await tried(gateway, method, filled(path, alices), "bob")
            nothing = await tried(gateway, method, filled(path, never), "bob")
            # A credential's name is each tenant's own: nothing that is asked for, but made or kept.
            expected = {403, 503} if path.startswith("/v1/credentials/") else {404}
            if (method, path) == ("POST", "/v1/tools/{name}/versions"):
                expected = {422}  # likewise; and there is no body here
            assert nothing.status in expected, (method, path, nothing.body)
            assert told(mine) == told(nothing), (method, path)
            assert b"alice" not in mine.body
        assert len(tried_paths) >= 15
        # Nothing of it was touched.
        for thing in (
            f"/v1/sandboxes/{alices['sandbox']}",
            f"/v1/artefacts/{quote(alices['digest'])}",
            f"/v1/executions/{alices['execution']}",
            f"/v1/tools/{alices['name']}",
        ):
            assert (await gateway.ask("GET", thing)).status == 200, thing


async def test_lists_hold_nothing_of_anothers(open_fake: OpenGateway) -> None:
    """Neither by asking nor with a cursor that was another's."""
    async with open_fake(lambda _: Scripted(artefacts={"a": b"of alice"})) as gateway:
        alices = await furnished(gateway)
        for number in range(3):
            await gateway.ask("POST", "/v1/executions", PROGRAM)
            del number
        paths = {
            path for method, path in operations(gateway) if method == "GET" and "{" not in path
        }
        assert {path for path in paths if path.startswith("/v1/")} == LISTS | BROKERS
        cursors = []
        for path in sorted(LISTS):
            answer = await gateway.ask("GET", path, key="bob")
            assert answer.status == 200
            for thing in alices.values():
                assert thing.encode() not in answer.body
            assert b"alice" not in answer.body
            if path not in ("/v1/sandboxes", "/v1/usage"):
                page = await gateway.ask("GET", path + "?limit=1")
                cursors.append((path, page.json.get("next")))
        assert sum(cursor is not None for _, cursor in cursors) >= 2
        for path, cursor in cursors:
            if cursor is None:
                continue
            answer = await gateway.ask("GET", f"{path}?cursor={quote(cursor)}", key="bob")
            if answer.status == 200:
                assert not any(answer.json[name] for name in answer.json if name != "next")
            else:
                assert answer.code == "invalid_request"


async def test_a_replayed_idempotency_key_is_not_anothers(open_fake: OpenGateway) -> None:
    """Bob's request with Alice's key and body is Bob's own."""
    async with open_fake(lambda call: Scripted(stdout=call.sandbox.tenant.encode())) as gateway:
        key = {"Idempotency-Key": "shared"}
        alices = await gateway.ask("POST", "/v1/executions", PROGRAM, headers=key)
        bobs = await gateway.ask("POST", "/v1/executions", PROGRAM, key="bob", headers=key)
        assert alices.json["record"]["stdout"]["head"] == "alice"
        assert bobs.json["record"]["stdout"]["head"] == "bob"


async def test_without_a_key_there_is_nothing(open_fake: OpenGateway) -> None:
    """Every operation, the same answer, whatever the path is."""
    async with open_fake() as gateway:
        forged = "stockade_000000000000_" + "0" * 38
        upper = gateway.keys["alice"].upper()
        for key in (None, "", "x", forged, upper, gateway.keys["alice"][:-1], "a" * 5000):
            answers = set()
            for method, path in [*operations(gateway), ("GET", "/v1/"), ("GET", "/v1/no/such")]:
                if not path.startswith("/v1/"):
                    continue
                spelled = re.sub(r"\{[^}]*\}", "x", path)
                headers = {} if key is None else {"Authorization": f"Bearer {key}"}
                answer = await gateway.ask(method, spelled, key=None, headers=headers)
                assert answer.status == 401, (method, path)
                assert answer.headers["WWW-Authenticate"] == 'Bearer realm="stockade"'
                answers.add(json.dumps(told(answer)[:2]))
            assert len(answers) == 1


async def test_a_key_does_only_what_its_scopes_say(open_fake: OpenGateway) -> None:
    """One that may read may do nothing else, to things that are there and to others alike."""
    async with open_fake(lambda _: Scripted(artefacts={"a": b"1"})) as gateway:
        alices = await furnished(gateway)
        allowed = {
            "/v1/executions",
            "/v1/executions/{id}",
            "/v1/executions/{id}/events",
            "/v1/usage",
            "/v1/tools",
            "/v1/tools/{name}",
            "/v1/tools/{name}/versions",
        }
        for method, path in operations(gateway):
            if not path.startswith("/v1/"):
                continue
            answer = await tried(gateway, method, filled(path, alices), "reader")
            expected = 200 if method == "GET" and path in allowed else 403
            if answer.status == 422:
                continue  # its body is judged together with its key; nothing was done
            assert answer.status == expected, (method, path, answer.body)


MANGLED = (
    "..", "%2e%2e", "x%2f..%2fy", "%00", "%0d%0aX-Injected:1", "a" * 5000, "%ff", "*", "'--",
    "$(x)", "%E2%80%AE", "..%5c", "0", "-", "null",
)  # fmt: skip


async def test_mangled_ids_never_were(open_fake: OpenGateway) -> None:
    """No path is left, no header made, nothing opened."""
    async with open_fake() as gateway:
        for mangled in MANGLED:
            for method, path in operations(gateway):
                if "{" not in path:
                    continue
                spelled = path.replace("{id}", mangled).replace("{digest}", mangled)
                spelled = spelled.replace("{name}", mangled)
                answer = await tried(gateway, method, spelled.replace("{path}", "x"), "alice")
                expected = {404, 405, 431}
                if "/credentials/" in path:
                    expected |= {403, 422, 503}  # no name of one, or one without a broker
                if (method, path) == ("POST", "/v1/tools/{name}/versions"):
                    expected |= {422}
                assert answer.status in expected, (method, spelled, answer.body)
                assert "X-Injected" not in answer.headers
        assert gateway.environment.calls == []


async def test_the_audit_says_who_did_what(open_fake: OpenGateway) -> None:
    """Begun and ended, of this tenant; what was run by its digest, not its source."""
    async with open_fake([Scripted()]) as gateway:
        done = await gateway.ask("POST", "/v1/executions", PROGRAM)
        await gateway.ask("GET", "/v1/audit", key="reader")
        await asyncio.sleep(0.1)
        records = (await gateway.ask("GET", "/v1/audit")).json["records"]
        actions = [record["action"] for record in records]
        assert actions[:3] == ["request.refused", "execution.ended", "execution.begun"]
        begun = records[2]
        assert begun["subject"] == done.json["id"]
        assert begun["facts"]["source_digest"].startswith("sha256:")
        assert "print" not in json.dumps(records)
        ended = (await gateway.ask("GET", f"/v1/audit?subject={done.json['id']}")).json["records"]
        assert len(ended) == 2
