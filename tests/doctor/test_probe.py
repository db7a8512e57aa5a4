"""Starting a tier, with environments that fail in every way."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stockade.executor.cgroups import CgroupError
from stockade.executor.doctor import examine, probe, probe_tiers
from stockade.executor.doctor.probe import try_tier
from stockade.executor.namespace import image
from stockade.port import Outcome, Tier, Unavailable
from stockade.port.fake import FakeEnvironment, Scripted
from stockade.port.policy import STRENGTH


async def test_what_ran_is_available() -> None:
    """Its start is timed, and its Python is told."""
    trial = await try_tier(
        Tier.NAMESPACE, lambda: FakeEnvironment([Scripted(stdout=b"42 3.11.2\n")])
    )
    assert trial.status.available
    assert trial.status.start_ms is not None
    assert trial.python == "3.11.2"


@pytest.mark.parametrize(
    "scripted",
    [
        Scripted(stdout=b"41 3.11.2\n"),
        Scripted(stdout=b""),
        Scripted(stdout=b"42 3.11.2\n", exit_code=1),
        Scripted(Outcome.LOST, stdout=b"42 3.11.2\n"),
        Scripted(Outcome.MEMORY),
    ],
)
async def test_a_program_that_did_not_run_is_no_tier(scripted: Scripted) -> None:
    """A sandbox that came up proves nothing yet."""
    status = (await try_tier(Tier.NAMESPACE, lambda: FakeEnvironment([scripted]))).status
    assert (status.available, status.start_ms) == (False, None)
    assert "its program ended as" in status.detail


@pytest.mark.parametrize(
    "error", [Unavailable("no ids"), CgroupError("no cgroup"), OSError("no descriptor")]
)
async def test_a_refusal_is_told_in_its_own_words(error: Exception) -> None:
    """What is missing is named by whoever misses it."""

    @asynccontextmanager
    async def open_nothing() -> AsyncIterator[FakeEnvironment]:
        raise error
        yield FakeEnvironment()  # type: ignore[unreachable]

    status = (await try_tier(Tier.NAMESPACE, open_nothing)).status
    assert (status.available, status.detail) == (False, str(error))


async def test_an_end_that_fails_is_told_too() -> None:
    """The tier serves, and something needs a hand."""

    @asynccontextmanager
    async def open_untidy() -> AsyncIterator[FakeEnvironment]:
        yield FakeEnvironment([Scripted(stdout=b"42 3.11.2\n")])
        raise CgroupError("cannot remove /sys/fs/cgroup/x")

    status = (await try_tier(Tier.NAMESPACE, open_untidy)).status
    assert status.available
    assert "left something behind: cannot remove /sys/fs/cgroup/x" in status.detail


async def test_a_start_that_hangs_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 84: every wait is bounded."""
    monkeypatch.setattr(probe, "PATIENCE_SECONDS", 0.1)
    status = (await try_tier(Tier.NAMESPACE, lambda: FakeEnvironment([Scripted(delay=5)]))).status
    assert (status.available, status.detail) == (False, "no answer within 0.1 s")


def test_no_python_inside_is_a_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The missing piece, and the package that has it."""
    for module in ("stockade.executor.namespace.image", "stockade.executor.doctor.examination"):
        monkeypatch.setattr(f"{module}.INTERPRETER", tmp_path / "python3")
    report = examine()
    assert not report.usable
    assert str(tmp_path / "python3") in report.tiers[0].detail
    assert any("apt-get install python3" in do for do in report.remedies)


def test_no_compiled_part_is_a_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package that was installed without a compiler."""
    for module in ("stockade.executor.namespace.image", "stockade.executor.doctor.examination"):
        monkeypatch.setattr(f"{module}.native_folder", lambda: tmp_path)
    report = examine()
    assert not report.usable
    assert str(tmp_path) in report.tiers[0].detail
    assert any(f"build {tmp_path / 'stockade-launch'}" in do for do in report.remedies)


@pytest.mark.plain_user
@pytest.mark.tier("namespace")
async def test_the_real_tier_runs_the_images_python() -> None:
    """Known by starting it, for every tier that there is."""
    statuses = await probe_tiers()
    assert set(statuses) == set(STRENGTH)
    assert statuses[Tier.NAMESPACE].available
    version = subprocess.run([image.INTERPRETER, "-V"], check=True, capture_output=True, text=True)
    assert (await try_tier(Tier.NAMESPACE)).python == version.stdout.split()[1]
