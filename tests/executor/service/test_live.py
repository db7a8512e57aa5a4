"""The service before a tier that runs programs: what only a real sandbox can show."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.contract.kit import living, marker, until, until_living

from stockade.api.frames import FrameType
from stockade.executor import PoolPolicy, open_local
from stockade.port import Outcome, Tier

from .kit import Caller, record_of, serving

pytestmark = [
    pytest.mark.tier("namespace"),
    pytest.mark.plain_user,
    pytest.mark.asyncio(loop_scope="module"),
]
SLEEP = "import os, sys; os.write(1, b'up'); os.execvp('sleep', ['sleep', '{}'])"
# It forks, leaves its group and ignores what it can.
HIDE = """
import os, signal
for n in signal.valid_signals() - {9, 19, 17}: signal.signal(n, signal.SIG_IGN)
if os.fork() == 0: os.setsid()
os.write(1, b'up')
os.execvp('sleep', ['sleep', '%s'])
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Caller]:
    folder: Path = tmp_path_factory.mktemp("service")
    async with (
        open_local(pool=PoolPolicy.fixed(2), tiers={Tier.NAMESPACE}) as environment,
        serving(environment, folder) as found,
    ):
        yield found


async def test_a_caller_who_leaves_leaves_nothing(caller: Caller) -> None:
    mark = marker()
    async with caller.running(source=HIDE % mark) as (_, _, frames):
        await anext(frames)
        await until_living(mark, 2)
    await until(lambda: not living(mark), 5)
    assert caller.service is not None
    async with asyncio.timeout(5):
        await caller.service.executions.ended()


async def test_a_lease_that_ends_leaves_nothing(caller: Caller) -> None:
    mark = marker()
    path = f"/v1/sandboxes/{await caller.open(1)}"
    async with caller.running(f"{path}/executions", source=HIDE % mark) as (_, _, frames):
        await until_living(mark, 2)
        rest = [frame async for frame in frames]
    assert living(mark) == []
    assert b'"cancelled"' in next(f.payload for f in rest if f.type is FrameType.RECORD)


async def test_a_slow_reader_holds_back_its_own_guest_alone(caller: Caller) -> None:
    source = "import os\nwhile True: os.write(1, b'x' * 65536)"
    sandbox = {"limits": {"output_bytes": 10**11, "wall_seconds": 60}}
    async with caller.running(source=source, sandbox=sandbox) as (identity, _, frames):
        await asyncio.sleep(1)
        assert (await caller.run("print(1)")).record.ok
        assert (await caller.call("POST", f"/v1/executions/{identity}/cancel")).status == 204
        total, last = 0, None
        async with asyncio.timeout(10):
            async for frame in frames:
                total += len(frame.payload) * (frame.type is FrameType.STDOUT)
                last = frame.type
        assert last is FrameType.END
        # What fits between the two, and not what it could have written meanwhile.
        assert total < 20_000_000


async def test_all_output_comes_before_the_record(caller: Caller) -> None:
    for _ in range(5):
        frames = (await caller.run("for n in range(200000): print(n)")).frames
        text = b"".join(frame.payload for frame in frames if frame.type is FrameType.STDOUT)
        assert text == b"".join(b"%d\n" % n for n in range(200_000))
        assert record_of(frames).stdout.total == len(text)


async def test_typed_input_arrives_as_it_is_typed(caller: Caller) -> None:
    source = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    async with (
        caller.running(source=source, stdin=None) as (identity, _, frames),
        await caller.connect() as wire,
    ):
        chunked: dict[str, str | None] = {"Transfer-Encoding": "chunked"}
        await wire.send(caller.head("PUT", f"/v1/executions/{identity}/stdin", chunked))
        for word in (b"one\n", b"two\n"):
            await wire.send(b"%x\r\n%b\r\n" % (len(word), word))
            assert (await anext(frames)).payload == word.upper()
        await wire.send(b"0\r\n\r\n")
        assert (await wire.answer()).status == 204
        rest = [frame async for frame in frames]
    assert rest[-1].type is FrameType.END


async def test_input_that_breaks_off_is_no_end(caller: Caller) -> None:
    source = "import sys; sys.stdin.read(); print('took it for the end')"
    async with caller.running(source=source, stdin=None) as (identity, _, frames):
        async with await caller.connect() as wire:
            await wire.send(caller.head("PUT", f"/v1/executions/{identity}/stdin", None, 100))
            await wire.send(b"part")
            await asyncio.sleep(0.2)
        rest = [frame async for frame in frames]
    assert b'"cancelled"' in rest[-2].payload
    assert not any(frame.type is FrameType.STDOUT for frame in rest)


