"""The host's side: what a sandbox says of a source is bounded, typed, and not believed."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from stockade.executor.local import open_local
from stockade.port import (
    NO_EGRESS,
    PROFILES,
    EgressPolicy,
    ExecutionEnvironment,
    InvalidRequest,
    Limits,
    Outcome,
    SandboxLost,
    SandboxRequest,
    Tier,
    TrustLevel,
)
from stockade.port.fake import FakeEnvironment, Scripted
from stockade.tools.answers import Finding
from stockade.tools.checking import CHECK_LIMITS, LARGEST_SOURCE, check_python

GOOD = {"line": 3, "column": 5, "rule": "import", "sentence": "a", "suggestion": "b"}


def forged(result: bytes | None, outcome: Outcome = Outcome.OK) -> FakeEnvironment:
    return FakeEnvironment([Scripted(outcome=outcome, result=result)])


async def test_findings_are_read() -> None:
    fake = forged(json.dumps({"findings": [GOOD]}).encode())
    assert await check_python(fake, "x", {}) == [Finding(3, 5, "import", "a", "b")]


async def test_the_sandbox_is_the_tenants_and_reaches_nothing() -> None:
    fake = forged(b'{"findings": []}')
    asked = SandboxRequest(
        tenant="one",
        trust=TrustLevel.HOSTILE,
        egress=EgressPolicy(rules=PROFILES["python-packages"]),
        limits=Limits(wall_seconds=9999),
    )
    assert await check_python(fake, "é", {"function": "main"}, sandbox=asked) == []
    (call,) = fake.calls
    assert call.sandbox.tenant == "one"
    assert call.sandbox.trust is TrustLevel.HOSTILE
    assert call.sandbox.egress == NO_EGRESS
    assert call.sandbox.limits == CHECK_LIMITS


@pytest.mark.parametrize(
    "result",
    [
        None,
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"{" * 10_000,
        b"[" * 100_000,
        b'{"findings": [], "findings": []}',
        b'{"findings": {}}',
        b'{"findings": [], "policy": "x"}',
        b'{"findings": [1]}',
        b'{"findings": [{}]}',
        b'{"findings": NaN}',
        b"x" * 300_000,
        json.dumps({"findings": [GOOD] * 201}).encode(),
        *(
            json.dumps({"findings": [GOOD | wrong]}).encode()
            for wrong in (
                {"line": 0},
                {"line": -1},
                {"line": True},
                {"line": 1.0},
                {"line": "1"},
                {"line": 1 << 40},
                {"column": None},
                {"rule": "Import"},
                {"rule": ""},
                {"rule": "a\n"},
                {"rule": "x" * 41},
                {"rule": 1},
                {"sentence": "x" * 301},
                {"sentence": ["a"]},
                {"suggestion": None},
                {"more": 1},
            )
        ),
    ],
)
async def test_a_forged_answer_is_a_finding_and_never_none(result: bytes | None) -> None:
    (finding,) = await check_python(forged(result), "x = 1", {})
    assert finding.rule == "checker"
    assert finding.sentence.isprintable()
    assert len(finding.sentence) <= 300


async def test_what_is_shown_has_no_escapes() -> None:
    hostile = GOOD | {"sentence": "\x1b[2Jred\r\n\u202eevil", "suggestion": "\0"}
    (finding,) = await check_python(
        forged(json.dumps({"findings": [hostile]}).encode()), "x = 1", {}
    )
    assert finding.sentence.isprintable()
    assert finding.suggestion.isprintable()


@pytest.mark.parametrize(
    "outcome",
    [Outcome.MEMORY, Outcome.WALL_CLOCK, Outcome.SIGNAL, Outcome.NONZERO_EXIT, Outcome.OUTPUT],
)
async def test_a_checker_that_does_not_end_is_a_finding(outcome: Outcome) -> None:
    """An answer that it gave before counts for nothing."""
    fake = forged(b'{"findings": []}', outcome)
    (finding,) = await check_python(fake, "x = 1", {})
    assert finding.rule == "checker"
    assert str(outcome) in finding.sentence


async def test_a_lost_sandbox_is_no_fault_of_the_source() -> None:
    with pytest.raises(SandboxLost):
        await check_python(forged(None, Outcome.LOST), "x = 1", {})


async def test_a_source_that_is_too_large_needs_no_sandbox() -> None:
    fake = forged(b'{"findings": []}')
    (finding,) = await check_python(fake, b"x" * (LARGEST_SOURCE + 1), {})
    assert finding.rule == "checker"
    assert fake.calls == []


@pytest.mark.parametrize(
    "policy",
    [{"a": object()}, {"a": float("nan")}, {"a": "x" * 70_000}, {"imports": ["m" * 50] * 2000}],
)
async def test_a_policy_that_cannot_be_sent_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await check_python(forged(b"{}"), "x", policy)
    assert refusal.value.field == "policy"


async def test_a_policy_that_the_checker_refuses_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="no field"):
        await check_python(forged(b'{"policy": "x is no field"}'), "x", {})


# --- in a sandbox -------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environment() -> AsyncIterator[ExecutionEnvironment]:
    async with open_local(tiers={Tier.NAMESPACE}) as opened:
        yield opened


IN_A_SANDBOX = [pytest.mark.tier("namespace"), pytest.mark.asyncio(loop_scope="module")]


def in_a_sandbox(test: Any) -> Any:
    for mark in IN_A_SANDBOX:
        test = mark(test)
    return test


@in_a_sandbox
async def test_a_real_check(environment: ExecutionEnvironment) -> None:
    source = "import json\nimport os\n\ndef main(x):\n    return os.getcwd().__class__\n"
    findings = await check_python(environment, source, {"function": "main"})
    assert [(f.line, f.column, f.rule) for f in findings] == [(2, 1, "import"), (5, 12, "dunder")]
    assert findings[0].suggestion.startswith("allowed are: ")
    assert await check_python(environment, "def main(x): return x", {"function": "main"}) == []


@in_a_sandbox
@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("x = 1\0", "encoding"),
        ("'\ud800'", "encoding"),
        (b"\xff\xfe", "encoding"),
        ("-" * 200_000 + "1", "nesting"),
        ("x = 1\n" * 500_000, "size"),
        ("x" * (LARGEST_SOURCE + 1), "checker"),
    ],
)
async def test_a_source_that_cannot_be_looked_at(
    environment: ExecutionEnvironment, source: str | bytes, rule: str
) -> None:
    (finding,) = await check_python(environment, source, {})
    assert finding.rule == rule


@in_a_sandbox
async def test_a_checker_that_is_out_of_memory_is_a_finding(
    environment: ExecutionEnvironment,
) -> None:
    policy = {"source_bytes": 4 << 20, "nodes": 1_000_000}
    (finding,) = await check_python(environment, "x = [" + "1," * 2_000_000 + "]", policy)
    assert finding.rule in ("checker", "nesting")


@in_a_sandbox
async def test_a_wrong_policy_is_named(environment: ExecutionEnvironment) -> None:
    with pytest.raises(InvalidRequest, match="imports: not a list of texts"):
        await check_python(environment, "x = 1", {"imports": "json"})
