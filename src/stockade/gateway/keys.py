"""API keys.

A key is ``stockade_ID_SECRET``: an id to find it by, 32 random characters, and six of a checksum, so
that a scanner of repositories recognises it for certain and a mistyped one costs no look into the
database. Of the secret only the SHA-256 digest of the whole key is kept. That is no password: with
190 random bits there is nothing to guess, so a slow hash would protect nothing, and would let anybody
without a key keep the CPU busy.
"""

import asyncio
import hashlib
import hmac
import re
import secrets
import string
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, select, update

from stockade.gateway.clock import spell
from stockade.gateway.database import Database
from stockade.gateway.journal import Action
from stockade.gateway.policy import TenantPolicy
from stockade.gateway.schema import keys, tenants
from stockade.gateway.scopes import Scope
from stockade.gateway.tenants import check_name
from stockade.port import InvalidRequest, Refused

_ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_KEY: Final = re.compile(r"stockade_([0-9a-z]{12})_([0-9A-Za-z]{32})([0-9A-Za-z]{6})")
_NOBODY: Final = bytes(32)
CACHE_SECONDS: Final = 5.0
_CACHED: Final = 4096
_LONGEST: Final = 256
_LOOKING: Final = 4
_UNKNOWN: Final = "the key is not valid: unknown, expired or revoked"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and what it may do."""

    tenant: str
    key_id: str
    scopes: frozenset[Scope] = frozenset(Scope)
    policy: TenantPolicy = field(default_factory=TenantPolicy, compare=False)

    def need(self, scope: Scope) -> None:
        """Raises :class:`Refused`."""
        if scope not in self.scopes:
            has = ", ".join(sorted(self.scopes)) or "none"
            raise Refused("forbidden", f"this needs a key with scope {scope}; this one has: {has}")


@dataclass(frozen=True, slots=True)
class Key:
    """A key, without its secret."""

    id: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None


class Keys:
    """Keys of all tenants.

    A caller is remembered for ``cache_seconds``: that long at the most may a key go on that was
    revoked, or whose tenant was disabled. An expiry is kept to the moment.
    """

    def __init__(
        self,
        database: Database,
        *,
        cache_seconds: float = CACHE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._cache_seconds = cache_seconds
        self._monotonic = monotonic
        # By the digest of the whole key: a wrong secret never finds anything here, so that it
        # takes as long for an id that exists as for one that does not.
        self._cache: OrderedDict[bytes, tuple[float, int | None, Caller]] = OrderedDict()
        self._used: dict[str, int] = {}
        # Whoever tries keys leaves readers for those who have one.
        self._looking = asyncio.Semaphore(_LOOKING)

    # --- administration -------------------------------------------------------------------------

    def create(
        self,
        tenant: str,
        scopes: Iterable[Scope],
        expires_at: int | None = None,
        name: str = "",
    ) -> tuple[str, str]:
        """Make one; return its id, and the key itself, which nobody can find out later."""
        check_name(tenant)
        granted = frozenset(scopes)
        if not granted:
            raise InvalidRequest("scopes", f"none is given; there are: {', '.join(Scope)}")
        if len(name) > 128 or not name.isprintable():
            raise InvalidRequest("name", "it is not up to 128 printable characters")
        now = self._database.clock()
        if expires_at is not None and expires_at <= now:
            raise InvalidRequest("expires", f"{spell(expires_at)} is in the past")
        key_id = "".join(secrets.choice(string.digits + string.ascii_lowercase) for _ in range(12))
        text = _spell_key(key_id, "".join(secrets.choice(_ALPHABET) for _ in range(32)))
        with self._database.writing() as (connection, journal):
            if not connection.scalar(select(tenants.c.name).where(tenants.c.name == tenant)):
                raise Refused("not_found", f"there is no tenant {tenant}")
            connection.execute(
                insert(keys).values(
                    id=key_id,
                    tenant=tenant,
                    name=name,
                    digest=_digest(text),
                    scopes=" ".join(sorted(granted)),
                    created_at=now,
                    expires_at=expires_at,
                )
            )
            journal.add(
                Action.KEY_CREATED,
                key_id,
                tenant=tenant,
                facts={"name": name, "scopes": sorted(granted), "expires_at": expires_at},
            )
        return key_id, text

    def list(self, tenant: str | None = None) -> list[Key]:
        """Those of one tenant, or of all, the oldest first."""
        query = select(keys).order_by(keys.c.tenant, keys.c.created_at, keys.c.id)
        if tenant is not None:
            query = query.where(keys.c.tenant == tenant)
        return self._database.read(lambda c: [_key(row) for row in c.execute(query)])

    def revoke(self, key_id: str) -> Key:
        """Raises :class:`Refused`. One that was revoked before stays as it was."""
        with self._database.writing() as (connection, journal):
            row = connection.execute(select(keys).where(keys.c.id == key_id[:16])).one_or_none()
            if row is None:
                raise Refused("not_found", f"there is no key {key_id[:80]!r}")
            if row.revoked_at is None:
                now = self._database.clock()
                connection.execute(update(keys).where(keys.c.id == row.id).values(revoked_at=now))
                journal.add(Action.KEY_REVOKED, row.id, tenant=row.tenant)
                row = connection.execute(select(keys).where(keys.c.id == row.id)).one()
            return _key(row)

    # --- calls ----------------------------------------------------------------------------------

    async def authenticate(self, text: str) -> Caller:
        """Who calls with this key. Raises :class:`Refused`, always in the same words."""
        if len(text) > _LONGEST:
            raise Refused("unauthenticated", _UNKNOWN)
        digest = _digest(text)
        cached = self._cached(digest)
        if cached is not None:
            return cached
        parts = _KEY.fullmatch(text)
        if parts is None or _spell_key(parts[1], parts[2]) != text:
            raise Refused("unauthenticated", _UNKNOWN)
        async with self._looking:
            row = await self._database.run(lambda connection: _find(connection, parts[1]))
        # Compared for an unknown id as well: what differs is not to be measured.
        same = hmac.compare_digest(digest, _NOBODY if row is None else bytes(row.digest))
        if row is None or not same or not self._in_force(row):
            raise Refused("unauthenticated", _UNKNOWN)
        caller = Caller(
            row.tenant,
            row.id,
            frozenset(Scope(name) for name in row.scopes.split()),
            TenantPolicy.model_validate_json(row.policy),
        )
        self._cache[digest] = (self._monotonic() + self._cache_seconds, row.expires_at, caller)
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        self._used[caller.key_id] = self._database.clock()
        return caller

    def take_used(self) -> dict[str, int]:
        """Which keys were used since the last call, and when; for the one who writes."""
        used, self._used = self._used, {}
        return used

    def _cached(self, digest: bytes) -> Caller | None:
        found = self._cache.get(digest)
        if found is None:
            return None
        until, expires_at, caller = found
        if until <= self._monotonic() or not _before(self._database.clock(), expires_at):
            self._cache.pop(digest, None)
            return None
        self._used[caller.key_id] = self._database.clock()
        return caller

    def _in_force(self, row: Any) -> bool:
        return (
            row.revoked_at is None
            and row.disabled_at is None
            and _before(self._database.clock(), row.expires_at)
        )


def write_used(connection: Connection, used: dict[str, int]) -> None:
    """Keep when keys were last used."""
    if used:
        connection.execute(_USED, [{"key": key, "moment": used[key]} for key in sorted(used)])


_USED = update(keys).where(keys.c.id == bindparam("key")).values(last_used_at=bindparam("moment"))
_FIND = select(keys, tenants.c.policy, tenants.c.disabled_at).join(
    tenants, tenants.c.name == keys.c.tenant
)


def _find(connection: Connection, key_id: str) -> Any:
    return connection.execute(_FIND.where(keys.c.id == key_id)).one_or_none()


def _before(now: int, expires_at: int | None) -> bool:
    return expires_at is None or now < expires_at


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _spell_key(key_id: str, secret: str) -> str:
    body = f"stockade_{key_id}_{secret}"
    number, check = zlib.crc32(body.encode()), ""
    for _ in range(6):
        number, digit = divmod(number, 62)
        check = _ALPHABET[digit] + check
    return body + check


def _key(row: Any) -> Key:
    return Key(
        row.id,
        row.tenant,
        row.name,
        frozenset(Scope(name) for name in row.scopes.split()),
        row.created_at,
        row.expires_at,
        row.revoked_at,
        row.last_used_at,
    )


__all__ = ["CACHE_SECONDS", "Caller", "Key", "Keys", "Scope", "write_used"]
