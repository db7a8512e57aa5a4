"""``stockade up``: broker, executor and gateway as processes, and what becomes of them.

None is restarted: when one ends, the others are stopped, and ``up`` says so and ends with it. What
is to run for ever belongs to a supervisor that is made for that (deploy/systemd).
"""

import asyncio
import base64
import contextlib
import ctypes
import json
import os
import pwd
import secrets
import signal
import stat
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from stockade.cli import exit_codes
from stockade.cli.private_folder import private_folder
from stockade.cli.report import neutral, say

if TYPE_CHECKING:
    from rich.table import Table

Show = Callable[[], None]

_EXECUTOR_USER: Final = "stockade-executor"
_GATEWAY_USER: Final = "stockade-gateway"
_BROKER_USER: Final = "stockade-broker"
# Ids that own nothing on common systems, for a machine without those users.
_GATEWAY_ID: Final = 64_802
_BROKER_ID: Final = 64_803
_READY_SECONDS: Final = 180.0
_STOP_SECONDS: Final = 90.0
_PR_SET_PDEATHSIG: Final = 1
_SETTINGS: Final = ("STOCKADE_EXECUTOR__", "STOCKADE_GATEWAY__", "STOCKADE_BROKER__")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a process runs as; ``None``: whoever calls."""

    uid: int | None
    gid: int | None
    name: str

    @property
    def arguments(self) -> dict[str, object]:
        """For subprocess."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


@dataclass
class Child:
    """One of them."""

    name: str
    owner: Owner
    log: Path
    process: asyncio.subprocess.Process | None = None
    state: str = "not started"
    begun: float = field(default_factory=time.monotonic)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.returncode is None


@click.command("up")
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The configuration of all. Without it: a development service on this machine alone.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8080, help="Of a development service."
)
@click.option("--tier", "tiers", multiple=True, help="Of a development service; repeatable.")
def up(config: Path | None, port: int, tiers: tuple[str, ...]) -> int:
    """Start broker, executor and gateway as processes, show their state, and stop all on Ctrl-C.

    The broker is started where the configuration has a section for it. When one of them ends, the
    others are stopped too, and this command ends: nothing is restarted in
    silence.
    """
    with private_folder(_parent()) as (folder, lock):
        plan = _Plan(folder, lock, config, port, tiers)
        try:
            return asyncio.run(_run(plan))
        except KeyboardInterrupt:
            return exit_codes.CANCELLED


