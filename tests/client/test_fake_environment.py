"""The fake plays its script, and keeps the port's promises while doing so."""

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator

import pytest

from stockade.port import (
    Artefact,
    Captured,
    Command,
    ExecutionEnvironment,
    ExecutionRequest,
    FileRefused,
    InvalidRequest,
    LimitHit,
    Limits,
    MissingArtefact,
    Outcome,
    PythonScript,
    PythonSource,
    SandboxLost,
    SandboxRequest,
    Stream,
    TerminalSize,
    Unavailable,
    WorkspaceEntry,
)
from stockade.port.fake import Call, FakeEnvironment, Scripted, cat

REQUEST = ExecutionRequest(PythonSource("print(1)"))


def small(**ceilings: float) -> SandboxRequest:
    return SandboxRequest(limits=Limits(**ceilings))  # type: ignore[arg-type]


async def test_it_is_an_execution_environment() -> None:
    environment: ExecutionEnvironment = FakeEnvironment()
    async with environment:
        assert (await environment.run(REQUEST)).ok


async def test_each_execution_takes_the_next_entry() -> None:
    async with FakeEnvironment([Scripted(stdout=b"a", stderr=b"b"), Scripted(exit_code=3)]) as fake:
        first = await fake.run(REQUEST)
        assert (first.outcome, first.exit_code) == (Outcome.OK, 0)
        assert (first.stdout.content, first.stderr.content) == (b"a", b"b")
        second = await fake.run(REQUEST)
        assert (second.outcome, second.exit_code) == (Outcome.NONZERO_EXIT, 3)
        with pytest.raises(LookupError, match="execution 3 was not scripted"):
            await fake.run(REQUEST)
    assert [call.execution for call in fake.calls] == [first, second]


async def test_a_callable_is_asked_for_each_call() -> None:
    async def by_program(call: Call) -> Scripted:
        assert isinstance(call.request.program, Command)
        return Scripted(result=call.request.program.argv[0].encode())

    async with FakeEnvironment(by_program) as fake:
        assert (await fake.run(ExecutionRequest(Command(("node",))))).result == b"node"
        assert repr(fake) == "<FakeEnvironment open: 0 running, 1 calls>"
    assert repr(fake.calls) == "[<Call Command: ok>]"


async def test_output_goes_to_the_sink_in_pieces() -> None:
    async def speak(call: Call) -> Scripted:
        await call.write(Stream.STDOUT, b"1")
        await call.write(Stream.STDERR, b"2")
        return Scripted(stdout=b"3")

    seen: list[tuple[Stream, bytes]] = []

    async def sink(stream: Stream, data: bytes) -> None:
        seen.append((stream, data))

    async with FakeEnvironment([speak, speak]) as fake:
        await fake.run(REQUEST, on_output=sink)
        assert seen == [(Stream.STDOUT, b"1"), (Stream.STDERR, b"2"), (Stream.STDOUT, b"3")]
        seen.clear()
        on_terminal = ExecutionRequest(PythonSource(""), terminal=TerminalSize(24, 80))
        assert (await fake.run(on_terminal, on_output=sink)).stdout.content == b"123"
        assert {stream for stream, _ in seen} == {Stream.STDOUT}


async def test_an_error_of_the_sink_reaches_the_waiter() -> None:
    async def sink(stream: Stream, data: bytes) -> None:
        raise ConnectionError("gone")

    async with FakeEnvironment([Scripted(stdout=b"x")]) as fake:
        with pytest.raises(ConnectionError, match="gone"):
            await fake.run(REQUEST, on_output=sink)


async def test_standard_input_comes_in_pieces() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"a\n"
        yield b"b"

    async with FakeEnvironment([cat, cat]) as fake:
        assert (await fake.run(REQUEST, stdin=pieces())).stdout.content == b"a\nb"
        assert (await fake.run(REQUEST, stdin=b"\0\xff")).stdout.content == b"\0\xff"


async def test_limits_of_time_and_output_are_kept() -> None:
    async with FakeEnvironment([Scripted(delay=math.inf), Scripted(stdout=b"x" * 11)]) as fake:
        late = await fake.run(REQUEST, small(wall_seconds=0.05))
        assert late.outcome is Outcome.WALL_CLOCK
        assert late.limit == LimitHit("wall_seconds", 0.05, None)
        loud = await fake.run(REQUEST, small(output_bytes=10))
        assert (loud.outcome, loud.stdout.total) == (Outcome.OUTPUT, 10)


async def test_a_long_stream_keeps_head_and_tail() -> None:
    async with FakeEnvironment([Scripted(stdout=b"abcdefgh")]) as fake:
        execution = await fake.run(REQUEST, small(record_bytes=5))
        assert execution.stdout == Captured(b"ab", b"fgh", 8)


