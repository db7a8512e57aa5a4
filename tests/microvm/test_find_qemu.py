"""Which QEMU is taken, and what is said of one that will not do. Fakes: scripts in its place."""

from pathlib import Path

import pytest

from stockade.executor.microvm.jail import program_of
from stockade.executor.microvm.qemu import VARIABLE, find_qemu
from stockade.port import Unavailable

VERSION = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright (c) 2003-2025\n"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the machine's own is found."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def make(path: Path, says: str = VERSION) -> Path:
    path.write_text(f"#!/bin/sh\nprintf '%s' '{says}'\n")
    path.chmod(0o755)
    return path


def refusal() -> str:
    """What is said; it always ends with what to do next."""
    with pytest.raises(Unavailable) as raised:
        find_qemu()
    message = str(raised.value)
    assert "./dev setup" in message
    assert "QEMU 7.2 or later" in message
    assert message.isprintable()
    return message


def test_the_variable_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make(tmp_path / "qemu-system-x86_64", "nothing")
    own = make(tmp_path / "own")
    monkeypatch.setenv(VARIABLE, str(own))
    qemu = find_qemu()
    assert (qemu.path, qemu.version, qemu.release) == (own, "10.0.2", (10, 0))


def test_then_path(tmp_path: Path) -> None:
    found = make(tmp_path / "qemu-system-x86_64")
    assert find_qemu().path == found


@pytest.mark.parametrize(
    ("text", "version", "release"),
    [
        ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\n", "7.2.22", (7, 2)),
        ("QEMU emulator version 11.0.0\n", "11.0.0", (11, 0)),
        ("QEMU emulator version 8.2\n", "8.2", (8, 2)),
    ],
)
def test_versions_as_they_are_printed(
    tmp_path: Path, text: str, version: str, release: tuple[int, int]
) -> None:
    make(tmp_path / "qemu-system-x86_64", text)
    qemu = find_qemu()
    assert (qemu.version, qemu.release) == (version, release)


def test_none_at_all() -> None:
    message = refusal()
    assert f"there is no qemu-system-x86_64: {VARIABLE} is not set and PATH has none" in message


@pytest.mark.parametrize("version", ["7.1.50", "6.2.0", "2.11.1"])
def test_an_old_one(tmp_path: Path, version: str) -> None:
    make(tmp_path / "qemu-system-x86_64", f"QEMU emulator version {version}\n")
    assert f"that is QEMU {version}" in refusal()


@pytest.mark.parametrize(
    "text", ["", "qemu-img version 10.0.2\n", "QEMU emulator version ten\n", "\033[2J\n"]
)
def test_garbage(tmp_path: Path, text: str) -> None:
    make(tmp_path / "qemu-system-x86_64", text)
    assert "names no version of QEMU" in refusal()


def test_a_failing_one(tmp_path: Path) -> None:
    """A library of its is missing, say."""
    path = make(tmp_path / "qemu-system-x86_64")
    path.write_text("#!/bin/sh\nexit 127\n")
    assert "failed with 127" in refusal()


def test_a_script_is_started_by_its_interpreter(tmp_path: Path) -> None:
    """In a jail in which its folder is to be seen."""
    path = make(tmp_path / "qemu")
    program = program_of(path)
    assert program.command == ("/bin/sh", str(path))
    assert tmp_path in program.seen
    path.write_text("#! /usr/bin/env -S sh -e\n")
    assert program_of(path).command == ("/usr/bin/env", "-S sh -e", str(path))


def test_a_program_is_started_itself() -> None:
    """What the host's programs are made of is seen already, and named once."""
    program = program_of(Path("/usr/bin/env"))
    assert program.command == ("/usr/bin/env",)
    assert Path("/usr") in program.seen
    assert Path("/usr/bin") not in program.seen


def test_a_link_to_a_program_shows_both_folders(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "there/qemu").write_bytes(b"\x7fELF")
    (tmp_path / "here/qemu").symlink_to(tmp_path / "there/qemu")
    seen = program_of(tmp_path / "here/qemu").seen
    assert {tmp_path / "here", tmp_path / "there"} <= set(seen)
