"""One stage for all tests of the battery."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.attack.stage import Stage

from stockade.cli.attack.host_checks import Traces


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    loop = asyncio.new_event_loop()
    stage = Stage(loop, Traces.now())
    yield stage
    stage.close()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
