"""The database: SQLite in a file, or PostgreSQL, by one URL."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from stockade.gateway.clock import Clock, now
from stockade.gateway.journal import Journal
from stockade.gateway.prepared import Prepared
from stockade.gateway.schema import audit_head
from stockade.port import StockadeError

Result = TypeVar("Result")

_READERS = 8
_BUSY_SECONDS = 10


class DatabaseFault(StockadeError):
    """The database cannot be used as it is; the message says what to do."""


class Database:
    """An engine, and threads that read.

    Writing is done by :class:`~stockade.gateway.ledger.Ledger` in a gateway that serves, and by
    commands in a transaction of their own; both by way of :meth:`writing`.
    """

    def __init__(self, engine: Engine, clock: Clock = now, frozen: "_Frozen | None" = None) -> None:
        self.engine = engine
        self.clock = clock
        self._frozen = frozen
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="stockade-read")

    @classmethod
    def open(cls, url: str, clock: Clock = now) -> Self:
        """Open it. An SQLite file that is missing is made, for its owner alone.

        Raises :class:`DatabaseFault`.
        """
        return cls(_engine(_checked(url)), clock)

    @classmethod
    def open_existing(cls, url: str) -> Self:
        """The same, but nothing is made. Raises :class:`DatabaseFault`."""
        checked = _checked(url)
        if (path := _file(checked)) is not None:
            _require_file(path)
        return cls(_engine(checked))

    @classmethod
    def open_to_read(cls, url: str) -> Self:
        """The same, and nothing is written: an SQLite file may be a copy on a read-only disk.

        Raises :class:`DatabaseFault`.
        """
        checked = _checked(url)
        if (path := _file(checked)) is None:
            return cls(_engine(checked))
        _require_file(path)
        frozen = _Frozen(path) if _is_whole(path) else None
        return cls(_reading_engine(checked, path, immutable=frozen is not None), frozen=frozen)

    def check_unchanged(self) -> None:
        """Refuse what was read while somebody began to write. Raises :class:`DatabaseFault`."""
        if self._frozen is not None and self._frozen.changed:
            raise DatabaseFault(f"{self.name} was written to while it was read: try again")

    def close(self) -> None:
        """Close every connection."""
        self._readers.shutdown(wait=True)
        self.engine.dispose()

    @property
    def name(self) -> str:
        """Its URL without a password."""
        return self.engine.url.render_as_string(hide_password=True)

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file of this machine."""
        return self.engine.dialect.name == "sqlite"

    @property
    def driver(self) -> Any:
        """The module that speaks to it; its errors are those of statements that were prepared."""
        return self.engine.dialect.loaded_dbapi

    async def run(self, read: Callable[[Connection], Result]) -> Result:
        """Read in a thread; what ``read`` returns must not depend on the connection any more."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.read, read)

    def read(self, read: Callable[[Connection], Result]) -> Result:
        """The same without an event loop."""
        with self.engine.connect() as connection:
            return read(connection)

    def read_at_once(self, read: Callable[[Connection], Result]) -> Result:
        """The same, where several queries have to see one moment of the database."""
        with self.engine.connect() as connection:
            if not self.is_sqlite:  # whose transactions are so anyway
                connection.execution_options(isolation_level="REPEATABLE READ")
            return read(connection)

    @contextmanager
    def writing(self) -> Iterator[tuple[Connection, Journal]]:
        """One transaction, with the audit's end locked, so that writers follow one another.

        In SQLite that is the file's one writer lock; in PostgreSQL the lock of the head's row.
        """
        with (
            self.engine.connect().execution_options(stockade_writes=True) as connection,
            self.write_on(connection) as journal,
        ):
            yield connection, journal

    @contextmanager
    def write_on(self, connection: Connection, *, durable: bool = True) -> Iterator[Journal]:
        """The same on a connection that is kept, made with ``stockade_writes``.

        Not ``durable``: SQLite does not wait for the disk. Nothing is lost by the death of any
        process; a power cut takes the last transactions, up to the next durable one, whole.
        """
        if connection.dialect.name == "sqlite":
            raw = connection.connection.driver_connection
            assert raw is not None
            raw.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        with connection.begin():
            head = _HEAD.one(connection)
            journal = Journal(connection, self.clock, head.number, head.digest)
            yield journal
            journal.finish()

    # --- migrations -----------------------------------------------------------------------------

    def migrate(self) -> str:
        """Bring it to this version's schema, in one transaction; return the revision."""
        from stockade.gateway.migrations import upgrade

        try:
            return upgrade(self.engine)
        except SQLAlchemyError as error:
            raise DatabaseFault(f"{self.name}: {_first_line(error)}") from error

    def check(self) -> None:
        """Refuse a schema that this version does not know. Raises :class:`DatabaseFault`."""
        from stockade.gateway.migrations import NewerSchema, revisions

        try:
            current, wanted = revisions(self.engine)
        except NewerSchema as error:
            raise DatabaseFault(
                f"{self.name} was made by a newer Stockade (its revision {error} is unknown here); "
                "use that version"
            ) from None
        except SQLAlchemyError as error:
            raise DatabaseFault(f"{self.name}: {_first_line(error)}") from error
        if current is None:
            raise DatabaseFault(
                f"{self.name} is empty: `stockade gateway --migrate` makes its tables"
            )
        if current != wanted:
            raise DatabaseFault(
                f"{self.name} is of an older Stockade (revision {current}, this one needs {wanted}): "
                "make a backup, then `stockade gateway --migrate`"
            )


