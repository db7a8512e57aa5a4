"""How much of a tenant's is kept, as two numbers that change with what they count.

To add it up anew for each artefact would take the one writer longer the more a tenant keeps.
"""

from typing import Final

from sqlalchemy import select
from sqlalchemy.dialects import postgresql

from stockade.gateway.policy import Budgets
from stockade.gateway.schema import holdings, tenants
from stockade.gateway.writer import Turn

SMALLEST: Final = 4096
"""What an artefact counts for at least: rows and blocks are not free."""

_upsert = postgresql.insert  # PostgreSQL's insert is SQLite's too


def counted(size: int) -> int:
    """What an artefact of this size counts for."""
    return max(size, SMALLEST)


def read(turn: Turn, tenant: str) -> tuple[int, int, Budgets]:
    """Bytes of artefacts, bytes of workspaces, and the budgets."""
    row = turn.connection.execute(
        select(holdings.c.artefacts, holdings.c.workspaces, tenants.c.budgets)
        .select_from(tenants.outerjoin(holdings, holdings.c.tenant == tenants.c.name))
        .where(tenants.c.name == tenant)
    ).one()
    return row.artefacts or 0, row.workspaces or 0, Budgets.model_validate_json(row.budgets)


def change(turn: Turn, tenant: str, *, artefacts: int = 0, workspaces: int = 0) -> None:
    """In the transaction that enters or removes what they count."""
    add = _upsert(holdings).values(tenant=tenant, artefacts=artefacts, workspaces=workspaces)
    turn.connection.execute(
        add.on_conflict_do_update(
            index_elements=[holdings.c.tenant],
            set_={
                "artefacts": holdings.c.artefacts + add.excluded.artefacts,
                "workspaces": holdings.c.workspaces + add.excluded.workspaces,
            },
        )
    )
