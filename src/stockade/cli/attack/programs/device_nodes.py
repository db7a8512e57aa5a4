"""Makes device nodes, and looks for devices that should not be there."""

import errno
import os
import stat

from stockade.cli.attack.programs.kit import GVISOR, expect, refused, run

DEVICES = {
    "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
    "urandom", "zero",
}  # fmt: skip


def attack() -> None:
    for name, kind in (("character", stat.S_IFCHR), ("block", stat.S_IFBLK)):
        for number in (os.makedev(1, 1), os.makedev(8, 0), os.makedev(254, 0), os.makedev(0, 0)):
            refused(name, lambda: os.mknod("node", kind | 0o666, number))
    found = set(os.listdir("/dev"))
    expect("no other device", found <= DEVICES, sorted(found - DEVICES))
    null = os.stat("/dev/null").st_rdev
    expect("/dev/null is itself", null == os.makedev(1, 3), null)
    # EIO: what gVisor's kernel says where there is no terminal.
    also = (errno.EIO,) if GVISOR else ()
    refused("no terminal of the host", lambda: os.open("/dev/tty", os.O_RDWR), also)


if __name__ == "__main__":
    run(attack)
