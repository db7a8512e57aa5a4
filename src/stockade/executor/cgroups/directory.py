"""One executor's directory in one hierarchy, and what dead executors left beside it."""

import errno
import fcntl
import os
import re
import time
from pathlib import Path

from stockade.executor.cgroups.kernel import Host, kill_all, open_directory
from stockade.executor.cgroups.tree import CgroupError

# A process that runs several executors numbers them.
_OURS = re.compile(r"stockade-(\d+)-(\d+)(?:\.\d+)?")
_MOST_PER_PROCESS = 100
# How long a cgroup may take to become empty after SIGKILL where nothing can be awaited.
_PATIENCE = 0.5


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; ``None`` for a dead one or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name may hold spaces and parentheses: count from the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def own_name() -> str:
    """The name of this executor's directory: unique in time, for pids are used again."""
    return f"stockade-{os.getpid()}-{start_ticks(os.getpid())}"


class ExecutorDirectory:
    """``<parent>/stockade-<pid>-<start>``, locked for as long as it is open."""

    def __init__(self, host: Host, parent: str) -> None:
        """Make it, after removing what dead executors left in the same parent."""
        self._host = host
        self.parent_fd = open_directory(parent)
        try:
            self.leftovers = remove_dead(host, parent, self.parent_fd)
            self.name = self._make()
            self.fd = open_directory(self.name, self.parent_fd)
        except OSError:
            os.close(self.parent_fd)
            raise
        self.path = f"{parent}/{self.name}"
        try:
            # Dead executors are told by their pid, which says nothing across pid namespaces:
            # two containers may share a cgroup tree. A lock on the directory does.
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise

    def _make(self) -> str:
        name = own_name()
        for number in range(2, _MOST_PER_PROCESS):
            try:
                self._host.mkdir(name, self.parent_fd)
            except FileExistsError:
                name = f"{own_name()}.{number}"
            else:
                return name
        raise OSError(errno.EEXIST, "this process has too many of them open")

    def mkdir(self, name: str) -> int:
        """Make a cgroup below and open it."""
        self._host.mkdir(name, self.fd)
        return open_directory(name, self.fd)

    def rmdir(self, name: str) -> None:
        """Remove a cgroup below; one that is gone already is fine."""
        try:
            self._host.rmdir(name, self.fd)
        except FileNotFoundError:
            pass

    def clear(self, keep: str | None = None) -> str | None:
        """Kill and remove every cgroup below but ``keep``; says what stays."""
        return _clear(self._host, self.path, self.fd, keep)

    def remove(self) -> str | None:
        """Remove everything below and the directory; says what stays. Closes it."""
        try:
            stays = self.clear()
            if stays is None:
                stays = _rmdir(self._host, self.path, self.name, self.parent_fd)
        finally:
            self.close()
        return stays

    def close(self) -> None:
        """Close it, and leave the directory as it is."""
        os.close(self.fd)
        os.close(self.parent_fd)


def is_executor_leaf(path: str) -> bool:
    """Whether a path is where an executor puts itself, below its directory."""
    above, _, name = path.rpartition("/")
    return name == "executor" and _OURS.fullmatch(above.rpartition("/")[2]) is not None


def remove_dead(host: Host, parent: str, parent_fd: int) -> list[str]:
    """Remove what dead executors of the same user left; one sentence for each that stays."""
    stay = []
    with os.scandir(parent_fd) as entries:
        found = [(entry.name, match) for entry in entries if (match := _OURS.fullmatch(entry.name))]
    for name, match in found:
        if start_ticks(int(match[1])) == int(match[2]):
            continue
        try:
            fd = open_directory(name, parent_fd)
        except (FileNotFoundError, PermissionError):
            continue  # Another executor removed it; another user's.
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stay.append(f"{parent}/{name}: no such executor here, yet a process holds its lock")
                continue
            # Not what is in "executor": the executor's other children are not guests.
            reason = _clear(host, f"{parent}/{name}", fd, "executor", keep_alive=True)
            reason = reason or _rmdir(host, f"{parent}/{name}", name, parent_fd)
            if reason is not None:
                stay.append(reason)
        finally:
            os.close(fd)
    return stay


def _clear(
    host: Host, path: str, dir_fd: int, keep: str | None, *, keep_alive: bool = False
) -> str | None:
    with os.scandir(dir_fd) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    stays = None
    for name in names:
        if name == keep and not keep_alive:
            continue
        if name != keep:
            try:
                fd = open_directory(name, dir_fd)
                try:
                    kill_all(fd)
                finally:
                    os.close(fd)
            except FileNotFoundError:
                continue
            except OSError as error:
                stays = f"{path}/{name}: cannot kill what is inside: {error}"
                continue
        stays = _rmdir(host, f"{path}/{name}", name, dir_fd) or stays
    return stays


def _rmdir(host: Host, path: str, name: str, dir_fd: int) -> str | None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            host.rmdir(name, dir_fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                return f"{path}: {error.strerror}"
            time.sleep(0.002)
        else:
            return None


def raise_if_stays(stays: list[str]) -> None:
    """Raise for what could not be removed."""
    if stays:
        raise CgroupError("cannot remove " + "; ".join(stays))
