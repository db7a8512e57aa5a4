"""``stockade audit``."""

from typing import TYPE_CHECKING

import click

from stockade.cli import exit_codes
from stockade.cli.administration import (
    AS_JSON,
    database_options,
    open_database,
    print_json,
    print_table,
    spell_moment,
)
from stockade.cli.report import neutral, say

if TYPE_CHECKING:
    from stockade.gateway.audit import Head

FLAWED = 1


@click.group("audit")
def audit() -> None:
    """Read the audit trail, and find out whether it is as it was written."""


@audit.command("verify")
@click.option(
    "--anchor",
    "anchors",
    metavar="NUMBER:DIGEST",
    multiple=True,
    help="An end of the trail that was kept elsewhere (`stockade audit head`); may be repeated.",
)
@AS_JSON
@database_options
def verify(anchors: tuple[str, ...], as_json: bool, database_url: str) -> int:
    """Find every record that was changed, removed, inserted or moved. Exits with 1 where one was.

    Whoever can write the whole database can make a trail that is sound in itself. An anchor that
    was kept elsewhere shows that: nothing in front of it can be another than it was.
    """
    from stockade.gateway.audit import MOST_FLAWS
    from stockade.gateway.audit import verify as verify_trail

    kept = tuple(_anchor(text) for text in anchors)
    with open_database(database_url, reading=True) as database:
        verdict = database.read_at_once(lambda connection: verify_trail(connection, kept))
    if as_json:
        print_json(
            {
                "sound": verdict.sound,
                "records": verdict.records,
                "head": str(verdict.head),
                "flaws": [{"number": each.number, "what": each.what} for each in verdict.flaws],
            }
        )
    else:
        for each in verdict.flaws:
            click.echo(neutral(f"record {each.number}: {each.what}"))
        if len(verdict.flaws) >= MOST_FLAWS:
            click.echo("... and perhaps more: it was read no further")
        if verdict.sound:
            say(f"{verdict.records} records are as they were written; the end is {verdict.head}")
    return exit_codes.OK if verdict.sound else FLAWED


@audit.command("head")
@database_options
def head(database_url: str) -> int:
    """Print the end of the trail: an anchor, to be kept where the database's writer cannot write."""
    from stockade.gateway.audit import head as head_of

    with open_database(database_url, reading=True) as database:
        click.echo(str(database.read(head_of)))
    return exit_codes.OK


@audit.command("list")
@click.option("--tenant", help="Only those of this tenant.")
@click.option("--action", help="Only those of this action, like execution.ended.")
@click.option("--subject", help="Only those of this execution, sandbox, key or artefact.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True)
@database_options
def list_(
    tenant: str | None, action: str | None, subject: str | None, limit: int, database_url: str
) -> int:
    """List records, the latest first."""
    from stockade.gateway.audit import find
    from stockade.gateway.journal import canonical

    with open_database(database_url, reading=True) as database:
        page = database.read(
            lambda connection: find(connection, tenant, limit=limit, action=action, subject=subject)
        )
    if not page.records:
        say("there is no such record")
        return exit_codes.OK
    print_table(
        ("number", "time", "tenant", "key", "action", "subject", "facts"),
        [
            (
                str(each.number),
                spell_moment(each.time),
                each.tenant or "",
                each.key_id or "",
                each.action,
                each.subject,
                canonical(dict(each.facts)),
            )
            for each in page.records
        ],
    )
    return exit_codes.OK


@audit.command("export")
@click.option("--tenant", help="Only those of this tenant.")
@click.option(
    "--after", type=click.IntRange(0), default=0, metavar="NUMBER", help="Only what came later."
)
@database_options
def export(tenant: str | None, after: int, database_url: str) -> int:
    """Print records as JSON lines, the oldest first, each with its number and digest."""
    from stockade.gateway.audit import lines

    with open_database(database_url, reading=True) as database:
        for line in lines(database, tenant, after):
            click.echo(line)
    return exit_codes.OK


def _anchor(text: str) -> "Head":
    from stockade.gateway.audit import Head

    try:
        return Head.parse(text)
    except ValueError as error:
        raise click.UsageError(f"--anchor {text!r}: {error}") from None
