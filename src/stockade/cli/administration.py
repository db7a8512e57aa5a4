"""What the commands for a gateway's operator share: they work on its database, on its machine."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stockade.cli import exit_codes, sizes
from stockade.cli.failure import Failure
from stockade.cli.report import neutral
from stockade.gateway.settings import DEFAULT_DATABASE

if TYPE_CHECKING:
    from stockade.gateway.database import Database

Command = TypeVar("Command", bound=Callable[..., Any])

_CONFIG = click.option(
    "--config",
    type=click.Path(path_type=Path),
    expose_value=False,
    is_eager=True,
    callback=lambda ctx, _, path: ctx.meta.__setitem__("stockade.config", path),
    help="The configuration, whose gateway.database_url is used.",
)
_DATABASE = click.option(
    "--database",
    "database_url",
    metavar="URL",
    envvar="STOCKADE_GATEWAY__DATABASE_URL",
    callback=lambda ctx, _, url: url or _configured(ctx.meta.get("stockade.config")),
    help=f"Of the gateway.  [default: {DEFAULT_DATABASE}]",
)


def database_options(command: Command) -> Command:
    """Which database, as ``database_url``."""
    return _CONFIG(_DATABASE(command))


def _configured(path: Path | None) -> str:
    if path is None:
        return DEFAULT_DATABASE
    from stockade.cli.settings import SettingsError, load, models

    try:
        found = load(path, models(), wanted=("gateway",)).sections["gateway"]
    except SettingsError as error:
        raise Failure(neutral(error.reasons[0]), exit_codes.USAGE) from error
    url: str = found.database_url  # type: ignore[attr-defined]
    return url


AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@contextmanager
def open_database(url: str, *, reading: bool = False) -> Iterator["Database"]:
    """The database, of this version's schema; what is wrong with it or a request is one sentence.

    ``reading``: nothing is written, not even to open it.
    """
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ModuleNotFoundError as error:
        raise Failure(
            "this needs sqlalchemy: pip install 'stockade[service]'", exit_codes.UNAVAILABLE
        ) from error
    from stockade.gateway.database import Database, DatabaseFault
    from stockade.port import InvalidRequest, Refused

    try:
        database = Database.open_to_read(url) if reading else Database.open_existing(url)
        try:
            database.check()
            yield database
            database.check_unchanged()
        finally:
            database.close()
    except DatabaseFault as error:
        raise Failure(str(error), exit_codes.UNAVAILABLE) from error
    except (InvalidRequest, Refused) as error:
        raise Failure(neutral(str(error)), exit_codes.USAGE) from error
    except (SQLAlchemyError, OSError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise Failure(f"the database: {neutral(first)}", exit_codes.HOST_IO) from error


def print_json(data: object) -> None:
    """One line, ASCII only."""
    click.echo(json.dumps(data, ensure_ascii=True, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """What others named is in it: nothing of it steers the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from stockade.cli.console import open_console

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(neutral(cell)) for cell in row))
    open_console(160).print(table)


def parse_settings(given: Sequence[str], option: str, known: Sequence[str]) -> dict[str, float]:
    """``NAME=VALUE`` of an option that may be repeated, in the units that people write."""
    found: dict[str, float] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in known:
            raise click.UsageError(
                f"{option} {text!r}: it is NAME=VALUE, with one of: {', '.join(known)}"
            )
        if name in found:
            raise click.UsageError(f"{option} {name} is given more than once")
        try:
            found[name] = _unit(name)(value.strip())
        except ValueError as error:
            raise click.UsageError(f"{option} {text!r}: {error}") from None
    return found


def _unit(name: str) -> Callable[[str], float]:
    if name.endswith("_bytes"):
        return lambda text: sizes.parse_size(text, zero=True)
    if name.endswith("_seconds"):
        return sizes.parse_duration
    if name == "cpus":
        return sizes.parse_number
    return lambda text: 0 if text == "0" else sizes.parse_count(text)


def spell_moment(microseconds: int | None, absent: str = "") -> str:
    """To the second, UTC."""
    from stockade.gateway.clock import spell

    return absent if microseconds is None else spell(microseconds)[:19] + "Z"


def fields_of(model: Any) -> list[str]:
    """The names of a settings model's fields."""
    return list(model.model_fields)
