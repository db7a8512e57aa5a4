"""``stockade config``."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stockade.cli import exit_codes
from stockade.cli.failure import Failure
from stockade.cli.options import FileName
from stockade.cli.report import neutral, say

if TYPE_CHECKING:
    from stockade.cli.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group("config")
def config() -> None:
    """Check the configuration of the services, and show what it comes to.

    A variable such as STOCKADE_GATEWAY__LISTEN__PORT=8700 takes the place of the key
    gateway.listen.port.
    """


def _file(command: Command) -> Command:
    """Which one, as ``file``: behind the command, or after ``--config``."""
    named = click.option(
        "--config",
        "named",
        metavar="FILE",
        type=FileName(),
        is_eager=True,  # it is there when the argument is looked at
        help="The same, as the services have it.",
    )
    return named(click.argument("file", type=FileName(), required=False, callback=_either)(command))


def _either(context: click.Context, _: click.Parameter, file: str | None) -> str:
    named = context.params.pop("named", None)
    if (file is None) == (named is None):
        raise click.UsageError("name one FILE, either alone or as --config FILE")
    return str(file or named)


@config.command("check")
@_file
def check(file: str) -> int:
    """Say everything for which a service would refuse to start with it."""
    settings = _load(file)
    if settings is None:
        return exit_codes.USAGE
    wrong = [
        f"{name}: {reason}"
        for name, section in settings.sections.items()
        for reason in getattr(section, "check", list)()
    ]
    for reason in wrong:
        say(reason)
    if wrong:
        return exit_codes.USAGE
    names = ", ".join(settings.sections) or "no section"
    click.echo(f"{neutral(file)}: {names}: nothing is wrong")
    return exit_codes.OK


@config.command("show")
@_file
def show(file: str) -> int:
    """Print every value, secrets masked, and behind it where it comes from."""
    settings = _load(file)
    if settings is None:
        return exit_codes.USAGE
    from stockade.cli.settings import effective, spelled

    section = ""
    for key, value, origin in effective(settings):
        first, _, rest = key.partition(".")
        if first != section:
            click.echo(f"{chr(10) if section else ''}[{first}]")
            section = first
        # TOML has no null: what is not set is a comment.
        line = f"# {rest} is not set" if value is None else f"{rest} = {spelled(value)}"
        click.echo(f"{line}  # {neutral(origin)}")
    return exit_codes.OK


def _load(file: str) -> "Settings | None":
    try:
        from stockade.cli.settings import SettingsError, load, models

        known = models()
    except ImportError as error:
        raise Failure(
            f"the services are not installed ({error}): pip install 'stockade[service]'",
            exit_codes.UNAVAILABLE,
        ) from None
    try:
        return load(file, known)
    except SettingsError as error:
        for reason in error.reasons:
            say(reason)
        return None
