"""JavaScript tools in the wasm tier: what they answer, and how each failure is told."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from stockade.executor import PoolPolicy, open_local
from stockade.port import ExecutionEnvironment, SandboxRequest, Tier, ToolFailed
from stockade.tools import calling
from stockade.tools.definition import Language, Tool

from .kit import tool

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environment() -> AsyncIterator[ExecutionEnvironment]:
    async with open_local(pool=PoolPolicy.fixed(1), tiers=[Tier.WASM]) as environment:
        yield environment


def written(source: str) -> Tool:
    return tool(language=Language.JAVASCRIPT, source=source, examples=())


async def called(environment: ExecutionEnvironment, source: str, given: Any = None) -> Any:
    one = written(source)
    execution = await environment.run(
        calling.request(one), SandboxRequest(tier=Tier.WASM), stdin=calling.spelled(given)
    )
    return calling.output(one, execution)


async def test_json_goes_in_and_comes_out(environment: ExecutionEnvironment) -> None:
    given = {"é": [1, None, True, "\n"]}
    assert await called(environment, "function main(i) { return [i, 1.5] }", given) == [given, 1.5]
    later = "async function main(i) { await null; return i }"
    assert await called(environment, later, given) == given
    forged = "JSON.stringify = () => 'forged'; function main() { return 1 }"
    assert await called(environment, forged) == 1


@pytest.mark.parametrize(
    ("body", "reason", "place", "words"),
    [
        ("return { a: [1, NaN] }", "not_json", "/a/1", "NaN"),
        ("", "not_json", "", "undefined"),
        ("return { x: 1n }", "not_json", "/x", "bigint"),
        ("return new Uint8Array(3)", "not_json", "", "Uint8Array"),
        ("const a = {}; a.b = a; return a", "not_json", "/b", "contains itself"),
        ("return 'x'.repeat(2000000)", "too_large", "", "limits.result_bytes"),
        ("throw new TypeError('no')", "raised", "line 2", "TypeError: no"),
        ("stockade.writeResult('1'); return 2", "two_results", "", "more than one"),
        ("stockade.exit(0)", "no_result", "", "without an output"),
    ],
)
async def test_no_output_says_why_and_where(
    environment: ExecutionEnvironment, body: str, reason: str, place: str, words: str
) -> None:
    with pytest.raises(ToolFailed, match=words) as failed:
        await called(environment, f"function main(input) {{\n{body}\n}}")
    assert failed.value.reason == reason
    assert (failed.value.place or "") == place


@pytest.mark.parametrize(
    ("source", "fine"),
    [
        ("while (true);", True),
        ("function main() {", False),
        ("let x = ;", False),
        ("import x from 'y'", False),
        ("function main() {} }); while (true); (() => {", False),
        ("function main() {} while (true); function check() {} let parse; function NaN() {}", True),
        ("/*", False),
    ],
)
async def test_a_check_parses_and_runs_nothing(
    environment: ExecutionEnvironment, source: str, fine: bool
) -> None:
    execution = await environment.run(
        calling.parsing(written(source)), SandboxRequest(tier=Tier.WASM)
    )
    assert (b"error" not in (execution.result or b"")) is fine
