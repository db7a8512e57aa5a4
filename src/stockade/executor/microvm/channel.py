"""QMP over the socket that QEMU inherited."""

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stockade.executor.microvm.qmp import (
    Done,
    Event,
    Failed,
    Greeting,
    Qmp,
    QmpViolation,
)
from stockade.port import StockadeError

_READ_SIZE: Final = 16_384


class ControlBroken(StockadeError):
    """The VMM ended, or says what it may not: nothing more is heard of it."""


class CommandFailed(StockadeError):
    """The VMM refused a command; its words, on one line."""

    def __init__(self, command: str, kind: str, description: str) -> None:
        super().__init__(f"{command}: {description}")
        self.kind = kind


class Channel:
    """One QEMU's control socket."""

    def __init__(self, control: socket.socket) -> None:
        """Takes the socket over."""
        self._loop = asyncio.get_running_loop()
        self._socket = control
        self._qmp = Qmp()
        self._answers: dict[int, tuple[str, asyncio.Future[None]]] = {}
        self._awaited: dict[tuple[str, str], asyncio.Future[Event]] = {}
        self._broken: str | None = None
        self.greeting: asyncio.Future[Greeting] = self._new_future()
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._readable)

    def __repr__(self) -> str:
        return f"<Channel {self._broken or 'open'}, {self._qmp!r}>"

    def post(
        self,
        command: str,
        arguments: Mapping[str, object] | None = None,
        descriptors: Sequence[int] = (),
    ) -> asyncio.Future[None]:
        """Send a command, with descriptors if it takes one; the future is done with its answer.

        Its failure is :class:`CommandFailed`, the conversation's :class:`ControlBroken`.
        """
        answer: asyncio.Future[None] = self._new_future()
        if self._broken is not None:
            answer.set_exception(ControlBroken(self._broken))
            return answer
        number, data = self._qmp.command(command, arguments or {})
        self._answers[number] = command, answer
        try:
            sent = socket.send_fds(self._socket, [data], list(descriptors))
        except BlockingIOError:
            sent = 0
        except OSError:
            return answer  # it is gone; what it said before is still to be read
        if sent < len(data):
            self._break("it does not read what it is told")
        return answer

    def expect(self, event: str, status: str = "") -> asyncio.Future[Event]:
        """The next event of that name from now on; of that status, if one is named."""
        if self._broken is not None:
            future: asyncio.Future[Event] = self._new_future()
            future.set_exception(ControlBroken(self._broken))
            return future
        key = event, status
        if key not in self._awaited:
            self._awaited[key] = self._new_future()
        return self._awaited[key]

    def close(self) -> None:
        """Hear no more of it."""
        self._break("closed by the executor")
        self._socket.close()

    def _new_future(self) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        # Nobody may be waiting for it any more when it fails.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_READ_SIZE)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""  # it ended before it had read all
        except OSError as error:
            self._break(f"its control socket cannot be read: {error.strerror}")
            return
        if not data:
            self._break("it ended")
            return
        try:
            messages = self._qmp.receive(data)
        except QmpViolation as violation:
            self._break(f"it broke QMP's rules: {violation}")
            return
        for message in messages:
            self._take(message)

    def _take(self, message: Greeting | Done | Failed | Event) -> None:
        if isinstance(message, Greeting):
            _resolve(self.greeting, message)
        elif isinstance(message, Event):
            for key in {(message.name, ""), (message.name, message.status)} & self._awaited.keys():
                _resolve(self._awaited.pop(key), message)
        else:
            command, answer = self._answers.pop(message.number)
            if isinstance(message, Done):
                _resolve(answer, None)
            elif not answer.done():
                answer.set_exception(CommandFailed(command, message.kind, message.description))

    def _break(self, reason: str) -> None:
        if self._broken is not None:
            return
        self._broken = reason
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_reader(self._socket.fileno())
        answers = [answer for _, answer in self._answers.values()]
        waiting: list[asyncio.Future[Any]] = [self.greeting, *self._awaited.values(), *answers]
        for future in waiting:
            if not future.done():
                future.set_exception(ControlBroken(reason))
        self._answers.clear()
        self._awaited.clear()


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)
