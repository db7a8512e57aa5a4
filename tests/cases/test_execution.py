"""Cases about time, streams and what is left behind; the numbers are those of CASES.md."""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.kit import (
    Heard,
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
    started,
    stdout_of,
    until,
    until_up,
    watched,
    zombies,
)
from tests.contract.traits import Traits

from stockade.executor import PoolPolicy, open_local
from stockade.executor.cgroups import NoTree, find_cgroups
from stockade.executor.environment import LocalEnvironment
from stockade.port import (
    GIB,
    KIB,
    MIB,
    ExecutionEnvironment,
    InvalidRequest,
    Limits,
    Outcome,
    SandboxRequest,
    Stream,
    Tier,
)

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]


# --- time ---


async def test_timeout_leaves_no_process(real: ExecutionEnvironment) -> None:
    """CASES 1: the client gets a timeout, the command keeps running."""
    mark = marker()
    async with await real.open_session(small(wall_seconds=0.3)) as session:
        execution = await session.run(shell(f"sleep {mark}; touch late"))
        assert execution.outcome is Outcome.WALL_CLOCK, explain(execution)
        assert living(mark) == []
        await asyncio.sleep(0.1)
        assert await session.list_files() == []


async def test_timeout_is_told_as_one(real: ExecutionEnvironment) -> None:
    """CASES 66: a timeout is reported as a generic failure."""
    execution = await real.run(command("sleep", "5"), small(wall_seconds=0.3))
    assert execution.outcome is Outcome.WALL_CLOCK
    assert "0.3" in execution.detail
    assert execution.exit_code is None


async def test_timeout_comes_in_time(real: ExecutionEnvironment) -> None:
    """CASES 81: the timeout is raised only after the command ended by itself."""
    began = time.monotonic()
    execution = await real.run(command("sleep", "60"), small(wall_seconds=1))
    assert execution.outcome is Outcome.WALL_CLOCK
    assert 1 <= execution.usage.wall_seconds < 10
    assert time.monotonic() - began < 30


