"""The image of the namespace tier: what a sandbox sees of the host's files.

The host's ``/usr``, and of ``/etc`` only what names no person, host or secret and
without which programs of ``/usr`` do not start.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import stockade
from stockade.port import Unavailable

INTERPRETER = Path("/usr/bin/python3")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# Links to programs (update-alternatives(1)), the linker's cache, and the read-only settings
# without which Java and Debian's matplotlib do not start.
_ETC = ("alternatives", "ld.so.cache", "java-*-openjdk", "matplotlibrc")
_USR_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Package databases: they name the exact content of /usr without reading gigabytes.
_PACKAGE_DATABASES = (Path("/var/lib/dpkg/status"), Path("/var/lib/rpm/rpmdb.sqlite"))


@dataclass(frozen=True, slots=True)
class Bind:
    """A place of the host that a sandbox sees, read-only."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Copy:
    """A file of ours that every sandbox has, without a word on where it is kept."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class HostImage:
    """What is bound and copied in, and the digest that names it."""

    binds: tuple[Bind, ...]
    copies: tuple[Copy, ...]
    digest: str


def guest_folder() -> Path:
    """The agent's files, shipped into every sandbox."""
    return Path(stockade.__file__).parent / "guest"


def native_folder() -> Path:
    """The compiled launcher and library."""
    return Path(__file__).parent / "native"


def guest_copies() -> tuple[Copy, ...]:
    """Our part of every image. Raises :class:`Unavailable` where it was not built."""
    library, agent = native_folder() / "libstockade.so", native_folder() / "stockade-agent"
    for path in (library, agent):
        if not path.exists():
            raise Unavailable(f"{path} is missing: the package was installed without its C part")
    ours = sorted((*guest_folder().glob("*.py"), *guest_folder().glob("*.js")))
    return (
        *(Copy(path, f"/opt/stockade/stockade_guest/{path.name}") for path in ours),
        Copy(library, "/opt/stockade/libstockade.so"),
        Copy(agent, "/opt/stockade/stockade-agent"),
    )


def guest_digest() -> str:
    """Names our part of an image by content, in hexadecimal: an image with another is outdated."""
    digest = hashlib.sha256()
    for copy in guest_copies():
        digest.update(os.fsencode(f"{copy.target}\0") + copy.source.read_bytes())
    return digest.hexdigest()


def find_host_image() -> HostImage:
    """Read what this host offers. Raises :class:`Unavailable` with what is missing."""
    if not INTERPRETER.exists():
        raise Unavailable(
            f"{INTERPRETER} is missing: the namespace tier's agent runs on the host's Python; "
            "install it (apt-get install python3)"
        )
    copies = guest_copies()
    binds = [Bind(Path("/usr"), "/usr")]
    binds += [
        Bind(Path("/", name), f"/{name}")
        for name in _USR_FOLDERS
        if Path("/", name).is_dir() and not Path("/", name).is_symlink()
    ]
    binds += [
        Bind(path, str(path)) for pattern in _ETC for path in sorted(Path("/etc").glob(pattern))
    ]
    binds += [Bind(Path("/dev", name), f"/dev/{name}") for name in _DEVICES]
    return HostImage(tuple(binds), copies, _digest(binds, copies))


def _digest(binds: Sequence[Bind], copies: Sequence[Copy]) -> str:
    """Names the image: the package database, the interpreter, ``/etc`` and our own part, by content.

    What was changed in ``/usr`` behind the package manager's back does not show.
    """
    digest = hashlib.sha256()
    for bind in binds:
        digest.update(os.fsencode(f"{bind.source}\0{bind.target}\0"))
        if bind.target.startswith("/etc/"):  # settings, which their host's administrator changes
            _add_content(digest, str(bind.source))
    ours = (copy.source for copy in copies)
    for path in (*_PACKAGE_DATABASES, INTERPRETER.resolve(), *ours):
        if path.exists():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"host-sha256:{digest.hexdigest()}"


def _add_content(digest: "hashlib._Hash", path: str) -> None:
    """Add a small tree: names, where links lead, and what files hold.

    Not by pathlib, which would take as long as all the rest of opening an image.
    """
    try:
        content = os.fsencode(os.readlink(path))  # noqa: PTH115
    except OSError:  # no link
        if os.path.isdir(path):  # noqa: PTH112
            for name in sorted(os.listdir(path)):  # noqa: PTH208
                _add_content(digest, f"{path}/{name}")
            return
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                content = file.read()
        except PermissionError:  # nor does a guest read it
            content = b""
    digest.update(os.fsencode(f"{path}\0{len(content)}\0") + content)
