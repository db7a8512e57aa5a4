"""What comes back of a call was said by a guest: an output, or a failure that says what it was."""

from typing import Any

import pytest

from stockade.port import Execution, InvalidRequest, Limits, Outcome, SandboxRequest, ToolFailed
from stockade.tools import calling, exporting
from stockade.tools.exporting import Form

from .kit import INPUT, OUTPUT, tool


def ended(result: bytes | None, outcome: Outcome = Outcome.OK) -> Execution:
    return Execution(outcome, "as it was told", result=result)


@pytest.mark.parametrize(
    ("execution", "reason", "words"),
    [
        (ended(None), "no_result", "without an output"),
        (ended(b""), "no_result", "without an output"),
        (ended(b'{"output":1}{"output":2}'), "two_results", "more than one"),
        (ended(b'{"output":1} x'), "two_results", "more than one"),
        (ended(b'{"output":1'), "not_json", "no JSON"),
        (ended(b'{"output":NaN}'), "not_json", "NaN"),
        (ended(b'{"output":1,"output":2}'), "not_json", "two members"),
        (ended(b"[" * 100_000), "not_json", "nested"),
        (ended(b"1"), "not_json", "none"),
        (ended(b'{"output":1,"error":{}}'), "not_json", "none"),
        (ended(b'{"error":{"kind":"mine","message":"x"}}'), "not_json", "none"),
        (ended(b'{"error":{"kind":"raised","message":7}}'), "not_json", "none"),
        (ended(b'{"error":{"kind":[],"message":"x"}}'), "not_json", "none"),
        (ended(b'{"error":{"kind":{"a":1},"message":"x"}}'), "not_json", "none"),
        (ended(b'{"output":1}', Outcome.WALL_CLOCK), "outcome", "wall_clock"),
        (ended(b'{"output":1}', Outcome.LOST), "outcome", "lost"),
        (ended(b'{"output":1}', Outcome.NONZERO_EXIT), "outcome", "nonzero_exit"),
        (ended(None, Outcome.MEMORY), "outcome", "memory"),
    ],
)
def test_no_output_is_a_failure_that_says_why(
    execution: Execution, reason: str, words: str
) -> None:
    with pytest.raises(ToolFailed, match=words) as failed:
        calling.output(tool(), execution)
    assert failed.value.reason == reason


def test_more_than_the_limit_is_never_read() -> None:
    small = tool(limits=Limits(result_bytes=100))
    with pytest.raises(ToolFailed, match="at most 100"):
        calling.output(small, ended(b'{"output":"' + b"x" * 200 + b'"}'))


def test_what_the_tool_raised_is_told_without_control_characters() -> None:
    said = b'{"error":{"kind":"raised","message":"a\\u001b[31m\\nb","place":"line 3"}}'
    with pytest.raises(ToolFailed) as failed:
        calling.output(tool(), ended(said, Outcome.NONZERO_EXIT))
    assert failed.value.place == "line 3"
    assert str(failed.value).isprintable()


@pytest.mark.parametrize("value", [None, 0, [], {"output": 1}, "x"])
def test_an_output_comes_out(value: Any) -> None:
    said = b'{"output":' + calling.spelled(value) + b"}"
    assert calling.output(tool(), ended(said)) == value


@pytest.mark.parametrize("value", [float("nan"), b"x", {"a": {1, 2}}, "\ud800", {"a": 10**200}])
def test_what_is_no_json_never_leaves(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="input"):
        calling.spelled(value)


def test_the_sandbox_has_what_the_tool_was_given_and_no_more() -> None:
    one = tool(limits=Limits(wall_seconds=3))
    assert calling.sandbox(one, "acme", None) == SandboxRequest(
        tenant="acme", limits=Limits(wall_seconds=3)
    )


def exported(form: Form, output_schema: Any = OUTPUT) -> dict[str, Any]:
    return exporting.described(
        form,
        name="vat",
        description="Adds VAT.",
        input_schema=INPUT,
        output_schema=output_schema,
    )


def test_exports_have_the_schema_and_nothing_of_the_source() -> None:
    assert exported(Form.OPENAI) == {
        "type": "function",
        "function": {"name": "vat", "description": "Adds VAT.", "parameters": INPUT},
    }
    assert exported(Form.ANTHROPIC) == {
        "name": "vat",
        "description": "Adds VAT.",
        "input_schema": INPUT,
    }
    assert exported(Form.MCP) == {
        "name": "vat",
        "description": "Adds VAT.",
        "inputSchema": INPUT,
        "outputSchema": OUTPUT,
    }
    assert "outputSchema" not in exported(Form.MCP, True)
