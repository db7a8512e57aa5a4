"""Sandboxes that are made for one call each and never ahead of it: dedicated machines."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from stockade.executor.sandbox import Profile, Sandbox
from stockade.port import Unavailable

Create = Callable[[Profile], Coroutine[Any, Any, Sandbox]]
"""Makes a sandbox, and proves its walls. Cancelled, it leaves nothing."""

_CLOSED = "the environment is closed"
_log = logging.getLogger(__name__)


class Machines:
    """Those of one executor, of which no more than ``most`` live at once.

    A call waits ``wait_seconds`` for its turn. Then its machine boots, for as long as that takes:
    the boot has a deadline of its own.
    """

    def __init__(self, create: Create, most: int, wait_seconds: float) -> None:
        self._create = create
        self._most = most
        self._wait_seconds = wait_seconds
        self._free = asyncio.Semaphore(most)
        self._booting: set[asyncio.Task[Sandbox]] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<Machines {len(self._booting)} booting, {self._waiting} waiting>"

    async def take(self, profile: Profile) -> Sandbox:
        """Boot one. It is the caller's to destroy; who is cancelled leaves none.

        Raises what creation raises, and :class:`Unavailable` where the wait was too long.
        """
        await self._wait_for_turn()
        try:
            sandbox = await self._boot(profile)
        except BaseException:
            self._free.release()
            raise
        sandbox.at_release(self._free.release)
        return sandbox

    def dispose(self, sandbox: Sandbox) -> None:
        """Destroy a machine in the background; ``close`` waits for it."""
        task = asyncio.create_task(sandbox.destroy())
        self._endings.add(task)
        task.add_done_callback(self._on_ended)

    def stop(self) -> None:
        """Boot none any more; those that do are given up, and their calls refused."""
        self._closed = True
        for task in self._booting:
            _cancel_once(task)

    async def close(self) -> None:
        """The same, and wait until none of them boots or ends."""
        self.stop()
        while left := {*self._booting, *self._endings}:
            await asyncio.wait(left)

    async def _wait_for_turn(self) -> None:
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._free.acquire()
        except TimeoutError:
            raise Unavailable(
                f"no dedicated machine within {self._wait_seconds:g} s (pool.wait_seconds): "
                f"{self._most} of at most {self._most} are alive (pool.machines)"
            ) from None
        finally:
            self._waiting -= 1
        if self._closed:
            self._free.release()
            raise Unavailable(_CLOSED)

    async def _boot(self, profile: Profile) -> Sandbox:
        task = asyncio.create_task(self._create(profile))
        self._booting.add(task)
        task.add_done_callback(self._booting.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._closed:
                raise Unavailable(_CLOSED) from None
            await self._give_up(task)
            raise

    async def _give_up(self, task: "asyncio.Task[Sandbox]") -> None:
        """Until nothing of it lives: whoever cancelled a call is then told that it has ended."""
        _cancel_once(task)
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                continue
        if not task.cancelled() and task.exception() is None:
            await asyncio.shield(task.result().destroy())

    def _on_ended(self, task: "asyncio.Task[None]") -> None:
        self._endings.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.warning("a dedicated machine could not be destroyed: %s", error, exc_info=error)


def _cancel_once(task: "asyncio.Task[Sandbox]") -> None:
    """A second time would cut short what cleans up after the first."""
    if not task.cancelling():
        task.cancel()
