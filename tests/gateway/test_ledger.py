import asyncio

import pytest
from tests.gateway.conftest import MakeCaller, facts

from stockade.gateway.executions import Begun, Repeated
from stockade.gateway.ledger import Ledger
from stockade.port import Captured, Execution, Outcome, Refused, Usage

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
