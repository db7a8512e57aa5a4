"""``stockade tenant``, ``key`` and ``audit``: on a database of SQLite."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from tests.cli.conftest import Ended, Stockade

from stockade.gateway.database import Database, DatabaseFault
from stockade.gateway.journal import Action
from stockade.gateway.keys import Keys

Run = Callable[..., Ended]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/gateway.db"


@pytest.fixture
def run(stockade: Stockade, url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    database = Database.open(url)
    database.migrate()
    database.close()
    monkeypatch.setenv("STOCKADE_GATEWAY__DATABASE_URL", url)
    return stockade


def test_a_tenant_is_added_shown_changed_and_disabled(run: Run) -> None:
    added = run("tenant", "add", "acme", "--tier", "gvisor", "--ceiling", "wall_seconds=2m",
                "--ceiling", "memory-bytes=1G", "--budget", "concurrency=3",
                "--budget", "artefact_bytes=0")  # fmt: skip
    assert (added.code, added.said) == (
        0, "stockade: tenant acme is there; `stockade key add acme` makes a key for it\n",
    )  # fmt: skip
    shown = json.loads(run("tenant", "show", "acme", "--json").out)
    assert shown["policy"]["tiers"] == ["gvisor"]
    assert shown["policy"]["ceilings"]["wall_seconds"] == 120
    assert shown["policy"]["ceilings"]["memory_bytes"] == 2**30
    assert (shown["budgets"]["concurrency"], shown["budgets"]["artefact_bytes"]) == (3, 0)
    assert run("tenant", "set", "acme", "--budget", "concurrency=4", "--keep-source").code == 0
    shown = json.loads(run("tenant", "show", "acme", "--json").out)
    assert shown["budgets"]["concurrency"] == 4
    assert shown["policy"]["keep_source"] is True
    assert shown["policy"]["tiers"] == ["gvisor"]
    assert run("tenant", "set", "acme").said == "stockade: nothing changes\n"
    assert run("tenant", "disable", "acme").code == 0
    assert b"gvisor" in run("tenant", "list").out
    assert json.loads(run("tenant", "list", "--json").out)["tenants"][0]["disabled_at"]
    assert run("tenant", "enable", "acme").code == 0
    assert b"budget concurrency" in run("tenant", "show", "acme").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tenant", "add", "acme"), "there is a tenant acme already"),
        (("tenant", "add", "Ac me"), "'Ac me' is no name"),
        (("tenant", "add", "a\x1b[2J"), "is no name"),
        (("tenant", "show", "' OR 1=1 --"), "there is no tenant"),
        (("tenant", "set", "nobody", "--tier", "gvisor"), "there is no tenant 'nobody'"),
        (("tenant", "add", "b", "--budget", "concurency=1"), "it is NAME=VALUE, with one of"),
        (("tenant", "add", "b", "--budget", "concurrency=-1"), "must not be negative"),
        (("tenant", "add", "b", "--budget", "concurrency=1", "--budget", "concurrency=2"),
         "more than once"),
        (("tenant", "add", "b", "--ceiling", "wall_seconds=400h"), "wall_seconds"),
        (("tenant", "add", "b", "--tier", "docker"), "is none of"),
        (("key", "add", "nobody"), "there is no tenant nobody"),
        (("key", "add", "acme", "--scope", "all"), "'all' is none of: run, read"),
        (("key", "add", "acme", "--expires", "1s"), "it is like 12h"),
        (("key", "add", "acme", "--expires", "2001-01-01"), "in the past"),
        (("key", "revoke", "nobody"), "there is no key"),
        (("audit", "verify", "--anchor", "1"), "an anchor is like"),
        (("audit", "list", "--limit", "201"), "201"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_nothing_is_changed(
    run: Run, arguments: tuple[str, ...], said: str
) -> None:
    run("tenant", "add", "acme")
    before = run("audit", "head").out
    ended = run(*arguments)
    assert ended.code == 64
    assert said in ended.said
    assert "\x1b" not in ended.said
    assert run("audit", "head").out == before


def test_a_key_is_printed_once_alone_on_standard_output(run: Run, url: str) -> None:
    run("tenant", "add", "acme")
    made = run("key", "add", "acme", "--scope", "run", "--expires", "12h", "--name", "ci")
    assert made.code == 0
    key = made.out.decode().strip()
    assert key.startswith("stockade_")
    assert key not in made.said
    listed = json.loads(run("key", "list", "--json").out)["keys"]
    assert [(each["tenant"], each["scopes"], each["name"]) for each in listed] == [
        ("acme", ["run"], "ci")
    ]
    for command in (("key", "list"), ("audit", "list"), ("audit", "export")):
        assert key.split("_")[2].encode() not in run(*command).out
    revoked = run("key", "revoke", key)
    assert revoked.code == 0
    assert key not in revoked.said
    assert b"revoked" in run("key", "list", "--tenant", "acme").out
    database = Database.open(url)
    assert Keys(database).list()[0].revoked_at is not None
    database.close()


def test_the_trail_is_verified_and_what_was_changed_is_named(run: Run, url: str) -> None:
    for name in ("a", "b", "c"):
        run("tenant", "add", name)
    anchor = run("audit", "head").out.decode().strip()
    sound = run("audit", "verify", "--anchor", anchor)
    assert sound.code == 0
    assert "3 records are as they were written" in sound.said
    database = Database.open(url)
    with database.engine.connect() as connection, connection.begin():
        connection.execute(text("DELETE FROM audit WHERE number = 2"))
    flawed = run("audit", "verify", "--anchor", anchor)
    assert flawed.code == 1
    assert flawed.out == b"record 2: missing: 2\n"
    assert json.loads(run("audit", "verify", "--json").out)["sound"] is False
    database.close()


def test_the_trail_is_safe_to_print(run: Run, url: str) -> None:
    database = Database.open(url)
    with database.writing() as (_, journal):
        journal.add(
            Action.EXECUTION_ENDED,
            "\x1b]0;x\x07\nfake",
            tenant="acme",
            facts={"x": "\u202e\x1b[2J"},
        )
    database.close()
    for command in (("audit", "list"), ("audit", "export", "--tenant", "acme")):
        out = run(*command).out.decode()
        assert not set(out) & {"\x1b", "\x07", "\u202e"}
    assert json.loads(run("audit", "export").out)["record"]["subject"] == "\x1b]0;x\x07\nfake"
    assert run("audit", "export", "--after", "1").out == b""


def test_an_empty_database_says_what_makes_its_tables(
    stockade: Stockade, url: str, tmp_path: Path
) -> None:
    (tmp_path / "gateway.db").touch(0o600)
    ended = stockade("tenant", "list", "--database", url)
    assert ended.code == 69
    assert "`stockade gateway --migrate` makes its tables" in ended.said


def test_the_database_may_be_named_by_the_configuration(
    run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOCKADE_GATEWAY__DATABASE_URL")
    config = tmp_path / "stockade.toml"
    config.write_text(f'[gateway]\ndatabase_url = "{url}"\n')
    assert run("tenant", "add", "acme", "--config", str(config)).code == 0
    assert b"acme" in run("tenant", "list", "--database", url).out
    config.write_text('[gateway]\ndatabase = "x"\n')
    assert "database_url" in run("tenant", "list", "--config", str(config)).said


@pytest.mark.parametrize(
    "command",
    [
        ("audit", "verify"), ("audit", "head"), ("audit", "list"), ("audit", "export"),
        ("tenant", "list"), ("tenant", "add", "acme"), ("tenant", "show", "acme"),
        ("key", "list"), ("key", "add", "acme"),
    ],
)  # fmt: skip
def test_a_database_that_is_not_there_is_not_made(
    stockade: Stockade, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """A slip in the name is said, and leaves no folder and no file."""
    url = f"sqlite:///{tmp_path}/gatewey/gateway.db"
    ended = stockade(*command, "--database", url)
    assert ended.code == 69
    assert f"there is no database {tmp_path}/gatewey/gateway.db" in ended.said
    assert "`stockade gateway --migrate` makes one" in ended.said
    assert not (tmp_path / "gatewey").exists()


READING = [
    ("audit", "verify"), ("audit", "head"), ("audit", "list"), ("audit", "export"),
    ("tenant", "list"), ("tenant", "show", "acme"), ("key", "list"),
]  # fmt: skip


def _state(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode)
        for path in folder.iterdir()
    }


def test_reading_a_copy_writes_nothing(run: Run, tmp_path: Path) -> None:
    """It may be evidence, or on a disk that cannot be written; others may read it as well."""
    run("tenant", "add", "acme")
    head = run("audit", "head").out
    folder = tmp_path / "a copy?#%"
    folder.mkdir()
    copy = folder / "gateway.db"
    copy.write_bytes((tmp_path / "gateway.db").read_bytes())
    copy.chmod(0o444)
    folder.chmod(0o555)
    before = _state(folder)
    for command in READING:
        ended = run(*command, "--database", f"sqlite:///{str(copy).replace('?', '%3F')}")
        if ended.code:  # how a URL has it is for SQLAlchemy to say
            ended = run(*command, "--database", f"sqlite:///{copy}")
        assert ended.code == 0, ended.said
        if command == ("audit", "head"):
            assert ended.out == head
    assert _state(folder) == before
    folder.chmod(0o755)


def test_what_is_only_in_the_log_is_read_too(run: Run, url: str, tmp_path: Path) -> None:
    """Of a gateway that runs, or was killed: its last records are not in the file yet."""
    database = Database.open(url)
    with database.writing() as (_, journal):
        journal.add(Action.EXECUTION_ENDED, "x", tenant="acme", facts={})
    assert (tmp_path / "gateway.db-wal").stat().st_size
    assert "1 records are as they were written" in run("audit", "verify").said
    assert b"execution.ended" in run("audit", "list").out
    database.close()


def test_what_is_written_meanwhile_is_not_taken_for_sound(run: Run, url: str) -> None:
    """A file that nobody had open is read without locks."""
    run("tenant", "add", "acme")
    reading = Database.open_to_read(url)
    assert reading.read(lambda connection: connection.execute(text("SELECT 1")).scalar()) == 1
    reading.check_unchanged()
    with pytest.raises(OperationalError):
        reading.read(lambda connection: connection.execute(text("DELETE FROM audit")))
    assert run("tenant", "add", "other").code == 0
    with pytest.raises(DatabaseFault, match="try again"):
        reading.check_unchanged()
    reading.close()


def test_a_log_on_a_read_only_disk_is_not_passed_over(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in it would be missing, and the trail be sound without it."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and access(path, mode))
    (tmp_path / "gateway.db-wal").write_bytes(b"")
    assert run("audit", "verify").code == 0
    (tmp_path / "gateway.db-wal").write_bytes(b"something")
    ended = run("audit", "verify")
    assert ended.code == 69
    assert "the rest is in gateway.db-wal" in ended.said


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (("none",), "none"),
        (("public",), ["public"]),
        (("api.example.com:443", "*.example.com"), ["api.example.com:443", "*.example.com"]),
    ],
)
def test_what_a_tenants_code_may_reach(run: Run, given: tuple[str, ...], kept: object) -> None:
    options = [word for rule in given for word in ("--egress", rule)]
    assert run("tenant", "add", "acme", *options).code == 0
    assert json.loads(run("tenant", "show", "acme", "--json").out)["policy"]["egress"] == kept
    assert b"egress" in run("tenant", "show", "acme").out
    # What is set takes the place of what was, and what is wrong changes nothing.
    assert run("tenant", "set", "acme", "--egress", "other.example").code == 0
    for wrong in (("not a rule",), ("none", "a.example"), ("public", "none")):
        options = [word for rule in wrong for word in ("--egress", rule)]
        assert run("tenant", "set", "acme", *options).code == 64, wrong
    shown = json.loads(run("tenant", "show", "acme", "--json").out)
    assert shown["policy"]["egress"] == ["other.example"]
