import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text

from stockade.gateway.admission import _ACCOUNT
from stockade.gateway.database import Database, DatabaseFault
from stockade.gateway.migrations import revisions, upgrade
from stockade.gateway.schema import metadata
from stockade.gateway.writer import Turn, Writer


def test_the_migrations_lead_to_the_schema_that_the_code_has(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_migrating_again_changes_nothing(database: Database) -> None:
    before = revisions(database.engine)
    assert database.migrate() == before[0] == before[1]
    database.check()


def test_two_that_migrate_at_once_do_it_once(database_url: str) -> None:
    databases = [Database.open(database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(Database.migrate, databases))) == 1
    for database in databases:
        database.check()
        database.close()


def test_from_the_first_revision_on_data_is_kept(database_url: str) -> None:
    database = Database.open(database_url)
    assert upgrade(database.engine, "0001") == "0001"
    with database.engine.connect() as connection, connection.begin():
        connection.execute(
            text(
                "INSERT INTO tenants (name, created_at, policy, budgets) "
                "VALUES ('acme', 1, '{}', '{}')"
            )
        )
        for place, size in (("a", 5), ("b", 5000)):
            connection.execute(
                text("INSERT INTO artefacts VALUES ('acme', :place, :size, :place, 1, 2)"),
                {"place": place, "size": size},
            )
    database.migrate()
    database.check()
    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT name, policy FROM tenants")).all() == [
            ("acme", "{}")
        ]
        assert connection.scalar(text("SELECT number FROM audit_head")) == 0
        assert connection.execute(text("SELECT * FROM holdings")).all() == [("acme", 9096, 0)]
        names = set(inspect(connection).get_table_names())
    assert names == {*metadata.tables, "alembic_version"}
    database.close()


def test_an_empty_database_is_not_served(database_url: str) -> None:
    database = Database.open(database_url)
    with pytest.raises(DatabaseFault, match="is empty: `stockade gateway --migrate`"):
        database.check()
    database.close()


def test_a_newer_database_is_refused(database: Database) -> None:
    database.spoilt = True  # type: ignore[attr-defined]
    with database.engine.connect() as connection, connection.begin():
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DatabaseFault, match="newer Stockade"):
        database.check()


@pytest.mark.parametrize(
    "url",
    ["", "x", "sqlite://", "sqlite:///:memory:", "mysql://x/y", "sqlite:////a.db?mode=ro",
     "http://x", "\0"],
)  # fmt: skip
def test_what_is_no_database_is_refused_in_words(url: str) -> None:
    with pytest.raises(DatabaseFault):
        Database.open(url)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Database.open(f"sqlite:///{path}").close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(DatabaseFault, match="chmod 600"):
        Database.open(f"sqlite:///{path}")
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with pytest.raises(DatabaseFault):
        Database.open(f"sqlite:///{link}")


def test_what_sqlite_promises_is_set_on_each_connection(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path}/a.db")
    connections = [database.engine.connect() for _ in range(5)]
    for connection in connections:
        got = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]
        assert got == ["wal", 2, 1, 10_000]
        connection.close()
    database.close()


def test_a_password_is_not_shown() -> None:
    database = Database.open("postgresql://user:s3cret@localhost:1/x")
    assert "s3cret" not in database.name
    with pytest.raises(DatabaseFault) as fault:
        database.check()
    assert "s3cret" not in str(fault.value)
    database.close()


def test_the_migrations_are_part_of_the_package() -> None:
    import stockade.gateway.migrations

    folder = Path(stockade.gateway.migrations.__file__).parent
    assert sys.modules["stockade.gateway.migrations"].__file__ is not None
    assert (folder / "env.py").exists()
    assert list((folder / "versions").glob("r*.py"))


def test_what_runs_is_found_without_what_has_ended(tmp_path: Path) -> None:
    """SQLite's planner chose the index of the listing: each begin then read all that ever ran."""
    database = Database.open(f"sqlite:///{tmp_path}/a.db")
    database.migrate()
    with database.engine.connect() as connection:
        query = _ACCOUNT._for(connection)
        assert query.names is not None
        plan = connection.connection.cursor().execute(
            "EXPLAIN QUERY PLAN " + query.text, [None] * len(query.names)
        )
        steps = " ".join(row[3] for row in plan)
    assert "COVERING INDEX ix_executions_running (tenant=? AND ended_at=?)" in steps
    assert "COVERING INDEX ix_sandboxes_open (tenant=? AND closed_at=?)" in steps
    database.close()


async def test_what_a_power_cut_must_not_take_waits_for_the_disk(tmp_path: Path) -> None:
    """Idempotency keys: the rest is whole after the death of any process, and quicker."""
    database = Database.open(f"sqlite:///{tmp_path}/a.db")
    database.migrate()
    writer = Writer(database)
    writer.start()
    try:

        def synchronous(turn: Turn) -> int:
            # A pragma that reads is let into a transaction.
            return int(turn.connection.exec_driver_sql("PRAGMA synchronous").scalar_one())

        normal, full = 1, 2
        assert await writer.write(synchronous) == normal
        assert await writer.submit(synchronous, durable=True).future == full
        assert await writer.write(synchronous) == normal
    finally:
        await writer.close()
        database.close()
