import asyncio
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection
from tests.gateway import postgres

from stockade.gateway.audit import verify
from stockade.gateway.database import Database
from stockade.gateway.executions import RequestFacts
from stockade.gateway.keys import Caller, Keys
from stockade.gateway.ledger import Ledger
from stockade.gateway.policy import Budgets, TenantPolicy
from stockade.gateway.tenants import Tenants
from stockade.port import ExecutionRequest, Limits, PythonSource, SandboxRequest


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if postgres.binaries() is None:
        if os.environ.get("STOCKADE_REQUIRE_POSTGRES"):
            pytest.fail("there is no PostgreSQL, and STOCKADE_REQUIRE_POSTGRES demands it")
        pytest.skip("postgresql: not installed (apt-get install postgresql)")
    with postgres.server(tmp_path_factory.mktemp("postgres")) as url:
        yield url


KINDS = ["sqlite", "postgresql"]


@contextmanager
def _created(server: str, template: str = "template1") -> Iterator[str]:
    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(server % "postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        yield server % name
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of an empty database; each test runs on both."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/gateway.db"
        return
    with _created(request.getfixturevalue("postgres_server")) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> Iterator[str]:
    """The server and a database with our tables, which is copied for each test."""
    with _created(postgres_server) as url:
        database = Database.open(url)
        database.migrate()
        database.close()
        yield url.partition("?")[0].rpartition("/")[2]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of SQLite."""
    path = tmp_path_factory.mktemp("template") / "gateway.db"
    database = Database.open(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


class SetClock:
    """A clock that goes on by a microsecond each time, and is set by the test."""

    def __init__(self) -> None:
        self.time = 1_800_000_000_000_000

    def __call__(self) -> int:
        self.time += 1
        return self.time

    def add(self, seconds: float) -> None:
        self.time += round(seconds * 1_000_000)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path, clock: SetClock) -> Iterator[Database]:
    """With our tables; whatever a test does, the trail is sound behind it."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            path = tmp_path / "gateway.db"
            shutil.copy2(request.getfixturevalue("sqlite_template"), path)
            url = f"sqlite:///{path}"
        else:
            server = request.getfixturevalue("postgres_server")
            template = request.getfixturevalue("postgres_template")
            url = stack.enter_context(_created(server, template))
        database = Database.open(url, clock)
        stack.callback(database.close)
        yield database
        if not getattr(database, "spoilt", False):
            verdict = database.read_at_once(verify)
            assert verdict.sound, verdict.flaws


def url_of(database: Database) -> str:
    """For a second one with the same."""
    return database.engine.url.render_as_string(hide_password=False)


@pytest.fixture
def keys(database: Database) -> Keys:
    return Keys(database)


@pytest.fixture
async def ledger(database: Database, keys: Keys) -> AsyncIterator[Ledger]:
    async with Ledger(database, keys, heartbeat_seconds=3600) as ledger:
        yield ledger


MakeCaller = Callable[..., Caller]


@pytest.fixture
def tenant(database: Database) -> MakeCaller:
    def make(name: str = "acme", **budgets: int) -> Caller:
        Tenants(database).create(name, TenantPolicy(), Budgets(**budgets))
        return Caller(name, "key-of-" + name[:8])

    return make


def facts(source: str = "print(1)", **limits: float) -> RequestFacts:
    """The facts of a small request."""
    return RequestFacts.of(
        ExecutionRequest(PythonSource(source)),
        SandboxRequest(limits=Limits(**limits)),  # type: ignore[arg-type]
    )


def rows(database: Database, table: object) -> list[dict[str, object]]:
    """All of a table."""
    from sqlalchemy import select

    def read(connection: Connection) -> list[dict[str, object]]:
        return [dict(row._mapping) for row in connection.execute(select(table))]  # type: ignore[call-overload]

    return database.read(read)


async def settle() -> None:
    """Let what was only queued be written."""
    await asyncio.sleep(0.05)
