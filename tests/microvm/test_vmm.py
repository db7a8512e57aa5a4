"""Driving a QEMU that misbehaves: whatever it does is told in a sentence, and nothing is left."""

import asyncio
import errno
import fcntl
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from tests.contract.kit import descendants, descriptors, until
from tests.microvm.kit import fake_qemu, vmm_of

from stockade.executor.microvm import qemu, vmm
from stockade.executor.microvm.jail import Jail
from stockade.executor.microvm.qemu import Firmware, QemuVmm
from stockade.executor.microvm.snapshot import Template
from stockade.executor.microvm.vmm import Accelerator, Guest, Machine, abandon
from stockade.executor.supervised import readable
from stockade.executor.templates import TemplateDamaged
from stockade.port import MIB, Unavailable

pytestmark = [pytest.mark.tier("namespace"), pytest.mark.plain_user]

Fake = Callable[[str], QemuVmm]


@pytest_asyncio.fixture
async def fake(
    folder: Path, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Fake]:
    """A VMM whose QEMU behaves as it is called; nothing of it is left afterwards."""
    before = set(descendants()), descriptors()

    def make(name: str) -> QemuVmm:
        monkeypatch.setenv(qemu.VARIABLE, str(tmp_path / "bin" / name))
        return vmm_of(fake_qemu(tmp_path / "bin", name), folder)

    yield make
    await until(lambda: set(descendants()) <= before[0])
    await until(lambda: len(descriptors()) <= len(before[1]))
    assert list(folder.iterdir()) == []


async def answer_of(guest: Guest) -> bytes:
    """What the fake says after it was sent on."""
    guest.send_on(1 << 20, 100)
    async with asyncio.timeout(20):
        await readable(guest.from_guest)
    return os.read(guest.from_guest, 1000)


async def test_from_boot_to_copies(fake: Fake, machine: Machine, folder: Path) -> None:
    template = Template(fake("good"), machine, folder / "t1")
    cold = await template.start("m1", (), ())
    await cold.ready()
    assert (await answer_of(cold))[:3] == b"GO."
    await abandon(cold)
    await template.save(())
    assert template.saved
    assert template.bytes_on_disk > 100_000
    seeds = set()
    for number in range(3):
        guest = await template.start(f"m{number}", (), ())
        answer = await answer_of(guest)
        assert answer[:3] == b"GO."
        assert len(answer) == 2 + 57
        seeds.add(answer[3:35])
        said = int.from_bytes(answer[35:43], "big")
        assert answer[43:] == (1 << 20).to_bytes(8, "big") + (100).to_bytes(8, "big")
        assert abs(said - time.time_ns()) < 60e9
        await abandon(guest)
    assert len(seeds) == 3
    template.remove()


async def test_what_it_is_told(fake: Fake, machine: Machine, folder: Path) -> None:
    """What the boundary rests on; and a copy's RAM is its own."""
    template = Template(fake("good"), machine, folder / "t1")
    cold = await template.start("m1", (), ())
    booted = arguments_of(cold)
    await abandon(cold)
    await template.save(())
    copy = await template.start("m2", (), ())
    copied = arguments_of(copy)
    await abandon(copy)
    template.remove()
    for told in (booted, copied):
        assert {"-nodefaults", "-no-user-config", "-no-reboot"} <= set(told)
        assert told[told.index("-sandbox") + 1].count("=deny") == 4
        assert not {"-netdev", "-nic", "-net", "-usb", "-virtfs"} & set(told)
        devices = [told[at + 1].split(",")[0] for at, word in enumerate(told) if word == "-device"]
        assert devices == ["virtio-blk-pci", "virtio-serial-pci", "virtserialport", "vmgenid"]
        assert "read-only=on" in told[told.index("-drive") + 1]
    assert "share=on" in booted[booted.index("-object") + 1]
    assert "share=off" in copied[copied.index("-object") + 1]
    assert booted[booted.index("-append") + 1].endswith(" -- machine 1048576 0 json")
    assert "-kernel" not in copied


