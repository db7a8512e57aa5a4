"""Descriptors that may block for ever, beside an event loop that must not.

The loop also keeps the limits of the sandbox, so no write to a pipe that nobody reads and
no read from a terminal may hold it up. Making the descriptors non-blocking would do it for
everybody who shares them, the shell included; so each has a thread of its own instead.
"""

import asyncio
import errno
import os
import select
import stat
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from stockade.cli.files import write_all

T = TypeVar("T")

_PIECE = 65_536


class Worker:
    """A thread that makes calls one after another. It never keeps the interpreter from ending."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """Start a call; its result or error comes into the future."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="stream", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(partial(_settle, loop, future, function))
        return future

    def close(self) -> None:
        """Let the thread go once its call has returned; do not wait for that."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _settle(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[T]", function: Callable[[], T]
) -> None:
    def deliver(give: Callable[[], None]) -> None:
        if not future.done():
            give()

    try:
        result = function()
    except OSError as error:
        give = partial(future.set_exception, error)
    else:
        give = partial(future.set_result, result)
    try:
        loop.call_soon_threadsafe(deliver, give)
    except RuntimeError:
        pass  # the loop has ended, and nobody waits for this any more


class Outlet:
    """A descriptor that the program's output is copied to, in order and unbuffered."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.closed = False
        """Nothing more is written: its reader went away, or writing failed."""
        self.at_line_start = True
        self._worker = Worker()
        self._busy = False
        self._pollable: select.poll | None = None
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            self._pollable = select.poll()
            self._pollable.register(descriptor, select.POLLOUT)

    async def write(self, data: bytes, given_up: "asyncio.Future[None]") -> None:
        """Write all of it. Once ``given_up`` is done, whoever does not read is left behind."""
        if self.closed or not data:
            await asyncio.sleep(0)  # or a flood that nobody reads would hold up its own end
            return
        self.at_line_start = data.endswith(b"\n")
        if self._takes_at_once(data):
            write_all(self.descriptor, data)
            return
        self._busy = True
        writing = self._worker.call(partial(write_all, self.descriptor, data))
        await asyncio.wait([writing, given_up], return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            self.closed = True
            return
        self._busy = False
        writing.result()

    def close(self) -> None:
        """Write nothing more."""
        self.closed = True
        self._worker.close()

    def _takes_at_once(self, data: bytes) -> bool:
        # A pipe that polls as writable has room for PIPE_BUF bytes (pipe(7)): the thread, and
        # its tenth of a millisecond, is saved for most programs.
        if self._pollable is None or self._busy or len(data) > select.PIPE_BUF:
            return False
        return bool(self._pollable.poll(0))


async def standard_input(descriptor: int, worker: Worker) -> AsyncIterator[bytes]:
    """Read in pieces, each only when the one before was taken, until the end of input."""
    while data := await worker.call(partial(_read, descriptor)):
        yield data


def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, _PIECE)
        except BlockingIOError:
            ready = select.poll()
            ready.register(descriptor, select.POLLIN)
            ready.poll()
        except OSError as error:
            # Closed from the start, or the terminal hung up: for the program that is the end.
            if error.errno in (errno.EBADF, errno.EIO):
                return b""
            raise
