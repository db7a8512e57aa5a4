"""Workspaces that are kept between sessions: opaque bytes, which only a sandbox ever unpacks.

One open session at a time has a workspace. Each one that takes it gets a fence, one more than the
one before; a save with an older fence is refused, so that a session which was thought dead and is
not cannot overwrite what a later one has saved.
"""

from collections.abc import AsyncIterable, AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, delete, select, update

from stockade.gateway import cursors, holdings
from stockade.gateway.blobs import BlobGone, Blobs
from stockade.gateway.clock import SECOND
from stockade.gateway.database import Database
from stockade.gateway.journal import Action
from stockade.gateway.keys import Caller
from stockade.gateway.ledger import Ledger
from stockade.gateway.listing import SandboxEntry
from stockade.gateway.names import is_workspace
from stockade.gateway.schema import sandboxes, workspaces
from stockade.gateway.writer import Turn
from stockade.port import Refused

MAX_PAGE: Final = 500
_TOGETHER: Final = 200


@dataclass(frozen=True, slots=True)
class KeptWorkspace:
    """A workspace that is kept."""

    name: str
    generation: int
    """How often it was saved."""
    size: int
    saved_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class WorkspacePage:
    """Workspaces by the time of their last save, the latest first, and where to go on."""

    workspaces: tuple[KeptWorkspace, ...]
    next: str | None


