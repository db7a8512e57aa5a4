"""The disks of dedicated machines: files without a name, which end with whoever has them open."""

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from typing import Final

from stockade.port import MIB, Unavailable

VARIABLE: Final = "STOCKADE_SCRATCH"
_DEFAULT: Final = Path("/var/tmp")  # noqa: S108 - on a disk, where /tmp may be memory; nothing there has a name
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_BLOCK: Final = 4096
# Of ext4 with such blocks, as guest/native/init.c makes it.
_GROUP_BLOCKS: Final = 8 * _BLOCK
_INODES_IN_BLOCK: Final = 16
_OWN_INODES: Final = 64
_BLOCKS_PER_LIST: Final = 256
_MOST_RESERVED_BLOCKS: Final = 4096
_SLACK_BLOCKS: Final = 512


def device_bytes(disk_bytes: int, inodes: int) -> int:
    """How large a disk is on whose file system so much can be kept.

    More than enough: what is left over is taken up inside. Nothing of it takes room on the host
    before it is written.
    """
    data = -(-disk_bytes // _BLOCK)
    data += 1 + data // _BLOCKS_PER_LIST
    table = -(-(inodes + _OWN_INODES) // _INODES_IN_BLOCK)
    blocks = data + table
    for _ in range(4):  # what it takes to keep books grows with it, ever less
        groups = blocks // _GROUP_BLOCKS + 1
        descriptors = groups // (_BLOCK // 32) + 1
        books = (
            7 * groups  # two bitmaps, rounding of the tables, the folder of what is taken up
            + 48 * (1 + descriptors)  # copies of the superblock and of the groups' descriptors
            + table // groups  # a last group that is too small to be used
        )
        # Kept back by the kernel: two in a hundred.
        reserved = min((data + table + books) // 48 + 1, _MOST_RESERVED_BLOCKS)
        blocks = data + table + books + reserved + _SLACK_BLOCKS
    return -(-blocks * _BLOCK // MIB) * MIB


class ScratchDisks:
    """Makes disks in one folder of the host, no more than there is room for."""

    def __init__(self) -> None:
        """In the folder that ``STOCKADE_SCRATCH`` names, else ``/var/tmp``."""
        named = os.environ.get(VARIABLE)
        self._folder = Path(named).absolute() if named else _DEFAULT
        self._alive: dict[int, int] = {}
        if _file_system(self._folder) in _IN_MEMORY:
            raise _refused(f"{self._folder} is memory, and no disk")

    def __repr__(self) -> str:
        return f"<ScratchDisks in {self._folder}: {len(self._alive)}>"

    def make(self, size: int) -> int:
        """A new one, open; its bytes are zeros. Raises :class:`~stockade.port.Unavailable`."""
        try:
            room = os.statvfs(self._folder)
            free = room.f_bavail * room.f_frsize - self._promised()
            if free < size:
                raise _refused(
                    f"{self._folder} has room for {max(0, free) // MIB} MiB, and the disk of a "
                    f"dedicated machine may take {size // MIB} MiB"
                )
            descriptor = self._open()
        except OSError as error:
            raise _refused(f"no disk can be made in {self._folder}: {error.strerror}") from error
        try:
            os.ftruncate(descriptor, size)
        except OSError as error:
            os.close(descriptor)
            raise _refused(
                f"{self._folder} takes no file of {size // MIB} MiB: {error.strerror}"
            ) from error
        self._alive[descriptor] = size
        return descriptor

    def remove(self, descriptor: int) -> None:
        """Close it here. With its machine's end it is gone."""
        del self._alive[descriptor]
        os.close(descriptor)

    def _promised(self) -> int:
        """What those that are alive may still take."""
        return sum(
            max(0, size - os.fstat(descriptor).st_blocks * 512)
            for descriptor, size in self._alive.items()
        )

    def _open(self) -> int:
        """Without a name from the beginning, where the file system can: whatever kills us."""
        with contextlib.suppress(OSError):
            return os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600)
        descriptor, name = tempfile.mkstemp(prefix=".stockade-disk-", dir=self._folder)
        os.unlink(name)  # noqa: PTH108 - of a file that is open
        return descriptor


def _file_system(folder: Path) -> str:
    """Its kind; empty where the table of mounts does not know it."""
    try:
        device = folder.stat().st_dev
    except OSError as error:
        raise _refused(f"{folder}: {os.strerror(error.errno or errno.EIO)}") from error
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return ""


def _refused(fact: str) -> Unavailable:
    return Unavailable(f"{fact}; let {VARIABLE} name a folder on a disk with room")
