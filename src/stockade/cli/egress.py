"""``stockade egress``."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stockade.cli import exit_codes
from stockade.cli.failure import Failure
from stockade.cli.report import neutral

if TYPE_CHECKING:
    from stockade.egress.explaining import Explanation
    from stockade.port.egress import EgressPolicy


@click.group("egress")
def egress() -> None:
    """Say what a sandbox may reach, and why not."""


@egress.command("explain")
@click.argument("url")
@click.option(
    "--policy", "file", metavar="FILE", type=click.Path(path_type=Path), help="TOML, or JSON."
)
@click.option(
    "--allow",
    "rules",
    metavar="RULE",
    multiple=True,
    help="As of `stockade run`, such as api.example.com:443; may be repeated.",
)
@click.option(
    "--method", metavar="NAME", default="GET", show_default=True, help="Of the HTTP request."
)
@click.option(
    "--resolve/--no-resolve", default=True, help="Look the name's addresses up, and judge them."
)
@click.option("--broker", is_flag=True, help="Take it that there is a broker.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(
    url: str,
    file: Path | None,
    rules: tuple[str, ...],
    method: str,
    resolve: bool,
    broker: bool,
    as_json: bool,
) -> int:
    """Say what the egress proxy would do with a request for URL, step by step.

    No connection is made; only the name is looked up. The exit code is 0 where the request would
    be let through, and 116 where it would be denied.

    \b
    stockade egress explain https://api.example.com/v1 --allow api.example.com
    stockade egress explain http://169.254.169.254/ --policy policy.toml
    """
    if file is None and not rules:
        raise click.UsageError("there is no policy: give --policy FILE or --allow RULE")
    policy = _policy(file, rules)
    found = asyncio.run(_explained(policy, url, method.upper(), resolve, broker))
    if as_json:
        click.echo(
            json.dumps(
                {
                    "allowed": found.allowed,
                    "reason": found.reason,
                    "detail": found.detail,
                    "steps": found.steps,
                }
            )
        )
    else:
        for step in found.steps:
            click.echo(neutral(step))
        verdict = "allowed" if found.allowed else f"denied ({found.reason})"
        click.echo(neutral(f"{verdict}: {found.detail}"))
    return exit_codes.OK if found.allowed else exit_codes.EGRESS_DENIED


def _policy(file: Path | None, rules: tuple[str, ...]) -> "EgressPolicy":
    from stockade.egress.policy_file import read_policy_file
    from stockade.port.egress import EgressPolicy, EgressRule
    from stockade.port.errors import InvalidRequest

    try:
        policy = read_policy_file(file) if file is not None else EgressPolicy()
        return policy.with_rules(*(EgressRule.parse(each) for each in rules))
    except InvalidRequest as error:
        raise Failure(str(error), exit_codes.USAGE) from error
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}", exit_codes.NO_INPUT) from error


async def _explained(
    policy: "EgressPolicy", url: str, method: str, resolve: bool, broker: bool
) -> "Explanation":
    from stockade.egress.explaining import explain
    from stockade.egress.resolving import SystemResolver

    resolver = SystemResolver() if resolve else None
    try:
        return await explain(policy, url, method=method, resolver=resolver, brokered=broker)
    finally:
        if resolver is not None:
            resolver.close()
