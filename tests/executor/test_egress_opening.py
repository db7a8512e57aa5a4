"""What all sandboxes of an executor have in common, and what of it is given back."""

import asyncio
import resource
from collections.abc import Iterator
from typing import Any

import pytest

from stockade.executor.descriptors import make_room_beside
from stockade.executor.egress.opening import Egress, EgressSettings, SandboxEgress
from stockade.port import EgressPolicy, EgressRule, SandboxRequest


class Lease:
    """What a broker gives."""

    route: Any = None
    environment: dict[str, str] = {}  # noqa: RUF012 - nothing changes it
    certificate = ""
    denied = ()
    closed = False

    async def uses(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        self.closed = True


async def test_a_lease_goes_back_at_once() -> None:
    """It may be the last thing that an executor does: no task of it is left to a loop that ends."""
    lease = Lease()
    policy = EgressPolicy(credentials=("key",))
    before = asyncio.all_tasks()
    egress = SandboxEgress(policy, lambda _: None, lease)  # type: ignore[arg-type, return-value]
    egress.close()
    assert lease.closed
    assert asyncio.all_tasks() == before


async def test_the_resolvers_threads_end_with_the_executor() -> None:
    import threading

    def resolving() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name.startswith("resolve")]

    egress = Egress(EgressSettings())
    sandbox = SandboxRequest(egress=EgressPolicy(rules=(EgressRule.parse("api.example.com"),)))
    prepared = await egress.prepare(sandbox)
    assert prepared is not None
    resolver = egress._resolver
    assert resolver is not None
    assert await resolver.resolve("localhost")
    assert resolving()
    egress.close()
    async with asyncio.timeout(10):
        while resolving():
            await asyncio.sleep(0.01)
    egress.close()  # twice does nothing
    prepared.close()


@pytest.fixture
def limits() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(
    ("soft", "wanted", "room", "then"),
    [(1000, 500, 500, 1500), (2000, 500, 500, 2000), (1900, 5000, 500, 2000)],
    ids=["raised", "a quarter, and no more than wanted", "a quarter"],
)
def test_descriptors_that_guests_decide_on_have_a_bound(
    monkeypatch: pytest.MonkeyPatch, soft: int, wanted: int, room: int, then: int
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, 2000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: raised.append(new))
    assert make_room_beside(wanted) == room
    assert raised == [(then, 2000)]
