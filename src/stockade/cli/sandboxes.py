"""``stockade sandboxes``: the sessions that are open at a service."""

import json
from typing import TYPE_CHECKING

import click

from stockade.cli import exit_codes
from stockade.cli.asking import ask
from stockade.cli.report import neutral
from stockade.cli.sizes import format_duration

if TYPE_CHECKING:
    from stockade.api.answers import SandboxStateMessage
    from stockade.client.remote import RemoteEnvironment


@click.group("sandboxes")
def sandboxes() -> None:
    """List and close the sandboxes that are open at a service."""


@sandboxes.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each.")
@click.pass_context
def list_sandboxes(ctx: click.Context, as_json: bool) -> int:
    """List those that are open, and what is left of their leases."""

    async def work(environment: "RemoteEnvironment") -> "list[SandboxStateMessage]":
        return await environment.sandboxes()

    for found in ask(ctx, work):
        if as_json:
            click.echo(json.dumps(found.model_dump(mode="json", exclude_none=True)))
            continue
        left = format_duration(round(found.lease_seconds, 1))
        what = f"runs {found.execution}" if found.execution else ""
        click.echo(neutral(f"{found.id}  {found.state:<7} lease {left:<8} {what}").rstrip())
    return exit_codes.OK


@sandboxes.command("close")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.pass_context
def close(ctx: click.Context, ids: tuple[str, ...]) -> int:
    """Close them, with what runs in them. One that is closed already is no error."""

    async def work(environment: "RemoteEnvironment") -> None:
        for id in ids:  # noqa: A001
            await environment.session(id).close()

    ask(ctx, work)
    return exit_codes.OK
