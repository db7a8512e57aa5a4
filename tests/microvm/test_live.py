"""A real QEMU and a real image: saved once, copied, killed, given a damaged state."""

import asyncio
import contextlib
import hashlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.contract.kit import descendants, descriptors, until

from stockade.executor.kvm import why_no_kvm
from stockade.executor.microvm.image import find_image
from stockade.executor.microvm.jail import Jail
from stockade.executor.microvm.qemu import QemuVmm, find_qemu
from stockade.executor.microvm.snapshot import Template
from stockade.executor.microvm.vmm import Accelerator, Guest, Machine, StateRefused, abandon
from stockade.executor.namespace.identity import open_identities
from stockade.executor.owners import Owners
from stockade.executor.state import StateFolder
from stockade.executor.supervised import readable
from stockade.executor.wire import Connection, Hello
from stockade.port import MIB, Unavailable

pytestmark = pytest.mark.tier("microvm")


@dataclass
class Warm:
    """A template of a small machine, and what it was made with."""

    template: Template
    vmm: QemuVmm
    machine: Machine
    seconds: float


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    """One for all of them: a boot in emulation takes as long as all else here."""
    identities = open_identities()
    state = StateFolder()
    owners = None
    if identities.distinct:
        owners = Owners(identities)
        state.share_with(owners.group)
    accelerator = Accelerator.EMULATION if why_no_kvm() else Accelerator.KVM
    vmm = QemuVmm(find_qemu(), Jail(state.path, owners), accelerator)
    image = find_image()
    machine = Machine(image, 256 * MIB, 1, 16 * MIB, 0, ("json",))
    template = Template(vmm, machine, state.path / "t1")
    began = time.monotonic()
    asyncio.run(template.save(()))
    yield Warm(template, vmm, machine, time.monotonic() - began)
    template.remove()
    image.close()
    state.close()
    vmm.close()


@contextlib.asynccontextmanager
async def copy_of(warm: Warm, name: str = "m1") -> AsyncIterator[Guest]:
    """A copy that runs, and nothing of it afterwards."""
    before = set(descendants()), len(descriptors())
    guest = await warm.template.start(name, (), ())
    yield guest
    await abandon(guest)
    await until(lambda: set(descendants()) <= before[0])
    assert len(descriptors()) <= before[1]


async def hello_of(guest: Guest) -> Hello:
    """What the agent says first."""
    guest.send_on(1 << 20, 100)
    connection = Connection()
    async with asyncio.timeout(60):
        while True:
            await readable(guest.from_guest)
            data = os.read(guest.from_guest, 65536)
            assert data, await guest.last_words()
            for event in connection.receive(data):
                assert isinstance(event, Hello)
                return event


def vmm_of(guest: Guest) -> int:
    """The pid of the VMM itself, on the host."""
    return vmm_in(guest._process.pid)


def vmm_in(supervisor: int) -> int:
    """The same, below that process."""
    for pid in descendants(supervisor):
        with contextlib.suppress(OSError):
            program, *arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "stockade-supervise" not in program and "-nodefaults" in arguments:
                return pid
    raise AssertionError("no VMM")


def digest_of(file: int) -> str:
    """Of all that it holds."""
    with open(file, "rb", closefd=False) as reader:
        reader.seek(0)
        return hashlib.file_digest(reader, "sha256").hexdigest()


async def test_copies_say_hello(warm: Warm) -> None:
    """Each from the same RAM, which none of them changes."""
    before = digest_of(warm.template._ram)
    for name in ("m1", "m2"):
        async with copy_of(warm, name) as guest:
            hello = await hello_of(guest)
            assert hello.body["version"] == 1
            assert guest.words == ""
    assert digest_of(warm.template._ram) == before
    assert 16 * MIB < warm.template.ram_bytes < 256 * MIB


async def test_the_vmm_is_nobody_and_sees_nothing(warm: Warm) -> None:
    async with copy_of(warm) as guest:
        await hello_of(guest)
        process = Path(f"/proc/{vmm_of(guest)}")
        lines = (line.split(":\t") for line in (process / "status").read_text().splitlines())
        status = {line[0]: line[1] for line in lines if len(line) == 2}
        if os.geteuid() == 0:
            assert "0" not in status["Uid"].split()
            assert "0" not in status["Gid"].split()
        for rights in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh"):
            assert int(status[rights], 16) == 0
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert int(status["Seccomp_filters"]) >= 2
        for kind in ("net", "pid", "mnt", "ipc", "uts"):
            theirs, ours = process / "ns" / kind, Path("/proc/self/ns", kind)
            assert theirs.readlink() != ours.readlink()
        assert (process / "net/dev").read_text().count(":") == 1
        seen = {path.name for path in (process / "root").iterdir()}
        assert not seen & {"home", "root", "var", "run", "sys", "opt"} - _folder_of_qemu()
        assert {path.name for path in (process / "root/dev").iterdir()} == {"null"}


def _folder_of_qemu() -> set[str]:
    return {find_qemu().path.parts[1]}


async def test_a_copy_that_stands_still_takes_no_time_and_goes_on(warm: Warm) -> None:
    async with copy_of(warm) as guest:
        vmm = Path(f"/proc/{vmm_of(guest)}/stat")
        signal.pidfd_send_signal(guest.pidfd, signal.SIGUSR1)
        await until(lambda: vmm.read_text().rsplit(")", maxsplit=1)[1].split()[0] == "T")
        spent = vmm.read_text().rsplit(")", maxsplit=1)[1].split()[11:13]
        await asyncio.sleep(0.5)
        assert vmm.read_text().rsplit(")", maxsplit=1)[1].split()[11:13] == spent
        signal.pidfd_send_signal(guest.pidfd, signal.SIGUSR2)
        await hello_of(guest)


async def test_a_vmm_that_is_killed(warm: Warm) -> None:
    """Its wire ends, and its jail with it."""
    async with copy_of(warm) as guest:
        await hello_of(guest)
        os.kill(vmm_of(guest), signal.SIGKILL)
        async with asyncio.timeout(10):
            await readable(guest.from_guest)
            await guest.ended()
        with contextlib.suppress(ConnectionResetError):
            assert os.read(guest.from_guest, 1) == b""


@pytest.mark.parametrize("left", [0, 1, 1000, 300_000])
async def test_a_state_that_was_cut_short_is_no_state(warm: Warm, left: int) -> None:
    """To QEMU, too, if it ever came that far."""
    before = set(descendants()), len(descriptors())
    state = (warm.template._folder / "state").read_bytes()
    with pytest.raises(StateRefused, match=r"of no bytes|it ended; .*load of migration failed"):
        await warm.vmm.restore("m1", warm.machine, warm.template._ram, state[:left], (), ())
    await until(lambda: set(descendants()) <= before[0])
    assert len(descriptors()) <= before[1]


async def test_a_guest_whose_kernel_panics(warm: Warm) -> None:
    """The console tells why, and the machine ends by itself."""
    nothing, ram = os.memfd_create("nothing"), os.memfd_create("ram")
    os.write(nothing, b"no initramfs")
    os.truncate(ram, warm.machine.memory_bytes)
    image = replace(warm.machine.image, initramfs=nothing)
    guest = await warm.vmm.start("m1", replace(warm.machine, image=image), ram, (), ())
    os.close(ram)
    os.close(nothing)
    with pytest.raises(Unavailable, match=r"did not start: the guest's console: .*panic"):
        await guest.ready()
    assert not guest.out_of_memory
    await guest.ended()
    guest.close()
