"""JSON from a guest: bounded in size, depth and numbers before anything is built."""

from json import JSONEncoder
from typing import Final

from stockade.executor.wire.violation import WireViolation
from stockade.port.bounded_json import BoundedJSON, JSONRefused

_READER: Final = BoundedJSON(depth=32, digits=20)  # as many as an unsigned 64-bit number has
_ENCODER: Final = JSONEncoder(separators=(",", ":"), allow_nan=False)


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
    try:
        _READER.check_shape(payload)
        return _READER.decoder.decode(payload.decode("utf-8"))
    except JSONRefused as refusal:
        raise WireViolation(f"{what}: JSON that {refusal}") from None
    except UnicodeDecodeError:
        raise WireViolation(f"{what}: JSON that is not UTF-8") from None
    except ValueError:
        raise WireViolation(f"{what}: no JSON") from None


def dump_object(value: dict[str, object]) -> bytes:
    """Return ``value`` as compact ASCII JSON; NaN and infinities raise ``ValueError``."""
    return _ENCODER.encode(value).encode("ascii")
