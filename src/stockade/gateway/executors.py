"""The executors behind a gateway: which of them live, and which takes the next call."""

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

from stockade.api.answers import ReadyMessage
from stockade.client import address
from stockade.client.execution import RemoteExecution
from stockade.client.remote import RemoteEnvironment, open_remote
from stockade.client.session import RemoteSession
from stockade.client.transport import Interrupted, Timeouts, Transport, client_tls, parsed
from stockade.gateway.logs import Log
from stockade.gateway.metrics import Metrics
from stockade.gateway.settings import ExecutorSettings
from stockade.gateway.tracing import Tracing
from stockade.gateway.turns import Turns
from stockade.port import (
    EgressSink,
    ExecutionRequest,
    OutputSink,
    Refused,
    SandboxRequest,
    StandardInput,
    StockadeError,
    Tier,
    Unavailable,
)

_CHECK_SECONDS: Final = 1.0
_MOST_CHECK_SECONDS: Final = 15.0
_CHECK_DEADLINE: Final = 2.0
_MOST_LATE: Final = 3
_RPC: Final = Timeouts(connect=2.0, reach=0.5)


class Executor:
    """One of them."""

    def __init__(
        self, where: ExecutorSettings, environment: RemoteEnvironment, checking: Transport
    ) -> None:
        self.name = where.name
        self.places = where.places
        self.environment = environment
        self.load = 0
        """Executions of this gateway that are on it."""
        self.healthy = False
        self.why = "it was not asked yet"
        self.longest_lease = math.inf
        """In seconds, as it says itself; of one that does not say, what it refuses."""
        self.late = 0
        """Checks in a row that it did not answer in time."""
        self._checking = checking

    def __repr__(self) -> str:
        state = "up" if self.healthy else f"down: {self.why}"
        return f"<Executor {self.name} {state}, {self.load} of {self.places}>"

    async def check(self) -> None:
        """Ask whether it takes calls. Raises :class:`~stockade.port.StockadeError` where not."""
        try:
            async with asyncio.timeout(_CHECK_DEADLINE):
                answer = await self._checking.ask("GET", "/readyz")
            self.longest_lease = parsed(ReadyMessage, answer).max_lease_seconds or math.inf
        except TimeoutError:
            raise _Late(f"it does not answer within {_CHECK_DEADLINE:g} s") from None
        except Interrupted as error:
            raise Unavailable(str(error)) from None


class _Late(Unavailable):
    """It may be only busy."""


class Executors:
    """All of them."""

    def __init__(
        self,
        every: Sequence[Executor],
        *,
        metrics: Metrics,
        log: Log,
        patience: float,
    ) -> None:
        self.all = tuple(every)
        self.turns = Turns()
        self.recovered: asyncio.Queue[Executor] = asyncio.Queue()
        """Those that took no calls and take some again: their sandboxes may be gone."""
        self._metrics = metrics
        self._log = log
        self._patience = patience

    def __repr__(self) -> str:
        return f"<Executors {list(self.all)} {self.turns}>"

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        addresses: Sequence[ExecutorSettings],
        *,
        metrics: Metrics,
        log: Log,
        tracing: Tracing,
        patience: float = 30.0,
    ) -> AsyncIterator["Executors"]:
        """Connections to each, and a task that looks after it. ``patience``: for a turn."""
        async with AsyncExitStack() as stack:
            every = []
            for where in addresses:
                token = where.token()
                certificate = (
                    None
                    if where.certificate is None or where.key is None
                    else (where.certificate, where.key)
                )
                opening = open_remote(
                    where.url,
                    key=token,
                    tenant="local",  # each call says whose it is
                    ca=where.ca,
                    client_certificate=certificate,
                    timeouts=_RPC,
                    more_headers=tracing.outgoing,
                    # Where it is, is nothing for tenants, who read these errors and records.
                    called=f"executor {where.name}",
                )
                environment = await opening.__aenter__()
                stack.push_async_callback(_close, opening)
                checking = Transport(
                    address.parse(where.url),
                    token,
                    tenant=None,
                    tls=client_tls(where.ca, certificate),
                    timeouts=Timeouts(connect=_CHECK_DEADLINE, reach=0.0, silence=_CHECK_DEADLINE),
                    called=f"executor {where.name}",
                )
                stack.push_async_callback(checking.close)
                every.append(Executor(where, environment, checking))
            executors = cls(every, metrics=metrics, log=log, patience=patience)
            await executors.check_all()
            tasks = [asyncio.create_task(executors._look_after(one)) for one in every]
            try:
                yield executors
            finally:
                for task in tasks:
                    task.cancel()
                if tasks:
                    await asyncio.wait(tasks)

    @property
    def ready(self) -> bool:
        """Whether one takes calls."""
        return any(executor.healthy for executor in self.all)

    def require(self) -> None:
        """Raises :class:`~stockade.port.Unavailable` where none does."""
        if not self.ready:
            why = "; ".join(f"{one.name}: {one.why}" for one in self.all) or "none is configured"
            raise Unavailable(f"no executor takes calls ({why})")

    @property
    def longest_lease(self) -> float:
        """In seconds: the longest that one of those that take calls gives."""
        return max((one.longest_lease for one in self.all if one.healthy), default=math.inf)

    def by_load(self) -> list[Executor]:
        """Those that take calls, the least loaded first."""
        up = [executor for executor in self.all if executor.healthy]
        random.shuffle(up)
        return sorted(up, key=lambda executor: executor.load / executor.places)

    @asynccontextmanager
    async def place(
        self, sandbox: SandboxRequest, tiers: Sequence[Tier] | None, admit: "Admit | None" = None
    ) -> AsyncIterator["FreshPlace"]:
        """A turn for one execution. ``tiers``: to try, strongest first; ``None``: it chooses."""
        self.require()
        async with self.turns.turn(sandbox.tenant, self._patience):
            place = FreshPlace(self, sandbox, tiers, admit or _as_it_is)
            try:
                yield place
            finally:
                place.leave()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """A turn for a program in a session."""
        async with self.turns.turn(tenant, self._patience):
            yield

    async def open_session(
        self,
        id: str,
        sandbox: SandboxRequest,
        tiers: Sequence[Tier] | None,
        lease_seconds: float,
        admit: "Admit | None" = None,
    ) -> tuple[Executor, RemoteSession]:
        """Open one on the executor with the least load. Raises what the port says."""
        self.require()
        async with self.turns.turn(sandbox.tenant, self._patience):
            attempts = _Attempts(id)
            for executor in self.by_load():
                if executor.longest_lease < lease_seconds:
                    continue
                for tier in tiers or (sandbox.tier,):
                    with attempts.next(executor) as name:
                        admitted = await (admit or _as_it_is)(sandbox)
                        session = await executor.environment.open_session(
                            _on_tier(admitted, tier),
                            id=name,
                            lease_seconds=lease_seconds,
                            keep_alive=False,
                        )
                        return executor, session
            raise attempts.failure

    async def check_all(self) -> None:
        """Ask each of them now."""
        await asyncio.gather(*(self._check(executor) for executor in self.all))

    async def _check(self, executor: Executor) -> None:
        was = executor.healthy
        try:
            await executor.check()
        except _Late as error:
            # A machine that is loaded is late now and then; one that is gone is late for ever.
            executor.late += 1
            executor.healthy = executor.healthy and executor.late < _MOST_LATE
            executor.why = str(error)
        except StockadeError as error:
            executor.healthy, executor.why = False, str(error)
        else:
            executor.healthy, executor.why, executor.late = True, "", 0
        self._metrics.executor_up.labels(executor.name).set(executor.healthy)
        if was is not executor.healthy:
            self._log.warning(
                "an executor takes calls" if executor.healthy else "an executor takes no calls",
                executor=executor.name,
                why=executor.why,
            )
            self.turns.resize(sum(one.places for one in self.all if one.healthy))
            if executor.healthy:
                self.recovered.put_nowait(executor)

    async def _look_after(self, executor: Executor) -> None:
        pause = _CHECK_SECONDS
        while True:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
            await self._check(executor)
            pause = _CHECK_SECONDS if executor.healthy else min(2 * pause, _MOST_CHECK_SECONDS)


