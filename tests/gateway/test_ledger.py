import asyncio
import base64
import contextlib
import itertools
import os
import subprocess
import sys

import pytest
from sqlalchemy.exc import OperationalError
from tests.gateway.conftest import MakeCaller, SetClock, facts, rows, url_of

from stockade.gateway.audit import verify
from stockade.gateway.database import Database, DatabaseFault
from stockade.gateway.executions import Begun, Repeated, RequestFacts
from stockade.gateway.keys import Caller, Keys
from stockade.gateway.ledger import Ledger
from stockade.gateway.schema import audit, executions, records
from stockade.gateway.tenants import Tenants
from stockade.port import (
    Captured,
    Execution,
    ExecutionRequest,
    InvalidRequest,
    Limits,
    Outcome,
    PythonSource,
    Refused,
    SandboxRequest,
    Unavailable,
    Usage,
)

OK = Execution(
    Outcome.OK,
    "it ran",
    exit_code=0,
    stdout=Captured(b"42\n", b"", 3),
    usage=Usage(wall_seconds=0.5, cpu_seconds=0.25, peak_memory_bytes=64 * 2**20),
)


async def test_an_execution_begins_ends_and_is_found_with_its_record(
    ledger: Ledger, tenant: MakeCaller
) -> None:
    acme = tenant()
    assert await ledger.begin_execution(acme, "e1", facts()) == Begun("e1")
    assert (await ledger.find_execution("acme", "e1")).state == "running"
    await ledger.end_execution("e1", OK)
    found = await ledger.find_execution("acme", "e1")
    assert (found.state, found.outcome) == ("ended", Outcome.OK)
    assert found.record is not None
    assert found.record.stdout.head == b"42\n"
    assert found.shortened == ()


async def test_another_tenants_execution_is_as_one_that_never_was(
    ledger: Ledger, tenant: MakeCaller
) -> None:
    await ledger.begin_execution(tenant(), "e1", facts())
    tenant("globex")
    texts = []
    for name in ("e1", "e2", "", "x\0", "\udc80", "' OR 1=1 --", "x" * 5000):
        with pytest.raises(Refused) as refused:
            await ledger.find_execution("globex", name)
        texts.append((refused.value.code, str(refused.value)))
    assert set(texts) == {("not_found", "there is no such execution")}


async def test_ending_twice_is_refused_and_charged_once(ledger: Ledger, tenant: MakeCaller) -> None:
    acme = tenant()
    await ledger.begin_execution(acme, "e1", facts())
    results = await asyncio.gather(
        *(ledger.end_execution("e1", OK) for _ in range(8)), return_exceptions=True
    )
    assert [result for result in results if result is None] == [None]
    assert all(isinstance(result, Refused | None) for result in results)
    day = ledger._database.clock() // 86_400_000_000
    report = await ledger.usage("acme", day, day)
    assert report.days[0].executions == 1
    assert report.days[0].cpu_seconds == 0.25
    assert report.days[0].memory_gib_seconds == 0.03125


async def test_a_hundred_at_once_with_a_budget_of_ten_are_exactly_ten(
    ledger: Ledger, tenant: MakeCaller
) -> None:
    acme = tenant(concurrency=10)
    results = await asyncio.gather(
        *(ledger.begin_execution(acme, f"e{i}", facts(cpu_seconds=1)) for i in range(100)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, Begun) for result in results) == 10
    refused = [result for result in results if isinstance(result, Refused)]
    assert len(refused) == 90
    assert {(each.code, each.retry_after) for each in refused} == {("budget_exhausted", 1.0)}
    assert "10 executions run, and 10 may at once" in str(refused[0])


async def test_a_repeated_request_gets_the_first_ones_record_and_never_runs_twice(
    ledger: Ledger, tenant: MakeCaller
) -> None:
    acme = tenant()

    def begin(i: int, digest: str = "d") -> object:
        return ledger.begin_execution(
            acme, f"e{i}", facts(), idempotency_key="k", request_digest=digest
        )

    results = await asyncio.gather(*(begin(i) for i in range(20)))  # type: ignore[call-overload]
    begun = [result for result in results if isinstance(result, Begun)]
    assert len(begun) == 1
    assert {r.earlier.id for r in results if isinstance(r, Repeated)} == {begun[0].id}
    await ledger.end_execution(begun[0].id, OK)
    again = await begin(30)  # type: ignore[misc]
    assert isinstance(again, Repeated)
    assert again.earlier.record is not None
    with pytest.raises(Refused) as refused:
        await begin(31, "another")  # type: ignore[misc]
    assert refused.value.code == "idempotency_conflict"


