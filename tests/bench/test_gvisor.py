from itertools import pairwise

import pytest

from bench import costs, gvisor_latency, gvisor_memory, gvisor_throughput
from bench.contestants import BARE, Contestant
from bench.runsc import EXEC, RUN, open_runsc


@pytest.mark.tier("gvisor")
async def test_two_rounds_of_latency() -> None:
    """Bare python and a parked sandbox, in turns; both promises judged."""
    report = await gvisor_latency.measure(rounds=2, only=(BARE.name, gvisor_latency.PARKED))
    assert set(report.figures) == {BARE.name, gvisor_latency.PARKED}
    assert [promise.target for promise in report.promises] == ["<= 0.40", "<= 2.00"]


@pytest.mark.tier("gvisor")
async def test_a_second_of_throughput() -> None:
    """Ours and the loops beside it; faster by so much, and the promise judged."""
    report = await gvisor_throughput.measure(seconds=1, callers=2)
    assert len(report.figures) == 3
    assert all(figures["per_second"] > 0 for figures in report.figures.values())
    assert report.tables[0].rows[0][3] == "1.00"
    assert [promise.target for promise in report.promises] == [">= 2.00"]


@pytest.mark.tier("gvisor")
async def test_memory() -> None:
    """What is charged has parts that make sense, and with more loaded it is more."""
    report = await gvisor_memory.measure()
    if not report.figures:
        pytest.skip(report.tables[0].rows[0][0])
    for sizes in report.figures.values():
        assert sizes.pop("bare") > 1 << 20
        for total, own, guest, pss in zip(*sizes.values(), strict=True):
            assert total >= own + guest > 8 << 20
            assert pss > guest
    totals = [sizes["in all"] for sizes in report.figures.values()]
    for less, more in pairwise(totals):
        assert max(less) < min(more)
    assert report.promises[0].target == "<= 30.00 MiB"


@pytest.mark.tier("gvisor")
def test_runsc_by_itself(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Both ways print what they must, more than once."""
    with open_runsc(tmp_path_factory.mktemp("runsc")) as found:
        assert [contestant.name for contestant in found] == [RUN, EXEC]
        for contestant in found:
            assert isinstance(contestant, Contestant), contestant
            contestant.run()


@pytest.mark.tier("namespace")
@pytest.mark.tier("gvisor")
async def test_a_round_of_costs() -> None:
    """Every row, in every tier."""
    report = await costs.measure(rounds=1)
    assert set(report.figures) == {costs.BARE, *costs.TIERS}
    assert len(report.tables[0].rows) == len(costs.WHAT)
    assert all(float(cell) > 0 for row in report.tables[0].rows for cell in row[1:])
