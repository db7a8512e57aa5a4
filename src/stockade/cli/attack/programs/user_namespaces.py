"""Makes namespaces of its own, in which it would be root."""

import ctypes
import os
import signal

from stockade.cli.attack.programs.kit import children, refuses, run

FLAGS = {
    "user": 0x1000_0000, "mount": 0x2_0000, "cgroup": 0x200_0000, "uts": 0x400_0000,
    "ipc": 0x800_0000, "pid": 0x2000_0000, "net": 0x4000_0000, "time": 0x80,
}  # fmt: skip


def attack() -> None:
    for pid in children(1, lambda _: _try()):
        os.waitpid(pid, 0)


def _try() -> None:
    # In a child: where it works, the process that reports must stay where it is.
    refuses("unshare", FLAGS["user"])
    for flag in FLAGS.values():
        refuses("unshare", flag)
    refuses("unshare", FLAGS["user"] | FLAGS["mount"] | FLAGS["net"] | FLAGS["pid"])
    for flag in (
        FLAGS["user"],
        FLAGS["user"] | FLAGS["net"],
        FLAGS["pid"],
        1 << 32 | FLAGS["user"],
    ):
        refuses("clone", flag | signal.SIGCHLD | 0x4000, 0, 0, 0, 0)  # CLONE_VFORK: it ends first
    arguments = (ctypes.c_uint64 * 8)(FLAGS["user"], 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    refuses("clone3", arguments, 64)
    for name in ("user", "mnt", "net", "pid"):
        refuses("setns", os.open("/proc/self/ns/" + name, os.O_RDONLY), 0)


if __name__ == "__main__":
    run(attack)
