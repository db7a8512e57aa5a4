"""The outer machine: made of the image, QEMU and this checkout's own package; started once.

Its root is the image's own disk, as every microVM's is. A second disk has what an executor needs
beside it: the package, QEMU, the image once more, and the program that uses them.
"""

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stockade
from stockade.executor.microvm.image import find_image, image_store
from stockade.images import build as recipe
from stockade.images.apt import Package, find_cached
from stockade.images.commands import Unpacked
from stockade.images.initramfs import make_initramfs
from stockade.images.kernel import NEEDED, read_modules
from stockade.images.store import KIND
from stockade.images.unpack import unpack
from stockade.port import GIB, Tier

QEMU = "usr/bin/qemu-system-x86_64"
"""In a folder that a QEMU of Debian's was unpacked into."""
MEMORY_MIB = 2048
LARGEST_ANSWER = 1 << 16
_STILL_SECONDS = 15.0
_HERE = Path(__file__).parent
_TRIPLET = "x86_64-linux-gnu"
_LARGEST_WORDS = 6000


class Absent(Exception):
    """Something that the machine is made of is not on this one; the message says what."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What is on this machine already: the image was made of it."""

    image: Path
    """Its folder."""
    kernel: Path
    """The package."""
    tools: tuple[Path, ...]
    """Packages, with mkfs.erofs."""
    qemu: Path
    """Its folder."""


