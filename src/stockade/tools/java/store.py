"""What sandboxes compiled, kept: per tenant, by key. Nothing here looks into it."""

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Final, Protocol

from stockade.port import GIB, MIB

_DIGEST: Final = hashlib.sha256().digest_size
_LARGEST: Final = 80 * MIB


class ClassStore(Protocol):
    """Keeps bytes for a tenant; what it loses is made again."""

    async def get(self, tenant: str, key: str) -> bytes | None:
        """As they were put."""
        ...

    async def put(self, tenant: str, key: str, content: bytes) -> None:
        """Keep them, in place of what had this key."""
        ...


class MemoryStore:
    """Keeps what was used last, as long as the process lives."""

    def __init__(self, most_bytes: int = 128 * MIB) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._kept)} kept>"

    async def get(self, tenant: str, key: str) -> bytes | None:
        found = self._kept.get((tenant, key))
        if found is not None:
            self._kept.move_to_end((tenant, key))
        return found

    async def put(self, tenant: str, key: str, content: bytes) -> None:
        self._kept[tenant, key] = content
        self._kept.move_to_end((tenant, key))
        while sum(map(len, self._kept.values())) > self._most_bytes:
            self._kept.popitem(last=False)


class FolderStore:
    """Keeps it in a folder of this user's own, closed to others, over restarts."""

    def __init__(self, folder: Path, *, most_bytes: int = 2 * GIB) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def __repr__(self) -> str:
        return f"<FolderStore {self._folder}>"

    async def get(self, tenant: str, key: str) -> bytes | None:
        return await asyncio.to_thread(self._get, self._path(tenant, key))

    async def put(self, tenant: str, key: str, content: bytes) -> None:
        await asyncio.to_thread(self._put, self._path(tenant, key), content)

    def _path(self, tenant: str, key: str) -> Path:
        # Names of any text; those of two tenants never meet.
        parts = (hashlib.sha256(part.encode()).hexdigest() for part in (tenant, key))
        return self._folder.joinpath(*parts)

    @staticmethod
    def _get(path: Path) -> bytes | None:
        try:
            with path.open("rb") as file:
                told = file.read(_LARGEST)
            os.utime(path)  # what was used last goes last
        except OSError:
            return None
        content = told[_DIGEST:]
        # Cut or changed on the disk: as if it were not there.
        return content if hashlib.sha256(content).digest() == told[:_DIGEST] else None

    def _put(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
                file.write(hashlib.sha256(content).digest() + content)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(name).unlink()
            raise
        self._trim()

    def _trim(self) -> None:
        files = []
        for path in self._folder.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        size = sum(each[1] for each in files)
        for _, length, path in sorted(files):
            if size <= self._most_bytes:
                return
            path.unlink(missing_ok=True)
            size -= length
