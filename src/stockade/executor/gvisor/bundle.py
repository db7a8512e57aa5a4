"""The OCI bundle of a sandbox: its root, and what runsc is told of it.

https://github.com/opencontainers/runtime-spec/blob/main/config.md
"""

import json
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from stockade.executor.namespace.image import Bind, HostImage
from stockade.executor.root import FOLDERS, LINKS, USERS

# gVisor's kernel has the devices itself.
_OF_THE_KERNEL: Final = "/dev/"
# What the agent needs to set the sandbox up; it gives all of it up before there is a program.
_RIGHTS: Final = ("CAP_CHOWN", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN")
_AGENT: Final = "/opt/stockade/stockade-agent"
_LARGEST_COPY: Final = 1 << 20


def make_root(root: Path, image: HostImage) -> list[Bind]:
    """Lay out a root that is the same for every sandbox; returns what is to be mounted on it.

    Small folders are copied: every mount costs each sandbox a connection to the host's files.
    """
    for name in FOLDERS:
        (root / name).mkdir(parents=True)
    for name, text in USERS.items():
        (root / "etc" / name).write_text(text, encoding="ascii")
    for name, leads_to in LINKS.items():
        (root / name).symlink_to(leads_to)
    mounts = []
    for bind in image.binds:
        target = root / bind.target.lstrip("/")
        if bind.target.startswith(_OF_THE_KERNEL):
            continue
        if bind.source.is_file():
            shutil.copy(bind.source, target)
        elif bind.target.startswith("/etc/") and _size(bind.source) <= _LARGEST_COPY:
            shutil.copytree(bind.source, target, symlinks=True)
        else:
            target.mkdir(parents=True)
            mounts.append(bind)
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        link = Path("/", name)
        if link.is_symlink():
            (root / name).symlink_to(link.readlink())
    for copy in image.copies:
        target = root / copy.target.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(copy.source, target)
    return mounts


def write_bundle(
    folder: Path,
    root: Path,
    mounts: Sequence[Bind],
    disk_bytes: int,
    modules: Sequence[str],
) -> None:
    """Write ``config.json``. The agent boots with ``modules`` loaded in its warm interpreter."""
    arguments = [_AGENT, "boot", str(disk_bytes), "0", *modules]
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(_specification(root, mounts, arguments)), encoding="utf-8"
    )


def _specification(
    root: Path, mounts: Sequence[Bind], arguments: Sequence[str]
) -> Mapping[str, object]:
    return {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "root": {"path": str(root), "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            *(
                {
                    "destination": bind.target,
                    "type": "bind",
                    "source": str(bind.source),
                    "options": ["rbind", "ro", "nosuid", "nodev"],
                }
                for bind in mounts
            ),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "uts", "ipc", "network")]
        },
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(arguments),
            "cwd": "/",
            "env": [],
            "noNewPrivileges": True,
            "capabilities": {
                kind: list(_RIGHTS) for kind in ("bounding", "effective", "permitted")
            },
        },
    }


def _size(folder: Path) -> int:
    """Bytes of the regular files below it."""
    files = (path.lstat() for path in folder.rglob("*") if not path.is_symlink())
    return sum(status.st_size for status in files if stat.S_ISREG(status.st_mode))