def find_parts(qemu: Path) -> Parts:
    """Raises :class:`Absent`, or Unavailable where there is no image."""
    image = find_image()
    folder, kernel = image.folder, image.description["kernel"]
    image.close()
    store = image_store() / KIND
    try:
        resolved = json.loads((store / recipe._RESOLVED).read_text())["resolved"]
        packages = [Package(**each) for each in (resolved["kernel"], *resolved["tools"])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Absent(f"what the image in {store} was made of is not known: {error!r}") from error
    files = find_cached(packages, store / recipe._PACKAGES)
    if files is None:
        raise Absent(f"the packages that the image in {store} was made of are not there")
    if (packages[0].name, packages[0].version) != (kernel["package"], kernel["version"]):
        raise Absent(f"the image in {store} has another kernel than the package that is there")
    return Parts(folder, files[packages[0]], tuple(files[each] for each in packages[1:]), qemu)


def make_machine(parts: Parts, folder: Path) -> None:
    """Leaves ``initramfs``, ``disk`` and ``scratch`` in the folder."""
    unpack([parts.kernel], folder / "kernel")
    modules = read_modules(folder / "kernel", (*NEEDED, "kvm_amd"))
    initramfs = make_initramfs(_compile_init(folder / "init"), [*modules.always, *modules.for_disk])
    (folder / "initramfs").write_bytes(initramfs)
    (folder / "scratch").touch()
    os.truncate(folder / "scratch", GIB)
    tools = Unpacked(folder / "tools", _TRIPLET)
    unpack(parts.tools, tools.folder)
    recipe._make_disk(tools, _lay_out(parts, folder / "tree"), folder / "disk")


def _compile_init(product: Path) -> bytes:
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    command = [*compiler, "-static", "-O2", "-Wall", "-Werror", "-o", str(product)]
    command.append(str(_HERE / "init.c"))
    subprocess.run(command, check=True, timeout=60)
    return product.read_bytes()


def _lay_out(parts: Parts, tree: Path) -> Path:
    """As links where they can be: it is 270 MB."""
    tree.mkdir(mode=0o755)
    copy_tree(Path(stockade.__file__).parent, tree / "stockade", "__pycache__", "*.[ch]")
    copy_tree(parts.qemu, tree / "qemu")
    # It starts by its whole path.
    start = (tree / "qemu/qemu").read_text()
    (tree / "qemu/qemu").unlink()
    (tree / "qemu/qemu").write_text(start.replace(str(parts.qemu), "/workspace/qemu"))
    (tree / "qemu/qemu").chmod(0o755)
    copy_tree(parts.image, tree / "images" / KIND / parts.image.name)
    (tree / "images" / KIND / "current").symlink_to(parts.image.name)
    shutil.copy(_HERE / "inside.py", tree)
    return tree


def copy_tree(source: Path, target: Path, *left_out: str) -> None:
    """Without a byte copied, where both are on one file system."""
    shutil.copytree(
        source,
        target,
        symlinks=True,
        ignore=shutil.ignore_patterns(*left_out),
        copy_function=_link_or_copy,
    )


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@dataclass(frozen=True, slots=True)
class Ended:
    """A machine that is off."""

    code: int
    answer: dict[str, Any] | None
    """What the program inside said of itself."""
    console: str
    """The last of it."""


def run_machine(parts: Parts, folder: Path, tier: Tier, seconds: float, attempts: int = 3) -> Ended:
    """Start it, use the tier in it, wait until it is off. What takes longer is killed."""
    console, answer = folder / "console", folder / "answer"
    command = [
        *(str(parts.qemu / "qemu"), "-nodefaults", "-no-user-config", "-display", "none"),
        *("-no-reboot", "-M", "q35,usb=off,vmport=off", "-m", f"{MEMORY_MIB}M"),
        # One thread: see _arguments() in executor/microvm/qemu.py.
        # Tables of five levels, twice, are walked at half the speed.
        *("-accel", "tcg,thread=single", "-cpu", "max,+svm,+npt,-la57"),
        *("-kernel", str(parts.image / "kernel"), "-initrd", str(folder / "initramfs")),
        "-append",
        f"console=ttyS0 quiet reboot=t panic=-1 rdinit=/init mitigations=off tier={tier}",
        *_disk("root", parts.image / "disk", "read-only=on"),
        *_disk("brought", folder / "disk", "read-only=on"),
        *_disk("scratch", folder / "scratch", "cache=unsafe"),
        *("-chardev", f"file,id=console,path={console}", "-serial", "chardev:console"),
        *("-chardev", f"file,id=answer,path={answer}", "-serial", "chardev:answer"),
    ]
    with _started(command) as machine:
        stood_still = _watch(machine, seconds)
    if stood_still and attempts > 1:
        return run_machine(parts, folder, tier, seconds, attempts - 1)
    return Ended(machine.returncode, _read(answer), _tail(console))


def _watch(machine: subprocess.Popen[bytes], seconds: float) -> bool:
    """Until it is off, which is seen to. Whether it stood still.

    QEMU's emulation of SVM loses an interrupt now and then: the one CPU sleeps, no timer is set, and
    nothing in there can wake it. A kernel that only idles takes some CPU time in so many seconds.
    """
    end, since, used = time.monotonic() + seconds, time.monotonic(), 0
    while machine.poll() is None and time.monotonic() < end:
        time.sleep(0.5)
        # utime and stime, in ticks: proc_pid_stat(5).
        status = Path(f"/proc/{machine.pid}/stat").read_text().rpartition(")")[2].split()
        now = int(status[11]) + int(status[12])
        if now != used:
            since, used = time.monotonic(), now
        elif time.monotonic() - since > _STILL_SECONDS:
            machine.kill()
            machine.wait()
            return True
    machine.kill()
    machine.wait()
    return False


def _disk(name: str, path: Path, option: str) -> tuple[str, ...]:
    drive = f"file={path},format=raw,if=none,id={name},{option}"
    return "-drive", drive, "-device", f"virtio-blk-pci,drive={name}"


@contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as machine:
        try:
            yield machine
        finally:
            if machine.poll() is None:
                machine.kill()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            answer = json.loads(file.read(LARGEST_ANSWER))
    except (OSError, ValueError):
        return None  # it did not come to that
    return answer if isinstance(answer, dict) else None


def _tail(path: Path) -> str:
    data = path.read_bytes() if path.exists() else b""
    return data[-_LARGEST_WORDS:].decode("utf-8", "replace")