async def test_what_is_said_of_its_command_line(
    fake: Fake, machine: Machine, tmp_path: Path
) -> None:
    """Word for word what it is told, but for the numbers of open files; of a disk, too."""
    part = tmp_path / "part"
    part.write_bytes(b"firmware")
    firmware = Firmware(os.open(part, os.O_RDONLY), os.open(part, os.O_RDONLY), part)
    good = fake("good")
    started_with = QemuVmm(good._qemu, good._jail, good.accelerator, firmware)
    named: tuple[str, ...] = ()
    for each, its_machine in ((good, machine), (started_with, replace(machine, own_disk=True))):
        ram, disk = os.memfd_create("ram"), os.memfd_create("disk")
        guest = await each.start(
            "m1", its_machine, ram, (), (), disk=disk if its_machine.own_disk else None
        )
        told = arguments_of(guest)
        told = told[told.index("-nodefaults") : -1]  # a NUL stands behind the last
        await abandon(guest)
        os.close(ram)
        os.close(disk)
        named = each.command_line(its_machine)
        assert len(told) == len(named)
        for word, name in zip(told, named, strict=True):
            pattern = re.sub(_NAME_OF_FILE, r"\1\\d+", re.escape(name))
            assert re.fullmatch(pattern, word), (word, name)
    assert named[named.index("-bios") + 1] == "/proc/self/fd/firmware"
    assert "own-disk machine 1048576 0 json" in named[named.index("-append") + 1]
    firmware.close()


# Where a command line has the number of one: "fd=", and a path.
_NAME_OF_FILE = re.compile(r"(fd=|/proc/self/fd/)[a-z](?:[a-z]|,\\ |\\ )*")


def arguments_of(guest: Guest) -> list[str]:
    """The VMM's, as its supervisor was told them."""
    words = Path(f"/proc/{guest._process.pid}/cmdline").read_text().split("\0")
    return words[words.index("--") + 1 :]


@pytest.mark.parametrize(
    ("release", "reason"),
    [((7, 2), "needs QEMU 8.2 or later"), ((8, 2), "/nothing/kvm: No such file or directory")],
)
async def test_kvm_that_cannot_be_had(
    fake: Fake,
    machine: Machine,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    release: tuple[int, int],
    reason: str,
) -> None:
    monkeypatch.setattr(qemu, "_KVM_DEVICE", Path("/nothing/kvm"))
    found = replace(fake("good")._qemu, release=release)
    template = Template(QemuVmm(found, Jail(folder, None), Accelerator.KVM), machine, folder / "t1")
    with pytest.raises(Unavailable, match=reason):
        await template.save(())


