"""What the record says of where and how an execution was kept."""

import asyncio
import re
import time
from dataclasses import fields

import pytest

from stockade.port import (
    Enforcement,
    ExecutionEnvironment,
    Limits,
    SandboxRequest,
)
from stockade.port.fake import Scripted

from .fixtures import Port
from .kit import command, explain, shell, small, source, stdout_of
from .traits import Traits

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]


async def test_tier_and_image(real: ExecutionEnvironment) -> None:
    first = await real.run(command("true"))
    assert first.tier is not None
    second = await real.run(command("true"), SandboxRequest(tenant="another", tier=first.tier))
    assert second.tier is first.tier
    assert first.image == second.image
    assert re.fullmatch(r"[a-z-]*sha256:[0-9a-f]{64}", first.image or "")


async def test_every_limit_says_how_it_was_kept(port: Port) -> None:
    execution = await port().run(command("true"))
    assert set(execution.enforcement) == {field.name for field in fields(Limits)}
    assert set(execution.enforcement.values()) <= set(Enforcement)
    assert execution.enforcement["wall_seconds"] is Enforcement.ENFORCED


async def test_what_is_called_enforced_is_not_absent_in_use(real: ExecutionEnvironment) -> None:
    execution = await real.run(source("x = bytearray(b'x') * 30_000_000"))
    usage = execution.usage
    if execution.enforcement["memory_bytes"] is Enforcement.ENFORCED:
        assert usage.peak_memory_bytes is not None
        assert usage.peak_memory_bytes > 30_000_000
    assert usage.cpu_seconds is not None
    assert 0 < usage.cpu_seconds < 5
    assert usage.peak_processes is None or usage.peak_processes >= 1


async def test_timings_are_sane(port: Port) -> None:
    began = time.monotonic()
    execution = await port(Scripted(delay=0.2)).run(command("sleep", "0.2"))
    total = time.monotonic() - began
    timings = execution.timings
    assert 0.2 <= timings.ran <= total
    assert 0 <= timings.waited <= total
    assert 0 <= timings.set_up <= total
    assert timings.waited + timings.set_up + timings.ran <= total + 0.001
    assert execution.usage.wall_seconds == pytest.approx(timings.ran, abs=0.1)


async def test_usage_counts_what_was_written(port: Port) -> None:
    execution = await port(Scripted(stdout=b"abc", stderr=b"de", result=b"f")).run(
        shell("printf abc; printf de >&2; printf f >&3")
    )
    assert execution.usage.written_bytes == 6


async def test_usage_of_the_workspace(real: ExecutionEnvironment, traits: Traits) -> None:
    execution = await real.run(shell("head -c 100000 /dev/zero > a; mkdir b; touch b/c /tmp/d"))
    assert execution.usage.inodes == (4 if traits.counts_inodes else None)
    assert execution.usage.disk_bytes is not None
    assert 100_000 <= execution.usage.disk_bytes < 120_000


async def test_an_execution_that_did_nothing_used_little(real: ExecutionEnvironment) -> None:
    """What parking cost is not the execution's."""
    execution = await real.run(source(""))
    assert execution.usage.cpu_seconds is None or execution.usage.cpu_seconds < 0.6
    assert execution.usage.disk_bytes in (0, None)
    assert execution.usage.inodes in (0, None)


async def test_the_cpu_count_is_the_one_that_was_granted(real: ExecutionEnvironment) -> None:
    text = "import os; print(len(os.sched_getaffinity(0)))"
    limits = small(cpus=1)
    for request in (command("nproc"), source(text), source(text, fresh=True)):
        assert stdout_of(await real.run(request, limits)) == "1\n"


async def test_a_cpu_share_below_one_slows_down(real: ExecutionEnvironment) -> None:
    # From where it begins: what it took to start the interpreter is the process's, too.
    text = "import time\nb = time.process_time()\nwhile time.process_time() - b < 0.3: pass"
    execution = await real.run(source(text), small(cpus=0.25, wall_seconds=20))
    assert execution.ok, explain(execution)
    if execution.enforcement["cpus"] is Enforcement.ENFORCED:
        # By the host's count: a guest's clock may run on while it has to wait.
        assert execution.usage.cpu_seconds is not None
        assert execution.usage.wall_seconds > 2 * execution.usage.cpu_seconds


# --- a fresh interpreter, and what siblings must not share ---

UNIQUE = (
    "import os, random, secrets, tempfile, uuid, sys\n"
    "values = [random.random(), random.SystemRandom().random(), uuid.uuid4(), uuid.uuid1(),\n"
    "  secrets.token_hex(8), os.urandom(8).hex(), next(tempfile._get_candidate_names()),\n"
    "  os.path.basename(tempfile.mkdtemp()), id(object()) if 'fresh' in sys.argv else random.getrandbits(60)]\n"
    "try:\n"
    "    import ssl; values.append(ssl.RAND_bytes(8).hex())\n"
    "except ImportError: pass\n"
    "try:\n"
    "    import numpy; values += [numpy.random.rand(), numpy.random.default_rng().random()]\n"
    "except ImportError: pass\n"
    "if 'fresh' in sys.argv: values += [hash('stockade')] + [l.split()[0] for l in open('/proc/self/maps') if '[stack]' in l or 'libc' in l][-2:]\n"
    "print(*values, sep='\\n')"
)


@pytest.mark.parametrize("fresh", [False, True])
async def test_siblings_share_no_random_state(real: ExecutionEnvironment, fresh: bool) -> None:
    arguments = ["fresh"] if fresh else []
    records = await asyncio.gather(
        *(real.run(source(UNIQUE, *arguments, fresh=fresh)) for _ in range(6))
    )
    rows = [stdout_of(record).splitlines() for record in records]
    for column in zip(*rows, strict=True):
        assert len(set(column)) == len(rows), column


async def test_what_was_seeded_is_repeatable(real: ExecutionEnvironment) -> None:
    request = source("import random; random.seed(7); print(random.random())")
    first, second = await real.run(request), await real.run(request)
    assert stdout_of(first) == stdout_of(second) == "0.32383276483316237\n"


@pytest.mark.parametrize("fresh", [False, True])
async def test_the_interpreter_is_as_python3_starts_it(
    real: ExecutionEnvironment, fresh: bool
) -> None:
    text = (
        "import sys, site\n"
        "flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if name[0] != '_' and not "
        "callable(getattr(sys.flags, name))}\n"
        "print({name: value for name, value in flags.items() if value and name not in "
        "('gil', 'hash_randomization', 'int_max_str_digits', 'n_fields', 'n_sequence_fields', "
        "'n_unnamed_fields', 'no_site')})\n"
        "print(sys.executable, sys.dont_write_bytecode, sys.warnoptions)"
    )
    execution = await real.run(source(text, fresh=fresh))
    assert stdout_of(execution) == "{}\n/usr/bin/python3 False []\n"