class Workspaces:
    """The workspaces of all tenants."""

    def __init__(
        self, database: Database, ledger: Ledger, blobs: Blobs, ttl_seconds: float, most_bytes: int
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._blobs = blobs
        self._ttl = round(ttl_seconds * SECOND)
        self._most_bytes = most_bytes

    async def read(self, sandbox: SandboxEntry) -> AsyncIterator[bytes]:
        """What is to be put into a session that has just taken it; nothing, where it is new.

        Raises :class:`Refused`.
        """
        row = await self._database.run(lambda connection: _held(connection, sandbox))
        if row is None:
            raise _not_held()
        if row.place is None:
            return
        try:
            async for piece in self._blobs.get(row.place, 0, row.size, row.size):
                yield piece
        except BlobGone as gone:
            raise Refused("not_found", f"the workspace is lost: {gone}") from gone

    async def save(self, sandbox: SandboxEntry, pieces: AsyncIterable[bytes]) -> KeptWorkspace:
        """Replace it, whole or not at all. Raises :class:`Refused`.

        ``conflict`` where the session is not the one that has it any more, ``too_large``,
        ``budget_exhausted``.
        """
        place = self._blobs.new_place(sandbox.tenant)
        size = await self._blobs.put_stream(place, pieces, self._most_bytes, "a workspace")
        try:
            before, kept = await self._ledger.write(
                lambda turn: self._enter(turn, sandbox, place, size)
            )
        except Refused:
            await self._blobs.delete(place)
            raise
        if before is not None:
            await self._blobs.delete(before)
        return kept

    async def list(self, tenant: str, cursor: str | None = None, limit: int = 100) -> WorkspacePage:
        """Those that were saved. Raises :class:`InvalidRequest`."""
        return await self._database.run(
            lambda connection: _list(connection, tenant, cursor, limit, self._database.clock())
        )

    async def delete(self, caller: Caller, name: str) -> None:
        """Raises :class:`Refused`: ``conflict`` while a session has it."""
        place = await self._ledger.write(lambda turn: _delete(turn, caller, name))
        if place is not None:
            await self._blobs.delete(place)

    async def sweep(self) -> int:
        """Remove what has expired, and bytes that nobody knows; return how many."""
        removed = 0
        while rows := await self._ledger.write(_expire):
            await self._blobs.delete(*(place for place in rows if place is not None))
            removed += len(rows)
        return removed + await self._blobs.sweep(self._known)

    async def _known(self, places: Collection[str]) -> Sequence[str]:
        query = select(workspaces.c.place).where(workspaces.c.place.in_(places))
        return await self._database.run(
            lambda connection: [each for each in connection.scalars(query) if each is not None]
        )

    def _enter(
        self, turn: Turn, sandbox: SandboxEntry, place: str, size: int
    ) -> tuple[str | None, KeptWorkspace] | Refused:
        row = _held(turn.connection, sandbox)
        if row is None:
            return _not_held()
        _, used, budgets = holdings.read(turn, sandbox.tenant)
        others = used - row.size
        if others + size > budgets.workspace_bytes:
            return Refused(
                "budget_exhausted",
                f"{others} bytes of other workspaces are kept, of {budgets.workspace_bytes}; {size} "
                "more do not fit: delete some",
            )
        holdings.change(turn, sandbox.tenant, workspaces=size - row.size)
        kept = KeptWorkspace(row.name, row.generation + 1, size, turn.now, turn.now + self._ttl)
        turn.connection.execute(
            update(workspaces)
            .where(workspaces.c.tenant == sandbox.tenant, workspaces.c.name == row.name)
            .values(
                generation=kept.generation,
                size=size,
                place=place,
                saved_at=kept.saved_at,
                expires_at=kept.expires_at,
            )
        )
        turn.journal.add(
            Action.WORKSPACE_SAVED,
            row.name,
            tenant=sandbox.tenant,
            key_id=sandbox.key_id,
            facts={"size": size, "generation": kept.generation, "sandbox": sandbox.id},
        )
        return row.place, kept


def _held(connection: Connection, sandbox: SandboxEntry) -> Any:
    """The workspace's row, where this session is the one that has it."""
    return connection.execute(
        select(workspaces)
        .join(
            sandboxes,
            (sandboxes.c.tenant == workspaces.c.tenant)
            & (sandboxes.c.workspace == workspaces.c.name)
            & (sandboxes.c.fence == workspaces.c.fence),
        )
        .where(
            sandboxes.c.id == sandbox.id,
            sandboxes.c.tenant == sandbox.tenant,
            sandboxes.c.closed_at.is_(None),
        )
    ).one_or_none()


def _not_held() -> Refused:
    return Refused("conflict", "the session is not the one that has this workspace (any more)")


def _delete(turn: Turn, caller: Caller, name: str) -> str | Refused | None:
    if not is_workspace(name):
        return _absent()
    row = turn.connection.execute(
        select(workspaces).where(workspaces.c.tenant == caller.tenant, workspaces.c.name == name)
    ).one_or_none()
    if row is None:
        return _absent()
    if turn.connection.scalar(_holders(caller.tenant, name)) is not None:
        return Refused("conflict", "a session has the workspace; close that one first")
    turn.connection.execute(
        delete(workspaces).where(workspaces.c.tenant == caller.tenant, workspaces.c.name == name)
    )
    holdings.change(turn, caller.tenant, workspaces=-row.size)
    turn.journal.add(Action.WORKSPACE_DELETED, name, tenant=caller.tenant, key_id=caller.key_id)
    return None if row.place is None else str(row.place)


def _holders(tenant: Any, name: Any) -> Any:
    return select(sandboxes.c.id).where(
        sandboxes.c.tenant == tenant,
        sandboxes.c.workspace == name,
        sandboxes.c.closed_at.is_(None),
    )


def _expire(turn: Turn) -> list[str | None]:
    held = _holders(workspaces.c.tenant, workspaces.c.name).correlate(workspaces).exists()
    over = turn.connection.execute(
        select(workspaces.c.tenant, workspaces.c.name, workspaces.c.place, workspaces.c.size)
        .where(workspaces.c.expires_at <= turn.now, ~held)
        .limit(_TOGETHER)
    ).all()
    for row in over:
        holdings.change(turn, row.tenant, workspaces=-row.size)
        turn.connection.execute(
            delete(workspaces).where(
                workspaces.c.tenant == row.tenant, workspaces.c.name == row.name
            )
        )
    return [row.place for row in over]


def _list(
    connection: Connection, tenant: str, cursor: str | None, limit: int, now: int
) -> WorkspacePage:
    query = select(workspaces).where(
        workspaces.c.tenant == tenant,
        workspaces.c.expires_at > now,
        workspaces.c.saved_at.is_not(None),
    )
    rows, following = cursors.page(
        connection, query, workspaces.c.saved_at, workspaces.c.name, cursor, limit, MAX_PAGE
    )
    return WorkspacePage(
        tuple(
            KeptWorkspace(row.name, row.generation, row.size, row.saved_at, row.expires_at)
            for row in rows
        ),
        following,
    )


def _absent() -> Refused:
    return Refused("not_found", "there is no such workspace")
