"""One executor with the wasm tier alone, for all tests of a file."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from stockade.executor import PoolPolicy, open_local
from stockade.executor.environment import LocalEnvironment
from stockade.port import Execution, ExecutionRequest, Limits, Program, SandboxRequest, Tier

Run = Callable[..., Awaitable[Execution]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environment() -> AsyncIterator[LocalEnvironment]:
    """Its interpreters are compiled by whoever is first on this machine."""
    async with open_local(pool=PoolPolicy.fixed(1), tiers=[Tier.WASM]) as opened:
        yield opened


@pytest.fixture(scope="module")
def run(environment: LocalEnvironment) -> Run:
    """Run a program: files, stdin and so on by name; ``limits`` as a mapping."""

    async def call(
        program: Program,
        *,
        stdin: bytes = b"",
        limits: dict[str, Any] | None = None,
        tenant: str = "local",
        **request: Any,
    ) -> Execution:
        sandbox = SandboxRequest(tenant=tenant, tier=Tier.WASM, limits=Limits(**(limits or {})))
        return await environment.run(ExecutionRequest(program, **request), sandbox, stdin=stdin)

    return call
