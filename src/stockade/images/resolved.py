"""Which packages an image is made of, as the archive said; remembered for a day."""

import hashlib
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stockade.images.apt import Archive, Package
from stockade.images.errors import CannotBuild

# A small Debian: what its own scripts take for granted, and Python.
PACKAGES = (
    *("base-files", "bash", "bsdutils", "bzip2", "coreutils", "dash", "debianutils", "diffutils"),
    *("e2fsprogs", "file", "findutils", "gawk", "grep", "gzip", "hostname", "libc-bin", "mawk"),
    *(
        "media-types",
        "ncurses-base",
        "ncurses-bin",
        "netbase",
        "perl-base",
        "procps",
        "python3",
        "sed",
    ),
    *("sysvinit-utils", "tar", "tzdata", "unzip", "util-linux", "xz-utils", "zip"),
)
_KERNEL = "linux-image-cloud-{architecture}"
_TOOLS = ("erofs-utils", "zstd")
_ARCHITECTURES = {"x86_64": "amd64"}
_LIFETIME = 86400.0
_LARGEST = 4 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for."""

    packages: tuple[str, ...] = ()
    """Beside :data:`PACKAGES`."""
    mirror: str | None = None
    """Of Debian; ``None``: the system's own."""
    update: bool = False
    """Ask the archive though it was asked within a day."""
    machine: str = field(default_factory=platform.machine)

    def architecture(self) -> str:
        """What Debian calls the machine."""
        architecture = _ARCHITECTURES.get(self.machine)
        if architecture is None:
            raise CannotBuild(
                f"images are built for {', '.join(_ARCHITECTURES)} so far, not for {self.machine}"
            )
        return architecture

    def key(self) -> str:
        """What the archive is asked; another question has another key."""
        asked = (PACKAGES, sorted(set(self.packages)), self.mirror, self.machine, _TOOLS)
        return hashlib.sha256(repr(asked).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Resolved:
    """The answer."""

    suite: str
    root: tuple[Package, ...]
    kernel: Package
    tools: tuple[Package, ...]

    def packages(self) -> list[Package]:
        """All of them, each once."""
        return sorted({*self.root, self.kernel, *self.tools}, key=lambda each: each.sha256)


def resolve(archive: Archive, request: Request) -> Resolved:
    """Ask the archive."""
    meta = _KERNEL.format(architecture=request.architecture())
    kernels = [
        package
        for package in archive.resolve([meta])
        if package.name.startswith("linux-image-") and package.name != meta
    ]
    if len(kernels) != 1:
        raise CannotBuild(f"Debian {archive.suite}'s {meta} does not lead to one kernel")
    return Resolved(
        suite=archive.suite,
        root=tuple(archive.resolve([*PACKAGES, *request.packages])),
        kernel=kernels[0],
        tools=tuple(archive.resolve(_TOOLS)),
    )


def remember(path: Path, request: Request, resolved: Resolved, now: float) -> None:
    """Keep the answer."""
    fresh = path.with_suffix(".new")
    kept = {"key": request.key(), "at": now, "resolved": asdict(resolved)}
    fresh.write_text(json.dumps(kept), encoding="utf-8")
    fresh.replace(path)


def recall(path: Path, request: Request, clock: Callable[[], float] = time.time) -> Resolved | None:
    """The answer to the same question, if it is not too old. What cannot be read is none."""
    if request.update:
        return None
    try:
        with path.open("rb") as file:
            kept = json.loads(file.read(_LARGEST))
        # A clock that was set back must not make this last.
        if kept["key"] != request.key() or not 0 <= clock() - kept["at"] < _LIFETIME:
            return None
        said = kept["resolved"]
        return Resolved(
            suite=str(said["suite"]),
            root=tuple(Package(**each) for each in said["root"]),
            kernel=Package(**said["kernel"]),
            tools=tuple(Package(**each) for each in said["tools"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
