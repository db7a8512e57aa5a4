"""Finds gVisor's program, ``runsc``, and makes sure that it is one that will do."""

import os
import re
import selectors
import shutil
import signal
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from stockade.port import Unavailable

VARIABLE = "STOCKADE_RUNSC"

# gVisor's releases are dates. Debian 12's, of 2022, knows the slow ptrace platform only, and
# nothing between that one and this was ever tested. tools/get-runsc demands the same.
OLDEST = 20240729

# It takes 0.03 s on an idle machine.
PATIENCE = 10.0
# It says two short lines.
MOST_BYTES = 4096

# The makers' "release-20240729.0", Debian's "0.0~20240729.0".
RELEASE = re.compile(rb"runsc version [\w.~+-]*?((20\d{6})[\w.~+-]*)\n")


@dataclass(frozen=True, slots=True)
class Runsc:
    """A runsc that was tried."""

    path: Path
    """Absolute."""
    version: str
    """Like ``20240729.0``."""


def find_runsc() -> Runsc:
    """Take the one that ``STOCKADE_RUNSC`` names, else the one on ``PATH``, and try it.

    Raises :class:`~stockade.port.Unavailable`, which says what to do, if it will not do.
    """
    # Set and empty is not set, as for other variables that hold a path.
    if named := os.environ.get(VARIABLE):
        path, called = Path(named).absolute(), f"{VARIABLE} points to {named}"
    elif found := shutil.which("runsc"):
        path, called = Path(found).absolute(), f"PATH has {found}"
    else:
        raise _unavailable(f"there is no runsc: {VARIABLE} is not set and PATH has none")
    _check_file(path, called)
    said = _ask(path, called)
    release = RELEASE.match(said)
    if release is None:
        line = said.split(b"\n", maxsplit=1)[0][:80].decode("ascii", "backslashreplace")
        raise _unavailable(f"{called}, but its --version names no release of gVisor: {line!r}")
    version = release[1].decode("ascii")
    if int(release[2]) < OLDEST:
        raise _unavailable(
            f"{called}, but that is gVisor {version}, and Stockade was never tested with one "
            f"before {OLDEST}: old ones lack the systrap platform"
        )
    return Runsc(path, version)


def _unavailable(fact: str) -> Unavailable:
    remedy = (
        f"in a clone of Stockade, ./dev setup gets one where {VARIABLE} is not set; else install "
        f"gVisor {OLDEST} or later and let {VARIABLE} hold the path of its runsc"
    )
    return Unavailable(f"{fact}; {remedy}")


def _check_file(path: Path, called: str) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _unavailable(f"{called}, but it cannot be looked at: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise _unavailable(f"{called}, but that is no regular file")
    if not os.access(path, os.X_OK):
        raise _unavailable(f"{called}, but this user may not execute it")


def _ask(path: Path, called: str) -> bytes:
    """Run ``runsc --version``, which may be any program at all: bounded in time and in bytes."""
    deadline = time.monotonic() + PATIENCE
    try:
        # A session of its own, so that whatever it starts can be ended with it.
        process = subprocess.Popen(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise _unavailable(f"{called}, but it cannot be executed: {error.strerror}") from error
    with process:
        try:
            said = _read(process, deadline)
            if len(said) > MOST_BYTES:
                raise _unavailable(f"{called}, but its --version says more than a version")
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise _unavailable(
                f"{called}, but its --version did not end within {PATIENCE:g} s"
            ) from error
        finally:
            # Not yet waited for, the number is still its own.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    if code:
        raise _unavailable(f"{called}, but its --version failed with {code}")
    return said


def _read(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """All that it prints until it closes its output, or more than ``MOST_BYTES``."""
    assert process.stdout is not None
    output = process.stdout.fileno()
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0 and selector.select(left):
            piece = os.read(output, MOST_BYTES)
            if not piece:
                return said
            said += piece
            if len(said) > MOST_BYTES:
                return said
    raise subprocess.TimeoutExpired(process.args, PATIENCE)
