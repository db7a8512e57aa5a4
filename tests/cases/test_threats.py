"""Threats of docs/threats.md that no other test keeps; the numbers are those of that page."""

import asyncio
import itertools
import os
from pathlib import Path

import pytest
from tests.contract.kit import (
    Heard,
    command,
    enforced,
    explain,
    living,
    marker,
    script,
    shell,
    sleeper,
    small,
    soon,
    source,
    stdout_of,
    until_up,
)
from tests.contract.traits import Traits

from stockade.port import (
    MIB,
    ExecutionEnvironment,
    ExecutionRequest,
    Outcome,
    SandboxRequest,
    Stream,
    TerminalSize,
    Tier,
)

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]


async def test_mounts_stay_as_they_are(real: ExecutionEnvironment, traits: Traits) -> None:
    """5, 6: no mount is made once guest code has run, so there is none to race against."""
    text = (
        "import os\n"
        "print(open('/proc/self/mountinfo').read())\n"
        "try: os.symlink('/proc', 'workspace')\nexcept FileExistsError: pass"
    )
    async with await real.open_session() as session:
        first = stdout_of(await session.run(source(text)))
        assert "/workspace" in first
        for _ in range(traits.rounds(100)):
            await session.run(shell("ln -sfn / link; mkdir -p proc; cd link"))
        assert stdout_of(await session.run(source(text))) == first


