"""The other end of a connection, byte by byte: a server that plays what a test says."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from stockade.api import problems
from stockade.api.frames import MEDIA_TYPE, FrameType, encode, encode_record
from stockade.api.problems import Problem
from stockade.port import Execution

STARTED = encode(FrameType.STARTED, b'{"id": "e1"}')


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


class Exchange:
    """A request, and the means to answer it."""

    def __init__(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.asked = asked
        self.reader = reader
        self.writer = writer
        self.closing = False

    async def write(self, data: bytes) -> None:
        """Bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int, *, media: str, length: int | None = None) -> None:
        """A status line and headers; chunked without a length."""
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        await self.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: {media}\r\n{framing}\r\n\r\n".encode()
        )

    async def chunk(self, data: bytes) -> None:
        await self.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end(self) -> None:
        await self.write(b"0\r\n\r\n")

    async def answer(
        self, status: int, body: bytes = b"", *, media: str = "application/json"
    ) -> None:
        """A whole response."""
        if status == 204:
            await self.write(b"HTTP/1.1 204 X\r\n\r\n")
            return
        await self.head(status, media=media, length=len(body))
        await self.write(body)

    async def problem(self, problem: Problem) -> None:
        await self.answer(problem.status, problem.body(), media=problems.MEDIA_TYPE)

    async def frames(self, *pieces: bytes) -> None:
        """A response of frames that begins with these bytes."""
        await self.head(200, media=MEDIA_TYPE)
        for piece in pieces:
            await self.chunk(piece)

    async def record(self, execution: Execution, *before: bytes) -> None:
        """A whole response of frames."""
        await self.frames(STARTED, *before, *encode_record(execution))
        await self.end()

    def cut(self) -> None:
        """Close the connection, as it is."""
        self.closing = True
        self.writer.close()

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        while await self.reader.read(65_536):
            pass


Play = Callable[[Exchange], Awaitable[None]]


@dataclass
class Peer:
    """A server on loopback. ``asked`` has every request in order."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    failures: list[BaseException] = field(default_factory=list)

    def of(self, method: str, end: str) -> list[Asked]:
        """The requests with this method, whose path ends so."""
        return [one for one in self.asked if one.method == method and one.path.endswith(end)]


@asynccontextmanager
async def serving(play: Play, **listen: object) -> AsyncIterator[Peer]:
    """Answer each request by ``play``."""
    peer = Peer()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        peer.connections += 1
        try:
            while (asked := await _read(reader, peer)) is not None:
                exchange = Exchange(asked, reader, writer)
                await play(exchange)
                if exchange.closing:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except BaseException as error:  # noqa: BLE001 - the test is told
            peer.failures.append(error)
        finally:
            writer.close()
            tasks.discard(task)

    if "path" in listen:
        server: asyncio.Server = await asyncio.start_unix_server(serve, **listen)  # type: ignore[arg-type]
        peer.url = f"unix:{listen['path']}"
    else:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, **listen)  # type: ignore[arg-type]
        scheme = "https" if "ssl" in listen else "http"
        peer.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield peer
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if peer.failures:
            raise peer.failures[0]


async def _read(reader: asyncio.StreamReader, peer: Peer) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("ascii").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    asked = Asked(method, path, headers, b"")
    peer.asked.append(asked)
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            asked.body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    else:
        asked.body = await reader.readexactly(int(headers.get("content-length", "0")))
    return asked
