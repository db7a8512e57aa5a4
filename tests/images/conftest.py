"""A made-up Debian, as far as an image goes."""

import gzip
import struct
from pathlib import Path

import pytest

from stockade.images import build as recipe
from stockade.images import resolved

from .kit import LOADER, SCRIPT, Debian, debian
from .test_parts import ELF, PVH

__all__ = ["debian"]

LIBRARIES = "usr/lib/x86_64-linux-gnu"
MODULES = "usr/lib/modules/6.12"
# Its outcome is the names and modes in the tree.
MKFS = (
    SCRIPT
    + 'for word; do disk=$tree; tree=$word; done\n(cd "$tree" && find . -printf "%m %p\\n" | sort) >"$disk"\n'
)
BUILT_IN = "".join(f"kernel/{name}.ko\n" for name in ("virtio_pci", "virtio_console", "virtio_blk"))


def make_kernel() -> bytes:
    payload = gzip.compress(ELF + PVH, mtime=0) + b"size"
    head = bytearray(1024)
    head[0x1F1] = 1
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", head, 0x248, 0, len(payload))
    return bytes(head) + payload


@pytest.fixture
def archive(debian: Debian) -> Debian:
    """Debian, as far as an image goes."""
    loader = {f"{LIBRARIES}/ld-linux-x86-64.so.2!": LOADER}
    debian.add("tools", {**loader, "usr/bin/mkfs.erofs!": MKFS, "usr/bin/zstd!": SCRIPT})
    debian.add("linux-image-6.12", {
        "boot/vmlinuz-6.12": make_kernel(),
        f"{MODULES}/modules.builtin": BUILT_IN,
        f"{MODULES}/kernel/erofs.ko": b"\0depends=\0",
        f"{MODULES}/kernel/ext4.ko": b"\0depends=\0",
    })  # fmt: skip
    debian.add("linux-image-cloud-amd64", {})
    debian.add("python3", {**loader, "usr/bin/python3!": SCRIPT, "usr/lib/python3.13/x.py": "x"})
    debian.add("numpy", {"usr/lib/python3/dist-packages/numpy.py": "x"})
    debian.answer("linux-image-cloud-amd64", "linux-image-6.12", "linux-image-cloud-amd64")
    debian.answer(resolved._TOOLS[-1], "tools")
    debian.answer(resolved.PACKAGES[-1], "python3", "base-files")
    debian.answer("numpy", "python3", "base-files", "numpy")
    return debian


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The compiled part, as far as it is not the agent's."""
    made = tmp_path / "native"
    made.mkdir()
    (made / "stockade-init").write_text("init")
    monkeypatch.setattr(recipe, "native_folder", lambda: made)
    return made
