"""Opaque bytes under names of our own making: a folder, or an S3-compatible store.

A name is never reused, so that whoever deletes an old one cannot hit a new one. What is written and
then not entered in the database, because somebody was killed between, is found by a sweep.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from stockade.port import Refused, StockadeError, Unavailable

PIECE: Final = 1024 * 1024
_BUFFER: Final = 8 * PIECE
GRACE_SECONDS: Final = 3600.0
"""What is younger may be on its way into the database."""


class BlobGone(StockadeError):
    """The bytes are not there, or not whole, though the database has them."""


class Blobs:
    """One store, one prefix in it."""

    def __init__(self, store: Any, prefix: str, folder: Path | None = None) -> None:
        self._store = store
        self._prefix = prefix
        self._folder = folder

    @classmethod
    def open(cls, where: str, prefix: str, options: dict[str, str] | None = None) -> "Blobs":
        """``where``: an absolute folder, or ``s3://bucket/prefix``."""
        folder = None if where.startswith("s3://") else Path(where) / prefix
        return cls(open_store(where, options or {}), prefix, folder)

    def new_place(self, tenant: str) -> str:
        """A name that was never used before."""
        return f"{self._prefix}/{tenant}/{secrets.token_hex(16)}"

    async def put(self, place: str, data: bytes) -> None:
        """Whole, or not at all."""
        with _spoken():
            await obstore.put_async(self._store, place, data, use_multipart=False)

    async def put_stream(
        self, place: str, pieces: AsyncIterable[bytes], most_bytes: int, what: str
    ) -> int:
        """The same in pieces; return the size. Raises :class:`Refused` beyond ``most_bytes``."""
        size, theirs = 0, None

        async def source() -> AsyncIterator[bytes]:
            nonlocal size, theirs
            try:
                async for piece in pieces:
                    size += len(piece)
                    if size > most_bytes:
                        raise Refused("too_large", f"{what} of more than {most_bytes} bytes")
                    yield piece
            except Exception as error:
                theirs = error
                raise

        try:
            with _spoken():
                # Held in memory a few pieces at a time; left by an error, nothing of it is kept.
                async with obstore.open_writer_async(
                    self._store, place, buffer_size=_BUFFER
                ) as writer:
                    async for piece in source():
                        await writer.write(piece)
        except StockadeError:
            # A pipe that broke on the other side is not this store's fault.
            if theirs is not None:
                raise theirs from None
            raise
        return size

    async def get(self, place: str, start: int, end: int, size: int) -> AsyncIterator[bytes]:
        """The bytes from ``start`` to ``end`` (not included), in pieces.

        Raises :class:`BlobGone` where the store has it not, or not as long as it was.
        """
        if start == end:
            return
        with _spoken():
            found = await obstore.head_async(self._store, place)
        if found["size"] != size:
            raise BlobGone(f"{found['size']} bytes are there instead of {size}")
        while start < end:
            stop = min(end, start + PIECE)
            with _spoken():
                piece = await obstore.get_range_async(self._store, place, start=start, end=stop)
            data = bytes(piece)
            if len(data) != stop - start:
                raise BlobGone(f"{len(data)} bytes came instead of {stop - start}")
            yield data
            start = stop

    async def delete(self, *places: str) -> None:
        """Those that are not there are no error."""
        for place in places:
            try:
                await obstore.delete_async(self._store, place)
            except FileNotFoundError:
                pass
            except BaseError as error:
                raise Unavailable("the store of artefacts cannot be written") from error

    async def sweep(
        self,
        known: Callable[[Collection[str]], Any],
        grace_seconds: float = GRACE_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> int:
        """Delete what is older than ``grace_seconds`` and not in the database; return how many.

        ``known``: a coroutine function that returns those of some names that are in the database.
        """
        deleted = 0
        with _spoken():
            async for page in obstore.list(self._store, self._prefix, chunk_size=500):
                old = [
                    each["path"]
                    for each in page
                    if now() - each["last_modified"].timestamp() > grace_seconds
                ]
                orphans = set(old) - set(await known(old))
                await self.delete(*orphans)
                deleted += len(orphans)
        if self._folder is not None:
            deleted += await asyncio.to_thread(
                _sweep_unfinished, self._folder, now() - grace_seconds
            )
        return deleted


def _sweep_unfinished(folder: Path, before: float) -> int:
    """What a killed process was writing into a folder; a listing of the store leaves it out."""
    deleted = 0
    for path in folder.glob("*/*#*"):
        if path.lstat().st_mtime < before:
            path.unlink(missing_ok=True)
            deleted += 1
    return deleted


def open_store(where: str, options: dict[str, str]) -> Any:
    """Raises :class:`ValueError`."""
    if where.startswith("s3://"):
        return S3Store.from_url(
            where,
            client_options={"timeout": timedelta(seconds=30)},
            **options,  # type: ignore[arg-type]
        )
    folder = Path(where)
    if not folder.is_absolute():
        raise ValueError(f"{where!r} is neither an absolute folder nor s3://bucket/prefix")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_mode & 0o007:
        raise ValueError(f"every user may look into {folder}: chmod 750 {folder}")
    return LocalStore(folder)


class _spoken:  # noqa: N801 - reads as a statement
    """A store's faults as errors of the port."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise BlobGone("the bytes are not there any more") from error
        if isinstance(error, BaseError | OSError):
            raise Unavailable("the store of artefacts cannot be used at present") from error