async def test_a_default_ceiling_applies(
    bare: ExecutionEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 26: no command timeout, the caller's thread is stuck.

    The default of 30 s is not waited for: the loop's clock is put forward by it, for its timers.
    Nothing is being parked meanwhile, whose deadlines would have passed, too.
    """
    default = Limits().wall_seconds
    assert default == 30
    heard = Heard()
    running = await bare.start(shell("echo up; exec sleep inf"), on_output=heard)
    await heard.until(b"up\n")
    loop = asyncio.get_running_loop()
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + default - 5)
    ended = asyncio.ensure_future(running.wait())
    await asyncio.sleep(0.05)
    assert not ended.done()
    monkeypatch.setattr(loop, "time", lambda: clock() + default + 1)
    await asyncio.wait({ended})
    execution = ended.result()
    # Its cleaning up has set a timer by this clock as well.
    assert isinstance(bare, LocalEnvironment)
    await until(lambda: bare.metrics().alive == 0)
    assert execution.outcome is Outcome.WALL_CLOCK, explain(execution)
    assert execution.limit is not None
    assert execution.limit.ceiling == default


async def test_ceilings_that_mean_nothing_are_refused() -> None:
    """CASES 4, 65, 157: zero, minus one, a year; never clamped in silence."""
    for name, values in {
        "wall_seconds": (0, -1, 365 * 86_400, float("inf"), float("nan")),
        "cpus": (0, -1, 100_000),
        "memory_bytes": (0, -1, 1, 1 << 60),
        "processes": (0, -1, 10**9),
    }.items():
        for value in values:
            with pytest.raises(InvalidRequest) as refused:
                Limits(**{name: value})  # type: ignore[arg-type]
            assert refused.value.field == f"limits.{name}"
            assert str(value) in str(refused.value)


@pytest.mark.parametrize("tenant", ["", "x" * 129, "a\nb", "a\0b"])
async def test_long_and_strange_names_are_refused_early(tenant: str) -> None:
    """CASES 65: long names fail at boot with EINVAL."""
    with pytest.raises(InvalidRequest, match="tenant"):
        SandboxRequest(tenant=tenant)


@pytest.mark.parametrize("tenant", ["x" * 128, "0abc", "UPPER", "../../other", "日本", "a b"])
async def test_any_printable_tenant_works(real: ExecutionEnvironment, tenant: str) -> None:
    """CASES 45, 89: ids that start with a digit, are long, look like a path."""
    execution = await real.run(command("true"), SandboxRequest(tenant=tenant))
    assert execution.ok, explain(execution)


async def test_a_silent_command_runs_to_its_end(real: ExecutionEnvironment) -> None:
    """CASES 52: a silent long command is counted as idle."""
    assert (await real.run(command("sleep", "1.5"))).ok


async def test_no_cpu_is_used_after_an_endless_loop(real: ExecutionEnvironment) -> None:
    """CASES 150: the infinite loop lives on in the container."""
    mark = marker()
    execution = await real.run(
        command("python3", "-c", "while True: pass", mark), small(wall_seconds=0.4)
    )
    assert execution.outcome is Outcome.WALL_CLOCK
    assert living(mark) == []


async def test_partial_output_survives_a_timeout(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """CASES 149: partial output is thrown away on a timeout."""
    execution = await real.run(shell("echo a; sleep 9"), small(wall_seconds=traits.seconds(0.3)))
    assert (execution.outcome, execution.stdout.content) == (Outcome.WALL_CLOCK, b"a\n")


async def test_the_next_run_never_meets_the_dying_one(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """CASES 112: the timed-out thread keeps running; the container is reused at once."""
    seconds = 0.8 + traits.next_start_seconds
    async with await real.open_session(small(wall_seconds=seconds)) as session:
        for _ in range(3):
            ran = await session.run(
                source(
                    "import os, time\nos.fork(); os.setsid() if os.getpid() != os.getsid(0) else 0\nwhile True: time.sleep(0.01); open('f', 'a').write('x')"
                )
            )
            assert ran.outcome is Outcome.WALL_CLOCK
            text = "import os; print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()) == [1, os.getpid()])"
            # Not how it ends: on a busy host the limit may be there first.
            assert (await session.run(source(text))).stdout.text() == "True\n"


# --- ends ---


async def test_lost_when_the_sandbox_dies_mid_stream(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """CASES 2: the call hangs for ever when the sandbox dies mid-stream."""
    running, watch = await started(real, marker(), traits)
    os.kill(watch.init, signal.SIGKILL)
    assert (await soon(running.wait())).outcome is Outcome.LOST


async def test_a_cut_transport_is_never_exit_0(real: ExecutionEnvironment, traits: Traits) -> None:
    """CASES 93: the stream ends with a fabricated exit code 0 while the process runs."""
    for _ in range(traits.rounds(50)):
        mark, heard = marker(), Heard()
        running = await real.start(shell(f"echo up; sleep {mark}; exit 0"), on_output=heard)
        await until_up(heard, mark, traits)
        watch = await watched(running)
        os.kill(watch.init, signal.SIGKILL)
        execution = await soon(running.wait())
        assert execution.outcome is Outcome.LOST, explain(execution)
        assert (execution.exit_code, execution.signal, execution.ok) == (None, None, False)
        assert execution.stdout.content == b"up\n"
        assert living(mark) == watch.living() == []


async def test_a_failure_is_a_failure_every_time(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """CASES 9: two channels race, a failed command is reported as success."""
    for number in range(traits.rounds(200)):
        execution = await real.run(shell("exec 1>&-; exit 1"))
        assert execution.exit_code == 1, (number, explain(execution))


@pytest.mark.tier("namespace")
async def test_a_thousand_exit_codes_and_no_zombie() -> None:
    """CASES 49: fast exits are lost to a competing waiter; zombies pile up."""
    async with open_local(pool=PoolPolicy.fixed(4), tiers={Tier.NAMESPACE}) as environment:
        codes: list[int | None] = []
        for _ in range(50):
            records = await asyncio.gather(*(environment.run(command("true")) for _ in range(20)))
            codes += [record.exit_code for record in records]
        assert codes == [0] * 1000
        await until(lambda: zombies() == [], 2)


async def test_complete_output_comes_before_the_exit_code(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """CASES 86: the exit code arrives before the last output."""
    for _ in range(traits.rounds(200)):
        heard = Heard()
        execution = await real.run(
            shell("seq 1 200000; exit 3"), small(record_bytes=4 * KIB), on_output=heard
        )
        assert execution.exit_code == 3, explain(execution)
        assert execution.stdout.content.endswith(b"\n200000\n")
        assert heard.of(Stream.STDOUT).endswith(b"\n200000\n")
        assert execution.stdout.total == 1_288_895


async def test_the_first_command_always_ends(real: ExecutionEnvironment, traits: Traits) -> None:
    """CASES 30: an empty event stream just after the start."""
    for _ in range(traits.rounds(200)):
        async with await real.open_session() as session:
            assert stdout_of(await session.run(command("echo", "x"))) == "x\n"


async def test_a_command_that_ignores_signals_is_killed(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """CASES 94: one stuck command bricks the session."""
    seconds = 0.3 + traits.next_start_seconds
    async with await real.open_session(small(wall_seconds=seconds)) as session:
        stuck = shell("trap '' TERM INT HUP QUIT; while :; do sleep 0.05; done")
        assert (await session.run(stuck)).outcome is Outcome.WALL_CLOCK
        assert stdout_of(await session.run(command("echo", "next"))) == "next\n"


async def test_ending_one_session_leaves_the_other(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """CASES 96: session teardown kills everything."""
    mark, heard = marker(), Heard()
    async with await real.open_session() as one, await real.open_session() as two:
        running = await two.start(sleeper(mark), on_output=heard)
        await until_up(heard, mark, traits)
        watch = await watched(running)
        lived = watch.living()
        await one.close()
        assert len(living(mark)) == (1 if traits.shows_guests else 0)
        assert set(lived) <= set(watch.living())
        await running.cancel()
        assert (await soon(running.wait())).outcome is Outcome.CANCELLED


async def test_a_closed_session_can_be_opened_anew_at_once(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """CASES 97: "session already exists" after destroy."""
    for _ in range(traits.rounds(10)):
        async with await real.open_session(SandboxRequest(tenant="same")) as session:
            assert await session.list_files() == []
            await session.write_file("f", b"x")


async def test_stopping_is_bounded_when_the_agent_stands_still(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """CASES 50: stop waits for ever on a zombie; the reaper was stopped."""
    mark = marker()
    running, watch = await started(real, mark, traits)
    watch.stand_still()
    await running.cancel()
    execution = await soon(running.wait())
    assert execution.outcome is Outcome.CANCELLED, explain(execution)
    assert living(mark) == watch.living() == []


@pytest.mark.tier("namespace")
async def test_a_shutdown_is_no_memory_limit() -> None:
    """CASES 154: kills at shutdown are counted as out of memory."""
    async with open_local(pool=PoolPolicy.fixed(1), tiers={Tier.NAMESPACE}) as environment:
        running = await environment.start(source("x = bytearray(b'x') * 50_000_000; input()"),
                                          stdin=forever())  # fmt: skip
        await asyncio.sleep(0.2)
        await environment.close()
        assert (await soon(running.wait())).outcome is Outcome.CANCELLED


async def forever() -> AsyncIterator[bytes]:
    await asyncio.sleep(60)
    yield b""


# --- refused ---


async def test_a_missing_working_directory_is_named(real: ExecutionEnvironment) -> None:
    """CASES 64: a missing working directory gives exit code -1 and nothing else."""
    execution = await real.run(command("true", working_directory="nope"))
    assert execution.outcome is Outcome.INVALID
    assert "'nope'" in execution.detail
    assert "working directory" in execution.detail
    assert execution.exit_code is None


# --- streams ---


async def test_blank_lines_are_kept(real: ExecutionEnvironment) -> None:
    """CASES 28: blank lines are lost in the stream."""
    heard = Heard()
    await real.run(command("printf", r"a\n\nb\n\n\nc\n"), on_output=heard)
    assert heard.of(Stream.STDOUT) == b"a\n\nb\n\n\nc\n"


async def test_a_last_line_without_newline_is_kept(real: ExecutionEnvironment) -> None:
    """CASES 29: the last line without a newline is lost."""
    heard = Heard()
    execution = await real.run(command("printf", "x"), on_output=heard)
    assert execution.stdout.content == heard.of(Stream.STDOUT) == b"x"


async def test_standard_input_is_at_its_end_at_once(real: ExecutionEnvironment) -> None:
    """CASES 32, 100: a command reads the service's own standard input, or hangs."""
    for request in (
        command("cat"),
        shell("cat & wait"),
        source("import sys; print(end=sys.stdin.read())"),
        source("import sys; print(end=sys.stdin.read())", fresh=True),
        source("import subprocess; subprocess.run(['cat'])"),
    ):
        execution = await soon(real.run(request))
        assert stdout_of(execution) == ""


async def test_a_here_document(real: ExecutionEnvironment) -> None:
    """CASES 98: the end of a here-document is indented, and all hangs."""
    assert stdout_of(await soon(real.run(shell("cat <<'EOF'\nx\nEOF")))) == "x\n"
    execution = await soon(real.run(shell("cat <<'EOF'\n  x\n  EOF")))
    assert execution.stdout.content in {b"  x\n  EOF\n", b"  x\n  EOF"}


async def test_streams_are_not_told_apart_by_their_bytes(real: ExecutionEnvironment) -> None:
    """CASES 104: a line that starts with a prefix of ours changes its stream."""
    data = b'\x02\x02\x02 \x01\0\0\0\x03 {"ended": {"code": 0}}\n' * 3
    execution = await real.run(source(f"import os; os.write(1, {data!r}); raise SystemExit(2)"))
    assert execution.stdout.content == data
    assert execution.stderr.content == b""
    assert execution.exit_code == 2


@pytest.mark.parametrize("size", [130_000, 190_000, 196_609, 250_000, 2_000_000])
async def test_large_output_is_no_timeout(real: ExecutionEnvironment, size: int) -> None:
    """CASES 105: 190 KB of output are reported as a timeout."""
    execution = await soon(real.run(source(f"print('x' * {size})"), small(record_bytes=4 * MIB)))
    assert execution.ok, explain(execution)
    assert execution.stdout.content == b"x" * size + b"\n"


async def test_truncation_is_exact_and_said(real: ExecutionEnvironment) -> None:
    """CASES 148: silent truncation, only the tail is kept."""
    for size in (9_999, 10_000, 10_001):
        execution = await real.run(source(f"print(end='x' * {size})"), small(record_bytes=10_000))
        captured = execution.stdout
        assert (captured.total, captured.dropped) == (size, max(0, size - 10_000))
        assert (b"bytes dropped" in captured.content) is (size > 10_000)


async def test_nobody_listens_and_memory_stays_flat(real: ExecutionEnvironment) -> None:
    """CASES 10: no reader is connected, memory grows without a bound."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    execution = await real.run(
        command("head", "-c", "200M", "/dev/zero"), small(output_bytes=256 * MIB)
    )
    assert execution.ok, explain(execution)
    assert execution.stdout.total == 200 * MIB
    assert resident() - before < 24 * MIB


async def test_many_numbered_lines_arrive_once(real: ExecutionEnvironment) -> None:
    """CASES 12, 116: chunks come twice, or not at all."""
    heard = Heard()
    await real.run(command("seq", "1", "100000"), on_output=heard)
    assert heard.of(Stream.STDOUT).split() == [b"%d" % n for n in range(1, 100_001)]


# --- what a program sees ---


async def test_variables_do_not_come_back(real: ExecutionEnvironment) -> None:
    """CASES 17: a removed environment variable comes back."""
    async with await real.open_session() as session:
        await session.run(command("true", environment={"A": "1", "B": "2"}))
        execution = await session.run(command("env", environment={"A": "1"}))
        assert "A=1\n" in stdout_of(execution)
        assert "B=" not in stdout_of(execution)


async def test_groups_match_the_profile(real: ExecutionEnvironment) -> None:
    """CASES 16: supplementary groups."""
    text = "import os; print(os.getuid(), os.getgid())"
    assert stdout_of(await real.run(source(text))) == "1000 1000\n"
    if os.geteuid() == 0:
        assert stdout_of(await real.run(command("id", "-G"))) == "1000\n"


async def test_children_do_not_inherit_oom_protection(real: ExecutionEnvironment) -> None:
    """CASES 14: a grandchild inherits the agent's OOM protection."""
    line = "for i in $(seq 100); do (cat /proc/self/oom_score_adj &) ; done; sleep 0.2"
    values = {int(word) for word in stdout_of(await real.run(shell(line))).split()}
    assert values
    assert min(values) >= 0


async def test_the_cpu_count_reflects_the_limit(real: ExecutionEnvironment) -> None:
    """CASES 80: pools sized by the host's CPU count."""
    text = "import multiprocessing as m, os; print(len(os.sched_getaffinity(0)))"
    assert stdout_of(await real.run(source(text), small(cpus=1))) == "1\n"
    assert stdout_of(await real.run(command("nproc"), small(cpus=0.5))) == "1\n"


async def test_os_cpu_count_reflects_the_limit(real: ExecutionEnvironment) -> None:
    """CASES 80: ``os.cpu_count()`` says 64 on one virtual CPU."""
    for fresh in (False, True):
        text = "import os, multiprocessing; print(os.cpu_count(), multiprocessing.cpu_count())"
        assert stdout_of(await real.run(source(text, fresh=fresh), small(cpus=1))) == "1 1\n"


async def test_a_storm_of_workers_ends_as_memory(real: ExecutionEnvironment) -> None:
    """CASES 80: an out-of-memory kill takes the agent; no reason is given."""
    text = (
        "import multiprocessing as m\n"
        "def f(n): return len(bytearray(b'x') * 50_000_000)\n"
        "with m.get_context('fork').Pool(24) as p: print(p.map(f, range(24)))"
    )
    execution = await real.run(
        source(text), small(memory_bytes=256 * MIB, disk_bytes=MIB, wall_seconds=8)
    )
    if enforced(execution, "memory_bytes"):
        assert execution.outcome is Outcome.MEMORY, explain(execution)
        assert execution.limit is not None
        assert execution.limit.ceiling == 256 * MIB


async def test_node_and_two_hundred_threads_fit(real: ExecutionEnvironment) -> None:
    """CASES 46: the process limit is too low for real programs."""
    text = (
        "import threading\n"
        "go = threading.Event()\n"
        "t = [threading.Thread(target=go.wait) for _ in range(200)]\n"
        "[x.start() for x in t]; print(threading.active_count()); go.set()"
    )
    assert stdout_of(await real.run(source(text))) == "201\n"
    if (await real.run(command("node", "-e", ""))).outcome is Outcome.INVALID:
        pytest.skip("this image has no node")
    text = (
        "const {Worker} = require('worker_threads'), all = [];\n"
        "for (let n = 0; n < 8; n++) all.push(new Promise((done, failed) => {\n"
        "  const one = new Worker(\"require('worker_threads').parentPort.postMessage(1)\",\n"
        "    {eval: true}); one.on('message', done); one.on('error', failed); }));\n"
        "Promise.all(all).then(x => console.log(x.length));"
    )
    # Its workers have heaps of their own; threads of node's own come on top of them.
    assert stdout_of(await real.run(command("node", "-e", text))) == "8\n"


async def test_contexts_share_nothing(real: ExecutionEnvironment) -> None:
    """CASES 102: state leaks between two contexts."""
    await real.run(source("x = 1; import builtins; builtins.leak = 2"))
    execution = await real.run(source("print('leak' in dir(__builtins__)); print(x)"))
    assert execution.stdout.content == b"False\n"
    assert b"NameError: name 'x' is not defined" in execution.stderr.content


async def test_code_is_not_injected_into_a_bootstrap(real: ExecutionEnvironment) -> None:
    """CASES 109: code with quotes and line separators breaks out of the bootstrap."""
    for text in (
        "'''",
        '"""',
        "\u2028",
        "\u2029",
        "\\",
        "{}",
        "%s",
        "\x0c",
        "\r",
        "EOF\n",
        "$(id)",
    ):
        literal = f"print({text!r}, end='')"
        execution = await real.run(source(literal))
        assert stdout_of(execution).replace("\r\n", "\r") == text


async def test_tenants_files_are_apart(real: ExecutionEnvironment) -> None:
    """CASES 109: a shared user id across tenants."""
    writer = await real.start(
        shell("echo secret > /tmp/f; chmod 777 /tmp/f; sleep 0.5"), SandboxRequest(tenant="a")
    )
    await asyncio.sleep(0.2)
    reader = await real.run(shell("cat /tmp/f"), SandboxRequest(tenant="b"))
    assert reader.exit_code == 1
    assert (await writer.wait()).ok


async def test_memory_error_of_the_language_is_no_limit(real: ExecutionEnvironment) -> None:
    """CASES 153: ``raise MemoryError`` looks like a limit; the parser overflows."""
    execution = await real.run(source("raise MemoryError"))
    assert execution.outcome is Outcome.NONZERO_EXIT
    execution = await real.run(source("eval('(' * 6000 + ')' * 6000)"))
    assert execution.outcome in (Outcome.NONZERO_EXIT, Outcome.SIGNAL)
    execution = await real.run(source("x = eval('(' * 90 + ')' * 90); print(x)"))
    assert execution.ok, explain(execution)


async def test_the_memory_limit_is_not_dead_configuration(real: ExecutionEnvironment) -> None:
    """CASES 154: the memory limit was dead configuration."""
    execution = await real.run(
        source("x = bytearray(b'x') * (128 << 20)"), small(memory_bytes=64 * MIB, disk_bytes=MIB)
    )
    assert not execution.ok
    if enforced(execution, "memory_bytes"):
        assert execution.outcome is Outcome.MEMORY, explain(execution)


async def test_a_hog_does_not_starve_the_next(real: ExecutionEnvironment) -> None:
    """CASES 156: what an earlier task left starves the next."""
    await real.run(shell("for i in 1 2 3 4; do (while :; do :; done) & done; sleep 0.2"))
    execution = await real.run(command("ls"))
    assert execution.ok
    assert execution.usage.wall_seconds < 2


async def test_missing_controllers_are_named(tmp_path: Path) -> None:
    """CASES 113: a host without a controller; flags that drop the cgroup in silence."""
    nothing = tmp_path / "empty"
    nothing.write_text("")
    tree = find_cgroups(nothing, nothing)
    assert isinstance(tree, NoTree)
    assert "cgroup" in tree.description
    assert tree.remedies


async def test_no_set_id_program_gains_anything(real: ExecutionEnvironment, traits: Traits) -> None:
    """CASES 114: a set-id ``sudo`` in the image."""
    text = "import re; print(re.findall('(NoNewPrivs|CapEff|Seccomp):\\s*(\\w+)', open('/proc/self/status').read()))"
    told = "('NoNewPrivs', '1'), " if traits.tells_no_new_privs else ""
    assert stdout_of(await real.run(source(text))) == (
        f"[('CapEff', '0000000000000000'), {told}('Seccomp', '2')]\n"
    )
    line = "su -c id 2>/dev/null; passwd -S root 2>/dev/null; cp /bin/sh s; chmod 4755 s; ./s -c 'id -u'"
    assert stdout_of(await real.run(shell(line))).split()[-1] == "1000"


async def test_event_loop_stays_free(real: ExecutionEnvironment, traits: Traits) -> None:
    """CASES 44, 76: a blocking call in an async path stalls the service."""
    longest, stop = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not stop:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - before)

    watching = asyncio.ensure_future(watch())
    calls = (real.run(command("sleep", "0.05")) for _ in range(traits.rounds(20)))
    await asyncio.gather(*calls)
    await real.run(command("sleep", "0.1"), SandboxRequest(tenant="new here"))
    stop = True
    await watching
    assert longest < 1.5


