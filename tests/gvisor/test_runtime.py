"""Driving a runsc that misbehaves: whatever it does is told in a sentence, and nothing is left."""

import asyncio
import contextlib
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from tests.contract.kit import descendants, descriptors, until

from stockade.executor.gvisor import runtime
from stockade.executor.gvisor.runsc import Runsc
from stockade.executor.gvisor.runtime import FLAGS, Guest, Runtime
from stockade.executor.gvisor.snapshot import Template
from stockade.port import Unavailable

pytestmark = pytest.mark.tier("gvisor")

Fake = Callable[[str], Runtime]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fake_runsc.c, compiled as ./dev compiles."""
    path = tmp_path_factory.mktemp("fake") / "fake"
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    source = Path(__file__).with_name("fake_runsc.c")
    subprocess.run([*compiler, "-static", "-o", path, source], check=True, timeout=60)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the executor keeps what runsc writes."""
    made = tmp_path / "state"
    made.mkdir()
    return made


@pytest_asyncio.fixture
async def fake(program: Path, folder: Path, tmp_path: Path) -> AsyncIterator[Fake]:
    """A runtime whose runsc behaves as it is called; nothing of it is left afterwards."""
    before = set(descendants()), descriptors()

    def make(name: str) -> Runtime:
        path = tmp_path / name
        if not path.exists():  # one that is being killed may still run it
            shutil.copy(program, path)
        return Runtime(Runsc(path, "20990101.0"), folder, None)

    yield make
    await until(lambda: set(descendants()) <= before[0])
    await until(lambda: len(descriptors()) <= len(before[1]))
    assert list(folder.iterdir()) == []


async def end(guest: Guest) -> None:
    """Kill it and wait, as a boundary does."""
    with contextlib.suppress(ProcessLookupError):
        guest._process.kill()
    await guest.ended()
    guest.close()


async def test_one_that_exits_at_once(fake: Fake, tmp_path: Path) -> None:
    guest = await fake("exits").run("g1", tmp_path)
    with pytest.raises(Unavailable) as refused:
        await guest.ready()
    # On one line, without what a terminal would obey.
    assert str(refused.value) == "gVisor's guest did not start:  nothing works [31m here"
    await end(guest)


@pytest.mark.parametrize("name", ["garbage", "early"])
async def test_one_that_says_something_else(fake: Fake, tmp_path: Path, name: str) -> None:
    guest = await fake(name).run("g1", tmp_path)
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"gVisor's guest did not start: (garbage!|\.\.)$"):
        await guest.ready()
    # It lives and may say no last word: that is waited for a little only.
    assert time.monotonic() - began < 30
    await end(guest)


async def test_one_that_hangs(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "START_SECONDS", 0.2)
    guest = await fake("hangs").run("g1", tmp_path)
    with pytest.raises(Unavailable, match=r"was not ready within 0\.2 s"):
        await guest.ready()
    await end(guest)


async def test_one_that_closes_its_streams(fake: Fake, tmp_path: Path) -> None:
    guest = await fake("deaf").run("g1", tmp_path)
    with pytest.raises(Unavailable, match="gVisor's guest did not start"):
        await guest.ready()
    await end(guest)


async def test_one_that_talks_without_end_is_read_and_not_kept(fake: Fake, tmp_path: Path) -> None:
    guest = await fake("floods").run("g1", tmp_path)
    with pytest.raises(Unavailable, match=r"^gVisor's guest did not start: *x+ last words$") as no:
        await guest.ready()
    assert len(str(no.value)) < 600
    assert len(guest._words) <= 4096
    await end(guest)


async def test_words_do_not_hold_it_up(fake: Fake, tmp_path: Path) -> None:
    """Nobody asked for them, and it is ready all the same."""
    guest = await fake("floods-and-is-ready").run("g1", tmp_path)
    await asyncio.wait_for(guest.ready(), 20)
    guest.send_on()
    assert guest.words.endswith("last words")
    await end(guest)


async def test_one_that_is_not_there(fake: Fake, folder: Path, tmp_path: Path) -> None:
    gone = Runtime(Runsc(tmp_path / "gone", "20990101.0"), folder, None)
    with pytest.raises(Unavailable, match=r"did not start: .*/gone: No such file or directory$"):
        await gone.run("g1", tmp_path)


async def test_what_it_is_told(fake: Fake, folder: Path, tmp_path: Path) -> None:
    """The flags that the boundary rests on, and a folder of its own."""
    guest = await fake("tells").restore("g7", tmp_path / "bundle", tmp_path / "image")
    with pytest.raises(Unavailable):
        await guest.ready()
    words = bytes(guest._words).decode().split()
    assert words[0] == f"--root={folder / 'g7'}"
    assert {"--network=none", "--directfs=false", "--overlay2=none"} <= set(FLAGS) <= set(words)
    assert words[-7:] == [
        *("restore", "-detach", "-bundle", str(tmp_path / "bundle")),
        *("-image-path", str(tmp_path / "image")),
        "g7",
    ]
    await end(guest)


async def test_a_checkpoint_that_fails(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"could not save the warm guest: nothing works .*here$"):
        await fake("exits").checkpoint("g1", tmp_path)


async def test_a_checkpoint_that_hangs(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "CHECKPOINT_SECONDS", 0.2)
    with pytest.raises(Unavailable, match=r"did not save the warm guest within 0\.2 s"):
        await fake("hangs").checkpoint("g1", tmp_path)


async def test_a_checkpoint_that_talks_without_end(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"could not save the warm guest: x+ last words$"):
        await fake("floods").checkpoint("g1", tmp_path)


@pytest.mark.parametrize("name", ["exits", "garbage", "floods", "deaf"])
async def test_a_template_that_cannot_be_saved(fake: Fake, tmp_path: Path, name: str) -> None:
    template = Template(fake(name), tmp_path / "t1")
    template.write(tmp_path / "root", [], 1 << 20, ())
    with pytest.raises(Unavailable):
        await template.save([])
    assert not template.saved
    template.remove()


@pytest.mark.parametrize("pause", [0, 0.0005, 0.002, 0.005, 0.01, 0.03])
async def test_cancelled_at_any_time(fake: Fake, tmp_path: Path, pause: float) -> None:
    """Neither a process nor a descriptor is left: the fixture looks."""
    for _ in range(3):
        task = asyncio.create_task(fake("hangs").run("g1", tmp_path))
        await asyncio.sleep(pause)
        task.cancel()
        try:
            guest = await task
        except asyncio.CancelledError:
            continue
        await end(guest)