Admit = Callable[[SandboxRequest], Awaitable[SandboxRequest]]
"""What a try needs besides, such as a ticket: it is good once and soon, so each has its own."""


async def _as_it_is(sandbox: SandboxRequest) -> SandboxRequest:
    return sandbox


async def _close(opening: AbstractAsyncContextManager[RemoteEnvironment]) -> None:
    # That nobody is there to confirm an end is no failure of ours: leases end what is left.
    with contextlib.suppress(StockadeError):
        await opening.__aexit__(None, None, None)


def _on_tier(sandbox: SandboxRequest, tier: Tier | None) -> SandboxRequest:
    # A new one is judged anew, limit by limit.
    return sandbox if sandbox.tier is tier else replace(sandbox, tier=tier)


class FreshPlace:
    """A place for an execution in a sandbox of its own."""

    def __init__(
        self,
        executors: Executors,
        sandbox: SandboxRequest,
        tiers: Sequence[Tier] | None,
        admit: Admit,
    ) -> None:
        self._admit = admit
        self._executors = executors
        self._sandbox = sandbox
        self._tiers = tiers
        self._on: Executor | None = None

    async def start(
        self,
        id: str,
        request: ExecutionRequest,
        stdin: StandardInput,
        on_output: OutputSink,
        on_egress: EgressSink | None,
    ) -> RemoteExecution:
        """Start it on the executor with the least load; on another one where that refuses.

        A refusal comes before anything ran. What broke off may have run: it is never tried again.
        """
        attempts = _Attempts(id)
        for executor in self._executors.by_load():
            for tier in self._tiers or (self._sandbox.tier,):
                self._take(executor)
                with attempts.next(executor) as name:
                    admitted = await self._admit(self._sandbox)
                    return await executor.environment.start(
                        request,
                        _on_tier(admitted, tier),
                        stdin=stdin,
                        on_output=on_output,
                        on_egress=on_egress,
                        id=name,
                    )
        raise attempts.failure

    def leave(self) -> None:
        """It is free again."""
        if self._on is not None:
            self._on.load -= 1
            self._on = None

    def _take(self, executor: Executor) -> None:
        self.leave()
        executor.load += 1
        self._on = executor


class _Attempts:
    """Tries that may be refused as ``unavailable``, each under a name of its own."""

    def __init__(self, id: str) -> None:
        self.failure: StockadeError = Unavailable("no executor takes calls")
        self._id = id
        self._count = 0

    @contextlib.contextmanager
    def next(self, executor: Executor) -> Iterator[str]:
        """The name of the next one."""
        self._count += 1
        try:
            # An executor takes no id twice, not even one that it refused.
            yield self._id if self._count == 1 else f"{self._id}-{self._count}"
        except Unavailable as error:
            self.failure = error
        except Refused as error:
            if error.code == "unauthenticated":
                # Ours, not the caller's: it has nothing to do with its key.
                self.failure = Unavailable(f"executor {executor.name} refuses the gateway's token")
            elif error.code == "unavailable":
                self.failure = error
            else:
                raise
