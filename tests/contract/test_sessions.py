"""Sessions: the workspace stays, the processes do not."""

import asyncio
import io
import os
import signal
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from stockade.port import (
    MIB,
    Enforcement,
    ExecutionEnvironment,
    FileRefused,
    InvalidRequest,
    Outcome,
    SandboxLost,
    SandboxRequest,
    Session,
    Stream,
    WorkspaceEntry,
)
from stockade.port.fake import Call, Scripted

from .fixtures import Port
from .kit import (
    Heard,
    Watch,
    command,
    enforced,
    explain,
    living,
    marker,
    shell,
    sleeper,
    small,
    soon,
    source,
    stdout_of,
    until_up,
    watched,
)
from .traits import Traits

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]


async def read(session: Session, path: str) -> bytes:
    return b"".join([piece async for piece in session.read_file(path)])


async def saved(session: Session) -> bytes:
    return b"".join([piece async for piece in session.save()])


def attempts(
    session: Session, path: str, *, programs: bool = False
) -> list[Callable[[], Awaitable[object]]]:
    """Everything that can be asked of a session."""
    files: list[Callable[[], Awaitable[object]]] = [
        lambda: session.write_file(path, b""),
        lambda: read(session, path),
    ]
    if not programs:
        return files
    return [
        *files,
        session.list_files,
        lambda: session.run(command("true")),
        lambda: session.start(command("true")),
        lambda: saved(session),
        lambda: session.restore(b""),
    ]


async def test_the_workspace_stays(port: Port) -> None:
    async def play(call: Call) -> Scripted:
        return Scripted(stdout=call.workspace.get("f", b""), artefacts={"f": b"kept\n"})

    async with await port(play).open_session() as session:
        assert stdout_of(await session.run(shell("cat f; echo kept > f"))) == "" or not port.fake
        assert stdout_of(await session.run(shell("cat f; echo kept > f"))) == "kept\n"


async def test_the_processes_do_not(real: ExecutionEnvironment) -> None:
    mark = marker()
    async with await real.open_session() as session:
        execution = await session.run(
            shell(
                f"setsid sleep {mark} & (trap '' TERM HUP INT; sleep {mark}) & nohup sleep {mark} & echo x"
            )
        )
        assert stdout_of(execution) == "x\n"
        assert living(mark) == []
        seen = await session.run(
            shell("cat /proc/[0-9]*/comm | grep -c sleep; [ $? = 1 ] && echo none")
        )
        assert stdout_of(seen) == "0\nnone\n"


async def test_nothing_of_the_interpreter_stays(real: ExecutionEnvironment) -> None:
    async with await real.open_session() as session:
        first = await session.run(
            source(
                "import os, sys, json; json.planted = x = 1; os.environ['A'] = '1'; os.chdir('/tmp')"
            )
        )
        assert first.ok
        second = await session.run(
            source(
                "import os, json; print(hasattr(json, 'planted'), 'A' in os.environ, os.getcwd(), 'x' in globals())"
            )
        )
        assert stdout_of(second) == "False False /workspace False\n"


async def test_each_execution_has_its_own_streams_and_record(port: Port) -> None:
    async def play(call: Call) -> Scripted:
        number = len(call.workspace)
        return Scripted(stdout=b"%d" % number, exit_code=number, artefacts={f"{number}": b""})

    async with await port(play).open_session() as session:
        for number in range(5):
            heard = Heard()
            execution = await session.run(shell(f"printf {number}; exit {number}"), on_output=heard)
            assert execution.exit_code == number
            assert execution.stdout.content == heard.of(Stream.STDOUT) == b"%d" % number


async def test_files_in_and_out(port: Port) -> None:
    async with await port().open_session() as session:
        for size in (0, 1, 65_536, 65_537, 3_000_000):
            data = os.urandom(size)
            await session.write_file("deep/er/f.bin", data)
            assert await read(session, "deep/er/f.bin") == data

        async def pieces() -> AsyncIterator[bytes]:
            for number in range(50):
                yield b"%d\n" % number
                await asyncio.sleep(0)

        await session.write_file("pieces", pieces())
        assert await read(session, "pieces") == b"".join(b"%d\n" % n for n in range(50))


