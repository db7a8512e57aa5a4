"""The initramfs: a cpio archive of ``/init`` and the kernel's modules.

Those in ``/disk-modules`` are inserted in a machine that has a scratch disk.

https://www.kernel.org/doc/html/latest/driver-api/early-userspace/buffer-format.html
"""

from collections.abc import Sequence
from typing import NamedTuple

_MAGIC = b"070701"
_FOLDER = 0o040755
_PROGRAM = 0o100755
_FILE = 0o100644
_END = "TRAILER!!!"
_ALIGNMENT = 4


class Module(NamedTuple):
    """A part of the kernel that is inserted at boot."""

    name: str
    content: bytes


def make_initramfs(
    init: bytes, modules: Sequence[Module], for_disk: Sequence[Module] = ()
) -> bytes:
    """The same bytes for the same parts. Modules are inserted in the order of their names."""
    files = [("init", _PROGRAM, init)]
    for folder, parts in (("modules", modules), ("disk-modules", for_disk)):
        files.append((folder, _FOLDER, b""))
        for number, module in enumerate(parts):
            files.append((f"{folder}/{number:02d}-{module.name}.ko", _FILE, module.content))
    entries = [_entry(number, *file) for number, file in enumerate(files, 1)]
    return b"".join((*entries, _entry(0, _END, 0, b"")))


def _entry(number: int, name: str, mode: int, content: bytes) -> bytes:
    """One file of root's, made at the beginning of time."""
    path = name.encode("ascii") + b"\0"
    links = 2 if mode == _FOLDER else 1
    fields = (number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(path), 0)
    header = _MAGIC + b"".join(b"%08X" % field for field in fields) + path
    return _padded(header) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT)
