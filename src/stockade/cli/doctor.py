"""``stockade doctor``."""

import json
from typing import TYPE_CHECKING

import click

from stockade.cli import exit_codes
from stockade.cli.exit_codes import OPTION_OF_LIMIT
from stockade.cli.host import Host
from stockade.cli.report import neutral
from stockade.port.policy import WEAKEST

if TYPE_CHECKING:
    from rich.table import Table

    from stockade.executor.doctor.report import Report


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> int:
    """Say what this machine can start, for which trust level, and how limits are kept.

    Every tier is tried by starting a sandbox in it. Exits with 0 when at least one came up,
    with 69 otherwise.
    """
    host = ctx.find_object(Host) or Host()
    found = host.examine()
    if as_json:
        click.echo(json.dumps(as_data(found), allow_nan=False))
    else:
        _print(found)
    return exit_codes.OK if found.usable else exit_codes.UNAVAILABLE


def as_data(found: "Report") -> dict[str, object]:
    """The report for a program."""
    return {
        "usable": found.usable,
        "tiers": [
            {
                "tier": status.tier.value,
                "available": status.available,
                "detail": status.detail,
                "start_ms": status.start_ms,
            }
            for status in found.tiers
        ],
        "trust_levels": {
            level.value: tier.value if tier else None for level, tier in found.serving.items()
        },
        "enforcement": {
            name: {"how": how.value, "by": by} for name, (how, by) in found.enforcement.items()
        },
        "facts": dict(found.facts),
        "remedies": list(found.remedies),
    }


def _print(found: "Report") -> None:
    from rich.text import Text

    from stockade.cli.console import open_console

    console = open_console(100)
    tiers = _table("tier", "starts", "in", "detail")
    for status in found.tiers:
        took = "" if status.start_ms is None else f"{status.start_ms:.1f} ms"
        starts = Text("yes", "green") if status.available else Text("no", "red")
        tiers.add_row(Text(status.tier.value), starts, Text(took), Text(neutral(status.detail)))
    console.print(tiers)
    levels = _table("trust level", "served by")
    for level, tier in found.serving.items():
        needs = f"none: it needs {WEAKEST[level]}"
        levels.add_row(Text(level.value), Text(tier.value, "green") if tier else Text(needs, "red"))
    console.print(levels)
    if found.enforcement:
        kept = _table("limit", "option", "kept", "by")
        colours = {"enforced": "green", "per-process": "yellow", "absent": "red"}
        for name, (how, by) in found.enforcement.items():
            kept.add_row(
                Text(name),
                Text(OPTION_OF_LIMIT.get(name, "")),
                Text(how.value, colours[how.value]),
                Text(neutral(by)),
            )
        console.print(kept)
    if found.facts:
        facts = _table("this machine", "")
        for name, value in found.facts.items():
            facts.add_row(Text(neutral(name)), Text(neutral(value)))
        console.print(facts)
    if found.remedies:
        console.print(Text("What to do", "bold"))
        for remedy in found.remedies:
            console.print(Text(f"- {neutral(remedy)}"), soft_wrap=True)


def _table(*columns: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        # A long path is folded: cut off, it would name another place.
        table.add_column(column, no_wrap=column not in ("detail", "by", ""), overflow="fold")
    return table
