"""``docs/performance.md`` and the tables of ``docs/tiers.md``, made from what was measured."""

from collections.abc import Sequence

from bench import blocks
from bench.report import Report, markdown, promise_table

# Of the benchmarks, those that tell what a tier is like rather than how fast Stockade is.
OF_TIERS = ("compatibility", "costs")

_HEAD = """\
# Performance

Made by `./dev bench --write` on {date}; do not edit. To reproduce:

    {command}

Every figure is from that one run. What is compared is measured in turns, in one process, so that
a ratio holds although the machine's speed changes; a time by itself says little elsewhere. The
same figures for programs: `bench/results/latest.json`. What works in each tier, and what the
boundary costs the program behind it, is in [tiers.md](tiers.md).
"""

_OF_BLOCK = "Made by `{command}` on {date}; do not edit."


def render(date: str, command: str, machine: dict[str, str], reports: Sequence[Report]) -> str:
    """All of ``docs/performance.md``."""
    reports = [report for report in reports if report.name not in OF_TIERS]
    facts = "\n".join(f"- {label}: {value}" for label, value in machine.items())
    promises = [promise for report in reports for promise in report.promises]
    tables = [promise_table(promises), *(table for report in reports for table in report.tables)]
    return "\n".join([_HEAD.format(date=date, command=command), facts, "", *map(markdown, tables)])


def fill_tiers(text: str, date: str, command: str, reports: Sequence[Report]) -> str:
    """``docs/tiers.md`` with those tables anew of which there is a report."""
    for report in reports:
        if report.name in OF_TIERS:
            tables = "\n".join(map(markdown, report.tables))
            made = _OF_BLOCK.format(command=command, date=date)
            text = blocks.replace(text, report.name, f"{tables}\n{made}\n")
    return text
