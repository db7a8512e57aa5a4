"""The executor's folder for what its tiers keep in files, and what dead executors left of theirs."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stockade.port import Unavailable

_TRIES: Final = 20
_PARENT_GOES: Final = (FileNotFoundError, FileExistsError)  # the latter: mkdir, then no folder
_OF_ROOT: Final = Path("/run/stockade/executors")


class StateFolder:
    """A folder of one tier of this executor alone. Its lock tells the living from the dead.

    Its path is short: runsc puts sockets below it, and 107 bytes is all that the name of
    one may have (unix(7)).
    """

    def __init__(self) -> None:
        """Make it. Raises :class:`~stockade.port.Unavailable`."""
        tries = _TRIES
        while True:
            try:
                self._make()
                break
            except OSError as error:
                tries -= 1
                # Its parent goes with the last executor that used it, which may be just now.
                if tries == 0 or not isinstance(error, _PARENT_GOES):
                    raise Unavailable(f"no folder for the executor's files: {error}") from error
        if self._lock is None:
            raise Unavailable(f"{self.path} is locked by another executor")

    def _make(self) -> None:
        parent = _parent()
        with _locked(parent):
            _remove_dead(parent)
            self.path = Path(tempfile.mkdtemp(prefix="x", dir=parent))
            self._lock = _try_to_lock(self.path)

    def __repr__(self) -> str:
        return f"<StateFolder {self.path}>"

    def share_with(self, group: int) -> None:
        """Let the group, too, reach what is below. Raises OSError."""
        os.chown(self.path, -1, group)
        self.path.chmod(0o710)

    def close(self) -> None:
        """Remove it with all that is in it, and its parent after the last one."""
        shutil.rmtree(self.path, ignore_errors=True)
        # Under the lock: whoever has it is about to make a folder in there.
        with contextlib.suppress(OSError), _locked(self.path.parent):
            self.path.parent.rmdir()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _parent() -> Path:
    if os.geteuid() == 0:
        _OF_ROOT.mkdir(mode=0o711, parents=True, exist_ok=True)
        return _OF_ROOT
    parent = Path(tempfile.gettempdir(), f"stockade-{os.geteuid()}")
    parent.mkdir(mode=0o700, exist_ok=True)
    status = parent.lstat()
    # Its name can be known, and anybody may make files in /tmp.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{parent} is not a folder of this user's alone; remove it")
    return parent


@contextlib.contextmanager
def _locked(parent: Path) -> Iterator[None]:
    """One executor at a time: a folder that was made and not yet locked looks like a dead one's."""
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not os.path.samestat(parent.stat(), os.fstat(descriptor)):
            raise FileNotFoundError(f"{parent} was removed, and made anew")
        yield
    finally:
        os.close(descriptor)


def _try_to_lock(folder: Path) -> int | None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_dead(parent: Path) -> None:
    for folder in parent.iterdir():
        try:
            lock = _try_to_lock(folder)
        except OSError:
            continue  # being removed by another executor, or nothing of ours
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
