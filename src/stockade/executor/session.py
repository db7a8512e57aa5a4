"""A sandbox that lives across several executions of one tenant."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from types import TracebackType
from typing import Self

from stockade.executor import files
from stockade.executor.execution import ProgramExecution
from stockade.executor.sandbox import Sandbox
from stockade.port import (
    Execution,
    ExecutionRequest,
    InvalidRequest,
    Limits,
    OutputSink,
    SandboxLost,
    StandardInput,
    WorkspaceEntry,
)


class SandboxSession:
    """One sandbox, one program at a time; its workspace stays, its processes do not."""

    def __init__(
        self, sandbox: Sandbox, limits: Limits, waited: float, on_close: Callable[[], None]
    ) -> None:
        self._sandbox = sandbox
        self._on_close = on_close
        self._limits = limits
        self._waited = waited
        self._running: ProgramExecution | None = None
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closing is not None else "open"
        return f"<SandboxSession {state} {self._sandbox!r}>"

    async def start(
        self,
        request: ExecutionRequest,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
    ) -> ProgramExecution:
        """Start a program; refused while another runs."""
        self._require_open()
        if self._running is not None and not self._running.done:
            raise InvalidRequest("session", "a program runs in it; wait for its end")
        waited, self._waited = self._waited, 0.0
        self._running = ProgramExecution(
            self._sandbox,
            request,
            self._limits,
            single=False,
            waited=waited,
            stdin=stdin,
            on_output=on_output,
        )
        return self._running

    async def run(
        self,
        request: ExecutionRequest,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
    ) -> Execution:
        """Start a program and wait for its end."""
        return await (await self.start(request, stdin=stdin, on_output=on_output)).wait()

    async def write_file(self, path: str, content: bytes | AsyncIterable[bytes]) -> None:
        """Write a workspace file."""
        self._require_open()
        await files.put(self._sandbox.link, path, content)

    async def read_file(self, path: str) -> AsyncIterator[bytes]:
        """Read a workspace file in pieces."""
        self._require_open()
        async for piece in files.fetch(self._sandbox.link, path, self._limits.disk_bytes):
            yield piece

    async def list_files(self, path: str = "") -> list[WorkspaceEntry]:
        """List a folder of the workspace."""
        self._require_open()
        return await files.list_folder(self._sandbox.link, path)

    async def close(self) -> None:
        """Destroy the sandbox; a program that runs ends as ``cancelled``."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._running is not None and not self._running.done:
            await self._running.cancel()
            await self._running.ended()
        try:
            await self._sandbox.destroy()
        finally:
            self._on_close()

    def _require_open(self) -> None:
        if self._closing is not None:
            raise SandboxLost("the session is closed")
        if not self._sandbox.alive:
            raise SandboxLost("the session's sandbox died; open another")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