# --- budgets -------------------------------------------------------------------------------------


async def test_so_many_begin_within_a_minute_and_the_refusal_says_when_there_is_room(
    ledger: Ledger, tenant: MakeCaller, clock: SetClock
) -> None:
    acme = tenant(executions_per_minute=5)
    for i in range(5):
        await ledger.begin_execution(acme, f"e{i}", facts())
        await ledger.end_execution(f"e{i}", OK)
        clock.add(2)
    with pytest.raises(Refused, match="5 executions were begun within a minute, and 5 may") as no:
        await ledger.begin_execution(acme, "e5", facts())
    wait = no.value.retry_after
    assert wait is not None
    assert 48 <= wait <= 51
    clock.add(wait)
    assert await ledger.begin_execution(acme, "e6", facts()) == Begun("e6")


async def test_a_clock_that_is_set_back_locks_nobody_out(
    ledger: Ledger, tenant: MakeCaller, clock: SetClock
) -> None:
    acme = tenant(executions_per_minute=2)
    for i in range(2):
        await ledger.begin_execution(acme, f"e{i}", facts())
    clock.add(-3 * 86_400)
    for i in range(2, 4):
        assert await ledger.begin_execution(acme, f"e{i}", facts()) == Begun(f"e{i}")
    with pytest.raises(Refused):
        await ledger.begin_execution(acme, "e4", facts())
    for i in range(4):
        await ledger.end_execution(f"e{i}", OK)
    await ledger.beat()


async def test_what_runs_is_reserved_so_that_a_day_is_never_overdrawn(
    ledger: Ledger, tenant: MakeCaller, clock: SetClock
) -> None:
    acme = tenant(cpu_seconds_per_day=10)
    await ledger.begin_execution(acme, "e1", facts(cpu_seconds=8))
    with pytest.raises(Refused, match="0 are used and 8 reserved") as soon:
        await ledger.begin_execution(acme, "e2", facts(cpu_seconds=4))
    assert soon.value.retry_after == 1.0
    used = Execution(Outcome.OK, "", usage=Usage(wall_seconds=9, cpu_seconds=7.5))
    await ledger.end_execution("e1", used)
    with pytest.raises(Refused, match=r"7\.5 are used") as tomorrow:
        await ledger.begin_execution(acme, "e2", facts(cpu_seconds=4))
    assert tomorrow.value.retry_after is not None
    assert tomorrow.value.retry_after > 60
    await ledger.begin_execution(acme, "e2", facts(cpu_seconds=2))
    await ledger.end_execution("e2", OK)
    clock.add(tomorrow.value.retry_after)
    assert await ledger.begin_execution(acme, "e3", facts(cpu_seconds=4)) == Begun("e3")


async def test_what_could_not_be_measured_is_charged_as_all_that_it_may_have_been(
    ledger: Ledger, tenant: MakeCaller
) -> None:
    acme = tenant()
    await ledger.begin_execution(acme, "e1", facts(cpus=2, memory_bytes=2**30))
    await ledger.end_execution("e1", Execution(Outcome.OK, "", usage=Usage(wall_seconds=3)))
    day = ledger._database.clock() // 86_400_000_000
    report = await ledger.usage("acme", day, day)
    assert (report.days[0].cpu_seconds, report.days[0].memory_gib_seconds) == (6.0, 3.0)


