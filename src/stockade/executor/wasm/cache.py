"""Compiled interpreters: made once for an engine and a CPU, and kept.

A compiled module is machine code, and loading one is running it. So the folder and each file in
it must be this user's own and writable by nobody else, and no folder above it everybody's to
rename things in; what is not is refused, never repaired.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import platform
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stockade.executor.namespace.image import guest_folder
from stockade.executor.wasm.engines import Engines, Module
from stockade.port import Unavailable

FOLDER_VARIABLE: Final = "STOCKADE_WASM_CACHE"
_COMPILE_SECONDS: Final = 600
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where compiled modules are kept."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "stockade", "wasm").absolute()


def compiled(engines: Engines, module: Module) -> Path:
    """The compiled module, which is made if it is not there. Takes seconds then.

    Raises :class:`Unavailable` where the folder cannot be trusted, or the compiler fails.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_own(folder)
        _check_above(folder)
        path = folder / f"{module.kind}-{_key(engines, module)}"
        if not os.path.lexists(path):
            with _locked(folder):
                if not os.path.lexists(path):
                    _compile(engines, module, path)
        _check_own(path)
    except OSError as error:
        raise Unavailable(
            f"compiled modules cannot be kept in {folder}: {error.strerror}; "
            f"name another folder by {FOLDER_VARIABLE}"
        ) from error
    return path


def _check_own(path: Path) -> None:
    status = path.lstat()
    kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a file"
    if stat.S_ISLNK(status.st_mode):
        wrong = "is a link"
    elif status.st_uid != os.geteuid():
        wrong = f"belongs to user {status.st_uid}"
    elif status.st_mode & _OTHERS_MAY_WRITE:
        wrong = f"may be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return
    raise Unavailable(
        f"{path} {wrong}: {kind} of compiled code is loaded only from user {os.geteuid()}'s own; "
        f"remove it, or name another folder by {FOLDER_VARIABLE}"
    )


def _check_above(folder: Path) -> None:
    """Who may rename what the folder is in can put another one there after it was looked at."""
    for path in {*folder.parents, *folder.resolve().parents}:
        mode = path.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise Unavailable(
                f"{path} may be written by everybody (mode {stat.S_IMODE(mode):04o}), and {folder}, "
                "in it, is to hold compiled code: close it, or name another folder by "
                f"{FOLDER_VARIABLE}"
            )


def _key(engines: Engines, module: Module) -> str:
    """Names all that the machine code depends on."""
    settings = guest_folder() / "wasm" / "engine.py"
    parts = (
        module.sha256,
        engines.wasmtime_version,
        hashlib.sha256(settings.read_bytes()).hexdigest(),
        platform.machine(),
        _cpu_features(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _cpu_features() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return " ".join(sorted(value.split()))
    return ""


def _compile(engines: Engines, module: Module, path: Path) -> None:
    """In a process of its own, into a file that appears whole or not at all."""
    _log.warning(
        "compiling %s for WebAssembly (%.0f MB), once; this takes some seconds",
        module.kind,
        module.path.stat().st_size / 1e6,
    )
    descriptor, name = tempfile.mkstemp(prefix=".compiling-", dir=path.parent)
    os.close(descriptor)
    made = Path(name)
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-I", str(guest_folder() / "wasm" / "engine.py")),
                *(str(module.path), name, module.kind, str(engines.wasmtime.parent)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_COMPILE_SECONDS,
            check=False,
        )
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise Unavailable(f"{module.path} cannot be compiled: {said[-1] if said else '?'}")
        made.chmod(0o444)  # a sandbox reads it as another user
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(path)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{module.path} was not compiled within {_COMPILE_SECONDS} s") from error
    finally:
        made.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process compiles; the others wait for it."""
    descriptor = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
