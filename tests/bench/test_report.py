import io
import json

import pytest
from rich.console import Console

from bench import page
from bench.report import Promise, Report, Summary, Table, absent_row, markdown, promise_table, show

TABLE = Table(
    "Latency",
    ("what", "median ms"),
    (("bare", "15.50"), absent_row(2, "a|b", "not on PATH")),
    ("In turns.",),
)
KEPT = Promise("median over bare", "<= 0.15", "0.07", met=True)
MISSED = Promise("p99 over bare", "<= 0.60", "0.70", met=False)


def test_p99_is_the_nearest_rank() -> None:
    """Of a hundred samples the second largest; of few the largest; never one in between."""
    hundred = [float(number) for number in range(100, 0, -1)]
    assert Summary.of(hundred) == Summary(median=50.5, p99=99.0, count=100)
    assert Summary.of([3.0, 1.0, 2.0]) == Summary(median=2.0, p99=3.0, count=3)
    assert Summary.of([4.0]) == Summary(median=4.0, p99=4.0, count=1)
    assert Summary.of([float(number) for number in range(1, 102)]).p99 == 100.0


def test_a_table_has_whole_rows() -> None:
    """A row that lacks a cell is a mistake, found where it is made."""
    with pytest.raises(ValueError, match="2 cells"):
        Table("t", ("a", "b"), (("1",),))


def test_markdown() -> None:
    """A bar in a cell does not end the cell."""
    assert markdown(TABLE).splitlines() == [
        "## Latency",
        "",
        "| what | median ms |",
        "| --- | ---: |",
        "| bare | 15.50 |",
        r"| a\|b: not measured: not on PATH | - |",
        "",
        "In turns.",
    ]


def test_shown_text_is_not_markup() -> None:
    """What looks like rich's markup is shown as it is."""
    console = Console(file=io.StringIO(), width=80)
    show(Table("t", ("what",), (("[bold]x[/bold]",),), ("[red]note",)), console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "[bold]x[/bold]" in shown
    assert "[red]note" in shown


def test_promises_say_what_was_missed() -> None:
    """A figure that was not met stands out."""
    assert [row[-1] for row in promise_table([KEPT, MISSED]).rows] == ["yes", "NO"]


def test_the_page_holds_everything() -> None:
    """Date, command, machine, each promise, each table; and the JSON is plain data."""
    report = Report("latency", (TABLE,), (KEPT, MISSED), {"bare": {"median_seconds": 0.0155}})
    text = page.render("2001-02-03", "./dev bench --write", {"kernel": "6.1"}, [report])
    for wanted in ("2001-02-03", "    ./dev bench --write\n", "- kernel: 6.1\n", "| 0.70 | NO |"):
        assert wanted in text
    assert text.index("Promised figures") < text.index("## Latency")
    assert json.loads(json.dumps(report.as_json()))["promises"][0]["met"] is True
