"""The service as one asyncio program: it owns the executor, the listener, and the signals."""

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
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider

from stockade.executor.descriptors import PER_SANDBOX
from stockade.executor.egress.broker_lease import Leases, parse_address
from stockade.executor.local import open_local
from stockade.executor.pool import PoolPolicy
from stockade.executor.service.app import Service, create_app
from stockade.executor.service.logs import Log, ToLog, make_log
from stockade.executor.service.settings import ExecutorSettings, SettingsError, UnixAddress
from stockade.serving import BoundedServer, Bounds, Listening
from stockade.serving.memory import give_large_memory_back
from stockade.serving.tls import most_handshakes, server_context

_FILES_OF_OURS: Final = 256
"""Descriptors for whatever is neither a sandbox's nor a connection."""
_GRACE_SECONDS: Final = 5.0
"""For the last bytes of answers, once all executions have ended."""


async def serve(settings: ExecutorSettings, on_ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs; the second one stops at once.

    Raises :class:`~stockade.port.Unavailable` where no tier can be opened, ``OSError`` where it
    cannot listen, :class:`SettingsError` for a group, a certificate or a key that is none.
    """
    log = make_log(settings.log_level)
    _log_the_rest(log)
    give_large_memory_back()
    # What can be wrong with the listener is found before anything is started.
    listening = _listening(settings)
    group = _group(settings)
    pool = _room(settings, log)
    lock = None if listening.path is None else _hold(listening.path)
    log.info("starting", pid=os.getpid())
    signals = _Signals()
    provider = _provider(settings.otlp_endpoint)
    try:
        async with open_local(
            pool=pool,
            auth_mode=settings.auth_mode,
            tiers=settings.tiers,
            preloaded=settings.preloaded,
            allow_emulation=settings.allow_emulation,
            egress_public_networks=settings.egress_public_networks,
            open_lease=_leases(settings),
        ) as environment:
            app = create_app(environment, settings, log=log, provider=provider)
            service: Service = app.state.service
            async with BoundedServer.open(
                app, listening, _bounds(settings), grace=_GRACE_SECONDS
            ) as server:
                if group is not None and listening.path is not None:
                    shutil.chown(listening.path, group=group)
                signals.ready()
                log.info("listening", url=server.url, pid=os.getpid())
                _notify("READY=1")
                if on_ready is not None:
                    on_ready(server.url)
                await _until_stopped(server, service, signals)
    except asyncio.CancelledError:
        if not signals.gave_up:
            raise
        log.info("stopped_before_it_was_ready")
    finally:
        signals.close()
        if lock is not None:
            os.close(lock)
        if provider is not None:
            provider.shutdown()
    log.info("stopped")


async def _until_stopped(server: BoundedServer, service: Service, signals: "_Signals") -> None:
    failing = asyncio.ensure_future(server.failed())
    first = asyncio.create_task(signals.wait(1))
    try:
        await asyncio.wait({failing, first}, return_when=asyncio.FIRST_COMPLETED)
        _notify("STOPPING=1")
        if failing.done():
            failing.result()
            return
        second = asyncio.create_task(signals.wait(2))
        await asyncio.wait({service.drain(), second}, return_when=asyncio.FIRST_COMPLETED)
        second.cancel()
        await service.stop()
    finally:
        failing.cancel()
        first.cancel()


class _Signals:
    """How often the process was asked to end. Until it is ready, that ends its start."""

    def __init__(self) -> None:
        self.gave_up = False
        self._starting = asyncio.current_task()
        self._count = 0
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        self._count += 1
        self._news.set()
        if self._starting is not None and not self.gave_up:
            self.gave_up = True
            self._starting.cancel()

    def ready(self) -> None:
        """From now on it is drained."""
        self._starting = None

    async def wait(self, count: int) -> None:
        """Wait for so many of them."""
        while self._count < count:
            self._news.clear()
            await self._news.wait()

    def close(self) -> None:
        """Let the signals do what they did before."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)


def _hold(path: Path) -> int:
    """Of two that start at once one finds the socket; a lock ends with its process.

    Raises ``OSError``.
    """
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise OSError(
            errno.EADDRINUSE, "it is in use by an executor that lives", os.fspath(path)
        ) from None
    return lock


def _room(settings: ExecutorSettings, log: Log) -> PoolPolicy:
    """As many sandboxes as open files allow beside as many connections as may come."""
    pool = settings.pool()
    beside = settings.most_connections + _FILES_OF_OURS
    if settings.tls is not None:
        beside += most_handshakes(settings.most_connections)
    wanted = pool.most_alive * PER_SANDBOX + beside
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return pool
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    if most >= wanted:
        return pool
    alive = max(1, (most - beside) // PER_SANDBOX)
    log.warning("few_open_files", limit=most, wanted=wanted, most_sandboxes=alive)
    return replace(pool, most_alive=alive)


def _bounds(settings: ExecutorSettings) -> Bounds:
    return Bounds(
        connections=settings.most_connections,
        header_seconds=settings.header_seconds,
        idle_seconds=settings.idle_seconds,
        stalled_seconds=settings.stalled_seconds,
    )


def _listening(settings: ExecutorSettings) -> Listening:
    address = settings.address
    if isinstance(address, UnixAddress):
        return Listening(path=address.path)
    return Listening(host=address.host, port=address.port, tls=_tls(settings))


def _tls(settings: ExecutorSettings) -> ssl.SSLContext | None:
    tls = settings.tls
    if tls is None:
        return None
    try:
        return server_context(tls.certificate, tls.key, tls.client_ca)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _leases(settings: ExecutorSettings) -> Leases | None:
    broker = settings.broker
    if broker is None:
        return None
    return Leases(parse_address(broker.address, broker.ca), broker.read_token())


def _group(settings: ExecutorSettings) -> int | None:
    if settings.socket_group is None:
        return None
    try:
        return grp.getgrnam(settings.socket_group).gr_gid
    except KeyError:
        raise SettingsError(
            f"socket_group: there is no group {settings.socket_group!r} on this machine"
        ) from None


def _provider(endpoint: str | None) -> "SdkTracerProvider | None":
    if endpoint is None:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = SdkTracerProvider(resource=Resource.create({"service.name": "stockade-executor"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider


def _log_the_rest(log: Log) -> None:
    root = logging.getLogger()
    root.handlers[:] = [ToLog(log)]
    root.setLevel(logging.WARNING)


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
