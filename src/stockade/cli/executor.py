"""``stockade executor``."""

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stockade.cli import exit_codes
from stockade.cli.failure import Failure
from stockade.port import StockadeError, Tier

if TYPE_CHECKING:
    from stockade.executor.service.settings import ExecutorSettings

_PREFIX = "STOCKADE_EXECUTOR__"


@click.command("executor")
@click.option(
    "--config", type=click.Path(path_type=Path), help="The configuration: its section [executor]."
)
@click.option("--listen", metavar="ADDRESS", help="unix:/PATH or tcp:ADDRESS:PORT.")
@click.option(
    "--token-file",
    metavar="FILE",
    help="Has the internal token; else STOCKADE_EXECUTOR_TOKEN has it.",
)
@click.option(
    "--tier",
    "tiers",
    multiple=True,
    type=click.Choice([tier.value for tier in Tier]),
    help="Use only this; repeatable.",
)
@click.option(
    "--auth-mode", type=click.Choice(["api_key", "dev"]), help="dev: no stranger's code comes."
)
def executor(
    config: Path | None,
    listen: str | None,
    token_file: str | None,
    tiers: tuple[str, ...],
    auth_mode: str | None,
) -> int:
    """Serve executions over HTTP, to a gateway that holds the same token.

    SIGTERM takes no more calls and lets what runs finish; a second one stops at once.
    """
    given = {
        "LISTEN": listen,
        "TOKEN_FILE": token_file,
        "TIERS": json.dumps(tiers) if tiers else None,
        "AUTH_MODE": auth_mode,
    }
    return run(config, {name: value for name, value in given.items() if value is not None})


def run(config: Path | None, given: dict[str, str]) -> int:
    """Serve until a signal. ``given``: what takes the place of the configuration's keys."""
    from stockade.cli import settings
    from stockade.executor.service.settings import TOKEN_VARIABLE, ExecutorSettings

    # Whoever comes to read this process's variables is not to find it there for longer.
    token = os.environ.pop(TOKEN_VARIABLE, "") or os.environ.pop(f"{_PREFIX}TOKEN", "")
    environment = {**os.environ, **{_PREFIX + name: value for name, value in given.items()}}
    if token and "TOKEN_FILE" not in given:
        environment[f"{_PREFIX}TOKEN"] = token
    try:
        loaded = settings.load(
            config,
            settings.models(),
            wanted=("executor",),
            others=("broker",),
            environment=environment,
        )
    except settings.SettingsError as error:
        raise click.UsageError(str(error)) from None
    found = loaded.sections["executor"]
    assert isinstance(found, ExecutorSettings)
    return _serve(found)


def _serve(settings: "ExecutorSettings") -> int:
    import uvloop

    from stockade.executor.service.serve import serve
    from stockade.executor.service.settings import SettingsError

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    except StockadeError as error:
        raise Failure(str(error), exit_codes.UNAVAILABLE) from None
    except OSError as error:
        raise Failure(f"{settings.listen}: {error.strerror or error}", exit_codes.HOST_IO) from None
    return exit_codes.OK
