"""JSON of somebody who is not trusted: bounded in depth, values and digits before it is built."""

import re
from itertools import accumulate
from json import JSONDecoder
from math import isinf
from typing import Final, NoReturn

# The closing quote is optional and every repeat possessive, so that an unterminated string
# is swallowed in one pass: with a mandatory quote the search would start again at each one.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKET: Final = bytes(set(range(256)) - set(b"[{]}"))


class JSONRefused(ValueError):
    """The message is a sentence without a subject, and quotes nothing."""


class TwoMembers(JSONRefused):
    """Two readers of one text would see different values for a name."""

    def __init__(self, name: str) -> None:
        super().__init__("has two members of one name")
        self.name = name


class BoundedJSON:
    """What is taken. ``values``: brackets and commas together; the text's length bounds them else."""

    def __init__(self, *, depth: int, digits: int, values: int | None = None) -> None:
        self._depth = depth
        self._digits = digits
        self._values = values
        self.decoder: Final = JSONDecoder(
            object_pairs_hook=_unique,
            parse_float=_finite_float,
            parse_int=self._bounded_int,
            parse_constant=_no_constant,
        )
        """Raises :class:`JSONRefused`, and ``json.JSONDecodeError`` for what is no JSON."""

    def check_shape(self, text: bytes) -> None:
        """Raises :class:`JSONRefused`. The parser's stack grows no deeper, whatever the length."""
        # Nothing nests deeper than it has opening brackets, or has more values than separators:
        # that settles nearly every text.
        brackets = text.count(b"{") + text.count(b"[")
        if brackets <= self._depth and not self._has_too_many(brackets, text):
            return
        bare = _STRING.sub(b"", text)
        if self._has_too_many(bare.count(b"{") + bare.count(b"["), bare):
            raise JSONRefused(f"has more than {self._values} values")
        steps = bare.translate(_STEPS, _NO_BRACKET)
        if max(accumulate(memoryview(steps).cast("b")), default=0) > self._depth:
            raise JSONRefused(f"is nested more than {self._depth} levels deep")

    def _has_too_many(self, brackets: int, text: bytes) -> bool:
        return self._values is not None and brackets + text.count(b",") > self._values

    def _bounded_int(self, text: str) -> int:
        # int() of many digits takes quadratic time.
        if len(text) - text.startswith("-") > self._digits:
            raise JSONRefused(f"has a number of more than {self._digits} digits")
        return int(text)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        # Each is taken out once; the second of a name is not there any more.
        for name, _ in pairs:
            if result.pop(name, pairs) is pairs:
                raise TwoMembers(name)
    return result


def _finite_float(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise JSONRefused("has a number that is not finite")
    return value


def _no_constant(name: str) -> NoReturn:
    raise JSONRefused(f"has {name}, which is no JSON")  # NaN, Infinity, -Infinity: nothing else
