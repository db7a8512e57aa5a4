"""Sizes and durations as people write them. Each error is a ``ValueError`` with the rule."""

import re

_NUMBER = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18}))?")
_SIZE_UNIT = re.compile(r"(?:([kmgt])(i?b)?|b)?", re.IGNORECASE)
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}
_LETTERS = " kMGT"
_MILLISECONDS = {"ms": 1, "": 1000, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}

SIZE_RULE = "a size is a number and a unit of 1024: 65536, 64k, 512M, 1.5GiB"
DURATION_RULE = "a duration is a number and a unit: 500ms, 30s, 2m, 1h"


def parse_size(text: str, *, zero: bool = False) -> int:
    """Bytes; a fraction of a byte is dropped. ``k``, ``kB`` and ``KiB`` are all 1024."""
    whole, fraction, unit = _split(text, SIZE_RULE)
    matched = _SIZE_UNIT.fullmatch(unit)
    if matched is None:
        raise ValueError(f"{unit!r} is no unit; {SIZE_RULE}")
    scale = 1024 ** _POWER[matched[1].lower()] if matched[1] else 1
    return _positive(int(whole + fraction) * scale // 10 ** len(fraction), text, zero)


def parse_duration(text: str) -> float:
    """Seconds, to the microsecond. A number without a unit is seconds."""
    whole, fraction, unit = _split(text, DURATION_RULE)
    if unit.lower() not in _MILLISECONDS:
        raise ValueError(f"{unit!r} is no unit; {DURATION_RULE}")
    microseconds = int(whole + fraction) * _MILLISECONDS[unit.lower()] * 1000
    return _positive(microseconds // 10 ** len(fraction), text, zero=False) / 1_000_000


def parse_count(text: str) -> int:
    """A whole number of things."""
    matched, rest = _start(text, "not a whole number")
    if rest or matched[2] is not None:
        raise ValueError("not a whole number")
    return _positive(int(matched[1]), text, zero=False)


def parse_number(text: str) -> float:
    """A positive number, like 1.5."""
    rule = "not a number like 2 or 1.5"
    _, rest = _start(text, rule)
    if rest:
        raise ValueError(rule)
    value = float(text)
    if value == 0:
        raise ValueError("must be more than 0")
    return value


def format_size(count: int | float) -> str:
    """The shortest spelling: exact where a unit divides it, else with one decimal."""
    count = int(count)
    power = 0
    while count >= 1024 ** (power + 1) and power < len(_LETTERS) - 1:
        power += 1
    if not power:
        return str(count)
    scale: int = 1024**power
    if count % scale == 0:
        return f"{count // scale}{_LETTERS[power]}"
    return f"{count / scale:.1f}{_LETTERS[power]}"


def format_duration(seconds: float) -> str:
    """Like ``30 s`` or ``1.2 ms``."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _split(text: str, rule: str) -> tuple[str, str, str]:
    matched, rest = _start(text, rule)
    return matched[1], matched[2] or "", rest.strip(" ")


def _start(text: str, rule: str) -> tuple[re.Match[str], str]:
    """The number that it begins with, and the rest."""
    if text.startswith("-"):
        raise ValueError("must not be negative")
    matched = _NUMBER.match(text)
    if matched is None:
        raise ValueError(rule)
    rest = text[matched.end() :]
    if rest[:1].isascii() and rest[:1].isdigit():
        raise ValueError("a number of more than 18 digits")
    return matched, rest


def _positive(value: int, text: str, zero: bool) -> int:
    if value == 0 and not (zero and not text.strip("0")):
        raise ValueError("must be more than 0")
    return value
