"""Real machines, booted cold: what they are, what is told of them, and what is left of them."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.contract.kit import (
    Heard,
    descendants,
    descriptors,
    explain,
    shell,
    source,
    stdout_of,
    until,
    watched,
)
from tests.microvm.test_live import vmm_in

from stockade.executor import PoolPolicy, open_local
from stockade.executor.environment import LocalEnvironment
from stockade.executor.kvm import why_no_kvm
from stockade.executor.microvm.image import image_store
from stockade.executor.microvm.qemu import find_qemu
from stockade.port import MIB, Limits, Outcome, SandboxRequest, Stream, Tier, Unavailable

pytestmark = [pytest.mark.tier("vm"), pytest.mark.asyncio(loop_scope="module")]

DISK = 24 * MIB
FILES = 100
WANTED = SandboxRequest(
    tier=Tier.VM, limits=Limits(memory_bytes=128 * MIB, disk_bytes=DISK, inodes=FILES)
)
LOOK = """
import json, os
disk = os.statvfs("/workspace")
kinds = {line.split()[1]: line.split()[2] for line in open("/proc/self/mounts")}
held = open("f", "wb", 0)
held.write(bytes(20_000_000))
os.fsync(held.fileno())
print(json.dumps({
    "kinds": [kinds["/workspace"], kinds["/tmp"]],
    "same": os.stat("/workspace").st_dev == os.stat("/tmp").st_dev,
    "free": disk.f_bavail * disk.f_frsize,
    "files": disk.f_ffree,
    "kernel": os.uname().release,
}))
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where disks are made."""
    return tmp_path_factory.mktemp("scratch")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environment(scratch: Path) -> AsyncIterator[LocalEnvironment]:
    """Everything that runs programs here, so that nothing else is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOCKADE_SCRATCH", str(scratch))
        async with open_local(
            pool=PoolPolicy.fixed(0), tiers={Tier.VM}, allow_emulation=True
        ) as opened:
            yield opened


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def open_disks(scratch: Path) -> list[str]:
    """Files without a name in that folder, that this process has open."""
    return [name for name in descriptors().values() if name.startswith(f"{scratch}/")]


async def test_a_job(environment: LocalEnvironment, scratch: Path) -> None:
    """It is booted for this program, writes to a disk, is attested, and nothing of it is left."""
    below, began = set(descendants()), time.monotonic()
    running = await environment.start(source(LOOK), WANTED)
    assert time.monotonic() - began < 8
    execution = await running.wait()
    total = time.monotonic() - began
    seen = json.loads(stdout_of(execution))
    assert seen["kinds"] == ["ext4", "ext4"]
    assert seen["same"]
    assert seen["files"] == FILES
    assert DISK <= seen["free"] <= DISK + DISK // 200
    assert seen["kernel"] != os.uname().release
    usage, timings = execution.usage, execution.timings
    assert usage.disk_bytes is not None
    assert 20_000_000 <= usage.disk_bytes < 20_100_000
    assert usage.inodes == 1
    # The boot counts for nobody's limit, and is told.
    assert timings.waited > timings.ran == pytest.approx(usage.wall_seconds, abs=0.1)
    assert timings.waited + timings.set_up + timings.ran <= total

    made_of = execution.attestation
    assert made_of is not None
    folder = (image_store() / "microvm/current").resolve()
    assert [made_of.kernel, made_of.initramfs, made_of.disk] == [
        digest_of(folder / name) for name in ("kernel", "initramfs", "disk")
    ]
    assert made_of.image == execution.image == f"sha256:{folder.name}"
    assert made_of.accelerator == ("emulation" if why_no_kvm() else "kvm")
    assert (made_of.vmm, made_of.vmm_version) == ("QEMU", find_qemu().version)
    assert {path: digest_of(Path(path)) for path in made_of.vmm_files} == made_of.vmm_files
    assert any(Path(path).name == "qemu-system-x86_64" for path in made_of.vmm_files)
    assert any("libc.so" in path for path in made_of.vmm_files)
    assert set(made_of.firmware) > {"bios-256k.bin"}
    words = made_of.command_line
    assert f"own-disk machine {DISK} {FILES}" in words[words.index("-append") + 1]
    joined = b"".join(word.encode() + b"\0" for word in words)
    assert made_of.command_line_digest == f"sha256:{hashlib.sha256(joined).hexdigest()}"

    await until(lambda: set(descendants()) <= below and open_disks(scratch) == [])
    assert list(scratch.iterdir()) == []


async def test_two_at_once_and_one_is_killed(environment: LocalEnvironment, scratch: Path) -> None:
    """SIGKILL to one VMM in the middle of its job; the other does not notice."""
    heard = Heard()
    doomed = await environment.start(shell("echo up; exec sleep 600"), WANTED, on_output=heard)
    other = await environment.start(source("import time; time.sleep(3); print('well')"), WANTED)
    await until(lambda: b"up" in heard.of(Stream.STDOUT), 120)
    watch = await watched(doomed)
    os.kill(vmm_in(watch.init), signal.SIGKILL)
    lost = await doomed.wait()
    assert lost.outcome is Outcome.LOST, explain(lost)
    assert lost.exit_code is None
    assert watch.living() == []
    assert stdout_of(await other.wait()) == "well\n"
    await until(lambda: open_disks(scratch) == [])


async def test_cancelling_a_boot_leaves_nothing(
    environment: LocalEnvironment, scratch: Path
) -> None:
    below, before = set(descendants()), len(descriptors())
    running = await environment.start(source("print('ran')"), WANTED)
    await until(lambda: open_disks(scratch) != [] and len(descendants()) >= len(below) + 2)
    await asyncio.sleep(0.5)
    await running.cancel()
    execution = await running.wait()
    assert set(descendants()) <= below
    assert (open_disks(scratch), list(scratch.iterdir())) == ([], [])
    assert len(descriptors()) <= before
    assert execution.outcome is Outcome.CANCELLED
    assert execution.stdout.total == 0
    assert execution.attestation is None


async def test_a_kernel_that_was_changed_since_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No machine is booted from it."""
    built = (image_store() / "microvm/current").resolve()
    folder = tmp_path / "microvm" / built.name
    folder.mkdir(parents=True)
    for name in ("kernel", "initramfs", "disk", "image.json"):
        # Copied: it is to be written to.
        subprocess.run(["cp", "--reflink=auto", built / name, folder / name], check=True)
    (tmp_path / "microvm/current").symlink_to(built.name)
    monkeypatch.setenv("STOCKADE_IMAGES", str(tmp_path))
    below = set(descendants())
    async with open_local(warm=False, tiers={Tier.VM}, allow_emulation=True) as environment:
        await environment.warm_up(WANTED)
        with (folder / "kernel").open("r+b") as kernel:
            kernel.seek(4096)
            kernel.write(b"\xcc")
        if os.geteuid() != 0:
            return  # a plain user's is a copy that nobody can change
        running = await environment.start(source("print('ran')"), WANTED)
        with pytest.raises(Unavailable, match=r"kernel is not what image\.json says: it was"):
            await running.wait()
        assert set(descendants()) <= below
