"""What the broker keeps: credentials under seal, what each may be used for, and each use of one.

SQLite in one file, for its owner alone. Uses are only ever added: triggers refuse anything else.
"""

import asyncio
import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from stockade.api.credentials import CredentialAnswer, Grant, UseAnswer
from stockade.broker.keys import Keyring

Result = TypeVar("Result")
Clock = Callable[[], float]

MAX_CREDENTIALS: Final = 1000
"""Of one tenant."""
_BUSY_SECONDS: Final = 10.0
_VERSION: Final = 1
_MOST_PATH: Final = 2048

_SCHEMA: Final = """
CREATE TABLE credentials (
    tenant TEXT NOT NULL, name TEXT NOT NULL, sealed BLOB NOT NULL, grants TEXT NOT NULL,
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE TABLE uses (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, tenant TEXT NOT NULL,
    execution TEXT NOT NULL, credential TEXT NOT NULL, method TEXT NOT NULL, host TEXT NOT NULL,
    port INTEGER NOT NULL, path TEXT NOT NULL
);
CREATE INDEX ix_uses_execution ON uses (tenant, execution, id);
CREATE INDEX ix_uses_credential ON uses (tenant, credential, id);
CREATE TABLE answers (
    use INTEGER PRIMARY KEY REFERENCES uses (id), status INTEGER NOT NULL
);
CREATE TRIGGER uses_kept BEFORE DELETE ON uses BEGIN SELECT RAISE(ABORT, 'append-only'); END;
CREATE TRIGGER uses_same BEFORE UPDATE ON uses BEGIN SELECT RAISE(ABORT, 'append-only'); END;
CREATE TRIGGER answers_kept BEFORE DELETE ON answers BEGIN SELECT RAISE(ABORT, 'append-only'); END;
CREATE TRIGGER answers_same BEFORE UPDATE ON answers BEGIN SELECT RAISE(ABORT, 'append-only'); END;
"""


class StoreFault(Exception):
    """The store cannot be used as it is; the message says what to do."""


class UnknownCredential(Exception):
    """The tenant has none of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no credential {name!r}")
        self.name = name


class TooMany(Exception):
    """A tenant has as many credentials as one may have."""


@dataclass(frozen=True, slots=True)
class Use:
    """That a secret is about to be put into a request."""

    tenant: str
    execution: str
    credential: str
    method: str
    host: str
    port: int
    path: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A credential with its secret."""

    name: str
    secret: str
    grants: tuple[Grant, ...]

    def __repr__(self) -> str:
        return f"<Opened {self.name}>"


