"""What goes wrong around a parked guest is its own fault alone, and heals."""

import asyncio
import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.kit import descendants, descriptors, explain, source, until

from stockade.executor import PoolPolicy, open_local
from stockade.executor.cgroups import CgroupUsage, GuestCeilings, kernel
from stockade.executor.environment import LocalEnvironment
from stockade.executor.gvisor.runsc import Runsc
from stockade.executor.gvisor.runtime import Runtime
from stockade.executor.gvisor.tier import GvisorBoundary, GvisorTier
from stockade.executor.pid_namespace import PidNamespaceBoundary
from stockade.executor.templates import SUSPECT
from stockade.port import Enforcement, Limits, StockadeError, Tier, Unavailable

needs_snapshots = pytest.mark.skipif(
    os.geteuid() != 0, reason="a plain user's gVisor has no snapshots"
)


class Meter:
    """Counters of a cgroup, as far as a boundary reads them."""

    def __init__(self) -> None:
        self.cpu_seconds = 0.0

    def usage(self) -> CgroupUsage:
        """What was spent."""
        return CgroupUsage(self.cpu_seconds, 0, 0, 0, 0)

    def set_ceilings(self, limits: GuestCeilings) -> None:
        """Kept by nobody here."""


async def test_what_a_kernel_spends_while_parked_is_no_programs() -> None:
    """gVisor's kernel wakes though its guest sleeps: about 3 % of a CPU."""
    meter = Meter()
    kept = {"memory_bytes": Enforcement.ENFORCED, "cpu_seconds": Enforcement.ENFORCED}
    boundary = GvisorBoundary(
        Tier.GVISOR,
        "image",
        kept,
        meter,  # type: ignore[arg-type]
        GuestCeilings(1, 1, 1.0),
        1,
    )
    meter.cpu_seconds = 0.3
    boundary.count_from_here()
    meter.cpu_seconds = 6.3
    boundary.set_ceilings(Limits())
    meter.cpu_seconds = 6.5
    assert boundary.usage().cpu_seconds == pytest.approx(0.2)


@pytest.mark.tier("gvisor")
@pytest.mark.parametrize("after", [0.05, 0.4, 0.8])
async def test_an_opening_that_is_given_up_leaves_nothing(after: float) -> None:
    """Neither processes nor descriptors, whose ids and folder were given back."""
    before = set(descendants()), len(descriptors())

    async def open_and_wait() -> None:
        async with open_local(tiers={Tier.GVISOR}):
            await asyncio.sleep(3600)

    opening = asyncio.create_task(open_and_wait())
    await asyncio.sleep(after)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert set(descendants()) <= before[0]
    await until(lambda: len(descriptors()) <= before[1])


async def test_ids_come_back_where_there_is_no_descriptor_for_a_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Owners:
        held = 0

        def take(self) -> object:
            """One more."""
            self.held += 1
            return object()

        def give_back(self, _owner: object) -> None:
            """One less."""
            self.held -= 1

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    owners = Owners()
    runtime = Runtime(Runsc(Path("/bin/true"), "20990101.0"), tmp_path, owners)  # type: ignore[arg-type]
    monkeypatch.setattr(socket, "socketpair", refuse)
    with pytest.raises(Unavailable, match="Too many open files"):
        await runtime.run("one", tmp_path)
    assert owners.held == 0


@pytest.fixture
def sleepers() -> Iterator[list[int]]:
    """Three processes to be killed."""
    started = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    yield [each.pid for each in started]
    for each in started:
        each.kill()
        each.wait()


def test_a_kill_that_runs_out_of_descriptors_keeps_none(
    monkeypatch: pytest.MonkeyPatch, sleepers: list[int]
) -> None:
    real = os.pidfd_open
    opened: list[int] = []

    def few(pid: int) -> int:
        if len(opened) == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        opened.append(real(pid))
        return opened[-1]

    monkeypatch.setattr(os, "pidfd_open", few)
    before = descriptors()
    with pytest.raises(OSError, match="Too many open files"):
        kernel._kill_members(-1, sleepers)
    assert len(opened) == 2
    assert descriptors() == before


@pytest.mark.tier("gvisor")
async def test_a_record_is_made_where_a_stop_takes_descriptors_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slower way to the end needs none."""

    def refuse(_self: GvisorBoundary) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with open_local(pool=PoolPolicy.fixed(1), tiers={Tier.GVISOR}) as environment:
        monkeypatch.setattr(GvisorBoundary, "stop", refuse)
        execution = await environment.run(source("print('there')"))
        assert execution.ok, explain(execution)
        assert execution.stdout.content == b"there\n"


def tier_of(environment: LocalEnvironment) -> GvisorTier:
    driver = environment._tiers.opened(Tier.GVISOR)
    assert isinstance(driver, GvisorTier)
    return driver


@needs_snapshots
@pytest.mark.tier("gvisor")
async def test_a_snapshot_that_is_gone_is_made_anew() -> None:
    async with open_local(pool=PoolPolicy.fixed(0), tiers={Tier.GVISOR}) as environment:
        assert (await environment.run(source("pass"))).ok
        (kept,) = tier_of(environment)._templates._kept.values()
        snapshot = (await kept.making)._snapshot
        assert snapshot is not None
        for file in snapshot.iterdir():
            file.unlink()
        failures = 0
        for _ in range(SUSPECT + 1):
            try:
                assert (await environment.run(source("pass"))).ok
            except StockadeError:
                failures += 1
        assert failures == SUSPECT


@pytest.mark.tier("gvisor")
async def test_the_proof_of_an_opening_serves_no_call_much_later() -> None:
    async with open_local(pool=PoolPolicy.fixed(0), tiers={Tier.GVISOR}) as environment:
        proof = tier_of(environment)._proof
        assert proof is not None
        assert isinstance(proof.boundary, PidNamespaceBoundary)
        proof.made_at -= 3600
        assert (await environment.run(source("pass"))).ok
        assert not proof.alive
