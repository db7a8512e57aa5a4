"""JVMs that were started ahead of a call: booted, the tool's classes linked, waiting for one input.

Each serves one call of one tool of one tenant in a sandbox of its own, and is destroyed with it.
Nothing of the tool has run in it before: linking initialises no class.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final

from stockade.port import (
    Captured,
    EgressEvent,
    EgressSink,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    LimitHit,
    Limits,
    Outcome,
    OutputSink,
    RunningExecution,
    SandboxLost,
    SandboxRequest,
    Session,
    StockadeError,
    Stream,
    Timings,
)
from stockade.tools.java.calling import READY

_LOG: Final = logging.getLogger(__name__)
_IDLE: Final = "java idle"
_BOOT: Final = "java boot"
_BOOT_SECONDS: Final = 30.0
_LONGEST: Final = 24 * 3600.0
"""Of the wall clock, :class:`~stockade.port.Limits`."""


@dataclass(frozen=True, slots=True)
class ParkingPolicy:
    """How much is started ahead. Each JVM that waits holds about 45 MiB."""

    most: int = 8
    """Of all tenants together; 0: every call starts its own."""
    most_of_tenant: int = 4
    most_of_tool: int = 1
    idle_seconds: float = 300.0
    """Then one that nobody called for is given up."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.idle_seconds) or not 0 < self.idle_seconds <= _LONGEST / 2:
            raise ValueError(f"idle_seconds is {self.idle_seconds}, not 0 to {_LONGEST / 2}")


@dataclass(frozen=True, slots=True)
class Key:
    """What a waiting JVM is for: no other call may have it."""

    sandbox: SandboxRequest
    digest: str
    """Of the tool's classes."""


