"""What may enter an expression and what may leave it: plain JSON, by its very types.

No subclass and no other object: an expression never holds anything of the host's.
"""

from datetime import datetime, timedelta
from math import isfinite, isnan
from typing import Any, Final, NamedTuple, cast

from stockade.executor.expression.errors import EvaluationFailed, OverLimit
from stockade.executor.expression.limits import ExpressionLimits

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]

PER_VALUE: Final = 8
_LEAST: Final = -(1 << 63)
_MOST: Final = {"input": (1 << 63) - 1, "output": (1 << 64) - 1}  # an unsigned one may come out
_LONGEST_PATH: Final = 200
_ONLY_TEXT: Final = {str}

# What the language has and JSON does not, and what to write instead.
_NO_JSON: Final = {
    bytearray: "bytes are no JSON: write base64.encode(...) around them",
    datetime: "a timestamp is no JSON: write string(...) around it",
    timedelta: "a duration is no JSON: write string(...) around it",
}


class Measure(NamedTuple):
    """The size of a value as ``ExpressionLimits`` counts it, and its longest list or object."""

    size: int
    longest: int


class _Refused(Exception):
    pass


def measure_input(value: object, limits: ExpressionLimits) -> Measure:
    """Raises :class:`EvaluationFailed` for what is no JSON, :class:`OverLimit` for too much."""
    return _measured(value, "input", limits.input_bytes, limits.input_depth)


def check_output(value: object, limits: ExpressionLimits) -> JSON:
    """The same value. Raises as :func:`measure_input` does."""
    _measured(value, "output", limits.output_bytes, limits.output_depth)
    return cast("JSON", value)


def _measured(value: object, name: str, most: int, deepest: int) -> Measure:
    try:
        return _measure(value, name, most, deepest, _MOST[name])
    except _Refused:
        path, sentence = _explain(value, _MOST[name])
        raise EvaluationFailed(sentence, path=name + path) from None


def _measure(value: Any, name: str, most: int, deepest: int, largest: int) -> Measure:
    # Level by level: nothing here recurses, and a cycle ends at the depth. This is half of what a
    # call costs: texts are looked at all together, by what is written in C.
    size = longest = 0
    level = [value]
    texts: list[Any] = []
    for _ in range(deepest + 1):
        below: list[Any] = []
        size += PER_VALUE * len(level)
        for item in level:
            kind = type(item)
            if kind is str:
                texts.append(item)
            elif kind is dict or kind is list:
                longest = max(longest, len(item))
                if kind is list:
                    below += item
                else:
                    texts += item
                    below += item.values()
                # Now, and not when all is walked: parts that are shared double it at every level.
                if size + PER_VALUE * len(below) > most:
                    raise OverLimit(f"{name}_bytes", f"the {name} is larger than {most} bytes")
            elif kind is int:
                if not _LEAST <= item <= largest:
                    raise _Refused
            elif kind is float:
                if not isfinite(item):
                    raise _Refused
            elif item is not None and kind is not bool:
                raise _Refused
        if not below:
            break
        level = below
    else:
        raise OverLimit(f"{name}_depth", f"the {name} is nested more than {deepest} levels deep")
    if texts:
        size += _texts_size(texts, most)
    if size > most:
        raise OverLimit(f"{name}_bytes", f"the {name} is larger than {most} bytes")
    return Measure(size, longest)


def _texts_size(texts: list[Any], most: int) -> int:
    """In bytes; where that is more than ``most``, then something more than it."""
    if set(map(type, texts)) != _ONLY_TEXT:
        raise _Refused
    characters = sum(map(len, texts))
    if characters > most:
        return characters
    text = "".join(texts)
    # The library cuts a text at its first NUL, silently, and cannot take half a surrogate pair.
    if "\0" in text:
        raise _Refused
    if text.isascii():
        return characters
    # Each by itself: two halves that stand in different texts would make a whole one here.
    try:
        return sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError:
        raise _Refused from None


def _explain(value: Any, largest: int) -> tuple[str, str]:
    """The first thing that is refused: its path, and why. ``value`` was found to hold one."""
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        path, item = left.pop()
        if sentence := _fault(item, largest):
            return path[:_LONGEST_PATH], sentence
        if type(item) is dict:
            for key in item:
                if type(key) is not str:
                    return path, f"the key {key!r:.40} is no text: JSON has no other keys"
                if sentence := _fault(key, largest):
                    return path, f"a key: {sentence}"
            left += [(f"{path}[{key!r:.40}]", part) for key, part in reversed(item.items())]
        elif type(item) is list:
            left += [(f"{path}[{i}]", part) for i, part in reversed(list(enumerate(item)))]
    raise AssertionError("nothing is wrong with it")


def _fault(item: Any, largest: int) -> str:
    kind = type(item)
    if kind is str:
        if "\0" in item:
            return "a text holds a NUL character, which expressions cannot carry"
        try:
            item.encode()
        except UnicodeEncodeError:
            return "a text holds half of a surrogate pair, which is no character"
        return ""
    if kind is int:
        if _LEAST <= item <= largest:
            return ""
        return f"a whole number is outside {_LEAST} to {largest}: pass it as text"
    if kind is float:
        if isfinite(item):
            return ""
        return f"{'NaN' if isnan(item) else 'an infinity'} is no JSON"
    if item is None or kind in (bool, dict, list):
        return ""
    return _NO_JSON.get(kind, f"a value of type {kind.__name__:.40} is no JSON")
