"""Which runsc is taken, and what is said of one that will not do. Fakes: scripts in its place."""

import os
import re
import time
from pathlib import Path

import pytest
from tests.examples.console import ROOT

from stockade.executor import asking
from stockade.executor.gvisor.runsc import OLDEST, VARIABLE, Runsc, find_runsc
from stockade.port import Unavailable

GOOD = "#!/bin/sh\nprintf 'runsc version release-20250101.0-72-gbf343393d498\\nspec: 1.1.0\\n'\n"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the machine's own is found."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def make(path: Path, script: str = GOOD, mode: int = 0o755) -> Path:
    path.write_text(script)
    path.chmod(mode)
    return path


def says(text: str) -> str:
    """A script that answers with this."""
    return f"#!/bin/sh\nprintf '%s' '{text}'\n"


def refusal() -> str:
    """What is said; it always ends with what to do next."""
    with pytest.raises(Unavailable) as raised:
        find_runsc()
    message = str(raised.value)
    assert "./dev setup" in message
    assert str(OLDEST) in message
    assert "\n" not in message
    return message


def test_the_variable_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before what PATH has."""
    make(tmp_path / "runsc", "#!/bin/sh\nexit 1\n")
    own = make(tmp_path / "own")
    monkeypatch.setenv(VARIABLE, str(own))
    assert find_runsc() == Runsc(own, "20250101.0-72-gbf343393d498")


def test_then_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where the variable is empty."""
    found = make(tmp_path / "runsc")
    assert find_runsc().path == found
    monkeypatch.setenv(VARIABLE, "")
    assert find_runsc().path == found


def test_a_relative_path_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is used later, from another folder maybe."""
    make(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "own")
    assert find_runsc().path == tmp_path / "own"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("runsc version release-20240729.0\nspec: 1.1.0-rc.1\n", "20240729.0"),
        ("runsc version 0.0~20240729.0\nspec: 1.2.0\n", "20240729.0"),
        ("runsc version 20261012\n", "20261012"),
    ],
)
def test_versions_as_they_are_printed(tmp_path: Path, text: str, version: str) -> None:
    """By gVisor's makers, by Debian."""
    make(tmp_path / "runsc", says(text))
    assert find_runsc().version == version


def test_none_at_all() -> None:
    """Neither set nor on PATH."""
    message = refusal()
    assert f"{VARIABLE} is not set" in message
    assert "PATH has none" in message


def test_the_variable_points_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one on PATH is no answer to a wrong variable."""
    make(tmp_path / "runsc")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent"))
    message = refusal()
    assert f"{VARIABLE} points to {tmp_path / 'absent'}" in message
    assert "No such file" in message


def test_a_folder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Executable, in a way."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert "no regular file" in refusal()


def test_what_may_not_be_executed_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Root may not either, where no bit is set."""
    monkeypatch.setenv(VARIABLE, str(make(tmp_path / "own", mode=0o644)))
    assert "may not execute" in refusal()


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    """The kernel does not know what to do with it."""
    make(tmp_path / "runsc", "no program\n")
    assert "cannot be executed" in refusal()


@pytest.mark.parametrize("text", ["runsc version 0.0~20221219.0\n", "runsc version 20240728.9\n"])
def test_an_old_one_is_refused(tmp_path: Path, text: str) -> None:
    """With its version and the reason."""
    make(tmp_path / "runsc", says(text))
    message = refusal()
    assert re.search(r"is gVisor 20\d{6}\.\d", message)
    assert "systrap" in message


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "''"),
        ("runsc version VERSION_MISSING\nspec: 1.1.0\n", "VERSION_MISSING"),
        ("crun version 20250101\n", "crun version"),
        ("runsc version 20250101.0", "20250101.0"),
        ("runsc version\n20250101.0\n", "runsc version"),
        ("runsc version 20250101\033[2J\n", r"\x1b[2J"),
        ("x" * 1000 + "\n", "x" * 80),
    ],
)
def test_garbage_is_refused(tmp_path: Path, text: str, shown: str) -> None:
    """A piece of it is shown, with nothing in it that a terminal would obey."""
    make(tmp_path / "runsc", says(text))
    message = refusal()
    assert "names no release" in message
    assert shown in message
    assert message.isprintable()
    assert len(message) < 700


def test_a_failing_one_is_refused(tmp_path: Path) -> None:
    """Whatever it printed."""
    make(tmp_path / "runsc", GOOD + "exit 3\n")
    assert "failed with 3" in refusal()


def test_an_endless_one_is_refused_at_once(tmp_path: Path) -> None:
    """It is not read to its end."""
    make(tmp_path / "runsc", "#!/bin/sh\nwhile :; do echo runsc version 20250101; done\n")
    assert "more than a version" in refusal()


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/sh\necho $$ >PIDS\nwhile :; do :; done\n",
        # It closes its output, and stays.
        "#!/bin/sh\necho $$ >PIDS\nexec >&-\nwhile :; do :; done\n",
        # It ends, but what it started holds the output.
        "#!/bin/sh\n(while :; do :; done) &\necho $! >PIDS\n",
    ],
    ids=["silent", "closed", "child"],
)
def test_a_hanging_one_is_refused_and_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    """With what it started."""
    monkeypatch.setattr(asking, "PATIENCE", 0.5)
    pids = tmp_path / "pids"
    make(tmp_path / "runsc", script.replace("PIDS", str(pids)))
    assert "did not end within 0.5 s" in refusal()
    pid = int(pids.read_text())
    deadline = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """A zombie that nobody has collected yet does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rsplit(")", maxsplit=1)[1].split()[0] not in "ZX"


def test_the_script_that_fetches_it_demands_the_same() -> None:
    """Else ./dev would fetch what is then refused."""
    script = ROOT / "tools/get-runsc"
    assert os.access(script, os.X_OK)
    assert f"\noldest={OLDEST}\n" in script.read_text()
