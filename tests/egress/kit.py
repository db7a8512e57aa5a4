"""A proxy on a socket, destinations behind it, and a resolver whose answers a test makes up."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from stockade.egress import EgressProxy, ResolveFailed, Waits
from stockade.egress.http_relay import Patience
from stockade.egress.names import Address
from stockade.port.egress import EgressEvent, EgressPolicy, EgressRule

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

QUICK = Waits(1.0, 1.0, 2.0, Patience(1.0, 1.0, 1.0))


class MadeUpNames:
    """Answers as told, and remembers what it was asked. Several lists: one after the other."""

    def __init__(self, names: Mapping[str, Sequence[Sequence[str]]] | None = None) -> None:
        self.names = {"localhost": [["127.0.0.1"]], **(names or {})}
        self.asked: list[str] = []

    async def resolve(self, name: str) -> Sequence[Address]:
        self.asked.append(name)
        if name not in self.names:
            raise ResolveFailed(f"{name} cannot be resolved: made up")
        answers = self.names[name]
        turn = min(self.asked.count(name), len(answers)) - 1
        return [ip_address(each) for each in answers[turn]]


@dataclass
class Running:
    """A proxy that listens."""

    proxy: EgressProxy
    port: int
    names: MadeUpNames
    events: list[EgressEvent] = field(default_factory=list)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def say(self, data: bytes) -> bytes:
        """All that the proxy answers to these bytes."""
        reader, writer = await self.open()
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(1 << 24), 20) + await asyncio.wait_for(
                reader.read(), 20
            )
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def connect(
        self, target: str
    ) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        """The head that answers a CONNECT, and the connection."""
        reader, writer = await self.open()
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("latin-1"))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        return head, reader, writer

    @property
    def reasons(self) -> list[str]:
        return [each.reason for each in self.proxy.use.denied]


@contextlib.asynccontextmanager
async def running(
    *rules: str, names: Mapping[str, Sequence[Sequence[str]]] | None = None, **more: Any
) -> AsyncIterator[Running]:
    """A proxy with these rules; ``policy_...`` arguments are the policy's."""
    ceilings = {
        key.removeprefix("policy_"): more.pop(key)
        for key in list(more)
        if key.startswith("policy_")
    }
    policy = EgressPolicy(tuple(EgressRule.parse(each) for each in rules), **ceilings)
    resolver = MadeUpNames(names)
    events: list[EgressEvent] = []
    more.setdefault("waits", QUICK)
    proxy = EgressProxy(policy, resolver=resolver, on_event=events.append, **more)
    async with listening(proxy.serve) as port:
        try:
            yield Running(proxy, port, resolver, events)
        finally:
            await proxy.aclose()


@contextlib.asynccontextmanager
async def listening(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server; its port."""
    tasks: set[asyncio.Task[Any]] = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in list(tasks):
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what it gets."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


class Site:
    """An HTTP/1.1 server that remembers each request as its bytes."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            self.bodies.append(await _body(head.lower(), reader))
            writer.write(self.answer)
            await writer.drain()
            if b"content-length" not in self.answer.lower():
                return


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    if b"transfer-encoding: chunked" in head:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return body
    _, found, rest = head.partition(b"content-length: ")
    return await reader.readexactly(int(rest.split(b"\r\n")[0])) if found else b""


def client_hello(name: str | None, alpn: Sequence[str] = ()) -> bytes:
    """What OpenSSL says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(list(alpn))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()