async def test_signals_end_it_unless_harmless() -> None:
    async with FakeEnvironment([Scripted(delay=math.inf)]) as fake:
        running = await fake.start(REQUEST)
        await running.signal(28)
        await running.resize(TerminalSize(1, 2))
        await running.signal(15)
        execution = await running.wait()
        assert (execution.outcome, execution.signal) == (Outcome.SIGNAL, 15)
        assert (fake.calls[0].signals, fake.calls[0].sizes) == ([28, 15], [TerminalSize(1, 2)])


async def test_cancel_ends_it_and_the_record_says_so() -> None:
    async with FakeEnvironment([Scripted(delay=math.inf)]) as fake:
        running = await fake.start(REQUEST)
        await running.cancel()
        assert (await running.wait()).outcome is Outcome.CANCELLED
        await running.cancel()
        assert (await running.wait()).outcome is Outcome.CANCELLED


async def test_cancelling_the_waiter_ends_the_execution_first() -> None:
    async with FakeEnvironment([Scripted(delay=math.inf)]) as fake:
        waiter = asyncio.create_task(fake.run(REQUEST))
        await asyncio.sleep(0.01)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        execution = fake.calls[0].execution
        assert execution is not None
        assert execution.outcome is Outcome.CANCELLED


async def test_artefacts_come_from_the_workspace() -> None:
    request = ExecutionRequest(
        PythonScript("p.py", b"1"), files={"in": b"i"}, artefacts=("out", "in", "p.py", "absent")
    )
    async with FakeEnvironment([Scripted(artefacts={"out": b"o"})]) as fake:
        execution = await fake.run(request)
    digest = "sha256:" + hashlib.sha256(b"o").hexdigest()
    assert execution.artefacts[0] == Artefact("out", b"o", digest)
    assert [artefact.data for artefact in execution.artefacts] == [b"o", b"i", b"1"]
    assert execution.missing_artefacts == (MissingArtefact("absent", "no such file"),)


async def test_a_session_keeps_its_workspace() -> None:
    async with FakeEnvironment() as fake, await fake.open_session() as session:
        await session.write_file("a/b", b"1" * 70_000)
        await session.write_file("c", b"2")
        assert b"".join([piece async for piece in session.read_file("a/b")]) == b"1" * 70_000
        assert await session.list_files() == [
            WorkspaceEntry("a", "folder", 0),
            WorkspaceEntry("c", "file", 1),
        ]
        assert await session.list_files("a") == [WorkspaceEntry("b", "file", 70_000)]
        execution = await session.run(ExecutionRequest(Command(("ls",)), artefacts=("c",)))
        assert execution.artefacts[0].data == b"2"
        assert repr(session) == "<FakeSession local: idle, 2 files>"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../x", "not a plain path"),
        ("/x", "not a plain path"),
        ("file/x", "'file' is not a folder"),
        ("folder", "is a folder"),
        ("big", "exceeds limits.disk_bytes"),
    ],
)
async def test_a_session_refuses_to_write(path: str, reason: str) -> None:
    sandbox = small(disk_bytes=65_536)
    async with FakeEnvironment() as fake, await fake.open_session(sandbox) as session:
        await session.write_file("file", b"")
        await session.write_file("folder/x", b"")
        with pytest.raises(FileRefused, match=reason):
            await session.write_file(path, b"x" * 70_000 if path == "big" else b"x")


async def test_a_session_refuses_to_read_what_is_not_there() -> None:
    async with FakeEnvironment() as fake, await fake.open_session() as session:
        await session.write_file("folder/x", b"")
        for path, reason in (("no", "no such file"), ("folder", "is a folder")):
            with pytest.raises(FileRefused, match=reason):
                [piece async for piece in session.read_file(path)]
        for path, reason in (("no", "no such folder"), ("folder/x", "is not a folder")):
            with pytest.raises(FileRefused, match=reason):
                await session.list_files(path)


async def test_a_session_runs_one_at_a_time() -> None:
    async with FakeEnvironment([Scripted(delay=math.inf)]) as fake:
        session = await fake.open_session()
        running = await session.start(REQUEST)
        with pytest.raises(InvalidRequest, match="still runs"):
            await session.start(REQUEST)
        await session.close()
        assert (await running.wait()).outcome is Outcome.CANCELLED
        with pytest.raises(SandboxLost):
            await session.start(REQUEST)


async def test_closing_ends_everything_and_nothing_starts_after() -> None:
    fake = FakeEnvironment([Scripted(delay=math.inf)])
    running = await fake.start(REQUEST)
    await fake.close()
    assert (await running.wait()).outcome is Outcome.CANCELLED
    with pytest.raises(Unavailable):
        await fake.run(REQUEST)
    with pytest.raises(Unavailable):
        await fake.open_session()
    assert repr(fake) == "<FakeEnvironment closed: 0 running, 1 calls>"