class _Plan:
    """What is to be started, and the files that it takes."""

    def __init__(
        self, folder: Path, lock: int, config: Path | None, port: int, tiers: tuple[str, ...]
    ) -> None:
        self.folder = folder
        self.lock = lock
        executor, gateway, broker = _owners()
        self.executor = Child("executor", executor, folder / "executor.log")
        self.gateway = Child("gateway", gateway, folder / "gateway.log")
        self.broker = Child("broker", broker, folder / "broker.log")
        self.key = ""
        self.socket = folder / "run" / "socket"
        self._lay_out()
        self.config = config or self._development(port, tiers)
        # The gateway last: it asks the others.
        self.children = (
            *((self.broker,) if config is None or _names_broker(config) else ()),
            self.executor,
            self.gateway,
        )

    def _lay_out(self) -> None:
        for child in (self.executor, self.gateway, self.broker):
            home = self.folder / child.name
            home.mkdir(mode=0o700)
            child.log.touch(mode=0o600)
            self._give(child.owner, home)
        self._share("token", self.executor, self.gateway)
        self._share("control-token", self.broker, self.gateway)
        self._share("data-token", self.broker, self.executor)
        key = base64.b64encode(secrets.token_bytes(32)).decode()
        self._write(self.broker, "key", key)
        self._make_way(self.socket, self.executor, self.gateway)
        self._make_way(self.folder / "control" / "socket", self.broker, self.gateway)
        self._make_way(self.folder / "data" / "socket", self.broker, self.executor)

    def _share(self, name: str, *children: Child) -> None:
        token = secrets.token_hex(32)
        for child in children:
            self._write(child, name, token)

    def _write(self, child: Child, name: str, content: str) -> None:
        path = self.folder / child.name / name
        path.touch(mode=0o600)
        path.write_text(content)
        self._give(child.owner, path)

    def _make_way(self, socket: Path, server: Child, caller: Child) -> None:
        """The socket inherits the folder's group: the caller may connect, and nobody else."""
        folder = socket.parent
        folder.mkdir(mode=0o700)
        if server.owner.uid is not None or caller.owner.uid is not None:
            group = caller.owner.gid if caller.owner.gid is not None else server.owner.gid
            os.chown(folder, server.owner.uid or 0, group or 0)
            folder.chmod(0o2750)

    def _give(self, owner: Owner, *paths: Path) -> None:
        if owner.uid is not None and owner.gid is not None:
            for path in paths:
                os.chown(path, owner.uid, owner.gid)

    def _development(self, port: int, tiers: tuple[str, ...]) -> Path:
        from stockade.executor.egress.opening import PUBLIC_NETWORKS_VARIABLE

        home = self.folder / "gateway"
        # As for an executor that is embedded.
        named = os.environ.get(PUBLIC_NETWORKS_VARIABLE, "")
        networks = json.dumps([text.strip() for text in named.split(",") if text.strip()])
        lines = [
            "[executor]",
            f"listen = {json.dumps(f'unix:{self.socket}')}",
            f"egress_public_networks = {networks}",
            'auth_mode = "dev"',
            *([f"tiers = {json.dumps(list(tiers))}"] if tiers else []),
            "[executor.broker]",
            f"address = {json.dumps(f'unix:{self.folder}/data/socket')}",
            f"token_file = {json.dumps(f'{self.folder}/executor/data-token')}",
            "[broker]",
            f"public_networks = {networks}",
            f"database = {json.dumps(f'{self.folder}/broker/broker.db')}",
            f"key_file = {json.dumps(f'{self.folder}/broker/key')}",
            "[broker.control]",
            f"listen = {json.dumps(f'unix:{self.folder}/control/socket')}",
            f"token_file = {json.dumps(f'{self.folder}/broker/control-token')}",
            "[broker.data]",
            f"listen = {json.dumps(f'unix:{self.folder}/data/socket')}",
            f"token_file = {json.dumps(f'{self.folder}/broker/data-token')}",
            "[gateway]",
            'auth_mode = "dev"',
            f"database_url = {json.dumps(f'sqlite:///{home}/gateway.db')}",
            "[gateway.listen]",
            'host = "127.0.0.1"',
            f"port = {port}",
            "[gateway.artefacts.store]",
            f"where = {json.dumps(str(home / 'store'))}",
            "[gateway.broker]",
            f"url = {json.dumps(f'unix://{self.folder}/control/socket')}",
            f"token_file = {json.dumps(str(home / 'control-token'))}",
            "[[gateway.executors]]",
            'name = "local"',
            f"url = {json.dumps(f'unix://{self.socket}')}",
            f"token_file = {json.dumps(str(home / 'token'))}",
        ]
        path = self.folder / "development.toml"
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o644)
        self.key = self._make_key(home)
        return path

    def _make_key(self, home: Path) -> str:
        from stockade.gateway.database import Database
        from stockade.gateway.keys import Keys, Scope
        from stockade.gateway.policy import PUBLIC
        from stockade.gateway.tenants import Tenants

        database = Database.open(f"sqlite:///{home}/gateway.db")
        try:
            database.migrate()
            tenants = Tenants(database)
            tenant = tenants.ensure_dev()
            # Each sandbox still has nothing that its own request does not grant.
            tenants.set(tenant.name, policy=tenant.policy.model_copy(update={"egress": (PUBLIC,)}))
            _, key = Keys(database).create(tenant.name, Scope, name="stockade up")
        finally:
            database.close()
        self._give(self.gateway.owner, *home.iterdir())
        return key


async def _run(plan: _Plan) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # SIGHUP is a terminal's that is closed: nothing is left behind then, either.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    children = plan.children
    with _display(children) as show:
        try:
            for child in children:
                await _start(plan, child, show, stopping)
            if plan.gateway.alive and not stopping.is_set():
                _greet(plan)
            while not stopping.is_set() and all(child.alive for child in children):
                show()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), 1.0)
        finally:
            fallen = [child for child in children if child.process and not child.alive]
            # The gateway first: it lets what runs finish, for which it needs the executor.
            for child in reversed(children):
                await _stop(child, show)
            show()
    for child in fallen:
        assert child.process is not None
        _tell_end(child, child.process.returncode)
    return exit_codes.INTERNAL if fallen and not stopping.is_set() else exit_codes.OK


async def _start(plan: _Plan, child: Child, show: Show, stopping: asyncio.Event) -> None:
    before = plan.children[: plan.children.index(child)]
    if stopping.is_set() or not all(other.alive for other in before):
        return
    # None gets another's settings, which may have a database's password. What is exported for
    # a real service, such as the database of its tenants, is nothing for a development one at all.
    own = () if plan.key else (f"STOCKADE_{child.name.upper()}__",)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "STOCKADE_EXECUTOR_TOKEN"
        and (name.startswith(own) or not name.startswith(_SETTINGS))
    }
    arguments = ["--config", str(plan.config)]
    if child is plan.executor and plan.key:
        arguments += ["--token-file", str(plan.folder / "executor" / "token")]
    with child.log.open("ab") as log:
        child.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "stockade.cli.main", child.name, *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            start_new_session=True,  # Ctrl-C is for us alone: we stop them in order
            preexec_fn=_die_with_us,
            # Where we are killed it still writes to its database for a while. The executor does not
            # get it: it starts others, and keeps nothing there.
            pass_fds=() if child is plan.executor else (plan.lock,),
            **child.owner.arguments,  # type: ignore[arg-type]
        )  # fmt: skip
    child.state = "starting"
    child.begun = time.monotonic()
    marker = '"listening"'
    while child.alive and not stopping.is_set():
        if time.monotonic() - child.begun > _READY_SECONDS:
            child.state = f"not ready within {_READY_SECONDS:g} s"
            break
        if marker in child.log.read_text("utf-8", "replace"):
            child.state = "serves"
            break
        show()
        await asyncio.sleep(0.1)
    show()


