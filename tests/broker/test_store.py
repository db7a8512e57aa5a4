"""At rest: sealed, bound to their place, and told only by adding."""

import base64
import os
import sqlite3
from pathlib import Path

import pytest

from stockade.api.credentials import Grant, Way, WayKind
from stockade.broker.keys import KeyFault, Keyring, ask_key_command, parse_keys, read_key_file
from stockade.broker.store import Store, StoreFault, UnknownCredential, Use

GRANT = Grant(rule="https://api.example.com", way=Way(kind=WayKind.BEARER))
SECRET = "sk-very-secret-0123456789"
USE = Use("acme", "run1", "key", "GET", "api.example.com", 443, "/v1")


def ring(*keys: bytes) -> Keyring:
    return Keyring(keys or (os.urandom(32),))


@pytest.fixture
def key() -> bytes:
    return os.urandom(32)


async def test_no_byte_of_a_secret_is_in_any_file(tmp_path: Path, key: bytes) -> None:
    store = Store.open(tmp_path / "b.db", ring(key))
    await store.put("acme", "key", SECRET, [GRANT])
    await store.put("acme", "key", SECRET + "-new", [GRANT])
    await store.open_credentials("acme", ["key"])
    await store.record([USE])
    during = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    store.close()
    for data in (during, *(path.read_bytes() for path in tmp_path.iterdir())):
        for spelled in (SECRET.encode(), base64.b64encode(SECRET.encode())[:24], key):
            assert spelled not in data
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} <= {0}


async def test_rows_that_are_swapped_do_not_open(tmp_path: Path, key: bytes) -> None:
    store = Store.open(tmp_path / "b.db", ring(key))
    await store.put("acme", "key", SECRET, [GRANT])
    await store.put("evil", "key", "something-else-9876", [GRANT])
    with sqlite3.connect(tmp_path / "b.db") as database:
        (sealed,) = database.execute(
            "SELECT sealed FROM credentials WHERE tenant='acme'"
        ).fetchone()
        database.execute("UPDATE credentials SET sealed = ? WHERE tenant = 'evil'", (sealed,))
    database.close()
    with pytest.raises(KeyFault, match="altered"):
        await store.open_credentials("evil", ["key"])
    store.close()


async def test_another_tenants_is_none(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "b.db", ring())
    await store.put("acme", "key", SECRET, [GRANT])
    with pytest.raises(UnknownCredential):
        await store.open_credentials("evil", ["key"])
    with pytest.raises(UnknownCredential):
        await store.delete("evil", "key")
    assert await store.credentials("evil") == ()
    store.close()


async def test_keys_are_rotated(tmp_path: Path, key: bytes) -> None:
    new = os.urandom(32)
    store = Store.open(tmp_path / "b.db", ring(key))
    await store.put("acme", "key", SECRET, [GRANT])
    store.close()
    store = Store.open(tmp_path / "b.db", ring(new, key))
    assert await store.reseal() == 1
    assert await store.reseal() == 0
    store.close()
    store = Store.open(tmp_path / "b.db", ring(new))
    (opened,) = await store.open_credentials("acme", ["key"])
    assert opened.secret == SECRET
    assert SECRET not in repr(opened)
    store.close()
    store = Store.open(tmp_path / "b.db", ring(key))
    with pytest.raises(KeyFault, match="not here"):
        await store.reseal()
    store.close()


async def test_uses_are_only_added(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "b.db", ring())
    numbers = await store.record([USE])
    (waiting,) = await store.uses("acme")
    assert waiting.status is None
    await store.answered(numbers, 200)
    await store.answered(numbers, 500)
    (done,) = await store.uses("acme", execution="run1", credential="key")
    assert (done.status, done.path) == (200, "/v1")
    database = sqlite3.connect(tmp_path / "b.db")
    for statement in (
        "DELETE FROM uses",
        "UPDATE uses SET path = '/'",
        "DELETE FROM answers",
        "UPDATE answers SET status = 404",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database.execute(statement)
    database.close()
    store.close()


async def test_deleting_leaves_the_uses(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "b.db", ring())
    await store.put("acme", "key", SECRET, [GRANT])
    await store.record([USE])
    await store.delete("acme", "key")
    assert await store.credentials("acme") == ()
    assert len(await store.uses("acme")) == 1
    store.close()


def test_a_file_that_others_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.db").touch(mode=0o644)
    with pytest.raises(StoreFault, match="chmod 600"):
        Store.open(tmp_path / "b.db", ring())
    target = tmp_path / "there"
    (tmp_path / "link.db").symlink_to(target)
    with pytest.raises(StoreFault):
        Store.open(tmp_path / "link.db", ring())
    assert not target.exists()


def test_keys_of_a_file(tmp_path: Path, key: bytes) -> None:
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text(base64.b64encode(key).decode() + "\n" + os.urandom(32).hex() + "\n")
    assert read_key_file(path)[0] == key
    path.chmod(0o644)
    with pytest.raises(KeyFault, match="every user"):
        read_key_file(path)
    with pytest.raises(KeyFault, match="cannot be read"):
        read_key_file(tmp_path / "missing")


async def test_keys_that_a_command_prints(key: bytes) -> None:
    assert await ask_key_command(["echo", base64.b64encode(key).decode()]) == [key]
    for command, said in (
        (["sh", "-c", f"echo {key.hex()}; exit 3"], "ended with 3"),
        (["/nowhere/vault"], "cannot be started"),
        (["echo", "short"], "no key"),
        (["yes"], "more than"),
    ):
        with pytest.raises(KeyFault, match=said) as caught:
            await ask_key_command(command)
        assert key.hex() not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "\n", "short", "a" * 44, "QUJD", "00" * 32, base64.b64encode(b"ab" * 16).decode()]
)
def test_keys_that_are_none(text: str) -> None:
    with pytest.raises(KeyFault) as caught:
        parse_keys(text, "key")
    assert not text.strip() or text.strip() not in str(caught.value)
