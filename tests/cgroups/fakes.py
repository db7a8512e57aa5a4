"""A directory that imitates the files of cgroup v2, for hosts that the tests do not run on."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from stockade.executor.cgroups.kernel import TRIAL_BYTES

T = TypeVar("T")

# Above PID_MAX_LIMIT: no such process can exist.
TRIAL_PID = 5_000_000
SOMEBODY = 5_000_001

_FILES = {
    "memory": ["memory.max", "memory.swap.max", "memory.oom.group", "memory.peak"],
    "pids": ["pids.max", "pids.peak", "pids.events"],
    "cpu": ["cpu.max"],
}


class FakeHost:
    """Plays what plain files cannot: rules on making, entering and switching on."""

    def __init__(self, root: Path, controllers: str) -> None:
        self.root = root
        self.read_only = False
        self.lies: set[str] = set()
        """Controllers whose files are there and do nothing."""
        self.pid = os.getpid()
        """Who "0" means."""
        self.broken = ""
        """A file that new cgroups lack."""
        self._fill(root, controllers.split())

    def cgroup(self, path: str, *processes: int) -> Path:
        """Make a cgroup by hand, with processes in it."""
        made = self.root
        for name in path.strip("/").split("/"):
            if not (made / name).is_dir():
                (made / name).mkdir()
                self._fill(made / name, self.enabled(made))
            made /= name
        self.put(made, *processes)
        return made

    def put(self, directory: Path, *pids: int) -> None:
        """Processes enter, leaving where they were."""
        for other in [self.root, *self._below(self.root)]:
            left = set(self.processes(other)) - set(pids)
            (other / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in sorted(left)))
        inside = [*self.processes(directory), *pids]
        (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in inside))

    def processes(self, directory: Path) -> list[int]:
        """Who is in a cgroup."""
        return [int(line) for line in (directory / "cgroup.procs").read_text().split()]

    def enabled(self, directory: Path) -> list[str]:
        """What the children of a cgroup have."""
        return (directory / "cgroup.subtree_control").read_text().split()

    def tree(self) -> list[str]:
        """Every cgroup, as a path below the root."""
        return sorted(str(path.relative_to(self.root)) for path in self._below(self.root))

    def mkdir(self, name: str, dir_fd: int) -> None:
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        os.mkdir(name, dir_fd=dir_fd)
        parent = self._path(dir_fd)
        self._fill(parent / name, self.enabled(parent))

    def rmdir(self, name: str, dir_fd: int) -> None:
        directory = self._path(dir_fd) / name
        if not directory.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if self.processes(directory) or self._children(directory):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()

    def move(self, pid: int, dir_fd: int) -> None:
        directory = self._path(dir_fd)
        if directory != self.root and self.enabled(directory):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        self.put(directory, pid or self.pid)

    def switch(self, controller: str, on: bool, dir_fd: int) -> None:
        directory = self._path(dir_fd)
        now = set(self.enabled(directory))
        if on:
            if controller not in (directory / "cgroup.controllers").read_text().split():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            # The root is exempt from the rule of no internal processes.
            if directory != self.root and self.processes(directory):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            now.add(controller)
        else:
            if any(controller in self.enabled(child) for child in self._children(directory)):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            now.discard(controller)
        (directory / "cgroup.subtree_control").write_text(" ".join(sorted(now)) + "\n")
        for child in self._children(directory):
            self._give(child, sorted(now))

    def visit(self, join_fd: int, inspect: Callable[[int, bool], T]) -> T:
        directory = Path(f"/proc/self/fd/{join_fd}").readlink().parent
        refused = False
        if (directory / "pids.max").exists():
            refused = (directory / "pids.max").read_text() == "1" and "pids" not in self.lies
        if (directory / "memory.current").exists():
            used = 0 if "memory" in self.lies else TRIAL_BYTES
            (directory / "memory.current").write_text(str(used))
        self.put(directory, TRIAL_PID)
        try:
            return inspect(TRIAL_PID, refused)
        finally:
            (directory / "cgroup.procs").write_text("")

    def _fill(self, directory: Path, controllers: list[str]) -> None:
        for name in ("cgroup.procs", "cgroup.kill", "cgroup.subtree_control"):
            (directory / name).write_text("")
        (directory / "cgroup.events").write_text("populated 0\nfrozen 0\n")
        (directory / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\n")
        self._give(directory, controllers)

    def _give(self, directory: Path, controllers: list[str]) -> None:
        (directory / "cgroup.controllers").write_text(" ".join(controllers) + "\n")
        for controller in controllers:
            for name in _FILES.get(controller, []):
                (directory / name).write_text("")
        if "memory" in controllers:
            (directory / "memory.peak").write_text("4096\n")
            (directory / "memory.current").write_text("0\n")
            (directory / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\n")
        if "pids" in controllers:
            (directory / "pids.peak").write_text("7\n")
            (directory / "pids.events").write_text("max 5\n")
        if self.broken:
            (directory / self.broken).unlink(missing_ok=True)

    def _children(self, directory: Path) -> list[Path]:
        return [path for path in directory.iterdir() if path.is_dir()]

    def _below(self, directory: Path) -> Iterator[Path]:
        for child in self._children(directory):
            yield child
            yield from self._below(child)

    def _path(self, dir_fd: int) -> Path:
        return Path(f"/proc/self/fd/{dir_fd}").readlink()
