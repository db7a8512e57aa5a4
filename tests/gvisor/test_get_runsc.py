"""How ./dev comes to a runsc, with made-up package tools in place of the system's own."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.examples.console import ROOT

from stockade.executor.gvisor.runsc import OLDEST, VARIABLE

SCRIPT = ROOT / "tools/get-runsc"
GOOD = f"#!/bin/sh\necho called >>$0.calls\necho 'runsc version 0.0~{OLDEST}.0'\n"
OLD = "#!/bin/sh\necho 'runsc version 0.0~20221219.0'\n"
UNAVAILABLE = 69
VERSION = f"0.0~{OLDEST}.0-99"

# What the script asks of apt, and nothing else. What is said of an archive's origin is left out,
# as where no list was fetched yet.
APT_GET = """#!/bin/sh
case " $* " in
  *" indextargets "*) echo '$(ORIGIN)|stable|http://mirror.invalid/debian/' ;;
  *" update "*)
    echo update >>FAKES/apt.calls
    [ ! -e FAKES/offline ] || { echo 'Err:1 somewhere'; echo 'E: no route to it'; exit 100; } ;;
  *" download "*) cp FAKES/package.deb runsc_fake.deb ;;
  *) exit 1 ;;
esac
"""
APT_CACHE = "#!/bin/sh\ncat FAKES/index\n"


def distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("ID", "")
    except OSError:
        return ""


needs_dpkg = pytest.mark.skipif(
    distribution() not in {"debian", "ubuntu"}, reason="it is fetched on Debian and Ubuntu only"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A PATH and a cache of its own."""

    root: Path

    @property
    def cache(self) -> Path:
        return self.root / "cache/stockade/gvisor"

    @property
    def updates(self) -> int:
        """How often the archive was asked."""
        calls = self.root / "apt.calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0

    def put(self, name: str, script: str) -> Path:
        path = self.root / name
        path.write_text(script.replace("FAKES", str(self.root)))
        path.chmod(0o755)
        return path

    def publish(self, runsc: str, digest: str | None = None) -> None:
        """Make a package and the index that has it."""
        tree = self.root / "tree"
        (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
        (tree / "usr/bin").mkdir(parents=True, exist_ok=True)
        (tree / "DEBIAN/control").write_text(
            f"Package: runsc\nVersion: {VERSION}\nArchitecture: all\nMaintainer: x <x@x.invalid>\n"
            "Description: made up\n"
        )
        self.put("tree/usr/bin/runsc", runsc)
        package = self.root / "package.deb"
        subprocess.run(
            ["dpkg-deb", "--build", "--root-owner-group", tree, package],
            check=True,
            capture_output=True,
        )
        digest = digest or hashlib.sha256(package.read_bytes()).hexdigest()
        (self.root / "index").write_text(f"Package: runsc\nVersion: {VERSION}\nSHA256: {digest}\n")

    def get(
        self, *options: str, changed: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{self.root}:{os.environ.get('PATH', os.defpath)}",
            "XDG_CACHE_HOME": str(self.root / "cache"),
            "TMPDIR": str(self.root),
        }
        return subprocess.run(
            [SCRIPT, *options],
            check=False,
            cwd=self.root,
            env=environment | dict(changed or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One whose runsc is old, and whose archive has nothing."""
    made = Machine(tmp_path)
    made.put("apt-get", APT_GET)
    made.put("apt-cache", APT_CACHE)
    made.put("runsc", OLD)
    made.put("index", "")
    return made


def test_what_the_variable_holds_is_taken_unseen(machine: Machine) -> None:
    """Stockade judges it itself, and says more than a script can."""
    got = machine.get(changed={VARIABLE: "own/runsc"})
    assert (got.returncode, got.stdout, got.stderr) == (0, f"{machine.root}/own/runsc\n", "")
    assert machine.updates == 0


def test_the_one_on_path_is_taken_and_tried_once(machine: Machine) -> None:
    """Until it changes."""
    runsc = machine.put("runsc", GOOD)
    calls = machine.root / "runsc.calls"
    for _ in range(3):
        got = machine.get()
        assert (got.returncode, got.stdout, got.stderr) == (0, f"{runsc}\n", "")
    assert calls.read_text() == "called\n"
    machine.put("runsc", GOOD + "# newer\n")
    assert machine.get().returncode == 0
    assert calls.read_text() == "called\n" * 2
    assert machine.updates == 0


@needs_dpkg
def test_an_old_one_on_path_is_passed_over(machine: Machine) -> None:
    """The archive's is unpacked, once, and what it is is said."""
    machine.publish(GOOD)
    got = machine.get()
    assert got.returncode == 0, got.stderr
    found = Path(got.stdout.rstrip("\n"))
    assert found.is_relative_to(machine.cache)
    assert os.access(found, os.X_OK)
    assert "is of 20221219" in got.stderr
    assert f"this is runsc {VERSION}" in got.stderr
    assert machine.updates == 1
    again = machine.get()
    assert (again.returncode, again.stdout, again.stderr) == (0, got.stdout, "")
    assert machine.updates == 1
    assert not list(machine.root.glob("stockade-runsc.*"))


@needs_dpkg
def test_a_failure_is_one_line_and_is_not_repeated_for_a_day(machine: Machine) -> None:
    """Neither the attempt nor, where it is asked not to be, the line."""
    machine.put("offline", "")
    first = machine.get()
    assert (first.returncode, first.stdout) == (UNAVAILABLE, "")
    line = first.stderr.splitlines()[-1]
    assert "the gVisor tier will not be available" in line
    assert "E: no route to it" in line
    assert "./dev setup" in line
    assert VARIABLE in line
    asked = machine.updates
    assert asked >= 1

    assert machine.get().stderr == line + "\n"
    hushed = machine.get("--hush")
    assert (hushed.returncode, hushed.stdout, hushed.stderr) == (UNAVAILABLE, "", "")
    assert machine.updates == asked

    assert machine.get("--again", "--hush").stderr.splitlines()[-1] == line
    assert machine.updates == 2 * asked
    (machine.cache / "failure").write_text("1000 long ago\n")
    (machine.root / "offline").unlink()
    machine.publish(GOOD)
    assert machine.get().returncode == 0
    assert not (machine.cache / "failure").exists()


@needs_dpkg
@pytest.mark.parametrize(
    ("runsc", "digest", "reason"),
    [
        (GOOD + "# go1.9 go1.26\n", None, "was built with go1.26"),
        (OLD, None, "is of 20221219"),
        ("#!/bin/sh\nexec sleep nonsense\n", None, "prints no release"),
        (GOOD, "0" * 64, "is not the file known by this version"),
    ],
)
def test_what_will_not_do_is_not_kept(
    machine: Machine, runsc: str, digest: str | None, reason: str
) -> None:
    """Though its archive is believed."""
    machine.publish(runsc, digest)
    got = machine.get()
    assert (got.returncode, got.stdout) == (UNAVAILABLE, "")
    assert reason in got.stderr.splitlines()[-1]
    left = {path.name for path in machine.cache.iterdir()}
    assert left == {"failure", "judged", "lock"}


@needs_dpkg
def test_an_earlier_one_is_kept_where_there_is_no_newer(machine: Machine) -> None:
    """Stockade was tested with another one since, which cannot be had."""
    machine.publish(GOOD)
    found = machine.get().stdout
    (chosen,) = machine.cache.glob("chosen-*")
    chosen.write_text(f"earlier {chosen.read_text().split()[1]}\n")
    machine.put("offline", "")
    got = machine.get()
    assert (got.returncode, got.stdout) == (0, found)
    assert "is kept" in got.stderr.splitlines()[-1]
    quiet = machine.get()
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, found, "")


def test_a_cache_that_cannot_be_written_is_named(machine: Machine) -> None:
    """Nothing else is tried."""
    got = machine.get(changed={"XDG_CACHE_HOME": "", "HOME": "/dev/null"})
    assert (got.returncode, got.stdout) == (UNAVAILABLE, "")
    assert "the gVisor tier will not be available" in got.stderr
    assert machine.updates == 0