async def test_no_copy_can_change_what_the_next_one_starts_from(
    fake: Fake, machine: Machine, folder: Path
) -> None:
    """Not even by the descriptor that its VMM has, whoever rules that."""
    template = Template(fake("good"), machine, folder / "t1")
    await template.save(())
    with pytest.raises(PermissionError):
        os.pwrite(template._ram, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(template._ram, 0)
    with pytest.raises(PermissionError):
        fcntl.fcntl(template._ram, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    template.remove()


async def test_one_that_exits_at_once(fake: Fake, machine: Machine, folder: Path) -> None:
    template = Template(fake("good"), machine, folder / "t1")
    template._vmm = fake("exits")
    with pytest.raises(Unavailable) as refused:
        await template.save(())
    # On one line, without what a terminal would obey.
    assert str(refused.value) == "the microVM did not start: qemu: nothing works [31m here"
    template.remove()


async def test_one_that_says_something_else(fake: Fake, machine: Machine, folder: Path) -> None:
    with pytest.raises(Unavailable, match=r"the microVM did not start: Segfault$"):
        await Template(fake("garbage"), machine, folder / "t1").save(())


async def test_a_guest_whose_kernel_panics(fake: Fake, machine: Machine) -> None:
    """Its console is hostile, and is told apart from what the VMM says."""
    guest = await fake("panics").start("m1", machine, machine.image.disk, (), ())
    with pytest.raises(Unavailable, match=r"the guest's console: \[2JOut of memory: Killed"):
        await guest.ready()
    assert guest.out_of_memory
    assert guest.console.endswith("Kernel panic - not syncing")
    assert guest.console.isprintable()
    assert guest.words == ""
    await abandon(guest)


async def test_one_that_hangs(
    fake: Fake, machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vmm, "BOOT_SECONDS", 0.2)
    with pytest.raises(Unavailable, match=r"was not ready within 0\.2 s"):
        await Template(fake("hangs"), machine, folder / "t1").save(())


@pytest.mark.parametrize("name", ["floods-console", "floods-stderr"])
async def test_one_that_talks_without_end_is_read_and_not_kept(
    fake: Fake, machine: Machine, folder: Path, name: str
) -> None:
    template = Template(fake(name), machine, folder / "t1")
    guest = await template.start("m1", (), ())
    await guest.ready()
    await asyncio.sleep(0.1)
    assert len(guest.words) <= 500
    assert len(guest.console) <= 500
    assert len(guest._words) <= 4096
    await abandon(guest)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mute", "did not save the warm guest within 0.5 s"),
        ("endless-line", "it broke QMP's rules: a line of more than 65536 bytes"),
        ("endless-events", "it broke QMP's rules: more than 1048576 bytes in all"),
        ("qmp_capabilities", "qmp_capabilities: not today [31m"),
        ("migrate", "migrate: not today [31m"),
        ("getfd", "getfd: not today [31m"),
        ("saves-nothing", "could not save the warm guest"),
        ("saves-too-much", "did not save the warm guest within 0.5 s"),
    ],
)
async def test_one_that_cannot_be_saved(
    fake: Fake,
    machine: Machine,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    reason: str,
) -> None:
    monkeypatch.setattr(qemu, "CONTROL_SECONDS", 0.5)
    monkeypatch.setattr(qemu, "MOST_STATE", 4 * MIB)
    if name not in {"mute", "saves-too-much"}:
        monkeypatch.setattr(qemu, "CONTROL_SECONDS", 20)
    template = Template(fake(name), machine, folder / "t1")
    with pytest.raises(Unavailable) as refused:
        await template.save(())
    assert reason in str(refused.value)
    assert not template.saved
    template.remove()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exits", "could not restore a guest: it ended; qemu: nothing works [31m here"),
        ("dies-restoring", "could not restore a guest: it ended"),
        ("never-resumes", "restored no guest within 0.5 s"),
        ("mute", "restored no guest within 0.5 s"),
        ("endless-line", "a line of more than 65536 bytes"),
        ("endless-events", "more than 1048576 bytes in all"),
        ("migrate-incoming", "migrate-incoming: not today [31m"),
        ("migrate-set-capabilities", "migrate-set-capabilities: not today [31m"),
        ("other-version", "QEMU was 10.0.2 and is 10.1.2 (Fake) now"),
    ],
)
async def test_one_that_cannot_be_restored(
    fake: Fake,
    machine: Machine,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    reason: str,
) -> None:
    template = Template(fake("good"), machine, folder / "t1")
    await template.save(())
    template._vmm = fake(name)
    slow = name in {"never-resumes", "mute"}
    monkeypatch.setattr(qemu, "CONTROL_SECONDS", 0.5 if slow else 20)
    with pytest.raises(Unavailable) as refused:
        await template.start("m1", (), ())
    assert reason in str(refused.value)
    assert isinstance(refused.value, TemplateDamaged) is not slow
    template.remove()


