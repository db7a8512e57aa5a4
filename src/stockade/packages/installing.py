"""Installing: one sandbox, which reaches package indexes and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from stockade.packages.recipe import NODE_FILE, NODE_LOCK, PYTHON_FILE, Recipe
from stockade.packages.store import PackageSet, PackageStore
from stockade.port import (
    GIB,
    NO_EGRESS,
    Command,
    EgressPolicy,
    EgressSink,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    Limits,
    Outcome,
    OutputSink,
    SandboxLost,
    SandboxRequest,
    StockadeError,
)

INSTALL_LIMITS: Final = Limits(
    wall_seconds=900,
    cpu_seconds=900,
    memory_bytes=3 * GIB,
    disk_bytes=2 * GIB,
    inodes=200_000,
    processes=512,
)
_MOST_SET_BYTES: Final = 2 * GIB
# The workspace is what is kept: all that is there when the last command has ended. What stands
# in /tmp goes with the sandbox. npm makes its folder beside package.json.
_BEGIN: Final = "set -eu; export HOME=/tmp/home; mkdir -p /tmp/home .packages; "
_PYTHON: Final = (
    f"mv {PYTHON_FILE} /tmp/{PYTHON_FILE}; "
    "python3 -m pip --version >/dev/null 2>&1 || "
    '{ echo "the image has no pip: Debian calls it python3-pip" >&2; exit 69; }; '
    "python3 -m pip install --no-input --disable-pip-version-check --no-cache-dir --quiet "
    "--root-user-action=ignore --no-warn-script-location --target .packages/python "
    f'--index-url "$STOCKADE_PYTHON_INDEX" $STOCKADE_PIP_FLAGS --requirement /tmp/{PYTHON_FILE}; '
)
_NODE: Final = (
    "command -v npm >/dev/null || "
    '{ echo "the image has no npm: Debian calls it npm" >&2; exit 69; }; '
    'npm "$STOCKADE_NPM" --registry "$STOCKADE_NODE_INDEX" --no-audit --no-fund '
    "--no-update-notifier --cache /tmp/npm --loglevel error $STOCKADE_NPM_FLAGS; "
    f"rm -f {NODE_FILE} {NODE_LOCK}; "
)


class InstallFailed(StockadeError):
    """Nothing was kept. The record says what the tool said and what was denied."""

    def __init__(self, execution: Execution) -> None:
        words = " ".join(execution.stderr.text().split())[-600:]
        said = f": {ascii(words)[1:-1]}" if words else ""
        super().__init__(f"the packages were not installed: {execution.detail}{said}")
        self.execution = execution


class Installer:
    """Finds a recipe's package set, or installs it."""

    def __init__(self, environment: ExecutionEnvironment, store: PackageStore) -> None:
        self._environment = environment
        self._store = store

    async def prepare(
        self,
        recipe: Recipe,
        sandbox: SandboxRequest,
        *,
        anew: bool = False,
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
        on_install: Callable[[], None] | None = None,
    ) -> PackageSet:
        """The set, for a sandbox of this tenant, trust level and tier.

        ``anew``: resolve again, and replace what was kept. ``on_install`` is called where something
        is installed, before it is. Raises :class:`InstallFailed`, and what
        the port raises.
        """
        image = await self._image(sandbox)
        tenant, key = sandbox.tenant, recipe.key(image)
        async with self._store.only_one(tenant, key):
            found = None if anew else self._store.find(tenant, key)
            if found is not None:
                return found
            if on_install is not None:
                on_install()
            return await self._install(recipe, sandbox, key, on_output, on_egress)

    async def _image(self, sandbox: SandboxRequest) -> str:
        """What would run it: packages for one image are of no use in another."""
        offline = replace(sandbox, egress=NO_EGRESS, limits=Limits())
        execution = await self._environment.run(ExecutionRequest(Command(("true",))), offline)
        if not execution.ok or execution.image is None:
            raise SandboxLost(f"the image cannot be told: {execution.detail}")
        return f"{execution.tier} {execution.image}"

    async def _install(
        self,
        recipe: Recipe,
        sandbox: SandboxRequest,
        key: str,
        on_output: OutputSink | None,
        on_egress: EgressSink | None,
    ) -> PackageSet:
        online = replace(
            sandbox,
            limits=INSTALL_LIMITS,
            egress=EgressPolicy(rules=recipe.indexes.rules(recipe)),
        )
        async with await self._environment.open_session(online) as session:
            execution = await session.run(
                _request(recipe), on_output=on_output, on_egress=on_egress
            )
            if execution.outcome is not Outcome.OK:
                raise InstallFailed(execution)
            usage = execution.usage
            return await self._store.keep(
                sandbox.tenant,
                key,
                session.save(),
                most_bytes=_MOST_SET_BYTES,
                image=execution.image or "",
                disk_bytes=usage.disk_bytes or INSTALL_LIMITS.disk_bytes,
                inodes=usage.inodes or INSTALL_LIMITS.inodes,
            )


def _request(recipe: Recipe) -> ExecutionRequest:
    script = _BEGIN
    if recipe.python is not None:
        script += _PYTHON
    if recipe.node is not None:
        script += _NODE
    return ExecutionRequest(
        Command(("sh", "-c", script)),
        files=recipe.files,
        environment={
            "STOCKADE_PYTHON_INDEX": recipe.indexes.python,
            "STOCKADE_NODE_INDEX": recipe.indexes.node,
            "STOCKADE_PIP_FLAGS": "" if recipe.scripts else "--only-binary :all:",
            "STOCKADE_NPM": "install" if recipe.node_lock is None else "ci",
            "STOCKADE_NPM_FLAGS": "" if recipe.scripts else "--ignore-scripts",
        },
    )
