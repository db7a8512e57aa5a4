"""The store: where built images stand, and what each says of itself.

``<store>/microvm/<digest>/`` holds ``kernel``, ``initramfs``, ``disk`` and ``image.json``, and
``<store>/microvm/current`` leads to the newest. docs/images.md says what the files are.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stockade.executor.microvm.image import FORMAT, digest_of_image
from stockade.executor.namespace.image import guest_digest
from stockade.images.apt import Package
from stockade.images.errors import CannotBuild

KIND = "microvm"
PARTS = ("kernel", "initramfs", "disk")
_MANIFEST = "image.json"
_LARGEST_MANIFEST = 1 << 20
_CURRENT = "current"
_LOCK = ".lock"
SCRATCH = ".build."
# The current one, and the one before it, for an executor that is just opening it.
_KEPT = 2


@dataclass(frozen=True, slots=True)
class Image:
    """One that was built."""

    folder: Path
    digest: str
    machine: str
    kernel: str
    """Its package and version."""
    packages: int
    size: int
    current: bool


def describe(
    machine: str, parts: Mapping[str, str], kernel: Package, packages: Sequence[Package]
) -> dict[str, object]:
    """What ``image.json`` says."""
    return {
        "format": FORMAT,
        "for": KIND,
        "machine": machine,
        "digest": digest_of_image(machine, parts),
        "kernel": {"package": kernel.name, "version": kernel.version, "sha256": parts["kernel"]},
        "initramfs_sha256": parts["initramfs"],
        "disk_sha256": parts["disk"],
        "guest_sha256": guest_digest(),
        "packages": [
            {"name": each.name, "version": each.version, "sha256": each.sha256} for each in packages
        ],
    }


class Store:
    """The images of one kind, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / KIND

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One build at a time."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CannotBuild(
                f"{self.folder} cannot be written ({error.strerror}): set STOCKADE_IMAGES to a "
                "folder of your own"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in self.folder.glob(f"{SCRATCH}*"):  # by a build that was killed
                shutil.rmtree(left, ignore_errors=True)
            yield
        finally:
            os.close(lock)

    def publish(self, made: Path, manifest: Mapping[str, object]) -> Image:
        """Move a folder of the three files in, whole or not at all, and make it the current one."""
        (made / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        digest = manifest["digest"]
        assert isinstance(digest, str)
        place = self.folder / digest.partition(":")[2]
        made.chmod(0o755)
        for path in made.iterdir():
            path.chmod(0o644)  # a VMM is nobody on the host
        _write_through(made)
        if not place.exists():
            made.rename(place)
        else:
            # A guest may be running from the one that is there: its files are exchanged one by
            # one, by the very same, so that whatever was damaged is whole again.
            for path in made.iterdir():
                path.replace(place / path.name)
        link = self.folder / f".{_CURRENT}"
        link.unlink(missing_ok=True)
        link.symlink_to(place.name)
        link.replace(self.folder / _CURRENT)
        _write_through(self.folder)
        self._forget(place)
        return self._read(place)

    def _forget(self, newest: Path) -> None:
        """Remove the oldest. Who runs from one has its files open."""
        os.utime(newest)
        folders = [path.parent for path in self.folder.glob(f"*/{_MANIFEST}")]
        folders = [path for path in folders if not path.is_symlink()]
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for folder in folders[_KEPT:]:
            shutil.rmtree(folder, ignore_errors=True)

    def images(self) -> list[Image]:
        """All that can be read, the current one first, then by digest."""
        if not self.folder.is_dir():
            return []
        found = []
        for folder in sorted(self.folder.iterdir()):
            if folder.is_symlink() or not (folder / _MANIFEST).is_file():
                continue
            with contextlib.suppress(CannotBuild):
                found.append(self._read(folder))
        return sorted(found, key=lambda image: (not image.current, image.digest))

    def is_whole(self, image: Image) -> bool:
        """Whether its files are those that its digest names."""
        try:
            parts = {name: file_digest(image.folder / name) for name in PARTS}
        except OSError:
            return False
        return digest_of_image(image.machine, parts) == image.digest

    def _read(self, folder: Path) -> Image:
        try:
            with (folder / _MANIFEST).open("rb") as file:
                said = json.loads(file.read(_LARGEST_MANIFEST))
            current = os.readlink(self.folder / _CURRENT) == folder.name  # noqa: PTH115
        except (OSError, ValueError) as error:
            raise CannotBuild(f"{folder / _MANIFEST} cannot be read: {error}") from error
        try:
            return Image(
                folder=folder,
                digest=str(said["digest"]),
                machine=str(said["machine"]),
                kernel=f"{said['kernel']['package']} {said['kernel']['version']}",
                packages=len(said["packages"]),
                size=sum((folder / name).stat().st_size for name in PARTS),
                current=current,
            )
        except (KeyError, TypeError, OSError) as error:
            raise CannotBuild(f"{folder} is no whole image: {error!r}") from error


def file_digest(path: Path) -> str:
    """SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_through(folder: Path) -> None:
    """What a name leads to must be on the disk before the name is."""
    for path in (*(each for each in folder.iterdir() if each.is_file()), folder):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
