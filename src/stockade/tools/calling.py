"""A call of a tool as an execution, and its output from the record.

The input travels as standard input, the output on the channel of the result, so that nothing
printed can be taken for it. What comes back was said by a guest, and is read as such.
"""

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import stockade
from stockade.port import (
    Execution,
    ExecutionRequest,
    ExpressionSource,
    InvalidRequest,
    JavaScriptSource,
    Outcome,
    PythonSource,
    SandboxRequest,
    Tier,
    ToolFailed,
)
from stockade.tools import answers, json_text
from stockade.tools.definition import Language, Tool

LARGEST_INPUT: Final = 16 * 1024 * 1024
_LONGEST: Final = 500
_DIVIDER: Final = "# --- what explains a failure"
_KINDS: Final = frozenset({"raised", "not_json", "too_large", "no_main"})


def request(tool: Tool) -> ExecutionRequest:
    """What runs. Its standard input is :func:`spelled`."""
    match tool.language:
        case Language.PYTHON:
            return ExecutionRequest(PythonSource(_python(tool.source, tool.limits.result_bytes)))
        case Language.JAVASCRIPT:
            most = tool.limits.result_bytes
            return ExecutionRequest(
                JavaScriptSource(_javascript(tool.source, "await stockadeFinish", most))
            )
        case Language.EXPRESSION:
            return ExecutionRequest(ExpressionSource(tool.source))
    raise InvalidRequest("language", f"tools in {tool.language} cannot be called here yet")


def parsing(tool: Tool) -> ExecutionRequest:
    """Parses its JavaScript, and runs nothing of it; its output is null where it is some."""
    return ExecutionRequest(JavaScriptSource(_javascript(tool.source, "stockadeCheck")))


def sandbox(tool: Tool, tenant: str, tier: Tier | None) -> SandboxRequest:
    """Where it runs: with what the tool was given, and nothing of the caller's."""
    return SandboxRequest(
        tenant=tenant, limits=tool.limits, egress=tool.policy, trust=tool.trust, tier=tier
    )


def spelled(value: Any) -> bytes:
    """An input for standard input. Raises :class:`InvalidRequest`."""
    try:
        text = json_text.dump(value)
        json_text.load(text, LARGEST_INPUT)
    except json_text.NoJson as error:
        raise InvalidRequest("input", f"it {error}") from None
    return text


def output(tool: Tool, execution: Execution) -> Any:
    """What it returned. Raises :class:`~stockade.port.ToolFailed`."""
    said = _said(tool, execution.result)
    if execution.outcome not in (Outcome.OK, Outcome.NONZERO_EXIT):
        raise ToolFailed("outcome", f"{execution.outcome}: {execution.detail}")
    if isinstance(said, ToolFailed):
        raise said
    if execution.outcome is Outcome.NONZERO_EXIT:
        raise ToolFailed("outcome", f"{execution.outcome}: {execution.detail}")
    return said[0]


def _said(tool: Tool, result: bytes | None) -> tuple[Any] | ToolFailed:
    if not result:
        return ToolFailed("no_result", "it ended without an output")
    try:
        answer = json_text.load(result, tool.limits.result_bytes)
    except json_text.SecondValue:
        return ToolFailed("two_results", "it gave more than one output")
    except json_text.NoJson as error:
        return ToolFailed("not_json", f"its output {error}")
    if tool.language is Language.EXPRESSION:
        return (answer,)  # its value is all that it can say
    if type(answer) is dict and set(answer) == {"output"}:
        return (answer["output"],)
    if type(answer) is dict and set(answer) == {"error"} and type(answer["error"]) is dict:
        return _failure(answer["error"])
    return ToolFailed("not_json", "its answer is none: neither an output nor an error")


def _failure(error: dict[str, Any]) -> ToolFailed:
    kind, message, place = (error.get(name) for name in ("kind", "message", "place"))
    if (
        type(kind) is not str  # a list of the guest's has no hash
        or kind not in _KINDS
        or type(message) is not str
        or not isinstance(place, str | None)
    ):
        return ToolFailed("not_json", "its answer is none: neither an output nor an error")
    return ToolFailed(
        kind,
        answers.plain(message, _LONGEST),
        None if place is None else answers.plain(place, _LONGEST),
    )


def _python(source: str, most_bytes: int) -> bytes:
    head, rest = _harness()
    return head + f"\nfinish({source.encode()!r}, {most_bytes}, {rest!r})\n".encode("ascii")


@cache
def _harness() -> tuple[bytes, str]:
    """What each call needs, without what is written for people: it is compiled for each; the rest."""
    head, _, rest = guest_file("tools/python_tool.py").decode("ascii").partition(_DIVIDER)
    return ast.unparse(_bare(ast.parse(head))).encode(), _DIVIDER + rest


def _bare(tree: ast.Module) -> ast.Module:
    """Without the texts that say what it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree


def _javascript(source: str, what: str, *more: int) -> bytes:
    # JSON of ASCII is a literal of JavaScript.
    given = ", ".join([json.dumps(source), *map(str, more)])
    return guest_file("tools/javascript_tool.js") + f"\n{what}({given});\n".encode("ascii")


@cache
def guest_file(name: str) -> bytes:
    """One that is shipped into sandboxes: by its path, for nobody imports it."""
    return (Path(stockade.__file__).parent / "guest" / name).read_bytes()
