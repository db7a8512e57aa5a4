"""Cases about files in and out; the numbers are those of CASES.md."""

import hashlib
import os
from pathlib import Path

import pytest
from tests.contract.kit import command, explain, shell, small, soon, source, stdout_of
from tests.contract.traits import Traits

from stockade.port import (
    MIB,
    ExecutionEnvironment,
    ExecutionRequest,
    FileRefused,
    InvalidRequest,
    Outcome,
    PythonScript,
    PythonSource,
    Session,
)

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]


async def read(session: Session, path: str) -> bytes:
    return b"".join([piece async for piece in session.read_file(path)])


@pytest.mark.parametrize("size", [17_000, 18_432, 19_000, 64_000, 65_537, MIB, 40 * MIB])
async def test_uploads_of_any_size_arrive(real: ExecutionEnvironment, size: int) -> None:
    """CASES 24: an upload over about 18 KB answers ok, and there is no file."""
    data = os.urandom(1000) * (size // 1000) + b"x" * (size % 1000)
    digest = hashlib.sha256(data).hexdigest()
    async with await real.open_session() as session:
        await session.write_file("f", data)
        assert stdout_of(await session.run(command("sha256sum", "f"))).split()[0] == digest
        assert hashlib.sha256(await read(session, "f")).hexdigest() == digest


async def test_a_file_is_visible_to_the_next_command(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """CASES 25: a file is invisible to the next command.

    Not 500 times: a session's next program waits for an interpreter, and no file system with a
    cache of its own, of which the case is, stands between the two.
    """
    async with await real.open_session() as session:
        for number in range(traits.rounds(100)):
            await session.write_file(f"f{number}", b"%d" % number)
            assert stdout_of(await session.run(command("cat", f"f{number}"))) == str(number)


@pytest.mark.parametrize(
    "name",
    ["日本語 ë.txt", "a%2Fb", "..x", ".hidden", "a?b", " ", "\\", "'\"", "a\nb", "\udcff\udcfe"],
)
async def test_any_name_makes_the_round_trip(real: ExecutionEnvironment, name: str) -> None:
    """CASES 33, 77: a non-ASCII name breaks the download."""
    execution = await real.run(
        source(
            "import os, sys; print(os.listdir('.') == [sys.argv[1]])",
            name,
            files={name: b"content"},
            artefacts=(name,),
        )
    )
    assert stdout_of(execution) == "True\n"
    assert [(a.name, a.data) for a in execution.artefacts] == [(name, b"content")]
    async with await real.open_session() as session:
        await session.write_file(name, b"content")
        assert [entry.name for entry in await session.list_files()] == [name]


async def test_a_listing_follows_no_link(real: ExecutionEnvironment) -> None:
    """CASES 34: a directory listing follows a link at its root."""
    async with await real.open_session() as session:
        await session.run(shell("ln -s / x"))
        with pytest.raises(FileRefused, match="link"):
            await session.list_files("x")


@pytest.mark.parametrize(
    "path", ["/data/../etc", "../etc/passwd", "a/../../b", "/etc/passwd", "a/./b"]
)
async def test_paths_out_of_the_workspace_are_refused(path: str) -> None:
    """CASES 36, 58, 89: a prefix is checked before the path is resolved."""
    program = PythonSource("")
    for make in (
        lambda: ExecutionRequest(program, files={path: b""}),
        lambda: ExecutionRequest(program, artefacts=(path,)),
        lambda: ExecutionRequest(program, working_directory=path),
        lambda: PythonScript(path, b""),
    ):
        with pytest.raises(InvalidRequest):
            make()


async def test_a_link_in_the_output_is_not_followed(real: ExecutionEnvironment) -> None:
    """CASES 106: the host follows an absolute link left in the output."""
    line = "ln -s /etc/hostname out.txt; ln -s /etc d; ln -s /proc/1/environ e"
    execution = await real.run(shell(line, artefacts=("out.txt", "d/hostname", "e")))
    assert execution.artefacts == ()
    assert [missing.name for missing in execution.missing_artefacts] == [
        "out.txt",
        "d/hostname",
        "e",
    ]
    host = Path("/etc/hostname").read_text().strip() if Path("/etc/hostname").exists() else "\0"
    assert host not in str(execution.missing_artefacts)


async def test_a_name_swapped_while_it_is_read(real: ExecutionEnvironment) -> None:
    """CASES 106: a race between the check and the read."""
    line = "while :; do echo ours > f; ln -sf /etc/passwd f2; mv -f f2 f; rm -f f; done"
    async with await real.open_session(small(wall_seconds=20)) as session:
        running = await session.start(shell(line))
        for _ in range(150):
            try:
                content = await read(session, "f")
            except FileRefused:
                continue
            assert content in (b"ours\n", b"")
        await running.cancel()
        assert (await soon(running.wait())).outcome is Outcome.CANCELLED


async def test_a_file_that_grows_is_read_at_its_size(real: ExecutionEnvironment) -> None:
    """CASES 88: its size is fixed when it is opened."""
    async with await real.open_session(small(wall_seconds=20)) as session:
        await session.write_file("f", b"x" * 100_000)
        running = await session.start(shell("while :; do echo yyyy >> f; done"))
        for _ in range(20):
            assert len(await read(session, "f")) >= 100_000
        await running.cancel()
        assert (await soon(running.wait())).outcome is Outcome.CANCELLED


async def test_a_file_that_shrinks_is_refused_and_not_padded(real: ExecutionEnvironment) -> None:
    """CASES 54: an error, never a short file."""
    async with await real.open_session(small(wall_seconds=20)) as session:
        await session.write_file("f", b"x" * (8 * MIB))
        reading = session.read_file("f")
        got = len(await anext(reading))
        assert (await session.run(shell(": > f"))).ok
        with pytest.raises(FileRefused, match="shrank"):
            async for piece in reading:
                got += len(piece)
        assert got < 8 * MIB
        assert await read(session, "f") == b""


async def test_a_sparse_file_is_refused_at_the_ceiling(real: ExecutionEnvironment) -> None:
    """CASES 88: copying a sparse file blows the quota."""
    execution = await real.run(
        shell("truncate -s 60M x", artefacts=("x",)), small(artefact_bytes=MIB)
    )
    assert execution.ok, explain(execution)
    assert execution.artefacts == ()
    execution = await real.run(command("truncate", "-s", "50G", "x"))
    assert execution.outcome is Outcome.DISK, explain(execution)


async def test_a_full_disk_harms_this_sandbox_alone(real: ExecutionEnvironment) -> None:
    """CASES 20, 92: one full disk kills all.

    20 is of a disk whose sector fails (EIO). A workspace is memory and has none: what can fail
    there is that there is no more of it.
    """
    full = await real.open_session(small(disk_bytes=MIB))
    async with full, await real.open_session(small(disk_bytes=MIB)) as other:
        execution = await full.run(shell("head -c 9M /dev/zero > f"))
        assert execution.outcome is Outcome.DISK, explain(execution)
        await other.write_file("f", b"x" * 500_000)
        assert len(await read(other, "f")) == 500_000
        assert stdout_of(await full.run(shell("rm f; echo ok > g; cat g"))) == "ok\n"


async def test_many_open_files_are_an_error_and_no_short_list(real: ExecutionEnvironment) -> None:
    """CASES 54: when descriptors run out, files vanish from listings."""
    text = (
        "import os\nopen('f', 'w').close()\nheld = []\n"
        "try:\n    while True: held.append(os.open('f', 0))\n"
        "except OSError: pass\n"
        "try: print(os.listdir('.'))\nexcept OSError as e: print(e.strerror)"
    )
    async with await real.open_session(small(open_files=128)) as session:
        assert stdout_of(await session.run(source(text))) == "Too many open files\n"
        assert [entry.name for entry in await session.list_files()] == ["f"]


async def test_writes_stay_across_many_executions(real: ExecutionEnvironment) -> None:
    """CASES 6, 53: writes are lost across a stop and a start."""
    async with await real.open_session() as session:
        for number in range(30):
            await session.run(shell(f"echo {number} >> log"))
        assert (await read(session, "log")).split() == [b"%d" % n for n in range(30)]


async def test_files_left_open_at_exit_are_written(real: ExecutionEnvironment) -> None:
    """CASES 53: what a program wrote is lost though it ended well."""
    text = (
        "import csv, logging\nf = open('a', 'w'); f.write('one')\n"
        "g = open('b', 'wb'); g.write(b'two')\nkept = [open('c', 'w')]; kept[0].write('three')\n"
        "def f2():\n    global h\n    h = open('d', 'w'); csv.writer(h).writerow([4])\nf2()\n"
        "logging.basicConfig(filename='e'); logging.warning('five')\n"
        "class K:\n    held = open('f', 'w')\nK.held.write('six')\n"
        "import json; json.held = open('g', 'w'); json.held.write('seven')\n"
        "def gen():\n    with open('h', 'w') as x:\n        x.write('eight'); yield\nit = gen(); next(it)\n"
    )
    for fresh in (False, True):
        execution = await real.run(source(text, fresh=fresh, artefacts=tuple("abcdefgh")))
        assert execution.ok, explain(execution)
        assert {a.name: a.data for a in execution.artefacts} == {
            "a": b"one",
            "b": b"two",
            "c": b"three",
            "d": b"4\r\n",
            "e": b"WARNING:root:five\n",
            "f": b"six",
            "g": b"seven",
            "h": b"eight",
        }
