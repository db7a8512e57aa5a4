"""An executor's own folder, and those of dead ones."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stockade.executor import state
from stockade.executor.state import StateFolder
from stockade.port import Unavailable

pytestmark = pytest.mark.plain_user

HOLDER = """
import sys, time
from pathlib import Path
from stockade.executor import state
state._parent = lambda: Path(sys.argv[1])
folder = state.StateFolder()
(folder.path / "inner").mkdir()
(folder.path / "inner" / "f").write_text("x")
print(folder.path, flush=True)
time.sleep(60)
"""


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the folders are made, instead of the machine's own place."""
    folder = tmp_path / "parent"

    def make() -> Path:
        folder.mkdir(exist_ok=True)
        return folder

    monkeypatch.setattr(state, "_parent", make)
    return make()


def test_it_is_ones_own_and_gone_after(parent: Path) -> None:
    folder = StateFolder()
    assert folder.path.parent == parent
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "a").mkdir()
    (folder.path / "a/f").write_text("x")
    folder.close()
    folder.close()
    assert not parent.exists()


def test_two_live_beside_each_other(parent: Path) -> None:
    one, two = StateFolder(), StateFolder()
    assert one.path != two.path
    assert {one.path, two.path} == set(parent.iterdir())
    one.close()
    assert two.path.is_dir()
    two.close()


def test_a_killed_executors_folder_is_removed_by_the_next(parent: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(parent)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        theirs = Path(holder.stdout.readline().strip())
        living = StateFolder()
        assert (theirs / "inner/f").exists(), "it lives, and its folder was removed"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert theirs.is_dir()
        next_one = StateFolder()
        assert not theirs.exists()
        assert living.path.is_dir()
        living.close()
        next_one.close()


def test_what_is_no_folder_of_ours_is_left_alone(parent: Path) -> None:
    (parent / "a file").write_text("x")
    (parent / "a link").symlink_to("/etc")
    folder = StateFolder()
    assert (parent / "a file").read_text() == "x"
    assert Path("/etc/passwd").exists()
    folder.close()


def test_many_that_begin_at_once_keep_their_own(parent: Path) -> None:
    """A folder that was made and is not locked yet looks like a dead executor's."""
    made: list[StateFolder] = []
    failed: list[Exception] = []

    def make() -> None:
        try:
            made.extend(StateFolder() for _ in range(20))
        except Unavailable as error:
            failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len({folder.path for folder in made}) == 160
    assert all(folder.path.is_dir() for folder in made)
    for folder in made:
        folder.close()


def test_the_last_one_that_ends_takes_nothing_from_one_that_begins(parent: Path) -> None:
    failed: list[Exception] = []

    def come_and_go() -> None:
        try:
            for _ in range(50):
                folder = StateFolder()
                assert folder.path.is_dir()
                folder.close()
        except (Unavailable, AssertionError) as error:
            failed.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert not parent.exists()


def test_no_place_for_it_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(state, "_parent", lambda: tmp_path / "nothing")
    with pytest.raises(Unavailable, match=r"no folder for the executor's files: .*nothing"):
        StateFolder()


def test_a_plain_users_place_that_another_could_write_to_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    (tmp_path / "stockade-4711").mkdir(mode=0o700)
    with pytest.raises(Unavailable, match="is not a folder of this user's alone"):
        StateFolder()  # it is another user's
    (tmp_path / "stockade-4711").rmdir()
    me = os.getuid() or 4711
    monkeypatch.setattr("os.geteuid", lambda: me)
    (tmp_path / f"stockade-{me}").symlink_to(tmp_path)
    with pytest.raises(Unavailable, match="is not a folder of this user's alone"):
        StateFolder()


def test_its_path_leaves_room_for_the_names_of_sockets() -> None:
    """unix(7): 107 bytes. runsc's are a name of ours, and "/runsc-NAME.sock" or the like."""
    folder = StateFolder()
    try:
        assert len(str(folder.path / "g1234567" / "runsc-g1234567.sock")) < 108
    finally:
        folder.close()


def test_its_lock_is_not_inherited(parent: Path) -> None:
    """What outlives the executor must not keep its folder."""
    folder = StateFolder()
    assert folder._lock is not None
    assert fcntl.fcntl(folder._lock, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    folder.close()
