"""The folder of one ``stockade up``, which holds a token and a database, and its removal.

Whoever uses a folder holds its lock (flock(2)) until he ends, however he ends: one whose lock can be
had is a dead one's. The kernel says so; a pid could be somebody else's by now.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_PREFIX: Final = "stockade-up-"
_MODE: Final = 0o711
"""Nobody else can open the folder, and so nobody else can hold its lock."""


@contextmanager
def private_folder(parent: Path) -> Iterator[tuple[Path, int]]:
    """A new one in ``parent``, and the descriptor that has its lock; it is gone at the end.

    A process that uses it and may outlive the caller is to inherit the descriptor.
    """
    remove_left_behind(parent)
    folder, lock = _make(parent)
    try:
        yield folder, lock
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_behind(parent: Path) -> None:
    """Remove what this user's dead processes left in ``parent``; nothing of others, or alive."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            _remove_if_dead(folder)


def _remove_if_dead(folder: Path) -> None:
    lock = _open(folder)
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # In a folder for everybody the name can be another's by now: it has to be what is locked.
        if _is(folder, lock):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _make(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            lock = _open(folder)
        except FileNotFoundError:
            continue  # it was not locked yet, and another ``up`` took it for a dead one's
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is(folder, lock):
            folder.chmod(_MODE)
            return folder, lock
        os.close(lock)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is(folder: Path, descriptor: int) -> bool:
    try:
        there = folder.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))
