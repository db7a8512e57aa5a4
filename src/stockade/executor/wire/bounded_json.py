"""JSON from a guest: bounded in size, depth and numbers before anything is built."""

import re
from itertools import accumulate
from json import JSONDecoder, JSONEncoder
from math import isinf
from typing import Final, NoReturn

from stockade.executor.wire.violation import WireViolation

DEEPEST: Final = 32
MOST_DIGITS: Final = 20  # as many as an unsigned 64-bit number has

# The closing quote is optional and every repeat possessive, so that an unterminated string
# is swallowed in one pass: with a mandatory quote the search would start again at each one.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKET: Final = bytes(set(range(256)) - set(b"[{]}"))


def load_object(payload: bytes, what: str, limit: int = 65_536) -> dict[str, object]:
    """Return the JSON object in ``payload``, or raise :class:`WireViolation`.

    ``what`` names the place for the message: ``HELLO``, ``a control message``.  Strings may
    hold lone surrogates (PEP 383); encode them with ``surrogateescape``.
    """
    value = load_value(payload, what, limit)
    if type(value) is not dict:
        raise WireViolation(f"{what}: JSON that is not an object")
    return value


def load_value(payload: bytes, what: str, limit: int) -> object:
    """As :func:`load_object`, for any JSON."""
    if len(payload) > limit:
        raise WireViolation(f"{what}: JSON of {len(payload)} bytes; at most {limit} may come")
    if _is_too_deep(payload):
        raise WireViolation(f"{what}: JSON nested more than {DEEPEST} levels deep")
    try:
        value = _DECODER.decode(payload.decode("utf-8"))
    except UnicodeDecodeError:
        raise WireViolation(f"{what}: JSON that is not UTF-8") from None
    except ValueError as error:
        reason = str(error) if type(error) is _Refused else "no JSON"
        raise WireViolation(f"{what}: {reason}") from None
    return value


def dump_object(value: dict[str, object]) -> bytes:
    """Return ``value`` as compact ASCII JSON; NaN and infinities raise ``ValueError``."""
    return _ENCODER.encode(value).encode("ascii")


def _is_too_deep(payload: bytes) -> bool:
    # Nothing nests deeper than it has opening brackets; that settles nearly every message.
    if payload.count(b"{") + payload.count(b"[") <= DEEPEST:
        return False
    steps = _STRING.sub(b"", payload).translate(_STEPS, _NO_BRACKET)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > DEEPEST


class _Refused(ValueError):
    pass


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # Two readers of one document must not see different values for a key.
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _Refused("JSON with a duplicate key")
    return result


def _bounded_int(text: str) -> int:
    # int() of many digits takes quadratic time.
    if len(text) - text.startswith("-") > MOST_DIGITS:
        raise _Refused(f"JSON with an integer of more than {MOST_DIGITS} digits")
    return int(text)


def _finite_float(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise _Refused("JSON with an infinity")
    return value


def _no_constant(name: str) -> NoReturn:
    raise _Refused(f"JSON with {'NaN' if name == 'NaN' else 'an infinity'}")


_DECODER: Final = JSONDecoder(
    object_pairs_hook=_unique,
    parse_float=_finite_float,
    parse_int=_bounded_int,
    parse_constant=_no_constant,
)
_ENCODER: Final = JSONEncoder(separators=(",", ":"), allow_nan=False)
