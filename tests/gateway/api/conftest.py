"""A gateway that serves, an executor service behind it, and a fake behind that."""

import io
import json
import secrets
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from stockade.executor.service.app import create_app
from stockade.executor.service.settings import ExecutorSettings as ServiceSettings
from stockade.gateway.database import Database
from stockade.gateway.keys import Keys, Scope
from stockade.gateway.logs import open_log
from stockade.gateway.policy import Budgets, TenantPolicy
from stockade.gateway.service import open_gateway
from stockade.gateway.settings import GatewaySettings
from stockade.gateway.tenants import Tenants
from stockade.port import ExecutionEnvironment, Tier
from stockade.port.fake import FakeEnvironment
from stockade.serving import BoundedServer, Bounds, Listening

TOKEN = secrets.token_hex(32)
PLENTY = Budgets(concurrency=1000, sandboxes=100, executions_per_minute=100_000)


@dataclass
class Answer:
    """A whole answer."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """Of a problem."""
        if self.headers.get("Content-Type") != "application/problem+json":
            return None
        problem = self.json
        assert problem["status"] == self.status
        return str(problem["code"])


@dataclass
class Gateway:
    """What a test has of it."""

    url: str
    services: Any
    """Its parts, where it runs in this process."""
    http: aiohttp.ClientSession
    keys: dict[str, str]
    environment: Any
    log: io.StringIO

    async def ask(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        key: str | None = "alice",
        headers: dict[str, str] | None = None,
        data: Any = None,
    ) -> Answer:
        """``key``: a tenant's, a key itself, or none."""
        async with self.http.request(
            method,
            URL(self.url + path, encoded=True),
            json=json,
            data=data,
            headers=self.headers(key) | (headers or {}),
            allow_redirects=False,
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    def headers(self, key: str | None = "alice") -> dict[str, str]:
        if key is None:
            return {}
        return {"Authorization": f"Bearer {self.keys.get(key, key)}"}

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Of its log."""
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


OpenGateway = Callable[..., AbstractAsyncContextManager[Gateway]]


@asynccontextmanager
async def executor_over(
    environment: ExecutionEnvironment, port: int = 0
) -> AsyncIterator[BoundedServer]:
    """An executor service."""
    settings = ServiceSettings.model_validate(
        {"listen": "tcp:127.0.0.1:0", "token": TOKEN, "auth_mode": "dev"}
    )
    app = create_app(environment, settings)
    async with BoundedServer.open(app, Listening(port=port), Bounds(), grace=1) as server:
        yield server
        await app.state.service.stop()


def gateway_settings(folder: Path, urls: list[str], **more: Any) -> GatewaySettings:
    """Those of a gateway with these executors."""
    token = folder / "token"
    if not token.exists():
        token.write_text(TOKEN)
        token.chmod(0o600)
    executor = more.pop("executor", {})
    return GatewaySettings.model_validate(
        {
            "listen": {"port": 0},
            "database_url": f"sqlite:///{folder}/gateway.db",
            "executors": [
                {"name": f"e{number}", "url": url, "token_file": str(token)} | executor
                for number, url in enumerate(urls)
            ],
            "artefacts": {"store": {"where": str(folder / "store")}},
        }
        | more
    )


def make_tenants(url: str) -> dict[str, str]:
    """Alice and Bob, with a key each; and one of Alice's that may do nothing but read."""
    database = Database.open(url)
    database.migrate()
    found = {}
    for name in ("alice", "bob"):
        Tenants(database).create(name, TenantPolicy(tiers=tuple(Tier)), PLENTY)
        found[name] = Keys(database).create(name, Scope)[1]
    found["reader"] = Keys(database).create("alice", [Scope.READ])[1]
    database.close()
    return found


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A database with tenants, made once, and their keys."""
    path = tmp_path_factory.mktemp("prepared") / "gateway.db"
    return path, make_tenants(f"sqlite:///{path}")


@pytest.fixture
def open_fake(tmp_path: Path, prepared: tuple[Path, dict[str, str]]) -> OpenGateway:
    """Opens a gateway in front of a fake with this script."""

    @asynccontextmanager
    async def opening(
        script: Any = None,
        *,
        budgets: Budgets | None = None,
        bounds: Bounds | None = None,
        environment: Any = None,
        **more: Any,
    ) -> AsyncIterator[Gateway]:
        environment = environment or FakeEnvironment(script)
        async with executor_over(environment) as executor:
            settings = gateway_settings(tmp_path, [executor.url], **more)
            database, keys = prepared
            if not (tmp_path / "gateway.db").exists():
                shutil.copy(database, tmp_path)
            if budgets is not None:
                change = Database.open(settings.database_url)
                Tenants(change).set("alice", budgets=budgets)
                change.close()
            log = io.StringIO()
            async with (
                open_gateway(settings, open_log(log), bounds=bounds) as (server, services),
                aiohttp.ClientSession() as http,
            ):
                yield Gateway(server.url, services, http, keys, environment, log)

    return opening
