"""Digests of open files, each computed once for as long as the file is as it was."""

import hashlib
import os
from typing import Final, NamedTuple

_MOST_KEPT: Final = 1024
_PIECE: Final = 1 << 20


class FileChanged(OSError):
    """It was written to while it was read."""


class FileState(NamedTuple):
    """What changes when a file does: who writes to it cannot keep its time of change (inode(7))."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, descriptor: int) -> "FileState":
        """Of a file that is open now."""
        status = os.fstat(descriptor)
        return cls(
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )


class Digests:
    """SHA-256 in hexadecimal. Reads all of what it does not know: for a thread."""

    def __init__(self) -> None:
        self._known: dict[FileState, str] = {}

    def __repr__(self) -> str:
        return f"<Digests of {len(self._known)} files>"

    def of(self, descriptor: int) -> str:
        """Of all that the file holds now. Raises OSError."""
        state = FileState.of(descriptor)
        known = self._known.get(state)
        if known is not None:
            return known
        digest = _read(descriptor)
        if FileState.of(descriptor) != state:
            raise FileChanged("it was changed while it was read")
        while len(self._known) >= _MOST_KEPT:
            del self._known[next(iter(self._known))]
        self._known[state] = digest
        return digest


def _read(descriptor: int) -> str:
    """Without its offset, which others of the same open file may use at the same time."""
    digest = hashlib.sha256()
    place = 0
    while piece := os.pread(descriptor, _PIECE, place):
        digest.update(piece)
        place += len(piece)
    return digest.hexdigest()
