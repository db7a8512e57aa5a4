"""What the programs in a sandbox say, read as anything of a guest's: bounded, typed, not believed."""

import json
import re
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from stockade.port import KIB

MOST_FINDINGS: Final = 100
LARGEST_ANSWER: Final = 256 * KIB
"""Of findings, and of a failure."""

_LONGEST_SENTENCE: Final = 2_100
_LONGEST_FRAME: Final = 5_000
_MOST_FRAMES: Final = 20
_MOST_CAUSES: Final = 4
_HIGHEST_LINE: Final = 1 << 31
_WORD: Final = re.compile(r"[a-z][a-z_-]{0,39}")
_BEFORE_OUTPUT: Final = b'{"output":'


class NoAnswer(ValueError):
    """It is none; the message is a sentence without a subject."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in a source that cannot be compiled, or that the rules do not allow."""

    line: int
    """From 1, as the column; of a class file only the line is known."""
    column: int
    rule: str
    """A stable word: ``syntax``, ``class``, ``member``, ``native``."""
    sentence: str
    suggestion: str
    """What to do instead; may be empty."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call has no output."""

    kind: str
    """``raised`` by the tool, ``not_json`` or ``too_large`` of its output, ``bad_input``, ``no_main``
    of classes that do not load; ``no_result`` where there is no answer; else ``outcome``."""
    message: str
    place: str | None = None
    """In the input or output, as a JSON pointer."""
    exception: str | None = None
    """The class of it."""
    line: int | None = None
    """In the tool's source, where the exception came from."""
    trace: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()


def read_findings(result: bytes | None) -> list[Finding]:
    """Raises :class:`NoAnswer`."""
    said = _load(result)
    findings = said.get("findings")
    if set(said) != {"findings"} or type(findings) is not list:
        raise NoAnswer("it has no list of findings")
    if len(findings) > MOST_FINDINGS:
        raise NoAnswer(f"it has more than {MOST_FINDINGS} findings")
    return [_finding(item) for item in findings]


def read_output(result: bytes | None) -> bytes | Failure:
    """The output as the guest wrote it, which nobody has read yet; or the failure that it tells.

    Raises :class:`NoAnswer`.
    """
    if result is None:
        raise NoAnswer("there is none")
    if result.startswith(_BEFORE_OUTPUT) and result.endswith(b"}"):
        return result[len(_BEFORE_OUTPUT) : -1]
    failure = _load(result).get("error")
    if type(failure) is not dict:
        raise NoAnswer("it has neither an output nor an error")
    kind = _text(failure.get("kind"), 40)
    if not _WORD.fullmatch(kind):
        raise NoAnswer("its error is of no kind")
    return Failure(
        kind,
        _text(failure.get("message"), _LONGEST_SENTENCE),
        _optional(failure.get("place")),
        _optional(failure.get("class")),
        None if failure.get("line") is None else _position(failure["line"]),
        _texts(failure.get("trace"), _MOST_FRAMES),
        _texts(failure.get("causes"), _MOST_CAUSES),
    )


def plain(text: str, longest: int = _LONGEST_SENTENCE) -> str:
    """It is shown to people and written into logs: no line ends, no escapes for a terminal."""
    return "".join(c if c.isprintable() else "�" for c in text[:longest])


def _load(result: bytes | None) -> dict[str, Any]:
    if result is None:
        raise NoAnswer("there is none")
    if len(result) > LARGEST_ANSWER:
        raise NoAnswer(f"it has more than {LARGEST_ANSWER} bytes")
    try:
        said = json.loads(result, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise NoAnswer("it is no JSON") from None
    if type(said) is not dict:
        raise NoAnswer("it is no object")
    return said


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _finding(item: object) -> Finding:
    fields = {"line", "column", "rule", "sentence", "suggestion"}
    if type(item) is not dict or set(item) != fields:
        raise NoAnswer("it has a finding that is none")
    rule = _text(item["rule"], 40)
    if not _WORD.fullmatch(rule):
        raise NoAnswer("it has a finding of no rule")
    return Finding(
        _position(item["line"]),
        _position(item["column"]),
        rule,
        _text(item["sentence"], _LONGEST_SENTENCE),
        _text(item["suggestion"], _LONGEST_SENTENCE),
    )


def _position(value: object) -> int:
    if type(value) is not int or not 1 <= value <= _HIGHEST_LINE:
        raise NoAnswer("it has a place that is none")
    return value


def _text(value: object, longest: int) -> str:
    if type(value) is not str or len(value) > longest:
        raise NoAnswer("it has a text that is none, or too long")
    return plain(value, longest)


def _optional(value: object) -> str | None:
    return None if value is None else _text(value, _LONGEST_SENTENCE)


def _texts(value: object, most: int) -> tuple[str, ...]:
    if type(value) is not list or len(value) > most:
        raise NoAnswer("it has a list that is none, or too long")
    return tuple(_text(item, _LONGEST_FRAME) for item in value)
