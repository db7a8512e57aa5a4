"""The one port: what every tier, the client and the fake implement."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from stockade.port.egress import EgressSink
from stockade.port.execution import Execution, Stream
from stockade.port.program import ExecutionRequest, SandboxRequest, TerminalSize

OutputSink = Callable[[Stream, bytes], Awaitable[None]]
"""Called with each piece of output as it is produced. While it runs the guest is held back."""

StandardInput = bytes | AsyncIterable[bytes]
"""Standard input: all of it, or pieces as they come."""


@dataclass(frozen=True, slots=True)
class WorkspaceEntry:
    """One entry of a folder of the workspace."""

    name: str
    kind: str
    """``file``, ``folder``, ``link`` or ``other``."""
    size: int


class RunningExecution(Protocol):
    """An execution that was started, or whose machine is being booted for it."""

    @property
    def done(self) -> bool:
        """Whether ``wait`` has nothing to wait for any more."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to the program and its process group."""
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Tell the program's terminal its new size."""
        ...

    async def cancel(self) -> None:
        """End it with outcome ``cancelled``; ``wait`` then returns the record."""
        ...

    async def wait(self) -> Execution:
        """Wait until nothing of it lives. Cancelling the waiter kills the execution first."""
        ...


class Session(Protocol):
    """A sandbox that lives across several executions of one tenant, one at a time."""

    async def start(
        self,
        request: ExecutionRequest,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> RunningExecution:
        """Start a program. Raises :class:`InvalidRequest` while another runs."""
        ...

    async def run(
        self,
        request: ExecutionRequest,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> Execution:
        """Start a program and wait for its end."""
        ...

    async def write_file(self, path: str, content: bytes | AsyncIterable[bytes]) -> None:
        """Write a workspace file, making its folders. Raises :class:`FileRefused`."""
        ...

    def read_file(self, path: str) -> AsyncIterator[bytes]:
        """Read a workspace file in pieces. Raises :class:`FileRefused`."""
        ...

    async def list_files(self, path: str = "") -> list[WorkspaceEntry]:
        """List a folder of the workspace, sorted by name. Raises :class:`FileRefused`."""
        ...

    async def pause(self) -> None:
        """Stop all its processes until ``resume``. A paused session stays so.

        Its clock goes on: a program's ``wall_seconds`` count while it stands still. The end of
        that program, by its limit or by ``cancel``, ends the pause. Until then all else is refused
        with :class:`InvalidRequest` (``session``); so is a pause while files are under way.
        """
        ...

    async def resume(self) -> None:
        """Let its processes go on. Of a session that is not paused, nothing."""
        ...

    def save(self) -> AsyncIterator[bytes]:
        """The whole workspace, as bytes that only ``restore`` is to read.

        A program of the sandbox's own makes them, so none runs meanwhile (:class:`InvalidRequest`).
        Raises :class:`FileRefused` where not all of it could be read. An end before the last byte is
        an error that is raised, never a short copy.
        """
        ...

    async def restore(self, content: bytes | AsyncIterable[bytes]) -> None:
        """Put what ``save`` gave into the workspace; a file of the same name is replaced.

        Within the limits of this sandbox. Raises :class:`FileRefused` for what does not fit, or is
        no saved workspace: some of it may be there then.
        """
        ...

    async def close(self) -> None:
        """Destroy the sandbox; returns when nothing of it lives."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class ExecutionEnvironment(Protocol):
    """Runs programs that nobody reviewed.

    What a guest does never raises from ``run`` or ``wait``: it is an outcome. A request object
    that contradicts a rule raises :class:`InvalidRequest` when it is made. Where there is no
    sandbox there is no record: ``start`` and ``run`` then raise :class:`Unavailable`, or
    :class:`SandboxLost` for one that died while it was set up. A dedicated machine (tier ``vm``)
    boots after ``start`` has returned: what keeps it from coming up is raised by ``wait``.
    """

    async def start(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> RunningExecution:
        """Start a program in a fresh sandbox of its own. Raises :class:`Unavailable`."""
        ...

    async def run(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> Execution:
        """Start a program in a fresh sandbox of its own and wait for its end.

        Raises :class:`Unavailable`.
        """
        ...

    async def open_session(self, sandbox: SandboxRequest | None = None) -> Session:
        """Take a sandbox for several executions. Raises :class:`Unavailable`."""
        ...

    async def close(self) -> None:
        """Destroy every sandbox; returns when nothing of them lives."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
