"""The broker as one asyncio program: its store, its two sockets, and the signals."""

import asyncio
import contextlib
import errno
import fcntl
import grp
import logging
import os
import resource
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from stockade.broker.control.app import create_app
from stockade.broker.data import MOST_LINE, DataServer
from stockade.broker.keys import KeyFault, Keyring
from stockade.broker.logs import Log, ToLog, make_log
from stockade.broker.sandboxes import Sandboxes
from stockade.broker.settings import BrokerSettings, SettingsError, SocketSettings, UnixAddress
from stockade.broker.store import Store
from stockade.broker.tickets import Tickets
from stockade.broker.upstream import Reach
from stockade.egress.addresses import Judge
from stockade.egress.names import Address
from stockade.egress.resolving import Resolver, SystemResolver
from stockade.egress.room import Room
from stockade.serving import BoundedServer, Bounds, Listening
from stockade.serving.tls import server_context

_GRACE_SECONDS: Final = 5.0
_FILES_OF_OURS: Final = 512
_BACKLOG: Final = 4096
"""Connections that come at once: a unix socket refuses what is beyond, and does not wait."""


async def serve(
    settings: BrokerSettings,
    on_ready: Callable[[str, str], None] | None = None,
    own_addresses: Callable[[], Collection[Address]] = lambda: (),
) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises ``OSError`` where it cannot listen, :class:`SettingsError` for a key, a group or a
    certificate that is none, :class:`~stockade.broker.store.StoreFault` for the database.
    """
    log = make_log(settings.log_level)
    root = logging.getLogger()
    root.handlers[:] = [ToLog(log)]
    root.setLevel(logging.WARNING)
    _keep_memory_private()
    _allow_many_files()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        async with open_broker(settings, log=log, own_addresses=own_addresses) as (control, data):
            log.info("listening", control=control, data=data, url=control, pid=os.getpid())
            _notify("READY=1")
            if on_ready is not None:
                on_ready(control, data)
            await stopping.wait()
            _notify("STOPPING=1")
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    log.info("stopped")


@asynccontextmanager
async def open_broker(
    settings: BrokerSettings,
    *,
    log: Log,
    own_addresses: Callable[[], Collection[Address]] = lambda: (),
    resolver: Resolver | None = None,
) -> AsyncIterator[tuple[str, str]]:
    """Serve until the context ends. Gives where control and data are reached."""
    keyring = Keyring(await settings.read_keys())
    control_token, data_token = settings.read_tokens()
    store = Store.open(settings.database, keyring)
    system = SystemResolver()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(store.close)
        stack.callback(system.close)
        try:
            resealed = await store.reseal()
        except KeyFault as error:
            raise SettingsError(f"key_file: {error}") from None
        if resealed:
            log.info("resealed", credentials=resealed)
        tickets, sandboxes = Tickets(), Sandboxes()
        reach = Reach(
            resolver or system,
            Judge(own_addresses, settings.networks),
            settings.extra_ca,
            settings.connect_seconds,
            settings.answer_seconds,
            Room(_files_left(settings.most_connections), "connections to destinations"),
        )
        data = DataServer(
            store=store,
            tickets=tickets,
            sandboxes=sandboxes,
            reach=reach,
            token=data_token,
            users=settings.data.user_ids(),
            most=settings.most_connections,
        )
        app = create_app(store, tickets, sandboxes, control_token)
        server = await stack.enter_async_context(
            BoundedServer.open(
                app, _listening(stack, settings.control), Bounds(), grace=_GRACE_SECONDS
            )
        )
        _give_to_group(settings.control)
        url = await stack.enter_async_context(_serve_data(stack, settings.data, data))
        _give_to_group(settings.data)
        # The callbacks run backwards: first no more connections come, then those that are end.
        yield server.url, url


@asynccontextmanager
async def _serve_data(
    stack: contextlib.AsyncExitStack, settings: SocketSettings, data: DataServer
) -> AsyncIterator[str]:
    address = settings.address
    if isinstance(address, UnixAddress):
        listening = _listening(stack, settings)
        assert listening.path is not None
        listener = _bind(listening.path)
        try:
            server = await asyncio.start_unix_server(
                data.accept, sock=listener, limit=MOST_LINE, backlog=_BACKLOG
            )
        except BaseException:
            listener.close()
            raise
        url = f"unix:{address.path}"
    else:
        context = _listening(stack, settings).tls
        server = await asyncio.start_server(
            data.accept,
            address.host,
            address.port,
            ssl=context,
            limit=MOST_LINE,
            backlog=_BACKLOG,
        )
        host, port = server.sockets[0].getsockname()[:2]
        url = f"tcp:[{host}]:{port}" if ":" in host else f"tcp:{host}:{port}"
    try:
        yield url
    finally:
        server.close()
        await data.close()
        if isinstance(address, UnixAddress):
            address.path.unlink(missing_ok=True)


def _bind(path: Path) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        if path.is_socket():
            path.unlink()  # of one that is dead: the lock is ours
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Nobody connects before it is known who may.
        before = os.umask(0o117)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(before)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _listening(stack: contextlib.AsyncExitStack, settings: SocketSettings) -> Listening:
    address = settings.address
    if isinstance(address, UnixAddress):
        stack.callback(os.close, _hold(address.path))
        return Listening(path=address.path)
    if settings.tls is None:
        return Listening(host=address.host, port=address.port)
    tls = settings.tls
    try:
        context = server_context(tls.certificate, tls.key, tls.client_ca)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return Listening(host=address.host, port=address.port, tls=context)


def _give_to_group(settings: SocketSettings) -> None:
    address = settings.address
    if settings.socket_group is None or not isinstance(address, UnixAddress):
        return
    try:
        grp.getgrnam(settings.socket_group)
    except KeyError:
        raise SettingsError(
            f"socket_group: there is no group {settings.socket_group!r} on this machine"
        ) from None
    shutil.chown(address.path, group=settings.socket_group)
    address.path.chmod(0o660)


def _hold(path: Path) -> int:
    """Of two that start at once one finds the socket; a lock ends with its process."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise OSError(
            errno.EADDRINUSE, "it is in use by a broker that lives", os.fspath(path)
        ) from None
    return lock


def _keep_memory_private() -> None:
    """No core file has a secret in it, and no other process of this user reads our memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import ctypes

    pr_set_dumpable = 4
    ctypes.CDLL(None).prctl(pr_set_dumpable, 0, 0, 0, 0)


def _allow_many_files() -> None:
    """The low limit is for select(2), which nobody here uses: each request has a descriptor."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _files_left(connections: int) -> int:
    """For destinations: who listens and what is stored still has to open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, soft - connections - _FILES_OF_OURS)


def _notify(state: str) -> None:
    """Tell systemd, where it started us (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying,
    ):
        notifying.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
