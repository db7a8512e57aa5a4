"""Images, and QEMUs that misbehave."""

import hashlib
import json
import platform
import shutil
from pathlib import Path
from typing import Any

from stockade.executor.microvm.image import Image, digest_of_image, open_image
from stockade.executor.microvm.jail import Jail
from stockade.executor.microvm.qemu import Qemu, QemuVmm, find_qemu
from stockade.executor.microvm.vmm import Accelerator, Machine
from stockade.executor.namespace.image import guest_digest
from stockade.port import MIB


def write_image(folder: Path, **changes: Any) -> Path:
    """An image of three small files; ``changes`` are made to its description."""
    folder.mkdir(parents=True)
    digests = {}
    for name in ("kernel", "initramfs", "disk"):
        content = f"a {name}".encode()
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o644)
        digests[name] = hashlib.sha256(content).hexdigest()
    description = {
        "format": 1,
        "for": "microvm",
        "machine": platform.machine(),
        "digest": digest_of_image(platform.machine(), digests),
        "kernel": {"package": "linux-image", "version": "6.12-1", "sha256": digests["kernel"]},
        "initramfs_sha256": digests["initramfs"],
        "disk_sha256": digests["disk"],
        "guest_sha256": guest_digest(),
        "packages": [],
    }
    description.update(changes)
    (folder / "image.json").write_text(json.dumps(description))
    return folder


def small_machine(image: Image) -> Machine:
    """One that fakes do not look at."""
    return Machine(image, 16 * MIB, 1, MIB, 0, ("json",))


def fake_qemu(folder: Path, name: str) -> Qemu:
    """A program of that name, tried as every QEMU is."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    shutil.copy(Path(__file__).with_name("fake_qemu.py"), path)
    path.chmod(0o755)
    return find_qemu()


def vmm_of(qemu: Qemu, folder: Path) -> QemuVmm:
    """In a jail, without ids of its own."""
    return QemuVmm(qemu, Jail(folder, None), Accelerator.EMULATION)


def image_in(folder: Path) -> Image:
    """A small image, open."""
    return open_image(write_image(folder))
