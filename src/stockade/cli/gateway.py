"""``stockade gateway``."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stockade.cli import exit_codes
from stockade.cli.failure import Failure
from stockade.cli.report import say
from stockade.port import StockadeError

if TYPE_CHECKING:
    from stockade.gateway.settings import GatewaySettings


@click.command("gateway")
@click.option(
    "--config", type=click.Path(path_type=Path), help="The configuration: its section [gateway]."
)
@click.option(
    "--migrate", is_flag=True, help="Bring the database to this version's schema, and stop."
)
def gateway(config: Path | None, migrate: bool) -> int:
    """Serve the HTTP API to tenants, by way of executors.

    SIGTERM takes no more calls and lets what runs finish; a second one stops at once.
    """
    settings = load(config)
    if migrate:
        return _migrate(settings)
    return _serve(settings)


def load(config: Path | None) -> "GatewaySettings":
    """The section of the configuration, with the environment above it."""
    from stockade.cli import settings
    from stockade.gateway.settings import GatewaySettings

    try:
        loaded = settings.load(
            config, settings.models(), wanted=("gateway",), others=("executor", "broker")
        )
    except settings.SettingsError as error:
        raise click.UsageError(str(error)) from None
    found = loaded.sections["gateway"]
    assert isinstance(found, GatewaySettings)
    return found


def _migrate(settings: "GatewaySettings") -> int:
    from stockade.gateway.database import Database

    try:
        database = Database.open(settings.database_url)
        try:
            revision = database.migrate()
        finally:
            database.close()
    except StockadeError as error:
        raise Failure(str(error), exit_codes.UNAVAILABLE) from None
    say(f"{database.name} has revision {revision}")
    return exit_codes.OK


def _serve(settings: "GatewaySettings") -> int:
    import uvloop

    from stockade.gateway.service import Refusal, serve

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except Refusal as error:
        raise click.UsageError(f"the gateway does not start:\n{error}") from None
    except StockadeError as error:
        raise Failure(str(error), exit_codes.UNAVAILABLE) from None
    except OSError as error:
        where = settings.listen.unix or f"{settings.listen.host}:{settings.listen.port}"
        raise Failure(f"{where}: {error.strerror or error}", exit_codes.HOST_IO) from None
    return exit_codes.OK
