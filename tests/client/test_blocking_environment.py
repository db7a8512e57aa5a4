"""Plain code gets the port without an event loop, from several threads, and Ctrl-C works."""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from stockade.client import BlockingEnvironment
from stockade.port import (
    Command,
    ExecutionRequest,
    FileRefused,
    Outcome,
    PythonSource,
    SandboxRequest,
    Stream,
    Unavailable,
    WorkspaceEntry,
)
from stockade.port.fake import Call, FakeEnvironment, Scripted, cat


def opening(fake: FakeEnvironment) -> Callable[[], FakeEnvironment]:
    return lambda: fake


def test_a_string_is_python_source() -> None:
    fake = FakeEnvironment([Scripted(stdout=b"42\n"), Scripted(), Scripted()])
    with BlockingEnvironment(opening(fake)) as blocking:
        assert blocking.run("print(42)").stdout.text() == "42\n"
        assert blocking.run(Command(("ls",))).ok
        sandbox = SandboxRequest(tenant="other")
        assert blocking.run(ExecutionRequest(PythonSource("")), sandbox).ok
        assert repr(blocking) == "<BlockingEnvironment open>"
    assert [call.request.program for call in fake.calls] == [
        PythonSource("print(42)"),
        Command(("ls",)),
        PythonSource(""),
    ]
    assert fake.calls[2].sandbox == sandbox
    assert fake.closed
    assert repr(blocking) == "<BlockingEnvironment closed>"


def test_output_is_handed_over_in_the_calling_thread() -> None:
    seen: list[tuple[Stream, bytes, int]] = []

    def sink(stream: Stream, data: bytes) -> None:
        seen.append((stream, data, threading.get_ident()))

    with BlockingEnvironment(opening(FakeEnvironment([cat]))) as blocking:
        blocking.run("", stdin=b"in", on_output=sink)
    assert seen == [(Stream.STDOUT, b"in", threading.get_ident())]


def test_an_error_of_the_sink_cancels_and_is_raised() -> None:
    async def chatter(call: Call) -> Scripted:
        while True:
            await call.write(Stream.STDOUT, b"y\n")

    def sink(stream: Stream, data: bytes) -> None:
        raise KeyError("mine")

    fake = FakeEnvironment([chatter])
    with BlockingEnvironment(opening(fake)) as blocking:
        with pytest.raises(KeyError, match="mine"):
            blocking.run("", on_output=sink)
        execution = fake.calls[0].execution
        assert execution is not None
        assert execution.outcome is Outcome.CANCELLED


@pytest.mark.parametrize("chatty", [False, True])
def test_an_interrupt_ends_the_execution_first(chatty: bool) -> None:
    async def program(call: Call) -> Scripted:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        while chatty:
            await call.write(Stream.STDOUT, b"y\n")
        return Scripted(delay=math.inf)

    fake = FakeEnvironment([program])
    with BlockingEnvironment(opening(fake)) as blocking:
        with pytest.raises(KeyboardInterrupt):
            blocking.run("", on_output=(lambda *_: None) if chatty else None)
        execution = fake.calls[0].execution
        assert execution is not None
        assert execution.outcome is Outcome.CANCELLED


def test_several_threads_run_at_once() -> None:
    outcomes: list[bool] = []

    def call(blocking: BlockingEnvironment) -> None:
        outcomes.append(blocking.run("").ok)

    with BlockingEnvironment(opening(FakeEnvironment([Scripted(delay=0.2)] * 20))) as blocking:
        began = time.monotonic()
        threads = [threading.Thread(target=call, args=(blocking,)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - began < 3.5  # one after the other they take 4
    assert outcomes == [True] * 20


def test_closing_lets_every_caller_go() -> None:
    ended: list[Outcome] = []
    started = threading.Barrier(3)

    async def last(call: Call) -> Scripted:
        return Scripted(delay=math.inf)

    def call(blocking: BlockingEnvironment) -> None:
        started.wait()
        with contextlib.suppress(Unavailable):  # where the closing was faster
            ended.append(blocking.run("").outcome)

    with BlockingEnvironment(opening(FakeEnvironment(last))) as blocking:
        threads = [threading.Thread(target=call, args=(blocking,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        started.wait()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert set(ended) <= {Outcome.CANCELLED}


def test_a_session_keeps_files() -> None:
    with BlockingEnvironment(opening(FakeEnvironment())) as blocking:
        with blocking.open_session() as session:
            session.write_file("a", b"1")
            assert session.read_file("a") == b"1"
            assert session.list_files() == [WorkspaceEntry("a", "file", 1)]
            assert session.run("").ok
            with pytest.raises(FileRefused):
                session.read_file("b")
        session.close()
        left_open = blocking.open_session()
    left_open.close()
    with pytest.raises(Unavailable):
        left_open.run("")


def test_it_is_used_as_a_context_manager_once() -> None:
    blocking = BlockingEnvironment(opening(FakeEnvironment()))
    assert repr(blocking) == "<BlockingEnvironment new>"
    with pytest.raises(Unavailable, match="with"):
        blocking.run("")
    with blocking:
        pass
    with pytest.raises(Unavailable, match=r"closed|not open"):
        blocking.run("")
    with pytest.raises(Unavailable, match="opened before"):
        blocking.__enter__()


def test_what_opening_raises_reaches_the_caller() -> None:
    def refuse() -> FakeEnvironment:
        raise Unavailable("no user namespaces")

    with pytest.raises(Unavailable, match="no user namespaces"), BlockingEnvironment(refuse):
        pass


def test_what_closing_raises_reaches_the_caller() -> None:
    @contextlib.asynccontextmanager
    async def leave_badly() -> AsyncIterator[FakeEnvironment]:
        yield FakeEnvironment()
        raise OSError("busy")

    with pytest.raises(OSError, match="busy"), BlockingEnvironment(leave_badly) as blocking:
        blocking.run("")


def test_an_interrupt_while_opening_leaves_no_thread() -> None:
    @contextlib.asynccontextmanager
    async def never() -> AsyncIterator[FakeEnvironment]:
        import asyncio

        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        await asyncio.sleep(60)
        yield FakeEnvironment()

    with pytest.raises(KeyboardInterrupt), BlockingEnvironment(never):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "stockade"]
