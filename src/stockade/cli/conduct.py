"""One execution, seen through: streams copied, signals passed on, the record brought home.

Who may end it: the program; a limit; Ctrl-C (first a SIGINT to the program, then the
execution is cancelled); SIGTERM, SIGHUP or SIGQUIT to us; and an output that cannot be
written any more. Whatever it is, the record is waited for.
"""

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from stockade.cli import terminal
from stockade.cli.host import Host
from stockade.cli.package_options import Prepare
from stockade.cli.streams import Outlet, Worker, standard_input
from stockade.port import (
    EgressSink,
    Execution,
    ExecutionRequest,
    RunningExecution,
    SandboxRequest,
    StandardInput,
    StockadeError,
    Stream,
    placed,
)
from stockade.port.policy import candidates

# How long a program has after the first Ctrl-C.
_PATIENCE = 2.0
# How long a reader of our output has to take what is left once we are ending the execution.
_LAST_OUTPUT = 0.5


class Cause(Enum):
    """Why we ended the execution ourselves."""

    INTERRUPTED = auto()
    TERMINATED = auto()
    OUTPUT_CLOSED = auto()
    HOST_FAILED = auto()


@dataclass(slots=True)
class Conducted:
    """What came of it."""

    execution: Execution | None = None
    """``None`` where it was ended before there was one."""
    cause: Cause | None = None
    interrupted: bool = False
    """Whether there was a Ctrl-C, which the program may have survived."""
    failure: str = ""
    """For ``HOST_FAILED``: one sentence."""
    at_line_start: bool = True
    """Whether the terminal's cursor is where a line of ours may begin."""


def conduct(
    host: Host,
    request: ExecutionRequest,
    sandbox: SandboxRequest,
    *,
    stdin: int | None,
    live: bool,
    on_egress: EgressSink | None = None,
    prepare: Prepare | None = None,
) -> Conducted:
    """Run it to its end. ``stdin`` is a descriptor to read; ``live`` copies the output.

    ``prepare`` comes first, with the environment that was opened, and gives the one to run in.
    """
    conductor = _Conductor(host, request, sandbox, stdin, live, on_egress, prepare)
    return asyncio.run(conductor.conduct())


class _Conductor:
    def __init__(
        self,
        host: Host,
        request: ExecutionRequest,
        sandbox: SandboxRequest,
        stdin: int | None,
        live: bool,
        on_egress: EgressSink | None,
        prepare: Prepare | None,
    ) -> None:
        self._host = host
        self._request = request
        self._sandbox = sandbox
        self._stdin = stdin
        self._live = live
        self._on_egress = on_egress
        self._prepare = prepare
        self._found = Conducted()
        self._running: RunningExecution | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._reader = Worker()
        self._outlets: dict[Stream, Outlet] = {}

    async def conduct(self) -> Conducted:
        self._loop = asyncio.get_running_loop()
        self._given_up: asyncio.Future[None] = self._loop.create_future()
        self._outlets = {
            Stream.STDOUT: Outlet(self._host.stdout),
            Stream.STDERR: Outlet(self._host.stderr),
        }
        self._work = asyncio.create_task(self._execute())
        handled = self._handle_signals()
        try:
            self._found.execution = await self._work
        except asyncio.CancelledError:
            if self._found.cause is None:
                raise
        finally:
            for number in handled:
                self._loop.remove_signal_handler(number)
            for errand in self._errands:
                errand.cancel()
            self._reader.close()
            for outlet in self._outlets.values():
                outlet.close()
        self._found.at_line_start = all(
            outlet.at_line_start or not os.isatty(outlet.descriptor)
            for outlet in self._outlets.values()
        )
        return self._found

    async def _execute(self) -> Execution:
        # No other tier is opened, so that nothing is waited for in vain.
        wanted = placed(self._request.program, self._sandbox)
        tiers = candidates(wanted.trust, wanted.tier)
        async with self._host.open_environment(tiers) as opened:
            environment = opened if self._prepare is None else await self._prepare(opened)
            lent = self._stdin if self._request.terminal is not None else None
            with nullcontext() if lent is None else terminal.raw(lent):
                self._running = await environment.start(
                    self._request,
                    self._sandbox,
                    stdin=self._standard_input(),
                    on_output=self._copy if self._live else None,
                    on_egress=self._on_egress,
                )
                if self._found.cause is not None:
                    await self._running.cancel()
                return await self._running.wait()

    def _standard_input(self) -> StandardInput:
        return b"" if self._stdin is None else self._pieces(self._stdin)

    async def _pieces(self, descriptor: int) -> AsyncIterator[bytes]:
        try:
            async for piece in standard_input(descriptor, self._reader):
                yield piece
        except OSError as error:
            self._fail("standard input", error)

    async def _copy(self, stream: Stream, data: bytes) -> None:
        outlet = self._outlets[stream]
        try:
            await outlet.write(data, self._given_up)
        except OSError as error:
            outlet.closed = True
            if error.errno == errno.EPIPE:
                self._end(Cause.OUTPUT_CLOSED)
            else:
                self._fail(
                    "standard output" if stream is Stream.STDOUT else "standard error", error
                )

    def _fail(self, name: str, error: OSError) -> None:
        if self._found.cause is None:
            self._found.failure = f"{name}: {error.strerror}; the execution was cancelled"
        self._end(Cause.HOST_FAILED)

    def _handle_signals(self) -> list[int]:
        actions: dict[int, Callable[[], None]] = {
            signal.SIGINT: self._interrupt,
            signal.SIGTERM: partial(self._end, Cause.TERMINATED),
            signal.SIGHUP: partial(self._end, Cause.TERMINATED),
            signal.SIGQUIT: partial(self._end, Cause.TERMINATED),
        }
        if self._request.terminal is not None:
            actions[signal.SIGWINCH] = self._resize
        # Ignored from outside (nohup, a shell's background job) means: leave it so.
        taken = [number for number in actions if signal.getsignal(number) is not signal.SIG_IGN]
        for number in taken:
            self._loop.add_signal_handler(number, actions[number])
        return taken

    def _interrupt(self) -> None:
        if self._running is None or self._found.interrupted:
            self._end(Cause.INTERRUPTED)
            return
        self._found.interrupted = True
        self._send(self._running.signal(signal.SIGINT))
        self._loop.call_later(_PATIENCE, self._end, Cause.INTERRUPTED)

    def _resize(self) -> None:
        if self._running is not None:
            try:
                size = terminal.size(self._host.stdout)
            except OSError:
                return  # it hung up
            self._send(self._running.resize(size))

    def _end(self, cause: Cause) -> None:
        if self._found.cause is not None or self._work.done():
            return
        self._found.cause = cause
        self._loop.call_later(_LAST_OUTPUT, self._give_up)
        if self._running is not None:
            self._send(self._running.cancel())
        else:
            self._work.cancel()

    def _give_up(self) -> None:
        if not self._given_up.done():
            self._given_up.set_result(None)

    def _send(self, errand: Coroutine[object, object, None]) -> None:
        async def run() -> None:
            try:
                await errand
            except StockadeError:
                pass  # it has ended meanwhile: the record says how

        task = self._loop.create_task(run())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
