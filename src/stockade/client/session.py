"""A session over HTTP."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Self

import aiohttp
from pydantic import ValidationError

from stockade.api import headers as names
from stockade.api.answers import FolderMessage, SandboxStateMessage
from stockade.api.frames import MEDIA_TYPE, FrameType
from stockade.api.headers import encode_path
from stockade.api.problems import Code, Problem
from stockade.api.requests import LeaseMessage
from stockade.client import calls, messages
from stockade.client.execution import FrameReader, RemoteExecution
from stockade.client.transport import (
    BYTES_PER_SECOND,
    Interrupted,
    Outgoing,
    Transport,
    error_of,
    parsed,
)
from stockade.port import (
    MIB,
    EgressSink,
    Execution,
    ExecutionRequest,
    FileRefused,
    InvalidRequest,
    Limits,
    OutputSink,
    Refused,
    SandboxLost,
    StandardInput,
    StockadeError,
    Tier,
    Unavailable,
    WorkspaceEntry,
    check_workspace_path,
)

MOST_LIST_BYTES = 64 * MIB
_BYTES_PER_FILE = 4096
"""What a saved workspace may have for a file beside its content."""
_LEAST_PAUSE = 0.5
# What was abandoned may run on for a moment, and nothing else begins meanwhile.
_ABANDONED_SECONDS, _AGAIN_SECONDS = 5.0, 0.02


class RemoteSession:
    """A sandbox that lives across several executions, for as long as its lease."""

    def __init__(
        self,
        transport: Transport,
        id: str,  # noqa: A002 - the word of the API
        limits: Limits,
        *,
        tenant: str | None,
        generation: int | None,
        keep_alive: float | None,
        tier: Tier | None = None,
        on_close: Callable[["RemoteSession"], None],
    ) -> None:
        """``keep_alive``: the lease, in seconds, that is extended until it is closed.

        ``generation``: what tells it, of an executor, from another that has its id.
        """
        self.id = id
        self.tier = tier
        """Which one serves it, where the service said so as it was opened."""
        self._transport = transport
        self._path = f"/v1/sandboxes/{id}"
        self._limits = limits
        self._tenant = tenant
        self._meant = {} if generation is None else {names.GENERATION: str(generation)}
        self._on_close = on_close
        self._running: RemoteExecution | None = None
        self._abandoned = False
        self._gone = False
        self._closing: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        if keep_alive is not None:
            self._keeping = asyncio.create_task(self._keep(keep_alive))

    def __repr__(self) -> str:
        state = "open" if self._closing is None else "closed"
        return f"<RemoteSession {self.id} {state}>"

    # --- programs ---

    async def start(
        self,
        request: ExecutionRequest,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
        id: str | None = None,  # noqa: A002
        idempotency_key: str | None = None,
    ) -> RemoteExecution:
        """Start a program; refused while another runs."""
        self._require_open()
        if self._running is not None and not self._running.done:
            raise InvalidRequest("session", "a program runs in it; wait for its end")
        identity = {**calls.identity(id, idempotency_key), **self._meant}
        message = messages.program(request, calls.inline(stdin), on_egress is not None)
        give_up = asyncio.get_running_loop().time() + _ABANDONED_SECONDS
        while True:
            try:
                with self._understood():
                    self._running = await calls.begin(
                        self._transport,
                        f"{self._path}/executions",
                        message,
                        request,
                        self._limits,
                        tenant=self._tenant,
                        identity=identity,
                        stdin=stdin,
                        on_output=on_output,
                        on_egress=on_egress,
                    )
                self._abandoned = False
                return self._running
            except InvalidRequest as error:
                late = asyncio.get_running_loop().time() > give_up
                if error.field != "session" or not self._abandoned or late:
                    raise
            await asyncio.sleep(_AGAIN_SECONDS)

    async def run(
        self,
        request: ExecutionRequest,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
        id: str | None = None,  # noqa: A002
        idempotency_key: str | None = None,
    ) -> Execution:
        """Start a program and wait for its end."""
        running = await self.start(
            request,
            stdin=stdin,
            on_output=on_output,
            on_egress=on_egress,
            id=id,
            idempotency_key=idempotency_key,
        )
        return await running.wait()

    # --- files ---

    async def write_file(self, path: str, content: bytes | AsyncIterable[bytes]) -> None:
        """Write a workspace file."""
        self._require_open()
        _check(path)
        with self._understood(path):
            await self._put(f"/files/{encode_path(path)}", content)

    async def read_file(self, path: str) -> AsyncIterator[bytes]:
        """Read a workspace file in pieces."""
        self._require_open()
        _check(path)
        with self._understood(path):
            pieces = self._get(f"/files/{encode_path(path)}", self._limits.disk_bytes)
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    yield piece

    async def list_files(self, path: str = "") -> list[WorkspaceEntry]:
        """List a folder of the workspace."""
        self._require_open()
        if path:
            _check(path)
        with self._understood(path):
            answer = await self._transport.ask(
                "GET",
                f"{self._path}/folders/{encode_path(path)}",
                tenant=self._tenant,
                most_bytes=MOST_LIST_BYTES,
                more=self._meant,
            )
            folder = parsed(FolderMessage, answer)
        return [WorkspaceEntry(entry.name, entry.kind, entry.size) for entry in folder.entries]

    async def save(self) -> AsyncIterator[bytes]:
        """The whole workspace, as bytes for ``restore``. Of an executor's session alone."""
        self._require_open()
        self._require_executor()
        limits = self._limits
        most = limits.disk_bytes + limits.inodes * _BYTES_PER_FILE + MIB
        ended = False
        try:
            with self._understood():
                pieces = self._saved(most)
                async with contextlib.aclosing(pieces):
                    async for piece in pieces:
                        yield piece
            ended = True
        finally:
            # By its connection, which is closed now: the service hears of that in a moment.
            self._abandoned = not ended

    async def restore(self, content: bytes | AsyncIterable[bytes]) -> None:
        """Put what ``save`` gave into the workspace. Of an executor's session alone."""
        self._require_open()
        self._require_executor()
        with self._understood():
            await self._put("/workspace", content)

    # --- its life ---

    async def pause(self) -> None:
        """Stop all its processes until ``resume``. Its lease goes on."""
        await self._do("pause")

    async def resume(self) -> None:
        """Let its processes go on."""
        await self._do("resume")

    async def state(self) -> SandboxStateMessage:
        """What it is doing, and what is left of its lease; extends nothing."""
        self._require_open()
        with self._understood():
            answer = await self._ask("GET")
            return parsed(SandboxStateMessage, answer)

    async def extend(self, seconds: float) -> SandboxStateMessage:
        """A lease of so many seconds from now. Refused above the service's ceiling."""
        self._require_open()
        try:
            message = LeaseMessage(seconds=seconds)
        except ValidationError:
            raise InvalidRequest("seconds", f"{seconds!r} is not a number above 0") from None
        with self._understood():
            answer = await self._ask("POST", "/lease", message.model_dump_json().encode())
            return parsed(SandboxStateMessage, answer)

    async def close(self) -> None:
        """Destroy the sandbox; returns when nothing of it lives.

        Raises :class:`~stockade.port.Unavailable` where nobody confirms that: its lease ends it.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._ask("DELETE")
        except SandboxLost:
            pass
        except Refused as error:
            if error.code != Code.NOT_FOUND:
                raise
        except Interrupted as error:
            raise Unavailable(
                f"{self._transport}: nobody confirms that session {self.id} is closed, which the "
                f"end of its lease will: {error}"
            ) from None
        finally:
            self._leave()
        if self._running is not None:
            await self._running.end()

    def _leave(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        self._on_close(self)

    async def _keep(self, seconds: float) -> None:
        """Extend its lease in time, until it is closed or gone."""
        loop = asyncio.get_running_loop()
        pause = seconds / 3
        ends = loop.time() + seconds
        while loop.time() < ends:
            await asyncio.sleep(pause)
            try:
                await self.extend(seconds)
            except Unavailable:
                pause = max(_LEAST_PAUSE, pause / 2)
            except SandboxLost:
                if self._gone or self._closing is not None:
                    return
                pause = max(_LEAST_PAUSE, pause / 2)
            except StockadeError:
                return  # whoever uses it next is told
            else:
                pause = seconds / 3
                ends = loop.time() + seconds

    async def _do(self, what: str) -> None:
        self._require_open()
        with self._understood():
            await self._ask("POST", f"/{what}")

    async def _ask(self, method: str, path: str = "", message: bytes | None = None) -> bytes:
        return await self._transport.ask(
            method, self._path + path, tenant=self._tenant, message=message, more=self._meant
        )

    async def _put(self, path: str, content: bytes | AsyncIterable[bytes]) -> None:
        body = Outgoing(content)
        headers = self._transport.headers(
            self._tenant,
            {
                "Content-Type": "application/octet-stream",
                "Accept": "application/json",
                **self._meant,
            },
        )
        if isinstance(content, bytes):
            headers["Content-Length"] = str(len(content))
        try:
            async with asyncio.timeout(self._transport.timeouts.answer) as clock:
                body.clock = clock
                response = await self._transport.send(
                    "PUT", self._path + path, headers, body, silent=True
                )
                try:
                    await self._transport.require(response)
                finally:
                    response.release()
        except TimeoutError:
            if body.failure is not None:
                raise body.failure from None
            raise Interrupted(
                "it does not take what is sent, or does not say that it has"
            ) from None

    async def _saved(self, most_bytes: int) -> AsyncGenerator[bytes, None]:
        headers = self._transport.headers(self._tenant, {"Accept": MEDIA_TYPE, **self._meant})
        response = await self._head(f"{self._path}/workspace", headers)
        try:
            await self._transport.require(response)
            if response.content_type != MEDIA_TYPE:
                raise Interrupted("its answer is not in frames")
            frames = FrameReader(self._transport, response)
            loop = asyncio.get_running_loop()
            patience = self._transport.timeouts.answer + most_bytes / BYTES_PER_SECOND
            frames.deadline = loop.time() + patience
            taken = 0
            while (frame := await frames.next()).type is not FrameType.END:
                if frame.type is FrameType.PROBLEM:
                    raise error_of(parsed(Problem, frame.payload))
                if frame.type is not FrameType.BLOB:
                    raise Interrupted(f"it broke the protocol: {frame.type.name} out of place")
                taken += len(frame.payload)
                if taken > most_bytes:
                    raise Interrupted(
                        f"it sends more than the {most_bytes} bytes that can be there"
                    )
                since = loop.time()
                yield frame.payload
                frames.deadline += loop.time() - since
            await frames.finish()
        except BaseException:
            response.close()
            raise

    async def _get(self, path: str, most_bytes: int) -> AsyncGenerator[bytes, None]:
        headers = self._transport.headers(
            self._tenant, {"Accept": "application/octet-stream", **self._meant}
        )
        response = await self._head(self._path + path, headers)
        try:
            await self._transport.require(response)
            if not _says_its_end(response):
                raise Interrupted("its answer does not say where it ends")
            taken = 0
            async for piece in self._transport.pieces(response):
                taken += len(piece)
                if taken > most_bytes:
                    raise Interrupted(
                        f"it sends more than the {most_bytes} bytes that can be there"
                    )
                yield piece
        except BaseException:
            response.close()
            raise
        finally:
            response.release()

    async def _head(self, path: str, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """The beginning of an answer, in bounded time."""
        seconds = self._transport.timeouts.answer
        try:
            async with asyncio.timeout(seconds):
                return await self._transport.send("GET", path, headers)
        except TimeoutError:
            raise Interrupted(f"no answer began within {seconds:g} seconds") from None

    def _require_open(self) -> None:
        if self._closing is not None:
            raise SandboxLost("the session is closed")

    def _require_executor(self) -> None:
        if self._tenant is None:
            raise Unavailable(
                "a gateway gives no workspace out: it keeps those that have a name, "
                "open_session(workspace=NAME)"
            )

    @contextlib.contextmanager
    def _understood(self, path: str | None = None) -> Iterator[None]:
        """What a refusal means of a session. ``path``: whose file it is about."""
        try:
            yield
        except FileRefused as error:
            raise FileRefused(error.path if path is None else path, error.reason) from None
        except Refused as error:
            if error.code == Code.NOT_FOUND:
                self._gone = True
                raise SandboxLost(
                    f"there is no session {self.id} any more: it was closed, or its lease ended"
                ) from None
            if error.code == Code.CONFLICT:
                raise InvalidRequest("session", str(error)) from None
            raise
        except Interrupted as error:
            raise SandboxLost(f"{self._transport}: {error}") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _check(path: str) -> None:
    try:
        check_workspace_path("path", path)
    except InvalidRequest as error:
        raise FileRefused(path, str(error).removeprefix("path: ")) from None


def _says_its_end(response: aiohttp.ClientResponse) -> bool:
    """Else a connection that is cut would look like the end."""
    return "Content-Length" in response.headers or (
        response.headers.get("Transfer-Encoding", "").lower() == "chunked"
    )
