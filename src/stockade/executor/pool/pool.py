"""The pool: it hands out sandboxes, makes them ahead of need, and bounds all that it does."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from stockade.executor.descriptors import Room
from stockade.executor.pool.metrics import PoolMetrics, Tally
from stockade.executor.pool.policy import PoolPolicy
from stockade.executor.pool.queue import Queue
from stockade.executor.pool.shelf import Call, Shelf
from stockade.executor.pool.shelves import Shelves
from stockade.executor.sandbox import Profile, Sandbox
from stockade.port import SandboxLost, Unavailable

Create = Callable[[Profile], Coroutine[Any, Any, Sandbox]]
"""Makes a sandbox, and proves its walls."""
Forget = Callable[[str], Coroutine[Any, Any, None]]
"""Told of a tenant that has no sandbox any more; the next one may be asked for meanwhile."""

PATIENCE_SECONDS = 0.1
"""How long after a call was served its replacement waits, unless the call ends sooner."""
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.1, 30.0
_CLOSE_SECONDS = 1.0
_SWEEPS = 10
"""How often the pool is swept before what is parked becomes too old, or a profile idle."""
_CLOSED = "the environment is closed"

_log = logging.getLogger(__name__)


async def _forget_nothing(_tenant: str) -> None:
    pass


class Pool:
    """The sandboxes of one executor, for each profile of each tenant.

    A call takes a parked one without waiting; else one is made for it. Starts are bounded,
    and calls go before refill, which runs only while none waits. No sandbox ever comes back.

    ``create`` makes a sandbox. ``forget`` is told of a tenant that has none, and wanted none
    for ``policy.idle_seconds``. ``room`` bounds how many may be alive; by default the policy.
    """

    def __init__(
        self,
        create: Create,
        policy: PoolPolicy,
        *,
        forget: Forget = _forget_nothing,
        room: Room | None = None,
    ) -> None:
        self._create = create
        self._forget = forget
        self._policy = policy
        self._room = room or Room(policy.most_alive, "pool.most_alive")
        self._loop = asyncio.get_running_loop()
        self._tally = Tally()
        self._shelves = Shelves(policy, self._tally, self.dispose)
        self._queue = Queue()
        self._later: dict[Shelf, None] = {}  # to be refilled when patience ends
        self._due: dict[Shelf, None] = {}  # to be refilled now
        self._starting: set[asyncio.Task[Sandbox]] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._refilling = 0
        self._alive = 0
        self._patience: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<Pool {self._shelves!r}, {len(self._starting)} in the making, {self._alive} alive | "
            f"{len(self._queue)} waiting | {self._tally.hits} hits, {self._tally.misses} misses>"
        )

    async def take(self, profile: Profile) -> Sandbox:
        """A sandbox that has run nothing yet. It is the caller's to destroy.

        Raises what creation raises, and :class:`Unavailable` where the queue is full or the
        wait was too long.
        """
        # While something is parked nothing here waits, not even for the loop's next turn: a
        # call's latency is a promised figure.
        now = self._loop.time()
        shelf = self._use(profile, now)
        shelf.demand.take()
        sandbox = self._shelves.take(shelf, now)
        if sandbox is None:
            self._tally.misses += 1
            sandbox = await self._wait(shelf, now)
        else:
            self._tally.hits += 1
        shelf.in_use.add(sandbox)
        self._refill_later(shelf)
        return sandbox

    async def fill(self, profile: Profile) -> None:
        """Wait until as many sandboxes of the profile are parked as should be now.

        Raises what creation raises. Returns early where the policy leaves no room for more.
        """
        shelf = self._use(profile, self._loop.time())
        if shelf.filled is None:
            shelf.filled = self._loop.create_future()
        filled = shelf.filled
        shelf.not_before = 0.0
        self._refill(shelf)
        await asyncio.shield(filled)

    def dispose(self, sandbox: Sandbox) -> None:
        """Destroy a sandbox in the background; ``close`` waits for it."""
        self._in_background(sandbox.destroy(), "a sandbox could not be destroyed")

    async def close(self) -> None:
        """Refuse every call that waits, begin nothing more, and destroy all that is parked."""
        self._closed = True
        for timer in (self._patience, self._sweeping):
            if timer is not None:
                timer.cancel()
        for shelf in self._shelves.all():
            self._stop_refill(shelf, Unavailable(_CLOSED))
            while (call := self._queue.pop(shelf)) is not None:
                call.set_exception(Unavailable(_CLOSED))
            self._shelves.clear(shelf)
        if self._starting:
            # Most are done in a moment, and one that is cancelled has more to clean up.
            await asyncio.wait(self._starting, timeout=_CLOSE_SECONDS)
        while self._starting:
            for task in self._starting:
                task.cancel()
            await asyncio.wait(self._starting)
        while self._endings:
            await asyncio.wait(self._endings)

    def metrics(self) -> PoolMetrics:
        """The numbers now."""
        return PoolMetrics(
            **{name: getattr(self._tally, name) for name in Tally.__slots__},
            parked=self._shelves.parked,
            parked_bytes=self._shelves.parked_bytes,
            making=len(self._starting),
            waiting=len(self._queue),
            alive=self._alive,
            most_alive=self._room.sandboxes,
            shelves=self._shelves.metrics(self._loop.time()),
        )

    # --- calls ---

    def _use(self, profile: Profile, now: float) -> Shelf:
        if self._closed:
            raise Unavailable(_CLOSED)
        shelf = self._shelves.use(profile, now)
        if self._sweeping is None:
            self._plan_sweep()
        if len(self._shelves) > self._policy.profiles:
            for other in self._shelves.squeezed():
                self._tally.evicted_idle += self._shelves.clear(other)
                self._drop_if_unused(other)
        return shelf

    async def _wait(self, shelf: Shelf, now: float) -> Sandbox:
        """Wait in the queue until a sandbox has been made."""
        policy = self._policy
        if len(self._queue) >= policy.queue:
            self._tally.refused += 1
            raise Unavailable(
                f"{len(self._queue)} calls wait for a sandbox already, the limit of the queue "
                "(pool.queue); try again later, or raise it"
            )
        call = self._queue.add(shelf)
        timer = self._loop.call_later(policy.wait_seconds, self._time_out, shelf, call)
        self._pump()
        try:
            sandbox = await call
        except asyncio.CancelledError:
            if call.cancelled():
                self._leave(shelf, call)
            elif call.exception() is None:
                # It was given one, and cancelled before it could know.
                self._give(shelf, call.result())
            raise
        finally:
            timer.cancel()
        self._tally.count_wait(self._loop.time() - now)
        return sandbox

    def _time_out(self, shelf: Shelf, call: Call) -> None:
        if call.done():
            return
        self._tally.timed_out += 1
        said = f"; the last start failed: {self._tally.last_error}" if shelf.failures else ""
        call.set_exception(
            Unavailable(
                f"no sandbox within {self._policy.wait_seconds:g} s (pool.wait_seconds): "
                f"{len(self._queue)} calls wait, {len(self._starting)} sandboxes are in the making, "
                f"{self._alive} of at most {self._room.sandboxes} are alive "
                f"({self._room.limited_by}){said}"
            )
        )
        self._leave(shelf, call)

    def _leave(self, shelf: Shelf, call: Call) -> None:
        """A call gave up waiting. What is in the making for it goes to another, or is parked."""
        if self._queue.leave(shelf, call):
            self._refill_later(shelf)
            self._pump()

    def _give(self, shelf: Shelf, sandbox: Sandbox) -> None:
        """Hand a sandbox to a call that waits, else park it."""
        if not self._closed:
            call = self._queue.pop(shelf)
            if call is not None:
                call.set_result(sandbox)
                return
            if self._shelves.park(shelf, sandbox, self._loop.time()):
                return
        self._tally.unwanted += 1
        self.dispose(sandbox)

    # --- starts ---

    def _pump(self) -> None:
        """Begin what may begin: for calls first, in turns; refill only where none waits."""
        if self._closed:
            return
        slots = self._policy.starts
        while len(self._starting) < slots and (shelf := self._queue.next()) is not None:
            if not self._find_room():
                return
            self._queue.rotate()
            self._begin(shelf, refill=False)
        # A call that comes while refill goes on is to find a free slot.
        while self._due and not self._queue and len(self._starting) < slots:
            if self._refilling >= max(1, slots // 2):
                return
            wanting = self._next_refill()
            if wanting is None:
                return
            self._begin(wanting, refill=True)

    def _find_room(self) -> bool:
        """Whether one more may be alive. What is parked gives way to a call that waits."""
        if self._alive < self._room.sandboxes:
            return True
        if len(self._endings) < self._policy.starts:
            self._shelves.give_way()
        return False

    def _begin(self, shelf: Shelf, *, refill: bool) -> None:
        task = self._loop.create_task(self._create(shelf.profile))
        self._starting.add(task)
        self._refilling += refill
        self._alive += 1
        shelf.alive += 1
        shelf.making += 1
        self._tally.starts += 1
        task.add_done_callback(partial(self._on_made, shelf, refill, self._loop.time()))

    def _on_made(
        self, shelf: Shelf, refill: bool, began: float, task: "asyncio.Task[Sandbox]"
    ) -> None:
        self._starting.discard(task)
        self._refilling -= refill
        shelf.making -= 1
        error = SandboxLost("its start was cancelled") if task.cancelled() else task.exception()
        if error is not None:
            self._alive -= 1
            shelf.alive -= 1
            self._on_failure(shelf, error)
        else:
            sandbox = task.result()
            sandbox.at_release(partial(self._on_released, shelf, sandbox))
            if sandbox.alive:
                shelf.failures = 0
                shelf.not_before = 0.0
                shelf.size = max(shelf.size, sandbox.boundary.parked_bytes)
                if refill:
                    self._tally.count_refill(self._loop.time() - began)
                self._give(shelf, sandbox)
            else:
                self.dispose(sandbox)
                self._on_failure(shelf, SandboxLost("the sandbox died as soon as it was made"))
        self._pump()
        self._drop_if_unused(shelf)

    def _on_failure(self, shelf: Shelf, error: BaseException) -> None:
        """A start failed: so does one call, or refill tries again after a pause."""
        if self._closed:
            return
        self._tally.failures += 1
        self._tally.last_error = str(error) or repr(error)
        shelf.failures += 1
        heard = shelf.filled is not None
        self._stop_refill(shelf, error)
        # The exponent is bounded: after a long night there is no such float.
        pause = min(_FIRST_RETRY_SECONDS * 2.0 ** min(shelf.failures - 1, 16), _LAST_RETRY_SECONDS)
        shelf.not_before = self._loop.time() + pause
        shelf.retry = self._loop.call_later(pause, self._refill, shelf)
        call = self._queue.pop(shelf)
        if call is not None:
            call.set_exception(error)
        elif not heard and shelf.failures == 1:
            _log.warning(
                "no %s sandbox of tenant %r could be parked; it is tried again: %s",
                shelf.profile.tier,
                shelf.profile.tenant,
                self._tally.last_error,
            )

    # --- refill ---

    def _refill_later(self, shelf: Shelf) -> None:
        # Making a sandbox takes a core for milliseconds, of which the call that goes on now
        # is in more need: its replacement waits until it is over. Not for ever, though: a
        # call that lasts must not keep the pool empty.
        if self._policy.ceiling and not self._closed:
            self._later[shelf] = None
            if self._patience is None:
                self._patience = self._loop.call_later(PATIENCE_SECONDS, self._end_patience)

    def _end_patience(self) -> None:
        self._patience = None
        self._due.update(self._later)
        self._later.clear()
        self._pump()

    def _refill(self, shelf: Shelf) -> None:
        self._later.pop(shelf, None)
        self._due[shelf] = None
        self._pump()

    def _next_refill(self) -> Shelf | None:
        """The shelf that has waited longest for one more; it goes to the end of the line."""
        now = self._loop.time()
        allotted = self._shelves.allotments(now)
        # Room is left for calls, so that nothing has to give way to them at once.
        room = self._alive + self._policy.starts < self._room.sandboxes
        for shelf in list(self._due):
            want, fresh = allotted.get(shelf, 0), shelf.fresh(now)
            if fresh >= want or not room or now < shelf.not_before:
                if fresh >= want:
                    shelf.demand.settle()
                del self._due[shelf]
                shelf.settle()
            elif fresh + shelf.making < want:
                del self._due[shelf]
                self._due[shelf] = None
                return shelf
        return None

    def _stop_refill(self, shelf: Shelf, reason: BaseException | None) -> None:
        if shelf.retry is not None:
            shelf.retry.cancel()
            shelf.retry = None
        self._later.pop(shelf, None)
        self._due.pop(shelf, None)
        shelf.settle(reason)

    # --- ends ---

    def _on_released(self, shelf: Shelf, sandbox: Sandbox) -> None:
        """A sandbox is gone: there is room for another; and if it had a call, that is over."""
        self._alive -= 1
        shelf.alive -= 1
        if self._closed:
            return
        if sandbox in shelf.in_use:
            shelf.in_use.discard(sandbox)
            shelf.ended_at = self._loop.time()
        self._refill(shelf)
        self._drop_if_unused(shelf)

    def _drop_if_unused(self, shelf: Shelf) -> None:
        if self._shelves.drop_if_unused(shelf, self._loop.time()):
            self._stop_refill(shelf, None)
            tenant = shelf.profile.tenant
            if not self._shelves.has(tenant) and not self._closed:
                self._in_background(self._forget_tenant(tenant), f"the end of tenant {tenant!r}")

    async def _forget_tenant(self, tenant: str) -> None:
        if not self._shelves.has(tenant):
            await self._forget(tenant)

    def _plan_sweep(self) -> None:
        if self._sweeping is None and not self._closed:
            policy = self._policy
            pause = min(policy.max_age_seconds, policy.idle_seconds) / _SWEEPS
            self._sweeping = self._loop.call_later(pause, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        for shelf in self._shelves.sweep(self._loop.time()):
            self._due[shelf] = None
        for shelf in self._shelves.all():
            self._drop_if_unused(shelf)
        self._pump()
        if len(self._shelves):
            self._plan_sweep()

    def _in_background(self, work: Coroutine[Any, Any, None], trouble: str) -> None:
        task = self._loop.create_task(work)
        self._endings.add(task)
        task.add_done_callback(partial(self._on_ended, trouble))

    def _on_ended(self, trouble: str, task: "asyncio.Task[None]") -> None:
        self._endings.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._tally.not_destroyed += 1
            _log.warning("%s: %s", trouble, error, exc_info=error)
