from bench import expression


async def test_two_rounds_of_our_own() -> None:
    """Ours alone: its row, its promise."""
    report = await expression.measure(rounds=2, only=(expression.OURS,), worst=2)
    assert set(report.figures) == {expression.OURS}
    assert report.figures[expression.OURS]["mapping"]["runs"] == 2 * expression.CALLS
    table, worst = report.tables
    assert [row[0] for row in worst.rows] == ["input", "input == input"]
    assert [row[0] for row in table.rows] == ["stockade, bounds and all"]
    assert table.rows[0][-1] == "1.00"
    assert [promise.target for promise in report.promises] == ["<= 20 µs"]