@pytest.mark.parametrize("cut", [0, 1, 1000])
async def test_a_state_that_was_cut_short(
    fake: Fake, machine: Machine, folder: Path, cut: int
) -> None:
    """Is refused before a VMM is started with it; another template is as good as the first."""
    template = Template(fake("good"), machine, folder / "t1")
    await template.save(())
    path = folder / "t1/state"
    os.truncate(path, path.stat().st_size - cut if cut else 0)
    with pytest.raises(TemplateDamaged, match="and was saved with others"):
        await template.start("m1", (), ())
    template.remove()
    template = Template(fake("good"), machine, folder / "t2")
    await template.save(())
    await abandon(await template.start("m1", (), ()))
    template.remove()


async def test_a_state_that_was_changed(fake: Fake, machine: Machine, folder: Path) -> None:
    template = Template(fake("good"), machine, folder / "t1")
    await template.save(())
    (folder / "t1/state").write_bytes(b"X" + (folder / "t1/state").read_bytes()[1:])
    with pytest.raises(TemplateDamaged, match="it was changed"):
        await template.start("m1", (), ())
    template.remove()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"version": "10.0.2"', '"version": "7.2.22"', "version '7.2.22' is none for '10.0.2'"),
        ('"image": "sha256:', '"image": "sha256:f', "a template with image 'sha256:f"),
        ('"format": 1', '"format": 2', "a template with format 2 is none for 1"),
        ('"format": 1', '"more": 3, "format": 1', "a template with more 3"),
        ('"state"', '"stat"', "a template with stat"),
        ("{", "[", "describes no template"),
    ],
)
async def test_a_template_of_something_else(
    fake: Fake, machine: Machine, folder: Path, old: str, new: str, reason: str
) -> None:
    template = Template(fake("good"), machine, folder / "t1")
    await template.save(())
    path = folder / "t1/template.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(TemplateDamaged) as refused:
        await template.start("m1", (), ())
    assert reason in str(refused.value)
    template.remove()


@pytest.mark.parametrize("name", ["state", "template.json"])
async def test_a_file_that_is_gone(fake: Fake, machine: Machine, folder: Path, name: str) -> None:
    template = Template(fake("good"), machine, folder / "t1")
    await template.save(())
    (folder / "t1" / name).unlink()
    with pytest.raises(TemplateDamaged, match="No such file"):
        await template.start("m1", (), ())
    template.remove()


async def test_a_full_disk(
    fake: Fake, machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written of it is gone, and the next try may find room."""

    def full(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    template = Template(fake("good"), machine, folder / "t1")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(Unavailable, match=r"could not be kept: .*No space left on device"):
            await template.save(())
    assert list(folder.iterdir()) == []
    await template.save(())
    template.remove()


async def test_more_modules_than_a_command_line_takes(
    fake: Fake, machine: Machine, folder: Path
) -> None:
    many = tuple(f"module{number}" for number in range(200))
    big = Machine(machine.image, 16 * MIB, 1, MIB, 0, many)
    with pytest.raises(Unavailable, match="preload fewer"):
        await Template(fake("good"), big, folder / "t1").save(())


def test_what_is_no_machine(machine: Machine) -> None:
    with pytest.raises(ValueError, match="whole MiB"):
        Machine(machine.image, MIB + 1, 1, MIB, 0)
    with pytest.raises(ValueError, match="no command line"):
        Machine(machine.image, MIB, 1, MIB, 0, ("a b",))


@pytest.mark.parametrize("pause", [0, 0.0005, 0.005, 0.02, 0.05, 0.1])
async def test_cancelled_at_any_time(
    fake: Fake, machine: Machine, folder: Path, pause: float
) -> None:
    """While it is made, or restored: neither a process nor a descriptor is left."""
    template = Template(fake("good"), machine, folder / "t1")
    task = asyncio.create_task(template.save(()))
    await asyncio.sleep(pause)
    task.cancel()
    await asyncio.wait([task])
    if not template.saved:
        await template.save(())
    for number in range(2):
        start = asyncio.create_task(template.start(f"m{number}", (), ()))
        await asyncio.sleep(pause)
        start.cancel()
        try:
            guest = await start
        except asyncio.CancelledError:
            continue
        await abandon(guest)
    template.remove()
