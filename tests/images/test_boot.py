"""The image that was built starts, under emulation; and an init that cannot go on says so."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.executor.microvm.image import Image, find_image
from stockade.executor.microvm.qemu import find_qemu
from stockade.executor.namespace.image import native_folder
from stockade.images.initramfs import Module, make_initramfs
from stockade.port import Unavailable

SECONDS = 240.0
# A guest of emulation takes seconds, on a machine that does nothing else.
pytestmark = pytest.mark.timeout(2 * SECONDS)


@pytest.fixture(scope="module")
def qemu() -> str:
    try:
        return str(find_qemu().path)
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    try:
        found = find_image()
    except Unavailable as error:
        pytest.skip(str(error))
    yield found
    found.close()


def start(
    qemu: str, image: Image, initramfs: Path, wire: socket.socket, *words: str
) -> subprocess.Popen[bytes]:
    """A machine of the tier's kind, with its console as standard output."""
    port = f"socket,id=wire,fd={wire.fileno()}"
    return subprocess.Popen(
        [
            *(qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-M", "q35,usb=off,vmport=off", "-accel", "tcg", "-cpu", "max", "-m", "256"),
            *("-kernel", str(image.folder / "kernel"), "-initrd", str(initramfs)),
            *("-append", f"console=ttyS0 quiet reboot=t panic=-1 rdinit=/init {' '.join(words)}"),
            *("-drive", f"file={image.folder}/disk,format=raw,if=none,id=r,read-only=on"),
            *("-device", "virtio-blk-pci,drive=r", "-device", "virtio-serial-pci,max_ports=2"),
            *("-chardev", port, "-device", "virtserialport,chardev=wire,name=wire"),
            *("-serial", "stdio"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=[wire.fileno()],
    )


def test_a_guest_comes_to_where_a_snapshot_is_taken(qemu: str, image: Image) -> None:
    """The agent says so with one byte: a kernel, all its modules, the disk and Python are there.

    What the kernel does not know of its command line it hands to init, which leaves it out.
    """
    ours, theirs = socket.socketpair()
    words = ("nokaslr", "--", "machine", str(64 << 20), "4096", "json")
    machine = start(qemu, image, image.folder / "initramfs", theirs, *words)
    theirs.close()
    with machine, ours:
        try:
            ours.settimeout(SECONDS)
            assert ours.recv(100) == b"."
        finally:
            machine.kill()


@pytest.mark.parametrize(
    ("modules", "mode", "said"),
    [
        ([Module("broken", b"no module")], "machine", b"insert 00-broken.ko: Exec format error"),
        ([], "other", b"find among the arguments machine: Invalid argument"),
    ],
)
def test_an_init_that_cannot_go_on_says_one_line_and_is_off(
    qemu: str, image: Image, tmp_path: Path, modules: list[Module], mode: str, said: bytes
) -> None:
    """Whoever waits for the guest sees it gone."""
    init = (native_folder() / "stockade-init").read_bytes()
    initramfs = tmp_path / "initramfs"
    initramfs.write_bytes(make_initramfs(init, modules))
    ours, theirs = socket.socketpair()
    machine = start(qemu, image, initramfs, theirs, "--", mode, "1", "1")
    theirs.close()
    with ours:
        console, _ = machine.communicate(timeout=SECONDS)
        assert machine.returncode == 0
        assert ours.recv(1) == b""
    lines = [line for line in console.splitlines() if line.startswith(b"stockade-init: ")]
    assert lines == [b"stockade-init: " + said]


def test_init_is_the_first_process_or_nothing() -> None:
    """It would mount and remove what is there."""
    ended = subprocess.run([native_folder() / "stockade-init"], check=False, capture_output=True)
    assert ended.returncode == os.EX_USAGE
    assert ended.stderr == b"stockade-init: runs as the first process of a microVM only\n"
