"""``stockade key``."""

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

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
from stockade.cli.options import MemberName
from stockade.cli.report import neutral, say
from stockade.gateway.scopes import Scope

if TYPE_CHECKING:
    from stockade.gateway.keys import Key

_EXPIRY = re.compile(r"([1-9][0-9]{0,4})([dh])")


@click.group("key")
def key() -> None:
    """Make and revoke the keys that callers have. On the gateway's machine."""


@key.command("add")
@click.argument("tenant")
@click.option(
    "--scope",
    "scopes",
    type=MemberName(Scope, "scope"),
    multiple=True,
    help=f"What it may do; may be repeated: {', '.join(Scope)}.  [default: all]",
)
@click.option(
    "--expires",
    metavar="WHEN",
    default="90d",
    show_default=True,
    help="Like 12h or 365d, a day like 2030-01-31 (UTC), or never.",
)
@click.option("--name", default="", help="What it is for; anybody may read it.")
@AS_JSON
@database_options
def add(
    tenant: str,
    scopes: tuple[Scope, ...],
    expires: str,
    name: str,
    as_json: bool,
    database_url: str,
) -> int:
    """Make a key, and print it: this once. Nobody can find it out later."""
    from stockade.gateway.keys import Keys

    with open_database(database_url) as database:
        moment = _expiry(expires, database.clock())
        key_id, text = Keys(database).create(tenant, scopes or tuple(Scope), moment, name)
    if as_json:
        print_json({"id": key_id, "key": text, "expires_at": spell_moment(moment) or None})
    else:
        say(f"key {key_id} of {tenant}, expires {spell_moment(moment, 'never')}; it is shown once:")
        click.echo(text)
    return exit_codes.OK


@key.command("list")
@click.option("--tenant", help="Only those of this tenant.")
@AS_JSON
@database_options
def list_(tenant: str | None, as_json: bool, database_url: str) -> int:
    """List the keys, without what is secret in them."""
    from stockade.gateway.keys import Keys

    with open_database(database_url, reading=True) as database:
        found = Keys(database).list(tenant)
        now = database.clock()
    if as_json:
        print_json({"keys": [_as_data(each) for each in found]})
    elif found:
        print_table(
            ("key", "tenant", "name", "scopes", "state", "expires", "last used"),
            [
                (
                    each.id,
                    each.tenant,
                    each.name,
                    ", ".join(sorted(each.scopes)),
                    _state(each, now),
                    spell_moment(each.expires_at, "never"),
                    spell_moment(each.last_used_at, "never"),
                )
                for each in found
            ],
        )
    else:
        say("there is no key: `stockade key add TENANT` makes one")
    return exit_codes.OK


@key.command("revoke")
@click.argument("key_id", metavar="ID")
@database_options
def revoke(key_id: str, database_url: str) -> int:
    """Take no more calls with this key: at once, or within seconds where it is in use."""
    from stockade.gateway.keys import Keys

    if key_id.startswith("stockade_"):
        # The whole key: its id is in it. It is not repeated, for a log may keep what is said here.
        key_id = key_id.split("_")[1]
    with open_database(database_url) as database:
        revoked = Keys(database).revoke(key_id)
    say(f"key {neutral(revoked.id)} of {neutral(revoked.tenant)} is revoked")
    return exit_codes.OK


def _expiry(text: str, now: int) -> int | None:
    from stockade.gateway.clock import from_datetime, to_datetime

    if text == "never":
        return None
    matched = _EXPIRY.fullmatch(text)
    try:
        if matched is not None:
            hours = int(matched[1]) * (24 if matched[2] == "d" else 1)
            return from_datetime(to_datetime(now) + timedelta(hours=hours))
        return from_datetime(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"--expires {text!r}: it is like 12h, 365d, 2030-01-31 or never"
        ) from None


def _state(found: "Key", now: int) -> str:
    if found.revoked_at is not None:
        return "revoked"
    return "expired" if found.expires_at is not None and found.expires_at <= now else "valid"


def _as_data(found: "Key") -> dict[str, Any]:
    return {
        "id": found.id,
        "tenant": found.tenant,
        "name": found.name,
        "scopes": sorted(found.scopes),
        "created_at": spell_moment(found.created_at),
        "expires_at": spell_moment(found.expires_at) or None,
        "revoked_at": spell_moment(found.revoked_at) or None,
        "last_used_at": spell_moment(found.last_used_at) or None,
    }
