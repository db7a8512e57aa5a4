import pytest

from bench import microvm
from bench.contestants import BARE


@pytest.mark.tier("microvm")
@pytest.mark.timeout(400)  # four boots, in emulation
async def test_two_rounds() -> None:
    """Bare python and a parked machine, in turns; what a machine costs; the promise judged."""
    report = await microvm.measure(rounds=2, boots=1)
    assert {BARE.name, microvm.PARKED} < set(report.figures)
    costs = [report.figures[row[0]] for row in report.tables[1].rows]
    assert len(costs) == 7
    assert all(cost >= 0 for cost in costs)
    assert [promise.target for promise in report.promises] == ["<= 1.00"]
