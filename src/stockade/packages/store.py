"""Package sets on disk: per tenant, by digest, never changed.

A set is what :meth:`~stockade.port.Session.save` gave: bytes that a guest made. Nothing here looks
into them; they go back into a sandbox of the same tenant as they are, or not at all.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from stockade.port import GIB, InvalidRequest, StockadeError

_PIECE: Final = 1 << 20
_STALE_SECONDS: Final = 24 * 3600.0
_MOST_NOTE_BYTES: Final = 65_536


class Damaged(StockadeError):
    """A set that is not what it was when it was kept."""


@dataclass(frozen=True, slots=True)
class PackageSet:
    """What was installed for one recipe."""

    digest: str
    """SHA-256 of the saved workspace, in hexadecimal."""
    size: int
    """Bytes of it."""
    disk_bytes: int
    """What it takes in a workspace."""
    inodes: int
    image: str
    installed_at: float


class PackageStore:
    """A folder of this user's own, closed to others."""

    def __init__(self, folder: Path, *, most_bytes: int = 8 * GIB) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def __repr__(self) -> str:
        return f"<PackageStore {self._folder}>"

    def find(self, tenant: str, key: str) -> PackageSet | None:
        """The set of a recipe's key, if it is kept."""
        note = self._home(tenant) / "keys" / key
        try:
            with note.open("rb") as file:
                told = json.loads(file.read(_MOST_NOTE_BYTES))
            found = PackageSet(**told)
            if not self._path(tenant, found.digest).is_file():
                return None
            os.utime(note)  # what was used last goes last
        except (OSError, ValueError, TypeError):
            return None
        return found

    @contextlib.asynccontextmanager
    async def only_one(self, tenant: str, key: str) -> AsyncIterator[None]:
        """While one installs, another that wants the same waits."""
        locks = self._home(tenant) / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(locks / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.05)
            yield
        finally:
            os.close(descriptor)

    async def keep(
        self,
        tenant: str,
        key: str,
        content: AsyncIterator[bytes],
        *,
        most_bytes: int,
        image: str,
        disk_bytes: int,
        inodes: int,
    ) -> PackageSet:
        """Keep a set whole, or not at all. Raises :class:`InvalidRequest` for one too large."""
        home = self._home(tenant)
        for name in ("incoming", "sets", "keys"):
            (home / name).mkdir(parents=True, exist_ok=True)
        self._remove_stale(home / "incoming")
        digest, size = hashlib.sha256(), 0
        with _incoming(home / "incoming") as (file, path):
            async for piece in content:
                size += len(piece)
                if size > most_bytes:
                    raise InvalidRequest(
                        "packages", f"what was installed exceeds {most_bytes} bytes"
                    )
                digest.update(piece)
                await asyncio.to_thread(_write, file, piece)
            await asyncio.to_thread(_finish, file)
            found = PackageSet(
                digest.hexdigest(), size, disk_bytes, inodes, image, round(time.time(), 3)
            )
            path.rename(self._path(tenant, found.digest))
        with _incoming(home / "incoming") as (file, path):
            _write(file, json.dumps(asdict(found)).encode())
            _finish(file)
            path.rename(home / "keys" / key)
        self._prune(keep=self._path(tenant, found.digest))
        return found

    async def read(self, tenant: str, found: PackageSet) -> AsyncIterator[bytes]:
        """The set in pieces. Raises :class:`Damaged` before its end where it is another."""
        digest, left = hashlib.sha256(), found.size
        path = self._path(tenant, found.digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Damaged(
                f"the package set {found.digest[:12]} is gone: {error.strerror}"
            ) from None
        last = b""
        try:
            while piece := await asyncio.to_thread(os.read, descriptor, _PIECE):
                digest.update(piece)
                left -= len(piece)
                if last:
                    yield last
                last = piece
        finally:
            os.close(descriptor)
        # Its last piece only when all of it is known: what is cut is never unpacked as whole.
        if left or digest.hexdigest() != found.digest:
            path.unlink(missing_ok=True)
            raise Damaged(
                f"the package set {found.digest[:12]} was changed on disk, and is removed; "
                "it is installed anew the next time"
            )
        yield last

    def _home(self, tenant: str) -> Path:
        home = self._folder / hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = home.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise InvalidRequest("packages", f"{home} is not this user's own, or others may write")
        return home

    def _path(self, tenant: str, digest: str) -> Path:
        return self._home(tenant) / "sets" / digest

    @staticmethod
    def _remove_stale(incoming: Path) -> None:
        """What a killed process left. A day is more than any installation may take."""
        for path in incoming.iterdir():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < time.time() - _STALE_SECONDS:
                    path.unlink()

    def _prune(self, keep: Path) -> None:
        """The least recently used go until the rest fits."""
        notes: list[tuple[float, Path, Path]] = []
        referred: set[Path] = {keep}
        for note in self._folder.glob("*/keys/*"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                digest = str(json.loads(note.read_bytes()[:_MOST_NOTE_BYTES])["digest"])
                content = note.parent.parent / "sets" / digest
                notes.append((note.stat().st_mtime, note, content))
                referred.add(content)
        sizes: dict[Path, int] = {}
        orphans: list[tuple[float, None, Path]] = []
        for path in self._folder.glob("*/sets/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                sizes[path] = status.st_size
                # A younger one is another process's, which has not written its note yet.
                if path not in referred and status.st_ctime < time.time() - _STALE_SECONDS:
                    orphans.append((0.0, None, path))
        total = sum(sizes.values())
        oldest: list[tuple[float, Path | None, Path]] = [*orphans, *sorted(notes)]
        for _, written, content in oldest:
            if content == keep or (total <= self._most_bytes and content in referred):
                continue
            if written is not None:
                written.unlink(missing_ok=True)
            if content in sizes:
                content.unlink(missing_ok=True)
                total -= sizes.pop(content)


@contextlib.contextmanager
def _incoming(folder: Path) -> Iterator[tuple[int, Path]]:
    descriptor, name = tempfile.mkstemp(dir=folder)
    path = Path(name)
    try:
        yield descriptor, path
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)  # renamed, unless something failed


def _write(file: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(file, view) :]


def _finish(file: int) -> None:
    os.fchmod(file, 0o400)
    os.fsync(file)
