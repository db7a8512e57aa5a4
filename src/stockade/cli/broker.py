"""``stockade broker``."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stockade.cli import exit_codes
from stockade.cli.failure import Failure

if TYPE_CHECKING:
    from stockade.broker.settings import BrokerSettings

_SECRETS = (
    "STOCKADE_BROKER__KEY",
    "STOCKADE_BROKER__CONTROL__TOKEN",
    "STOCKADE_BROKER__DATA__TOKEN",
)


@click.command("broker")
@click.option(
    "--config", type=click.Path(path_type=Path), help="The configuration: its section [broker]."
)
def broker(config: Path | None) -> int:
    """Hold the secrets of tools, and put them into requests on their way out.

    The gateway stores them by one socket, and executors use them by another, by ticket.
    """
    from stockade.broker.settings import BrokerSettings
    from stockade.cli import settings

    environment = dict(os.environ)
    for name in _SECRETS:
        # Whoever comes to read this process's variables is not to find them there for longer.
        os.environ.pop(name, None)
    try:
        loaded = settings.load(
            config,
            settings.models(),
            wanted=("broker",),
            others=("executor", "gateway"),
            environment=environment,
        )
    except settings.SettingsError as error:
        raise click.UsageError(str(error)) from None
    found = loaded.sections["broker"]
    assert isinstance(found, BrokerSettings)
    return _serve(found)


def _serve(settings: "BrokerSettings") -> int:
    import uvloop

    from stockade.broker.serve import serve
    from stockade.broker.settings import SettingsError
    from stockade.broker.store import StoreFault
    from stockade.executor.egress.own_addresses import OwnAddresses

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, own_addresses=OwnAddresses()))
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    except StoreFault as error:
        raise Failure(str(error), exit_codes.UNAVAILABLE) from None
    except OSError as error:
        where = error.filename or settings.control.listen
        raise Failure(f"{where}: {error.strerror or error}", exit_codes.HOST_IO) from None
    return exit_codes.OK
