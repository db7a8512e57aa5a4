"""Tenants: who things belong to."""

import re
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from stockade.gateway.database import Database
from stockade.gateway.journal import Action
from stockade.gateway.policy import Budgets, TenantPolicy
from stockade.gateway.schema import tenants
from stockade.port import InvalidRequest, Refused, Tier

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")
DEV_TENANT = "dev"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant."""

    name: str
    created_at: int
    disabled_at: int | None
    policy: TenantPolicy
    budgets: Budgets


def check_name(name: str) -> None:
    """Raises :class:`InvalidRequest`."""
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            "tenant",
            f"{name[:80]!r} is no name: 1 to 64 of a-z, 0-9, - and _, a letter or digit at each end",
        )


class Tenants:
    """Administration. Each change is in the audit trail, in the same transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, name: str, policy: TenantPolicy | None = None, budgets: Budgets | None = None
    ) -> Tenant:
        """Raises :class:`InvalidRequest`, and :class:`Refused` for a name that is taken."""
        check_name(name)
        policy, budgets = policy or TenantPolicy(), budgets or Budgets()
        created_at = self._database.clock()
        try:
            with self._database.writing() as (connection, journal):
                connection.execute(
                    insert(tenants).values(
                        name=name,
                        created_at=created_at,
                        policy=policy.model_dump_json(),
                        budgets=budgets.model_dump_json(),
                    )
                )
                journal.add(Action.TENANT_CREATED, name, tenant=name, facts=_facts(policy, budgets))
        except IntegrityError:
            raise Refused("conflict", f"there is a tenant {name} already") from None
        return Tenant(name, created_at, None, policy, budgets)

    def get(self, name: str) -> Tenant:
        """Raises :class:`Refused`."""
        return self._database.read(lambda connection: _get(connection, name))

    def list(self) -> list[Tenant]:
        """All of them, by name."""
        query = select(tenants).order_by(tenants.c.name)
        return self._database.read(lambda c: [_tenant(row) for row in c.execute(query)])

    def set(
        self, name: str, policy: TenantPolicy | None = None, budgets: Budgets | None = None
    ) -> Tenant:
        """Replace its policy or budgets. They hold for calls that come after it."""
        with self._database.writing() as (connection, journal):
            before = _get(connection, name)
            after = (policy or before.policy, budgets or before.budgets)
            connection.execute(
                update(tenants)
                .where(tenants.c.name == name)
                .values(policy=after[0].model_dump_json(), budgets=after[1].model_dump_json())
            )
            journal.add(Action.POLICY_CHANGED, name, tenant=name, facts=_facts(*after))
            return _get(connection, name)

    def disable(self, name: str) -> None:
        """Take no more calls with its keys. What runs goes on to its end."""
        self._set_disabled(name, self._database.clock(), Action.TENANT_DISABLED)

    def enable(self, name: str) -> None:
        """Take calls again."""
        self._set_disabled(name, None, Action.TENANT_ENABLED)

    def ensure_dev(self) -> Tenant:
        """The one tenant of ``auth_mode=dev``, which may use every tier."""
        try:
            return self.get(DEV_TENANT)
        except Refused:
            return self.create(DEV_TENANT, TenantPolicy(tiers=tuple(Tier)))

    def _set_disabled(self, name: str, moment: int | None, action: Action) -> None:
        with self._database.writing() as (connection, journal):
            before = _get(connection, name)
            if (before.disabled_at is None) == (moment is None):
                return
            connection.execute(
                update(tenants).where(tenants.c.name == name).values(disabled_at=moment)
            )
            journal.add(action, name, tenant=name)


def _get(connection: Connection, name: str) -> Tenant:
    row = None
    if _NAME.fullmatch(name) is not None:
        row = connection.execute(select(tenants).where(tenants.c.name == name)).one_or_none()
    if row is None:
        raise Refused("not_found", f"there is no tenant {name[:80]!r}")
    return _tenant(row)


def _tenant(row: Any) -> Tenant:
    return Tenant(
        row.name,
        row.created_at,
        row.disabled_at,
        TenantPolicy.model_validate_json(row.policy),
        Budgets.model_validate_json(row.budgets),
    )


def _facts(policy: TenantPolicy, budgets: Budgets) -> dict[str, Any]:
    return {"policy": policy.model_dump(mode="json"), "budgets": budgets.model_dump(mode="json")}