async def test_a_session_is_charged_for_the_memory_it_held_and_its_executions_for_their_cpu(
    ledger: Ledger, tenant: MakeCaller, clock: SetClock
) -> None:
    acme = tenant(sandboxes=1)
    request = SandboxRequest(limits=Limits(memory_bytes=2**30))
    await ledger.begin_sandbox(acme, "s1", request, 60)
    with pytest.raises(Refused, match="1 sandboxes are open, and 1 may be"):
        await ledger.begin_sandbox(acme, "s2", request, 60)
    await ledger.begin_execution(acme, "e1", facts(), sandbox_id="s1")
    await ledger.end_execution("e1", OK)
    clock.add(20)
    assert (await ledger.extend_lease(acme, "s1", 60)).lease_until > clock.time + 59_000_000
    clock.add(20)
    await ledger.end_sandbox("s1", "closed")
    await ledger.end_sandbox("s1", "closed")
    day = clock.time // 86_400_000_000
    report = await ledger.usage("acme", day, day)
    assert (report.days[0].executions, report.days[0].sandboxes) == (1, 1)
    assert report.days[0].memory_gib_seconds == pytest.approx(40, abs=0.1)
    assert report.days[0].cpu_seconds == 0.25
    assert report.reserved_memory_gib_seconds == 0
    with pytest.raises(Refused, match="no such sandbox"):
        await ledger.begin_execution(acme, "e2", facts(), sandbox_id="s1")


async def test_a_session_is_not_extended_for_ever(
    ledger: Ledger, tenant: MakeCaller, clock: SetClock
) -> None:
    acme = tenant()
    await ledger.begin_sandbox(acme, "s1", SandboxRequest(), 60)
    clock.add(acme.policy.ceilings.session_seconds - 100)
    with pytest.raises(Refused, match="may last 86400"):
        await ledger.extend_lease(acme, "s1", 200)
    tenant("globex")
    for name in ("globex", "nobody"):
        with pytest.raises(Refused, match="no such sandbox"):
            await ledger.extend_lease(Caller(name, "k"), "s1", 1)


async def test_a_disabled_tenant_begins_nothing_whatever_a_cache_says(
    ledger: Ledger, database: Database, tenant: MakeCaller
) -> None:
    acme = tenant()
    Tenants(database).disable("acme")
    with pytest.raises(Refused, match="disabled"):
        await ledger.begin_execution(acme, "e1", facts())


# --- what must not get lost ----------------------------------------------------------------------


async def test_a_caller_that_goes_away_leaves_nothing_that_runs(
    ledger: Ledger, database: Database, tenant: MakeCaller
) -> None:
    acme, told = tenant(concurrency=500), set()
    for turn in range(20):
        tasks = [
            asyncio.create_task(ledger.begin_execution(acme, f"e{turn}-{i}", facts(cpu_seconds=1)))
            for i in range(10)
        ]
        await asyncio.sleep(0.0005 * turn)
        for task in tasks:
            task.cancel()
        # Who was told in time that it may run goes on to end it; all others are ended already.
        told |= {
            done.id
            for done in await asyncio.gather(*tasks, return_exceptions=True)
            if isinstance(done, Begun)
        }
    await ledger.beat()
    left = await ledger.list_executions("acme", limit=500, running=True)
    assert {each.id for each in left.executions} == told
    assert ledger._abandoned == {}