async def test_a_shorter_file_replaces_a_longer_one_whole(port: Port) -> None:
    async with await port().open_session() as session:
        await session.write_file("f", b"x" * 100_000)
        await session.write_file("f", b"y")
        assert await read(session, "f") == b"y"


async def test_files_are_seen_by_programs_and_programs_files_by_us(
    real: ExecutionEnvironment,
) -> None:
    async with await real.open_session() as session:
        await session.write_file("in/a b", b"content")
        assert (
            stdout_of(await session.run(shell("cat 'in/a b'; echo more > out; chmod 600 out")))
            == "content"
        )
        assert await read(session, "out") == b"more\n"


async def test_files_while_a_program_runs(real: ExecutionEnvironment) -> None:
    async with await real.open_session() as session:
        heard = Heard()
        running = await session.start(
            # Not -e: a file is there before what is written to it.
            shell("echo up; while [ ! -s go ]; do sleep 0.01; done; cat go; printf z > made"),
            on_output=heard,
        )
        await heard.until(b"up\n")
        await session.write_file("go", b"went")
        execution = await running.wait()
        assert stdout_of(execution) == "up\nwent"
        assert await read(session, "made") == b"z"


async def test_listing(port: Port) -> None:
    async with await port().open_session() as session:
        assert await session.list_files() == []
        await session.write_file("b", b"22")
        await session.write_file("a/x", b"1")
        await session.write_file("a/y/z", b"")
        assert [(e.name, e.kind) for e in await session.list_files()] == [
            ("a", "folder"),
            ("b", "file"),
        ]
        assert (await session.list_files())[1] == WorkspaceEntry("b", "file", 2)
        inside = await session.list_files("a")
        assert [(e.name, e.kind) for e in inside] == [("x", "file"), ("y", "folder")]
        assert inside[0].size == 1


async def test_listing_a_large_folder(real: ExecutionEnvironment) -> None:
    """Complete, or refused; never a short list."""
    async with await real.open_session() as session:
        assert (await session.run(source("[open(f'{n:05}', 'w').close() for n in range(5000)]"))).ok
        names = [entry.name for entry in await session.list_files()]
        assert names == [f"{n:05}" for n in range(5000)]


async def test_listing_follows_nothing(real: ExecutionEnvironment) -> None:
    async with await real.open_session() as session:
        await session.run(shell("ln -s / root; ln -s nowhere broken; mkfifo fifo; mkdir d"))
        assert {(e.name, e.kind) for e in await session.list_files()} == {
            ("root", "link"),
            ("broken", "link"),
            ("fifo", "other"),
            ("d", "folder"),
        }
        for path in ("root", "root/etc"):
            with pytest.raises(FileRefused, match="link"):
                await session.list_files(path)


@pytest.mark.parametrize("path", ["nope", "nope/deeper", "f", "f/below"])
async def test_listing_what_is_no_folder(port: Port, path: str) -> None:
    async with await port().open_session() as session:
        await session.write_file("f", b"")
        with pytest.raises(FileRefused) as refused:
            await session.list_files(path)
        assert refused.value.path == path


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../b", "a//b", ".", "a\0b", "x" * 256]
)
async def test_paths_that_are_none(port: Port, path: str) -> None:
    async with await port().open_session() as session:
        for attempt in attempts(session, path):
            with pytest.raises((FileRefused, InvalidRequest)):
                await attempt()


@pytest.mark.parametrize("path", ["../x", "/etc", "a/../b"])
async def test_the_error_for_a_bad_path_is_the_documented_one(port: Port, path: str) -> None:
    """``FileRefused``, as the port says of all three."""
    async with await port().open_session() as session:
        for attempt in attempts(session, path):
            with pytest.raises(FileRefused):
                await attempt()
        with pytest.raises(FileRefused):
            await session.list_files(path)


@pytest.mark.parametrize(
    "name", ["日本語 ë.txt", "a%2Fb", "..x", ".hidden", "a?b", "-rf", "a\nb", "b\udcff"]
)
async def test_names_make_an_exact_round_trip(port: Port, name: str) -> None:
    async with await port().open_session() as session:
        await session.write_file(name, b"x")
        assert [entry.name for entry in await session.list_files()] == [name]
        assert await read(session, name) == b"x"


