"""The names of a request's fields, as its documentation has them and a person writes them."""

from collections.abc import Sequence
from typing import Final

from stockade.api import headers

_HEADERS: Final = {
    name.lower(): name
    for name in (
        "Accept",
        "If-None-Match",
        "If-Range",
        "Last-Event-ID",
        "Prefer",
        "Range",
        headers.IDEMPOTENCY_KEY,
        headers.ID,
    )
}
_PLACES: Final = frozenset({"body", "path", "query"})
_TAGGED: Final = frozenset({"environment", "files", "program"})
"""Fields of several forms: the form that was tried stands behind the name, and says nothing."""


def spell(place: Sequence[object]) -> str:
    """The field at a place, as validation names it; empty for the whole."""
    parts = [str(part) for part in place]
    if parts[:1] == ["header"]:
        return _HEADERS.get(parts[-1].lower(), parts[-1])
    if parts and parts[0] in _PLACES:
        parts = parts[1:]
    if parts and parts[0] in _TAGGED:
        del parts[1:2]
    return ".".join(parts)
