"""Takes over the agent and a sibling: ptrace, their memory, their descriptors."""

import ctypes
import errno
import os
import time

from stockade.cli.attack.programs.kit import VICTIM, children, refused, refuses, run, syscall

PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206


def attack() -> None:
    (sibling,) = children(1, lambda _: time.sleep(30))
    here = ctypes.create_string_buffer(16)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(here), 16)
    for pid in (VICTIM, sibling):
        refuses("ptrace", PTRACE_SEIZE, pid, 0, 0)
        refuses("ptrace", PTRACE_ATTACH, pid, 0, 0)
        for call in ("process_vm_readv", "process_vm_writev"):
            refuses(call, pid, local, 1, local, 1, 0)
        refuses("kcmp", os.getpid(), pid, 0, 0, 0)
        refuses("pidfd_getfd", _handle(pid), 0, 0)
    # A sibling's memory belongs to the same user; the agent's does not open.
    for name in ("mem", "maps", "environ", "root", "cwd", "exe", "fd", "auxv", "stack", "syscall"):
        path = "/proc/%d/%s" % (VICTIM, name)
        refused("read " + path, lambda: _read(path))
    refused("write the agent's memory", lambda: os.open("/proc/%d/mem" % VICTIM, os.O_RDWR))


def _handle(pid: int) -> int:
    """A descriptor of the process; -1 where the kernel has none to give."""
    try:
        return syscall("pidfd_open", pid, 0)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return -1


def _read(path: str) -> object:
    if os.path.basename(path) in ("root", "cwd", "exe"):
        return os.readlink(path)
    if os.path.basename(path) == "fd":
        return [os.readlink(path + "/" + name) for name in os.listdir(path)]
    return os.read(os.open(path, os.O_RDONLY), 1)


if __name__ == "__main__":
    run(attack)
