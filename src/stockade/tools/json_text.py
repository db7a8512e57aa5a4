"""JSON of tenants and of guests: bounded in size, depth, values and digits before it is built."""

import json
from typing import Any, Final

from stockade.port import MIB
from stockade.port.bounded_json import BoundedJSON, JSONRefused, TwoMembers

DEEPEST: Final = 64
MOST_VALUES: Final = 100_000
MOST_DIGITS: Final = 100
LARGEST: Final = 16 * MIB

_READER: Final = BoundedJSON(depth=DEEPEST, digits=MOST_DIGITS, values=MOST_VALUES)


class NoJson(ValueError):
    """The text is refused; the message is one sentence without a subject."""


class SecondValue(NoJson):
    """Something stands behind the value."""


def load(text: bytes, most_bytes: int = LARGEST) -> Any:
    """The one value that a text has. Raises :class:`NoJson`.

    Of two members of one name another reader would take the other one, so there are no two. Texts
    are Unicode: half a surrogate pair is none.
    """
    if len(text) > most_bytes:
        raise NoJson(f"has {len(text)} bytes; at most {most_bytes} may come")
    try:
        _READER.check_shape(text)
        plain = text.decode("utf-8").lstrip(" \t\r\n")
        value, end = _READER.decoder.raw_decode(plain)
    except UnicodeDecodeError as error:
        raise NoJson(f"is not UTF-8, at byte {error.start}") from None
    except TwoMembers as refusal:
        raise NoJson(f"has two members of the name {refusal.name[:100]!a}") from None
    except JSONRefused as refusal:
        raise NoJson(str(refusal)) from None
    except json.JSONDecodeError as error:
        raise NoJson(f"is no JSON: {error.msg}, at character {error.pos}") from None
    except (ValueError, RecursionError):
        raise NoJson("is no JSON") from None
    if plain[end:].strip(" \t\r\n"):
        raise SecondValue("has more behind its end")
    if "\\u" in plain:
        check_texts(value)
    return value


def dump(value: object) -> bytes:
    """Compact ASCII. Raises :class:`NoJson` for what is none."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise NoJson(f"is no JSON: {error}") from None


def canonical(value: object) -> bytes:
    """The one spelling of a value, for digests and comparisons."""
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":")).encode("ascii")


def check_texts(value: object) -> None:
    """Raises :class:`NoJson` for a text with half a surrogate pair, with its place."""
    left: list[tuple[_Place, object]] = [(None, value)]
    while left:
        place, each = left.pop()
        if isinstance(each, dict):
            for name, inner in each.items():
                _check_text(place, name)
                left.append(((place, name), inner))
        elif isinstance(each, list):
            left += [((place, index), inner) for index, inner in enumerate(each)]
        elif isinstance(each, str):
            _check_text(place, each)


_Place = tuple["_Place", object] | None
"""Where something stands, innermost last. Spelled where it is told, and not for each of 100,000
values: that would be a gigabyte of text."""


def _spelled(place: _Place) -> str:
    parts: list[object] = []
    while place is not None:
        place, part = place
        parts.append(part)
    return pointer(parts[::-1])


def escaped(name: object) -> str:
    """A member's name as a part of a JSON pointer (RFC 6901), of a bounded length."""
    return str(name)[:100].replace("~", "~0").replace("/", "~1")


def pointer(parts: "list[object] | tuple[object, ...]") -> str:
    """A JSON pointer; empty for the whole."""
    return "".join(f"/{escaped(part)}" for part in parts)


def same(first: object, second: object) -> bool:
    """Whether two values are the same JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            same(value, second[name]) for name, value in first.items()
        )
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return (type(first) is type(second) and first == second) or _number(first, second)


def _number(first: object, second: object) -> bool:
    return isinstance(first, int | float) and isinstance(second, int | float) and first == second


def _check_text(place: _Place, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        told = _spelled(place) or "its top"
        raise NoJson(f"has half a surrogate pair in a text, at {told}") from None
