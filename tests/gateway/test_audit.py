"""The trail: what any single change of it looks like, and what no change can do unseen."""

import asyncio
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from tests.gateway.conftest import MakeCaller, SetClock, facts

from stockade.gateway import refusals
from stockade.gateway.audit import Audit, Head, find, head, lines, verify
from stockade.gateway.database import Database
from stockade.gateway.journal import GENESIS, MAX_BODY, Action, chained
from stockade.gateway.ledger import Ledger
from stockade.port import Execution, InvalidRequest, Outcome, Refused

HOSTILE = [
    "two\nlines\r\n",
    "\x1b[2J\x1b]0;title\x07",
    "\udc80\udcff",
    "nul\0byte",
    '"},{"number":1',
    "' ; DROP TABLE audit; --",
    "\u202e\u200b",
    "x" * 100_000,
]


def write(database: Database, count: int) -> None:
    with database.writing() as (_, journal):
        for i in range(count):
            journal.add(Action.EXECUTION_ENDED, f"e{i}", tenant="acme", facts={"i": i, "f": 0.1})


def test_whatever_a_caller_names_is_kept_as_data(database: Database) -> None:
    with database.writing() as (_, journal):
        for name in HOSTILE:
            journal.add(Action.EXECUTION_ENDED, name, tenant="acme", facts={"name": name})
    page = database.read(lambda connection: find(connection, "acme"))
    kept = [record.subject for record in reversed(page.records)]
    assert kept == [name[:512] for name in HOSTILE]
    assert [record.facts["name"] for record in reversed(page.records)] == HOSTILE
    exported = list(lines(database))
    assert len(exported) == len(HOSTILE)
    assert all(line.isascii() and line.isprintable() for line in exported)
    assert json.loads(exported[2])["record"]["subject"] == HOSTILE[2]
    found = database.read(lambda connection: find(connection, "acme", subject=HOSTILE[2]))
    assert len(found.records) == 1


def test_facts_that_are_too_long_are_a_digest(database: Database) -> None:
    with database.writing() as (_, journal):
        journal.add(Action.EXECUTION_ENDED, "e", tenant="acme", facts={"source": "x" * MAX_BODY})
    record = database.read(lambda connection: find(connection, "acme")).records[0]
    assert set(record.facts) == {"too_long", "sha256"}


def test_a_cursor_of_another_tenant_is_none(database: Database) -> None:
    with database.writing() as (_, journal):
        for name in ("acme", "globex", "acme", "globex"):
            journal.add(Action.EXECUTION_ENDED, "e", tenant=name)
    foreign = database.read(lambda connection: find(connection, "globex", limit=1)).next
    own = database.read(lambda connection: find(connection, "acme", limit=1)).next
    assert own is not None
    assert len(database.read(lambda connection: find(connection, "acme", own)).records) == 1
    for cursor in (foreign, "x", "", GENESIS, "' OR ''='", "\udc80" * 64):
        with pytest.raises(InvalidRequest, match="cursor"):
            database.read(partial(find, tenant="acme", cursor=cursor))


async def test_a_tenant_reads_its_own_records_alone(
    database: Database, ledger: Ledger, tenant: MakeCaller
) -> None:
    acme, globex = tenant("acme"), tenant("globex")
    await ledger.begin_execution(acme, "e1", facts())
    await ledger.begin_execution(globex, "e2", facts())
    page = await Audit(database).query("acme")
    assert {record.tenant for record in page.records} == {"acme"}
    assert "number" not in page.records[0].for_tenant()


async def test_a_flood_of_refusals_is_counted_and_not_written_one_by_one(
    database: Database, keys: object, tenant: MakeCaller
) -> None:
    moment = [0.0]
    async with Ledger(database, heartbeat_seconds=3600, monotonic=lambda: moment[0]) as ledger:
        acme = tenant(concurrency=0)
        before = database.read(head).number
        for i in range(200):
            with pytest.raises(Refused):
                await ledger.begin_execution(acme, f"e{i}", facts())
        assert database.read(head).number == before + refusals.EACH
        moment[0] = 61.0
        await ledger.beat()
    page = database.read(lambda connection: find(connection, "acme", limit=1))
    assert page.records[0].facts == {"code": "budget_exhausted", "more": 200 - refusals.EACH}


def test_flooding_with_ever_new_kinds_is_bounded() -> None:
    counted = refusals.Refusals(lambda: 0.0)
    written = sum(
        counted.first(f"t{i}", None, Action.REQUEST_REFUSED, "forbidden") for i in range(50_000)
    )
    assert written <= 1000 + refusals.EACH


def test_a_clock_that_is_set_back_breaks_nothing(database: Database, clock: SetClock) -> None:
    write(database, 2)
    clock.add(-86_400)
    write(database, 2)
    assert database.read(verify).sound


async def test_a_trail_is_verified_while_others_write(
    database: Database, ledger: Ledger, tenant: MakeCaller
) -> None:
    acme, stop = tenant(concurrency=1000), asyncio.Event()

    async def write_on() -> None:
        i = 0
        while not stop.is_set():
            i += 1
            await ledger.begin_execution(acme, f"e{i}", facts())
            await ledger.end_execution(f"e{i}", Execution(Outcome.OK, ""))

    writing = asyncio.create_task(write_on())
    for _ in range(15):
        verdict = await asyncio.to_thread(database.read_at_once, verify)
        assert verdict.sound, verdict.flaws
    stop.set()
    await writing


