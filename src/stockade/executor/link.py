"""The wire's bytes on a pair of pipes: the only I/O between executor and guest."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable, Mapping
from typing import Final

from stockade.executor.wire import (
    CannotOpen,
    Connection,
    Event,
    Hello,
    WireViolation,
)
from stockade.port import SandboxLost

READ_SIZE = 65_536
WIDE = 262_144
_MOST_AT_ONCE: Final = 1024  # IOV_MAX

Handler = Callable[[Event], None]


class Link:
    """One guest's wire: feeds a :class:`Connection` and hands its events to handlers.

    ``on_broken`` is called once, with the reason, when no further event will come.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, read_from: int, write_to: int) -> None:
        self._loop = loop
        self._read_from = read_from
        self._write_to = write_to
        self._connection = Connection()
        self._handlers: dict[int, Handler] = {}
        self._unsent: list[bytes | memoryview] = []
        self._flush_planned = False
        self.hello: asyncio.Future[Mapping[str, object]] = loop.create_future()
        self.broken: asyncio.Future[str] = loop.create_future()
        os.set_blocking(read_from, False)
        os.set_blocking(write_to, False)
        loop.add_reader(read_from, self._readable)

    def __repr__(self) -> str:
        state = self.broken.result() if self.broken.done() else "open"
        return f"<Link {state}, {len(self._handlers)} channels, {self._connection!r}>"

    def open(self, service: str, arguments: bytes, handler: Handler, span: int = 1) -> int:
        """Ask for a service; ``handler`` gets the events of its channels.

        Raises :class:`SandboxLost` on a broken wire, ``ValueError`` where the request
        does not fit one frame. The other calls do nothing on a broken wire: its end is
        told by ``broken``.
        """
        if self.broken.done():
            raise SandboxLost(f"the sandbox was lost: {self.broken.result()}")
        try:
            channel = self._connection.open(service, arguments, span)
        except CannotOpen as error:
            raise SandboxLost(f"the sandbox takes no more requests: {error}") from error
        for number in range(channel, channel + span):
            self._handlers[number] = handler
        self._plan_flush()
        return channel

    def send(self, channel: int, data: bytes | memoryview) -> None:
        """Queue bytes; they go out as credit and the pipe allow."""
        if not self.broken.done():
            self._connection.send(channel, data)
            self._plan_flush()

    def close_channel(self, channel: int) -> None:
        """No more is sent on the channel, after what is queued."""
        if not self.broken.done():
            self._connection.close(channel)
            self._plan_flush()

    def reset_channel(self, channel: int, reason: str) -> None:
        """End both directions of the channel now."""
        if not self.broken.done():
            self._connection.reset(channel, reason)
            self._plan_flush()

    def consumed(self, channel: int, count: int) -> None:
        """The consumer took ``count`` bytes: the guest may send as many more."""
        if not self.broken.done():
            self._connection.consumed(channel, count)
            self._plan_flush()

    def queued(self, channel: int) -> int:
        """Bytes that wait for credit."""
        return 0 if self.broken.done() else self._connection.queued(channel)

    def credit(self, channel: int) -> int:
        """Bytes that the guest has room for, beyond those that were sent."""
        return 0 if self.broken.done() else self._connection.credit(channel)

    def widen(self) -> None:
        """Let more be on its way at once, as far as the kernel lets this user; ports stay."""
        for descriptor in (self._read_from, self._write_to):
            with contextlib.suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, WIDE)

    def close(self) -> None:
        """Stop, and close both pipes. The guest's agent then ends itself."""
        self._break("closed by the executor")
        for descriptor in (self._read_from, self._write_to):
            if descriptor >= 0:
                os.close(descriptor)
        self._read_from = self._write_to = -1

    def _plan_flush(self) -> None:
        # Once per turn of the loop: a call's frames then go out in one write.
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def flush(self) -> None:
        """Send now what is queued, without waiting for the loop's next turn."""
        if not self.broken.done():
            self._flush()

    def _flush(self) -> None:
        self._flush_planned = False
        if self.broken.done():
            return
        while True:
            if not self._unsent:
                self._unsent = self._connection.outgoing_parts(READ_SIZE)
                if not self._unsent:
                    return
            try:
                written = os.writev(self._write_to, self._unsent[:_MOST_AT_ONCE])
            except BlockingIOError:
                self._loop.add_writer(self._write_to, self._writable)
                return
            except OSError:
                # The agent is gone. What it sent before is still to be read.
                self._unsent = []
                return
            self._unsent = _after(self._unsent, written)

    def _writable(self) -> None:
        self._loop.remove_writer(self._write_to)
        self._flush()

    def _readable(self) -> None:
        try:
            data = os.read(self._read_from, READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            self._break(f"the wire cannot be read: {error.strerror}")
            return
        if not data:
            self._break("the wire ended")
            return
        try:
            for event in self._connection.receive(data):
                self._dispatch(event)
                if self.broken.done():
                    return
        except WireViolation as violation:
            self._break(f"the guest broke the wire's rules: {violation}")
            return
        if self._connection.has_outgoing and not self._unsent:
            self._flush()

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, Hello):
            if not self.hello.done():
                self.hello.set_result(event.body)
            return
        if event.channel == 0:
            self._break(getattr(event, "reason", "the guest ended the connection"))
            return
        handler = self._handlers.get(event.channel)
        if handler is not None:
            handler(event)

    def fail(self, reason: str) -> None:
        """Give the guest up: no further byte of it is read."""
        self._break(reason)

    def _break(self, reason: str) -> None:
        if self.broken.done():
            return
        self.broken.set_result(reason)
        self._loop.remove_reader(self._read_from)
        self._loop.remove_writer(self._write_to)
        # Each of them has this link: what they hold of output would wait for a collection of cycles.
        self._handlers.clear()
        if not self.hello.done():
            self.hello.set_exception(SandboxLost(f"the sandbox did not start: {reason}"))
            self.hello.exception()  # nobody may be waiting


def _after(parts: list[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """What is left of them."""
    for place, part in enumerate(parts):
        if written < len(part):
            return [memoryview(part)[written:], *parts[place + 1 :]]
        written -= len(part)
    return []
