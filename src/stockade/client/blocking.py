"""The port for code without an event loop.

One background thread runs the loop. A calling thread sleeps on a queue of its own until
there is output to hand over, or the end. ``on_output`` runs in the calling thread: it may
block (the guest is held back meanwhile), and what it raises reaches the caller.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from stockade.port import (
    EgressEvent,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    Program,
    PythonSource,
    SandboxRequest,
    Session,
    Stream,
    Unavailable,
    WorkspaceEntry,
)

T = TypeVar("T")
P = ParamSpec("P")

OpenEnvironment = Callable[[], AbstractAsyncContextManager[ExecutionEnvironment]]
PlainSink = Callable[[Stream, bytes], object]
PlainEgressSink = Callable[[EgressEvent], object]

_CLOSED = "the environment was closed"


class _Call(Generic[T]):
    """One coroutine, run by the loop's thread for a thread that sleeps until its end."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, make: Callable[["_Call[T]"], Awaitable[T]]
    ) -> None:
        self._loop = loop
        self._make = make
        self._task: asyncio.Task[T] | None = None
        self._abandoned = False
        # What to call in the waiting thread, and the future that acknowledges it; None is the end.
        self._news: SimpleQueue[tuple[Callable[[], object], asyncio.Future[None]] | None] = (
            SimpleQueue()
        )

    def wait(self) -> T:
        """Run it to its end. Whatever is raised meanwhile cancels it, and waits all the same."""
        try:
            self._tell_loop(self._begin)
            while (news := self._news.get()) is not None:
                callback, taken = news
                callback()
                self._tell_loop(partial(_acknowledge, taken))
        except BaseException:
            # KeyboardInterrupt above all. A second one breaks this wait: the cancellation
            # goes on in the background, and closing the environment waits for it.
            self._tell_loop(self._cancel)
            while (news := self._news.get()) is not None:
                # Unread from now on, or a guest that still writes would be waited for.
                self._tell_loop(partial(_acknowledge, news[1]))
            raise
        if self._task is None or not self._task.done() or self._task.cancelled():
            raise Unavailable(_CLOSED)
        return self._task.result()

    def to_waiting_thread(self, sink: Callable[P, object]) -> Callable[P, Awaitable[None]]:
        """A sink that calls this one in the waiting thread; it returns when that has taken it."""

        async def hand_over(*arguments: P.args, **named: P.kwargs) -> None:
            taken = self._loop.create_future()
            self._news.put((partial(sink, *arguments, **named), taken))
            await taken

        return hand_over

    def leave(self) -> None:
        """The loop has ended: let the waiting thread go."""
        self._news.put(None)

    def _tell_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed
            self._news.put(None)

    def _begin(self) -> None:
        if not self._abandoned:
            self._task = self._loop.create_task(self._run())
            self._task.add_done_callback(self._end)

    async def _run(self) -> T:
        return await self._make(self)

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # seen: an interrupted caller does not ask for it
        self._news.put(None)

    def _cancel(self) -> None:
        self._abandoned = True
        # Before the loop heard of the call, or after its end was seen, nothing else would come.
        if self._task is None or self._task.done():
            self._news.put(None)
        else:
            self._task.cancel()


def _acknowledge(taken: asyncio.Future[None]) -> None:
    if not taken.done():
        taken.set_result(None)


class _Background:
    """The calls that wait for one loop, so that none waits for a loop that has ended."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._calls: set[_Call[object]] = set()
        self._closed = False

    def call(
        self,
        make: Callable[[_Call[T]], Awaitable[T]],
    ) -> T:
        call = _Call[T](self.loop, make)
        with self._lock:
            if self._closed:
                raise Unavailable(_CLOSED)
            self._calls.add(call)  # type: ignore[arg-type]
        try:
            return call.wait()
        finally:
            with self._lock:
                self._calls.discard(call)

    def close(self) -> None:
        """After the loop's end: let go whoever still waits for it."""
        with self._lock:
            self._closed = True
            left = list(self._calls)
        for call in left:
            call.leave()


