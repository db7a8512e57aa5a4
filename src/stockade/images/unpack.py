"""Packages become files. No script of theirs is run."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from stockade.images.errors import CannotBuild

_SECONDS = 300.0
# Debian's folders that are one with those of /usr; packages before Debian 13 still use the links.
_MERGED = ("bin", "lib", "lib64", "sbin")


def unpack(packages: Iterable[Path], folder: Path) -> None:
    """Unpack into one tree: as the caller's own files, without set-id bits."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _MERGED:
        (folder / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"usr/{name}")
    for package in packages:
        _unpack(package, folder)


def _unpack(package: Path, folder: Path) -> None:
    # dpkg-deb -x would put folders where our links are.
    keeping = ("--keep-directory-symlink", "--no-same-owner", "--no-same-permissions")
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(package)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as reading:
        try:
            done = subprocess.run(
                ["tar", "-x", "-f", "-", *keeping, "-C", str(folder)],
                stdin=reading.stdout,
                capture_output=True,
                timeout=_SECONDS,
                umask=0o022,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            reading.kill()
            raise CannotBuild(f"{package} took longer than {_SECONDS:.0f} s to unpack") from error
        assert reading.stdout
        assert reading.stderr
        reading.stdout.close()
        complaint = reading.stderr.read()
    if reading.returncode or done.returncode:
        said = (complaint + done.stderr).decode(errors="replace").strip().splitlines()
        raise CannotBuild(f"{package} cannot be unpacked: {said[-1] if said else 'it failed'}")
