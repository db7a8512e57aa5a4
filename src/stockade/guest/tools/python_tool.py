"""Calls a Python tool: ``main(input)``, from JSON to JSON.

Standard input: the input. Descriptor 3: ``{"output": ...}``, or ``{"error": {"kind", "message",
"place"}}``, a place in the output (a JSON pointer) or in the source (a line). What the tool prints is
output like any other program's, and no result.

It stands alone, and is sent in two parts, for each call compiles what it is sent: what every call
needs, ``finish(SOURCE, MOST_BYTES, REST)`` behind it, and in ``REST`` as text what explains a failure.
"""

from __future__ import annotations

import json
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESULT = 3
FILE = "tool.py"


def finish(source: bytes, most_bytes: int, rest: str) -> None:
    """Call it, and answer."""
    stage, output = "run", None
    code = 0
    try:
        # Not json.loads(), whose regular expressions touch many pages of the warm interpreter.
        given = json.JSONDecoder().raw_decode(sys.stdin.buffer.read().decode() or "null")[0]
        # A module: dataclasses look for the one that their class is of.
        module = types.ModuleType("tool")
        module.__file__ = FILE
        sys.modules["tool"] = module
        exec(compile(source, FILE, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
        output = module.main(given)
        stage = "encode"
        encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
        answer = encoder.encode({"output": output}).encode("ascii")
        if len(answer) > most_bytes:
            stage = "measure"
            raise ValueError(len(answer) - len('{"output":}'))
    except BaseException as error:  # noqa: BLE001 - SystemExit as well: who leaves has no output
        exec(rest, globals())  # noqa: S102 - our own
        answer, code = explained(error, stage, output, most_bytes), 1
    try:
        sys.stdout.flush()
    except (AttributeError, OSError, ValueError):
        pass  # the tool has closed it
    while answer:
        answer = answer[os.write(RESULT, answer) :]
    if code:
        sys.exit(code)


# --- what explains a failure ----------------------------------------------------------------------

LONGEST = 500
DEEPEST = 60
INFINITE = (float("inf"), float("-inf"))


def explained(error: BaseException, stage: str, output: Any, most_bytes: int) -> bytes:
    """The answer for what went wrong."""
    place: str | None = ""
    if stage == "run":
        kind, told, place = "raised", "%s: %s" % (type(error).__name__, text(error)), line_of(error)
        if not callable(getattr(sys.modules.get("tool"), "main", None)) and place is None:
            kind, told = "no_main", "there is no function main(input)"
        else:
            show(error)
    elif stage == "measure":
        kind, told = (
            "too_large",
            "the output has %s bytes; limits.result_bytes allows %d"
            % (
                error,
                most_bytes,
            ),
        )
    elif isinstance(error, MemoryError):
        kind, told = "too_large", "the output does not fit into the memory"
    else:
        kind, told = "not_json", "%s: %s" % (type(error).__name__, text(error))
        try:
            told, place = fault(output) or (told, place)
        except BaseException:  # noqa: BLE001 - a class of the tool's may do anything here
            place = ""
    return json.dumps({"error": {"kind": kind, "message": told[:LONGEST], "place": place}}).encode()


def show(error: BaseException) -> None:
    """On standard error, for whoever reads its log: from the tool's own code on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != FILE:
        trace = trace.tb_next
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException:  # noqa: BLE001 - it is the tool's, and may be anything
        sys.stderr.write("an exception that cannot be printed\n")


def text(error: BaseException) -> str:
    """What an exception says, where it says anything."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - likewise
        return "it cannot be printed"


def line_of(error: BaseException) -> str | None:
    """The innermost line of the tool that it came from."""
    if isinstance(error, SyntaxError) and error.filename == FILE:
        return "line %s" % error.lineno
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            line = "line %d" % trace.tb_lineno
        trace = trace.tb_next
    return line


def items(value: Any) -> Any:
    """What is in it, with the names or the places."""
    return value.items() if isinstance(value, dict) else enumerate(value)


def fault(output: Any) -> tuple[str, str] | None:
    """What of it is no JSON: a sentence, and a JSON pointer; or None."""
    # Entered and left, so that what contains itself is told from what stands there twice.
    inside = set()
    left: list[tuple[str | None, Any, int]] = [("", output, 0)]
    while left:
        place, value, depth = left.pop()
        if place is None:
            inside.discard(value)
            continue
        kind = type(value)
        if isinstance(value, (dict, list, tuple)):
            if id(value) in inside:
                return "it contains itself", place
            if depth >= DEEPEST:
                return "it is nested more than %d levels deep" % DEEPEST, place
            inside.add(id(value))
            left.append((None, id(value), 0))
            for name, inner in items(value):
                if type(name) is not str and isinstance(value, dict):
                    return "a name of type %s is no JSON; use text" % type(name).__name__, place
                if type(inner) not in (str, bool, int):
                    part = str(name)[:100].replace("~", "~0").replace("/", "~1")
                    left.append(("%s/%s" % (place, part), inner, depth + 1))
        elif isinstance(value, float):
            if value != value or value in INFINITE:  # noqa: PLR0124 - that is what NaN is
                return "%r is no JSON" % value, place
        elif value is not None and not isinstance(value, (str, int)):
            return "a value of type %s is no JSON" % kind.__name__, place
    return None
