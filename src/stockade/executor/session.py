"""A sandbox that lives across several executions of one tenant."""

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Self

from stockade.executor import files, workspace
from stockade.executor.egress.opening import SandboxEgress
from stockade.executor.execution import ProgramExecution
from stockade.executor.sandbox import Sandbox
from stockade.port import (
    EgressSink,
    Execution,
    ExecutionRequest,
    InvalidRequest,
    Limits,
    OutputSink,
    SandboxLost,
    StandardInput,
    Tier,
    WorkspaceEntry,
    check_language,
)


class SandboxSession:
    """One sandbox, one program at a time; its workspace stays, its processes do not."""

    def __init__(
        self,
        sandbox: Sandbox,
        limits: Limits,
        waited: float,
        on_close: Callable[["SandboxSession"], None],
        egress: SandboxEgress | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._egress = egress
        self._on_close = on_close
        self._limits = limits
        self._waited = waited
        self._running: ProgramExecution | None = None
        self._transfers = 0
        self._pausing = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "paused" if self._sandbox.frozen else "open"
        if self._closing is not None:
            state = "closed"
        return f"<SandboxSession {state} {self._sandbox!r}>"

    @property
    def tier(self) -> Tier:
        """Which one serves it."""
        return self._sandbox.boundary.tier

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return self._sandbox.frozen

    async def start(
        self,
        request: ExecutionRequest,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> ProgramExecution:
        """Start a program; refused while another runs."""
        return self._start(request, self._limits, stdin, on_output, self._egress, on_egress)

    def _start(
        self,
        request: ExecutionRequest,
        limits: Limits,
        stdin: StandardInput,
        on_output: OutputSink | None,
        egress: SandboxEgress | None = None,
        on_egress: EgressSink | None = None,
    ) -> ProgramExecution:
        self._require_at_work()
        check_language(request.program, self.tier)
        if self._running is not None and not self._running.done:
            raise InvalidRequest("session", "a program runs in it; wait for its end")
        waited, self._waited = self._waited, 0.0
        self._running = ProgramExecution(
            self._sandbox,
            request,
            limits,
            single=False,
            waited=waited,
            stdin=stdin,
            on_output=on_output,
            egress=egress,
            on_egress=on_egress,
        )
        return self._running

    async def run(
        self,
        request: ExecutionRequest,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> Execution:
        """Start a program and wait for its end."""
        running = await self.start(request, stdin=stdin, on_output=on_output, on_egress=on_egress)
        return await running.wait()

    async def write_file(self, path: str, content: bytes | AsyncIterable[bytes]) -> None:
        """Write a workspace file."""
        with self._transfer():
            await files.put(self._sandbox.link, path, content)

    async def read_file(self, path: str) -> AsyncIterator[bytes]:
        """Read a workspace file in pieces."""
        with self._transfer():
            async for piece in files.fetch(self._sandbox.link, path, self._limits.disk_bytes):
                yield piece

    async def list_files(self, path: str = "") -> list[WorkspaceEntry]:
        """List a folder of the workspace."""
        with self._transfer():
            return await files.list_folder(self._sandbox.link, path)

    async def pause(self) -> None:
        """Stop all that runs in it. Its limits on time, and its lease, go on counting."""
        async with self._pausing:
            self._require_open()
            if self._sandbox.frozen:
                return
            if self._transfers:
                raise InvalidRequest("session", "files are under way; pause it when they are done")
            await self._sandbox.freeze()

    async def resume(self) -> None:
        """Let it go on."""
        async with self._pausing:
            self._require_open()
            await self._sandbox.thaw()

    def save(self) -> AsyncIterator[bytes]:
        """The whole workspace, made into bytes inside."""

        def start(request: ExecutionRequest, on_output: OutputSink) -> ProgramExecution:
            return self._start(request, workspace.limits_to_save(self._limits), b"", on_output)

        return workspace.save(start)

    async def restore(self, content: bytes | AsyncIterable[bytes]) -> None:
        """Unpack it inside."""

        def start(request: ExecutionRequest) -> ProgramExecution:
            return self._start(request, workspace.limits_to_restore(self._limits), content, None)

        await workspace.restore(start)

    async def close(self) -> None:
        """Destroy the sandbox; a program that runs ends as ``cancelled``."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._running is not None and not self._running.done:
            await self._running.cancel()
            await self._running.ended()
        if self._egress is not None:
            self._egress.close()
        try:
            await self._sandbox.destroy()
        finally:
            self._on_close(self)

    def _require_open(self) -> None:
        if self._closing is not None:
            raise SandboxLost("the session is closed")
        if not self._sandbox.alive:
            raise SandboxLost("the session's sandbox died; open another")

    def _require_at_work(self) -> None:
        self._require_open()
        if self._sandbox.frozen:
            raise InvalidRequest("session", "it is paused; resume it first")

    @contextlib.contextmanager
    def _transfer(self) -> Iterator[None]:
        """A pause in the middle would make the agent seem dead."""
        self._require_at_work()
        self._transfers += 1
        try:
            yield
        finally:
            self._transfers -= 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
