"""``stockade up`` and ``stockade gateway`` as processes."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

STOCKADE = (sys.executable, "-m", "stockade.cli.main")


def _until(said: Path, pattern: str, process: "subprocess.Popen[bytes]") -> "re.Match[str]":
    deadline = time.monotonic() + 100
    while True:
        text = said.read_text()
        if found := re.search(pattern, text):
            return found
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)


@pytest.mark.tier("namespace")
@pytest.mark.parametrize("name", ["gateway", "executor"])
def test_when_one_dies_the_other_is_stopped_and_it_says_so(tmp_path: Path, name: str) -> None:
    """Neither is restarted in silence, and neither goes on alone."""
    said = tmp_path / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [*STOCKADE, "up", "--port", "0", "--tier", "namespace"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        pids = {
            one: int(_until(said, rf"{one}: serves \(pid (\d+)", process)[1])
            for one in ("executor", "gateway")
        }
        folder = _folder(pids["gateway"])
        os.kill(pids[name], signal.SIGKILL)
        assert process.wait(90) == 70, said.read_text()
        text = said.read_text()
        assert f"the {name} ended by itself, with -9" in text
        for pid in pids.values():
            assert not Path(f"/proc/{pid}").exists()
        assert not folder.exists()
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A socket's path has 107 bytes at the most, and pytest's own folders take many of them."""
    with tempfile.TemporaryDirectory(prefix="up") as folder:
        yield Path(folder)


@pytest.mark.tier("namespace")
def test_when_up_itself_is_killed_nothing_goes_on(short_path: Path) -> None:
    """There would be nobody left to stop them."""
    tmp_path = short_path
    said = tmp_path / "said"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    with said.open("wb") as output:
        process = subprocess.Popen(
            [*STOCKADE, "up", "--port", "0", "--tier", "namespace"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
        )
    pids = []
    try:
        pids = [
            int(_until(said, rf"{one}: serves \(pid (\d+)", process)[1])
            for one in ("broker", "executor", "gateway")
        ]
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    # Its folder was not removed. The next start does that, also one that comes to nothing.
    assert list(tmp_path.glob("stockade-up-*/gateway/token"))
    (tmp_path / "wrong.toml").write_text("[executor]\nno_such_key = 1\n")
    done = subprocess.run(
        [*STOCKADE, "up", "--config", str(tmp_path / "wrong.toml")],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        timeout=90,
    )
    assert done.returncode == 70
    assert not list(tmp_path.glob("stockade-up-*"))


@pytest.mark.tier("namespace")
def test_a_closed_terminal_ends_it_like_ctrl_c(tmp_path: Path) -> None:
    """And its folder, with a token and a database in it, is gone."""
    said = tmp_path / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [*STOCKADE, "up", "--port", "0", "--tier", "namespace"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # The commands for tenants are told of the real database so: it is none of ours.
            env={**os.environ, "STOCKADE_GATEWAY__DATABASE_URL": f"sqlite:///{tmp_path}/real.db"},
        )
    try:
        folder = _folder(int(_until(said, r"gateway: serves \(pid (\d+)", process)[1]))
        assert not (tmp_path / "real.db").exists()
        process.send_signal(signal.SIGHUP)
        assert process.wait(90) == 0, said.read_text()
        assert not folder.exists()
    finally:
        process.kill()
        process.wait()


def _folder(gateway: int) -> Path:
    words = Path(f"/proc/{gateway}/cmdline").read_bytes().split(b"\0")
    return Path(os.fsdecode(words[words.index(b"--config") + 1])).parent


def test_a_gateway_without_executors_does_not_start() -> None:
    """It says every reason, each by its key."""
    done = subprocess.run(
        [*STOCKADE, "gateway"],
        check=False,
        env={**os.environ, "STOCKADE_GATEWAY__LISTEN__HOST": "0.0.0.0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 64
    assert "executors: there is none" in done.stderr
    assert "tls: 0.0.0.0 is no address of this machine alone" in done.stderr


def test_a_database_is_migrated_by_hand(tmp_path: Path) -> None:
    """Once and again, the same."""
    for _ in range(2):
        done = subprocess.run(
            [*STOCKADE, "gateway", "--migrate"],
            check=False,
            env={**os.environ, "STOCKADE_GATEWAY__DATABASE_URL": f"sqlite:///{tmp_path}/a.db"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert "has revision" in done.stderr
