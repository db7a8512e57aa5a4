"""The embedded executor: the port on this machine's own tiers."""

import asyncio
import time
from types import TracebackType
from typing import Self

from stockade.executor.descriptors import make_room
from stockade.executor.execution import ProgramExecution
from stockade.executor.pool import Pool, PoolMetrics, PoolPolicy
from stockade.executor.sandbox import Profile, Sandbox
from stockade.executor.session import SandboxSession
from stockade.executor.tiers import Tiers
from stockade.port import (
    Execution,
    ExecutionRequest,
    OutputSink,
    RunningExecution,
    SandboxRequest,
    StandardInput,
    Unavailable,
)

_CLEAN_UP_DELAY = 0.0005
_DEFAULT = SandboxRequest()


class LocalEnvironment:
    """An :class:`~stockade.port.ExecutionEnvironment` whose sandboxes live on this machine."""

    def __init__(self, tiers: Tiers, pool: PoolPolicy) -> None:
        self._tiers = tiers
        self._pool = Pool(self._create, pool, forget=tiers.forget, room=make_room(pool.most_alive))
        self._executions: set[ProgramExecution] = set()
        self._sessions: set[SandboxSession] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._taking = 0
        self._nobody_takes = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "open" if self._closing is None else "closed"
        return (
            f"<LocalEnvironment {state} [{len(self._executions)} executions, "
            f"{len(self._sessions)} sessions] {self._pool!r}>"
        )

    async def warm_up(self, sandbox: SandboxRequest | None = None) -> None:
        """Park sandboxes for such requests now rather than after the first."""
        wanted = sandbox or _DEFAULT
        driver = await self._tiers.choose(wanted)
        await self._pool.fill(Profile.of(driver.tier, wanted))

    def metrics(self) -> PoolMetrics:
        """What the pool has done, and what is parked, waited for and alive now."""
        return self._pool.metrics()

    async def start(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
    ) -> RunningExecution:
        """Start a program in a fresh sandbox of its own. Raises :class:`Unavailable`."""
        wanted = sandbox or _DEFAULT
        began = time.monotonic()
        taken = await self._take(wanted)
        try:
            execution = ProgramExecution(
                taken,
                request,
                wanted.limits,
                single=True,
                waited=time.monotonic() - began,
                stdin=stdin,
                on_output=on_output,
            )
        except BaseException:
            self._pool.dispose(taken)
            raise
        self._executions.add(execution)
        execution.add_done_callback(lambda: self._on_end(execution, taken))
        return execution

    async def run(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
    ) -> Execution:
        """Start a program in a fresh sandbox of its own and wait for its end."""
        running = await self.start(request, sandbox, stdin=stdin, on_output=on_output)
        return await running.wait()

    async def open_session(self, sandbox: SandboxRequest | None = None) -> SandboxSession:
        """Take a sandbox for several executions."""
        wanted = sandbox or _DEFAULT
        began = time.monotonic()
        taken = await self._take(wanted)
        session = SandboxSession(
            taken,
            wanted.limits,
            time.monotonic() - began,
            lambda: self._sessions.discard(session),
        )
        self._sessions.add(session)
        return session

    async def close(self) -> None:
        """End everything; returns when nothing of it lives."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._tiers.stop()
        for session in list(self._sessions):
            await session.close()
        for execution in list(self._executions):
            await execution.cancel()
        for execution in list(self._executions):
            # What its caller's own sink raised is its caller's to hear.
            await execution.ended()
        await self._pool.close()
        # Calls that were waiting for a sandbox now find out.
        while self._taking:
            self._nobody_takes.clear()
            await self._nobody_takes.wait()
        await asyncio.gather(*self._endings)
        await self._pool.close()
        await self._tiers.close()

    async def _take(self, wanted: SandboxRequest) -> Sandbox:
        self._require_open()
        self._taking += 1
        try:
            driver = await self._tiers.choose(wanted)
            sandbox = await self._pool.take(Profile.of(driver.tier, wanted))
            if self._closing is not None:
                self._pool.dispose(sandbox)
                self._require_open()
        finally:
            self._taking -= 1
            if not self._taking:
                self._nobody_takes.set()
        return sandbox

    async def _create(self, profile: Profile) -> Sandbox:
        # Of the tier that was chosen, and of no other: if it fails, so does the call.
        return await self._tiers.opened(profile.tier).create(profile)

    def _require_open(self) -> None:
        if self._closing is not None:
            raise Unavailable("the environment is closed")

    def _on_end(self, execution: ProgramExecution, sandbox: Sandbox) -> None:
        self._executions.discard(execution)
        task = asyncio.create_task(self._clean_up(sandbox))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _clean_up(self, sandbox: Sandbox) -> None:
        # The caller, whose record is ready, goes first.
        await asyncio.sleep(_CLEAN_UP_DELAY)
        await sandbox.destroy()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
