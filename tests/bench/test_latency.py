import pytest

from bench import latency
from bench.contestants import BARE


@pytest.mark.tier("namespace")
async def test_two_rounds() -> None:
    """Bare python and a parked sandbox, in turns: rows, ratios, both promises judged."""
    report = await latency.measure(rounds=2, only=(BARE.name, latency.PARKED))
    assert set(report.figures) == {BARE.name, latency.PARKED}
    assert all(figures["runs"] == 2 for figures in report.figures.values())
    (table,) = report.tables
    assert [row[0] for row in table.rows] == [BARE.name, latency.PARKED]
    assert table.rows[0][3] == "1.00"
    assert [promise.target for promise in report.promises] == ["<= 0.15", "<= 0.60"]
