"""An execution that was submitted: its machine boots while its caller does something else."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from stockade.executor.execution import ProgramExecution, check_signal
from stockade.executor.sandbox import Profile, Sandbox
from stockade.port import Execution, Outcome, TerminalSize, Timings


class SubmittedExecution:
    """A :class:`~stockade.port.RunningExecution` that has no sandbox yet.

    ``wait`` raises what kept it from having one. Cancelled before that, its record says so, and
    nothing was ever run.
    """

    def __init__(
        self,
        profile: Profile,
        take: Coroutine[Any, Any, Sandbox],
        begin: Callable[[Sandbox, float], ProgramExecution],
    ) -> None:
        """``take``: a sandbox. ``begin``: the program in it, and how long was waited for it."""
        self._profile = profile
        self._begin = begin
        self._submitted_at = time.monotonic()
        self._booting = asyncio.create_task(take)
        self._program: ProgramExecution | None = None
        self._size: TerminalSize | None = None
        self._signals: list[int] = []
        self._cancelled = False
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live())
        # Nobody may be waiting for it when it fails.
        self._life.add_done_callback(lambda life: life.cancelled() or life.exception())

    def __repr__(self) -> str:
        state = "booting" if self._program is None else repr(self._program)
        return f"<SubmittedExecution {self._profile.tier} {state}>"

    @property
    def done(self) -> bool:
        """Whether ``wait`` returns, or raises, at once."""
        return self._life.done()

    @property
    def program(self) -> ProgramExecution | None:
        """The execution itself, once it has a machine."""
        return self._program

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call back when it is over, however."""
        self._life.add_done_callback(lambda _: callback())

    async def begun(self) -> None:
        """Wait until its program may have begun, or never will."""
        either: set[asyncio.Future[Any]] = {self._begun, self._life}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)

    async def ended(self) -> None:
        """Wait until nothing of it lives, without the record."""
        await asyncio.wait({self._life})

    async def signal(self, number: int) -> None:
        """Send a signal, as soon as there is a program. Raises :class:`InvalidRequest`."""
        check_signal(number)
        if self._program is None:
            self._signals.append(number)
        else:
            await self._program.signal(number)

    async def resize(self, size: TerminalSize) -> None:
        """Set the terminal's size, as soon as there is one."""
        if self._program is None:
            self._size = size
        else:
            await self._program.resize(size)

    async def cancel(self) -> None:
        """End it with outcome ``cancelled``; a machine that boots is given up."""
        self._cancelled = True
        if self._program is None:
            self._booting.cancel()
        else:
            await self._program.cancel()

    async def wait(self) -> Execution:
        """The record. A cancelled waiter ends the execution and waits for its end."""
        try:
            return await asyncio.shield(self._life)
        except asyncio.CancelledError:
            if self._life.cancelled():
                raise
            await self.cancel()
            if self._program is not None:
                self._program.kill()
            await asyncio.wait({self._life})
            raise

    async def _live(self) -> Execution:
        await asyncio.wait({self._booting})
        waited = time.monotonic() - self._submitted_at
        if self._booting.cancelled():
            return self._cancelled_record(waited)
        self._program = self._begin(self._booting.result(), waited)
        self._begun.set_result(None)
        if self._size is not None:
            await self._program.resize(self._size)
        for number in self._signals:
            await self._program.signal(number)
        if self._cancelled:
            await self._program.cancel()
        return await self._program.wait()

    def _cancelled_record(self, waited: float) -> Execution:
        return Execution(
            Outcome.CANCELLED,
            f"it was cancelled after {waited:.1f} s, before its machine was up",
            timings=Timings(waited=waited),
            tier=self._profile.tier,
        )