async def test_what_a_dead_gateway_left_is_lost_once_and_charged(
    database_url: str, clock: SetClock
) -> None:
    """It is killed with -9 while three executions and a session run."""
    database = Database.open(database_url, clock)
    database.migrate()
    Tenants(database).create("acme")
    program = """if True:
        import asyncio, os, sys
        from stockade.gateway.database import Database
        from stockade.gateway.keys import Caller
        from stockade.gateway.ledger import Ledger
        from stockade.port import SandboxRequest
        from tests.gateway.conftest import facts

        async def main():
            ledger = Ledger(Database.open(sys.argv[1], lambda: int(sys.argv[2])))
            await ledger.start()
            caller = Caller("acme", "k")
            await ledger.begin_sandbox(caller, "s1", SandboxRequest(), 60, "work")
            for i in range(3):
                await ledger.begin_execution(caller, f"e{i}", facts())
            os.kill(os.getpid(), 9)

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", program, database_url, str(clock.time)],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -9
    clock.add(5)
    moment = [0.0]
    async with (
        Ledger(database, heartbeat_seconds=3600, monotonic=lambda: moment[0]) as first,
        # With SQLite there is one gateway, and it knows at once.
        contextlib.nullcontext(first)
        if database.is_sqlite
        else Ledger(database, heartbeat_seconds=3600, monotonic=lambda: moment[0]) as second,
    ):
        for moment[0] in (0.0, 10.0, 19.0):
            await asyncio.gather(first.beat(), second.beat())
            if not database.is_sqlite:
                assert (await first.find_execution("acme", "e1")).state == "running"
        moment[0] = 21.0
        await asyncio.gather(first.beat(), second.beat())
        for i in range(3):
            found = await first.find_execution("acme", f"e{i}")
            assert found.outcome is Outcome.LOST
            assert found.record is not None
            assert found.record.detail == "its gateway died"
        # Its workspace is free.
        again = await first.begin_sandbox(Caller("acme", "k"), "s2", SandboxRequest(), 60, "work")
        assert again.fence == 2
        day = clock.time // 86_400_000_000
        report = await first.usage("acme", day, day)
        assert (report.days[0].executions, report.days[0].sandboxes) == (3, 1)
        assert 3 * 5 * 2 <= report.days[0].cpu_seconds <= 3 * 5 * 2 + 1
    actions = [record["action"] for record in rows(database, audit)]
    assert actions.count("execution.ended") == 3
    assert actions.count("gateway.lost") == 1
    assert database.read(verify).sound
    database.close()


async def test_a_gateway_that_was_thought_dead_cannot_end_what_others_have_ended(
    database: Database, tenant: MakeCaller
) -> None:
    if database.is_sqlite:
        pytest.skip("one gateway has the file")
    acme = tenant()
    moment = [0.0]
    slow = Ledger(database, heartbeat_seconds=3600)
    async with slow, Ledger(database, heartbeat_seconds=3600, monotonic=lambda: moment[0]) as other:
        await slow.begin_execution(acme, "e1", facts())
        before = slow.instance
        for moment[0] in (0.0, 30.0):
            await other.beat()
        with pytest.raises(Refused) as refused:
            await slow.end_execution("e1", OK)
        assert refused.value.code == "conflict"
        await slow.beat()
        assert slow.instance != before
        await slow.begin_execution(acme, "e2", facts())
        for moment[0] in (31.0, 40.0):
            await slow.beat()
            await other.beat()
        await slow.end_execution("e2", OK)


async def test_two_gateways_admit_exactly_ten_together(
    database: Database, tenant: MakeCaller
) -> None:
    if database.is_sqlite:
        pytest.skip("one gateway has the file")
    acme = tenant(concurrency=10)
    other = Database.open(url_of(database))
    async with Ledger(database) as one, Ledger(other) as two:
        results = await asyncio.gather(
            *(
                (one, two)[i % 2].begin_execution(acme, f"e{i}", facts(cpu_seconds=1))
                for i in range(100)
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(result, Begun) for result in results) == 10
        assert sum(isinstance(result, Refused) for result in results) == 90
        same = await asyncio.gather(
            *(
                (one, two)[i % 2].begin_execution(
                    acme, f"k{i}", facts(), idempotency_key="k", request_digest="d"
                )
                for i in range(20)
            ),
            return_exceptions=True,
        )
        assert not any(isinstance(result, Begun) for result in same)  # the budget is used up
    other.close()


async def test_a_second_gateway_with_the_same_sqlite_file_does_not_start(
    database: Database, ledger: Ledger
) -> None:
    if not database.is_sqlite:
        pytest.skip("several gateways may share a PostgreSQL")
    with pytest.raises(DatabaseFault, match="another gateway serves"):
        await Ledger(database).start()


async def test_an_end_is_written_when_the_database_is_back(
    database: Database, ledger: Ledger, tenant: MakeCaller
) -> None:
    acme = tenant()
    await ledger.begin_execution(acme, "e1", facts())
    commit, failures = ledger._writer._commit, [3]

    def fail(units: object) -> None:
        if failures[0]:
            failures[0] -= 1
            raise OperationalError("", {}, Exception("the disk is full"))
        commit(units)  # type: ignore[arg-type]

    ledger._writer._commit = fail  # type: ignore[method-assign]
    await ledger.end_execution("e1", OK)
    assert failures == [0]
    failures[0] = 3
    with pytest.raises(Unavailable, match="database"):
        await ledger.begin_execution(acme, "e2", facts())
    failures[0] = 0
    await ledger.beat()
    assert (await ledger.list_executions("acme", running=True)).executions == ()


async def test_what_could_not_be_ended_for_long_is_ended_as_lost(
    database: Database, keys: Keys, tenant: MakeCaller
) -> None:
    """Else it would run for ever, and hold its place in the tenant's budget."""
    acme = tenant(concurrency=1, sandboxes=1)
    moments = itertools.count(0, 61)  # each look at the clock is a minute later
    async with Ledger(
        database, keys, heartbeat_seconds=3600, monotonic=lambda: float(next(moments))
    ) as ledger:
        await ledger.begin_sandbox(acme, "s1", SandboxRequest(tenant="acme"), 60, "work")
        await ledger.begin_execution(acme, "e1", facts())
        commit = ledger._writer._commit

        def fail(units: object) -> None:
            raise OperationalError("", {}, Exception("the disk is full"))

        ledger._writer._commit = fail  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="database"):
            await ledger.end_execution("e1", OK)
        with pytest.raises(Unavailable, match="database"):
            await ledger.end_sandbox("s1", "closed")
        ledger._writer._commit = commit  # type: ignore[method-assign]
        await ledger.beat()
        assert (await ledger.find_execution("acme", "e1")).outcome is Outcome.LOST
        await ledger.begin_execution(acme, "e2", facts())
        await ledger.begin_sandbox(acme, "s2", SandboxRequest(tenant="acme"), 60, "work")


