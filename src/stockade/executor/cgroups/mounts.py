"""Where the hierarchies are mounted, and where in them this process is."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup hierarchy, as this process sees it."""

    controllers: tuple[str, ...]
    """Of v1, those mounted together; empty for v2, whose controllers vary by directory."""
    mount_point: str
    own: str | None
    """The directory of the cgroup that this process is in; ``None`` where it is out of view."""


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Everything that is mounted."""

    unified: Hierarchy | None
    legacy: tuple[Hierarchy, ...]

    def legacy_with(self, controller: str) -> Hierarchy | None:
        """The v1 hierarchy that has a controller."""
        for hierarchy in self.legacy:
            if controller in hierarchy.controllers:
                return hierarchy
        return None


def read_hierarchies(self_cgroup: Path, mountinfo: Path) -> Hierarchies:
    """Read both files; one that cannot be read says that nothing is mounted."""
    own_paths: dict[str, str] = {}
    for line in _lines(self_cgroup):
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in names.split(","):
            own_paths[name] = path
    unified: Hierarchy | None = None
    legacy: dict[tuple[str, ...], Hierarchy] = {}
    for line in _lines(mountinfo):
        # 36 35 98:0 /root /mount/point options [optional ...] - type source super,options
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(kind) < 3:
            continue
        root, mount_point = _unescape(fields[3]), _unescape(fields[4])
        if kind[0] == "cgroup2" and unified is None:
            unified = Hierarchy((), mount_point, _own(root, mount_point, own_paths.get("")))
        elif kind[0] == "cgroup":
            controllers = tuple(name for name in kind[2].split(",") if name in own_paths)
            if controllers and controllers not in legacy:
                own = _own(root, mount_point, own_paths[controllers[0]])
                legacy[controllers] = Hierarchy(controllers, mount_point, own)
    return Hierarchies(unified, tuple(legacy.values()))


def _lines(path: Path) -> list[str]:
    try:
        return os.fsdecode(path.read_bytes()).splitlines()
    except OSError:
        return []


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def _own(root: str, mount_point: str, path: str | None) -> str | None:
    # A container may see only a part of the hierarchy (root) or be told a path from
    # another cgroup namespace (with ".." in it).
    if path is None or ".." in path.split("/") or ".." in root.split("/"):
        return None
    if root == "/":
        inside = path
    elif path == root or path.startswith(root + "/"):
        inside = path[len(root) :]
    else:
        return None
    return (mount_point.rstrip("/") + "/" + inside.strip("/")).rstrip("/")
