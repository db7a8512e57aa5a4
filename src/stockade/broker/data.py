"""The data protocol, which executors speak: a line of JSON each way, then a lease or raw bytes.

docs/broker.md has it whole. Whoever is not known by token, and on a unix socket by user, gets one
line that says so.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import socket
import struct
from collections.abc import Collection, Sequence
from typing import Any, Final

from stockade.broker.authority import TooManyHosts
from stockade.broker.exchange import Exchange
from stockade.broker.http1 import BadRequest, UpstreamBroken, serve_http1
from stockade.broker.http2 import serve_http2
from stockade.broker.keys import KeyFault
from stockade.broker.sandboxes import BrokeredSandbox, Sandboxes, TooManySandboxes
from stockade.broker.store import Opened, Store, UnknownCredential
from stockade.broker.tickets import TicketRefused, Tickets
from stockade.broker.upstream import Reach
from stockade.egress.names import BadHost, Destination, read_host
from stockade.port import KIB, InvalidRequest
from stockade.port.egress import MAX_RULES, EgressRule, Scheme

_log: Final = logging.getLogger(__name__)

MOST_LINE: Final = 64 * KIB
_LINE_SECONDS: Final = 10.0
_HANDSHAKE_SECONDS: Final = 15.0
_SILENT_SECONDS: Final = 30
"""Of an executor's machine, before it is asked whether it is there."""
_MOST_OF_ONE: Final = 256
"""Connections of one sandbox."""
_MOST_RULES: Final = 4 * MAX_RULES


