"""Cursors of listings: opaque to callers, and worth nothing beyond a place in their own list.

Every listing is bound to the caller's tenant by itself; another tenant's cursor is only a moment.
"""

import base64
import binascii
import json
from typing import Any

from sqlalchemy import Connection, tuple_

from stockade.port import InvalidRequest

_LONGEST = 256


def spell(moment: int, this: str) -> str:
    """For the row that came last."""
    text = json.dumps([moment, this], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def parse(cursor: str) -> tuple[int, str]:
    """Raises :class:`InvalidRequest`."""
    try:
        if len(cursor) > _LONGEST:
            raise ValueError("too long")
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        match json.loads(base64.b64decode(padded, altchars=b"-_", validate=True)):
            case [moment, str(this)] if (
                type(moment) is int and _is_moment(moment) and is_plain(this)
            ):
                return moment, this
        raise ValueError("not of ours")
    except (ValueError, binascii.Error, RecursionError):
        raise InvalidRequest("cursor", "it is none that was handed out here") from None


def page(
    connection: Connection,
    query: Any,
    moment: Any,
    this: Any,
    cursor: str | None,
    limit: int,
    most: int,
) -> tuple[list[Any], str | None]:
    """Rows ordered by two columns, the latest first, and where to go on.

    What comes to be while somebody turns pages is on none of the later ones.
    """
    if not 1 <= limit <= most:
        raise InvalidRequest("limit", f"{limit} is outside 1 to {most}")
    if cursor is not None:
        query = query.where(tuple_(moment, this) < tuple_(*parse(cursor)))
    rows = list(connection.execute(query.order_by(moment.desc(), this.desc()).limit(limit + 1)))
    if len(rows) <= limit:
        return rows, None
    last = rows[limit - 1]
    return rows[:limit], spell(getattr(last, moment.name), getattr(last, this.name))


def _is_moment(number: int) -> bool:
    return 0 <= number < 2**62


def is_plain(this: str) -> bool:
    """Whether it may be an id at all: PostgreSQL takes no NUL and no surrogate in a text."""
    return 1 <= len(this) <= 128 and this.isascii() and this.isprintable()


def plain(this: str) -> str:
    """The id, or one that is nobody's."""
    return this if is_plain(this) else ""
