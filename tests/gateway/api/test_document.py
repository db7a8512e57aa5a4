"""The OpenAPI document is complete and true: a person reads it, strangers' programs believe it."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import trustme
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.broker.brokered import gateways_broker, open_brokered

from stockade.api.problems import STATUS
from stockade.gateway.api.app import create_api

from .conftest import OpenGateway

_LEFT_OUT = ("/events",)  # streams, which last as long as what is watched


async def test_every_path_of_the_page_is_in_the_document(open_fake: OpenGateway) -> None:
    """docs/api.md and the document say the same of the gateway."""
    page = (Path(__file__).parents[3] / "docs/api.md").read_text()
    promised = set()
    for cell, of in re.findall(r"^\| (`.*?) \|[^|]*\| (\w+) \|$", page, re.MULTILINE):
        if of == "executor":
            continue
        methods: list[str] = []
        for word in re.findall(r"`([^`]+)`", cell):
            parts = word.split()
            if parts[0] == "WS" or word == "WS":
                methods = []
                continue
            verbs = [part for part in parts if part.isupper()]
            methods = verbs or methods
            path = next((part for part in parts if part.startswith("/")), None)
            if path is None:
                continue
            if path == "/resume":
                path = "/v1/sandboxes/{id}/resume"
            promised |= {(method, path) for method in methods or ["GET"]}
    async with open_fake() as gateway:
        document = create_api(gateway.services).openapi()
    there = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    # A cell like "`PUT`, `GET /path`" names its path once.
    for method, path in sorted(there):
        assert any(path == other for _, other in promised), (method, path)
    for method, path in sorted(promised):
        assert (method, path) in there, (method, path)


async def test_the_document_says_what_can_be_answered(open_fake: OpenGateway) -> None:
    """Every operation: a name, a summary, a key, problems with their schema, no stranger's URL."""
    async with open_fake() as gateway:
        answer = await gateway.ask("GET", "/openapi.json", key=None)
        document = answer.json
        page = await gateway.ask("GET", "/docs", key=None)
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    assert {"Problem", "RecordMessage", "ExecutionRequestMessage", "OutputMessage"} <= set(schemas)
    assert "HTTPValidationError" not in schemas
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["operationId"], path
            assert operation["summary"], path
            if not path.startswith("/v1/"):
                assert "security" not in operation
                continue
            assert operation["security"] == [{"key": []}]
            for status, response in operation["responses"].items():
                if status.startswith(("4", "5")) and status != "416":
                    assert list(response["content"]) == ["application/problem+json"], (method, path)
    references = set()

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            if "$ref" in part:
                references.add(part["$ref"].rpartition("/")[2])
            for inner in part.values():
                walk(inner)
        elif isinstance(part, list):
            for inner in part:
                walk(inner)

    walk(document)
    assert references <= set(schemas)
    assert set(schemas["Problem"]["properties"]) >= {"code", "detail", "retry_after", "request_id"}
    assert set(schemas["Code"]["enum"]) == {code.value for code in STATUS}
    # A person's page is whole by itself: no script, nothing from elsewhere.
    assert page.status == 200
    text = page.body.decode()
    assert "/v1/executions/{id}/stdin" in text
    assert "<script" not in text
    assert "http://" not in text
    assert "https://" not in text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


# Schemathesis's own generator, of which Hypothesis disapproves.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
async def test_what_schemathesis_finds(
    open_fake: OpenGateway, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Requests by the document and against it: no fault, no answer that is not in the document."""
    folder = tmp_path_factory.mktemp("b")
    async with (
        open_brokered(folder, trustme.CA()),
        open_fake(broker=gateways_broker(folder)) as gateway,
    ):
        key = gateway.headers()
        document = (await gateway.ask("GET", "/openapi.json")).json
        opened = await gateway.ask("POST", "/v1/sandboxes", {"lease_seconds": 600})
        done = await gateway.ask(
            "POST", "/v1/executions", {"program": {"kind": "python", "source": "1"}}
        )
        ids = {"sandboxes": opened.json["id"], "executions": done.json["id"]}
        url = gateway.url
        found = await asyncio.to_thread(_fuzz, document, url, key, ids)
        assert found == []
        assert [line for line in gateway.lines if line["event"] == "fault"] == []
        assert (await gateway.ask("GET", "/readyz")).status == 200


def _fuzz(document: Any, url: str, key: dict[str, str], ids: dict[str, str]) -> list[str]:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    failures: list[str] = []
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]
        if operation.path.endswith(_LEFT_OUT):
            continue
        for mode in schemathesis.GenerationMode:
            try:
                _tried(operation, mode, key, ids, failures)
            except Unsatisfiable:
                continue  # there is nothing that would contradict it
    return failures


def _tried(
    operation: Any,
    mode: schemathesis.GenerationMode,
    key: dict[str, str],
    ids: dict[str, str],
    failures: list[str],
) -> None:
    kind = operation.path.split("/")[2] if operation.path.startswith("/v1/") else ""

    @settings(
        max_examples=6,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def one(case: Any) -> None:
        # Half of them meet something that is there.
        if kind in ids and "id" in case.path_parameters and len(str(case.body)) % 2:
            case.path_parameters["id"] = ids[kind]
        try:
            case.call_and_validate(
                headers=key,
                timeout=20,
                checks=[
                    not_a_server_error,
                    status_code_conformance,
                    content_type_conformance,
                    response_schema_conformance,
                ],
            )
        except (AssertionError, Failure, FailureGroup) as error:
            told = getattr(error, "exceptions", [error])
            failures.extend(f"{case.method} {case.formatted_path}: {one!s}"[:1000] for one in told)

    one()


@pytest.mark.timeout(180)
async def test_a_client_that_is_generated_makes_a_call(
    open_fake: OpenGateway, tmp_path: Path
) -> None:
    """From the document alone."""
    async with open_fake() as gateway:
        answer = await gateway.ask("GET", "/openapi.json")
        (tmp_path / "openapi.json").write_bytes(answer.body)
        made = await asyncio.to_thread(
            subprocess.run,
            [
                str(Path(sys.executable).parent / "openapi-python-client"),
                "generate", "--path", str(tmp_path / "openapi.json"), "--meta", "none",
                "--output-path", str(tmp_path / "generated_client"), "--fail-on-warning",
            ],
            check=False, capture_output=True, text=True, timeout=120,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr
        program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from generated_client import AuthenticatedClient
from generated_client.api.executions import run_program, list_executions
from generated_client.models import ExecutionRequestMessage, PythonSourceMessage
client = AuthenticatedClient(base_url={gateway.url!r}, token={gateway.keys["alice"]!r})
message = ExecutionRequestMessage(program=PythonSourceMessage(kind="python", source="1"))
done = run_program.sync(client=client, body=message)
assert done.state.value == "ended", done
assert done.record.outcome.value == "ok", done
assert len(list_executions.sync(client=client).executions) == 1
"""
        ran = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", program],
            check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
