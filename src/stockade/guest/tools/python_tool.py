"""Calls a Python tool: ``main(input)``, from JSON to JSON.

What is sent is this file and a line behind it, ``finish(SOURCE, MOST_BYTES)``. Standard input: the
input. Descriptor 3: ``{"output": ...}``, or ``{"error": {"kind", "message", "place"}}``, a place in
the output (a JSON pointer) or in the source (a line). What the tool prints is output like any other
program's, and no result.

It stands alone: what is shipped is this file.
"""

from __future__ import annotations

import json
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

RESULT = 3
FILE = "tool.py"
LONGEST = 500
DEEPEST = 60
INFINITE = (float("inf"), float("-inf"))


class Refused(Exception):
    """``args``: the kind, the sentence, the place."""


def finish(source: bytes, most_bytes: int) -> NoReturn:
    """Call it, answer, and leave."""
    try:
        output = run(source, json.loads(sys.stdin.buffer.read() or b"null"))
        answer, code = b'{"output":' + spelled(output, most_bytes - 16) + b"}", 0
    except Refused as refused:
        kind, message, place = refused.args
        if refused.__cause__ is not None:
            # For whoever reads its log; the answer has the same in short.
            show(refused.__cause__)
        error = {"kind": kind, "message": message[:LONGEST], "place": place}
        answer, code = json.dumps({"error": error}).encode(), 1
    try:
        sys.stdout.flush()
    except (AttributeError, OSError, ValueError):
        pass  # the tool has closed it
    while answer:
        answer = answer[os.write(RESULT, answer) :]
    sys.exit(code)


def run(source: bytes, given: Any) -> Any:
    """What main returns."""
    # A module: dataclasses look for the one that their class is of.
    module = types.ModuleType("tool")
    module.__file__ = FILE
    sys.modules["tool"] = module
    try:
        exec(compile(source, FILE, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
        main = getattr(module, "main", None)
        if not callable(main):
            raise Refused("no_main", "there is no function main(input)", None)
        return main(given)
    except Refused:
        raise
    except BaseException as error:  # SystemExit as well: a tool that leaves has no output
        told = "%s: %s" % (type(error).__name__, text(error))
        raise Refused("raised", told, line_of(error)) from error


def show(error: BaseException) -> None:
    """On standard error, from the tool's own code on."""
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


def spelled(output: Any, most_bytes: int) -> bytes:
    """An output as JSON; what is none is named with its place."""
    try:
        wrong = fault(output)
        if wrong is not None:
            raise Refused("not_json", *wrong)
        found = json.dumps(output, allow_nan=False, separators=(",", ":")).encode("ascii")
    except Refused:
        raise
    except MemoryError:
        raise Refused("too_large", "the output does not fit into the memory", "") from None
    except BaseException as error:  # noqa: BLE001 - a class of the tool's may do anything here
        raise Refused("not_json", "%s: %s" % (type(error).__name__, text(error)), "") from None
    if len(found) > most_bytes:
        told = "the output has %d bytes; limits.result_bytes allows %d" % (len(found), most_bytes)
        raise Refused("too_large", told, "")
    return found


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
