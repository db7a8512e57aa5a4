"""The broker that tests share."""

from collections.abc import AsyncIterator

import pytest
import trustme
from tests.broker.brokered import Brokered, open_brokered


@pytest.fixture
def authority() -> trustme.CA:
    """Signs the certificates of destinations."""
    return trustme.CA()


@pytest.fixture
async def brokered(
    tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA
) -> AsyncIterator[Brokered]:
    """A broker that runs; its sockets' paths are short."""
    async with open_brokered(tmp_path_factory.mktemp("b"), authority) as found:
        yield found
