"""Images as they may be found: built, half built, changed, of another machine."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.contract.kit import descriptors
from tests.microvm.kit import write_image

from stockade.executor.microvm.digests import Digests
from stockade.executor.microvm.image import VARIABLE, find_image, image_store, open_image
from stockade.port import Unavailable

pytestmark = pytest.mark.plain_user


def refusal(folder: Path) -> str:
    """What is said; it always ends with what to do next, and no file is left open."""
    before = descriptors()
    with pytest.raises(Unavailable) as raised:
        open_image(folder)
    assert descriptors() == before
    message = str(raised.value)
    assert message.endswith("; `stockade image build --for microvm` makes one")
    assert "\n" not in message
    return message


def test_one_that_is_as_it_was_built(tmp_path: Path) -> None:
    image = open_image(write_image(tmp_path / "i"))
    assert os.read(image.kernel, 100) == b"" or os.pread(image.kernel, 100, 0) == b"a kernel"
    assert os.pread(image.disk, 100, 0) == b"a disk"
    assert image.digest.startswith("sha256:")
    assert image.kernel_version == "6.12-1"
    image.close()


def test_the_current_one_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(Unavailable, match=r"no image was built .*; `stockade image build"):
        find_image()
    write_image(tmp_path / "microvm/one")
    (tmp_path / "microvm/current").symlink_to("one")
    image = find_image()
    assert image.folder == tmp_path / "microvm/one"
    image.close()
    (tmp_path / "microvm/current").unlink()
    (tmp_path / "microvm/current").symlink_to("gone")
    with pytest.raises(Unavailable, match="no image was built"):
        find_image()


def test_where_it_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert image_store() == tmp_path / "stockade/images"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert image_store() == tmp_path / ".cache/stockade/images"


@pytest.mark.parametrize("name", ["kernel", "initramfs", "disk"])
def test_a_file_that_is_missing(tmp_path: Path, name: str) -> None:
    folder = write_image(tmp_path / "i")
    (folder / name).unlink()
    assert f"{name} of the image cannot be read: No such file" in refusal(folder)


def test_one_with_another_agent(tmp_path: Path) -> None:
    """It would not be understood, and waited for in vain."""
    folder = write_image(tmp_path / "i", guest_sha256="0" * 64)
    assert "was built by another version of Stockade" in refusal(folder)


@pytest.mark.parametrize("name", ["kernel", "initramfs", "disk"])
def test_a_file_that_was_changed(tmp_path: Path, name: str) -> None:
    folder = write_image(tmp_path / "i")
    (folder / name).write_bytes(b"a " + name.encode()[:-1])
    assert f"{name} is not what image.json says" in refusal(folder)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    folder = write_image(tmp_path / "i")
    (folder / "disk").unlink()
    os.mkfifo(folder / "disk")
    assert "no regular file" in refusal(folder)


def test_a_link_is_no_part_of_an_image(tmp_path: Path) -> None:
    folder = write_image(tmp_path / "i")
    (folder / "disk").rename(tmp_path / "disk")
    (folder / "disk").symlink_to(tmp_path / "disk")
    assert "cannot be read" in refusal(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="a plain user's VMM reads what the user may")
def test_a_file_that_a_vmm_could_not_read(tmp_path: Path) -> None:
    folder = write_image(tmp_path / "i")
    (folder / "kernel").chmod(0o600)
    assert "may not be read by everyone" in refusal(folder)


def test_a_plain_users_vmm_cannot_change_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has the user's id, and a descriptor can be opened anew."""
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    before = descriptors()
    image = open_image(write_image(tmp_path / "i"))
    assert os.pread(image.disk, 100, 0) == b"a disk"
    for descriptor in (image.kernel, image.initramfs, image.disk):
        anew = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        with pytest.raises(PermissionError):
            os.write(anew, b"x")
        os.close(anew)
    image.close()
    assert descriptors() == before
    (tmp_path / "i/disk").write_bytes(b"another")
    assert "it was changed" in refusal(tmp_path / "i")


def test_another_architecture(tmp_path: Path) -> None:
    folder = write_image(tmp_path / "i", machine="riscv64")
    assert "is for riscv64 machines, this is " in refusal(folder)


def test_another_format(tmp_path: Path) -> None:
    assert "has format 2, this Stockade reads 1" in refusal(write_image(tmp_path / "i", format=2))


def test_another_digest(tmp_path: Path) -> None:
    folder = write_image(tmp_path / "i", digest="sha256:" + "0" * 64)
    assert "is not its image's" in refusal(folder)


@pytest.mark.parametrize(
    "changes",
    [{"for": "gvisor"}, {"kernel": []}, {"kernel": {}}, {"disk_sha256": None}, {"machine": 1}],
)
def test_a_description_of_something_else(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = write_image(tmp_path / "i", **changes)
    assert "describes no image for microVMs" in refusal(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"[" * 100_000, b"\xff", b" " * (5 << 20)])
def test_a_description_that_is_none(tmp_path: Path, text: bytes) -> None:
    folder = write_image(tmp_path / "i")
    (folder / "image.json").write_bytes(text)
    assert "describes no image" in refusal(folder)


def test_no_description(tmp_path: Path) -> None:
    folder = write_image(tmp_path / "i")
    (folder / "image.json").unlink()
    assert "image.json cannot be read: No such file" in refusal(folder)


def test_packages_do_not_name_it(tmp_path: Path) -> None:
    """The files do."""
    one = open_image(write_image(tmp_path / "i"))
    two = open_image(write_image(tmp_path / "j", packages=[{"name": "x"}]))
    assert one.digest == two.digest
    assert json.loads((tmp_path / "j/image.json").read_text()) == two.description
    one.close()
    two.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a plain user's is a copy that nobody can change")
def test_an_open_image_is_read_again_only_where_it_was_changed(tmp_path: Path) -> None:
    """By the files that are open: what becomes of their names is no matter."""
    digests = Digests()
    folder = write_image(tmp_path / "i")
    image = open_image(folder, digests)
    (folder / "initramfs").unlink()
    (folder / "initramfs").write_bytes(b"another")
    image.check(digests)
    with (folder / "kernel").open("r+b") as kernel:
        kernel.write(b"A")
    for _ in range(2):
        with pytest.raises(
            Unavailable, match=r"kernel is not what image\.json says: it was changed"
        ):
            image.check(digests)
    with (folder / "kernel").open("r+b") as kernel:
        kernel.write(b"a")
    image.check(digests)
    image.close()


def test_a_digest_is_of_all_that_a_file_holds(tmp_path: Path) -> None:
    """Wherever its offset is, which it leaves alone; and is computed once."""
    path = tmp_path / "f"
    path.write_bytes(b"x" * 3_000_000)
    digests = Digests()
    with path.open("rb") as file:
        file.seek(7)
        digest = digests.of(file.fileno())
        assert digest == hashlib.sha256(b"x" * 3_000_000).hexdigest()
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 7
        assert digests.of(file.fileno()) == digest
        assert "1 files" in repr(digests)
        path.write_bytes(b"y")
        assert digests.of(file.fileno()) == hashlib.sha256(b"y").hexdigest()