class _Rejected(Exception):
    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class DataServer:
    """Serves the connections of executors."""

    def __init__(
        self,
        *,
        store: Store,
        tickets: Tickets,
        sandboxes: Sandboxes,
        reach: Reach,
        token: str,
        users: Collection[int] | None = None,
        most: int = 4096,
    ) -> None:
        """``users``: who may connect on a unix socket; ``None`` for whoever can."""
        self._store = store
        self._tickets = tickets
        self._sandboxes = sandboxes
        self._reach = reach
        self._digest = hashlib.sha256(token.encode()).digest()
        self._users = None if users is None else frozenset(users)
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<DataServer {len(self._tasks)} connections, {len(self._sandboxes)} sandboxes>"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """For :func:`asyncio.start_server` and its like."""
        if len(self._tasks) >= self._most:
            writer.write(_line({"error": "busy", "detail": f"{self._most} connections are open"}))
            writer.close()
            return
        _notice_dead_peers(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all connections, and by that all sandboxes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                async with asyncio.timeout(_LINE_SECONDS):
                    said = await _read(reader)
                self._check_user(writer)
                kind, fields = self._admit(said)
                if kind == "open":
                    sandbox = await self._open(fields)
                else:
                    sandbox = self._find(fields)
            except _Rejected as error:
                writer.write(_line({"error": error.code, "detail": str(error)}))
                await writer.drain()
                return
            if kind == "open":
                await self._lease(sandbox, reader, writer)
            else:
                await self._connect(sandbox, fields, reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # whoever it was is gone, or says nothing
        except Exception as error:  # noqa: BLE001 - one connection's fault is not the broker's end
            # Its kind and place alone: what it says may have come from anywhere.
            place = error.__traceback__
            while place is not None and place.tb_next is not None:
                place = place.tb_next
            where = "" if place is None else f"{place.tb_frame.f_code.co_name}:{place.tb_lineno}"
            _log.error("a connection failed by a fault of ours: %s %s", type(error).__name__, where)
        finally:
            writer.transport.abort() if writer.is_closing() else writer.close()

    def _check_user(self, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("socket")
        if self._users is None or peer is None or peer.family != socket.AF_UNIX:
            return
        data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", data)
        if uid not in self._users:
            raise _Rejected("unauthenticated", f"the user {uid} is no executor's")

    def _admit(self, said: object) -> tuple[str, dict[str, Any]]:
        if not isinstance(said, dict) or len(said) != 1:
            raise _Rejected(
                "bad-request", 'the first line is not {"open": ...} or {"connect": ...}'
            )
        ((kind, fields),) = said.items()
        wanted = {
            "open": {"token", "ticket", "tenant", "execution", "rules"},
            "connect": {"token", "sandbox", "host", "port", "tls"},
        }.get(kind)
        if wanted is None or not isinstance(fields, dict):
            raise _Rejected(
                "bad-request", 'the first line is not {"open": ...} or {"connect": ...}'
            )
        token = fields.get("token")
        given = token.encode("utf-8", "replace") if isinstance(token, str) else b""
        # Of digests: neither length nor first difference shows in the time that it takes.
        if not hmac.compare_digest(hashlib.sha256(given).digest(), self._digest):
            raise _Rejected("unauthenticated", "the executors' token is not this, or missing")
        if fields.keys() != wanted:
            raise _Rejected("bad-request", f"{kind} has exactly {', '.join(sorted(wanted))}")
        return kind, fields

    # --- open ---

    async def _open(self, fields: dict[str, Any]) -> BrokeredSandbox:
        tenant, execution, ticket = fields["tenant"], fields["execution"], fields["ticket"]
        for name, value in (("tenant", tenant), ("execution", execution)):
            if not isinstance(value, str) or not 0 < len(value) <= 128 or not value.isprintable():
                raise _Rejected("bad-request", f"{name} is not 1 to 128 printable characters")
        rules = _rules(fields["rules"])
        credentials: tuple[Opened, ...] = ()
        if ticket is not None:
            if not isinstance(ticket, str) or len(ticket) > 256:
                raise _Rejected("bad-request", "the ticket is none")
            try:
                names = self._tickets.redeem(ticket, tenant, execution)
                credentials = await self._read(tenant, names)
            except TicketRefused as error:
                raise _Rejected("ticket-refused", str(error)) from None
            except (UnknownCredential, KeyFault) as error:
                raise _Rejected("unknown-credential", str(error)) from None
        sandbox = BrokeredSandbox(tenant, execution, rules, credentials, self._sandboxes.room())
        try:
            self._sandboxes.add(sandbox)
        except TooManySandboxes as error:
            raise _Rejected("busy", str(error)) from None
        return sandbox

    async def _read(self, tenant: str, names: Sequence[str]) -> tuple[Opened, ...]:
        """As they are now: one that is deleted meanwhile would be used as long as the lease."""
        while True:
            before = self._sandboxes.revocations
            found = await self._store.open_credentials(tenant, names)
            if before == self._sandboxes.revocations:
                return found

    async def _lease(
        self,
        sandbox: BrokeredSandbox,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            writer.write(
                _line(
                    {
                        "sandbox": sandbox.id,
                        "certificate": sandbox.authority.certificate,
                        "environment": sandbox.environment,
                        "destinations": [list(each) for each in sandbox.access.destinations()],
                    }
                )
            )
            await writer.drain()
            # Whatever else comes ends it.
            while True:
                try:
                    said = await _read(reader)
                except _Rejected:
                    return
                if said != {"uses": True}:
                    break
                writer.write(_line(sandbox.told()))
                await writer.drain()
            await self._sandboxes.remove(sandbox)
            if said == {"finish": True}:
                writer.write(_line(sandbox.told()))
                await writer.drain()
        finally:
            await self._sandboxes.remove(sandbox)

    # --- connect ---

    def _find(self, fields: dict[str, Any]) -> BrokeredSandbox:
        id = fields["sandbox"]  # noqa: A001 - the protocol's word
        sandbox = self._sandboxes.find(id) if isinstance(id, str) else None
        if sandbox is None:
            raise _Rejected("no-sandbox", "there is no such sandbox, or its lease has ended")
        if len(sandbox.tasks) >= _MOST_OF_ONE:
            raise _Rejected("busy", f"the sandbox has {_MOST_OF_ONE} connections, the most")
        if type(fields["tls"]) is not bool or type(fields["port"]) is not int:
            raise _Rejected("bad-request", "tls is true or false, and port a number")
        if not 0 < fields["port"] <= 65_535 or not isinstance(fields["host"], str):
            raise _Rejected("bad-request", "host is text, and port 1 to 65535")
        return sandbox

    async def _connect(
        self,
        sandbox: BrokeredSandbox,
        fields: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        sandbox.tasks.add(task)
        try:
            try:
                destination = Destination(read_host(fields["host"]), fields["port"])
                context = (
                    sandbox.authority.context(destination.host.name) if fields["tls"] else None
                )
            except BadHost as error:
                writer.write(_line({"error": error.reason, "detail": error.detail}))
                return
            except TooManyHosts as error:
                writer.write(_line({"error": "busy", "detail": str(error)}))
                return
            scheme = Scheme.HTTPS if fields["tls"] else Scheme.HTTP
            if context is not None:
                # Nothing is read until TLS reads it: the guest may begin as soon as it hears the ok.
                transport = writer.transport
                transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(_line({"ok": True}))
                reader, writer = await _start_tls(writer, context)
            else:
                writer.write(_line({"ok": True}))
                await writer.drain()
            await self._converse(sandbox, destination, scheme, reader, writer)
        finally:
            sandbox.tasks.discard(task)

    async def _converse(
        self,
        sandbox: BrokeredSandbox,
        destination: Destination,
        scheme: Scheme,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        exchange = Exchange(sandbox, destination, scheme, store=self._store, reach=self._reach)
        tls = writer.get_extra_info("ssl_object")
        http2 = tls is not None and tls.selected_alpn_protocol() == "h2"
        serve = serve_http2 if http2 else serve_http1
        work = asyncio.ensure_future(serve(reader, writer, destination, scheme, exchange.handle))
        # A guest that goes away while the destination says nothing is noticed by this alone.
        gone = asyncio.ensure_future(_gone(writer))
        whole = False
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                whole = True
        except (BadRequest, UpstreamBroken):
            pass  # in the middle of an answer: it is cut
        finally:
            for each in (work, gone):
                each.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            exchange.close()
            if whole:
                writer.close()
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(_HANDSHAKE_SECONDS):
                        await writer.wait_closed()
            writer.transport.abort()


def _notice_dead_peers(writer: asyncio.StreamWriter) -> None:
    """A lease stands as long as its connection: a machine that fails says nothing to end it."""
    peer = writer.get_extra_info("socket")
    if peer is None or peer.family == socket.AF_UNIX:
        return
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _SILENT_SECONDS),
        (socket.TCP_KEEPINTVL, _SILENT_SECONDS // 6),
        (socket.TCP_KEEPCNT, 3),
        # Where something was sent and nobody says that it came.
        (socket.TCP_USER_TIMEOUT, 2000 * _SILENT_SECONDS),
    ):
        peer.setsockopt(socket.IPPROTO_TCP, option, value)


async def _gone(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _start_tls(
    writer: asyncio.StreamWriter, context: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 * KIB, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = await loop.start_tls(
        writer.transport,
        protocol,
        context,
        server_side=True,
        ssl_handshake_timeout=_HANDSHAKE_SECONDS,
        ssl_shutdown_timeout=1.0,
    )
    if transport is None:
        raise ConnectionResetError("it went away in the handshake")
    protocol.connection_made(transport)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _read(reader: asyncio.StreamReader) -> object:
    """One line. Raises :class:`_Rejected`, and what says that nobody is there."""
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise _Rejected("too-large", f"the line has more than {MOST_LINE} bytes") from None
    if len(line) > MOST_LINE:
        raise _Rejected("too-large", f"the line has more than {MOST_LINE} bytes")
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise _Rejected("bad-request", "the line is no JSON") from None


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


def _rules(said: object) -> list[EgressRule]:
    if not isinstance(said, list) or len(said) > _MOST_RULES:
        raise _Rejected("bad-request", f"rules is not a list of at most {_MOST_RULES}")
    try:
        return [EgressRule.parse(each) for each in said]
    except InvalidRequest as error:
        raise _Rejected("bad-request", f"rules: {error}") from None