class BlockingEnvironment:
    """An execution environment for plain, synchronous code, used as a context manager::

        with BlockingEnvironment(open_local) as stockade:
            print(stockade.run("print(6 * 7)").stdout.text())

    ``open_environment`` makes the asynchronous environment; it is opened and closed in the
    background thread. Several threads may call ``run`` at once.
    """

    def __init__(self, open_environment: OpenEnvironment) -> None:
        self._open_environment = open_environment
        self._background: _Background | None = None
        self._thread: threading.Thread | None = None
        self._environment: ExecutionEnvironment | None = None
        self._main: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._leave_at_once = False
        self._failure: BaseException | None = None
        self._settled = threading.Event()

    def __enter__(self) -> Self:
        if self._background is not None:
            raise Unavailable("this environment was opened before; make a new one")
        self._background = _Background()
        self._thread = threading.Thread(
            target=self._serve, args=(self._background,), name="stockade", daemon=True
        )
        self._thread.start()
        try:
            self._settled.wait()
        except BaseException:
            self._stop(at_once=True)
            raise
        if self._environment is None:
            self._thread.join()
            raise self._failure or Unavailable(_CLOSED)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(at_once=False)
        if self._failure is not None:
            raise self._failure

    def run(
        self,
        program: str | Program | ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: bytes = b"",
        on_output: PlainSink | None = None,
        on_egress: PlainEgressSink | None = None,
    ) -> Execution:
        """Run a program in a fresh sandbox of its own and wait for its end.

        A ``str`` is Python source. An interrupt (Ctrl-C) kills the execution, waits until
        nothing of it lives, and is raised then.
        """
        environment, background = self._running()
        request = _request(program)

        def begin(call: _Call[Execution]) -> Awaitable[Execution]:
            return environment.run(
                request,
                sandbox,
                stdin=stdin,
                on_output=None if on_output is None else call.to_waiting_thread(on_output),
                on_egress=None if on_egress is None else call.to_waiting_thread(on_egress),
            )

        return background.call(begin)

    def open_session(self, sandbox: SandboxRequest | None = None) -> "BlockingSession":
        """Take a sandbox for several executions. Raises :class:`Unavailable`."""
        environment, background = self._running()
        session = background.call(lambda _: environment.open_session(sandbox))
        return BlockingSession(session, background)

    def call_tool(
        self,
        name: str,
        input: Any,  # noqa: A002 - the word of the API
        *,
        version: int | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """What a tool of the tenant's returns, of an environment that is a service.

        Raises :class:`~stockade.port.ToolFailed`, and :class:`Unavailable` where there are none.
        """
        environment, background = self._running()
        tools = getattr(environment, "tools", None)
        if tools is None:
            raise Unavailable("tools are kept by a service: open it with open_remote")

        def begin(_: _Call[Any]) -> Awaitable[Any]:
            called: Awaitable[Any] = tools.call(
                name, input, version=version, idempotency_key=idempotency_key
            )
            return called

        return background.call(begin)

    def __repr__(self) -> str:
        state = "new" if self._thread is None else "open" if self._environment else "closed"
        return f"<BlockingEnvironment {state}>"

    def _running(self) -> tuple[ExecutionEnvironment, _Background]:
        environment, background = self._environment, self._background
        if environment is None or background is None:
            raise Unavailable("the environment is not open: use it in a `with` statement")
        return environment, background

    def _serve(self, background: _Background) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: background.loop) as runner:
                runner.run(self._live())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._failure = error
        finally:
            self._environment = None
            background.close()
            self._settled.set()

    async def _live(self) -> None:
        """Open and close in one task, as an environment may need."""
        self._main = asyncio.current_task()
        if self._leave_at_once:
            return
        async with self._open_environment() as environment:
            self._environment = environment
            self._settled.set()
            await self._leave.wait()
            self._environment = None

    def _stop(self, *, at_once: bool) -> None:
        def leave() -> None:
            self._leave_at_once = at_once
            if at_once and self._main is not None:
                self._main.cancel()
            self._leave.set()

        assert self._background is not None
        assert self._thread is not None
        try:
            self._background.loop.call_soon_threadsafe(leave)
        except RuntimeError:
            pass  # the loop is closed: the thread is about to end
        self._thread.join()


class BlockingSession:
    """A sandbox that lives across several executions, one at a time."""

    def __init__(self, session: Session, background: _Background) -> None:
        self._session = session
        self._background = background

    def run(
        self,
        program: str | Program | ExecutionRequest,
        *,
        stdin: bytes = b"",
        on_output: PlainSink | None = None,
        on_egress: PlainEgressSink | None = None,
    ) -> Execution:
        """Run a program and wait for its end. A ``str`` is Python source."""
        request = _request(program)

        def begin(call: _Call[Execution]) -> Awaitable[Execution]:
            return self._session.run(
                request,
                stdin=stdin,
                on_output=None if on_output is None else call.to_waiting_thread(on_output),
                on_egress=None if on_egress is None else call.to_waiting_thread(on_egress),
            )

        return self._background.call(begin)

    def write_file(self, path: str, content: bytes) -> None:
        """Write a workspace file, making its folders. Raises :class:`FileRefused`."""
        self._background.call(lambda _: self._session.write_file(path, content))

    def read_file(self, path: str) -> bytes:
        """Read a whole workspace file. Raises :class:`FileRefused`."""

        async def read(_: _Call[bytes]) -> bytes:
            return b"".join([piece async for piece in self._session.read_file(path)])

        return self._background.call(read)

    def list_files(self, path: str = "") -> list[WorkspaceEntry]:
        """List a folder of the workspace, sorted by name. Raises :class:`FileRefused`."""
        return self._background.call(lambda _: self._session.list_files(path))

    def pause(self) -> None:
        """Stop all its processes until ``resume``; limits on time go on counting."""
        self._background.call(lambda _: self._session.pause())

    def resume(self) -> None:
        """Let its processes go on."""
        self._background.call(lambda _: self._session.resume())

    def save(self) -> bytes:
        """The whole workspace, as bytes for ``restore``. Raises :class:`FileRefused`."""

        async def save(_: _Call[bytes]) -> bytes:
            return b"".join([piece async for piece in self._session.save()])

        return self._background.call(save)

    def restore(self, content: bytes) -> None:
        """Put what ``save`` gave into the workspace. Raises :class:`FileRefused`."""
        self._background.call(lambda _: self._session.restore(content))

    def close(self) -> None:
        """Destroy the sandbox; returns when nothing of it lives."""
        try:
            self._background.call(lambda _: self._session.close())
        except Unavailable:
            pass  # the environment was closed, and its sessions with it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BlockingSession of {self._session!r}>"


def _request(program: str | Program | ExecutionRequest) -> ExecutionRequest:
    if isinstance(program, ExecutionRequest):
        return program
    if isinstance(program, str):
        return ExecutionRequest(PythonSource(program))
    return ExecutionRequest(program)
