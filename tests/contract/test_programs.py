"""Programs, and what goes in and out with them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from stockade.port import (
    Artefact,
    Command,
    Execution,
    ExecutionEnvironment,
    Limits,
    Outcome,
    SandboxRequest,
    Stream,
)
from stockade.port.fake import Call, Scripted, cat

from .fixtures import Port
from .kit import command, explain, script, shell, small, soon, source, stdout_of
from .traits import Traits

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]


# --- the three kinds of program ---


async def test_python_source(port: Port) -> None:
    execution = await port(Scripted(stdout=b"2\n")).run(source("print(1 + 1)"))
    assert (execution.outcome, execution.exit_code) == (Outcome.OK, 0), explain(execution)
    assert execution.stdout.content == b"2\n"
    assert execution.stderr.content == b""
    assert execution.result is None


async def test_python_source_with_arguments(real: ExecutionEnvironment) -> None:
    execution = await real.run(source("import sys; print(sys.argv)", "a b", "", "ü", "-x"))
    assert stdout_of(execution) == "['-c', 'a b', '', 'ü', '-x']\n"


async def test_python_source_as_bytes(real: ExecutionEnvironment) -> None:
    text = "# -*- coding: latin-1 -*-\nprint('é')\n".encode("latin-1")
    assert stdout_of(await real.run(source(text))) == "é\n"


async def test_empty_source_runs_to_its_end(port: Port) -> None:
    assert (await port().run(source(""))).ok


async def test_python_script_is_a_file_of_the_workspace(real: ExecutionEnvironment) -> None:
    text = "import sys; print(sys.argv, __file__, __name__, open(__file__).read().count('import'))"
    execution = await real.run(script("folder/prog.py", text, "one"))
    assert stdout_of(execution) == (
        "['folder/prog.py', 'one'] /workspace/folder/prog.py __main__ 2\n"
    )


async def test_command_by_name_and_by_path(real: ExecutionEnvironment) -> None:
    assert stdout_of(await real.run(command("echo", "a  b", "*"))) == "a  b *\n"
    assert stdout_of(await real.run(command("/usr/bin/printf", "%s", "x"))) == "x"
    own = await real.run(
        command("sh", "./run.sh", files={"run.sh": b"echo $0; pwd"}),
    )
    assert stdout_of(own) == "./run.sh\n/workspace\n"


async def test_command_of_the_workspace_by_path(real: ExecutionEnvironment) -> None:
    request = shell("chmod +x f/x && exec f/x y", files={"f/x": b"#!/bin/sh\necho ran $1\n"})
    assert stdout_of(await real.run(request)) == "ran y\n"


@pytest.mark.parametrize("fresh", [False, True])
async def test_large_source_and_many_arguments(real: ExecutionEnvironment, fresh: bool) -> None:
    padding = "#" + "x" * (100_000 if fresh else 3_000_000)
    arguments = ["a" * 100] * 500
    request = source(f"import sys; print(len(sys.argv)) {padding}", *arguments, fresh=fresh)
    assert stdout_of(await real.run(request)) == "501\n"


async def test_a_program_larger_than_an_argument_runs_fresh(real: ExecutionEnvironment) -> None:
    """A source that execve would refuse is refused with a sentence, or runs."""
    execution = await real.run(source("print(1)\n#" + "x" * 200_000, fresh=True))
    assert execution.outcome in (Outcome.OK, Outcome.INVALID), explain(execution)
    if execution.outcome is Outcome.INVALID:
        assert "large" in execution.detail or "long" in execution.detail, execution.detail


async def test_arguments_that_are_no_utf8(real: ExecutionEnvironment) -> None:
    raw = b"\xff\xfe".decode("utf-8", "surrogateescape")
    execution = await real.run(command("printf", "%s", raw))
    assert execution.stdout.content == b"\xff\xfe", explain(execution)
    execution = await real.run(source("import sys, os; os.write(1, os.fsencode(sys.argv[1]))", raw))
    assert execution.stdout.content == b"\xff\xfe", explain(execution)


# --- standard input ---


async def test_no_standard_input_is_its_end_at_once(port: Port) -> None:
    execution = await port(cat).run(command("cat"))
    assert execution.ok
    assert execution.stdout.content == b""


@pytest.mark.parametrize("size", [1, 65_536, 1_000_000])
async def test_standard_input_arrives_byte_for_byte(port: Port, size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    execution = await port(cat).run(command("cat"), stdin=data)
    assert execution.ok, explain(execution)
    assert execution.stdout.total == size
    assert execution.stdout.content == data


async def test_standard_input_in_pieces(port: Port) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(100):
            yield b"%d\n" % number
            if number % 10 == 0:
                await asyncio.sleep(0)

    execution = await port(cat).run(command("cat"), stdin=pieces())
    assert execution.stdout.content == b"".join(b"%d\n" % number for number in range(100))


async def test_standard_input_in_large_pieces(port: Port) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(8):
            yield bytes([number]) * 700_001

    execution = await port(cat).run(command("cat"), stdin=pieces())
    assert execution.ok, explain(execution)
    assert execution.stdout.total == 8 * 700_001


async def test_an_empty_piece_of_standard_input_is_not_its_end(port: Port) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"
        yield b""
        yield b"b"

    assert (await port(cat).run(command("cat"), stdin=pieces())).stdout.content == b"ab"


async def test_standard_input_answers_standard_output(port: Port) -> None:
    """A conversation: each line is sent after the answer to the one before."""
    answers: asyncio.Queue[bytes] = asyncio.Queue()

    async def sink(stream: Stream, data: bytes) -> None:
        await answers.put(data)

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(20):
            yield b"%d\n" % number
            assert await answers.get() == b"%d\n" % (number * 2)

    async def play(call: Call) -> Scripted:
        async for line in call.stdin:
            await call.write(Stream.STDOUT, b"%d\n" % (2 * int(line)))
        return Scripted()

    text = "import sys\nfor line in sys.stdin:\n  print(2 * int(line), flush=True)"
    execution = await port(play).run(source(text), stdin=pieces(), on_output=sink)
    assert execution.ok, explain(execution)


async def test_a_program_that_never_reads_ends_all_the_same(port: Port) -> None:
    execution = await port(Scripted(exit_code=3)).run(
        source("raise SystemExit(3)"), stdin=b"x" * 5_000_000
    )
    assert (execution.outcome, execution.exit_code) == (Outcome.NONZERO_EXIT, 3)


async def test_endless_standard_input_ends_with_the_program(port: Port) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b"line\n"
            await asyncio.sleep(0)

    async def play(call: Call) -> Scripted:
        async for piece in call.stdin:
            return Scripted(stdout=piece)
        return Scripted(exit_code=9)

    execution = await soon(port(play).run(command("head", "-n", "1"), stdin=pieces()), 10)
    assert execution.ok, explain(execution)
    assert execution.stdout.content == b"line\n"


# --- the environment ---


async def test_nothing_of_the_hosts_environment_is_inherited(
    real: ExecutionEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    expected = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        "HOME": "/workspace",
        "LANG": "C.UTF-8",
        "USER": "guest",
        "SHELL": "/bin/sh",
    }
    for request in (
        command("env"),
        source("import os\nfor name, value in os.environ.items(): print(f'{name}={value}')"),
        source("import subprocess; subprocess.run(['env'])"),
    ):
        lines = stdout_of(await real.run(request)).splitlines()
        found = dict(line.split("=", 1) for line in lines)
        found.pop("LC_CTYPE", None)
        assert found == expected


async def test_the_environment_that_was_asked_for(real: ExecutionEnvironment) -> None:
    environment = {"A": "1", "EMPTY": "", "LONG": "y" * 10_000, "UNI": "grün\n2", "HOME": "/tmp"}
    text = "import os; print([os.environ[n] for n in ('A', 'EMPTY', 'LONG', 'UNI', 'HOME')])"
    execution = await real.run(source(text, environment=environment))
    assert stdout_of(execution) == f"{list(environment.values())}\n"
    execution = await real.run(shell('printf %s "$A$EMPTY$UNI$HOME"', environment=environment))
    assert stdout_of(execution) == "1grün\n2/tmp"


async def test_path_of_the_request_decides_which_program_runs(real: ExecutionEnvironment) -> None:
    request = command(
        "tool", files={"bin/tool": b"#!/bin/sh\necho mine\n"}, environment={"PATH": "/nowhere"}
    )
    assert (await real.run(request)).outcome is Outcome.INVALID


@pytest.mark.parametrize(
    ("environment", "text", "expected"),
    [
        ({"PYTHONPATH": "/workspace/lib"}, "import mine; print(mine.x)", "5\n"),
        ({"PYTHONUNBUFFERED": "1"}, "import os; print('kept'); os._exit(0)", "kept\n"),
        ({"PYTHONHASHSEED": "0"}, "print(hash('stockade'))", None),
        ({"PYTHONOPTIMIZE": "1"}, "assert False; print(__debug__)", "False\n"),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, "import sys; print(sys.dont_write_bytecode)", "True\n"),
        ({"PYTHONWARNINGS": "ignore"}, "import warnings; warnings.warn('x'); print(1)", "1\n"),
        ({"PYTHONIOENCODING": "latin-1"}, "import sys; print(sys.stdout.encoding)", "iso8859-1\n"),
    ],
)
async def test_variables_of_python_itself_count(
    real: ExecutionEnvironment, environment: dict[str, str], text: str, expected: str | None
) -> None:
    files = {"lib/mine.py": b"x = 5\n"}
    fresh = await real.run(source(text, fresh=True, environment=environment, files=files))
    warm = await real.run(source(text, environment=environment, files=files))
    assert stdout_of(fresh) == (stdout_of(fresh) if expected is None else expected)
    assert (warm.stdout, warm.stderr) == (fresh.stdout, fresh.stderr), explain(warm)


# --- files in, artefacts out, the working directory ---

FILES = {
    "a.txt": b"one\n",
    "deep/er/b.bin": bytes(range(256)) * 300,
    "日本語 ë.txt": b"named",
    "empty": b"",
}


async def test_files_are_there_when_the_program_starts(real: ExecutionEnvironment) -> None:
    text = (
        "import hashlib, pathlib, sys\n"
        "for p in sys.argv[1:]: print(hashlib.sha256(pathlib.Path(p).read_bytes()).hexdigest())"
    )
    execution = await real.run(source(text, *FILES, files=FILES))
    digests = [hashlib.sha256(data).hexdigest() for data in FILES.values()]
    assert stdout_of(execution).split() == digests


async def test_artefacts_come_out_with_their_digest(port: Port) -> None:
    async def play(call: Call) -> Scripted:
        return Scripted(artefacts={"out/x": b"\0\xff" * 50_000})

    text = "import os; os.mkdir('out'); open('out/x', 'wb').write(bytes([0, 255]) * 50000)"
    execution = await port(play).run(source(text, artefacts=("out/x", "a.txt"), files=FILES))
    data = b"\0\xff" * 50_000
    assert execution.artefacts == (
        Artefact("out/x", data, f"sha256:{hashlib.sha256(data).hexdigest()}"),
        Artefact("a.txt", b"one\n", f"sha256:{hashlib.sha256(b'one' + bytes([10])).hexdigest()}"),
    )
    assert execution.missing_artefacts == ()


async def test_a_missing_artefact_is_named_with_its_reason(port: Port) -> None:
    execution = await port().run(source("", artefacts=("nope", "no/pe")))
    assert execution.ok
    assert [missing.name for missing in execution.missing_artefacts] == ["nope", "no/pe"]
    assert all("no such file" in m.reason.lower() for m in execution.missing_artefacts)


async def test_what_is_no_plain_file_does_not_come_out(real: ExecutionEnvironment) -> None:
    line = (
        "mkdir folder; ln -s /etc/passwd link; ln -s . dir; mkfifo fifo; echo x > a; ln a hard; "
        "ln -s nothing broken"
    )
    names = ("folder", "link", "dir/a", "fifo", "hard", "a", "broken", "a/below")
    execution = await real.run(shell(line, artefacts=names))
    assert execution.ok, explain(execution)
    assert execution.artefacts == ()
    reasons = {missing.name: missing.reason for missing in execution.missing_artefacts}
    assert list(reasons) == list(names)
    assert reasons["folder"] == "is a folder"
    assert "symbolic link" in reasons["link"]
    assert "symbolic link" in reasons["dir/a"]
    assert "not a regular file" in reasons["fifo"]
    assert "link" in reasons["hard"]
    assert "link" in reasons["a"]
    assert "symbolic link" in reasons["broken"]
    assert "ot a directory" in reasons["a/below"]


async def test_an_unreadable_artefact_is_named(real: ExecutionEnvironment) -> None:
    execution = await real.run(shell("echo x > a; chmod 0 a", artefacts=("a",)))
    assert execution.artefacts == ()
    assert "ermission denied" in execution.missing_artefacts[0].reason


async def test_artefacts_come_out_of_a_failed_program_too(port: Port) -> None:
    execution = await port(Scripted(exit_code=2, artefacts={"log": b"why"})).run(
        shell("printf why > log; exit 2", artefacts=("log",))
    )
    assert execution.outcome is Outcome.NONZERO_EXIT
    assert [artefact.data for artefact in execution.artefacts] == [b"why"]


async def test_artefacts_come_out_after_the_wall_clock_too(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    request = shell("printf partial > log; exec sleep 60", artefacts=("log",))
    execution = await real.run(request, small(wall_seconds=traits.seconds(0.4)))
    assert execution.outcome is Outcome.WALL_CLOCK
    assert [artefact.data for artefact in execution.artefacts] == [b"partial"]


@pytest.mark.parametrize("sizes", [(4000, 6000), (4000, 6001), (10_001, 1), (10_000, 0)])
async def test_the_ceiling_on_artefacts_is_exact(
    real: ExecutionEnvironment, sizes: tuple[int, int]
) -> None:
    text = f"for name, size in zip('ab', {sizes}): open(name, 'wb').write(b'x' * size)"
    execution = await real.run(source(text, artefacts=("a", "b")), small(artefact_bytes=10_000))
    room, came = 10_000, []
    for name, size in zip("ab", sizes, strict=True):
        if size <= room:
            came.append(name)
            room -= size
    assert [artefact.name for artefact in execution.artefacts] == came
    assert all("only" in missing.reason for missing in execution.missing_artefacts)


async def test_a_sparse_artefact_is_judged_by_its_size(real: ExecutionEnvironment) -> None:
    request = source("open('a', 'wb').truncate(100_000_000)", artefacts=("a",))
    execution = await real.run(request, small(artefact_bytes=1_000_000))
    assert execution.artefacts == ()
    assert "100000000" in execution.missing_artefacts[0].reason


async def test_the_working_directory(real: ExecutionEnvironment) -> None:
    for request in (
        command("pwd", files={"some/where/f": b""}, working_directory="some/where"),
        source(
            "import os; print(os.getcwd())",
            files={"some/where/f": b""},
            working_directory="some/where",
        ),
    ):
        assert stdout_of(await real.run(request)) == "/workspace/some/where\n"
    assert stdout_of(await real.run(command("pwd"))) == "/workspace\n"


async def test_the_workspace_is_empty_and_writable(real: ExecutionEnvironment) -> None:
    execution = await real.run(shell("ls -A /workspace /tmp; echo x > /workspace/f; cat f"))
    assert stdout_of(execution) == "/tmp:\n\n/workspace:\nx\n"


async def test_each_execution_has_a_fresh_workspace(port: Port) -> None:
    environment = port(Scripted())
    first = await environment.run(shell("echo x > left; echo x > /tmp/left", artefacts=()))
    second = await environment.run(shell("cat left /tmp/left; true", artefacts=("left",)))
    assert first.ok
    assert second.ok
    assert second.stdout.content == b""
    assert [missing.name for missing in second.missing_artefacts] == ["left"]


async def test_the_same_request_can_be_run_again(port: Port) -> None:
    request = source("print(len(open('f').read()))", files={"f": b"12345"})
    environment = port(Scripted(stdout=b"5\n"))
    records: list[Execution] = [await environment.run(request) for _ in range(3)]
    assert [record.stdout.content for record in records] == [b"5\n"] * 3


async def test_a_request_with_the_default_sandbox_and_a_named_one(port: Port) -> None:
    environment = port()
    assert isinstance(command("true").program, Command)
    assert (await environment.run(command("true"))).ok
    assert (await environment.run(command("true"), SandboxRequest(limits=Limits()))).ok
