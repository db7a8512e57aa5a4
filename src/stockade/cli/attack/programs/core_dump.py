"""Crashes, to have the kernel write a core file or start the host's handler for one."""

import ctypes
import glob
import os
import resource
import time

from stockade.cli.attack.programs.kit import children, expect, refuses, run


def attack() -> None:
    unlimited = (ctypes.c_uint64 * 2)(2**64 - 1, 2**64 - 1)
    zero = (ctypes.c_uint64 * 2)(0, 0)
    refuses("prlimit64", 0, resource.RLIMIT_CORE, unlimited, None)
    # Zero would let a handler run: a pipe in core_pattern ignores it, see core(5).
    for pid in children(1, lambda _: refuses("prlimit64", 0, resource.RLIMIT_CORE, zero, None)):
        os.waitpid(pid, 0)
    for number in (6, 11, 4, 8):
        (pid,) = children(1, lambda _: _crash(number))
        _, status = os.waitpid(pid, 0)
        expect("signal %d dumps nothing" % number, not os.WCOREDUMP(status), status)
    found = glob.glob("core*") + glob.glob("/tmp/core*")
    expect("no core file", not found, found)


def _crash(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(5)


if __name__ == "__main__":
    run(attack)
