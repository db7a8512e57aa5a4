"""The registry of tools: each tenant's own, each version immutable, one of them live.

A version is there whole or not at all, and only after it was looked at and has passed its examples
(:mod:`~stockade.gateway.tools_calls`).
"""

import json
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from sqlalchemy import Connection, delete, func, insert, select, tuple_, update

from stockade.gateway import cursors
from stockade.gateway.database import Database
from stockade.gateway.journal import Action
from stockade.gateway.keys import Caller
from stockade.gateway.ledger import Ledger
from stockade.gateway.schema import tool_versions, tools
from stockade.gateway.writer import Turn
from stockade.port import MIB, Refused, Tier
from stockade.tools import json_text
from stockade.tools.definition import Tool, is_name

MOST_TOOLS: Final = 1000
"""Of one tenant."""
MOST_VERSIONS: Final = 200
"""Of one tool, kept."""
MOST_BYTES_OF_VERSIONS: Final = 32 * MIB
"""Of one tool, kept: a listing of them reads them all."""
MOST_BYTES_OF_PAGE: Final = 32 * MIB
MAX_PAGE: Final = 500
_CACHED: Final = 512
_LARGEST_CACHED: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class Version:
    """One version, as it is kept."""

    tool: Tool
    number: int
    digest: str
    created_at: int
    key_id: str
    tier: Tier
    reason: str
    """Why this tier."""
    tested: int
    """How many examples it passed before it was stored."""
    live: bool
    disabled: bool

    @property
    def label(self) -> str:
        """As people write it."""
        return f"{self.tool.name}@{self.number}"


@dataclass(frozen=True, slots=True)
class ToolPage:
    """The live versions, the tool that was made last first, and where to go on."""

    versions: tuple[Version, ...]
    next: str | None


