"""``docs/performance.md``, made from what was measured."""

from collections.abc import Sequence

from bench.report import Report, markdown, promise_table

_HEAD = """\
# Performance

Made by `./dev bench --write` on {date}; do not edit. To reproduce:

    {command}

Every figure is from that one run. What is compared is measured in turns, in one process, so that
a ratio holds although the machine's speed changes; a time by itself says little elsewhere. The
same figures for programs: `bench/results/latest.json`.
"""


def render(date: str, command: str, machine: dict[str, str], reports: Sequence[Report]) -> str:
    """The whole page."""
    facts = "\n".join(f"- {label}: {value}" for label, value in machine.items())
    promises = [promise for report in reports for promise in report.promises]
    tables = [promise_table(promises), *(table for report in reports for table in report.tables)]
    return "\n".join([_HEAD.format(date=date, command=command), facts, "", *map(markdown, tables)])
