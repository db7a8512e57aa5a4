"""Finds gVisor's program, ``runsc``, and makes sure that it is one that will do."""

import re
from dataclasses import dataclass
from pathlib import Path

from stockade.executor.asking import ask_version, find_program, first_line
from stockade.port import Unavailable

VARIABLE = "STOCKADE_RUNSC"

# gVisor's releases are dates. Debian 12's, of 2022, knows the slow ptrace platform only, and
# nothing between that one and this was ever tested. tools/get-runsc demands the same.
OLDEST = 20240729

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
    path, called = find_program(VARIABLE, "runsc", _unavailable)
    said = ask_version(path, called, _unavailable)
    release = RELEASE.match(said)
    if release is None:
        raise _unavailable(
            f"{called}, but its --version names no release of gVisor: {first_line(said)}"
        )
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