class Tools:
    """The tools of all tenants."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self._database = database
        self._ledger = ledger
        # Definitions by digest: what is read for each call is only which one it is.
        self._definitions: dict[str, Tool] = {}

    def __repr__(self) -> str:
        return f"<Tools: {len(self._definitions)} definitions at hand>"

    async def add(
        self, caller: Caller, tool: Tool, tier: Tier, reason: str, tested: int
    ) -> Version:
        """Store the next version, and make it the live one. Raises :class:`Refused`."""
        definition = json_text.canonical(tool.as_data()).decode("ascii")
        return await self._ledger.write(
            lambda turn: self._add(turn, caller, tool, definition, tier, reason, tested)
        )

    async def find(self, tenant: str, name: str, number: int | None = None) -> Version:
        """The live one, or the one of this number. Raises :class:`Refused`."""
        if not is_name(name):
            raise _absent()
        row, definition, known = await self._database.run(
            lambda connection: self._read(connection, tenant, name, number)
        )
        if row is None:
            raise _absent()
        return self._version(row, definition, known)

    async def list(self, tenant: str, cursor: str | None = None, limit: int = 100) -> ToolPage:
        """Raises :class:`~stockade.port.InvalidRequest`."""
        rows, definitions, following = await self._database.run(
            lambda connection: _page(connection, tenant, cursor, limit)
        )
        return ToolPage(tuple(self._version(row, definitions[row.name]) for row in rows), following)

    async def versions(self, tenant: str, name: str) -> tuple[Version, ...]:
        """All that are kept, the latest first. Raises :class:`Refused`."""
        if not is_name(name):
            raise _absent()
        query = (
            _versions(tool_versions.c.definition)
            .where(tools.c.tenant == tenant, tools.c.name == name)
            .order_by(tool_versions.c.version.desc())
        )
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        if not rows:
            raise _absent()
        return tuple(self._version(row, row.definition) for row in rows)

    async def make_live(self, caller: Caller, name: str, number: int) -> None:
        """Call this version from now on. Raises :class:`Refused`."""
        await self._ledger.write(lambda turn: _make_live(turn, caller, name, number))

    async def set_enabled(self, caller: Caller, name: str, enabled: bool) -> None:
        """What is disabled is not called; it may be stored anew, and enabled again."""
        await self._ledger.write(lambda turn: _set_enabled(turn, caller, name, enabled))

    async def remove(self, caller: Caller, name: str) -> None:
        """With all of its versions."""
        await self._ledger.write(lambda turn: _remove(turn, caller, name))

    def _read(
        self, connection: Connection, tenant: str, name: str, number: int | None
    ) -> tuple[Any, str | None, Tool | None]:
        row = _find(connection, tenant, name, number)
        known = None if row is None else self._definitions.get(row.digest)
        if row is None or known is not None:
            return row, None, known
        definition = connection.scalar(
            select(tool_versions.c.definition).where(
                tool_versions.c.tenant == tenant,
                tool_versions.c.name == name,
                tool_versions.c.version == row.version,
            )
        )
        return (None if definition is None else row), definition, None

    def _add(
        self,
        turn: Turn,
        caller: Caller,
        tool: Tool,
        definition: str,
        tier: Tier,
        reason: str,
        tested: int,
    ) -> Version | Refused:
        mine = (tools.c.tenant == caller.tenant) & (tools.c.name == tool.name)
        row = turn.connection.execute(select(tools).where(mine)).one_or_none()
        if row is None:
            count = turn.connection.scalar(
                select(func.count()).select_from(tools).where(tools.c.tenant == caller.tenant)
            )
            if (count or 0) >= MOST_TOOLS:
                return Refused(
                    "budget_exhausted", f"{count} tools are kept, of {MOST_TOOLS}: remove some"
                )
        number = 1 if row is None else row.latest + 1
        digest = tool.digest
        values = {
            "tenant": caller.tenant,
            "name": tool.name,
            "version": number,
            "digest": digest,
            "created_at": turn.now,
            "key_id": caller.key_id,
            "tier": tier.value,
            "reason": reason,
            "tested": tested,
            "definition": definition,
        }
        turn.connection.execute(insert(tool_versions).values(values))
        if row is None:
            turn.connection.execute(
                insert(tools).values(
                    tenant=caller.tenant,
                    name=tool.name,
                    created_at=turn.now,
                    live=number,
                    latest=number,
                )
            )
        else:
            turn.connection.execute(update(tools).where(mine).values(live=number, latest=number))
            # The oldest make room; the live one is the newest.
            turn.connection.execute(
                delete(tool_versions).where(
                    tool_versions.c.tenant == caller.tenant,
                    tool_versions.c.name == tool.name,
                    tool_versions.c.version <= _trimmed(turn.connection, caller.tenant, tool.name),
                )
            )
        turn.journal.add(
            Action.TOOL_STORED,
            tool.name,
            tenant=caller.tenant,
            key_id=caller.key_id,
            facts={
                "version": number,
                "digest": digest,
                "language": tool.language.value,
                "tier": tier.value,
                "reason": reason,
                "trust": tool.trust.value,
                "egress": [str(rule) for rule in tool.egress],
                "credentials": list(tool.credentials),
                "tested": tested,
            },
        )
        disabled = row is not None and row.disabled_at is not None
        return Version(
            tool, number, digest, turn.now, caller.key_id, tier, reason, tested, True, disabled
        )

    def _version(self, row: Any, definition: str | None, known: Tool | None = None) -> Version:
        tool = known or self._definitions.get(row.digest)
        if tool is None:
            tool = Tool.of_data(json.loads(definition or "null"))
            if len(definition or "") <= _LARGEST_CACHED:
                while len(self._definitions) >= _CACHED:
                    self._definitions.pop(next(iter(self._definitions)), None)
                self._definitions[row.digest] = tool
        return Version(
            tool=tool,
            number=row.version,
            digest=row.digest,
            created_at=row.stored_at,
            key_id=row.key_id,
            tier=Tier(row.tier),
            reason=row.reason,
            tested=row.tested,
            live=row.live == row.version,
            disabled=row.disabled_at is not None,
        )


def _versions(*more: Any) -> Any:
    return select(
        *more,
        tools.c.name,
        tools.c.created_at,
        tools.c.live,
        tools.c.disabled_at,
        tool_versions.c.version,
        tool_versions.c.digest,
        tool_versions.c.created_at.label("stored_at"),
        tool_versions.c.key_id,
        tool_versions.c.tier,
        tool_versions.c.reason,
        tool_versions.c.tested,
    ).join(
        tool_versions,
        (tool_versions.c.tenant == tools.c.tenant) & (tool_versions.c.name == tools.c.name),
    )


def _trimmed(connection: Connection, tenant: str, name: str) -> int:
    """The latest version that there is no room for; 0: there is for all."""
    size = 0
    kept = connection.execute(
        select(tool_versions.c.version, func.length(tool_versions.c.definition))
        .where(tool_versions.c.tenant == tenant, tool_versions.c.name == name)
        .order_by(tool_versions.c.version.desc())
    )
    for count, (version, length) in enumerate(kept.all()):
        size += length
        if count and (count >= MOST_VERSIONS or size > MOST_BYTES_OF_VERSIONS):
            return int(version)
    return 0


def _page(
    connection: Connection, tenant: str, cursor: str | None, limit: int
) -> tuple[list[Any], dict[str, str], str | None]:
    """Rows, their definitions by name, and where to go on: fewer of them where they are large."""
    rows, following = cursors.page(
        connection,
        _versions(func.length(tool_versions.c.definition).label("length")).where(
            tools.c.tenant == tenant, tool_versions.c.version == tools.c.live
        ),
        tools.c.created_at,
        tools.c.name,
        cursor,
        limit,
        MAX_PAGE,
    )
    sizes = accumulate(row.length for row in rows)
    most = max(1, sum(size <= MOST_BYTES_OF_PAGE for size in sizes))
    if most < len(rows):
        rows = rows[:most]
        following = cursors.spell(rows[-1].created_at, rows[-1].name)
    # Those of their versions alone: one could be stored in between.
    found = connection.execute(
        select(tool_versions.c.name, tool_versions.c.definition).where(
            tool_versions.c.tenant == tenant,
            tuple_(tool_versions.c.name, tool_versions.c.version).in_(
                [(row.name, row.version) for row in rows]
            ),
        )
    )
    definitions: dict[str, str] = {row.name: row.definition for row in found}
    return [row for row in rows if row.name in definitions], definitions, following


def _find(connection: Connection, tenant: str, name: str, number: int | None) -> Any:
    wanted = tools.c.live if number is None else number
    return connection.execute(
        _versions().where(
            tools.c.tenant == tenant, tools.c.name == name, tool_versions.c.version == wanted
        )
    ).one_or_none()


def _make_live(turn: Turn, caller: Caller, name: str, number: int) -> Refused | None:
    row = None if not is_name(name) else _find(turn.connection, caller.tenant, name, number)
    if row is None:
        return _absent()
    if row.live == number:
        return None
    turn.connection.execute(
        update(tools)
        .where(tools.c.tenant == caller.tenant, tools.c.name == name)
        .values(live=number)
    )
    turn.journal.add(
        Action.TOOL_ROLLED_BACK,
        name,
        tenant=caller.tenant,
        key_id=caller.key_id,
        facts={"from": row.live, "to": number, "digest": row.digest},
    )
    return None


def _set_enabled(turn: Turn, caller: Caller, name: str, enabled: bool) -> Refused | None:
    if not is_name(name):
        return _absent()
    mine = (tools.c.tenant == caller.tenant) & (tools.c.name == name)
    row = turn.connection.execute(select(tools.c.disabled_at).where(mine)).one_or_none()
    if row is None:
        return _absent()
    if (row.disabled_at is None) is enabled:
        return None
    turn.connection.execute(
        update(tools).where(mine).values(disabled_at=None if enabled else turn.now)
    )
    action = Action.TOOL_ENABLED if enabled else Action.TOOL_DISABLED
    turn.journal.add(action, name, tenant=caller.tenant, key_id=caller.key_id)
    return None


def _remove(turn: Turn, caller: Caller, name: str) -> Refused | None:
    if not is_name(name):
        return _absent()
    gone = turn.connection.execute(
        delete(tools).where(tools.c.tenant == caller.tenant, tools.c.name == name)
    )
    if not gone.rowcount:
        return _absent()
    turn.connection.execute(
        delete(tool_versions).where(
            tool_versions.c.tenant == caller.tenant, tool_versions.c.name == name
        )
    )
    turn.journal.add(Action.TOOL_REMOVED, name, tenant=caller.tenant, key_id=caller.key_id)
    return None


def _absent() -> Refused:
    return Refused("not_found", "there is no such thing")
