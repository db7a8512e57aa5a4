"""Signals to another sandbox over a file of the image that both can open."""

import ctypes
import fcntl
import os
import sys

from stockade.cli.attack.programs.kit import OWN_KERNEL, expect, linger, ready, refused, run

SHARED = "/usr/bin/python3"
F_SETLEASE, F_NOTIFY, F_SET_RW_HINT = 1024, 1026, 1036
DN_ACCESS, IN_ACCESS, IN_OPEN, IN_CLOSE_NOWRITE = 1, 1, 0x20, 0x10


def attack() -> None:
    own = os.open("own", os.O_RDONLY | os.O_CREAT)
    file = os.open(SHARED, os.O_RDONLY)
    folder = os.open("/usr/bin", os.O_RDONLY)
    for name, descriptor in (("of its own", own), ("of the image", file)):
        refused("a lease on a file " + name, lambda: fcntl.fcntl(descriptor, F_SETLEASE, 0))
    refused("notice of accesses", lambda: fcntl.fcntl(folder, F_NOTIFY, DN_ACCESS))
    hint = (ctypes.c_uint64 * 1)(2)
    refused("a hint on the inode", lambda: fcntl.fcntl(file, F_SET_RW_HINT, bytes(hint)))
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init()
    for mask in (IN_ACCESS, IN_OPEN, IN_CLOSE_NOWRITE, IN_OPEN | 0x2):
        refused("a watch", lambda: _watch(libc, watch, mask))
    refused("change the times of a file", lambda: os.utime(SHARED))
    refused("an attribute", lambda: os.setxattr(SHARED, "user.stockade", b"1"), also=(95,))
    # A documented limit of the shared kernel: both see locks on an inode. Told there, and judged
    # where each sandbox has a kernel of its own.
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        expect("flock", True, "got it")
    except OSError as error:
        expect("flock", not OWN_KERNEL, "seen: " + str(error.strerror))
    if sys.argv[1:] == ["first"]:
        ready()
        linger(20)


def _watch(libc: ctypes.CDLL, watch: int, mask: int) -> int:
    if (number := libc.inotify_add_watch(watch, SHARED.encode(), mask)) < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
    return int(number)


if __name__ == "__main__":
    run(attack)
