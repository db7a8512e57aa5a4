"""Sessions: sandboxes that live across several executions, as long as their lease."""

import asyncio
import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy import select

from stockade.api.answers import SandboxState, SandboxStateMessage
from stockade.api.requests import SessionRequestMessage
from stockade.client.session import RemoteSession
from stockade.gateway.brokering import Broker
from stockade.gateway.calls import Call
from stockade.gateway.database import Database
from stockade.gateway.executors import Executor, Executors
from stockade.gateway.keys import Caller
from stockade.gateway.ledger import Ledger
from stockade.gateway.listing import SandboxEntry
from stockade.gateway.logs import Log
from stockade.gateway.names import check_workspace
from stockade.gateway.policy import Ceilings
from stockade.gateway.schema import sandboxes
from stockade.gateway.workspaces import Workspaces
from stockade.port import (
    EgressSink,
    ExecutionRequest,
    InvalidRequest,
    OutputSink,
    Refused,
    RunningExecution,
    SandboxLost,
    SandboxRequest,
    StandardInput,
    StockadeError,
    Tier,
    Unavailable,
)
from stockade.port.policy import candidates

_GRACE_SECONDS: Final = 20.0
"""An executor's own lease goes on for so long: the gateway saves the workspace before it ends."""
_LOOK_SECONDS: Final = 5.0


class OpenSandbox:
    """A session that is open here."""

    def __init__(
        self,
        id: str,
        caller: Caller,
        request: SandboxRequest,
        executor: Executor,
        session: RemoteSession,
        entry: SandboxEntry,
        workspace: str | None,
        lease_seconds: float,
    ) -> None:
        self.id = id
        self.tenant = caller.tenant
        self.request = request
        self.executor = executor
        self.session = session
        self.entry = entry
        self.workspace = workspace
        self._paused = False
        self._paused_in: Call | None = None
        self.running: Call | None = None
        """What runs in it, or waits to."""
        self.tier: Tier | None = session.tier or request.tier
        self.ending: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.opened = self._loop.time()
        self.ends = self.opened + lease_seconds
        self.news = asyncio.Event()
        """Its lease was extended, or it ends."""

    def __repr__(self) -> str:
        return f"<OpenSandbox {self.id} {self.state}>"

    @property
    def state(self) -> SandboxState:
        """Where it is."""
        if self.ending is not None:
            return SandboxState.ENDED
        return SandboxState.PAUSED if self.paused else SandboxState.OPEN

    @property
    def paused(self) -> bool:
        """Until it is resumed, or the program ends that ran when it was paused."""
        return self._paused and not (self._paused_in is not None and self._paused_in.done)

    def note_pause(self, paused: bool) -> None:
        """What the executor has done."""
        self._paused = paused
        running = self.running
        self._paused_in = running if running is not None and not running.done else None

    def message(self) -> SandboxStateMessage:
        """For its owner. Asking extends nothing."""
        running = self.running
        return SandboxStateMessage(
            id=self.id,
            state=self.state,
            tier=self.tier,
            lease_seconds=max(0.0, round(self.ends - self._loop.time(), 3)),
            execution=running.id if running is not None and not running.done else None,
            workspace=self.workspace,
        )

    def claim(self, call: Call) -> None:
        """One program at a time. Raises :class:`~stockade.port.Refused`."""
        self.require_idle()
        self.running = call

    def require_idle(self) -> None:
        """Raises :class:`~stockade.port.Refused` while a program runs in it, or none can."""
        if self.ending is not None:
            raise no_such_thing()
        if self.running is not None and not self.running.done:
            raise Refused(
                "conflict", f"{self.running.id} runs in it; wait for its end, or cancel it"
            )
        if self.paused:
            raise Refused("conflict", "it is paused; resume it first")


class SessionPlace:
    """A place for a program in a session."""

    def __init__(self, sandboxes: "Sandboxes", sandbox: OpenSandbox) -> None:
        self._sandboxes = sandboxes
        self._sandbox = sandbox

    async def start(
        self,
        id: str,
        request: ExecutionRequest,
        stdin: StandardInput,
        on_output: OutputSink,
        on_egress: EgressSink | None,
    ) -> RunningExecution:
        """Start it there."""
        async with self._sandboxes.watched(self._sandbox):
            return await self._sandbox.session.start(
                request, stdin=stdin, on_output=on_output, on_egress=on_egress, id=id
            )