class Store:
    """One connection, in a thread of its own: SQLite has one writer anyway."""

    def __init__(
        self, connection: sqlite3.Connection, keyring: Keyring, clock: Clock = time.time
    ) -> None:
        self._connection = connection
        self._keyring = keyring
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stockade-store")

    @classmethod
    def open(cls, path: Path, keyring: Keyring, clock: Clock = time.time) -> Self:
        """Open it; a file that is missing is made. Raises :class:`StoreFault`."""
        _make_private(path)
        try:
            connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
            # What is deleted is gone from the file, too.
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA synchronous = NORMAL")
            _migrate(connection, path)
        except sqlite3.Error as error:
            raise StoreFault(f"{path}: {error}") from None
        return cls(connection, keyring, clock)

    def close(self) -> None:
        """Close it, when what was begun is done."""
        self._thread.shutdown(wait=True)
        self._connection.close()

    async def put(self, tenant: str, name: str, secret: str, grants: Iterable[Grant]) -> bool:
        """Store it, in place of one of that name. Returns whether there was none."""
        sealed = self._keyring.seal(tenant, name, secret.encode())
        text = json.dumps([grant.model_dump(mode="json", exclude_none=True) for grant in grants])

        def write() -> bool:
            with _Writing(self._connection, durable=True) as connection:
                known = connection.execute(
                    "SELECT 1 FROM credentials WHERE tenant = ? AND name = ?", (tenant, name)
                ).fetchone()
                count = connection.execute(
                    "SELECT count(*) FROM credentials WHERE tenant = ?", (tenant,)
                ).fetchone()[0]
                if known is None and count >= MAX_CREDENTIALS:
                    raise TooMany(f"a tenant has at most {MAX_CREDENTIALS} credentials")
                now = self._now()
                connection.execute(
                    "INSERT INTO credentials VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                    "sealed = excluded.sealed, grants = excluded.grants, "
                    "updated_at = excluded.updated_at",
                    (tenant, name, sealed, text, now, now),
                )
                return known is None

        return await self._run(write)

    async def delete(self, tenant: str, name: str) -> None:
        """Raises :class:`UnknownCredential`. What was used of it stays told."""

        def write() -> None:
            with _Writing(self._connection, durable=True) as connection:
                gone = connection.execute(
                    "DELETE FROM credentials WHERE tenant = ? AND name = ?", (tenant, name)
                )
                if gone.rowcount == 0:
                    raise UnknownCredential(name)
            # The sealed text is not to linger in the log of what was written, either.
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        await self._run(write)

    async def credentials(self, tenant: str) -> tuple[CredentialAnswer, ...]:
        """All of a tenant's, without what is secret."""

        def read() -> list[tuple[str, str, int, int]]:
            return self._connection.execute(
                "SELECT name, grants, created_at, updated_at FROM credentials "
                "WHERE tenant = ? ORDER BY name",
                (tenant,),
            ).fetchall()

        return tuple(
            CredentialAnswer(
                name=name, grants=_grants(grants), created_at=made / 1e6, updated_at=altered / 1e6
            )
            for name, grants, made, altered in await self._run(read)
        )

    async def open_credentials(self, tenant: str, names: Iterable[str]) -> tuple[Opened, ...]:
        """With their secrets. Raises :class:`UnknownCredential` and ``KeyFault``."""
        wanted = tuple(dict.fromkeys(names))

        def read() -> tuple[tuple[str, bytes, str], ...]:
            found = []
            for name in wanted:
                row = self._connection.execute(
                    "SELECT sealed, grants FROM credentials WHERE tenant = ? AND name = ?",
                    (tenant, name),
                ).fetchone()
                if row is None:
                    raise UnknownCredential(name)
                found.append((name, *row))
            return tuple(found)

        return tuple(
            Opened(name, self._keyring.open(tenant, name, sealed).decode(), _grants(grants))
            for name, sealed, grants in await self._run(read)
        )

    async def record(self, uses: Iterable[Use]) -> list[int]:
        """Before a secret goes out: that it does. Returns a number for each."""
        rows = [
            (
                self._now(),
                use.tenant,
                use.execution,
                use.credential,
                use.method,
                use.host,
                use.port,
                use.path[:_MOST_PATH],
            )
            for use in uses
        ]

        def write() -> list[int]:
            with _Writing(self._connection) as connection:
                return [
                    connection.execute(
                        "INSERT INTO uses (time, tenant, execution, credential, method, host, port,"
                        " path) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                        row,
                    ).lastrowid
                    or 0
                    for row in rows
                ]

        return await self._run(write)

    async def answered(self, numbers: Iterable[int], status: int) -> None:
        """What the destination said to it."""
        rows = [(number, status) for number in numbers]

        def write() -> None:
            with _Writing(self._connection) as connection:
                connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)

        await self._run(write)

    async def uses(
        self,
        tenant: str,
        *,
        execution: str | None = None,
        credential: str | None = None,
        limit: int = 100,
    ) -> tuple[UseAnswer, ...]:
        """The latest first."""
        where, values = "tenant = ?", [tenant]
        for column, value in (("execution", execution), ("credential", credential)):
            if value is not None:
                where += f" AND {column} = ?"
                values.append(value)

        # The conditions are ours; the values are given apart.
        query = (
            "SELECT time, execution, credential, method, host, port, path, status FROM uses "  # noqa: S608
            f"LEFT JOIN answers ON answers.use = uses.id WHERE {where} ORDER BY id DESC LIMIT ?"
        )

        def read() -> list[tuple[int, str, str, str, str, int, str, int | None]]:
            return self._connection.execute(query, (*values, limit)).fetchall()

        return tuple(
            UseAnswer(
                time=moment / 1e6,
                execution=run,
                credential=name,
                method=method,
                host=host,
                port=port,
                path=path,
                status=status,
            )
            for moment, run, name, method, host, port, path, status in await self._run(read)
        )

    async def reseal(self) -> int:
        """Seal by the first key whatever another one sealed. Returns how many. Raises ``KeyFault``."""

        def write() -> int:
            with _Writing(self._connection, durable=True) as connection:
                rows = connection.execute("SELECT tenant, name, sealed FROM credentials").fetchall()
                count = 0
                for tenant, name, sealed in rows:
                    secret = self._keyring.open(
                        tenant, name, sealed
                    )  # each: a wrong key is told now
                    if not self._keyring.is_current(sealed):
                        connection.execute(
                            "UPDATE credentials SET sealed = ? WHERE tenant = ? AND name = ?",
                            (self._keyring.seal(tenant, name, secret), tenant, name),
                        )
                        count += 1
            return count

        return await self._run(write)

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _now(self) -> int:
        return int(self._clock() * 1e6)


class _Writing:
    """One transaction. ``durable``: the disk is waited for, else only no process's death undoes it."""

    def __init__(self, connection: sqlite3.Connection, *, durable: bool = False) -> None:
        self._connection = connection
        self._durable = durable

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")


def _grants(text: str) -> tuple[Grant, ...]:
    return tuple(Grant.model_validate(grant) for grant in json.loads(text))


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise StoreFault(f"{path} was made by a newer Stockade: use that version")
    if version == 0:
        connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")


def _make_private(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreFault(f"{path}: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise StoreFault(f"{path} is no regular file")
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise StoreFault(f"{path} can be read by others: chmod 600 {path}")
    finally:
        os.close(descriptor)