async def _stop(child: Child, show: Show) -> None:
    process = child.process
    if process is None:
        return
    if process.returncode is None:
        child.state = "stopping"
        show()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
    child.state = f"ended with {process.returncode}"


def _greet(plan: _Plan) -> None:
    url = _url_of(plan.gateway.log)
    click.echo(f"the gateway is at {url}, its API at {url}/docs")
    if plan.key:
        click.echo(f"it is for this machine alone; a key, where one is wanted: {plan.key}")
        click.echo(
            f"curl {url}/v1/executions -H 'Content-Type: application/json' "
            """-d '{"program": {"kind": "python", "source": "print(6 * 7)"}}'"""
        )
        # The command line wants one: it does not know that this gateway does without.
        click.echo(f"STOCKADE_URL={url} STOCKADE_KEY={plan.key} stockade run -c 'print(6 * 7)'")


def _url_of(log: Path) -> str:
    for line in log.read_text("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict) and said.get("event") == "listening":
                return str(said.get("url"))
    return "an unknown place"


def _tell_end(child: Child, code: int | None) -> None:
    say(f"the {child.name} ended by itself, with {code}; the last that it said:")
    for line in child.log.read_text("utf-8", "replace").splitlines()[-5:]:
        say(f"  {neutral(line)}")


# --- what is shown ---


@contextlib.contextmanager
def _display(children: tuple[Child, ...]) -> Iterator[Show]:
    """A table that is kept fresh on a terminal; elsewhere a line for each change."""
    if sys.stdout.isatty():
        from rich.live import Live

        from stockade.cli.console import open_console

        with Live(console=open_console(100), refresh_per_second=4) as live:
            yield lambda: live.update(_table(children))
        return
    said: dict[str, str] = {}

    def show() -> None:
        for child in children:
            if said.get(child.name) != child.state:
                said[child.name] = child.state
                pid = f" (pid {child.process.pid}, {child.owner.name})" if child.process else ""
                click.echo(f"{child.name}: {child.state}{pid}")
                sys.stdout.flush()

    yield show


def _table(children: tuple[Child, ...]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("process", "state", "pid", "user", "for", "log"):
        table.add_column(column, overflow="fold")
    for child in children:
        colour = "green" if child.state == "serves" else "yellow"
        table.add_row(
            child.name,
            Text(child.state, colour),
            str(child.process.pid) if child.process else "",
            child.owner.name,
            f"{time.monotonic() - child.begun:.0f} s" if child.process else "",
            Text(str(child.log)),
        )
    return table


# --- whom they run as ---


def _names_broker(config: Path) -> bool:
    """Whether it has a section of the broker's. What is wrong with it says who reads it whole."""
    try:
        return "broker" in tomllib.loads(config.read_text("utf-8"))
    except (OSError, ValueError):
        return False


def _owners() -> tuple[Owner, Owner, Owner]:
    """Executor, gateway and broker. As root they are users apart; nothing is made for that."""
    if os.geteuid() != 0:
        same = Owner(None, None, pwd.getpwuid(os.geteuid()).pw_name)
        return same, same, same
    executor = _user(_EXECUTOR_USER)
    if executor is None:
        executor = Owner(None, None, "root")
        say(
            f"there is no user {_EXECUTOR_USER}: the executor stays root, by which it gives each "
            "sandbox a user id of its own"
        )
    gateway = _user(_GATEWAY_USER)
    if gateway is None:
        gateway = Owner(_GATEWAY_ID, _GATEWAY_ID, f"id {_GATEWAY_ID}")
        say(f"there is no user {_GATEWAY_USER}: the gateway gets the id {_GATEWAY_ID}")
    broker = _user(_BROKER_USER)
    if broker is None:
        broker = Owner(_BROKER_ID, _BROKER_ID, f"id {_BROKER_ID}")
        say(f"there is no user {_BROKER_USER}: the broker gets the id {_BROKER_ID}")
    hidden = next((path for path in (sys.executable, __file__) if not _reachable(Path(path))), None)
    if hidden is not None:
        gateway = broker = Owner(None, None, "root")
        say(f"the gateway and the broker stay root: no other user can read {hidden}")
    return executor, gateway, broker


def _user(name: str) -> Owner | None:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return Owner(found.pw_uid, found.pw_gid, name)


def _reachable(path: Path) -> bool:
    """Whether everybody may read it."""
    path = path.resolve()
    return bool(path.stat().st_mode & stat.S_IROTH) and all(
        folder.stat().st_mode & stat.S_IXOTH for folder in path.parents
    )


def _die_with_us() -> None:
    # Killed, we could stop nobody any more.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _parent() -> Path:
    """Where the folder is made."""
    own = os.environ.get("XDG_RUNTIME_DIR") if os.geteuid() else None
    return Path(own or tempfile.gettempdir())
