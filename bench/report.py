"""What a benchmark hands back, its statistics, and how they are shown."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Summary:
    """Samples of one thing, in seconds."""

    median: float
    p99: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """The 99th percentile is a sample that occurred (nearest rank), never between two."""
        rank = math.ceil(0.99 * len(samples))
        return cls(statistics.median(samples), sorted(samples)[rank - 1], len(samples))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text. The first column says what was measured, the others hold figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{row} has not {len(self.columns)} cells")


def absent_row(width: int, what: str, reason: str) -> tuple[str, ...]:
    """A row of ``width`` cells that says why nothing was measured."""
    return (f"{what}: not measured: {reason}", *[NOTHING] * (width - 1))


@dataclass(frozen=True, slots=True)
class Promise:
    """A figure that Stockade promises, and whether this run met it."""

    what: str
    target: str
    measured: str
    met: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one benchmark."""

    name: str
    tables: tuple[Table, ...]
    promises: tuple[Promise, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    """The same as numbers in their base units, for programs."""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def milliseconds(seconds: float) -> str:
    """``1.23``."""
    return f"{seconds * 1e3:.2f}"


def ratio(value: float, base: float) -> str:
    """``value`` as a multiple of ``base``."""
    return f"{value / base:.2f}"


def mebibytes(count: float) -> str:
    """``1.23``."""
    return f"{count / (1 << 20):.2f}"


def promise_table(promises: Iterable[Promise]) -> Table:
    """The promised figures, kept or not."""
    return Table(
        "Promised figures",
        ("promise", "target", "measured", "met"),
        tuple((p.what, p.target, p.measured, "yes" if p.met else "NO") for p in promises),
    )


def show(table: Table, console: Console) -> None:
    """Print a table for a person."""
    rich = RichTable(title=table.title, title_justify="left", title_style="bold")
    for index, column in enumerate(table.columns):
        rich.add_column(
            column, justify="left" if index == 0 else "right", no_wrap=index > 0, overflow="fold"
        )
    for row in table.rows:
        rich.add_row(*map(Text, row))
    console.print(rich)
    for note in table.notes:
        console.print(Text(note, style="dim"))
    console.print()


def markdown(table: Table) -> str:
    """The table for a page."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

    lines = [
        f"## {table.title}",
        "",
        line(table.columns),
        line(["---", *["---:"] * (len(table.columns) - 1)]),
        *map(line, table.rows),
    ]
    for note in table.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"
