"""The guest's kernel, out of Debian's package: the image, and the modules that it boots with."""

import lzma
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from stockade.images.errors import CannotBuild
from stockade.images.initramfs import Module

Decompress = Callable[[bytes], bytes]

# What a guest needs of its kernel, in whatever order: the disk, its file system and the wire.
NEEDED = ("virtio_pci", "virtio_console", "virtio_blk", "erofs")
# And for scratch files on a disk of the machine's own.
_NEEDED_FOR_DISK = ("ext4",)

_ELF = b"\x7fELF"
_ZSTD = b"\x28\xb5\x2f\xfd"
_XZ = b"\xfd7zXZ\0"
_GZIP = b"\x1f\x8b"
_LARGEST = 256 << 20
# Of a kernel that can be started as it is: https://xenbits.xen.org/docs/unstable/misc/pvh.html
_PVH_ENTRY = re.compile(rb"\x04\0\0\0[\x04\x08]\0\0\0\x12\0\0\0Xen\0")


def read_kernel(folder: Path, unzstd: Decompress) -> bytes:
    """What QEMU's ``-kernel`` takes, from where the package was unpacked.

    The bare kernel if it can be started so: to have the guest decompress it takes a second or
    more under emulation.
    """
    images = sorted(folder.glob("boot/vmlinuz-*"))
    if len(images) != 1:
        raise CannotBuild("the package of the kernel has not one kernel in it")
    image = images[0].read_bytes()
    bare = _decompress(_payload(image), unzstd)
    if bare.startswith(_ELF) and _PVH_ENTRY.search(bare):
        return bare
    return image


def _payload(image: bytes) -> bytes:
    """The compressed kernel in a bzImage: https://docs.kernel.org/arch/x86/boot.html"""
    if image[0x202:0x206] != b"HdrS":
        raise CannotBuild("the package's kernel is not one for x86")
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    return image[start : start + length]


def _decompress(data: bytes, unzstd: Decompress) -> bytes:
    """Nothing for what is of another kind. The kernel's build appends four bytes of length."""
    if data.startswith(_ZSTD):
        return unzstd(data[:-4])
    if data.startswith(_XZ):
        return lzma.LZMADecompressor().decompress(data, max_length=_LARGEST)
    if data.startswith(_GZIP):
        return zlib.decompressobj(wbits=31).decompress(data, _LARGEST)
    return b""


class Modules(NamedTuple):
    """Parts of the kernel that are not built in, each behind what it depends on."""

    always: list[Module]
    for_disk: list[Module]
    """What a machine needs beside them that has a scratch disk."""


def read_modules(folder: Path, needed: Sequence[str] = NEEDED) -> Modules:
    """Those that a guest needs: ``needed`` always."""
    trees = sorted(folder.glob("*lib/modules/*")) or sorted(folder.glob("usr/lib/modules/*"))
    if len(trees) != 1:
        raise CannotBuild("the package of the kernel has no modules in it")
    built_in = (trees[0] / "modules.builtin").read_text(encoding="utf-8").splitlines()
    known = {_name(Path(line)) for line in built_in}
    files = {_name(path): path for path in trees[0].rglob("*.ko*")}
    chosen: dict[str, Module] = {}
    for name in needed:
        if name not in known:
            _choose(name, files, chosen)
    always = list(chosen.values())
    for name in _NEEDED_FOR_DISK:
        if name not in known:
            _choose(name, files, chosen)
    return Modules(always, list(chosen.values())[len(always) :])


def _choose(name: str, files: dict[str, Path], chosen: dict[str, Module]) -> None:
    if name in chosen:
        return
    if name not in files:
        raise CannotBuild(f"the kernel has no module {name}, without which no guest starts")
    content = _read(files[name])
    for needed in _depends(content):
        _choose(needed, files, chosen)
    chosen[name] = Module(name, content)


def _name(path: Path) -> str:
    """As the kernel calls it, whatever its file is called."""
    return path.name.partition(".")[0].replace("-", "_")


def _read(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


def _depends(module: bytes) -> list[str]:
    """From the module itself: what depmod would say is made when a package is installed."""
    found = re.search(rb"\0depends=([^\0]*)\0", b"\0" + module)
    return [name for name in found[1].decode("ascii").split(",") if name] if found else []