# --- mutations -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trail") / "gateway.db"
    database = Database.open(f"sqlite:///{path}", SetClock())
    database.migrate()
    write(database, 12)
    database.close()
    return path


COLUMNS = ["number", "digest", "time", "tenant", "action", "subject", "body"]


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_single_change_is_found(
    trail: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    database = Database.open(f"sqlite:///{trail}")
    kind = data.draw(
        st.sampled_from(["column", "flip", "delete", "delete tail", "swap", "insert", "head"])
    )
    number = data.draw(st.integers(1, 12), label="number")
    with database.engine.connect() as connection:
        transaction = connection.begin()
        try:
            row = dict(
                connection.execute(
                    text("SELECT * FROM audit WHERE number = :number"), {"number": number}
                )
                .one()
                ._mapping
            )
            match kind:
                case "column":
                    name = data.draw(st.sampled_from(COLUMNS))
                    value: object = data.draw(
                        st.text(st.characters(exclude_categories=["Cs"]), max_size=70)
                        if name not in ("number", "time")
                        else st.integers(-(2**60), 2**60)
                    )
                    if name in ("number", "digest"):  # unique: what is there cannot be named anew
                        taken = connection.scalars(text(f"SELECT {name} FROM audit")).all()
                        if value in taken:
                            return
                    if value == row[name]:
                        return
                    connection.execute(
                        text(f"UPDATE audit SET {name} = :value WHERE number = :number"),
                        {"value": value, "number": number},
                    )
                case "flip":
                    name = data.draw(st.sampled_from(["digest", "action", "subject", "body"]))
                    place = data.draw(st.integers(0, len(row[name]) - 1))
                    old = row[name][place]
                    new = data.draw(st.sampled_from([c for c in '0a{}" \u00e9' if c != old]))
                    connection.execute(
                        text(f"UPDATE audit SET {name} = :value WHERE number = :number"),
                        {"value": row[name][:place] + new + row[name][place + 1 :],
                         "number": number},
                    )  # fmt: skip
                case "delete":
                    connection.execute(
                        text("DELETE FROM audit WHERE number = :number"), {"number": number}
                    )
                case "delete tail":
                    connection.execute(
                        text("DELETE FROM audit WHERE number >= :number"), {"number": number}
                    )
                case "swap":
                    other = data.draw(st.integers(1, 12).filter(lambda i: i != number))
                    for a, b in ((number, 99), (other, number), (99, other)):
                        connection.execute(
                            text("UPDATE audit SET number = :b WHERE number = :a"), {"a": a, "b": b}
                        )
                case "insert":
                    where = data.draw(st.sampled_from([0, -5, 13, 14, 2**40]))
                    body = row["body"].replace(f'"number":{number}', f'"number":{where}')
                    connection.execute(
                        text(
                            "INSERT INTO audit VALUES (:number, :digest, :time, :tenant, :action, "
                            ":subject, :body)"
                        ),
                        {**row, "number": where, "body": body,
                         "digest": chained(row["digest"], body)},
                    )  # fmt: skip
                case "head":
                    connection.execute(
                        data.draw(
                            st.sampled_from(
                                [
                                    text("DELETE FROM audit_head"),
                                    text("UPDATE audit_head SET number = number - 1"),
                                    text("UPDATE audit_head SET digest = upper(digest) || ''"),
                                ]
                            )
                        )
                    )
            verdict = verify(connection)
            assert not verdict.sound, (kind, number)
            if kind in ("delete", "flip") and number < 12:
                assert verdict.flaws[0].number in (number, number + 1), verdict.flaws
        finally:
            transaction.rollback()
            database.close()


def test_a_trail_that_was_cut_and_mended_is_found_by_an_anchor(trail: Path) -> None:
    """Whoever can write all of the database can make a sound one: so the end is kept elsewhere."""
    database = Database.open(f"sqlite:///{trail}")
    anchor = database.read(head)
    assert Head.parse(str(anchor)) == anchor
    with database.engine.connect() as connection, connection.begin() as transaction:
        connection.execute(text("DELETE FROM audit WHERE number > 10"))
        connection.execute(
            text(
                "UPDATE audit_head SET number = 10, "
                "digest = (SELECT digest FROM audit WHERE number = 10)"
            )
        )
        assert verify(connection).sound
        flaws = verify(connection, (anchor,)).flaws
        assert [flaw.number for flaw in flaws] == [12]
        transaction.rollback()
    database.close()


@pytest.mark.parametrize("after", [0, 3, 7])
def test_a_process_that_is_killed_leaves_a_sound_trail(tmp_path: Path, after: int) -> None:
    """``kill -9`` between two commits, and within one."""
    url = f"sqlite:///{tmp_path}/gateway.db"
    database = Database.open(url)
    database.migrate()
    program = """if True:
        import os, sys
        from stockade.gateway.database import Database
        from stockade.gateway.journal import Action
        database = Database.open(sys.argv[1])
        for i in range(int(sys.argv[2])):
            with database.writing() as (_, journal):
                journal.add(Action.EXECUTION_ENDED, "e")
        with database.writing() as (_, journal):
            journal.add(Action.EXECUTION_ENDED, "e")
            journal.finish()
            os.kill(os.getpid(), 9)
    """
    done = subprocess.run([sys.executable, "-c", program, url, str(after)], check=False)
    assert done.returncode == -9
    verdict = database.read(verify)
    assert verdict.sound
    assert verdict.records == after
    database.close()
