"""A broker with its two sockets, destinations with real TLS, and a guest's way to them."""

import asyncio
import io
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiohttp
import h2.config
import h2.connection
import h2.events
import httpcore
import httpx
import trustme

from stockade.broker.logs import make_log
from stockade.broker.serve import open_broker
from stockade.broker.settings import BrokerSettings
from stockade.egress.names import Address
from stockade.egress.resolving import ResolveFailed
from stockade.executor.egress.broker_link import BrokerAddress, BrokeredSandbox, BrokerLink
from stockade.port.egress import EgressRule

CONTROL_TOKEN = "c0ntrol-3f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d"
DATA_TOKEN = "d4ta-9e8d7c6b5a4f3e2d1c0b9a8f7e6d5c4b3a21"
KEY = "6PNSqWUjLI3ttbOqm5/ZaF56a9jLhEcP9WuWojm4cBY="
SECRET = 'sk-Zq7/+Wm"4&tX9_secret-value'
TENANT = "acme"
LOCAL = "in 127.0.0.0/8"


class Names:
    """All names of ``.test`` are here."""

    async def resolve(self, name: str) -> Sequence[Address]:
        if name.endswith(".test"):
            return (ip_address("127.0.0.1"),)
        raise ResolveFailed(f"{name} cannot be resolved: there is none")


@dataclass
class Brokered:
    """A broker that runs."""

    folder: Path
    settings: BrokerSettings
    log: io.StringIO
    authority: trustme.CA
    control: aiohttp.ClientSession
    link: BrokerLink
    opened: list[BrokeredSandbox] = field(default_factory=list)

    async def store(
        self, name: str, rule: str, way: dict[str, Any], secret: str = SECRET, tenant: str = TENANT
    ) -> None:
        body = {"secret": secret, "grants": [{"rule": rule, "way": way}]}
        await self.put(name, body, tenant)

    async def put(self, name: str, body: dict[str, Any], tenant: str = TENANT) -> None:
        path = f"http://broker/v1/tenants/{tenant}/credentials/{name}"
        async with self.control.put(path, json=body) as answer:
            assert answer.status in (201, 204), await answer.text()

    async def ticket(self, *names: str, tenant: str = TENANT, execution: str = "run1") -> str:
        body = {"tenant": tenant, "execution": execution, "credentials": names}
        async with self.control.post("http://broker/v1/tickets", json=body) as answer:
            said = await answer.json()
            assert answer.status == 200, said
            return str(said["ticket"]).rpartition(":")[2]

    async def open(
        self, *names: str, rules: Sequence[str] = (), execution: str = "run1"
    ) -> BrokeredSandbox:
        ticket = await self.ticket(*names, execution=execution) if names else None
        sandbox = await self.link.open(
            tenant=TENANT,
            execution=execution,
            ticket=ticket,
            rules=[EgressRule.parse(rule) for rule in rules],
        )
        self.opened.append(sandbox)
        return sandbox

    async def uses(self, tenant: str = TENANT) -> list[dict[str, Any]]:
        async with self.control.get(f"http://broker/v1/tenants/{tenant}/uses") as answer:
            said = await answer.json()
            return list(said["uses"])


def broker_settings(folder: Path, **more: Any) -> BrokerSettings:
    return BrokerSettings.model_validate(
        {
            "control": {"listen": f"unix:{folder}/control.sock", "token": CONTROL_TOKEN},
            "data": {"listen": f"unix:{folder}/data.sock", "token": DATA_TOKEN},
            "database": folder / "broker.db",
            "key": KEY,
            **more,
        }
    )


@asynccontextmanager
async def open_brokered(folder: Path, authority: trustme.CA) -> AsyncIterator[Brokered]:
    """A broker of this process."""
    trusted = folder / "trusted.pem"
    authority.cert_pem.write_to_path(trusted)
    log = io.StringIO()
    settings = broker_settings(folder, extra_ca=trusted, connect_seconds=3)
    async with (
        open_broker(settings, log=make_log("debug", log), resolver=Names()),
        aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=str(folder / "control.sock")),
            headers={"Authorization": f"Bearer {CONTROL_TOKEN}"},
        ) as control,
    ):
        link = BrokerLink(BrokerAddress(path=folder / "data.sock"), DATA_TOKEN)
        found = Brokered(folder, settings, log, authority, control, link)
        try:
            yield found
        finally:
            for sandbox in found.opened:
                await sandbox.aclose()


