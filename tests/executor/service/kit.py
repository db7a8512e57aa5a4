"""A service on a unix socket, and a caller that sends exactly what it is told to."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stockade.api.frames import Frame, FrameDecoder, FrameType, RecordAssembler
from stockade.api.records import DetachedRecord
from stockade.executor.service.app import Service, create_app
from stockade.executor.service.logs import make_log
from stockade.executor.service.settings import ExecutorSettings
from stockade.port import Execution, ExecutionEnvironment
from stockade.serving import BoundedServer, Bounds, Listening

TOKEN = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
FRAMES = "application/vnd.stockade.frames"


@dataclass
class Answer:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool = True
    """Whether it said its own end."""

    @property
    def json(self) -> Any:
        """Its body."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        return str(self.json["code"])

    @property
    def frames(self) -> list[Frame]:
        """Of a stream."""
        assert self.status == 200, self
        return list(FrameDecoder().feed(self.body))

    @property
    def record(self) -> Execution:
        """Of a stream that ended well."""
        return record_of(self.frames)


def record_of(frames: list[Frame]) -> Execution:
    """What RECORD and the blobs behind it say."""
    frames = [frame for frame in frames if frame.type is not FrameType.KEEPALIVE]
    assert frames[0].type is FrameType.STARTED, frames
    assert frames[-1].type is FrameType.END, frames
    place = [frame.type for frame in frames].index(FrameType.RECORD)
    assembler = RecordAssembler(
        DetachedRecord.model_validate_json(frames[place].payload), 100_000_000
    )
    for frame in frames[place + 1 : -1]:
        assert frame.type is FrameType.BLOB
        assembler.add(frame.payload)
    return assembler.finish()


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """As it is."""
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """A response's first part."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """A body's pieces. Raises IncompleteReadError for one that is cut."""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)

    async def answer(self) -> Answer:
        """A whole response."""
        status, headers = await self.head()
        body, whole = b"", True
        if headers.get("transfer-encoding") == "chunked":
            try:
                async for piece in self.chunks():
                    body += piece
            except asyncio.IncompleteReadError:
                whole = False
        elif status != 204:
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(status, headers, body, whole)

    async def frames(self) -> AsyncIterator[Frame]:
        """Of a response whose head was read."""
        decoder = FrameDecoder()
        async for piece in self.chunks():
            for frame in decoder.feed(piece):
                yield frame

    async def ended(self) -> bool:
        """Whether the other side hung up, without another byte."""
        return await self.reader.read(1) == b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.writer.close()


@dataclass
class Caller:
    """Calls a service, as one tenant."""

    path: Path
    tenant: str = "acme"
    token: str = TOKEN
    service: Service | None = None
    log: io.StringIO = field(default_factory=io.StringIO)

    def of(self, tenant: str) -> "Caller":
        """The same as another tenant."""
        return Caller(self.path, tenant, self.token, self.service, self.log)

    async def connect(self) -> Wire:
        """A connection."""
        return Wire(*await asyncio.open_unix_connection(str(self.path), limit=2**20))

    def head(
        self, method: str, path: str, headers: dict[str, str | None] | None = None, length: int = -1
    ) -> bytes:
        """A request's line and headers. ``None`` leaves one out."""
        all_headers: dict[str, str | None] = {
            "Host": "x",
            "Authorization": f"Bearer {self.token}",
            "Stockade-Tenant": self.tenant,
            "Content-Length": str(length) if length >= 0 else None,
            **(headers or {}),
        }
        lines = [f"{name}: {value}" for name, value in all_headers.items() if value is not None]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1")

    async def call(
        self,
        method: str,
        path: str,
        body: object = b"",
        headers: dict[str, str | None] | None = None,
    ) -> Answer:
        """A request with its answer, on a connection of its own."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with await self.connect() as wire:
            await wire.send(self.head(method, path, headers, len(data)) + data)
            return await wire.answer()

    async def run(
        self, source: str = "", headers: dict[str, str | None] | None = None, **more: object
    ) -> Answer:
        """An execution, seen through."""
        body = {"program": {"kind": "python", "source": source}, **more}
        return await self.call("POST", "/v1/executions", body, headers)

    @asynccontextmanager
    async def running(
        self,
        path: str = "/v1/executions",
        headers: dict[str, str | None] | None = None,
        source: str = "",
        **more: object,
    ) -> AsyncIterator[tuple[str, Wire, AsyncIterator[Frame]]]:
        """An execution that has started: its id, its connection, its frames behind STARTED."""
        body = {"program": {"kind": "python", "source": source}, **more}
        data = json.dumps(body).encode()
        async with await self.connect() as wire:
            await wire.send(self.head("POST", path, headers, len(data)) + data)
            status, _ = await wire.head()
            assert status == 200, await wire.reader.read(1000)
            frames = wire.frames()
            first = await anext(frames)
            assert first.type is FrameType.STARTED
            yield json.loads(first.payload)["id"], wire, frames

    async def open(self, seconds: float = 60, **sandbox: object) -> str:
        """A session's id."""
        answer = await self.call(
            "POST", "/v1/sandboxes", {"lease_seconds": seconds, "sandbox": sandbox}
        )
        assert answer.status == 201, answer
        assert answer.headers["location"] == f"/v1/sandboxes/{answer.json['id']}"
        return str(answer.json["id"])


@asynccontextmanager
async def serving(
    environment: ExecutionEnvironment, folder: Path, **settings: Any
) -> AsyncIterator[Caller]:
    """A service before this environment."""
    found = ExecutorSettings(token=TOKEN, **settings)  # type: ignore[arg-type]
    log = io.StringIO()
    app = create_app(environment, found, log=make_log("debug", log))
    bounds = Bounds(
        connections=found.most_connections,
        header_seconds=found.header_seconds,
        idle_seconds=found.idle_seconds,
        stalled_seconds=found.stalled_seconds,
    )
    path = folder / "s"
    async with BoundedServer.open(app, Listening(path=path), bounds, grace=1):
        try:
            yield Caller(path, service=app.state.service, log=log)
        finally:
            await app.state.service.stop()
