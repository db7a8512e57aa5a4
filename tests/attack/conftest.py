"""One stage for each tier, for all tests of the battery."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.attack.stage import Stage

from stockade.cli.attack.host_checks import Traces
from stockade.port import Tier


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    loop = asyncio.new_event_loop()
    tier = request.param
    assert isinstance(tier, Tier)
    stage = Stage(loop, Traces.now(), tier)
    yield stage
    stage.close()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