def gateways_broker(folder: Path) -> dict[str, str]:
    """What the settings of a gateway say of the broker in this folder."""
    token = folder / "control-token"
    token.touch(mode=0o600)
    token.write_text(CONTROL_TOKEN)
    return {"url": f"unix://{folder}/control.sock", "token_file": str(token)}


Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def destination(
    authority: trustme.CA,
    answering: Answering,
    *,
    host: str = "api.test",
    certificate: trustme.LeafCert | None = None,
    alpn: Sequence[str] = ("http/1.1",),
    port: int = 0,
) -> AsyncIterator[int]:
    """A server with TLS on 127.0.0.1; gives its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (certificate or authority.issue_cert(host)).configure_cert(context)
    context.set_alpn_protocols(list(alpn))
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answering(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", port, ssl=context, backlog=512)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def front(sandbox: BrokeredSandbox, host: str, port: int) -> AsyncIterator[int]:
    """A port of this machine behind which is the broker's end for that host."""
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await sandbox.connect(host, port, True)
            each = [
                asyncio.ensure_future(pump(reader, back)),
                asyncio.ensure_future(pump(there, writer)),
            ]
            try:
                await asyncio.wait(each, return_when=asyncio.FIRST_COMPLETED)
            finally:
                back.transport.abort()
                for one in each:
                    one.cancel()
                await asyncio.gather(*each, return_exceptions=True)
        except OSError:
            pass
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def trusting(sandbox: BrokeredSandbox, *alpn: str) -> ssl.SSLContext:
    """What the guest trusts."""
    context = ssl.create_default_context(cadata=sandbox.certificate)
    context.set_alpn_protocols(list(alpn or ("http/1.1",)))
    return context


@asynccontextmanager
async def connected(
    sandbox: BrokeredSandbox, host: str, port: int, *alpn: str, name: str | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A guest's own TLS, byte by byte."""
    async with front(sandbox, host, port) as local:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", local, ssl=trusting(sandbox, *alpn), server_hostname=name or host
        )
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def say(
    sandbox: BrokeredSandbox, host: str, port: int, request: bytes
) -> tuple[bytes, bytes]:
    """One request as it is, on a connection of its own; head and body of the answer."""
    async with connected(sandbox, host, port) as (reader, writer):
        writer.write(request)
        return await hear(reader)


