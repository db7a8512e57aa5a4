"""The adapter for Firecracker against a program of the shape of its API.

That is no test of Firecracker: nobody has run one with it, and it is experimental for that.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from tests.contract.kit import descendants, descriptors, until

from stockade.executor.microvm import firecracker, vmm
from stockade.executor.microvm.firecracker import VARIABLE, FirecrackerVmm, find_firecracker
from stockade.executor.microvm.jail import Jail
from stockade.executor.microvm.snapshot import Template
from stockade.executor.microvm.vmm import Machine, Vmm, abandon
from stockade.executor.supervised import readable
from stockade.executor.templates import TemplateDamaged
from stockade.port import Unavailable

pytestmark = pytest.mark.tier("namespace")

Fake = Callable[[str], FirecrackerVmm]


@pytest_asyncio.fixture
async def fake(
    folder: Path, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Fake]:
    """Behaves as it is called; nothing of it is left afterwards."""
    before = set(descendants()), descriptors()

    def make(name: str) -> FirecrackerVmm:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        shutil.copy(Path(__file__).with_name("fake_firecracker.py"), path)
        path.chmod(0o755)
        monkeypatch.setenv(VARIABLE, str(path))
        return FirecrackerVmm(find_firecracker(), Jail(folder, None))

    yield make
    await until(lambda: set(descendants()) <= before[0])
    await until(lambda: len(descriptors()) <= len(before[1]))
    assert list(folder.iterdir()) == []


async def test_from_boot_to_copies(fake: Fake, machine: Machine, folder: Path) -> None:
    made: Vmm = fake("good")
    assert made.experimental
    template = Template(made, machine, folder / "t1")
    await template.save(())
    assert (folder / "t1/state").read_bytes() == b"snapshot_path"
    for number in range(2):
        guest = await template.start(f"m{number}", (), ())
        guest.send_on(1 << 20, 100)
        async with asyncio.timeout(20):
            await readable(guest.from_guest)
        answer = os.read(guest.from_guest, 100)
        assert answer[:3] == b"GO."
        assert len(answer) == 2 + 57
        assert guest.console == "the guest's console"
        await abandon(guest)
    template.remove()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("boot-source", "PUT /boot-source: 400 not today [31m"),
        ("actions", "PUT /actions: 400 not today [31m"),
        ("snapshot-create", "PUT /snapshot/create: 400 not today [31m"),
        ("floods", "PUT /machine-config: no answer: LimitOverrunError"),
        ("long-body", "PUT /machine-config: what came is no answer"),
        ("hangs-up", "PUT /machine-config: no answer: "),
        ("bad-json", "PUT /machine-config: no answer: WireViolation"),
    ],
)
async def test_one_that_does_not_do_as_it_is_told(
    fake: Fake, machine: Machine, folder: Path, name: str, reason: str
) -> None:
    with pytest.raises(Unavailable) as refused:
        await Template(fake(name), machine, folder / "t1").save(())
    assert reason in str(refused.value)


@pytest.mark.parametrize(("name", "words"), [("mute", ""), ("exits", "firecracker: nothing works")])
async def test_one_that_is_not_heard(
    fake: Fake,
    machine: Machine,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    words: str,
) -> None:
    monkeypatch.setattr(firecracker, "API_SECONDS", 0.5)
    with pytest.raises(Unavailable, match=r"did not do as it was told within 0\.5 s") as refused:
        await Template(fake(name), machine, folder / "t1").save(())
    assert words in str(refused.value)


async def test_an_agent_that_never_listens(
    fake: Fake, machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vmm, "BOOT_SECONDS", 0.5)
    with pytest.raises(Unavailable, match=r"did not listen within 0\.5 s: the guest's console"):
        await Template(fake("never-listens"), machine, folder / "t1").save(())


async def test_one_that_cannot_restore(fake: Fake, machine: Machine, folder: Path) -> None:
    template = Template(fake("good"), machine, folder / "t1")
    await template.save(())
    template._vmm = fake("snapshot-load")
    with pytest.raises(TemplateDamaged, match="could not restore a guest: PUT /snapshot/load: 400"):
        await template.start("m1", (), ())
    template.remove()


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("Firecracker v1.4.1", "that is Firecracker 1.4.1"),
        ("firecracker 1.10", "names no version of Firecracker"),
    ],
)
def test_one_that_will_not_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, reason: str
) -> None:
    path = tmp_path / "firecracker"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(Unavailable, match=reason):
        find_firecracker()
