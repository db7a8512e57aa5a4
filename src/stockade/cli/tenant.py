"""``stockade tenant``."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stockade.cli import exit_codes
from stockade.cli.administration import (
    AS_JSON,
    database_options,
    fields_of,
    open_database,
    parse_settings,
    print_json,
    print_table,
    spell_moment,
)
from stockade.cli.options import TIER, TRUST_LEVEL
from stockade.cli.report import say
from stockade.port import Tier, TrustLevel

if TYPE_CHECKING:
    from stockade.gateway.policy import Budgets, TenantPolicy
    from stockade.gateway.tenants import Tenant

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--tier", "tiers", type=TIER, multiple=True, help="A tier that it may use."),
    click.option(
        "--trust", type=TRUST_LEVEL, multiple=True, help="A trust level that it may ask for."
    ),
    click.option(
        "--ceiling",
        "ceilings",
        metavar="NAME=VALUE",
        multiple=True,
        help="The most of a limit, like wall_seconds=60 or memory_bytes=1G; also lease_seconds "
        "and session_seconds.",
    ),
    click.option(
        "--budget",
        "budgets_",
        metavar="NAME=VALUE",
        multiple=True,
        help="Like concurrency=10, executions_per_minute=100 or artefact_bytes=1G.",
    ),
    click.option(
        "--egress",
        "egress",
        metavar="RULE",
        multiple=True,
        help="What its code may reach, like api.example.com:443 or *.example.com; `public` for any "
        "public destination, `none` for nothing.",
    ),
    click.option(
        "--keep-source/--no-keep-source",
        default=None,
        help="Keep the source of what is run in the audit trail, not its digest alone.",
    ),
)


def _policy_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group("tenant")
def tenant() -> None:
    """Say who may use the gateway, for what, and how much. On the gateway's machine."""


@tenant.command("add")
@click.argument("name")
@_policy_options
@database_options
def add(name: str, database_url: str, **given: Any) -> int:
    """Create a tenant. What is not given has a default: see `stockade tenant show`."""
    from stockade.gateway.policy import Budgets, TenantPolicy
    from stockade.gateway.tenants import Tenants

    policy, budgets = _changed(TenantPolicy(), Budgets(), **given)
    with open_database(database_url) as database:
        Tenants(database).create(name, policy, budgets)
    say(f"tenant {name} is there; `stockade key add {name}` makes a key for it")
    return exit_codes.OK


@tenant.command("set")
@click.argument("name")
@_policy_options
@database_options
def set_(name: str, database_url: str, **given: Any) -> int:
    """Change what is given, and leave the rest. Lists, like the tiers, are replaced.

    It holds for calls that come later; a gateway knows of it within seconds.
    """
    from stockade.gateway.tenants import Tenants

    with open_database(database_url) as database:
        tenants = Tenants(database)
        before = tenants.get(name)
        policy, budgets = _changed(before.policy, before.budgets, **given)
        if (policy, budgets) == (before.policy, before.budgets):
            say("nothing changes")
        else:
            tenants.set(name, policy, budgets)
    return exit_codes.OK


@tenant.command("list")
@AS_JSON
@database_options
def list_(as_json: bool, database_url: str) -> int:
    """List the tenants."""
    from stockade.gateway.tenants import Tenants

    with open_database(database_url, reading=True) as database:
        found = Tenants(database).list()
    if as_json:
        print_json({"tenants": [_as_data(each) for each in found]})
    elif found:
        print_table(
            ("tenant", "created", "disabled", "tiers", "at once", "a minute"),
            [
                (
                    each.name,
                    spell_moment(each.created_at),
                    spell_moment(each.disabled_at),
                    ", ".join(each.policy.tiers),
                    str(each.budgets.concurrency),
                    str(each.budgets.executions_per_minute),
                )
                for each in found
            ],
        )
    else:
        say("there is no tenant: `stockade tenant add NAME` makes one")
    return exit_codes.OK


@tenant.command("show")
@click.argument("name")
@AS_JSON
@database_options
def show(name: str, as_json: bool, database_url: str) -> int:
    """Show one tenant's policy and budgets."""
    from stockade.gateway.tenants import Tenants

    with open_database(database_url, reading=True) as database:
        found = Tenants(database).get(name)
    if as_json:
        print_json(_as_data(found))
        return exit_codes.OK
    policy = found.policy
    rows = [
        ("tenant", found.name),
        ("created", spell_moment(found.created_at)),
        ("disabled", spell_moment(found.disabled_at, "no")),
        ("tiers", ", ".join(policy.tiers) or "none"),
        ("trust levels", ", ".join(policy.trust) or "none"),
        ("egress", policy.egress if isinstance(policy.egress, str) else ", ".join(policy.egress)),
        ("source is kept", "yes" if policy.keep_source else "no"),
    ]
    rows += [(f"ceiling {name}", f"{value:.15g}") for name, value in policy.ceilings]
    rows += [(f"budget {name}", str(value)) for name, value in found.budgets]
    print_table(("", ""), rows)
    return exit_codes.OK


@tenant.command("disable")
@click.argument("name")
@database_options
def disable(name: str, database_url: str) -> int:
    """Take no more calls with its keys, within seconds. What runs goes on to its end."""
    from stockade.gateway.tenants import Tenants

    with open_database(database_url) as database:
        Tenants(database).disable(name)
    return exit_codes.OK


@tenant.command("enable")
@click.argument("name")
@database_options
def enable(name: str, database_url: str) -> int:
    """Take calls again."""
    from stockade.gateway.tenants import Tenants

    with open_database(database_url) as database:
        Tenants(database).enable(name)
    return exit_codes.OK


def _changed(
    policy: "TenantPolicy",
    budgets: "Budgets",
    *,
    tiers: tuple[Tier, ...],
    trust: tuple[TrustLevel, ...],
    ceilings: tuple[str, ...],
    budgets_: tuple[str, ...],
    egress: tuple[str, ...],
    keep_source: bool | None,
) -> tuple["TenantPolicy", "Budgets"]:
    from pydantic import ValidationError

    from stockade.gateway.policy import Budgets, Ceilings, TenantPolicy

    new: dict[str, Any] = policy.model_dump()
    new["ceilings"] |= parse_settings(ceilings, "--ceiling", fields_of(Ceilings))
    if tiers:
        new["tiers"] = tiers
    if trust:
        new["trust"] = trust
    if "none" in egress and len(egress) > 1:
        raise click.UsageError("--egress none: nothing is allowed beside it; leave one of them out")
    if egress:
        new["egress"] = "none" if egress == ("none",) else egress
    if keep_source is not None:
        new["keep_source"] = keep_source
    used = budgets.model_dump() | parse_settings(budgets_, "--budget", fields_of(Budgets))
    try:
        return TenantPolicy.model_validate(new), Budgets.model_validate(used)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise click.UsageError(f"{where}: {first['msg']}") from None


def _as_data(found: "Tenant") -> dict[str, Any]:
    return {
        "name": found.name,
        "created_at": spell_moment(found.created_at),
        "disabled_at": spell_moment(found.disabled_at) or None,
        "policy": found.policy.model_dump(mode="json"),
        "budgets": found.budgets.model_dump(mode="json"),
    }