async def hear(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One answer of HTTP/1.1."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = b""
    lowered = head.lower()
    if b"content-length:" in lowered:
        size = int(lowered.partition(b"content-length:")[2].split(b"\r\n")[0])
        body = await reader.readexactly(size)
    elif b"chunked" in lowered:
        while True:
            size = int((await reader.readline()).split(b";")[0], 16)
            body += await reader.readexactly(size)
            await reader.readline()
            if size == 0:
                break
    return head, body


class Recorder:
    """A destination that keeps what it is asked, and answers by a function of that."""

    def __init__(self, answer: Callable[[bytes, bytes], bytes] | None = None) -> None:
        self.requests: list[bytes] = []
        self._answer = answer or (lambda _head, _body: plain(b"fine"))

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await hear(reader)
            self.requests.append(head + body)
            writer.write(self._answer(head, body))
            await writer.drain()


def plain(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class _Local(httpcore.AsyncNetworkBackend):
    """Connects to a port of this machine, whatever it is asked for."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        return await self._backend.connect_tcp("127.0.0.1", self._port, timeout)

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


@asynccontextmanager
async def guest_httpx(
    sandbox: BrokeredSandbox, port: int, *, http2: bool
) -> AsyncIterator[httpx.AsyncClient]:
    """httpx inside a sandbox, as it were."""
    alpn = ("h2", "http/1.1") if http2 else ("http/1.1",)
    async with front(sandbox, "api.test", port) as local:
        transport = httpx.AsyncHTTPTransport(http2=http2)
        transport._pool = httpcore.AsyncConnectionPool(
            ssl_context=trusting(sandbox, *alpn), http2=http2, network_backend=_Local(local)
        )
        async with httpx.AsyncClient(transport=transport, timeout=30, trust_env=False) as client:
            yield client


Seen = list[list[tuple[str, str]]]


@asynccontextmanager
async def served(brokered: Brokered, alpn: str) -> AsyncIterator[tuple[int, Seen]]:
    """A destination that echoes and counts, by one of the two HTTPs."""
    seen: Seen = []

    async def answer1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await hear(reader)
            lines = head.decode().split("\r\n")
            headers = [(n.lower(), v) for n, _, v in (line.partition(": ") for line in lines[1:-2])]
            seen.append(headers)
            target = lines[0].split(" ")[1]
            said = _said(target, headers, len(body))
            if target == "/slow":
                await asyncio.sleep(60)
            writer.write(plain(said, b"X-Target: " + target.encode()))
            await writer.drain()

    answering = answer1 if alpn == "http/1.1" else _Http2(seen)
    async with destination(brokered.authority, answering, alpn=(alpn,)) as port:
        yield port, seen


def _said(target: str, headers: list[tuple[str, str]], size: int) -> bytes:
    if target == "/count":
        return str(size).encode()
    if target == "/large":
        return bytes(8 * 1024 * 1024)
    return "\n".join(f"{name}: {value}" for name, value in headers).encode()


class _Http2:
    """A server by h2 alone, written for the tests: it shares nothing with the broker's."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        http.initiate_connection()
        writer.write(http.data_to_send())
        asked: dict[int, tuple[str, list[tuple[str, str]]]] = {}
        sizes: dict[int, int] = {}
        waiting: dict[int, bytes] = {}

        def push() -> None:
            for number in list(waiting):
                data = waiting[number]
                while data and (room := http.local_flow_control_window(number)) > 0:
                    size = min(room, http.max_outbound_frame_size)
                    http.send_data(number, data[:size])
                    data = data[size:]
                waiting[number] = data
                if not data:
                    del waiting[number]
                    http.end_stream(number)

        while data := await reader.read(65_536):
            for event in http.receive_data(data):
                match event:
                    case h2.events.RequestReceived():
                        headers = [(str(n), str(v)) for n, v in event.headers]
                        target = dict(headers)[":path"]
                        plain_ones = [each for each in headers if not each[0].startswith(":")]
                        self._seen.append(plain_ones)
                        asked[event.stream_id] = (target, plain_ones)
                        sizes[event.stream_id] = 0
                        if target.startswith("/pkg"):
                            http.send_headers(
                                event.stream_id,
                                [(":status", "200"), ("content-type", "application/grpc")],
                            )
                    case h2.events.DataReceived():
                        sizes[event.stream_id] += len(event.data or b"")
                        http.acknowledge_received_data(
                            event.flow_controlled_length or 0, event.stream_id
                        )
                        if asked[event.stream_id][0].startswith("/pkg"):
                            http.send_data(event.stream_id, event.data or b"")
                    case h2.events.StreamEnded():
                        target, headers = asked[event.stream_id]
                        if target.startswith("/pkg"):
                            secret = dict(headers)["authorization"].partition(" ")[2]
                            http.send_headers(
                                event.stream_id,
                                [("grpc-status", "0"), ("x-echo", secret)],
                                end_stream=True,
                            )
                        elif target != "/slow":
                            http.send_headers(
                                event.stream_id, [(":status", "200"), ("x-target", target)]
                            )
                            waiting[event.stream_id] = _said(
                                target, headers, sizes[event.stream_id]
                            )
                    case h2.events.StreamReset():
                        waiting.pop(event.stream_id, None)
            push()
            writer.write(http.data_to_send())
            await writer.drain()