async def test_a_missing_file_is_refused(port: Port) -> None:
    async with await port().open_session() as session:
        with pytest.raises(FileRefused, match=r"(?i)no such file") as refused:
            await read(session, "nope")
        assert refused.value.path == "nope"
        await session.write_file("folder/f", b"")
        with pytest.raises(FileRefused, match="is a folder"):
            await read(session, "folder")
        with pytest.raises(FileRefused):
            await session.write_file("folder", b"")
        with pytest.raises(FileRefused):
            await session.write_file("folder/f/below", b"")


async def test_writing_through_what_a_program_planted(real: ExecutionEnvironment) -> None:
    async with await real.open_session() as session:
        await session.run(
            shell("ln -s /tmp/t link; ln -s /tmp dir; mkfifo fifo; echo 1 > a; ln a b")
        )
        for path in ("link", "dir/x", "fifo", "a"):
            with pytest.raises(FileRefused):
                await soon(session.write_file(path, b"planted"))
        assert stdout_of(await session.run(shell("ls /tmp; cat b"))) == "1\n"


async def test_a_file_beyond_the_disk_is_refused(port: Port) -> None:
    async with await port().open_session(small(disk_bytes=MIB)) as session:
        with pytest.raises(FileRefused) as refused:
            await session.write_file("big", b"x" * (2 * MIB))
        assert refused.value.path == "big"
        await session.write_file("small", b"x")
        assert await read(session, "small") == b"x"


async def test_abandoning_a_read_half_way(real: ExecutionEnvironment) -> None:
    async with await real.open_session() as session:
        await session.write_file("big", b"x" * 5_000_000)
        for _ in range(5):
            reading = session.read_file("big")
            assert await anext(reading)
            await reading.aclose()  # type: ignore[attr-defined]
        assert len(await read(session, "big")) == 5_000_000


async def test_many_reads_and_writes_at_once(real: ExecutionEnvironment) -> None:
    async with await real.open_session() as session:
        data = {f"f{n}": os.urandom(200_000 + n) for n in range(20)}
        await asyncio.gather(*(session.write_file(name, content) for name, content in data.items()))
        back = await asyncio.gather(*(read(session, name) for name in data))
        assert back == list(data.values())


async def test_one_program_at_a_time(port: Port) -> None:
    async with await port(Scripted(delay=60)).open_session() as session:
        running = await session.start(command("sleep", "60"))
        with pytest.raises(InvalidRequest) as refused:
            await session.start(command("true"))
        assert refused.value.field == "session"
        await running.cancel()
        assert (await soon(running.wait())).outcome is Outcome.CANCELLED


async def test_it_survives_a_cancelled_program(port: Port) -> None:
    plays = iter([Scripted(delay=60), Scripted(stdout=b"again\n")])

    async def play(call: Call) -> Scripted:
        return next(plays)

    async with await port(play).open_session() as session:
        running = await session.start(command("sleep", "60"))
        await asyncio.sleep(0.1)
        await running.cancel()
        assert (await soon(running.wait())).outcome is Outcome.CANCELLED
        assert stdout_of(await session.run(command("echo", "again"))) == "again\n"


@pytest.mark.parametrize(
    ("line", "limits", "outcome"),
    [
        ("echo kept > f; exec sleep 60", {"wall_seconds": 0.4}, Outcome.WALL_CLOCK),
        (
            "echo kept > f; trap '' TERM; while :; do :; done",
            {"wall_seconds": 0.4},
            Outcome.WALL_CLOCK,
        ),
        ("echo kept > f; exec yes", {"output_bytes": 10_000}, Outcome.OUTPUT),
        ("echo kept > f; kill -9 $$", {}, Outcome.SIGNAL),
        ("echo kept > f; exit 3", {}, Outcome.NONZERO_EXIT),
        ("echo kept > f; kill -9 0", {}, Outcome.SIGNAL),
    ],
)
async def test_it_survives(
    real: ExecutionEnvironment,
    traits: Traits,
    line: str,
    limits: dict[str, float],
    outcome: Outcome,
) -> None:
    if "wall_seconds" in limits:
        # The clock is the same for the next program, whose interpreter has yet to start.
        limits = limits | {"wall_seconds": limits["wall_seconds"] + traits.next_start_seconds}
    async with await real.open_session(small(**limits)) as session:
        execution = await session.run(shell(line))
        assert execution.outcome is outcome, explain(execution)
        assert stdout_of(await session.run(command("cat", "f"))) == "kept\n"


