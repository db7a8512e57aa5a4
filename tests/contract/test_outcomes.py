"""Every outcome that an execution can have, with the limit that explains it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from stockade.port import (
    KIB,
    MIB,
    Enforcement,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    Outcome,
    SandboxRequest,
)
from stockade.port.fake import Scripted

from .fixtures import Port
from .kit import (
    command,
    enforced,
    explain,
    living,
    marker,
    shell,
    small,
    soon,
    source,
    started,
    stdout_of,
    watched,
)
from .traits import Traits

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]


def assert_limit(execution: Execution, outcome: Outcome, name: str, ceiling: float) -> None:
    assert execution.outcome is outcome, explain(execution)
    assert execution.limit is not None
    assert (execution.limit.name, execution.limit.ceiling) == (name, ceiling)
    assert "limit" in execution.detail


# --- the program's own end ---


@pytest.mark.parametrize("code", [1, 2, 42, 126, 127, 128, 137, 143, 255])
@pytest.mark.parametrize("kind", ["warm", "fresh", "command"])
async def test_exit_codes(real: ExecutionEnvironment, code: int, kind: str) -> None:
    request = (
        shell(f"exit {code}")
        if kind == "command"
        else source(f"raise SystemExit({code})", fresh=kind == "fresh")
    )
    execution = await real.run(request)
    assert (execution.outcome, execution.exit_code, execution.signal) == (
        Outcome.NONZERO_EXIT,
        code,
        None,
    ), explain(execution)
    assert str(code) in execution.detail
    assert execution.limit is None


@pytest.mark.parametrize(
    "number", ["SIGHUP", "SIGINT", "SIGABRT", "SIGKILL", "SIGUSR1", "SIGSEGV", "SIGTERM", "SIGBUS"]
)
async def test_death_by_a_signal_of_its_own(real: ExecutionEnvironment, number: str) -> None:
    value = signal.Signals[number].value
    for request in (
        shell(f"kill -{value} $$"),
        source(
            f"import os, signal; signal.signal({value}, 0) if {value} == 2 else 0; os.kill(os.getpid(), {value})"
        ),
    ):
        execution = await real.run(request)
        assert (execution.outcome, execution.signal, execution.exit_code) == (
            Outcome.SIGNAL,
            value,
            None,
        ), explain(execution)
        assert number in execution.detail or number == "SIGUSR1"


async def test_a_limits_signal_sent_by_the_program_itself_is_no_limit(
    real: ExecutionEnvironment,
) -> None:
    execution = await real.run(shell("kill -XCPU $$"))
    assert (execution.outcome, execution.signal) == (
        Outcome.SIGNAL,
        signal.SIGXCPU,
    ), explain(execution)


async def test_a_crash_of_the_interpreter(real: ExecutionEnvironment) -> None:
    execution = await real.run(source("import ctypes; ctypes.string_at(0)"))
    assert (execution.outcome, execution.signal) == (Outcome.SIGNAL, signal.SIGSEGV)


async def test_a_failing_program_with_scripted_code(port: Port) -> None:
    execution = await port(Scripted(exit_code=7, stderr=b"bad\n")).run(
        shell("echo bad >&2; exit 7")
    )
    assert (execution.outcome, execution.exit_code) == (Outcome.NONZERO_EXIT, 7)
    assert execution.stderr.content == b"bad\n"
    assert not execution.ok


# --- time ---


@pytest.mark.parametrize(
    "text",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import signal, time\nfor n in set(signal.valid_signals()) - {9, 19}: signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "input()",
    ],
)
async def test_wall_clock(real: ExecutionEnvironment, text: str) -> None:
    async def silence() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield b""

    execution = await real.run(source(text), small(wall_seconds=0.3), stdin=silence())
    assert_limit(execution, Outcome.WALL_CLOCK, "wall_seconds", 0.3)
    assert 0.3 <= execution.usage.wall_seconds < 3
    assert execution.limit is not None
    assert execution.limit.used is not None
    assert execution.limit.used >= 0.3


async def test_wall_clock_of_a_scripted_program(port: Port, traits: Traits) -> None:
    execution = await port(Scripted(delay=60, stdout=b"partial")).run(
        shell("printf partial; exec sleep 60"), small(wall_seconds=traits.seconds(0.3))
    )
    assert execution.outcome is Outcome.WALL_CLOCK
    assert execution.stdout.content == b"partial"
    assert execution.limit is not None
    assert execution.limit.name == "wall_seconds"


async def test_cpu_time(real: ExecutionEnvironment) -> None:
    execution = await real.run(source("while True: pass"), small(cpu_seconds=0.3, wall_seconds=20))
    assert_limit(execution, Outcome.CPU_TIME, "cpu_seconds", 0.3)
    assert execution.usage.cpu_seconds is not None
    assert execution.usage.cpu_seconds >= 0.3


async def test_cpu_time_of_several_processes_together(real: ExecutionEnvironment) -> None:
    text = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    execution = await real.run(source(text), small(cpu_seconds=0.6, wall_seconds=4))
    if enforced(execution, "cpu_seconds"):
        assert_limit(execution, Outcome.CPU_TIME, "cpu_seconds", 0.6)
    else:
        assert execution.outcome in (Outcome.CPU_TIME, Outcome.WALL_CLOCK)


async def test_sleeping_costs_no_cpu_time(real: ExecutionEnvironment, traits: Traits) -> None:
    execution = await real.run(
        command("sleep", str(traits.seconds(0.4))), small(cpu_seconds=traits.seconds(0.3))
    )
    assert execution.ok, explain(execution)


# --- memory ---


async def test_memory_in_one_process(real: ExecutionEnvironment) -> None:
    execution = await real.run(
        source("x = bytearray(300_000_000)\nprint('had it')"),
        small(memory_bytes=64 * MIB, disk_bytes=MIB),
    )
    if execution.enforcement["memory_bytes"] is Enforcement.ABSENT:
        # As the record says. gVisor keeps no RLIMIT_DATA, so a plain user's has no ceiling at all.
        assert stdout_of(execution) == "had it\n"
        return
    assert execution.stdout.content == b""
    if enforced(execution, "memory_bytes"):
        assert_limit(execution, Outcome.MEMORY, "memory_bytes", 64 * MIB)
    else:
        assert execution.outcome in (Outcome.MEMORY, Outcome.NONZERO_EXIT)
        assert b"MemoryError" in execution.stderr.content


async def test_memory_in_several_processes(real: ExecutionEnvironment, traits: Traits) -> None:
    """No process exceeds the ceiling; together they do."""
    text = (
        "import os, time\n"
        "for _ in range(5):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(b'x') * 40_000_000\n"
        "        time.sleep(30)\n"
        "        os._exit(0)\n"
        "for _ in range(5): os.wait()\n"
    )
    execution = await real.run(
        source(text),
        small(memory_bytes=100 * MIB, disk_bytes=MIB, wall_seconds=traits.seconds(3)),
    )
    if enforced(execution, "memory_bytes"):
        assert_limit(execution, Outcome.MEMORY, "memory_bytes", 100 * MIB)
        assert execution.usage.peak_memory_bytes is not None
        assert execution.usage.peak_memory_bytes > 90 * MIB
    else:
        assert execution.outcome is Outcome.WALL_CLOCK


async def test_the_workspace_counts_as_memory(real: ExecutionEnvironment) -> None:
    execution = await real.run(
        shell("head -c 60M /dev/zero > f; head -c 60M /dev/zero > g; ls"),
        small(memory_bytes=64 * MIB, disk_bytes=64 * MIB),
    )
    # Whichever comes first; neither is a success.
    assert execution.outcome in (Outcome.MEMORY, Outcome.DISK, Outcome.OK), explain(execution)
    if execution.ok:
        assert b"No space left" in execution.stderr.content


async def test_memory_within_the_ceiling(real: ExecutionEnvironment) -> None:
    execution = await real.run(
        source("x = bytearray(b'x') * 40_000_000; print(len(x))"),
        small(memory_bytes=128 * MIB, disk_bytes=MIB),
    )
    assert execution.ok, explain(execution)
    peak = execution.usage.peak_memory_bytes
    assert peak is None or 40_000_000 < peak <= 128 * MIB


async def test_a_memory_error_of_the_program_itself_is_no_limit(real: ExecutionEnvironment) -> None:
    execution = await real.run(source("raise MemoryError"))
    assert (execution.outcome, execution.exit_code) == (Outcome.NONZERO_EXIT, 1), explain(execution)


# --- processes and open files ---


async def test_too_many_processes(real: ExecutionEnvironment) -> None:
    text = (
        "import os, time\n"
        "while True:\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(20)\n"
        "        os._exit(0)\n"
    )
    execution = await real.run(source(text), small(processes=20))
    assert_limit(execution, Outcome.PROCESSES, "processes", 20)


async def test_too_many_threads(real: ExecutionEnvironment) -> None:
    text = (
        "import threading, time\n"
        "for n in range(100):\n"
        "    threading.Thread(target=time.sleep, args=(20,), daemon=True).start()\n"
    )
    execution = await real.run(source(text), small(processes=20))
    if execution.usage.peak_processes is None or not enforced(execution, "memory_bytes"):
        assert execution.outcome in (Outcome.PROCESSES, Outcome.NONZERO_EXIT)
    else:
        assert_limit(execution, Outcome.PROCESSES, "processes", 20)
    assert b"can't start new thread" in execution.stderr.content


async def test_as_many_processes_as_the_ceiling_says(real: ExecutionEnvironment) -> None:
    text = (
        "import os, time\n"
        "made = 1\n"
        "try:\n"
        "    while made < 50:\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(20)\n"
        "            os._exit(0)\n"
        "        made += 1\n"
        "except OSError: pass\n"
        "print(made)"
    )
    assert stdout_of(await real.run(source(text), small(processes=20))) == "20\n"


async def test_a_fork_bomb_is_contained(real: ExecutionEnvironment) -> None:
    mark = marker()
    text = f"import os, sys\nsys.argv = ['{mark}']\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    running = await real.start(
        command("python3", "-c", text, mark), small(wall_seconds=1, processes=40)
    )
    watch = await watched(running)
    execution = await running.wait()
    assert execution.outcome in (Outcome.WALL_CLOCK, Outcome.PROCESSES), explain(execution)
    assert execution.usage.peak_processes is None or execution.usage.peak_processes <= 41
    assert living(mark) == watch.living() == []


@pytest.mark.parametrize("fresh", [False, True])
async def test_too_many_open_files(real: ExecutionEnvironment, fresh: bool) -> None:
    text = "import os\nheld = []\nwhile True: held.append(os.open('/dev/null', os.O_RDONLY))"
    execution = await real.run(source(text, fresh=fresh), small(open_files=64))
    if fresh and execution.outcome is Outcome.NONZERO_EXIT:
        assert b"Too many open files" in execution.stderr.content
    else:
        assert_limit(execution, Outcome.OPEN_FILES, "open_files", 64)


async def test_the_ceiling_on_open_files_is_the_one_asked_for(real: ExecutionEnvironment) -> None:
    text = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    assert stdout_of(await real.run(source(text), small(open_files=64))) == "(64, 64)\n"


async def test_a_limit_that_was_met_and_survived_is_no_failure(real: ExecutionEnvironment) -> None:
    text = (
        "import os\nheld = []\n"
        "try:\n    while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError: print('full')"
    )
    assert stdout_of(await real.run(source(text), small(open_files=64))) == "full\n"


# --- the workspace ---


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/dev/shm"])
async def test_a_full_disk(real: ExecutionEnvironment, place: str) -> None:
    text = f"f = open('{place}/f', 'wb', 0)\nwhile True: f.write(b'x' * 65536)"
    execution = await real.run(source(text), small(disk_bytes=MIB))
    assert_limit(execution, Outcome.DISK, "disk_bytes", MIB)
    assert execution.usage.disk_bytes == MIB


async def test_a_full_disk_of_a_command(real: ExecutionEnvironment) -> None:
    execution = await real.run(command("dd", "if=/dev/zero", "of=big"), small(disk_bytes=256 * KIB))
    assert_limit(execution, Outcome.DISK, "disk_bytes", 256 * KIB)


async def test_the_disk_holds_what_the_ceiling_says(real: ExecutionEnvironment) -> None:
    execution = await real.run(
        shell(f"head -c {MIB} /dev/zero > f && rm f && head -c {MIB} /dev/zero > /tmp/g"),
        small(disk_bytes=MIB),
    )
    assert execution.ok, explain(execution)


async def test_a_sparse_file_is_not_charged(real: ExecutionEnvironment) -> None:
    assert (await real.run(command("truncate", "-s", "1M", "x"), small(disk_bytes=MIB))).ok


async def test_a_file_beyond_the_disk_is_refused_by_its_size(real: ExecutionEnvironment) -> None:
    execution = await real.run(command("truncate", "-s", "50G", "x"), small(disk_bytes=MIB))
    assert_limit(execution, Outcome.DISK, "disk_bytes", MIB)


async def test_too_many_files(real: ExecutionEnvironment, traits: Traits) -> None:
    text = "n = 0\nwhile True:\n    open(f'{n}', 'w').close()\n    n += 1"
    execution = await real.run(source(text), small(inodes=50, wall_seconds=traits.seconds(2)))
    if not traits.counts_inodes:
        # The names are the kernel's memory: that ceiling, or the clock, ends it.
        assert execution.outcome in (Outcome.MEMORY, Outcome.WALL_CLOCK), explain(execution)
        assert execution.enforcement["inodes"] is Enforcement.ABSENT
        assert execution.usage.inodes is None
        return
    assert_limit(execution, Outcome.INODES, "inodes", 50)
    assert execution.usage.inodes == 50


async def test_as_many_files_as_the_ceiling_says(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    text = (
        "n = 0\ntry:\n    while n < 99:\n        open(f'{n}', 'w').close()\n        n += 1\n"
        "except OSError: pass\nprint(n)"
    )
    made = 50 if traits.counts_inodes else 99
    assert stdout_of(await real.run(source(text), small(inodes=50))) == f"{made}\n"


# --- refused before it ran ---


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (command("no-such-program-here"), ["no-such-program-here", "no such program"]),
        (command("/no/such"), ["/no/such", "no such program"]),
        (command("./missing"), ["./missing", "no such program"]),
        (command("/usr"), ["/usr"]),
        (command("/etc/passwd"), ["/etc/passwd"]),
        (command("true", working_directory="nope"), ["nope", "working directory"]),
        (source("", working_directory="nope/deeper"), ["nope/deeper", "working directory"]),
        (source("", files={"f": b""}, working_directory="f"), ["f", "working directory"]),
        (source("", files={"a": b"", "a/b": b""}), ["a/b", "cannot be put"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
async def test_invalid(
    real: ExecutionEnvironment, request_: ExecutionRequest, words: list[str]
) -> None:
    execution = await real.run(request_)
    assert execution.outcome is Outcome.INVALID, explain(execution)
    for word in words:
        assert word in execution.detail
    assert (execution.exit_code, execution.stdout.total) == (None, 0)


async def test_a_file_that_does_not_fit_is_invalid(real: ExecutionEnvironment) -> None:
    request = source("print('ran')", files={"big": b"x" * (2 * MIB)})
    execution = await real.run(request, small(disk_bytes=MIB))
    assert execution.outcome is Outcome.INVALID, explain(execution)
    assert "'big'" in execution.detail
    assert execution.stdout.total == 0


async def test_more_files_than_inodes_is_invalid(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    files = {f"f{n}": b"" for n in range(30)}
    execution = await real.run(source("print('ran')", files=files), small(inodes=16))
    if not traits.counts_inodes:
        assert execution.ok, explain(execution)
        return
    assert execution.outcome is Outcome.INVALID, explain(execution)
    assert execution.stdout.total == 0


# --- cancelled and lost ---


async def test_cancelled(port: Port) -> None:
    running = await port(Scripted(delay=60)).start(command("sleep", "60"))
    await asyncio.sleep(0.05)
    await running.cancel()
    execution = await soon(running.wait())
    assert execution.outcome is Outcome.CANCELLED
    assert execution.exit_code is None
    assert "cancelled" in execution.detail


async def test_lost_when_the_sandbox_is_killed(real: ExecutionEnvironment, traits: Traits) -> None:
    mark = marker()
    running, watch = await started(real, mark, traits)
    os.kill(watch.init, signal.SIGKILL)
    execution = await soon(running.wait())
    assert execution.outcome is Outcome.LOST, explain(execution)
    assert execution.exit_code is None
    assert living(mark) == watch.living() == []


async def test_a_tier_is_named(port: Port) -> None:
    execution = await port().run(command("true"), SandboxRequest(tenant="someone"))
    assert execution.tier is not None
