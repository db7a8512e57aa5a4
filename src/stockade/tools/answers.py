"""What a tool's checkers and its harness say from a sandbox: bounded, typed, not believed."""

import re
from dataclasses import dataclass
from typing import Any, Final

from stockade.port import KIB
from stockade.tools import json_text

LARGEST_ANSWER: Final = 256 * KIB
LONGEST: Final = 2_100
_HIGHEST_LINE: Final = 1 << 31
_RULE: Final = re.compile(r"[a-z][a-z_-]{0,39}")
_FIELDS: Final = frozenset({"line", "column", "rule", "sentence", "suggestion"})


class NoAnswer(ValueError):
    """It is none. The message is a sentence about it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in a source that cannot be compiled, or that its policy does not allow."""

    line: int
    """From 1, as the column, which counts characters; of a class file only the line is known."""
    column: int
    rule: str
    """A stable word: ``import``, ``dunder``, ``syntax``, ``class``, ``member``."""
    sentence: str
    suggestion: str
    """What to do instead; may be empty."""


def unchecked(rule: str, sentence: str, longest: int = LONGEST) -> Finding:
    """A finding of ours: the source could not be looked at."""
    return Finding(1, 1, rule, plain(sentence, longest), "make it smaller or simpler")


def load(result: bytes | None) -> dict[str, Any]:
    """The object that a program in a sandbox answered with. Raises :class:`NoAnswer`."""
    if result is None:
        raise NoAnswer("there is none")
    try:
        said = json_text.load(result, LARGEST_ANSWER)
    except json_text.NoJson as error:
        raise NoAnswer(f"it {error}") from None
    if type(said) is not dict:
        raise NoAnswer("it is no object")
    return said


def findings(said: dict[str, Any], most: int, longest: int = LONGEST) -> list[Finding]:
    """At most so many, with sentences of at most so many characters. Raises :class:`NoAnswer`."""
    found = said.get("findings")
    if set(said) != {"findings"} or type(found) is not list:
        raise NoAnswer("it has no list of findings")
    if len(found) > most:
        raise NoAnswer(f"it has more than {most} findings")
    return [_finding(item, longest) for item in found]


def _finding(item: object, longest: int) -> Finding:
    if type(item) is not dict or set(item) != _FIELDS:
        raise NoAnswer("it has a finding that is none")
    return Finding(
        position(item["line"]),
        position(item["column"]),
        word(item["rule"]),
        text(item["sentence"], longest),
        text(item["suggestion"], longest),
    )


def word(value: object) -> str:
    """A stable word."""
    if type(value) is not str or not _RULE.fullmatch(value):
        raise NoAnswer("it has a word that is none")
    return value


def position(value: object) -> int:
    """A line or a column."""
    if type(value) is not int or not 1 <= value <= _HIGHEST_LINE:
        raise NoAnswer("it has a place that is none")
    return value


def text(value: object, longest: int = LONGEST) -> str:
    """A sentence for people."""
    if type(value) is not str or len(value) > longest:
        raise NoAnswer("it has a text that is none, or too long")
    return plain(value, longest)


def plain(said: str, longest: int = LONGEST) -> str:
    """It is shown to people and written into logs: no line ends, no escapes for a terminal."""
    return "".join(c if c.isprintable() else "�" for c in said[:longest])