async def test_it_survives_the_memory_limit(real: ExecutionEnvironment, traits: Traits) -> None:
    async with await real.open_session(small(memory_bytes=64 * MIB, disk_bytes=MIB)) as session:
        await session.write_file("f", b"kept")
        execution = await session.run(source("x = bytearray(b'x') * 300_000_000"))
        if execution.enforcement["memory_bytes"] is Enforcement.ABSENT:
            # As the record says. gVisor keeps no RLIMIT_DATA: see test_outcomes.
            assert execution.ok, explain(execution)
            return
        if enforced(execution, "memory_bytes"):
            assert execution.outcome is Outcome.MEMORY, explain(execution)
        assert not execution.ok
        if traits.memory_holds_the_kernel:
            with pytest.raises(SandboxLost, match="open another"):
                await session.run(command("cat", "f"))
            return
        again = await session.run(command("cat", "f"))
        assert stdout_of(again) == "kept"


async def test_a_slow_sink_at_the_wall_clock_costs_no_session(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """The agent ended the program in time; that we were slow is not its fault."""

    async def sink(stream: Stream, data: bytes) -> None:
        await asyncio.sleep(0.9)

    seconds = 0.4 + traits.next_start_seconds
    async with await real.open_session(small(wall_seconds=seconds)) as session:
        execution = await session.run(shell("echo x; exec sleep 60"), on_output=sink)
        assert execution.outcome is Outcome.WALL_CLOCK, explain(execution)
        again = await session.run(command("echo", "again"))
        for _ in range(3):
            # A busy host, or an emulated machine that stood still, may take that long.
            if again.outcome is Outcome.WALL_CLOCK:
                again = await session.run(command("echo", "again"))
        assert stdout_of(again) == "again\n"


async def test_counters_start_anew_with_each_program(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    least = 0.5 if traits.clock_is_the_hosts else 0.1
    # The start of the next program's interpreter counts. Each takes less, and all take more.
    most = 2 + traits.next_start_seconds
    async with await real.open_session(small(cpu_seconds=most, wall_seconds=30)) as session:
        # From where it begins: what it took to start the interpreter is the process's, too.
        burn = source(
            "import time\nb = time.process_time()\n"
            f"while time.process_time() - b < {0.3 * most}: pass"
        )
        for _ in range(4):
            execution = await session.run(burn)
            assert execution.ok, explain(execution)
            assert execution.usage.cpu_seconds is not None
            assert least < execution.usage.cpu_seconds < most
        refused = await session.run(command("no-such-program"))
        assert refused.outcome is Outcome.INVALID
        assert (await session.run(command("true"))).ok


async def test_the_limits_are_per_execution(real: ExecutionEnvironment) -> None:
    async with await real.open_session(small(output_bytes=1000)) as session:
        for _ in range(3):
            assert (await session.run(source("print('x' * 999)"))).ok
        assert (await session.run(source("print('x' * 1000)"))).outcome is Outcome.OUTPUT


async def test_many_programs_in_one_session(real: ExecutionEnvironment, traits: Traits) -> None:
    async with await real.open_session() as session:
        for number in range(traits.rounds(100)):
            execution = await session.run(source(f"print({number})"))
            assert stdout_of(execution) == f"{number}\n"


async def test_a_closed_session_refuses_everything(port: Port) -> None:
    session = await port().open_session()
    await session.write_file("f", b"")
    await session.close()
    await session.close()
    for attempt in attempts(session, "f", programs=True):
        with pytest.raises(SandboxLost):
            await attempt()


async def test_closing_ends_what_runs(port: Port) -> None:
    session = await port(Scripted(delay=60)).open_session()
    running = await session.start(command("sleep", "60"))
    waiting = asyncio.ensure_future(running.wait())
    await asyncio.sleep(0.05)
    await soon(session.close())
    assert (await soon(waiting)).outcome is Outcome.CANCELLED


async def test_closing_leaves_nothing_alive(real: ExecutionEnvironment, traits: Traits) -> None:
    mark, heard = marker(), Heard()
    session = await real.open_session()
    line = f"setsid sh -c 'echo up; exec sleep {mark}' & echo up; exec sleep {mark}"
    running = await session.start(shell(line), on_output=heard)
    await until_up(heard, mark, traits, 2)
    watch = await watched(running)
    await soon(session.close())
    assert living(mark) == watch.living() == []
    assert (await running.wait()).outcome is Outcome.CANCELLED


async def test_a_session_whose_sandbox_died_says_so(real: ExecutionEnvironment) -> None:
    heard = Heard()
    async with await real.open_session() as session:
        running = await session.start(sleeper(marker()), on_output=heard)
        await heard.until(b"up\n")
        os.kill((await watched(running)).init, signal.SIGKILL)
        execution = await soon(running.wait())
        assert execution.outcome is Outcome.LOST, explain(execution)
        for attempt in attempts(session, "f", programs=True):
            with pytest.raises(SandboxLost):
                await soon(attempt())


async def test_an_agent_that_stands_still_is_noticed(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """Every wait has a bound: files of a stopped sandbox end with an error."""
    mark, heard = marker(), Heard()
    seconds = traits.seconds(1)
    async with await real.open_session(small(wall_seconds=seconds)) as session:
        running = await session.start(sleeper(mark), on_output=heard)
        await heard.until(b"up\n")
        watch = await watched(running)
        watch.stand_still()
        execution = await soon(running.wait(), seconds + 4)
        assert execution.outcome in (Outcome.WALL_CLOCK, Outcome.LOST), explain(execution)
        assert living(mark) == watch.living() == []
        with pytest.raises(SandboxLost):
            await soon(session.list_files())


async def test_an_idle_agent_that_stands_still_is_noticed(
    real: ExecutionEnvironment, traits: Traits, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    async with await real.open_session(small(wall_seconds=traits.seconds(1))) as session:
        running = await session.start(sleeper(marker()), on_output=heard)
        await heard.until(b"up\n")
        await running.cancel()
        assert (await soon(running.wait())).outcome is Outcome.CANCELLED
        Watch(session).stand_still()
        monkeypatch.setattr("stockade.executor.files.PATIENCE_SECONDS", 1.0)
        with pytest.raises(SandboxLost):
            await soon(session.list_files(), 15)


async def test_two_sessions_beside_each_other(real: ExecutionEnvironment) -> None:
    one = await real.open_session(SandboxRequest(tenant="one"))
    async with await real.open_session(SandboxRequest(tenant="two")) as two:
        await one.write_file("f", b"1")
        await two.write_file("f", b"2")
        assert stdout_of(await one.run(command("cat", "f"))) == "1"
        await one.close()
        assert stdout_of(await two.run(command("cat", "f"))) == "2"


TICK = """
import time
while True:
    print('.', end='', flush=True)
    time.sleep(0.02)
"""


async def tick(call: Call) -> Scripted:
    while True:
        await call.write(Stream.STDOUT, b".")
        await asyncio.sleep(0.02)


async def grown(heard: Heard, seconds: float = 0.5) -> int:
    before = len(heard.of(Stream.STDOUT))
    await asyncio.sleep(seconds)
    return len(heard.of(Stream.STDOUT)) - before


async def test_a_paused_program_stands_still_and_goes_on(port: Port) -> None:
    heard = Heard()
    async with await port(tick).open_session() as session:
        running = await session.start(source(TICK), on_output=heard)
        await heard.until(b"...")
        for _ in range(2):
            await session.pause()
            await session.pause()
            await asyncio.sleep(0.3)
            assert await grown(heard) == 0
            await session.resume()
            await session.resume()
            now = len(heard.of(Stream.STDOUT))
            await heard.until(b"." * (now + 3))
        await running.cancel()
        assert (await soon(running.wait())).outcome is Outcome.CANCELLED


async def test_all_its_processes_stand_still(real: ExecutionEnvironment) -> None:
    """Also those that left the program's process group, and those that forked just then."""
    heard = Heard()
    # They fork all the time, and not so fast that a busy agent's unreaped ones fill the memory.
    line = "while :; do (echo x); sleep 0.01; done"
    async with await real.open_session(small(output_bytes=10**9)) as session:
        running = await session.start(
            shell(f"setsid sh -c '{line}' & setsid sh -c '{line}' & {line}"), on_output=heard
        )
        await heard.until(b"x\n" * 20)
        await session.pause()
        await asyncio.sleep(1)
        assert await grown(heard) == 0
        await session.resume()
        assert await grown(heard, 1) > 0
        await running.cancel()
        assert (await soon(running.wait())).outcome is Outcome.CANCELLED


async def test_a_program_is_paused_before_it_has_begun(port: Port) -> None:
    heard = Heard()
    async with await port(tick).open_session() as session:
        for _ in range(3):
            heard = Heard()
            running = await session.start(source(TICK), on_output=heard)
            await session.pause()
            await asyncio.sleep(0.3)
            assert await grown(heard) == 0
            await session.resume()
            await heard.until(b"...")
            await running.cancel()
            assert (await soon(running.wait())).outcome is Outcome.CANCELLED


async def test_a_program_that_is_cancelled_while_it_is_paused(port: Port) -> None:
    """Both at once: whichever comes first, the session works on."""
    async with await port(Scripted(delay=60)).open_session() as session:
        for _ in range(5):
            running = await session.start(command("sleep", "60"))
            pausing = asyncio.ensure_future(session.pause())
            await asyncio.sleep(0)
            await running.cancel()
            await pausing
            assert (await soon(running.wait())).outcome is Outcome.CANCELLED
            await session.resume()
        if not port.fake:
            assert (await soon(session.run(command("true")))).ok


async def test_the_last_word_counts(port: Port) -> None:
    heard = Heard()
    async with await port(tick).open_session() as session:
        running = await session.start(source(TICK), on_output=heard)
        await heard.until(b"...")
        for _ in range(5):
            await session.pause()
            await session.resume()
        await session.pause()
        await asyncio.sleep(0.2)
        assert await grown(heard) == 0
        for _ in range(5):
            await session.resume()
            await session.pause()
        await session.resume()
        await heard.until(b"." * (len(heard.of(Stream.STDOUT)) + 3))
        await running.cancel()
        assert (await soon(running.wait())).outcome is Outcome.CANCELLED


async def test_a_paused_session_refuses_all_else(port: Port) -> None:
    async with await port().open_session() as session:
        await session.write_file("f", b"1")
        await session.pause()
        for attempt in attempts(session, "f", programs=True):
            with pytest.raises(InvalidRequest, match="paused") as refused:
                await soon(attempt())
            assert refused.value.field == "session"
        await session.resume()
        assert await read(session, "f") == b"1"
        assert (await session.run(command("true"))).ok


async def test_it_may_be_paused_before_and_between_programs(port: Port) -> None:
    async with await port(Scripted(stdout=b"up\n")).open_session() as session:
        for _ in range(2):
            await session.pause()
            await asyncio.sleep(0.2)
            await session.resume()
            assert stdout_of(await session.run(shell("echo up"))) == "up\n"


async def test_a_paused_program_is_cancelled_and_the_session_lives(port: Port) -> None:
    plays = iter([Scripted(delay=60), Scripted(stdout=b"again\n")])

    async def play(call: Call) -> Scripted:
        return next(plays)

    async with await port(play).open_session() as session:
        running = await session.start(command("sleep", "60"))
        await asyncio.sleep(0.2)
        await session.pause()
        await asyncio.sleep(0.2)
        await running.cancel()
        assert (await soon(running.wait())).outcome is Outcome.CANCELLED
        assert stdout_of(await session.run(command("echo", "again"))) == "again\n"


async def test_the_wall_clock_goes_on_while_paused(port: Port, traits: Traits) -> None:
    """A pause is no way to outlive the limit."""
    plays = iter([Scripted(delay=60), Scripted(stdout=b"again\n")])

    async def play(call: Call) -> Scripted:
        return next(plays)

    seconds = traits.seconds(1) + traits.next_start_seconds
    async with await port(play).open_session(small(wall_seconds=seconds)) as session:
        running = await session.start(command("sleep", "60"))
        await asyncio.sleep(0.2)
        await session.pause()
        execution = await soon(running.wait(), seconds + 4)
        assert execution.outcome is Outcome.WALL_CLOCK, explain(execution)
        assert stdout_of(await session.run(command("echo", "again"))) == "again\n"


async def test_a_paused_session_is_closed(port: Port) -> None:
    session = await port(Scripted(delay=60)).open_session()
    running = await session.start(command("sleep", "60"))
    await asyncio.sleep(0.2)
    await session.pause()
    await soon(session.close())
    assert (await running.wait()).outcome is Outcome.CANCELLED
    for attempt in (session.pause, session.resume):
        with pytest.raises(SandboxLost):
            await attempt()


async def test_a_workspace_is_saved_and_restored(port: Port) -> None:
    environment = port()
    data = os.urandom(3_000_000)
    async with await environment.open_session() as first:
        await first.write_file("deep/er/f.bin", data)
        await first.write_file("日本語 ë.txt", b"x")
        await first.write_file("b\udcff", b"y")
        content = await saved(first)
        assert await saved(first), "it is still there"
    async with await environment.open_session() as second:
        await second.write_file("b\udcff", b"another")

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(content), 100_000):
                yield content[start : start + 100_000]

        await second.restore(pieces())
        assert await read(second, "deep/er/f.bin") == data
        assert await read(second, "日本語 ë.txt") == b"x"
        assert await read(second, "b\udcff") == b"y"
        await second.restore(content)


async def test_what_a_program_made_is_saved_as_it_is(real: ExecutionEnvironment) -> None:
    async with await real.open_session() as first:
        made = await first.run(
            shell(
                "mkdir -p d/e; echo 1 > d/e/f; chmod 500 d/e d; ln -s /etc/passwd l; ln d/e/f h; "
                "mkfifo p; truncate -s 20M hole; chmod 700 h; touch $(seq -f n%g 500); "
                "stat -c %b hole"
            )
        )
        content = await saved(first)
        # gVisor counts a hole as if it were there.
        knows_holes = stdout_of(made) == "0\n"
        assert (len(content) < 2 * MIB) == knows_holes
    async with await real.open_session() as second:
        await second.restore(content)
        seen = await second.run(
            shell("stat -c '%a %F' d d/e l p; stat -c '%s' hole; cat h; ls | wc -l")
        )
        assert stdout_of(seen).splitlines() == [
            *("500 directory", "500 directory", "777 symbolic link", "644 fifo"),
            *("20971520", "1", "505"),
        ]


async def test_a_workspace_that_cannot_be_read_is_not_saved_in_part(
    real: ExecutionEnvironment,
) -> None:
    async with await real.open_session() as session:
        await session.run(shell("echo 1 > f; echo 2 > g; chmod 0 g"))
        with pytest.raises(FileRefused, match=r"cannot be saved.*g: Cannot open"):
            await soon(saved(session))
        assert stdout_of(await session.run(command("cat", "f"))) == "1\n"


@pytest.mark.parametrize("content", [b"", b"x" * 100_000])
async def test_what_is_no_workspace_is_refused(port: Port, content: bytes) -> None:
    async with await port().open_session() as session:
        with pytest.raises(FileRefused):
            await soon(session.restore(content), 15)
        assert (await session.run(command("true"))).ok


async def test_a_saved_workspace_that_was_cut_is_refused(port: Port) -> None:
    async with await port().open_session() as session:
        await session.write_file("f", os.urandom(200_000))
        content = await saved(session)
        with pytest.raises(FileRefused):
            await soon(session.restore(content[:150_000]))


async def test_a_restore_stays_within_the_disk(port: Port) -> None:
    environment = port()
    async with await environment.open_session() as first:
        await first.write_file("f", os.urandom(2 * MIB))
        content = await saved(first)
    async with await environment.open_session(small(disk_bytes=MIB)) as second:
        with pytest.raises(FileRefused):
            await soon(second.restore(content), 15)
        assert (await second.run(command("true"))).ok


async def test_a_hostile_archive_stays_in_its_sandbox(real: ExecutionEnvironment) -> None:
    """Whatever is in it, what unpacks it has the guest's rights."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("../../escaped", "/tmp/absolute", "ok"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/tmp"
        archive.addfile(link)
    async with await real.open_session() as session:
        with pytest.raises(FileRefused):
            await session.restore(buffer.getvalue())
        assert not os.path.lexists("/tmp/absolute")
        assert not os.path.lexists("/escaped")
        assert (await session.run(command("true"))).ok


async def test_a_save_that_is_abandoned_ends(real: ExecutionEnvironment) -> None:
    async with await real.open_session() as session:
        await session.write_file("f", os.urandom(5_000_000))
        saving = session.save()
        assert await anext(saving)
        with pytest.raises(InvalidRequest):
            await session.run(command("true"))
        await saving.aclose()  # type: ignore[attr-defined]
        assert (await session.run(command("true"))).ok
        assert len(await saved(session)) > 5_000_000