async def test_names_with_a_common_prefix(real: ExecutionEnvironment) -> None:
    """33: what is asked for by one name is not answered by another that begins alike."""
    made = "mkdir dir dir2 'dir '; echo 1 > dir/f; echo 2 > dir2/f; echo 3 > 'dir /f'; echo 4 > di"
    names = ("dir/f", "dir2/f", "dir /f", "di", "d", "dir", "dir2/", "dir3/f")
    plain = tuple(name for name in names if not name.endswith("/"))
    execution = await real.run(shell(made, artefacts=plain))
    came = {artefact.name: artefact.data for artefact in execution.artefacts}
    assert came == {"dir/f": b"1\n", "dir2/f": b"2\n", "dir /f": b"3\n", "di": b"4\n"}
    assert {missing.name for missing in execution.missing_artefacts} == {"d", "dir", "dir3/f"}
    async with await real.open_session() as session:
        await session.run(shell(made))
        for folder in ("dir", "dir2", "dir "):
            assert [entry.name for entry in await session.list_files(folder)] == ["f"]
        assert [e.name for e in await session.list_files()] == ["di", "dir", "dir ", "dir2"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: ids of their own")
async def test_live_sandboxes_have_host_ids_of_their_own(
    real: ExecutionEnvironment, traits: Traits
) -> None:
    """22: of one tenant as of two. In a kernel of its own a guest is no process of the host's."""
    if not traits.shows_guests:
        pytest.skip("the guest has no process of the host's to look at")
    running, ids = [], []
    for tenant in ("a", "a", "a", "b", "b"):
        mark, heard = marker(), Heard()
        running.append(
            await real.start(sleeper(mark), SandboxRequest(tenant=tenant), on_output=heard)
        )
        await until_up(heard, mark, traits)
        (pid,) = living(mark)
        status = Path(f"/proc/{pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("Uid:"))
        real_id, *others = map(int, line.split()[1:])
        assert set(others) == {real_id}
        ids.append(real_id)
    for execution in running:
        await execution.cancel()
        await execution.wait()
    assert len(set(ids)) == len(ids)
    assert min(ids) > 65_534  # neither root nor anybody else whom the host knows


@pytest.mark.parametrize(
    "text",
    [
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import os\nos.fork()\nos.fork()\nwhile True: pass",
    ],
    ids=["fork bomb", "spin"],
)
async def test_a_neighbour_goes_on_beside(
    real: ExecutionEnvironment, traits: Traits, text: str
) -> None:
    """25, 68: others get on while it lasts. How fast is measured by no test."""
    attacker = await real.start(
        source(f"print('up', flush=True)\n{text}"),
        small(wall_seconds=60, cpu_seconds=120, processes=100, cpus=1),
    )
    for number in range(max(3, traits.rounds(10))):
        execution = await soon(real.run(source(f"print({number})")), 30)
        assert stdout_of(execution) == f"{number}\n"
    ended = asyncio.ensure_future(attacker.wait())
    await asyncio.sleep(0)
    assert not ended.done(), explain(ended.result())
    await attacker.cancel()
    execution = await soon(ended, 10)
    assert execution.outcome is Outcome.CANCELLED, explain(execution)
    assert execution.stdout.content.startswith(b"up\n")


async def test_attributes_of_files_are_no_room_beside_the_disk(real: ExecutionEnvironment) -> None:
    """39: extended attributes hold what no ceiling on bytes counts."""
    text = (
        "import os\nheld = 0\n"
        "for n in range(2000):\n"
        "    open(f'f{n}', 'w').close()\n"
        "    for m in range(8):\n"
        "        try: os.setxattr(f'f{n}', f'user.a{m}', bytes(60_000)); held += 60_000\n"
        "        except OSError: break\n"
        "print(held)"
    )
    sandbox = small(memory_bytes=64 * MIB, disk_bytes=8 * MIB, inodes=4000)
    execution = await real.run(source(text), sandbox)
    if execution.ok:
        if execution.tier is Tier.GVISOR and not enforced(execution, "memory_bytes"):
            pytest.skip("no cgroup counts what gVisor's kernel keeps: a known limit")
        assert int(execution.stdout.text()) <= 64 * MIB
    else:
        assert execution.outcome in (Outcome.MEMORY, Outcome.DISK, Outcome.INODES), explain(
            execution
        )


FILLS = {
    "cache of files": "f = os.memfd_create('x'); os.write(f, bytes(2 << 20))",
    "huge pages": "f = mmap.mmap(-1, 2 << 20, flags=0x40022); f.write(bytes(2 << 20))",
}


@pytest.mark.parametrize("fill", FILLS)
async def test_memory_of_every_kind_counts(real: ExecutionEnvironment, fill: str) -> None:
    """67: the page cache, of a file without a name; pages of another size."""
    text = f"import mmap, os\nheld = []\nwhile len(held) < 200:\n    {FILLS[fill]}; held.append(f)"
    execution = await real.run(source(text), small(memory_bytes=128 * MIB))
    if not enforced(execution, "memory_bytes"):
        pytest.skip("no cgroup counts memory here: a known limit")
    if fill == "huge pages":
        # No controller of memory counts the host's: they are refused.
        assert b"Operation not permitted" in execution.stderr.content, explain(execution)
    else:
        assert execution.outcome is Outcome.MEMORY, explain(execution)


# --- cases of a platform's operator ---

CONTROLS = """
import os, sys
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
print(status.get('NoNewPrivs', '1').strip(), status['Seccomp'].strip())
print({status.get(name, '0').strip().strip('0') for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')})
for path in ('/usr/f', '/opt/stockade/f', '/f'):
    try: open(path, 'w')
    except OSError as error: print(type(error).__name__)
import socket
try: socket.create_connection(('169.254.169.254', 80), 1)
except OSError: print('no network')
"""
KINDS = {
    "source": lambda **more: source(CONTROLS, **more),
    "fresh": lambda **more: source(CONTROLS, fresh=True, **more),
    "script": lambda **more: script("prog.py", CONTROLS, **more),
    "command": lambda **more: command("python3", "-c", CONTROLS, **more),
}
"""Makes a request of each kind."""


@pytest.mark.parametrize("kind", KINDS)
async def test_every_combination_has_every_control(
    real: ExecutionEnvironment, traits: Traits, kind: str
) -> None:
    """CASES 140: with one setting the filter was left out, with another no_new_privs."""
    failures = 3
    for terminal, limited, tenant, in_session in itertools.product(
        (None, TerminalSize(24, 80)), (False, True), ("local", "other"), (False, True)
    ):
        request: ExecutionRequest = KINDS[kind](terminal=terminal)
        limits = {"memory_bytes": 256 * MIB, "open_files": 64, "cpus": 1} if limited else {}
        sandbox = SandboxRequest(tenant=tenant, limits=small(**limits).limits)
        if in_session:
            async with await real.open_session(sandbox) as session:
                execution = await session.run(request)
        else:
            execution = await real.run(request, sandbox)
        lines = stdout_of(execution).split()
        # gVisor's kernel has a filter of the guest's loaded, too, and tells it the same way.
        assert lines[:2] == ["1", "2"], (terminal, limited, tenant, in_session)
        assert lines[2] == "{''}"
        assert len(lines) == 3 + failures + 2, lines
        assert all(line in ("OSError", "PermissionError") for line in lines[3 : 3 + failures])


async def test_a_blocked_reader_costs_no_memory(real: ExecutionEnvironment) -> None:
    """CASES 21: the collector is down. A hundred megabytes wait where they were written."""
    before, blocked, heard = resident(), asyncio.Event(), 0

    async def sink(stream: Stream, data: bytes) -> None:
        nonlocal heard
        heard += len(data)
        await blocked.wait()

    size = 100 * MIB
    running = await real.start(
        command("head", "-c", str(size), "/dev/zero"),
        small(output_bytes=size, record_bytes=1000),
        on_output=sink,
    )
    await asyncio.sleep(1)
    assert 0 < heard < MIB
    assert resident() - before < 16 * MIB
    blocked.set()
    execution = await running.wait()
    assert (execution.ok, heard) == (True, size), explain(execution)
    # How much was not kept is told.
    assert execution.stdout.dropped == size - 1000


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