class ParkedJvm:
    """One session, and one JVM in it that waits."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._session: Session | None = None
        self._running: RunningExecution | None = None
        self._ended: asyncio.Task[Execution] | None = None
        self._input: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._ready = asyncio.Event()
        self._sink: OutputSink | None = None
        self._egress_sink: EgressSink | None = None

    @property
    def waits(self) -> bool:
        """Whether it can be called."""
        return self._ready.is_set() and self._ended is not None and not self._ended.done()

    async def start(
        self, environment: ExecutionEnvironment, request: ExecutionRequest, idle_seconds: float
    ) -> None:
        """Returns when it waits for its input. Raises what the port raises, or where it does not."""
        limits = self.key.sandbox.limits
        # A limit counts from the JVM's start, which may be long before the call: `call` keeps the
        # time of the call itself. The CPU time of booting is not the tool's.
        longer = replace(
            limits,
            wall_seconds=min(limits.wall_seconds + idle_seconds + _BOOT_SECONDS, _LONGEST),
            cpu_seconds=limits.cpu_seconds + _BOOT_SECONDS,
        )
        self._session = await environment.open_session(replace(self.key.sandbox, limits=longer))
        self._running = await self._session.start(
            request, stdin=self._stdin(), on_output=self._hear, on_egress=self._hear_egress
        )
        self._ended = asyncio.create_task(self._running.wait())
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait(
                {self._ended, ready}, timeout=_BOOT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ready.cancel()
        if not self.waits:
            raise SandboxLost("the JVM did not come to wait for its input")

    async def call(
        self, content: bytes, on_output: OutputSink | None, on_egress: EgressSink | None
    ) -> Execution:
        """Its one call. Cancelled, the caller closes it, which ends the JVM."""
        assert self._running is not None
        assert self._ended is not None
        limits = self.key.sandbox.limits
        self._sink, self._egress_sink = on_output, on_egress
        began = time.monotonic()
        self._input.set_result(content)
        await asyncio.wait({self._ended}, timeout=limits.wall_seconds)
        too_long = not self._ended.done()
        if too_long:
            await self._running.cancel()
        execution = await asyncio.shield(self._ended)
        return _of_call(execution, limits, time.monotonic() - began, too_long=too_long)

    async def ended(self, seconds: float) -> None:
        """Wait so long for its end."""
        if self._ended is not None:
            await asyncio.wait({self._ended}, timeout=seconds)

    async def close(self) -> None:
        """Destroy its sandbox."""
        if self._session is not None:
            await self._session.close()
        if self._ended is not None:
            await asyncio.wait({self._ended})
            if not self._ended.cancelled():
                self._ended.exception()  # it is nobody's any more
        self._input.cancel()

    async def _stdin(self) -> AsyncIterator[bytes]:
        yield await self._input

    async def _hear(self, stream: Stream, data: bytes) -> None:
        if not self._ready.is_set() and stream is Stream.STDOUT:
            self._ready.set()
            data = data.removeprefix(READY)
        if data and self._sink is not None:
            await self._sink(stream, data)

    async def _hear_egress(self, event: EgressEvent) -> None:
        if self._egress_sink is not None:
            await self._egress_sink(event)


def _of_call(execution: Execution, limits: Limits, seconds: float, *, too_long: bool) -> Execution:
    """The record as if the JVM had been started for this call."""
    written = execution.usage.written_bytes - len(READY)
    stdout = execution.stdout
    changed = replace(
        execution,
        stdout=Captured(
            stdout.head.removeprefix(READY), stdout.tail, max(stdout.total - len(READY), 0)
        ),
        usage=replace(execution.usage, wall_seconds=seconds, written_bytes=max(written, 0)),
        timings=Timings(ran=seconds),
    )
    if too_long and execution.outcome is Outcome.CANCELLED:
        ceiling = limits.wall_seconds
        return replace(
            changed,
            outcome=Outcome.WALL_CLOCK,
            detail=f"it took {seconds:.1f} s of time; the limit wall_seconds is {ceiling:g}",
            limit=LimitHit("wall_seconds", ceiling, seconds),
        )
    if execution.outcome is Outcome.CPU_TIME and execution.limit is not None:
        return replace(changed, limit=replace(execution.limit, ceiling=limits.cpu_seconds))
    return changed


class Parking:
    """The JVMs that wait, oldest first."""

    def __init__(self, environment: ExecutionEnvironment, policy: ParkingPolicy) -> None:
        self._environment = environment
        self._policy = policy
        self._waiting: list[ParkedJvm] = []
        self._booting: list[Key] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Parking {len(self._waiting)} waiting, {len(self._booting)} booting>"

    def take(self, key: Key) -> ParkedJvm | None:
        """One for this call alone; the caller closes it."""
        for jvm in self._waiting:
            if jvm.key == key and jvm.waits:
                self._waiting.remove(jvm)
                return jvm
        return None

    def want(self, key: Key, request: ExecutionRequest) -> None:
        """Have one wait for the next such call, as far as there is room."""
        if self._closed or not self._room(key):
            return
        self._booting.append(key)
        self._begin(self._park(key, request), _BOOT)

    def release(self, jvm: ParkedJvm) -> None:
        """Destroy one that was taken; nobody waits for it."""
        self._begin(self._destroy(jvm))

    async def settled(self) -> None:
        """Wait until nothing boots and nothing is being destroyed."""
        while busy := {task for task in self._tasks if task.get_name() != _IDLE}:
            await asyncio.wait(busy)

    async def close(self) -> None:
        """Destroy all; returns when nothing of them lives."""
        self._closed = True
        for task in self._tasks:
            if task.get_name() in (_IDLE, _BOOT):
                task.cancel()
        await self.settled()
        waiting, self._waiting = self._waiting, []
        await asyncio.gather(*(self._destroy(jvm) for jvm in waiting))

    def _room(self, key: Key) -> bool:
        """Whether one more may be started; one that waits for something else may have to go."""
        policy, tenant = self._policy, key.sandbox.tenant
        keys = [*(jvm.key for jvm in self._waiting), *self._booting]
        if keys.count(key) >= policy.most_of_tool or min(policy.most, policy.most_of_tenant) < 1:
            return False
        of_tenant = sum(each.sandbox.tenant == tenant for each in keys)
        if of_tenant < policy.most_of_tenant and len(keys) < policy.most:
            return True
        # A tenant's calls take no other tenant's place unless it has more than its part.
        tenants = {each.sandbox.tenant for each in keys} | {tenant}
        part = max(policy.most // len(tenants), 1)
        for jvm in self._waiting:
            owner = jvm.key.sandbox.tenant
            holds = sum(each.sandbox.tenant == owner for each in keys)
            if owner == tenant or (of_tenant < policy.most_of_tenant and holds > part):
                self._waiting.remove(jvm)
                self._begin(self._destroy(jvm))
                return True
        return False

    async def _park(self, key: Key, request: ExecutionRequest) -> None:
        jvm = ParkedJvm(key)
        try:
            await jvm.start(self._environment, request, self._policy.idle_seconds)
        except StockadeError as error:
            # The call that comes starts its own, and says what keeps it from it.
            _LOG.info("no JVM was parked: %s", error)
            await self._destroy(jvm)
        except BaseException:
            await self._destroy(jvm)
            raise
        else:
            if self._closed:
                await self._destroy(jvm)
            else:
                self._waiting.append(jvm)
                self._begin(self._give_up(jvm), _IDLE)
        finally:
            self._booting.remove(key)

    async def _give_up(self, jvm: ParkedJvm) -> None:
        await jvm.ended(self._policy.idle_seconds)
        if jvm in self._waiting:
            self._waiting.remove(jvm)
            await self._destroy(jvm)

    async def _destroy(self, jvm: ParkedJvm) -> None:
        with contextlib.suppress(StockadeError):  # lost already
            await jvm.close()

    def _begin(self, work: Coroutine[Any, Any, None], name: str = "java") -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