async def test_a_heart_beats_on_after_a_fault(ledger: Ledger) -> None:
    """A gateway whose heartbeat stands still is taken for dead."""
    ledger._heartbeat_seconds = 0.01
    beats: asyncio.Queue[None] = asyncio.Queue()

    async def beat() -> None:
        beats.put_nowait(None)
        raise RuntimeError("a fault")

    ledger.beat = beat  # type: ignore[method-assign]
    beating = asyncio.create_task(ledger._beat_for_ever())
    async with asyncio.timeout(30):
        await beats.get()
        await beats.get()
    beating.cancel()


async def test_one_bad_unit_does_not_take_the_others_with_it(
    ledger: Ledger, tenant: MakeCaller
) -> None:
    acme = tenant(concurrency=100)
    await ledger.begin_execution(acme, "same", facts(cpu_seconds=1))
    names = [f"e{i}" if i % 5 else "same" for i in range(40)]
    results = await asyncio.gather(
        *(ledger.begin_execution(acme, name, facts(cpu_seconds=1)) for name in names),
        return_exceptions=True,
    )
    for name, result in zip(names, results, strict=True):
        assert isinstance(result, Refused if name == "same" else Begun)


# --- reading -------------------------------------------------------------------------------------


async def test_pages_have_each_execution_once_while_others_begin(
    ledger: Ledger, tenant: MakeCaller, clock: SetClock
) -> None:
    acme = tenant(concurrency=1000)
    for i in range(25):
        await ledger.begin_execution(acme, f"e{i:02}", facts(cpu_seconds=1))
    seen, cursor = [], None
    while True:
        page = await ledger.list_executions("acme", cursor, 10)
        seen += [each.id for each in page.executions]
        await ledger.begin_execution(acme, f"new{len(seen)}", facts(cpu_seconds=1))
        cursor = page.next
        if cursor is None:
            break
    assert seen == [f"e{i:02}" for i in reversed(range(25))]


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "====", "A" * 10_000, "WzEsMl0", "W10", "' OR 1=1 --", "é", "WyJhIiwiYiJd",
     base64.urlsafe_b64encode(b"[" * 150).decode(),
     base64.urlsafe_b64encode(b'[1e400,"a"]').decode(),
     base64.urlsafe_b64encode(b'[-1,"a"]').decode(),
     base64.urlsafe_b64encode(b'[true,"a"]').decode(),
     base64.urlsafe_b64encode(b'[99999999999999999999,"a"]').decode()],
)  # fmt: skip
async def test_a_cursor_that_is_none_is_refused_in_words(ledger: Ledger, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor: it is none"):
        await ledger.list_executions("acme", cursor)


async def test_another_tenants_cursor_shows_nothing_of_it(
    ledger: Ledger, tenant: MakeCaller
) -> None:
    acme, globex = tenant("acme"), tenant("globex")
    for i in range(4):
        await ledger.begin_execution(acme, f"a{i}", facts())
        await ledger.begin_execution(globex, f"g{i}", facts())
    cursor = (await ledger.list_executions("globex", limit=2)).next
    page = await ledger.list_executions("acme", cursor)
    assert {each.tenant for each in page.executions} == {"acme"}


async def test_a_great_record_is_kept_in_a_bounded_form_that_says_so(
    ledger: Ledger, database: Database, tenant: MakeCaller
) -> None:
    await ledger.begin_execution(tenant(), "e1", facts())
    half = b"\xff" * 2**20
    await ledger.end_execution(
        "e1",
        Execution(
            Outcome.OK,
            "",
            stdout=Captured(half, half, 10**9),
            stderr=Captured(b"a" * 2**20, b"", 2**20),
            result=b"r" * 2**20,
        ),
    )
    found = await ledger.find_execution("acme", "e1")
    assert found.shortened == ("stdout", "stderr", "result")
    assert found.record is not None
    assert found.record.stdout.total == 10**9
    assert found.record.stderr.head + found.record.stderr.tail == b"a" * 256 * 1024
    assert found.record.result is None
    assert len(rows(database, records)[0]["record"]) < 2**20  # type: ignore[arg-type]


async def test_what_is_over_is_thrown_away_and_the_trail_is_not(
    ledger: Ledger, database: Database, tenant: MakeCaller, clock: SetClock
) -> None:
    acme = tenant()
    await ledger.begin_execution(acme, "e1", facts(), idempotency_key="k", request_digest="d")
    await ledger.end_execution("e1", OK)
    trail = len(rows(database, audit))
    clock.add(8 * 86_400)
    await ledger.beat()
    found = await ledger.find_execution("acme", "e1")
    assert (found.state, found.record) == ("ended", None)
    again = await ledger.begin_execution(
        acme, "e2", facts(), idempotency_key="k", request_digest="d"
    )
    assert again == Begun("e2")
    await ledger.end_execution("e2", OK)
    clock.add(31 * 86_400)
    await ledger.beat()
    await ledger.beat()
    assert rows(database, executions) == []
    assert rows(database, records) == []
    assert len(rows(database, audit)) > trail


async def test_a_source_is_in_the_trail_only_where_the_tenant_keeps_it(
    ledger: Ledger, database: Database, tenant: MakeCaller
) -> None:
    acme = tenant()
    request = ExecutionRequest(
        PythonSource(b"print('\xff')"),
        environment={"TOKEN": "s3cret"},
        files={"a": b"s3cret"},
    )
    for keep in (False, True):
        made = RequestFacts.of(request, SandboxRequest(), keep_source=keep)
        await ledger.begin_execution(acme, f"e{keep}", made)
    bodies = [str(row["body"]) for row in rows(database, audit)]
    assert not any("s3cret" in body for body in bodies)
    assert ["print(" in body for body in bodies][-2:] == [False, True]
    assert not any("print(" in str(row["facts"]) for row in rows(database, executions))


@pytest.mark.parametrize("key", ["", "x" * 129, "é", "a\nb", "a\0"])
async def test_an_idempotency_key_is_plain_and_short(
    ledger: Ledger, tenant: MakeCaller, key: str
) -> None:
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        await ledger.begin_execution(
            tenant(), "e1", facts(), idempotency_key=key, request_digest="d"
        )


async def test_an_idempotency_key_is_a_tenants_own(ledger: Ledger, tenant: MakeCaller) -> None:
    for name in ("acme", "globex"):
        begun = await ledger.begin_execution(
            tenant(name), f"e-{name}", facts(), idempotency_key="k", request_digest=name
        )
        assert begun == Begun(f"e-{name}")
