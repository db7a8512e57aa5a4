"""Whether the CPU runs guests: a device that opens proves nothing."""

import os
import platform
from pathlib import Path

import pytest
from tests.contract.kit import descriptors

from stockade.executor import kvm

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="KVM is asked on x86-64 only"
)


def test_no_device(tmp_path: Path) -> None:
    device = tmp_path / "kvm"
    assert kvm.why_no_kvm(str(device)) == f"{device}: No such file or directory"


def test_a_device_of_another_kind() -> None:
    assert kvm.why_no_kvm("/dev/null") == "/dev/null: Inappropriate ioctl for device"


def test_one_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = [kvm._Taken(clock=0.3, cpu=0.2)]
    monkeypatch.setattr(kvm, "_time_loop", lambda _device: timed.pop())
    assert kvm.why_no_kvm() == (
        "/dev/kvm opens, but emulates a guest's kernel: a loop of a millisecond took 200 ms"
    )


def test_a_machine_that_was_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It let the guest wait, and the guest's CPU did not work meanwhile."""
    timed = [kvm._Taken(0.001, 0.001), kvm._Taken(0.2, 0.001), kvm._Taken(0.1, 0.001)]
    monkeypatch.setattr(kvm, "_time_loop", lambda _device: timed.pop())
    assert kvm.why_no_kvm() is None
    assert timed == []


def test_a_machine_that_stays_busy_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvm, "_time_loop", lambda _device: kvm._Taken(0.2, 0.001))
    assert "so busy is this machine" in (kvm.why_no_kvm() or "")


def test_one_whose_guest_does_not_halt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvm, "_time_loop", lambda _device: None)
    assert "does not run as it should" in (kvm.why_no_kvm() or "")


@pytest.mark.skipif(not os.access("/dev/kvm", os.W_OK), reason="no /dev/kvm here")
def test_the_one_that_is_here_leaves_no_descriptor() -> None:
    before = len(descriptors())
    reason = kvm.why_no_kvm()
    assert reason is None or reason.startswith("/dev/kvm")
    assert len(descriptors()) == before
