"""The implementations of the port, as fixtures."""

import io
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from pydantic import SecretStr

from stockade.client import RemoteEnvironment, open_remote
from stockade.executor import PoolPolicy, open_local
from stockade.executor.service.app import create_app
from stockade.executor.service.settings import ExecutorSettings
from stockade.gateway.database import Database
from stockade.gateway.keys import Keys, Scope
from stockade.gateway.logs import open_log
from stockade.gateway.policy import Budgets, Ceilings, TenantPolicy
from stockade.gateway.service import open_gateway
from stockade.gateway.settings import GatewaySettings
from stockade.gateway.tenants import Tenants
from stockade.port import ExecutionEnvironment, Tier
from stockade.port.fake import Call, FakeEnvironment, Scripted
from stockade.port.limits import _LARGEST
from stockade.port.policy import STRENGTH
from stockade.serving import BoundedServer, Bounds, Listening

from .traits import TRAITS, Traits

Play = Callable[[Call], Awaitable[Scripted]]

REAL = [pytest.param(tier, marks=pytest.mark.tier(tier.value), id=tier.value) for tier in STRENGTH]

# One that nobody takes costs gVisor half a second.
PARKED = {Tier.NAMESPACE: 2, Tier.GVISOR: 1, Tier.MICROVM: 1, Tier.VM: 0}


def open_tier(tier: Tier, parked: int) -> AbstractAsyncContextManager[ExecutionEnvironment]:
    """An executor with this tier alone. What a machine is emulated by is no matter here."""
    return open_local(pool=PoolPolicy.fixed(parked), tiers={tier}, allow_emulation=True)


class Reached(NamedTuple):
    """A tier of an executor that is reached over HTTP."""

    tier: Tier
    by_gateway: bool


REMOTE = [
    pytest.param(
        Reached(Tier.NAMESPACE, by_gateway=name == "gateway"),
        marks=pytest.mark.tier(Tier.NAMESPACE.value),
        id=name,
    )
    for name in ("remote", "gateway")
]
TOKEN = "contract-0123456789-abcdefghijklm"
ANYTHING = {name: value for name, value in _LARGEST.items() if name != "lease_seconds"}
ORIGIN = socket.create_server(("127.0.0.1", 0))
"""Where the tests of egress serve: a gateway's policy names it before they do."""
REACHED = (*(f"{kind}://127.0.0.1:{ORIGIN.getsockname()[1]}" for kind in ("tcp", "http")), "public")
PLENTY = Budgets(concurrency=1000, sandboxes=100, executions_per_minute=1_000_000)


@asynccontextmanager
async def open_kind(kind: Tier | Reached, parked: int) -> AsyncIterator[ExecutionEnvironment]:
    """What runs programs: an executor, or the same behind its service and the client."""
    if isinstance(kind, Tier):
        async with open_tier(kind, parked) as environment:
            yield environment
        return
    settings = ExecutorSettings(token=SecretStr(TOKEN), log_level="error")
    async with open_tier(kind.tier, parked) as environment:
        app = create_app(environment, settings)
        async with (
            BoundedServer.open(app, Listening(), Bounds(), grace=1.0) as server,
            _reach(server.url, kind) as remote,
        ):
            # What a test sees on the host, it finds by what the executor holds: kit.Watch.
            vars(remote._transport)["service"] = app.state.service
            yield remote


@asynccontextmanager
async def _reach(executor: str, kind: Reached) -> AsyncIterator[RemoteEnvironment]:
    """The executor itself, or a gateway in front of it that allows whatever a test may ask for."""
    if not kind.by_gateway:
        async with open_remote(executor, key=TOKEN, tenant="local") as remote:
            yield remote
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "token").touch(0o600)
        (folder / "token").write_text(TOKEN)
        settings = GatewaySettings.model_validate(
            {
                "listen": {"port": 0},
                "database_url": f"sqlite:///{folder}/gateway.db",
                "executors": [{"name": "e", "url": executor, "token_file": str(folder / "token")}],
                "artefacts": {"store": {"where": str(folder / "store")}},
                "ceilings": ANYTHING,
            }
        )
        database = Database.open(settings.database_url)
        database.migrate()
        policy = TenantPolicy(
            tiers=tuple(Tier), ceilings=Ceilings.model_validate(ANYTHING), egress=REACHED
        )
        Tenants(database).create("local", policy, PLENTY)
        key = Keys(database).create("local", Scope)[1]
        database.close()
        async with (
            open_gateway(settings, open_log(io.StringIO())) as (server, _),
            open_remote(server.url, key=key) as remote,
        ):
            yield remote


class Port:
    """One implementation. Called with what a fake is to play, it gives the environment.

    A real one runs the request's own program and has no use for the play.
    """

    def __init__(self, environment: ExecutionEnvironment | None) -> None:
        self._environment = environment

    @property
    def fake(self) -> bool:
        """Whether it runs nothing."""
        return self._environment is None

    def __call__(self, play: Play | Scripted | None = None) -> ExecutionEnvironment:
        if self._environment is not None:
            return self._environment

        async def script(call: Call) -> Scripted:
            if play is None:
                return Scripted()
            return play if isinstance(play, Scripted) else await play(call)

        return FakeEnvironment(script)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[pytest.param(None, id="fake"), *REAL, *REMOTE]
)
async def port(request: pytest.FixtureRequest) -> AsyncIterator[Port]:
    """Every implementation."""
    if request.param is None:
        yield Port(None)
        return
    async with open_kind(request.param, parked(request.param)) as environment:
        yield Port(environment)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[*REAL, *REMOTE])
async def real(request: pytest.FixtureRequest) -> AsyncIterator[ExecutionEnvironment]:
    """Every implementation that runs programs."""
    async with open_kind(request.param, parked(request.param)) as environment:
        yield environment


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=REAL)
async def bare(request: pytest.FixtureRequest) -> AsyncIterator[ExecutionEnvironment]:
    """The same with nothing parked: what lives below this process belongs to an execution."""
    async with open_tier(request.param, 0) as environment:
        yield environment


@pytest.fixture
def traits(request: pytest.FixtureRequest) -> Traits:
    """Of the tier that the test runs in. What the fake plays, it plays as fast as the host does."""
    parameters = request.node.callspec.params
    tier = next(parameters[name] for name in ("port", "real", "bare") if name in parameters)
    if isinstance(tier, Reached):
        tier = tier.tier
    return TRAITS[tier or Tier.NAMESPACE]


def parked(kind: Tier | Reached) -> int:
    """How many sandboxes wait."""
    return PARKED[kind.tier if isinstance(kind, Reached) else kind]
