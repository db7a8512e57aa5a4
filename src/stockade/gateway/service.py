"""The gateway as one asyncio program: it owns the database, the listener and the signals."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from stockade.gateway.api.app import create_app
from stockade.gateway.api.services import Services
from stockade.gateway.artefacts import ArtefactStore
from stockade.gateway.audit import Audit
from stockade.gateway.blobs import Blobs
from stockade.gateway.brokering import Broker
from stockade.gateway.calls import Calls
from stockade.gateway.database import Database
from stockade.gateway.executors import Executors
from stockade.gateway.keys import Caller, Keys
from stockade.gateway.ledger import Ledger
from stockade.gateway.logs import Log, open_log, take_over
from stockade.gateway.metrics import Metrics
from stockade.gateway.sandboxes import Sandboxes
from stockade.gateway.settings import GatewaySettings, Tls
from stockade.gateway.tenants import Tenants
from stockade.gateway.tools import Tools
from stockade.gateway.tools_calls import ToolCalls
from stockade.gateway.tools_schemas import Schemas
from stockade.gateway.tracing import Tracing
from stockade.gateway.workspaces import Workspaces
from stockade.port import StockadeError
from stockade.serving import BoundedServer, Bounds, Listening
from stockade.serving.memory import give_large_memory_back
from stockade.serving.tls import server_context

_SWEEP_SECONDS: Final = 600.0
_GRACE_SECONDS: Final = 10.0
_SWITCH_SECONDS: Final = 0.0005


class Refusal(StockadeError):
    """The gateway does not start; the message has a line for each reason."""


@asynccontextmanager
async def open_services(
    settings: GatewaySettings, log: Log, tracing: Tracing | None = None
) -> AsyncIterator[Services]:
    """Every part of a gateway, in the order in which they need one another.

    Raises :class:`Refusal`, and :class:`~stockade.gateway.database.DatabaseFault`.
    """
    if wrong := settings.check():
        raise Refusal("\n".join(wrong))
    dev = settings.auth_mode == "dev"
    metrics = Metrics()
    tracing = tracing or Tracing.to(settings.traces.endpoint, settings.traces.sampled)
    async with AsyncExitStack() as stack:
        stack.callback(tracing.close)
        database = await asyncio.to_thread(_open_database, settings.database_url, dev)
        stack.callback(database.close)
        keys = Keys(database, cache_seconds=settings.key_cache_seconds)
        nobody: Caller | None = None
        if dev:
            tenant = await asyncio.to_thread(Tenants(database).ensure_dev)
            nobody = Caller(tenant.name, "dev", policy=tenant.policy)
        ledger = await stack.enter_async_context(
            Ledger(database, keys, retention=settings.retention)
        )
        store = settings.artefacts.store
        artefacts = ArtefactStore(
            database,
            ledger,
            Blobs.open(store.where, "artefacts", store.options),
            settings.artefacts.ttl_seconds,
            settings.artefacts.most_bytes,
        )
        workspaces = Workspaces(
            database,
            ledger,
            Blobs.open(store.where, "workspaces", store.options),
            settings.workspaces.ttl_seconds,
            settings.workspaces.most_bytes,
        )
        audit = Audit(database)
        executors = await stack.enter_async_context(
            Executors.open(settings.executors, metrics=metrics, log=log, tracing=tracing)
        )
        broker = await stack.enter_async_context(Broker.open(settings.broker))
        sandboxes = Sandboxes(
            ledger, executors, workspaces, broker, log=log, ceilings=settings.ceilings
        )
        calls = Calls(ledger, artefacts.keep, metrics=metrics, log=log, tracing=tracing)
        schemas = await stack.enter_async_context(Schemas())
        tools = Tools(database, ledger)
        tool_calls = ToolCalls(tools, schemas, calls, executors, broker, settings.ceilings)
        metrics.watch("executions_running", "Executions that run or wait.", lambda: len(calls))
        metrics.watch("sandboxes_open", "Sessions that are open.", lambda: len(sandboxes))
        metrics.watch("turns_held", "Places that are taken.", lambda: executors.turns.held)
        metrics.watch("turns_waiting", "Calls that wait.", lambda: executors.turns.waiting)
        tasks = [
            asyncio.create_task(sandboxes.look_after(database)),
            asyncio.create_task(_sweep(artefacts, workspaces, log)),
            asyncio.create_task(_anchor(audit, settings.audit.anchor_seconds, log)),
        ]
        try:
            yield Services(
                settings=settings,
                database=database,
                keys=keys,
                ledger=ledger,
                audit=audit,
                artefacts=artefacts,
                workspaces=workspaces,
                broker=broker,
                executors=executors,
                sandboxes=sandboxes,
                calls=calls,
                tools=tools,
                tool_calls=tool_calls,
                metrics=metrics,
                log=log,
                tracing=tracing,
                nobody=nobody,
            )
        finally:
            # What runs is in nobody's hand any more: it ends in a record all the same.
            await calls.drain(0)
            await sandboxes.close_all(max(_GRACE_SECONDS, settings.drain_seconds))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


@asynccontextmanager
async def open_gateway(
    settings: GatewaySettings, log: Log, *, bounds: Bounds | None = None
) -> AsyncIterator[tuple[BoundedServer, Services]]:
    """A gateway that serves until the context ends."""
    async with (
        open_services(settings, log) as services,
        BoundedServer.open(
            create_app(services),
            _listening(settings),
            bounds or Bounds(connections=settings.connections),
            grace=_GRACE_SECONDS,
        ) as server,
    ):
        yield server, services


async def serve(settings: GatewaySettings, on_ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; then finish what runs, within the deadline.

    A second signal ends it at once. Raises as :func:`open_services`, and ``OSError`` where it
    cannot listen.
    """
    take_over()
    give_large_memory_back()
    # The ledger writes in a thread, and each call waits for it twice: with Python's 5 ms that wait
    # is for the other thread's turn to end, and takes a tenth of a call.
    sys.setswitchinterval(_SWITCH_SECONDS)
    log = open_log()
    with _signals() as stopping:
        async with open_gateway(settings, log) as (server, services):
            log.info("listening", url=server.url, pid=os.getpid())
            _notify("READY=1")
            if on_ready is not None:
                on_ready(server.url)
            failing = asyncio.ensure_future(server.failed())
            first = asyncio.ensure_future(stopping.get())
            await asyncio.wait([failing, first], return_when=asyncio.FIRST_COMPLETED)
            _notify("STOPPING=1")
            first.cancel()
            if failing.done():
                failing.result()
                return
            log.info("draining", running=len(services.calls), seconds=settings.drain_seconds)
            # It still serves: whoever waits for a job may ask for it.
            await _unless(services.calls.drain(settings.drain_seconds), stopping.get())
            failing.cancel()
    log.info("stopped")


