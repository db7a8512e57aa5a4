"""Chooses the agent's limits, and lifts its own."""

import ctypes

from stockade.cli.attack.programs.kit import VICTIM, refuses, run, syscall

CPU, FSIZE, CORE, NPROC, NOFILE = 0, 1, 4, 6, 7
INFINITY = 2**64 - 1


def attack() -> None:
    one = (ctypes.c_ulong * 2)(1, 1)
    for kind in (CPU, NPROC, NOFILE, FSIZE):
        refuses("prlimit64", VICTIM, kind, one, None)
    for kind in (CPU, NPROC, NOFILE, FSIZE, CORE):
        mine = (ctypes.c_ulong * 2)()
        syscall("prlimit64", 0, kind, None, mine)
        if mine[1] == INFINITY:  # there is nothing to lift
            continue
        more = (ctypes.c_ulong * 2)(mine[1] + 4096, mine[1] + 4096)
        refuses("prlimit64", 0, kind, more, None)


if __name__ == "__main__":
    run(attack)