# --- imports ---

IMPORTS = [
    "abc",
    "argparse",
    "array",
    "ast",
    "asyncio",
    "base64",
    "bisect",
    "bz2",
    "calendar",
    "cmath",
    "codecs",
    "collections",
    "concurrent.futures",
    "configparser",
    "contextlib",
    "copy",
    "csv",
    "ctypes",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "dis",
    "email.message",
    "enum",
    "fractions",
    "ftplib",
    "functools",
    "gc",
    "getpass",
    "glob",
    "gzip",
    "hashlib",
    "heapq",
    "hmac",
    "html.parser",
    "http.client",
    "http.server",
    "imaplib",
    "importlib.metadata",
    "inspect",
    "io",
    "ipaddress",
    "itertools",
    "json",
    "keyword",
    "linecache",
    "locale",
    "logging.handlers",
    "lzma",
    "math",
    "mimetypes",
    "mmap",
    "multiprocessing",
    "multiprocessing.shared_memory",
    "numbers",
    "operator",
    "os",
    "pathlib",
    "pdb",
    "pickle",
    "pkgutil",
    "platform",
    "plistlib",
    "pprint",
    "queue",
    "random",
    "re",
    "resource",
    "runpy",
    "sched",
    "secrets",
    "select",
    "selectors",
    "shelve",
    "shlex",
    "shutil",
    "signal",
    "smtplib",
    "socket",
    "socketserver",
    "sqlite3",
    "ssl",
    "stat",
    "statistics",
    "string",
    "struct",
    "subprocess",
    "symtable",
    "sysconfig",
    "tarfile",
    "tempfile",
    "textwrap",
    "threading",
    "time",
    "timeit",
    "token",
    "tokenize",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "unittest",
    "urllib.request",
    "uuid",
    "venv",
    "warnings",
    "wave",
    "weakref",
    "webbrowser",
    "xml.dom.minidom",
    "xml.etree.ElementTree",
    "xmlrpc.client",
    "zipfile",
    "zlib",
    "zoneinfo",
]


