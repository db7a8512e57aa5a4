"""Types into terminals: its own, and the one that it was given."""

import fcntl
import os
import struct

from stockade.cli.attack.programs.kit import expect, refused, run

TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541C, 0x5423


def attack() -> None:
    _, own = os.openpty()
    given = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]
    for descriptor in (own, *given):
        refused("TIOCSTI", lambda: fcntl.ioctl(descriptor, TIOCSTI, b"x"))
        refused("TIOCLINUX", lambda: fcntl.ioctl(descriptor, TIOCLINUX, b"\3"))
        refused("TIOCSETD", lambda: fcntl.ioctl(descriptor, TIOCSETD, struct.pack("i", 0)))
    for descriptor in given:
        expect("a session of its own", _session(descriptor) == os.getsid(0), os.getsid(0))
        expect("a terminal of its own", os.ttyname(descriptor).startswith("/dev/pts/"))
        number = int(os.path.basename(os.ttyname(descriptor)))
        expect("no other terminal", _others(number) == [], _others(number))


def _session(descriptor: int) -> int:
    return os.getsid(os.tcgetpgrp(descriptor))


def _others(number: int) -> "list[str]":
    return [n for n in os.listdir("/dev/pts") if n not in ("ptmx", str(number), str(number + 1))]


if __name__ == "__main__":
    run(attack)
