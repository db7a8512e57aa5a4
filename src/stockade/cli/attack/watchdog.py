"""Ends what a control started: its processes, which no boundary would end, and its folder.

A process of its own, so that a runner that is killed leaves nothing: ``python -m
stockade.cli.attack.watchdog MARK FOLDER`` waits for the end of its standard input, which is the
runner's to close, and the kernel's where the runner is no more.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final

MARK_VARIABLE: Final = "STOCKADE_ATTACK_CONTROL"


def marked(mark: str) -> set[int]:
    """The processes that were started with the mark in their environment, and their children."""
    wanted, found = f"{MARK_VARIABLE}={mark}".encode(), set()
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            text = (path / "environ").read_bytes()
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if wanted in text.split(b"\0") and state not in "ZX":
            found.add(int(path.name))
    return found


def _end(mark: str) -> None:
    # Asked first: an ssh-agent, say, then takes its folder with it.
    number, seconds = signal.SIGTERM, 0.1
    while found := marked(mark):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(seconds)
        number, seconds = signal.SIGKILL, 0.02


def main() -> None:
    """See above."""
    mark, folder = sys.argv[1:]
    with contextlib.suppress(OSError):
        os.nice(-10)  # what it ends may keep every CPU busy
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the runner, whose end tells this one
    sys.stdin.buffer.read()
    _end(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
