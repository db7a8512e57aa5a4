"""A built image: the kernel, the initramfs and the disk of a guest, checked by their digests."""

import fcntl
import hashlib
import json
import os
import platform
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stockade.executor.microvm.digests import Digests, FileChanged
from stockade.executor.namespace.image import guest_digest
from stockade.port import Unavailable

VARIABLE: Final = "STOCKADE_IMAGES"
FORMAT: Final = 1
_FILES: Final = ("kernel", "initramfs", "disk")
_LARGEST_DESCRIPTION: Final = 4 << 20
_PIECE: Final = 1 << 30
SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
"""Of a file in memory that is never to change again: memfd_create(2)."""


@dataclass(frozen=True, slots=True)
class Image:
    """Its files, open: what was checked is what is started, whatever becomes of the names."""

    folder: Path
    digest: str
    """``sha256:…`` over the three files and what machine they are for."""
    kernel_version: str
    description: Mapping[str, Any]
    """``image.json`` as it was read."""
    kernel: int
    initramfs: int
    disk: int

    @property
    def promised(self) -> Mapping[str, str]:
        """``kernel``, ``initramfs`` and ``disk``, each to its digest in hexadecimal."""
        return {name: str(_promised(self.description, name)) for name in _FILES}

    def check(self, digests: Digests) -> None:
        """Raises :class:`~stockade.port.Unavailable` where a file was changed since it was opened.

        Reads those that were written to: for a thread.
        """
        for name, promise in self.promised.items():
            _check(digests, getattr(self, name), promise, self.folder / name)

    def close(self) -> None:
        """Close the files."""
        for descriptor in (self.kernel, self.initramfs, self.disk):
            os.close(descriptor)


def image_store() -> Path:
    """Where images are built to."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "stockade/images").absolute()


def find_image(digests: Digests | None = None) -> Image:
    """The newest that was built. Raises :class:`~stockade.port.Unavailable`, with the remedy.

    Reads all of it: for a thread. ``digests``: where what was read is remembered.
    """
    current = image_store() / "microvm/current"
    if not current.exists():
        raise _unavailable(f"no image was built for microVMs: there is no {current}")
    return open_image(current.resolve(), digests)


def open_image(folder: Path, digests: Digests | None = None) -> Image:
    """The image in this folder. Raises :class:`~stockade.port.Unavailable`."""
    known = digests or Digests()
    description = _read_description(folder)
    if description["guest_sha256"] != guest_digest():
        raise _unavailable(f"the image {folder} was built by another version of Stockade")
    built_for = description["machine"]
    if built_for != platform.machine():
        raise _unavailable(
            f"the image {folder} is for {built_for} machines, this is {platform.machine()}"
        )
    opened: dict[str, int] = {}
    promised = {name: str(_promised(description, name)) for name in _FILES}
    try:
        for name in _FILES:
            opened[name] = _open(folder / name)
            if os.geteuid() != 0:
                opened[name] = _seal(opened[name], folder / name)
            _check(known, opened[name], promised[name], folder / name)
        digest = digest_of_image(built_for, promised)
        if digest != description["digest"]:
            raise _unavailable(f"the digest in {folder / 'image.json'} is not its image's")
    except BaseException:
        for descriptor in opened.values():
            os.close(descriptor)
        raise
    version = str(description["kernel"].get("version", "unknown"))
    return Image(folder, digest, version, description, **opened)


def digest_of_image(machine: str, digests: Mapping[str, str]) -> str:
    """What names an image: ``digests`` are the hexadecimal ones of its files."""
    lines = [f"stockade-image {FORMAT} microvm {machine}\n"]
    lines += [f"{name} {digests[name]}\n" for name in _FILES]
    return "sha256:" + hashlib.sha256("".join(lines).encode("ascii")).hexdigest()


def _unavailable(fact: str) -> Unavailable:
    return Unavailable(f"{fact}; `stockade image build --for microvm` makes one")


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / "image.json"
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_DESCRIPTION + 1)
    except OSError as error:
        raise _unavailable(f"{path} cannot be read: {error.strerror}") from error
    try:
        description = json.loads(text) if len(text) <= _LARGEST_DESCRIPTION else None
    except (ValueError, RecursionError):
        description = None
    match description:
        case {"format": int(number)} if number != FORMAT:
            raise _unavailable(f"{path} has format {number}, this Stockade reads {FORMAT}")
        case {
            "format": int(),
            "for": "microvm",
            "machine": str(),
            "digest": str(),
            "kernel": {"sha256": str()},
            "initramfs_sha256": str(),
            "disk_sha256": str(),
            "guest_sha256": str(),
        }:
            assert isinstance(description, dict)
            return description
    raise _unavailable(f"{path} describes no image for microVMs")


def _promised(description: Mapping[str, Any], name: str) -> object:
    return description["kernel"]["sha256"] if name == "kernel" else description[f"{name}_sha256"]


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise _unavailable(f"{path} of the image cannot be read: {error.strerror}") from error
    status = os.fstat(descriptor)
    fault = None
    if not stat.S_ISREG(status.st_mode):
        fault = "is no regular file"
    elif os.geteuid() == 0 and not status.st_mode & stat.S_IROTH:
        # A VMM is nobody on the host, and opens some of these files itself.
        fault = "may not be read by everyone, and a VMM is nobody on the host"
    if fault is not None:
        os.close(descriptor)
        raise _unavailable(f"{path} of the image {fault}")
    return descriptor


def _seal(descriptor: int, path: Path) -> int:
    """A copy in memory that nobody can change, in place of a file.

    A plain user's VMM has that user's id: taken over by its guest, it could open the file anew
    for writing, and change what the next guest boots from.
    """
    copy = -1
    try:
        copy = os.memfd_create("stockade-image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        while os.sendfile(copy, descriptor, None, _PIECE):
            pass
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, SEALS)
        # QEMU takes a descriptor for reading only if it can do nothing else.
        sealed = os.open(f"/proc/self/fd/{copy}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unavailable(f"{path} of the image cannot be read: {error.strerror}") from error
    finally:
        if copy >= 0:
            os.close(copy)
    os.close(descriptor)
    return sealed


def _check(digests: Digests, descriptor: int, promised: str, path: Path) -> None:
    try:
        digest = digests.of(descriptor)
    except FileChanged as error:
        raise _unavailable(f"{path} of the image: {error}") from error
    except OSError as error:
        raise _unavailable(f"{path} of the image cannot be read: {error.strerror}") from error
    if digest != promised:
        raise _unavailable(f"{path} is not what image.json says: it was changed")