_HEAD = Prepared(select(audit_head.c.number, audit_head.c.digest).with_for_update())


def _checked(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError:
        raise DatabaseFault(
            "the database's URL is none; it is like sqlite:////var/lib/stockade/gateway.db "
            "or postgresql://user@host/name"
        ) from None
    match url.drivername:
        case "sqlite" | "sqlite+pysqlite":
            if not url.database or url.database == ":memory:" or url.query:
                raise DatabaseFault("SQLite is used with a file: sqlite:////absolute/path.db")
            return url
        case "postgresql" | "postgres" | "postgresql+psycopg":
            return url.set(drivername="postgresql+psycopg")
    raise DatabaseFault(f"{url.drivername!r} is no database that is known: sqlite or postgresql")


def _engine(url: URL) -> Engine:
    if url.drivername == "postgresql+psycopg":
        return create_engine(
            url,
            pool_size=_READERS + 2,
            max_overflow=0,
            pool_pre_ping=True,
            connect_args={"connect_timeout": _BUSY_SECONDS, "application_name": "stockade"},
        )
    path = _file(url)
    assert path is not None
    _make_private(path)
    engine = create_engine(
        url,
        pool_size=_READERS + 2,
        max_overflow=0,
        connect_args={
            "timeout": _BUSY_SECONDS,
            "check_same_thread": False,
            "isolation_level": None,  # BEGIN is said below, not guessed by the driver
        },
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _reading_engine(url: URL, path: Path, *, immutable: bool) -> Engine:
    name = f"file:{quote(os.fspath(path.absolute()))}?mode=ro{'&immutable=1' if immutable else ''}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            name,
            uri=True,
            timeout=_BUSY_SECONDS,
            check_same_thread=False,
            isolation_level=None,
        )

    engine = create_engine(url, creator=connect, pool_size=_READERS + 2, max_overflow=0)
    event.listen(engine, "connect", _prepare_to_read)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


class _Frozen:
    """A file that nobody writes: what it was when it was opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._was = self._state()

    def __repr__(self) -> str:
        return f"<_Frozen {self._path}>"

    @property
    def changed(self) -> bool:
        """Whether it is another one now, or somebody has it open."""
        return self._state() != self._was

    def _state(self) -> tuple[object, ...]:
        try:
            status = self._path.stat()
        except OSError:
            return ()
        return (
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            _log_of(self._path).exists(),
        )


def _file(url: URL) -> Path | None:
    """Of SQLite."""
    return Path(url.database) if url.database and url.drivername.startswith("sqlite") else None


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _is_whole(path: Path) -> bool:
    """Whether nobody has it open and all of it is in its file. Raises :class:`DatabaseFault`.

    It is then read as what cannot change: SQLite would make a log beside it otherwise.
    """
    log = _log_of(path)
    if not log.exists():
        return True
    if os.access(path.parent, os.W_OK) or path.with_name(f"{path.name}-shm").exists():
        return False
    if log.stat().st_size:
        raise DatabaseFault(
            f"{path} is not all of it: the rest is in {log.name}, and to read both SQLite needs a "
            "folder that can be written; copy them into one"
        )
    return True


def _require_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise DatabaseFault(
            f"there is no database {path}: `stockade gateway --migrate` makes one, where the "
            "gateway's database_url says"
        ) from None
    except OSError as error:
        raise DatabaseFault(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise DatabaseFault(f"{path} is not a file")


def _make_private(path: Path) -> None:
    """It holds what keys are compared with, and what tenants did: nobody else reads it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            mode = os.fstat(descriptor).st_mode
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DatabaseFault(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise DatabaseFault(f"{path} is not a file")
    if mode & 0o077:
        raise DatabaseFault(f"others may read or write {path}: chmod 600 {path}")


def _prepare_sqlite(connection: Any, _: object) -> None:
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",  # where it may be less: write_on()
        "foreign_keys = ON",
        "temp_store = MEMORY",
        "trusted_schema = OFF",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _prepare_to_read(connection: Any, _: object) -> None:
    for pragma in ("query_only = ON", "temp_store = MEMORY", "trusted_schema = OFF"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A writer that began as a reader could not wait for its turn (SQLITE_BUSY_SNAPSHOT).
    writes = connection.get_execution_options().get("stockade_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
