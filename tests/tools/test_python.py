"""Python tools in a sandbox: each way to give no output is told as what it is, with its place."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from stockade.executor.local import open_local
from stockade.port import ExecutionEnvironment, Limits, SandboxRequest, Tier, ToolFailed
from stockade.tools import calling

from .kit import tool

pytestmark = [pytest.mark.tier("namespace"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environment() -> AsyncIterator[ExecutionEnvironment]:
    async with open_local(tiers=[Tier.NAMESPACE]) as environment:
        yield environment


async def called(
    environment: ExecutionEnvironment, source: str, given: Any = None, **limits: Any
) -> Any:
    one = tool(source=source, limits=Limits(**limits), examples=())
    execution = await environment.run(
        calling.request(one),
        SandboxRequest(limits=one.limits),
        stdin=calling.spelled(given),
    )
    return calling.output(one, execution)


async def test_json_goes_in_and_comes_out(environment: ExecutionEnvironment) -> None:
    source = (
        "import collections\nfrom dataclasses import dataclass, asdict\n"
        "@dataclass\nclass A:\n    b: 'int'\n"
        "def main(input):\n    print('no result')\n"
        "    return [input, asdict(A(1)), (1, 2), collections.OrderedDict(a=None)]"
    )
    given = {"é": [1, None, True, 10**50, "\n"]}
    assert await called(environment, source, given) == [given, {"b": 1}, [1, 2], {"a": None}]


@pytest.mark.parametrize(
    ("body", "reason", "place", "words"),
    [
        ("return {'a': [1, float('nan')]}", "not_json", "/a/1", "nan"),
        ("return {'a/b': float('-inf')}", "not_json", "/a~1b", "inf"),
        ("return {'x': b'bytes'}", "not_json", "/x", "bytes"),
        ("return [{1, 2}]", "not_json", "/0", "set"),
        ("return {1: 2, '1': 3}", "not_json", None, "two members of the name '1'"),
        ("return {(1, 2): 3}", "not_json", "", "name of type tuple"),
        ("a = []; a.append([a]); return a", "not_json", "/0/0", "contains itself"),
        ("a = []\n    for _ in range(5000): a = [a]\n    return a", "not_json", None, "nested"),
        ("return '\\ud800'", "not_json", None, "surrogate"),
        ("return 'x' * 2_000_000", "too_large", "", "limits.result_bytes allows"),
        ("return 'x' * (1 << 30)", None, None, "[Mm]emory"),
        ("raise ValueError('no such rate')", "raised", "line 2", "ValueError: no such rate"),
        ("import sys; sys.exit(0)", "raised", "line 2", "SystemExit"),
        ("import os; os._exit(0)", "no_result", None, "without an output"),
        ("import os; os.write(3, b'{\"output\":1}'); return 2", "two_results", None, "more than"),
        ("import os; os.close(3)", "no_result", None, "without an output"),
        ("class E(BaseException):\n        def __str__(self): raise self\n    raise E",
         "raised", "line 4", "cannot be printed"),
        ("class D(dict):\n        def items(self): raise KeyError('x')\n    return D(a=1)",
         "not_json", "", "KeyError"),
        ("while True: pass", "outcome", None, "wall_clock"),
        ("(", "raised", "line 2", "SyntaxError"),
    ],
)  # fmt: skip
async def test_no_output_says_why_and_where(
    environment: ExecutionEnvironment, body: str, reason: str | None, place: str | None, words: str
) -> None:
    source = f"def main(input):\n    {body}\n"
    with pytest.raises(ToolFailed, match=words) as failed:
        await called(environment, source, wall_seconds=10.0 if "while" not in body else 1.0)
    if reason is not None:
        assert failed.value.reason == reason
    if place is not None:
        assert (failed.value.place or "") == place


async def test_a_source_without_main_says_so(environment: ExecutionEnvironment) -> None:
    with pytest.raises(ToolFailed, match="no function main"):
        await called(environment, "main = 1")


async def test_what_it_prints_is_no_result(environment: ExecutionEnvironment) -> None:
    source = "def main(input):\n    print('{\"output\": \"forged\"}')\n    return 'real'"
    assert await called(environment, source) == "real"
