"""KVM, for function: Stockade in a machine whose CPU runs guests, though software is that CPU.

QEMU emulates AMD's virtualisation, the stock ``kvm_amd`` of Debian's kernel uses it, and Stockade
in there runs its microVMs with it, as on a host that has KVM. No time in here is a figure.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.microvm.nested.outer import QEMU, Absent, Ended, find_parts, make_machine, run_machine

from stockade.executor.microvm.qemu import _TAKES_KVM, VARIABLE, find_qemu
from stockade.images.errors import CannotBuild
from stockade.images.qemu import fetch
from stockade.port import Tier, Unavailable

SECONDS = 240.0
pytestmark = [
    pytest.mark.tier("microvm"),
    pytest.mark.nested_kvm,
    pytest.mark.timeout(3 * SECONDS),
]

Use = Callable[[Tier], dict[str, Any]]


@pytest.fixture(scope="module")
def qemu() -> Path:
    """The folder of one that can be taken elsewhere: that which ./dev fetches."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            folder = find_qemu().path.parent
            if not (folder / QEMU).exists():
                folder = fetched_qemu()
                patch.setenv(VARIABLE, str(folder / "qemu"))
            found = find_qemu()
        except (Unavailable, CannotBuild) as error:
            pytest.skip(f"no QEMU to take into a machine: {error}")
    if found.release < _TAKES_KVM:
        pytest.skip(f"QEMU {found.version} does not take KVM by a descriptor")
    return folder


def fetched_qemu() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "stockade/qemu")
    cache.mkdir(parents=True, exist_ok=True)
    known = sorted(cache.glob("*/qemu"))
    return (known[-1] if known else fetch(cache)).parent


@pytest.fixture(scope="module")
def use(qemu: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Use]:
    """Starts the machine, lets it use a tier, and returns what came of that."""
    try:
        parts = find_parts(qemu)
    except (Absent, Unavailable) as error:
        pytest.skip(str(error))
    # Its disk is large, and pytest keeps folders of its own for a while.
    with TemporaryDirectory(dir=tmp_path_factory.mktemp("nested")) as folder:
        make_machine(parts, Path(folder))
        yield lambda tier: answer_of(run_machine(parts, Path(folder), tier, SECONDS))


def answer_of(ended: Ended) -> dict[str, Any]:
    assert ended.answer is not None, f"it ended with {ended.code}, and said: {ended.console}"
    assert "failure" not in ended.answer, f"{ended.answer['failure']}\n{ended.console}"
    return ended.answer


@pytest.fixture(scope="module")
def answer(use: Use) -> dict[str, Any]:
    """One machine for all tests of copies."""
    return use(Tier.MICROVM)


def test_the_probe_says_that_kvm_works(answer: dict[str, Any]) -> None:
    assert answer["why_no_kvm"] is None


def test_copies_run_with_kvm(answer: dict[str, Any]) -> None:
    """By the descriptors that their kernel made for them; and in the jail that they always have."""
    assert len(answer["machines"]) == 2
    for machine in answer["machines"]:
        assert machine["accelerator"] == "kvm"
        assert machine["cpu"] == "host,-arch-capabilities"
        assert machine["restored"]
        assert "anon_inode:kvm-vm" in machine["kvm"]
        assert "anon_inode:kvm-vcpu:0" in machine["kvm"]
        assert "0" not in machine["status"]["Uid"].split()
        assert int(machine["status"]["CapEff"], 16) == int(machine["status"]["CapBnd"], 16) == 0
        assert machine["status"]["NoNewPrivs"] == "1"
        assert machine["status"]["Seccomp"] == "2"


def test_programs_run_in_copies_that_differ(answer: dict[str, Any]) -> None:
    printed = []
    for execution in answer["executions"]:
        assert execution["outcome"] == "ok", execution
        assert execution["tier"] == "microvm"
        for limit in ("memory_bytes", "processes", "cpu_seconds", "cpus"):
            assert execution["enforcement"][limit] == "enforced"
        printed.append(execution["stdout"].split())
    (first, second) = printed
    assert first[0] == second[0] == "42"
    assert first[1] != second[1]
    # A copy has the time that it is, not its template's.
    for execution, words in zip(answer["executions"], printed, strict=True):
        assert abs(execution["now"] - float(words[3])) < 10.0
    # The machine's host is of the same Debian: its kernel has the same name, and is another.
    assert first[2] == second[2] == answer["kernel"]


def test_a_program_without_an_end(answer: dict[str, Any]) -> None:
    """It never leaves the CPU by itself; that it has it counts for the host."""
    execution = answer["endless"]
    assert execution["outcome"] == "wall_clock", execution
    assert 0.5 < execution["cpu_seconds"] < 20.0


def test_nothing_is_left(answer: dict[str, Any]) -> None:
    assert answer["left"] == []


@pytest.mark.tier("vm")
def test_a_dedicated_machine(use: Use) -> None:
    """Booted with KVM for one job, with a disk of its own, and attested so."""
    answer = use(Tier.VM)
    (execution,) = answer["executions"]
    assert execution["outcome"] == "ok", execution
    assert execution["tier"] == "vm"
    assert execution["stdout"].split()[0] == "42"
    assert answer["accelerator"] == "kvm"
    assert answer["left"] == []
