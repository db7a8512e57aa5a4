import asyncio
import hmac
import re

import pytest
from sqlalchemy import text
from tests.gateway.conftest import SetClock, rows

from stockade.gateway.database import Database
from stockade.gateway.keys import Keys, Scope
from stockade.gateway.ledger import Ledger
from stockade.gateway.schema import audit, keys
from stockade.gateway.tenants import Tenants
from stockade.port import InvalidRequest, Refused

SAID = "the key is not valid: unknown, expired or revoked"


@pytest.fixture
def acme(database: Database) -> str:
    Tenants(database).create("acme")
    return "acme"


async def refusal(found: Keys, key: str) -> str:
    with pytest.raises(Refused) as refused:
        await found.authenticate(key)
    assert refused.value.code == "unauthenticated"
    return str(refused.value)


async def test_a_key_names_its_tenant_and_scopes_and_its_secret_is_kept_nowhere(
    database: Database, acme: str
) -> None:
    key_id, key = Keys(database).create(acme, [Scope.RUN, Scope.READ], name="ci")
    assert re.fullmatch(r"stockade_[0-9a-z]{12}_[0-9A-Za-z]{38}", key)
    caller = await Keys(database).authenticate(key)
    assert (caller.tenant, caller.key_id) == ("acme", key_id)
    caller.need(Scope.RUN)
    with pytest.raises(Refused, match="needs a key with scope audit; this one has: read, run"):
        caller.need(Scope.AUDIT)
    secret = key.split("_")[2][:32]
    everything = str(rows(database, keys)) + str(rows(database, audit))
    assert secret not in everything
    assert key_id in everything


async def test_every_wrong_key_is_refused_in_the_same_words(
    database: Database, acme: str, clock: SetClock
) -> None:
    found = Keys(database, cache_seconds=0)
    _, valid = found.create(acme, Scope)
    _, expired = found.create(acme, Scope, clock.time + 10_000_000)
    revoked_id, revoked = found.create(acme, Scope)
    found.revoke(revoked_id)
    Tenants(database).create("gone")
    _, gone = found.create("gone", Scope)
    Tenants(database).disable("gone")
    # A key whose checksum is right, of an id that exists, with another secret; and of none.
    from stockade.gateway.keys import _spell_key

    other_secret = _spell_key(valid.split("_")[1], "A" * 32)
    unknown = _spell_key("a" * 12, "A" * 32)
    clock.add(11)
    wrong = [
        expired, revoked, gone, other_secret, unknown, valid[:-1], valid + "x", valid.upper(), "",
        "stockade_", "\0", "\udc80", "x" * 1_000_000, "' OR 1=1 --", valid + "\n", " " + valid,
    ]  # fmt: skip
    assert {await refusal(found, key) for key in wrong} == {SAID}
    assert (await found.authenticate(valid)).tenant == acme


async def test_a_wrong_secret_takes_the_same_way_as_an_unknown_id(
    database: Database, acme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is one look into the database and one comparison, warm cache or not."""
    from stockade.gateway import keys as module

    found = Keys(database)
    _, valid = found.create(acme, Scope)
    await found.authenticate(valid)
    steps: list[str] = []
    find, compare = module._find, hmac.compare_digest

    def finding(connection: object, key_id: str) -> object:
        steps.append("find")
        return find(connection, key_id)  # type: ignore[arg-type]

    def comparing(a: bytes, b: bytes) -> bool:
        steps.append("compare")
        return bool(compare(a, b))

    monkeypatch.setattr(module, "_find", finding)
    monkeypatch.setattr(hmac, "compare_digest", comparing)
    await refusal(found, module._spell_key(valid.split("_")[1], "A" * 32))
    known, steps[:] = list(steps), []
    await refusal(found, module._spell_key("a" * 12, "A" * 32))
    assert known == steps == ["find", "compare"]


async def test_a_revoked_key_lives_no_longer_than_the_bound(database: Database, acme: str) -> None:
    moment = [0.0]
    found = Keys(database, cache_seconds=5, monotonic=lambda: moment[0])
    key_id, key = found.create(acme, Scope)
    await found.authenticate(key)
    Keys(database).revoke(key_id)
    moment[0] = 4.9
    await found.authenticate(key)
    moment[0] = 5.0
    assert await refusal(found, key) == SAID


async def test_an_expiry_is_kept_to_the_moment_whatever_is_remembered(
    database: Database, acme: str, clock: SetClock
) -> None:
    found = Keys(database, cache_seconds=60)
    _, key = found.create(acme, Scope, clock.time + 1_000_000)
    await found.authenticate(key)
    clock.add(1)
    assert await refusal(found, key) == SAID


async def test_when_a_key_was_used_is_written_with_the_next_beat(
    database: Database, keys: Keys, ledger: Ledger, acme: str
) -> None:
    _, key = keys.create(acme, Scope)
    assert keys.list()[0].last_used_at is None
    await asyncio.gather(*(keys.authenticate(key) for _ in range(5)))
    await ledger.beat()
    assert keys.list()[0].last_used_at is not None


async def test_what_is_remembered_is_bounded(database: Database, acme: str) -> None:
    from stockade.gateway import keys as module

    found = Keys(database)
    for i in range(30):
        await refusal(found, module._spell_key("a" * 12, f"{i:032}"))
    assert len(found._cache) == 0


def test_a_key_is_made_for_a_tenant_that_is_there_and_for_a_time_to_come(
    database: Database, acme: str, clock: SetClock
) -> None:
    found = Keys(database)
    with pytest.raises(Refused, match="no tenant nobody"):
        found.create("nobody", Scope)
    with pytest.raises(InvalidRequest, match="past"):
        found.create(acme, Scope, clock.time - 1)
    with pytest.raises(InvalidRequest, match="scopes"):
        found.create(acme, [])
    with pytest.raises(InvalidRequest, match="printable"):
        found.create(acme, Scope, name="two\nlines")
    with pytest.raises(Refused, match="no key"):
        found.revoke("' OR 1=1 --")


def test_an_unknown_scope_in_the_database_is_no_scope(database: Database, acme: str) -> None:
    Keys(database).create(acme, Scope)
    with database.engine.connect() as connection, connection.begin():
        connection.execute(text("UPDATE keys SET scopes = 'run everything'"))
    with pytest.raises(ValueError, match="everything"):
        Keys(database).list()