async def test_input_that_nobody_reads(caller: Caller) -> None:
    async with caller.running(source="print(1)", stdin=None) as (identity, _, frames):
        path = f"/v1/executions/{identity}/stdin"
        async with asyncio.timeout(10):
            answer = await caller.call("PUT", path, b"x" * 3_000_000)
        assert answer.status in (204, 404)
        assert [frame async for frame in frames][-1].type is FrameType.END


async def test_a_file_that_breaks_off_is_not_written_whole(caller: Caller) -> None:
    path = f"/v1/sandboxes/{await caller.open()}/files/f"
    await caller.call("PUT", path, b"old")
    async with await caller.connect() as wire:
        await wire.send(caller.head("PUT", path, None, 5_000_000))
        await wire.send(b"x" * 1_000_000)
        await asyncio.sleep(0.2)
    await asyncio.sleep(0.2)
    answer = await caller.call("GET", path)
    assert answer.status == 422 or len(answer.body) < 5_000_000
    assert (await caller.call("PUT", path, b"new")).status == 204
    assert (await caller.call("GET", path)).body == b"new"


async def test_files_of_every_size_come_back(caller: Caller) -> None:
    path = f"/v1/sandboxes/{await caller.open()}/files"
    for size in (0, 1, 17_000, 19_000, 65_536, 1_000_000, 12_000_000):
        data = bytes(1000) * (size // 1000) + b"y" * (size % 1000)
        assert (await caller.call("PUT", f"{path}/f", data)).status == 204
        answer = await caller.call("GET", f"{path}/f")
        assert answer.whole, caller.log.getvalue()[-2000:]
        assert answer.body == data


async def test_what_a_program_planted_is_not_followed(caller: Caller) -> None:
    path = f"/v1/sandboxes/{await caller.open()}"
    plant = {"program": {"kind": "command", "argv": ["ln", "-s", "/", "x"]}}
    assert (await caller.call("POST", f"{path}/executions", plant)).record.ok
    for below in ("/files/x/etc/passwd", "/folders/x", "/folders/x/etc"):
        assert (await caller.call("GET", path + below)).code == "file_refused"


async def test_a_workspace_moves_to_another_sandbox(caller: Caller) -> None:
    first, second = [f"/v1/sandboxes/{await caller.open()}" for _ in range(2)]
    await caller.call("PUT", f"{first}/files/d/f", b"x" * 1_000_000)
    saved = await caller.call("GET", f"{first}/workspace")
    assert saved.whole
    assert (await caller.call("PUT", f"{second}/workspace", saved.body)).status == 204
    assert (await caller.call("GET", f"{second}/files/d/f")).body == b"x" * 1_000_000
    cut = await caller.call("PUT", f"{second}/workspace", saved.body[:500_000])
    assert cut.code == "file_refused"


async def test_a_workspace_that_breaks_off_on_its_way_in_costs_no_session(caller: Caller) -> None:
    path = f"/v1/sandboxes/{await caller.open()}"
    saved = await caller.call("GET", f"{path}/workspace")
    async with await caller.connect() as wire:
        await wire.send(caller.head("PUT", f"{path}/workspace", None, 10_000_000) + saved.body)
        await asyncio.sleep(0.3)
    async with asyncio.timeout(10):
        program = {"program": {"kind": "python", "source": "print(1)"}}
        while (answer := await caller.call("POST", f"{path}/executions", program)).status == 409:
            await asyncio.sleep(0.05)
    assert answer.record.ok


async def test_a_reader_of_a_workspace_who_leaves_costs_no_session(caller: Caller) -> None:
    path = f"/v1/sandboxes/{await caller.open()}"
    await caller.call("PUT", f"{path}/files/f", bytes(range(256)) * 80_000)
    async with await caller.connect() as wire:
        await wire.send(caller.head("GET", f"{path}/workspace"))
        await wire.head()
        await anext(wire.chunks())
    async with asyncio.timeout(10):
        program = {"program": {"kind": "python", "source": "print(1)"}}
        while (answer := await caller.call("POST", f"{path}/executions", program)).status == 409:
            await asyncio.sleep(0.05)
    assert answer.record.ok


async def test_a_hostile_workspace_stays_inside(caller: Caller) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("../../../../tmp/escaped-workspace", "/tmp/escaped-workspace"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    path = f"/v1/sandboxes/{await caller.open()}"
    await caller.call("PUT", f"{path}/workspace", buffer.getvalue())
    assert not Path("/tmp/escaped-workspace").exists()


async def test_a_limit_is_an_outcome_and_no_problem(caller: Caller) -> None:
    answer = await caller.run("while True: pass", sandbox={"limits": {"wall_seconds": 0.5}})
    assert answer.record.outcome is Outcome.WALL_CLOCK


async def test_pools_are_seen(caller: Caller) -> None:
    metrics = (await caller.call("GET", "/metrics")).body.decode()
    assert "stockade_pool_hits_total" in metrics
    assert "stockade_pool_parked " in metrics
