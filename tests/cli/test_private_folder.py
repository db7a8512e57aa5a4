"""The folder of ``stockade up``: gone with it, however it ended."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stockade.cli.private_folder import private_folder, remove_left_behind

_HOLDS_ONE = """
import sys
from pathlib import Path
from stockade.cli.private_folder import private_folder
with private_folder(Path(sys.argv[1])) as (folder, lock):
    (folder / "deep").mkdir()
    (folder / "deep" / "token").write_text("secret")
    print(folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def _holder(parent: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_ONE, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


def test_what_a_killed_one_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """It has a token and a database, and nobody else would ever remove it."""
    with _holder(tmp_path) as (process, left):
        process.kill()
        process.wait()
        assert (left / "deep" / "token").exists()
        with private_folder(tmp_path) as (folder, _):
            assert not left.exists()
            assert list(tmp_path.iterdir()) == [folder]
    assert not list(tmp_path.iterdir())


def test_a_live_ones_folder_stays(tmp_path: Path) -> None:
    """Of another process, and of this one."""
    with _holder(tmp_path) as (_, alive), private_folder(tmp_path) as (own, _):
        remove_left_behind(tmp_path)
        assert (alive / "deep" / "token").exists()
        assert own.exists()


def test_it_stays_while_an_heir_of_the_lock_lives(tmp_path: Path) -> None:
    """As the gateway does, which ends what runs after ``up`` was killed."""
    with private_folder(tmp_path) as (folder, lock):
        heir = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,))
        folder.rename(tmp_path / "stockade-up-kept")  # from its removal at the end
    remove_left_behind(tmp_path)
    assert (tmp_path / "stockade-up-kept").exists()
    heir.communicate()
    remove_left_behind(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a stranger's folder")
def test_a_strangers_folder_stays(tmp_path: Path) -> None:
    """Nobody holds its lock; it is not ours all the same."""
    stranger = tmp_path / "stockade-up-stranger"
    stranger.mkdir()
    os.chown(stranger, 65_534, 65_534)
    remove_left_behind(tmp_path)
    assert stranger.exists()


def test_no_link_leads_to_a_removal(tmp_path: Path) -> None:
    """In a folder for everybody anybody can place one; and a file is no folder."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "stockade-up-link").symlink_to(precious)
    (folder / "stockade-up-file").touch()
    (folder / "stockade-other").mkdir()
    remove_left_behind(folder)
    assert (precious / "file").exists()
    assert len(list(folder.iterdir())) == 3
