"""Asking a program that was found on the host who it is. It may be any program at all."""

import os
import selectors
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stockade.port import Unavailable

# Those that are asked take a tenth of a second, on an idle machine, and say two short lines.
PATIENCE = 10.0
MOST_BYTES: Final = 4096

Refuse = Callable[[str], Unavailable]
"""Makes a fact a refusal that says what to do, too."""


def find_program(variable: str, name: str, refuse: Refuse) -> tuple[Path, str]:
    """The program that the variable names, else the one on ``PATH``; and how that is said.

    Raises what ``refuse`` makes of the reason.
    """
    # Set and empty is not set, as for other variables that hold a path.
    if named := os.environ.get(variable):
        path, called = Path(named).absolute(), f"{variable} points to {named}"
    elif found := shutil.which(name):
        path, called = Path(found).absolute(), f"PATH has {found}"
    else:
        raise refuse(f"there is no {name}: {variable} is not set and PATH has none")
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise refuse(f"{called}, but it cannot be looked at: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise refuse(f"{called}, but that is no regular file")
    if not os.access(path, os.X_OK):
        raise refuse(f"{called}, but this user may not execute it")
    return path, called


def ask_version(path: Path, called: str, refuse: Refuse) -> bytes:
    """What it says to ``--version``: bounded in time and in bytes."""
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
        raise refuse(f"{called}, but it cannot be executed: {error.strerror}") from error
    with process:
        try:
            said = _read(process, deadline)
            if len(said) > MOST_BYTES:
                raise refuse(f"{called}, but its --version says more than a version")
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise refuse(
                f"{called}, but its --version did not end within {PATIENCE:g} s"
            ) from error
        finally:
            # Not yet waited for, the number is still its own.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    if code:
        raise refuse(f"{called}, but its --version failed with {code}")
    return said


def first_line(said: bytes) -> str:
    """A piece of it to be shown, with nothing in it that a terminal would obey."""
    return repr(said.split(b"\n", maxsplit=1)[0][:80].decode("ascii", "backslashreplace"))


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
