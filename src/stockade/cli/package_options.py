"""``--requirements`` and its kin: packages that are installed before a program runs."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from stockade.cli import exit_codes, report
from stockade.cli.egress_options import lines_of
from stockade.cli.failure import Failure
from stockade.cli.options import refusal
from stockade.port import (
    EgressSink,
    ExecutionEnvironment,
    InvalidRequest,
    SandboxRequest,
    StockadeError,
)

if TYPE_CHECKING:
    from stockade.packages import Recipe

Prepare = Callable[[ExecutionEnvironment], Awaitable[ExecutionEnvironment]]
"""Makes of an environment the one in which the program is to run."""


class Asked(NamedTuple):
    """What the options say."""

    requirements: str | None
    package_json: str | None
    scripts: bool
    anew: bool
    python_index: str | None
    index_hosts: tuple[str, ...]
    registry: str | None

    @property
    def anything(self) -> bool:
        """Whether packages are wanted."""
        return self.requirements is not None or self.package_json is not None


def preparation(
    asked: Asked, sandbox: SandboxRequest, on_egress: EgressSink | None
) -> Prepare | None:
    """What has to be done before the program runs. Raises ``click.UsageError`` and ``Failure``."""
    if not asked.anything:
        for option, given in (
            ("--install-scripts", asked.scripts),
            ("--reinstall", asked.anew),
            ("--index-url", asked.python_index is not None),
            ("--index-host", bool(asked.index_hosts)),
            ("--npm-registry", asked.registry is not None),
        ):
            if given:
                raise click.UsageError(f"{option}: is for --requirements or --package-json")
        return None
    try:
        recipe = _recipe(asked)
    except InvalidRequest as error:
        raise click.UsageError(refusal(error)) from None

    async def prepare(environment: ExecutionEnvironment) -> ExecutionEnvironment:
        from stockade.packages import Installer, PackageStore, WithPackages

        store = PackageStore(_folder())
        installer = Installer(environment, store)
        found = await installer.prepare(
            recipe, sandbox, anew=asked.anew, on_egress=on_egress, on_install=_say_installing
        )
        return WithPackages(environment, store, found)

    return prepare


def failure(error: StockadeError) -> Failure:
    """What is said where nothing was installed, with what was denied."""
    from stockade.packages import InstallFailed

    said = [str(error)]
    if isinstance(error, InstallFailed) and (use := error.execution.egress) and use.denials:
        said += lines_of(use)[1:]
    return Failure("\n".join(said), exit_codes.UNAVAILABLE)


def _say_installing() -> None:
    report.say("installing packages, once: what comes of it is kept")


def _recipe(asked: Asked) -> "Recipe":
    from stockade.packages import Indexes, Recipe
    from stockade.packages.recipe import NODE_LOCK

    usual = Indexes()
    # Another index keeps its files itself, unless one says where.
    hosts = asked.index_hosts or (() if asked.python_index else usual.python_files)
    indexes = Indexes(asked.python_index or usual.python, hosts, asked.registry or usual.node)
    lock = None
    if asked.package_json is not None:
        beside = Path(asked.package_json).with_name(NODE_LOCK)
        lock = _content(str(beside), "--package-json") if beside.exists() else None
    return Recipe(
        python=_content(asked.requirements, "--requirements"),
        node=_content(asked.package_json, "--package-json"),
        node_lock=lock,
        scripts=asked.scripts,
        indexes=indexes,
    )


def _content(path: str | None, option: str) -> bytes | None:
    from stockade.packages.recipe import MOST_BYTES

    if path is None:
        return None
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a path need not be valid UTF-8
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Failure(f"{option} {path!r}: {error.strerror}", exit_codes.NO_INPUT) from None


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "stockade" / "packages"
