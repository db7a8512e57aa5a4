"""A whole build, of packages of a few bytes: what is written, and what is not done twice."""

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from stockade.executor.microvm.image import open_image
from stockade.images import build as recipe
from stockade.images import resolved
from stockade.images.build import build
from stockade.images.errors import CannotBuild
from stockade.images.resolved import Request, recall
from stockade.images.store import Image, Store

from .kit import SCRIPT, Debian, needs_dpkg
from .test_parts import ELF, PVH, read_archive

pytestmark = needs_dpkg


@pytest.fixture
def store(archive: Debian, native: Path, tmp_path: Path) -> Path:
    """A place for images, where all that they are made of can be had."""
    return tmp_path / "images"


def made_by(store: Path, *packages: str, update: bool = False) -> tuple[Image, bool]:
    return build(Request(packages, machine="x86_64", update=update), store)


def test_an_image_is_what_the_executor_reads(store: Path, archive: Debian) -> None:
    """Which checks every digest."""
    image, changed = made_by(store)
    assert changed
    assert (store / "microvm/current").resolve() == image.folder
    assert image.digest == f"sha256:{image.folder.name}"
    opened = open_image(image.folder)
    try:
        assert opened.digest == image.digest
    finally:
        opened.close()
    assert (image.folder / "kernel").read_bytes() == ELF + PVH
    names = [name for name, _, _ in read_archive((image.folder / "initramfs").read_bytes())]
    modules = ["modules", "modules/00-erofs.ko", "disk-modules", "disk-modules/00-ext4.ko"]
    assert names == ["init", *modules]
    disk = (image.folder / "disk").read_text().split()
    assert {"./usr/bin/python3", "./opt/stockade/stockade-agent", "./etc/passwd"} <= set(disk)
    assert "./opt/stockade/libstockade.so" in disk
    assert "./opt/stockade/stockade_guest/program.py" in disk
    said = json.loads((image.folder / "image.json").read_text())
    assert (said["format"], said["for"], said["machine"]) == (1, "microvm", "x86_64")
    assert said["kernel"]["package"] == "linux-image-6.12"
    assert said["packages"] == [
        {
            "name": name,
            "version": "1:2.0-3",
            "sha256": hashlib.sha256(archive.packages[name].read_bytes()).hexdigest(),
        }
        for name in ("base-files", "python3")
    ]
    # A VMM is nobody on the host, whatever the builder's umask.
    assert {path.stat().st_mode & 0o777 for path in image.folder.iterdir()} == {0o644}


def test_what_has_not_changed_is_not_made_again(store: Path, archive: Debian) -> None:
    """Nor is the archive asked, for a day."""
    first, _ = made_by(store)
    archive.forget_calls()
    assert made_by(store) == (first, False)
    assert archive.calls == []
    assert made_by(store, update=True) == (first, False)
    assert archive.calls == ["update"]


def test_another_init_makes_another_image_of_the_same_packages(
    store: Path, archive: Debian, native: Path
) -> None:
    """Without asking for any of them."""
    first, _ = made_by(store)
    archive.forget_calls()
    (native / "stockade-init").write_text("newer")
    second, changed = made_by(store)
    assert changed
    assert second.digest != first.digest
    assert (store / "microvm/current").resolve() == second.folder
    assert archive.calls == []


def test_packages_can_be_added(store: Path) -> None:
    """In any order, with what they depend on."""
    plain, _ = made_by(store)
    more, changed = made_by(store, "numpy")
    assert changed
    assert more.packages == plain.packages + 1
    assert "./usr/lib/python3/dist-packages/numpy.py" in (more.folder / "disk").read_text()


def test_the_same_packages_make_the_same_image_anywhere(
    store: Path, tmp_path: Path, archive: Debian
) -> None:
    """Whatever the time is, and the caller's umask."""
    first, _ = made_by(store)
    old = os.umask(0o077)
    try:
        second, _ = made_by(tmp_path / "elsewhere")
    finally:
        os.umask(old)
    assert second.digest == first.digest
    for name in ("kernel", "initramfs", "disk"):
        assert (second.folder / name).read_bytes() == (first.folder / name).read_bytes()


def test_a_damaged_image_is_made_anew(store: Path) -> None:
    image, _ = made_by(store)
    content = (image.folder / "disk").read_bytes()
    (image.folder / "disk").write_bytes(content[:-1])
    again, changed = made_by(store)
    assert changed
    assert again.digest == image.digest
    assert (image.folder / "disk").read_bytes() == content


def test_the_images_before_the_last_are_removed(store: Path, native: Path) -> None:
    """Who runs from one has its files open."""
    made = []
    for number in range(4):
        (native / "stockade-init").write_text(str(number))
        made.append(made_by(store)[0])
        time.sleep(0.01)
    found = Store(store).images()
    assert [image.digest for image in found] == [made[3].digest, made[2].digest]
    assert [image.current for image in found] == [True, False]


def test_a_build_that_fails_leaves_the_last_image(store: Path, archive: Debian) -> None:
    """And nothing of its own."""
    image, _ = made_by(store)
    archive.add("tools", {"usr/bin/mkfs.erofs!": SCRIPT + "echo no room >&2\nexit 1\n"})
    archive.answer(resolved._TOOLS[-1], "tools")
    with pytest.raises(CannotBuild):
        made_by(store, update=True)
    assert [each.digest for each in Store(store).images()] == [image.digest]
    assert not list((store / "microvm").glob(".build.*"))


def test_what_a_killed_build_left_is_removed(store: Path) -> None:
    left = store / "microvm/.build.x/root"
    left.mkdir(parents=True)
    made_by(store)
    assert not left.parent.exists()


def test_a_store_that_cannot_be_written_is_named(archive: Debian, native: Path) -> None:
    with pytest.raises(
        CannotBuild, match=r"/proc/images/microvm cannot be written .*STOCKADE_IMAGES"
    ):
        made_by(Path("/proc/images"))


def test_another_machine_is_refused(store: Path) -> None:
    with pytest.raises(CannotBuild, match="for x86_64 so far, not for riscv64"):
        build(Request(machine="riscv64"), store)


def test_no_room_is_said_before_anything_is_fetched(
    store: Path, archive: Debian, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "_ROOM", 1 << 40)
    with pytest.raises(CannotBuild, match=r"has no room: .* MiB are needed"):
        made_by(store)
    assert "download" not in archive.calls


def test_an_answer_of_the_archive_is_good_for_a_day(store: Path) -> None:
    """A clock that was set back does not make it last."""
    made_by(store)
    path, request = store / "microvm/.resolved", Request(machine="x86_64")
    now = time.time()
    assert recall(path, request, lambda: now + 3600)
    assert recall(path, request, lambda: now + 90000) is None
    assert recall(path, request, lambda: now - 3600) is None
    path.write_text('{"key": 1}')
    assert recall(path, request) is None
