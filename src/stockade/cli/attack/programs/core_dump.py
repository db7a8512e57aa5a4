"""Crashes, to have the kernel write a core file or start the host's handler for one."""

import ctypes
import glob
import os
import resource
import time
from typing import Tuple

from stockade.cli.attack.programs.kit import children, expect, run, syscall


def attack() -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    # Zero would let a handler run: a pipe in core_pattern ignores it, see core(5).
    for limit in (2**64 - 1, 0):
        for pid in children(1, lambda _: _stays(limit, before)):
            os.waitpid(pid, 0)
    for number in (6, 11, 4, 8):
        (pid,) = children(1, lambda _: _crash(number))
        _, status = os.waitpid(pid, 0)
        expect("signal %d dumps nothing" % number, not os.WCOREDUMP(status), status)
    found = glob.glob("core*") + glob.glob("/tmp/core*")
    expect("no core file", not found, found)


def _stays(limit: int, before: Tuple[int, int]) -> None:
    """Refused, or without effect: the kernel's answer may be that it was done."""
    wanted = (ctypes.c_uint64 * 2)(limit, limit)
    try:
        syscall("prlimit64", 0, resource.RLIMIT_CORE, wanted, None)
    except OSError:
        pass
    now = resource.getrlimit(resource.RLIMIT_CORE)
    expect("RLIMIT_CORE stays, not %d" % limit, now == before == (1, 1), now)


def _crash(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(5)


if __name__ == "__main__":
    run(attack)
