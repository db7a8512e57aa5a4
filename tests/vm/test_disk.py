"""The disks of dedicated machines: large enough, without a name, and no more than there is room for."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.contract.kit import descriptors

from stockade.executor.namespace.image import native_folder
from stockade.executor.vm import disk
from stockade.executor.vm.disk import ScratchDisks, device_bytes
from stockade.port import GIB, KIB, MIB, Unavailable

MAKE = shutil.which("mke2fs", path="/usr/sbin:/sbin:/usr/bin")
SHOW = shutil.which("dumpe2fs", path="/usr/sbin:/sbin:/usr/bin")


def init_options() -> list[str]:
    """What init tells mke2fs, out of its source: it and the size belong together."""
    source = native_folder().parents[2] / "guest/native/init.c"
    (body,) = re.findall(r"command\[\] = \{(.*?)\};", source.read_text(), re.DOTALL)
    joined = re.sub(r'"\s*\n\s*"', "", body)
    return re.findall(r'"([^"]*)"', joined)


@pytest.mark.skipif(not MAKE or not SHOW, reason="no e2fsprogs on this host")
@pytest.mark.parametrize(
    ("disk_bytes", "inodes"),
    [
        (64 * KIB, 16),
        (64 * KIB, 16_384),
        (128 * MIB, 16_384),
        (127 * MIB, 1_000_000),
        (300 * MIB, 50),
        (1000 * MIB, 16_384),
        (10 * GIB, 16_384),
        (100 * GIB, 3_000_000),
    ],
)
def test_there_is_room_for_what_was_asked_for(tmp_path: Path, disk_bytes: int, inodes: int) -> None:
    """And not much more: what is left over has to be taken up."""
    file = tmp_path / "disk"
    with file.open("wb") as made:
        made.truncate(device_bytes(disk_bytes, inodes))
    assert MAKE
    assert SHOW
    words = [*init_options()[:-1], "-N", str(inodes + 15), str(file)]
    subprocess.run([MAKE, *words], check=True)
    said = subprocess.run([SHOW, "-h", file], check=True, capture_output=True, text=True).stdout
    told = {
        name: int(re.findall(rf"^{name}: +(\d+)$", said, re.MULTILINE)[0])
        for name in ("Free blocks", "Block count", "Free inodes")
    }
    reserved = min(told["Block count"] // 50, 4096)
    over = told["Free blocks"] - reserved - 8 - disk_bytes // 4096
    assert 0 <= over < 4096 + disk_bytes // 4096 // 20 + inodes // 64
    assert told["Free inodes"] >= inodes + 4


def test_a_disk_has_no_name_and_ends_with_who_has_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOCKADE_SCRATCH", str(tmp_path))
    before = descriptors()
    disks = ScratchDisks()
    made = disks.make(8 * MIB)
    assert os.fstat(made).st_size == 8 * MIB
    assert os.fstat(made).st_blocks == 0
    assert os.fstat(made).st_nlink == 0
    assert not os.get_inheritable(made)
    assert list(tmp_path.iterdir()) == []
    disks.remove(made)
    assert descriptors() == before


def test_a_file_system_without_such_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is gone before the file is used."""
    monkeypatch.setenv("STOCKADE_SCRATCH", str(tmp_path))
    monkeypatch.setattr("os.O_TMPFILE", os.O_WRONLY | os.O_DIRECTORY)
    disks = ScratchDisks()
    made = disks.make(MIB)
    assert list(tmp_path.iterdir()) == []
    assert os.pwrite(made, b"x", MIB - 1) == 1
    disks.remove(made)


def test_no_more_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others were promised counts, though they have not written it yet."""
    monkeypatch.setenv("STOCKADE_SCRATCH", str(tmp_path))
    room = SimpleNamespace(f_bavail=100 * MIB // 4096, f_frsize=4096)
    monkeypatch.setattr("os.statvfs", lambda _: room)
    disks = ScratchDisks()
    first = disks.make(60 * MIB)
    with pytest.raises(
        Unavailable, match=r"has room for 40 MiB, and the disk .* 60 MiB; let STOCK"
    ):
        disks.make(60 * MIB)
    disks.remove(first)
    disks.remove(disks.make(60 * MIB))


def test_memory_is_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    if disk._file_system(Path("/dev/shm")) != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    monkeypatch.setenv("STOCKADE_SCRATCH", "/dev/shm")
    with pytest.raises(Unavailable, match="/dev/shm is memory, and no disk; let STOCKADE_SCRATCH"):
        ScratchDisks()


def test_a_folder_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOCKADE_SCRATCH", str(tmp_path / "none"))
    with pytest.raises(Unavailable, match="No such file or directory; let STOCKADE_SCRATCH name"):
        ScratchDisks()