class Sandboxes:
    """The sessions that this gateway has opened."""

    def __init__(
        self,
        ledger: Ledger,
        executors: Executors,
        workspaces: Workspaces,
        broker: Broker,
        *,
        log: Log,
        ceilings: Ceilings,
    ) -> None:
        self._ledger = ledger
        self._executors = executors
        self._workspaces = workspaces
        self._broker = broker
        self._log = log
        self._ceilings = ceilings
        self._open: dict[str, OpenSandbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Sandboxes: {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, caller: Caller, message: SessionRequestMessage) -> SandboxStateMessage:
        """Open one; a caller that leaves meanwhile gets none, and leaves none behind."""
        request = message.sandbox.to_port(caller.tenant)
        seconds = message.lease_seconds
        tiers = judged(caller, request, seconds, self._ceilings)
        if message.workspace is not None:
            check_workspace(message.workspace)
        self._executors.require()
        _judge_grace(seconds, self._executors.longest_lease)
        id = "s" + secrets.token_hex(16)  # noqa: A001
        self._broker.check(request)
        entry = await self._ledger.begin_sandbox(caller, id, request, seconds, message.workspace)
        session: RemoteSession | None = None
        try:
            executor, session = await self._executors.open_session(
                id,
                request,
                tiers,
                seconds + _GRACE_SECONDS,
                lambda wanted: self._broker.admit(caller, id, wanted),
            )
            sandbox = OpenSandbox(
                id,
                caller,
                request,
                executor,
                session,
                entry,
                message.workspace,
                seconds,
            )
            if message.workspace is not None:
                await self._restore(session, entry)
        except BaseException:
            await asyncio.shield(self._give_up(id, session))
            raise
        self._open[id] = sandbox
        self._spawn(self._keep_lease(sandbox))
        return sandbox.message()

    def find(self, caller: Caller, id: str) -> OpenSandbox:
        """Raises :class:`~stockade.port.Refused`, alike for another's and for what never was."""
        sandbox = self._open.get(id)
        if sandbox is None or sandbox.tenant != caller.tenant or sandbox.ending is not None:
            raise no_such_thing()
        return sandbox

    def list(self, caller: Caller) -> list[SandboxStateMessage]:
        """A tenant's own, oldest first."""
        return [
            sandbox.message()
            for sandbox in self._open.values()
            if sandbox.tenant == caller.tenant and sandbox.ending is None
        ]

    @asynccontextmanager
    async def place(self, sandbox: OpenSandbox) -> AsyncIterator[SessionPlace]:
        """A turn for a program in it."""
        async with self._executors.turn(sandbox.tenant):
            yield SessionPlace(self, sandbox)

    @asynccontextmanager
    async def watched(self, sandbox: OpenSandbox) -> AsyncIterator[RemoteSession]:
        """Its session, for one operation: where that finds it gone, it has ended."""
        try:
            yield sandbox.session
        except SandboxLost:
            self._end(sandbox, "lost")
            raise

    async def extend(self, caller: Caller, sandbox: OpenSandbox, seconds: float) -> None:
        """A lease from now on; never beyond the ceilings, and nothing is clamped."""
        for ceilings, whose in (
            (self._ceilings, "the service"),
            (caller.policy.ceilings, "the tenant"),
        ):
            ceilings.judge_lease(seconds, whose)
            age = asyncio.get_running_loop().time() - sandbox.opened
            if age + seconds > ceilings.session_seconds:
                raise Refused(
                    "forbidden",
                    f"with {seconds:g} seconds more the session would last longer than {whose}'s "
                    f"ceiling of {ceilings.session_seconds:g}; ask for less, or open another",
                )
        _judge_grace(seconds, sandbox.executor.longest_lease)
        await self._ledger.extend_lease(caller, sandbox.id, seconds)
        async with self.watched(sandbox) as session:
            await session.extend(seconds + _GRACE_SECONDS)
        sandbox.ends = asyncio.get_running_loop().time() + seconds
        sandbox.news.set()

    async def pause(self, sandbox: OpenSandbox) -> None:
        """Stop its processes; its lease goes on."""
        async with self.watched(sandbox) as session:
            await session.pause()
        sandbox.note_pause(True)

    async def resume(self, sandbox: OpenSandbox) -> None:
        """Let them go on."""
        async with self.watched(sandbox) as session:
            await session.resume()
        sandbox.note_pause(False)

    async def close(self, sandbox: OpenSandbox) -> None:
        """Save its workspace, destroy it; returns when nothing of it lives.

        Raises what kept the workspace from being saved. It is closed all the same.
        """
        await asyncio.shield(self._end(sandbox, "closed"))

    async def look_after(self, database: Database) -> None:
        """End what executors have lost, and what a gateway that died has left there, for ever."""
        try:
            await self._end_orphans(database)
        except Exception:  # noqa: BLE001 - their leases end them, and the rest is to be looked after
            self._log.exception("what a dead gateway left was not ended")
        while True:
            recovered = asyncio.ensure_future(self._executors.recovered.get())
            await asyncio.wait([recovered], timeout=_LOOK_SECONDS)
            recovered.cancel()
            try:
                await self._look()
            except StockadeError as error:
                self._log.warning("executors were not asked for their sandboxes", why=str(error))
            except Exception:  # noqa: BLE001 - whoever is not asked now is asked the next time
                self._log.exception("executors were not asked for their sandboxes")

    async def close_all(self, seconds: float) -> None:
        """The gateway stops: save and close each."""
        endings = [self._end(sandbox, "stopped") for sandbox in list(self._open.values())]
        if endings:
            await asyncio.wait(endings, timeout=seconds)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def _end_orphans(self, database: Database) -> None:
        """What is lost for us may live on an executor until its lease ends: end it now."""
        orphans = select(sandboxes.c.tenant, sandboxes.c.id).where(
            sandboxes.c.reason == "lost", sandboxes.c.lease_until > database.clock()
        )
        rows = await database.run(lambda connection: connection.execute(orphans).all())
        for row in rows:
            for executor in self._executors.by_load():
                session = executor.environment.session(row.id, SandboxRequest(tenant=row.tenant))
                with contextlib.suppress(StockadeError):
                    await session.close()

    async def _look(self) -> None:
        theirs: dict[tuple[str, str], list[OpenSandbox]] = {}
        for sandbox in self._open.values():
            if sandbox.executor.healthy and sandbox.ending is None:
                theirs.setdefault((sandbox.executor.name, sandbox.tenant), []).append(sandbox)
        for mine in theirs.values():
            executor = mine[0].executor
            there = {one.id for one in await executor.environment.sandboxes(
                tenant=mine[0].tenant
            )}  # fmt: skip
            for sandbox in mine:
                if sandbox.session.id not in there:
                    self._end(sandbox, "lost")

    async def _keep_lease(self, sandbox: OpenSandbox) -> None:
        loop = asyncio.get_running_loop()
        while sandbox.ending is None and (left := sandbox.ends - loop.time()) > 0:
            sandbox.news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await sandbox.news.wait()
        self._end(sandbox, "lease")

    def _end(self, sandbox: OpenSandbox, reason: str) -> "asyncio.Task[None]":
        """Once, however many ask."""
        if sandbox.ending is None:
            sandbox.ending = self._spawn(self._finish(sandbox, reason))
            sandbox.news.set()  # else who keeps its lease would wait for the end of that
        return sandbox.ending

    async def _finish(self, sandbox: OpenSandbox, reason: str) -> None:
        failure: StockadeError | None = None
        running = sandbox.running
        if running is not None and not running.done:
            running.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_SECONDS):
                    await running.end()
        if reason != "lost":
            if sandbox.workspace is not None:
                try:
                    if sandbox.paused:
                        await sandbox.session.resume()
                    await self._workspaces.save(sandbox.entry, sandbox.session.save())
                except SandboxLost as error:
                    reason, failure = "lost", error
                except StockadeError as error:
                    failure = error
                except Exception:  # noqa: BLE001 - it is closed all the same
                    self._log.exception("a workspace was not saved", sandbox=sandbox.id)
                    failure = Unavailable("the workspace could not be saved")
            try:
                await sandbox.session.close()
            except StockadeError as error:
                # Its lease ends it; here it is over.
                self._log.warning("a sandbox's end is not confirmed", sandbox=sandbox.id)
                failure = failure or error
        else:
            with contextlib.suppress(StockadeError):
                await sandbox.session.close()
        try:
            await self._ledger.end_sandbox(sandbox.id, reason)
        except StockadeError:
            self._log.exception("a sandbox's end was not written", sandbox=sandbox.id)
        finally:
            self._open.pop(sandbox.id, None)
        if failure is not None:
            self._log.warning(
                "a sandbox did not end well", sandbox=sandbox.id, why=type(failure).__name__
            )
            raise failure

    async def _restore(self, session: RemoteSession, entry: SandboxEntry) -> None:
        pieces = self._workspaces.read(entry)
        first = await anext(pieces, None)
        if first is None:
            return  # it is new

        async def all_of_them() -> AsyncIterator[bytes]:
            yield first
            async for piece in pieces:
                yield piece

        await session.restore(all_of_them())

    async def _give_up(self, id: str, session: RemoteSession | None) -> None:
        if session is not None:
            with contextlib.suppress(StockadeError):
                await session.close()
        await self._ledger.end_sandbox(id, "failed")

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked for it was told; nobody else is


def _judge_grace(seconds: float, longest: float) -> None:
    """Refuse now what an executor would, with what it is to hold longer than a tenant's lease."""
    if seconds + _GRACE_SECONDS > longest:
        raise Refused(
            "forbidden",
            f"a lease of {seconds:g} seconds exceeds the executors' ceiling of "
            f"{max(0.0, longest - _GRACE_SECONDS):g}; ask for less, and extend it in time",
        )


def judged(
    caller: Caller, request: SandboxRequest, lease_seconds: float | None, service: Ceilings
) -> tuple[Tier, ...] | None:
    """The tiers to try, strongest first; ``None`` where the executor may choose.

    Raises :class:`~stockade.port.Refused` for what the policy does not allow.
    """
    if lease_seconds is not None and not math.isfinite(lease_seconds):
        raise InvalidRequest("lease_seconds", f"{lease_seconds!r} is not a number of seconds")
    allowed = tuple(caller.policy.judge(request, lease_seconds, service=service))
    return None if allowed == tuple(candidates(request.trust, request.tier)) else allowed


def no_such_thing() -> Refused:
    """What is another's and what never was are the same."""
    return Refused("not_found", "there is no such thing")
