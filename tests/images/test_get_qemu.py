"""How ./dev comes to a QEMU, with made-up package tools in place of the system's own."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.examples.console import ROOT

from stockade.executor.microvm.qemu import OLDEST, VARIABLE
from stockade.images import qemu
from stockade.images.apt import KEYRING
from stockade.images.errors import CannotBuild

from .kit import LOADER, SCRIPT, Debian, needs_dpkg

SCRIPT_UNDER_TEST = ROOT / "tools/get-qemu"
GOOD = SCRIPT + "echo called >>FAKES/tried\necho 'QEMU emulator version 8.0.1 (Debian)'\n"
OLD = SCRIPT + "echo 'QEMU emulator version 5.2.0'\n"
PACKAGED = SCRIPT + 'echo "QEMU emulator version 10.0.13"\necho "$@" >&2\n'
UNAVAILABLE = 69

needs_keys = pytest.mark.skipif(not KEYRING.exists(), reason="Debian's keys are not on this system")


@dataclass(frozen=True, slots=True)
class Machine:
    """A PATH and a cache of its own."""

    debian: Debian

    @property
    def cache(self) -> Path:
        return self.debian.root / "cache/stockade/qemu"

    @property
    def tried(self) -> int:
        """How often the one on PATH was started."""
        path = self.debian.root / "tried"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def get(
        self, *options: str, changed: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": self.debian.path(),
            "XDG_CACHE_HOME": str(self.debian.root / "cache"),
            "TMPDIR": str(self.debian.root),
        }
        return subprocess.run(
            [SCRIPT_UNDER_TEST, *options],
            check=False,
            cwd=self.debian.root,
            env=environment | dict(changed or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def machine(debian: Debian) -> Machine:
    """One whose QEMU is old, and whose archive has one."""
    debian.put("qemu-system-x86_64", OLD)
    debian.add("qemu-system-x86", {"usr/bin/qemu-system-x86_64!": PACKAGED})
    debian.add("seabios", {"usr/share/qemu/x.bin": "x", "usr/share/seabios/bios.bin": "x"})
    debian.add("libc6", {"usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2!": LOADER})
    debian.answer("qemu-system-x86", "qemu-system-x86", "libc6", "seabios")
    return Machine(debian)


def test_what_the_variable_holds_is_taken_unseen(machine: Machine) -> None:
    """Stockade judges it itself, and says more than a script can."""
    got = machine.get(changed={VARIABLE: "own/qemu"})
    assert (got.returncode, got.stderr) == (0, "")
    assert got.stdout == f"{machine.debian.root}/own/qemu\n"
    assert machine.debian.calls == []


def test_the_one_on_path_is_taken_and_tried_once(machine: Machine) -> None:
    """Until it changes."""
    path = machine.debian.put("qemu-system-x86_64", GOOD)
    for _ in range(3):
        got = machine.get()
        assert (got.returncode, got.stdout, got.stderr) == (0, f"{path}\n", "")
    assert machine.tried == 1
    machine.debian.put("qemu-system-x86_64", GOOD + "# newer\n")
    assert machine.get().returncode == 0
    assert machine.tried == 2
    assert machine.debian.calls == []


@needs_dpkg
@needs_keys
def test_where_there_is_none_that_will_do_it_is_fetched_once(machine: Machine) -> None:
    """And starts through its own loader, with its own firmware."""
    got = machine.get()
    assert got.returncode == 0, got.stderr
    assert "is of 5.2, and 7.2 is the oldest that will do" in got.stderr
    assert "fetching QEMU from Debian trixie's archive" in got.stderr
    (folder,) = (path for path in machine.cache.iterdir() if path.is_dir())
    assert got.stdout == f"{folder}/qemu\n"
    assert sorted(path.name for path in folder.iterdir()) == ["qemu", "usr"]
    asked = machine.debian.calls
    again = machine.get()
    assert (again.stdout, again.stderr) == (got.stdout, "")
    assert machine.debian.calls == asked
    started = subprocess.run(
        [folder / "qemu", "-M", "q35", "a b"], check=True, capture_output=True, text=True
    )
    assert started.stderr == (
        f"-L {folder}/usr/share/qemu -L {folder}/usr/share/seabios -M q35 a b\n"
    )


@needs_dpkg
@needs_keys
def test_a_fetch_that_failed_is_not_tried_again_for_a_day(machine: Machine) -> None:
    """It would cost each command the time; `./dev setup` does."""
    offline = machine.debian.root / "offline"
    offline.touch()
    got = machine.get()
    assert (got.returncode, got.stdout) == (UNAVAILABLE, "")
    assert "the microVM tier will not be available: " in got.stderr
    assert "no route to it" in got.stderr
    asked = machine.debian.calls
    assert machine.get().returncode == UNAVAILABLE
    assert machine.debian.calls == asked
    offline.unlink()
    assert machine.get("--again").returncode == 0


def test_what_was_found_can_be_asked_for_without_fetching(machine: Machine) -> None:
    """Silently: most commands need none."""
    got = machine.get("--cached")
    assert (got.returncode, got.stdout, got.stderr) == (UNAVAILABLE, "", "")
    machine.debian.put("qemu-system-x86_64", GOOD)
    path = machine.get().stdout
    got = machine.get("--cached")
    assert (got.returncode, got.stdout, got.stderr) == (0, path, "")
    assert machine.debian.calls == []


def test_a_cache_that_cannot_be_written_is_named(machine: Machine) -> None:
    got = machine.get(changed={"XDG_CACHE_HOME": "/proc"})
    assert got.returncode == UNAVAILABLE
    assert "/proc/stockade/qemu cannot be written" in got.stderr


def test_an_option_that_does_not_exist_is_refused(machine: Machine) -> None:
    got = machine.get("--agian")
    assert (got.returncode, got.stdout) == (64, "")
    assert "no option '--agian'" in got.stderr


@needs_dpkg
def test_a_qemu_that_does_not_start_is_not_kept(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {"usr/bin/qemu-system-x86_64!": SCRIPT + "exit 1\n"}
    machine.debian.add("qemu-system-x86", broken)
    machine.debian.answer("qemu-system-x86", "qemu-system-x86", "libc6", "seabios")
    with pytest.raises(CannotBuild, match="prints no version of QEMU"):
        qemu.fetch(tmp_path)
    assert list(tmp_path.glob("*/qemu")) == []


def test_what_is_too_old_for_the_executor_is_too_old_here() -> None:
    assert qemu.OLDEST == OLDEST
