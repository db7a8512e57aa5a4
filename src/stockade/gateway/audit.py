"""Reading the audit trail, and finding out whether it is as it was written."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, select

from stockade.gateway.clock import spell
from stockade.gateway.database import Database
from stockade.gateway.journal import GENESIS, MAX_SUBJECT, chained, escaped
from stockade.gateway.schema import audit, audit_head
from stockade.port import InvalidRequest

MAX_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One record."""

    number: int
    digest: str
    time: int
    tenant: str | None
    key_id: str | None
    action: str
    subject: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def for_tenant(self) -> dict[str, Any]:
        """For the tenant itself. Not its number, which would tell what others do."""
        return {
            "digest": self.digest,
            "time": spell(self.time),
            "key_id": self.key_id,
            "action": self.action,
            "subject": self.subject,
            "facts": dict(self.facts),
        }


@dataclass(frozen=True, slots=True)
class Page:
    """Records, the latest first, and where to go on."""

    records: tuple[AuditRecord, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the trail, to be kept where nobody who can write the database can write."""

    number: int
    digest: str

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        """Read what ``str`` wrote. Raises ``ValueError``."""
        number, _, digest = text.strip().partition(":")
        if not (number.isascii() and number.isdigit() and len(number) <= 18 and _is_digest(digest)):
            raise ValueError("an anchor is like 42:DIGEST, as `stockade audit head` prints it")
        return cls(int(number), digest)


class Audit:
    """Queries."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def query(
        self,
        tenant: str,
        cursor: str | None = None,
        limit: int = 100,
        *,
        action: str | None = None,
        subject: str | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> Page:
        """A tenant's own records, the latest first. Raises :class:`InvalidRequest`."""
        return await self._database.run(
            lambda connection: find(
                connection, tenant, cursor, limit,
                action=action, subject=subject, since=since, until=until,
            )
        )  # fmt: skip

    def head(self) -> Head:
        """The end of the trail."""
        return self._database.read(head)


def head(connection: Connection) -> Head:
    """The end of the trail."""
    return _head(connection) or Head(0, GENESIS)


def _head(connection: Connection) -> Head | None:
    row = connection.execute(select(audit_head.c.number, audit_head.c.digest)).one_or_none()
    return None if row is None else Head(row.number, row.digest)


def find(
    connection: Connection,
    tenant: str | None,
    cursor: str | None = None,
    limit: int = 100,
    *,
    action: str | None = None,
    subject: str | None = None,
    since: int | None = None,
    until: int | None = None,
) -> Page:
    """Records of one tenant, or of all; the latest first.

    A cursor is the digest of the last record of the page before: another tenant's is none.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest("limit", f"{limit} is outside 1 to {MAX_PAGE}")
    query = select(audit.c.number, audit.c.digest, audit.c.body)
    if tenant is not None:
        query = query.where(audit.c.tenant == tenant)
    if cursor is not None:
        place = select(audit.c.number).where(audit.c.digest == cursor)
        if tenant is not None:
            place = place.where(audit.c.tenant == tenant)
        number = connection.scalar(place) if _is_digest(cursor) else None
        if number is None:
            raise InvalidRequest("cursor", "it is none that was handed out here")
        query = query.where(audit.c.number < number)
    if action is not None:
        query = query.where(audit.c.action == escaped(action))
    if subject is not None:
        query = query.where(audit.c.subject == escaped(subject[:MAX_SUBJECT]))
    if since is not None:
        query = query.where(audit.c.time >= since)
    if until is not None:
        query = query.where(audit.c.time < until)
    rows = connection.execute(query.order_by(audit.c.number.desc()).limit(limit + 1)).all()
    found = tuple(_record(row.number, row.digest, row.body) for row in rows[:limit])
    return Page(found, found[-1].digest if len(rows) > limit else None)


def _record(number: int, digest: str, body: str) -> AuditRecord:
    data = json.loads(body)
    return AuditRecord(
        number=number,
        digest=digest,
        time=data["time"],
        tenant=data["tenant"],
        key_id=data["key_id"],
        action=data["action"],
        subject=data["subject"],
        facts=data["facts"],
    )


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)


# --- verifying -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that is not as it was written."""

    number: int
    """Of the record; the trail is sound in front of it."""
    what: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found."""

    records: int
    head: Head
    flaws: tuple[Flaw, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.flaws


_BATCH = 200
MOST_FLAWS = 100


def verify(connection: Connection, anchors: tuple[Head, ...] = ()) -> Verdict:
    """Check every record, the end, and anchors that were kept elsewhere.

    All of it has to be of one moment (:meth:`Database.read_at_once`), for others go on writing.

    After a flaw it goes on from what that record says of itself, so that each flaw is named
    once, and not everything behind it.
    """
    flaws: list[Flaw] = []
    wanted = {anchor.number: anchor.digest for anchor in anchors if anchor.number}
    previous: str | None = GENESIS
    last, count, latest = 0, 0, GENESIS
    for row in _walk(connection):
        count += 1
        if row.number > last + 1:
            missing = f"{last + 1}" if row.number == last + 2 else f"{last + 1} to {row.number - 1}"
            flaws.append(Flaw(last + 1, f"missing: {missing}"))
            previous = None  # it went with what is missing
        wrong = _wrong(row, previous)
        if wrong is not None:
            flaws.append(Flaw(row.number, wrong))
        anchor = wanted.pop(row.number, row.digest)
        if anchor != row.digest:
            flaws.append(Flaw(row.number, f"another one than the anchor {anchor}"))
        previous = latest = row.digest
        last = max(last, row.number)
        if len(flaws) >= MOST_FLAWS:
            return Verdict(count, Head(last, latest), tuple(flaws))
    end = _head(connection)
    if end is None:
        flaws.append(Flaw(last, "what says where the trail ends is gone"))
    elif end != Head(last, latest):
        first = last if end.number == last else min(last, end.number) + 1
        flaws.append(
            Flaw(first, f"the trail ends with {last}, and should end with {end}: cut, or added to")
        )
    flaws.extend(Flaw(number, "missing, and there is an anchor of it") for number in wanted)
    return Verdict(count, Head(last, latest), tuple(flaws))


def lines(database: Database, tenant: str | None = None, after: int = 0) -> Iterator[str]:
    """Records as JSON lines, the oldest first.

    Whoever reads them may be slow: no transaction is held open meanwhile.
    """
    while rows := database.read(partial(_some, after=after)):
        for row in rows:
            if tenant is None or row.tenant == tenant:
                yield f'{{"digest":"{row.digest}","record":{row.body}}}'
        after = rows[-1].number


def _walk(connection: Connection) -> Iterator[Any]:
    """Every record in order, a bounded number at a time."""
    after = None
    while rows := _some(connection, after):
        yield from rows
        after = rows[-1].number


def _some(connection: Connection, after: int | None) -> Sequence[Any]:
    query = select(audit).order_by(audit.c.number).limit(_BATCH)
    if after is not None:
        query = query.where(audit.c.number > after)
    return connection.execute(query).all()


def _wrong(row: Any, previous: str | None) -> str | None:
    """What is wrong with one record behind the one whose digest is ``previous``, if it is known."""
    try:
        data = json.loads(row.body)
        columns = (data["number"], data["time"], data["tenant"], data["action"])
        subject = escaped(data["subject"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "changed: it is no record any more"
    if row.number < 1:
        return "inserted: the first one is 1"
    if columns != (row.number, row.time, row.tenant, row.action) or subject != row.subject:
        return "changed: its columns differ from its body"
    if previous is not None and not _is_digest(previous):
        return None  # the one in front of it has no digest, and is named for it
    if not row.body.isascii() or (
        previous is not None and chained(previous, row.body) != row.digest
    ):
        return "changed, or not the one that stood here"
    return None