async def _unless(work: Coroutine[Any, Any, None], interruption: Coroutine[Any, Any, Any]) -> None:
    working = asyncio.ensure_future(work)
    interrupted = asyncio.ensure_future(interruption)
    await asyncio.wait([working, interrupted], return_when=asyncio.FIRST_COMPLETED)
    for task in (working, interrupted):
        task.cancel()
    await asyncio.wait([working, interrupted])


@contextlib.contextmanager
def _signals() -> Iterator["asyncio.Queue[int]"]:
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[int] = asyncio.Queue()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, came.put_nowait, number)
    try:
        yield came
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _open_database(url: str, dev: bool) -> Database:
    database = Database.open(url)
    try:
        if dev:
            database.migrate()  # a developer's own: there is nobody to ask
        database.check()
    except BaseException:
        database.close()
        raise
    return database


async def _sweep(artefacts: ArtefactStore, workspaces: Workspaces, log: Log) -> None:
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        try:
            removed = await artefacts.sweep() + await workspaces.sweep()
        except StockadeError as error:
            log.warning("nothing was swept", why=str(error))
        except Exception:  # a database's fault, say: the next time is another try
            log.exception("nothing was swept")
        else:
            if removed:
                log.info("swept", removed=removed)


async def _anchor(audit: Audit, seconds: float, log: Log) -> None:
    """The trail's end, where who can write the database cannot write."""
    while True:
        try:
            log.info("audit anchor", anchor=str(await asyncio.to_thread(audit.head)))
        except Exception:  # one that could not be read must not be the last
            log.exception("no audit anchor")
        await asyncio.sleep(seconds)


def _listening(settings: GatewaySettings) -> Listening:
    listen = settings.listen
    host = "127.0.0.1" if listen.host == "localhost" else listen.host.strip("[]")
    return Listening(host, listen.port, listen.unix, _tls(settings.tls))


def _tls(tls: Tls | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    try:
        return server_context(tls.certificate, tls.key, tls.client_ca)
    except ValueError as error:
        raise Refusal(str(error)) from None


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
