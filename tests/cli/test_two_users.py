"""``stockade up`` as root, with the two users that it runs as: in a mount namespace that has them."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import stockade

_EXECUTOR, _GATEWAY = 64_901, 64_902
_SCRIPT = """
set -eu
mount --bind passwd /etc/passwd
mount --bind group /etc/group
"$@" -m stockade.cli.main up --port 0 --tier namespace > said 2>&1 &
up=$!
trap 'kill -9 $up' EXIT
until grep -q STOCKADE_URL said; do kill -0 $up; sleep 0.1; done  # set -e: while it lives
env $(grep -o 'STOCKADE_URL=[^ ]* STOCKADE_KEY=[^ ]*' said) \\
  "$@" -m stockade.cli.main run -c 'print(6 * 7)'
folder=$(echo tmp/stockade-up-*)
stat -c '%u:%g %a %n' $folder/*/token $folder/gateway/gateway.db $folder/run/socket
trap - EXIT
kill -TERM $up
wait $up
ls tmp
"""


def _for_everybody(path: Path) -> bool:
    path = path.resolve()
    return bool(path.stat().st_mode & stat.S_IROTH) and all(
        folder.stat().st_mode & stat.S_IXOTH for folder in path.parents
    )


def _python() -> str:
    """An interpreter of this version that other users can execute, or a reason to skip."""
    if os.geteuid() != 0:
        pytest.skip("only root has users to give")
    if not _for_everybody(Path(stockade.__file__)):
        pytest.skip(f"no other user can read {stockade.__file__}")
    found = [
        python
        for python in (sys.executable, "/usr/bin/python3")
        if Path(python).exists()
        and _for_everybody(Path(python))
        and subprocess.check_output(
            [python, "-c", "import sys; print(*sys.version_info[:2])"], text=True
        ).split()
        == [str(part) for part in sys.version_info[:2]]
    ]
    return found[0] if found else pytest.skip("no other user can execute a Python of this version")


@pytest.fixture
def folder() -> Iterator[Path]:
    """For everybody, and with a short name: that of a unix socket is below it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.tier("namespace")
def test_executor_and_gateway_are_two_users_and_a_call_goes_through(folder: Path) -> None:
    """Each has its own files, and the socket is the gateway's to connect to."""
    python = _python()
    lines = "".join(
        f"stockade-{name}:x:{number}:{number}::/nonexistent:/usr/sbin/nologin\n"
        for name, number in (("executor", _EXECUTOR), ("gateway", _GATEWAY))
    )
    groups = f"stockade-executor:x:{_EXECUTOR}:\nstockade-gateway:x:{_GATEWAY}:\n"
    (folder / "passwd").write_text(Path("/etc/passwd").read_text() + lines)
    (folder / "group").write_text(Path("/etc/group").read_text() + groups)
    (folder / "tmp").mkdir()
    packages = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", python],
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "TMPDIR": str(folder / "tmp"),
            "PYTHONPATH": os.pathsep.join([str(Path(stockade.__file__).parents[1]), *packages]),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = (folder / "said").read_text()
    assert done.returncode == 0, (done.stderr, said)
    first, *listed = done.stdout.splitlines()
    assert first == "42"
    assert [line.rsplit("/", 2)[0].split()[:2] for line in listed] == [
        [f"{_EXECUTOR}:{_EXECUTOR}", "600"],
        [f"{_GATEWAY}:{_GATEWAY}", "600"],
        [f"{_GATEWAY}:{_GATEWAY}", "600"],
        [f"{_EXECUTOR}:{_GATEWAY}", "660"],
    ]  # nothing more: its folder is gone
    assert "executor: ended with 0" in said
    assert "gateway: ended with 0" in said
