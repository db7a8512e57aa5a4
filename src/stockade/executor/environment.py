"""The embedded executor: the port on this machine's own tiers."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from stockade.executor.descriptors import make_room
from stockade.executor.egress.opening import Egress, EgressSettings, SandboxEgress
from stockade.executor.execution import ProgramExecution
from stockade.executor.machines import Machines
from stockade.executor.pool import Pool, PoolMetrics, PoolPolicy
from stockade.executor.sandbox import Profile, Sandbox
from stockade.executor.session import SandboxSession
from stockade.executor.submitted import SubmittedExecution
from stockade.executor.tiers import LEFT_OUT, Tiers
from stockade.executor.wasm.checking import check as check_wasm
from stockade.executor.wasm.checking import check_session as check_wasm_session
from stockade.port import (
    EgressSink,
    Execution,
    ExecutionRequest,
    InvalidRequest,
    Limits,
    OutputSink,
    RunningExecution,
    SandboxRequest,
    StandardInput,
    Tier,
    Unavailable,
    placed,
)
from stockade.port.policy import DEDICATED, refusal

if TYPE_CHECKING:
    from stockade.executor.expression.evaluating import Evaluation, Expressions

_CLEAN_UP_DELAY = 0.004
_DEFAULT = SandboxRequest()


class LocalEnvironment:
    """An :class:`~stockade.port.ExecutionEnvironment` whose sandboxes live on this machine."""

    def __init__(
        self,
        tiers: Tiers,
        pool: PoolPolicy,
        egress: EgressSettings | None = None,
        *,
        expressions: bool = False,
    ) -> None:
        self._tiers = tiers
        self._has_expressions = expressions
        self._expressions: Expressions | None = None
        self._egress = Egress(egress or EgressSettings())
        self._pool = Pool(self._create, pool, forget=tiers.forget, room=make_room(pool.most_alive))
        self._machines = Machines(self._create, pool.machines, pool.wait_seconds)
        self._executions: set[ProgramExecution] = set()
        self._submitted: set[SubmittedExecution] = set()
        self._sessions: set[SandboxSession] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._taking = 0
        self._nobody_takes = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "open" if self._closing is None else "closed"
        return (
            f"<LocalEnvironment {state} [{len(self._executions)} executions, "
            f"{len(self._sessions)} sessions] {self._pool!r} {self._machines!r}>"
        )

    async def warm_up(self, sandbox: SandboxRequest | None = None) -> None:
        """Park sandboxes for such requests now rather than after the first.

        Dedicated machines are never parked: for them only what they are made of is looked for.
        """
        profile = await self._choose(sandbox or _DEFAULT)
        if profile.tier not in DEDICATED:
            await self._pool.fill(profile)

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
        on_egress: EgressSink | None = None,
    ) -> RunningExecution:
        """Start a program in a fresh sandbox of its own. Raises :class:`Unavailable`.

        A dedicated machine boots after this returns.
        """
        wanted = placed(request.program, sandbox or _DEFAULT)
        if wanted.tier is Tier.EXPRESSION:
            return self._evaluate(request, wanted, stdin)
        began = time.monotonic()

        profile = await self._choose(wanted)
        if profile.tier is Tier.WASM:
            check_wasm(request, wanted)
        egress = await self._egress.prepare(wanted)

        def begin(taken: Sandbox, waited: float) -> ProgramExecution:
            return self._begin(
                taken, request, wanted.limits, waited, stdin, on_output, egress, on_egress
            )

        if profile.tier in DEDICATED:
            return self._submit(profile, begin, egress)
        try:
            taken = await self._take(profile)
        except BaseException:
            _close(egress)
            raise
        return begin(taken, time.monotonic() - began)

    def _evaluate(
        self, request: ExecutionRequest, wanted: SandboxRequest, stdin: StandardInput
    ) -> "Evaluation":
        self._require_open()
        if not self._has_expressions:
            missing = {Tier.EXPRESSION: LEFT_OUT}
            raise Unavailable(refusal(wanted.trust, wanted.tier, missing), missing)
        if self._expressions is None:
            # A library of megabytes, which most processes of one call do not need.
            try:
                from stockade.executor.expression.evaluating import Expressions
            except ImportError:
                missing = {
                    Tier.EXPRESSION: "its engine is not installed; pip install 'stockade[expression]'"
                }
                raise Unavailable(refusal(wanted.trust, wanted.tier, missing), missing) from None
            self._expressions = Expressions()
        return self._expressions.start(request, wanted, stdin)

    def _begin(
        self,
        taken: Sandbox,
        request: ExecutionRequest,
        limits: Limits,
        waited: float,
        stdin: StandardInput,
        on_output: OutputSink | None,
        egress: SandboxEgress | None,
        on_egress: EgressSink | None,
    ) -> ProgramExecution:
        try:
            if egress is not None:
                egress.attach(taken.link)
            execution = ProgramExecution(
                taken,
                request,
                limits,
                single=True,
                waited=waited,
                stdin=stdin,
                on_output=on_output,
                egress=egress,
                on_egress=on_egress,
            )
        except BaseException:
            _close(egress)
            self._source(taken.profile).dispose(taken)
            raise
        self._executions.add(execution)
        execution.add_done_callback(lambda: self._on_end(execution, taken, egress))
        return execution

    def _submit(
        self,
        profile: Profile,
        begin: Callable[[Sandbox, float], ProgramExecution],
        egress: SandboxEgress | None,
    ) -> SubmittedExecution:
        submitted = SubmittedExecution(profile, self._take(profile), begin)
        self._submitted.add(submitted)
        submitted.add_done_callback(lambda: self._submitted.discard(submitted))
        if egress is not None:
            # Once more where it had a program: a machine that never came up has none to end it.
            submitted.add_done_callback(egress.close)
        return submitted

    async def run(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> Execution:
        """Start a program in a fresh sandbox of its own and wait for its end."""
        running = await self.start(
            request, sandbox, stdin=stdin, on_output=on_output, on_egress=on_egress
        )
        return await running.wait()

    async def open_session(self, sandbox: SandboxRequest | None = None) -> SandboxSession:
        """Take a sandbox for several executions."""
        wanted = sandbox or _DEFAULT
        if wanted.tier is Tier.EXPRESSION:
            raise InvalidRequest("tier", "an expression has no sandbox that could be kept open")
        began = time.monotonic()
        profile = await self._choose(wanted)
        if profile.tier is Tier.WASM:
            check_wasm_session()
        egress = await self._egress.prepare(wanted)
        try:
            taken = await self._take(profile)
        except BaseException:
            _close(egress)
            raise
        try:
            if egress is not None:
                egress.attach(taken.link)
            session = SandboxSession(
                taken,
                wanted.limits,
                time.monotonic() - began,
                self._sessions.discard,
                egress,
            )
        except BaseException:
            _close(egress)
            self._source(profile).dispose(taken)
            raise
        self._sessions.add(session)
        return session

    async def close(self) -> None:
        """End everything; returns when nothing of it lives."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._tiers.stop()
        self._machines.stop()
        for session in list(self._sessions):
            await session.close()
        for submitted in list(self._submitted):
            await submitted.cancel()
        for execution in list(self._executions):
            await execution.cancel()
        for submitted in list(self._submitted):
            await submitted.ended()
        for execution in list(self._executions):
            # What its caller's own sink raised is its caller's to hear.
            await execution.ended()
        await self._pool.close()
        await self._machines.close()
        # Calls that were waiting for a sandbox now find out.
        while self._taking:
            self._nobody_takes.clear()
            await self._nobody_takes.wait()
        await asyncio.gather(*self._endings)
        await self._pool.close()
        await self._tiers.close()
        self._egress.close()

    async def _choose(self, wanted: SandboxRequest) -> Profile:
        self._require_open()
        with self._counted():
            driver = await self._tiers.choose(wanted)
        return Profile.of(driver.tier, wanted)

    async def _take(self, profile: Profile) -> Sandbox:
        self._require_open()
        source = self._source(profile)
        with self._counted():
            sandbox = await source.take(profile)
            if self._closing is not None:
                source.dispose(sandbox)
                self._require_open()
        return sandbox

    def _source(self, profile: Profile) -> Machines | Pool:
        return self._machines if profile.tier in DEDICATED else self._pool

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """``close`` waits for calls on their way to a sandbox: they find out."""
        self._taking += 1
        try:
            yield
        finally:
            self._taking -= 1
            if not self._taking:
                self._nobody_takes.set()

    async def _create(self, profile: Profile) -> Sandbox:
        # Of the tier that was chosen, and of no other: if it fails, so does the call.
        return await self._tiers.opened(profile.tier).create(profile)

    def _require_open(self) -> None:
        if self._closing is not None:
            raise Unavailable("the environment is closed")

    def _on_end(
        self, execution: ProgramExecution, sandbox: Sandbox, egress: SandboxEgress | None
    ) -> None:
        self._executions.discard(execution)
        _close(egress)
        task = asyncio.create_task(self._clean_up(sandbox))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _clean_up(self, sandbox: Sandbox) -> None:
        # The caller, whose record is ready, goes first; behind a service it is some steps away.
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


def _close(egress: SandboxEgress | None) -> None:
    if egress is not None:
        egress.close()
