"""``stockade up``: executor and gateway as two processes, and what becomes of them.

Neither is restarted: when one ends, the other is stopped, and ``up`` says so and ends with it. What
is to run for ever belongs to a supervisor that is made for that (deploy/systemd).
"""

import asyncio
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
# An id that owns nothing on common systems, for a machine without that user.
_GATEWAY_ID: Final = 64_802
_READY_SECONDS: Final = 180.0
_STOP_SECONDS: Final = 90.0
_PR_SET_PDEATHSIG: Final = 1
_SETTINGS: Final = ("STOCKADE_EXECUTOR__", "STOCKADE_GATEWAY__")


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
    """One of the two."""

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
    help="The configuration of both. Without it: a development service on this machine alone.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8080, help="Of a development service."
)
@click.option("--tier", "tiers", multiple=True, help="Of a development service; repeatable.")
def up(config: Path | None, port: int, tiers: tuple[str, ...]) -> int:
    """Start executor and gateway as two processes, show their state, and stop both on Ctrl-C.

    When one of them ends, the other is stopped too, and this command ends: nothing is restarted in
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
        executor, gateway = _owners()
        self.executor = Child("executor", executor, folder / "executor.log")
        self.gateway = Child("gateway", gateway, folder / "gateway.log")
        self.key = ""
        self.socket = folder / "run" / "socket"
        self._lay_out()
        self.config = config or self._development(port, tiers)

    def _lay_out(self) -> None:
        token = secrets.token_hex(32)
        for child in (self.executor, self.gateway):
            home = self.folder / child.name
            home.mkdir(mode=0o700)
            secret = home / "token"
            secret.touch(mode=0o600)
            secret.write_text(token)
            child.log.touch(mode=0o600)
            self._give(child.owner, home, secret)
        # The socket inherits the folder's group: the gateway may connect, nobody else.
        run = self.socket.parent
        run.mkdir(mode=0o700)
        if self.gateway.owner.gid is not None:
            os.chown(run, self.executor.owner.uid or 0, self.gateway.owner.gid)
            run.chmod(0o2750)

    def _give(self, owner: Owner, *paths: Path) -> None:
        if owner.uid is not None and owner.gid is not None:
            for path in paths:
                os.chown(path, owner.uid, owner.gid)

    def _development(self, port: int, tiers: tuple[str, ...]) -> Path:
        home = self.folder / "gateway"
        lines = [
            "[executor]",
            f"listen = {json.dumps(f'unix:{self.socket}')}",
            'auth_mode = "dev"',
            *([f"tiers = {json.dumps(list(tiers))}"] if tiers else []),
            "[gateway]",
            'auth_mode = "dev"',
            f"database_url = {json.dumps(f'sqlite:///{home}/gateway.db')}",
            "[gateway.listen]",
            'host = "127.0.0.1"',
            f"port = {port}",
            "[gateway.artefacts.store]",
            f"where = {json.dumps(str(home / 'store'))}",
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
        from stockade.gateway.tenants import Tenants

        database = Database.open(f"sqlite:///{home}/gateway.db")
        try:
            database.migrate()
            tenant = Tenants(database).ensure_dev()
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
    children = (plan.executor, plan.gateway)
    with _display(children) as show:
        try:
            await _start(plan, plan.executor, show, stopping)
            await _start(plan, plan.gateway, show, stopping)
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
    if stopping.is_set() or (child is plan.gateway and not plan.executor.alive):
        return
    # Neither gets the other's settings, which may have a database's password. What is exported for
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
            pass_fds=(plan.lock,) if child is plan.gateway else (),
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


def _owners() -> tuple[Owner, Owner]:
    """Executor and gateway. As root they are two users; nothing is made for that."""
    if os.geteuid() != 0:
        same = Owner(None, None, pwd.getpwuid(os.geteuid()).pw_name)
        return same, same
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
    hidden = next((path for path in (sys.executable, __file__) if not _reachable(Path(path))), None)
    if hidden is not None:
        gateway = Owner(None, None, "root")
        say(f"the gateway stays root: no other user can read {hidden}")
    return executor, gateway


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
