"""QEMU, where the system has none that will do: Debian's packages, unpacked into the cache.

``tools/get-qemu`` runs this, and reads again what it leaves in the cache.

<cache>/<version>-<digest>/   the program and all it needs; ``qemu`` in it starts it
<cache>/chosen                the program on ``PATH`` that was judged, or none; then the path to use
<cache>/failure               when and why a fetch failed
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from stockade.images.apt import Package, open_archive
from stockade.images.commands import Unpacked
from stockade.images.errors import CannotBuild
from stockade.images.unpack import unpack

OLDEST = (7, 2)

_PACKAGE = "qemu-system-x86"
_PROGRAM = "usr/bin/qemu-system-x86_64"
_ARCHITECTURES = {"x86_64": "amd64"}
_FIRMWARE = ("usr/share/qemu", "usr/share/seabios")
_PATIENCE = 86400.0  # seconds until a fetch that failed is tried again
_JUDGING_SECONDS = 20.0
_VERSION = re.compile(rb"QEMU emulator version (\d+)\.(\d+)")
_EX_UNAVAILABLE = 69


def judge(command: list[str]) -> str | None:
    """Why this QEMU will not do; ``None`` if it will."""
    name = command[-1]
    try:
        said = subprocess.run(
            [*command, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_JUDGING_SECONDS,
            check=False,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"{name} does not start: {error}"
    found = _VERSION.match(said)
    if not found:
        return f"{name} --version prints no version of QEMU"
    if (int(found[1]), int(found[2])) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        return f"{name} is of {found[1].decode()}.{found[2].decode()}, and {wanted} is the oldest that will do"
    return None


def fetch(cache: Path) -> Path:
    """Unpack Debian's QEMU into the cache; the path of what starts it. Raises CannotBuild."""
    machine = platform.machine()
    architecture = _ARCHITECTURES.get(machine)
    if architecture is None:
        raise CannotBuild(f"microVMs are for {', '.join(_ARCHITECTURES)} so far, not for {machine}")
    with open_archive(architecture) as archive, TemporaryDirectory(dir=cache) as name:
        packages = archive.resolve([_PACKAGE])
        (qemu,) = (each for each in packages if each.name == _PACKAGE)
        size = sum(each.size for each in packages)
        _say(f"fetching QEMU from Debian {archive.suite}'s archive: {size >> 20} MB, once")
        scratch = Path(name)
        files = archive.fetch(packages, scratch / "packages")
        whole = scratch / "whole"
        unpack(files.values(), whole)
        return _install(whole, scratch, cache / _folder_name(qemu), f"{machine}-linux-gnu")


def _folder_name(package: Package) -> str:
    version = re.sub(r"[^0-9A-Za-z.]+", "-", package.version)
    return f"{version}-{package.sha256[:16]}"


def _install(whole: Path, scratch: Path, place: Path, triplet: str) -> Path:
    """Keep what QEMU reads, of all that its packages bring."""
    kept = scratch / "kept"
    for name in (_PROGRAM, *_FIRMWARE, f"usr/lib/{triplet}"):
        target = kept / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (whole / name).rename(target)
    command = Unpacked(place, triplet)
    start = kept / "qemu"
    # By its whole path: who starts it by a descriptor tells it none.
    words = [
        word.replace(str(kept), str(place)) for word in Unpacked(kept, triplet).command(_PROGRAM)
    ]
    words += [word for name in _FIRMWARE for word in ("-L", str(command.folder / name))]
    start.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    start.chmod(0o755)
    shutil.rmtree(place, ignore_errors=True)
    kept.rename(place)
    reason = judge([str(place / "qemu")])
    if reason:
        shutil.rmtree(place, ignore_errors=True)
        raise CannotBuild(reason)
    return place / "qemu"


def find(cache: Path, on_path: str, identity: str, *, again: bool) -> Path:
    """The one to use: that on ``PATH`` if it will do, else a fetched one. Raises CannotBuild."""
    reason = judge([on_path]) if on_path else None
    if on_path and reason is None:
        chosen = Path(on_path)
    else:
        if reason:
            _say(f"another QEMU than the one on PATH is looked for: {reason}")
        fetched = sorted(cache.glob("*/qemu"), key=lambda path: path.stat().st_mtime)
        chosen = fetched[-1] if fetched else _fetch_unless_failed(cache, again=again)
    fresh = cache / ".chosen"
    fresh.write_text(f"{identity}\n{chosen}\n", encoding="utf-8")
    fresh.replace(cache / "chosen")
    return chosen


def _fetch_unless_failed(cache: Path, *, again: bool) -> Path:
    failure = cache / "failure"
    if not again and failure.is_file():
        when, _, reason = failure.read_text(encoding="utf-8").partition(" ")
        # A clock that was set back must not make this last.
        if when.isdigit() and 0 <= time.time() - int(when) < _PATIENCE:
            raise CannotBuild(reason.strip())
    try:
        path = fetch(cache)
    except CannotBuild as error:
        failure.write_text(f"{int(time.time())} {error}\n", encoding="utf-8")
        raise
    failure.unlink(missing_ok=True)
    return path


def _say(message: str) -> None:
    print(f"dev: {message}", file=sys.stderr)  # noqa: T201 - a program's own words


def main(words: list[str]) -> int:
    """``CACHE ON_PATH IDENTITY [--again]``: print the path, or say why there is none."""
    cache, on_path, identity = Path(words[0]), words[1], words[2]
    os.umask(0o022)  # a VMM is nobody on the host
    try:
        cache.mkdir(parents=True, exist_ok=True)
        chosen = find(cache, on_path, identity, again="--again" in words)
    except (CannotBuild, OSError) as error:
        _say(
            f"the microVM tier will not be available: {error} (./dev setup tries again; or set "
            "STOCKADE_QEMU to a QEMU of 7.2 or later)"
        )
        return _EX_UNAVAILABLE
    print(chosen)  # noqa: T201 - what was asked for
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
