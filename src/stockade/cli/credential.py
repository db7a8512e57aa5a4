"""``stockade credential``: what tools show to the services that they call."""

import json
import os
import stat
import sys
from typing import TYPE_CHECKING

import click

from stockade.cli import exit_codes, report
from stockade.cli.asking import ask
from stockade.cli.failure import Failure
from stockade.cli.options import FileName
from stockade.port import InvalidRequest

if TYPE_CHECKING:
    from stockade.api.credentials import CredentialAnswer, CredentialBody, UseAnswer
    from stockade.client.remote import RemoteEnvironment

_MOST_BYTES = 64 * 1024


@click.group("credential")
def credential() -> None:
    """Store what tools show to the services they call. No sandbox, and no answer, ever has it.

    `stockade --url URL run --credential NAME ...` uses one.
    """


@credential.command("add")
@click.argument("name")
@click.option(
    "--for",
    "rules",
    multiple=True,
    required=True,
    metavar="RULE",
    help="Where it may go: `https://api.example.com/v1`, `GET api.example.com`; repeatable.",
)
@click.option(
    "--way",
    default="bearer",
    show_default=True,
    metavar="WAY",
    help="bearer, header:NAME[:PREFIX], basic:USER, query:NAME, sigv4:REGION:SERVICE, "
    "placeholder:VARIABLE.",
)
@click.option(
    "--secret-file",
    type=FileName(),
    help="Has the secret; `-` for standard input. Without it, a terminal is asked.",
)
@click.pass_context
def add(
    ctx: click.Context, name: str, rules: tuple[str, ...], way: str, secret_file: str | None
) -> int:
    """Store a secret, in place of one of that name. It is never an argument: those are seen."""
    from pydantic import ValidationError

    from stockade.api.credentials import CredentialBody, Way

    try:
        found = Way.parse(way)
        body = CredentialBody.model_validate(
            {
                "secret": _secret(secret_file),
                "grants": [{"rule": rule, "way": found} for rule in rules],
            }
        )
    except InvalidRequest as error:
        raise click.UsageError(str(error)) from None
    except ValidationError as error:
        reasons = [
            str(each["msg"]).removeprefix("Value error, ")
            for each in error.errors(include_input=False, include_url=False)
        ]
        raise click.UsageError("; ".join(reasons)) from None
    _put(ctx, name, body)
    return exit_codes.OK


def _put(ctx: click.Context, name: str, body: "CredentialBody") -> None:
    async def work(environment: "RemoteEnvironment") -> None:
        await environment.credentials.put(name, body)

    ask(ctx, work)


@credential.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each.")
@click.pass_context
def list_credentials(ctx: click.Context, as_json: bool) -> int:
    """List them: their names, and what they may be used for."""

    async def work(environment: "RemoteEnvironment") -> "tuple[CredentialAnswer, ...]":
        return await environment.credentials.all()

    for found in ask(ctx, work):
        if as_json:
            click.echo(json.dumps(found.model_dump(mode="json", exclude_none=True)))
            continue
        for grant in found.grants:
            click.echo(report.neutral(f"{found.name}  {grant.way}  {grant.rule}"))
    return exit_codes.OK


@credential.command("remove")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.pass_context
def remove(ctx: click.Context, names: tuple[str, ...]) -> int:
    """Delete them. What runs cannot use them from now on."""

    async def work(environment: "RemoteEnvironment") -> None:
        for name in names:
            await environment.credentials.delete(name)

    ask(ctx, work)
    return exit_codes.OK


@credential.command("uses")
@click.option("--execution", help="Of this one alone.")
@click.option("--credential", "name", help="Of this one alone.")
@click.option(
    "-n", "count", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each.")
@click.pass_context
def uses(
    ctx: click.Context, execution: str | None, name: str | None, count: int, as_json: bool
) -> int:
    """Say where they were used, by which execution, and what was answered; newest first."""
    from datetime import UTC, datetime

    async def work(environment: "RemoteEnvironment") -> "tuple[UseAnswer, ...]":
        return await environment.credentials.uses(execution=execution, credential=name, limit=count)

    for use in ask(ctx, work):
        if as_json:
            click.echo(json.dumps(use.model_dump(mode="json")))
            continue
        moment = datetime.fromtimestamp(use.time, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        status = "-" if use.status is None else str(use.status)
        where = f"{use.method} {use.host}:{use.port}{use.path}"
        click.echo(
            report.neutral(f"{moment}  {use.credential}  {use.execution}  {status}  {where}")
        )
    return exit_codes.OK


def _secret(path: str | None) -> str:
    if path is None:
        if not sys.stdin.isatty():
            raise click.UsageError(
                "there is no terminal to ask for the secret: name a file with --secret-file, or "
                "`-` for standard input"
            )
        return str(click.prompt("secret", hide_input=True, err=True))
    if path == "-":
        data = sys.stdin.buffer.read(_MOST_BYTES + 1)
    else:
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - a path need not be valid UTF-8
                status = os.fstat(file.fileno())
                if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IRWXO:
                    raise Failure(
                        f"--secret-file {path!r}: every user can read it: chmod 600 {path}",
                        exit_codes.NO_INPUT,
                    )
                data = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise Failure(
                f"--secret-file {path!r}: {error.strerror}", exit_codes.NO_INPUT
            ) from None
    try:
        # A file ends with a line's end; no secret does.
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise Failure("the secret is not UTF-8", exit_codes.NO_INPUT) from None
