"""Artefacts: opaque bytes by their digest, each tenant's own.

The bytes are stored first and entered in the database then: what a crash leaves between is bytes
that nobody knows, and a sweep removes them.
"""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from stockade.gateway import cursors, holdings
from stockade.gateway.blobs import BlobGone, Blobs
from stockade.gateway.clock import SECOND
from stockade.gateway.database import Database
from stockade.gateway.journal import Action
from stockade.gateway.keys import Caller
from stockade.gateway.ledger import Ledger
from stockade.gateway.schema import artefacts
from stockade.gateway.writer import Turn
from stockade.port import Execution, InvalidRequest, MissingArtefact, Refused

MAX_PAGE: Final = 500
_TOGETHER: Final = 200


@dataclass(frozen=True, slots=True)
class ArtefactEntry:
    """An artefact that is kept."""

    digest: str
    size: int
    created_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class ArtefactPage:
    """Artefacts, the latest first, and where to go on."""

    artefacts: tuple[ArtefactEntry, ...]
    next: str | None


class ArtefactStore:
    """The artefacts of all tenants. The same content is stored once for each tenant."""

    def __init__(
        self, database: Database, ledger: Ledger, blobs: Blobs, ttl_seconds: float, most_bytes: int
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._blobs = blobs
        self._ttl = round(ttl_seconds * SECOND)
        self._most_bytes = most_bytes

    async def keep(self, caller: Caller, execution: Execution) -> tuple[Execution, list[str]]:
        """Keep the artefacts of a record; return the record, and their digests.

        One that is not kept becomes one that is missing, with the reason.
        """
        kept, missing, digests = [], list(execution.missing_artefacts), []
        for artefact in execution.artefacts:
            try:
                await self.put(caller.tenant, artefact.digest, artefact.data)
            except Refused as refused:
                missing.append(MissingArtefact(artefact.name, str(refused)))
            else:
                kept.append(artefact)
                digests.append(artefact.digest)
        if not execution.artefacts:
            return execution, []
        return (
            replace(execution, artefacts=tuple(kept), missing_artefacts=tuple(missing)),
            digests,
        )

    async def put(self, tenant: str, digest: str, data: bytes) -> ArtefactEntry:
        """Keep one, or keep it longer where it is there. Raises :class:`Refused`."""
        if digest != "sha256:" + hashlib.sha256(data).hexdigest():
            raise InvalidRequest("digest", "it is not the digest of the bytes")
        if len(data) > self._most_bytes:
            raise Refused(
                "too_large", f"an artefact of {len(data)} bytes exceeds {self._most_bytes}"
            )
        # Asked first, so that nothing is uploaded in vain; what counts is asked again below.
        found = await self._ledger.write(lambda turn: self._renew(turn, tenant, digest, len(data)))
        if found is not None:
            return found
        place = self._blobs.new_place(tenant)
        await self._blobs.put(place, data)
        try:
            entered = await self._ledger.write(
                lambda turn: self._enter(turn, tenant, digest, len(data), place)
            )
        except (Refused, IntegrityError):
            await self._blobs.delete(place)
            raise
        if entered is None:  # another call was faster
            await self._blobs.delete(place)
            return await self.find(tenant, digest)
        return entered

    async def find(self, tenant: str, digest: str) -> ArtefactEntry:
        """Raises :class:`Refused`."""
        row = await self._row(tenant, digest)
        return _entry(row)

    async def read(
        self, tenant: str, digest: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """The bytes, or those of a range that was checked against the size; ``end`` not included.

        Read whole, they are compared with the digest at the end. Raises :class:`Refused`.
        """
        row = await self._row(tenant, digest)
        stop = row.size if end is None else end
        if not 0 <= start <= stop <= row.size:
            raise InvalidRequest("range", f"it is not within 0 to {row.size}")
        whole = hashlib.sha256() if stop - start == row.size else None
        try:
            async for piece in self._blobs.get(row.place, start, stop, row.size):
                if whole is not None:
                    whole.update(piece)
                yield piece
        except BlobGone as gone:
            raise Refused("not_found", f"the artefact is lost: {gone}") from gone
        if whole is not None and "sha256:" + whole.hexdigest() != digest:
            raise Refused("not_found", "the artefact is damaged: its bytes have another digest")

    async def list(self, tenant: str, cursor: str | None = None, limit: int = 100) -> ArtefactPage:
        """The latest first. Raises :class:`InvalidRequest`."""
        return await self._database.run(
            lambda connection: _list(connection, tenant, cursor, limit, self._database.clock())
        )

    async def delete(self, caller: Caller, digest: str) -> None:
        """Raises :class:`Refused`."""
        place = await self._ledger.write(lambda turn: _delete(turn, caller, digest))
        await self._blobs.delete(place)

    async def sweep(self) -> int:
        """Remove what has expired, and bytes that nobody knows; return how many."""
        removed = 0
        while places := await self._ledger.write(_expire):
            await self._blobs.delete(*places)
            removed += len(places)
        return removed + await self._blobs.sweep(self._known)

    async def _known(self, places: Collection[str]) -> Sequence[str]:
        query = select(artefacts.c.place).where(artefacts.c.place.in_(places))
        return await self._database.run(lambda connection: list(connection.scalars(query)))

    async def _row(self, tenant: str, digest: str) -> Any:
        now = self._database.clock()
        query = select(artefacts).where(
            artefacts.c.tenant == tenant,
            artefacts.c.digest == _plain(digest),
            artefacts.c.expires_at > now,
        )
        row = await self._database.run(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise _absent()
        return row

    def _renew(
        self, turn: Turn, tenant: str, digest: str, size: int
    ) -> ArtefactEntry | Refused | None:
        row = turn.connection.execute(
            update(artefacts)
            .where(
                artefacts.c.tenant == tenant,
                artefacts.c.digest == digest,
                artefacts.c.expires_at > turn.now,
            )
            .values(expires_at=turn.now + self._ttl)
            .returning(
                artefacts.c.digest, artefacts.c.size, artefacts.c.created_at,
                artefacts.c.expires_at,
            )
        ).one_or_none()  # fmt: skip
        return _over_budget(turn, tenant, size) if row is None else _entry(row)

    def _enter(
        self, turn: Turn, tenant: str, digest: str, size: int, place: str
    ) -> ArtefactEntry | Refused | None:
        there = turn.connection.scalar(
            select(artefacts.c.expires_at).where(
                artefacts.c.tenant == tenant, artefacts.c.digest == digest
            )
        )
        if there is not None:
            if there > turn.now:
                return None
            # Expired, and not yet swept: its bytes are then known to nobody, and are swept as such.
            _remove(turn, (artefacts.c.tenant == tenant) & (artefacts.c.digest == digest))
        refused = _over_budget(turn, tenant, size)
        if refused is not None:
            return refused
        entered = ArtefactEntry(digest, size, turn.now, turn.now + self._ttl)
        turn.connection.execute(
            insert(artefacts).values(
                tenant=tenant,
                digest=digest,
                size=size,
                place=place,
                created_at=entered.created_at,
                expires_at=entered.expires_at,
            )
        )
        holdings.change(turn, tenant, artefacts=holdings.counted(size))
        turn.journal.add(Action.ARTEFACT_KEPT, digest, tenant=tenant, facts={"size": size})
        return entered


def _over_budget(turn: Turn, tenant: str, more: int) -> Refused | None:
    used, _, budgets = holdings.read(turn, tenant)
    if used + holdings.counted(more) <= budgets.artefact_bytes:
        return None
    return Refused(
        "budget_exhausted",
        f"{used} bytes of artefacts are kept, of {budgets.artefact_bytes}; {more} more do not fit "
        f"(each counts for {holdings.SMALLEST} at least): delete some",
    )


def _delete(turn: Turn, caller: Caller, digest: str) -> str | Refused:
    mine = artefacts.c.tenant == caller.tenant
    places = _remove(turn, mine & (artefacts.c.digest == _plain(digest)))
    if not places:
        return _absent()
    turn.journal.add(Action.ARTEFACT_DELETED, digest, tenant=caller.tenant, key_id=caller.key_id)
    return places[0]


def _expire(turn: Turn) -> list[str]:
    over = (
        select(artefacts.c.place)
        .where(artefacts.c.expires_at <= turn.now)
        .order_by(artefacts.c.expires_at)
        .limit(_TOGETHER)
    )
    return _remove(turn, artefacts.c.place.in_(over))


def _remove(turn: Turn, which: Any) -> list[str]:
    """Remove rows, and count them no more; return the places of their bytes."""
    rows = turn.connection.execute(
        delete(artefacts)
        .where(which)
        .returning(artefacts.c.tenant, artefacts.c.size, artefacts.c.place)
    ).all()
    freed = Counter[str]()
    for row in rows:
        freed[row.tenant] += holdings.counted(row.size)
    for tenant, size in freed.items():
        holdings.change(turn, tenant, artefacts=-size)
    return [row.place for row in rows]


def _list(
    connection: Connection, tenant: str, cursor: str | None, limit: int, now: int
) -> ArtefactPage:
    query = select(artefacts).where(artefacts.c.tenant == tenant, artefacts.c.expires_at > now)
    rows, following = cursors.page(
        connection, query, artefacts.c.created_at, artefacts.c.digest, cursor, limit, MAX_PAGE
    )
    return ArtefactPage(tuple(_entry(row) for row in rows), following)


def _entry(row: Any) -> ArtefactEntry:
    return ArtefactEntry(row.digest, row.size, row.created_at, row.expires_at)


def _plain(digest: str) -> str:
    """The digest, or one that is nobody's."""
    return digest if len(digest) == 71 and digest.isascii() and digest.isprintable() else ""


def _absent() -> Refused:
    return Refused("not_found", "there is no such artefact")
