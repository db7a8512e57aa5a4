"""``stockade attack``."""

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from stockade.cli import exit_codes
from stockade.cli.failure import Failure
from stockade.cli.host import Host
from stockade.cli.options import TIER
from stockade.cli.report import neutral
from stockade.port import Tier

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from stockade.cli.attack.controls import Control
    from stockade.cli.attack.model import Attack, Verdict

_COLOURS = {"held": "green", "broken": "bold red", "not run": "red", "not applicable": "yellow"}


@click.command("attack")
@click.option(
    "--tier",
    type=TIER,
    default=Tier.NAMESPACE,
    help=f"The boundary to attack; {Tier.VM} boots a machine for each attack.  "
    f"[default: {Tier.NAMESPACE}]",
)
@click.option("--only", metavar="NAME", multiple=True, help="Only this attack; may be repeated.")
@click.option(
    "--controls", is_flag=True, help="Also show that the attacks work without the boundary."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def attack(
    ctx: click.Context, tier: Tier, only: tuple[str, ...], controls: bool, as_json: bool
) -> int:
    """Try on this machine what the boundary must stop, and say what stopped it.

    Every attack runs in a sandbox of its own, and the host is watched while it runs. Exits
    with 0 only when all of them held; with 69 when no sandbox can be started.

    With --controls each attack is also made by a plain process, as nobody and bounded, to
    prove that it would be noticed if it worked.
    """
    from stockade.cli.attack.battery import BATTERY
    from stockade.cli.console import open_console
    from stockade.port import StockadeError

    known = {entry.name for entry in BATTERY}
    for name in only:
        if name not in known:
            raise click.UsageError(f"there is no attack {name!r}; there are: {', '.join(known)}")
    chosen = [entry for entry in BATTERY if not only or entry.name in only]
    host = ctx.find_object(Host) or Host()
    console = open_console(120)
    try:
        verdicts, shown = asyncio.run(
            _attack(host, tier, chosen, controls, None if as_json else console)
        )
    except StockadeError as error:
        raise Failure(f"nothing was tried: {error}", exit_codes.UNAVAILABLE) from error
    if as_json:
        click.echo(json.dumps(as_data(tier, verdicts, shown), allow_nan=False))
    else:
        _print(console, verdicts, shown)
    return exit_codes.OK if all_held(verdicts) and all(c.works for c in shown) else 1


def all_held(verdicts: "Sequence[Verdict]") -> bool:
    """Whether each attack held, or says why it means nothing here."""
    return all(verdict.ruling.value in ("held", "not applicable") for verdict in verdicts)


def as_data(
    tier: Tier, verdicts: "Sequence[Verdict]", controls: "Sequence[Control]"
) -> dict[str, object]:
    """The verdicts for a program."""
    return {
        "tier": tier.value,
        "held": all_held(verdicts),
        "attacks": [
            {
                "name": verdict.attack.name,
                "items": list(verdict.attack.items),
                "tries": verdict.attack.tries,
                "verdict": verdict.ruling.value,
                "stopped_by": verdict.stopped_by,
                "problems": list(verdict.problems),
                "seconds": round(verdict.seconds, 3),
                "no_control": verdict.attack.no_control or None,
            }
            for verdict in verdicts
        ],
        "controls": [
            {"name": control.attack.name, "works": control.works, "shown": control.shown}
            for control in controls
        ],
    }


async def _attack(
    host: Host, tier: Tier, chosen: "list[Attack]", controls: bool, console: "Console | None"
) -> "tuple[list[Verdict], list[Control]]":
    from stockade.cli.attack.controls import control
    from stockade.cli.attack.run import open_arena

    verdicts, shown = [], []
    async with open_arena(lambda: host.open_for_calls((tier,)), tier) as arena:
        for number, entry in enumerate(chosen, 1):
            if console is not None and console.is_terminal:
                console.print(f"{number}/{len(chosen)} {entry.name}\x1b[K", end="\r")
            verdicts.append(await arena.attack(entry))
            if controls and not entry.no_control:
                shown.append(await control(entry, arena.watch))
    return verdicts, shown


def _print(console: "Console", verdicts: "list[Verdict]", controls: "list[Control]") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    columns = ["attack", "it", "what stopped it", "verdict"]
    if controls:
        columns.append("without the boundary")
    for column in columns:
        table.add_column(column, no_wrap=column in ("attack", "verdict"))
    without = {control.attack.name: control for control in controls}
    for verdict in verdicts:
        ruling = verdict.ruling.value
        row = [
            Text(verdict.attack.name),
            Text(verdict.attack.tries),
            Text(neutral("; ".join(verdict.problems) or verdict.stopped_by)),
            Text(ruling, _COLOURS[ruling]),
        ]
        if controls:
            row.append(_shown(verdict, without))
        table.add_row(*row)
    console.print(table)
    held = sum(verdict.ruling.value == "held" for verdict in verdicts)
    console.print(f"{held} of {len(verdicts)} held")


def _shown(verdict: "Verdict", without: "dict[str, Control]") -> "Text":
    from rich.text import Text

    control = without.get(verdict.attack.name)
    if control is None:
        return Text(f"not shown: {verdict.attack.no_control}", "yellow")
    said = neutral(control.shown)[:100]
    return Text(f"works: {said}") if control.works else Text(f"does not work: {said}", "red")