@pytest.mark.parametrize("fresh", [False, True])
async def test_the_standard_library_can_be_imported(
    real: ExecutionEnvironment, fresh: bool
) -> None:
    """CASES 108: ``import json`` is not permitted; users allow every call."""
    text = (
        "import importlib, sys\nfailed = []\n"
        "for name in sys.argv[1:]:\n"
        "    try: importlib.import_module(name)\n"
        "    except Exception as e: failed.append((name, repr(e)))\n"
        "print(failed)"
    )
    assert stdout_of(await real.run(source(text, *IMPORTS, fresh=fresh))) == "[]\n"


USES = {
    "sqlite3": "import sqlite3; c = sqlite3.connect('x.db'); c.execute('create table t(a)'); c.commit(); print('ok')",
    "shared_memory": "from multiprocessing import shared_memory as s; m = s.SharedMemory(create=True, size=99); m.close(); m.unlink(); print('ok')",
    "mmap": "import mmap; m = mmap.mmap(-1, 4096); m[:2] = b'ok'; print(m[:2].decode())",
    "asyncio_subprocess": "import asyncio\nasync def f():\n    p = await asyncio.create_subprocess_exec('echo', 'ok', stdout=-1)\n    print((await p.communicate())[0].decode(), end='')\nasyncio.run(f())",
    "socketpair": "import socket; a, b = socket.socketpair(); a.send(b'ok'); print(b.recv(9).decode())",
    "loopback": "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); d, _ = s.accept(); d.send(b'ok'); print(c.recv(9).decode())",
    "queue": "import multiprocessing as m\nq = m.get_context('fork').Queue(); q.put('ok'); print(q.get())",
    "lock": "import multiprocessing as m\nl = m.Lock()\nwith l: print('ok')",
    "threads": "from concurrent.futures import ThreadPoolExecutor as T\nwith T(8) as t: print(list(t.map(str, ['ok']))[0])",
    "tempfile": "import tempfile\nwith tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile() as f: print('ok')",
    "zip": "import zipfile, io; b = io.BytesIO(); zipfile.ZipFile(b, 'w').writestr('a', 'ok'); print(zipfile.ZipFile(b).read('a').decode())",
    "compress": "import gzip, bz2, lzma\nfor m in (gzip, bz2, lzma): assert m.decompress(m.compress(b'x')) == b'x'\nprint('ok')",
    "pty": "import pty, os; m, s = os.openpty(); os.write(s, b'ok'); print(os.read(m, 9).decode())",
    "file_lock": "import fcntl; f = open('l', 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('ok')",
    "inotify_free_watch": "import os; print('ok' if os.stat('.').st_uid == os.getuid() else 'no')",
    "getaddrinfo": "import socket; print('ok' if socket.getaddrinfo('localhost', 80) else '')",
    "timer": "import signal, time\nsignal.signal(signal.SIGALRM, lambda n, f: print('ok'))\nsignal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.1)",
    "ctypes": "import ctypes; ctypes.CDLL(None).puts(b'ok')",
    "getpwuid": "import pwd, os; print('ok' if pwd.getpwuid(os.getuid()).pw_name == 'guest' else 'no')",
    "expanduser": "import os; print('ok' if os.path.expanduser('~') == '/workspace' else 'no')",
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
async def test_the_standard_library_works(real: ExecutionEnvironment, use: str) -> None:
    """CASES 108: imports work, and use is not permitted."""
    assert stdout_of(await real.run(source(USES[use]))) == "ok\n"


async def test_a_refused_call_is_an_error_and_no_death(real: ExecutionEnvironment) -> None:
    """CASES 108: a denied call kills the program, and is named nowhere."""
    text = (
        "import ctypes, errno, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "for name, arguments in (('mount', (0, 0, 0, 0, 0)), ('unshare', (0x10000000,)), ('ptrace', (0, 0, 0, 0)), ('chroot', (b'/',))):\n"
        "    ctypes.set_errno(0)\n"
        "    print(name, getattr(libc, name)(*arguments), errno.errorcode.get(ctypes.get_errno()))"
    )
    lines = stdout_of(await real.run(source(text))).splitlines()
    for line in lines:
        assert re.fullmatch(r"\w+ -1 E(PERM|NOSYS|ACCES)", line), line


async def test_limits_fit_together() -> None:
    """CASES 88: a sparse file blows the quota; the disk cannot exceed the memory it lives in."""
    with pytest.raises(InvalidRequest, match="disk_bytes"):
        Limits(disk_bytes=2 * GIB, memory_bytes=GIB)
