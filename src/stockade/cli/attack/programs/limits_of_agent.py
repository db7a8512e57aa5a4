"""Chooses the agent's limits, and lifts its own."""

import ctypes

from stockade.cli.attack.programs.kit import VICTIM, expect, refuses, run, syscall

CPU, FSIZE, CORE, NPROC, NOFILE = 0, 1, 4, 6, 7
INFINITY = 2**64 - 1


def attack() -> None:
    one = (ctypes.c_ulong * 2)(1, 1)
    for kind in (CPU, NPROC, NOFILE, FSIZE):
        refuses("prlimit64", VICTIM, kind, one, None)
    for kind in (CPU, NPROC, NOFILE, FSIZE, CORE):
        before = _own(kind)
        if before[1] == INFINITY:  # there is nothing to lift
            continue
        more = (ctypes.c_ulong * 2)(before[1] + 4096, before[1] + 4096)
        # Refused, or without effect: the filter pretends that core dumps were set.
        try:
            syscall("prlimit64", 0, kind, more, None)
        except OSError:
            pass
        expect("its limit %d stays" % kind, _own(kind) == before, _own(kind))


def _own(kind: int) -> "tuple[int, int]":
    limit = (ctypes.c_ulong * 2)()
    syscall("prlimit64", 0, kind, None, limit)
    return limit[0], limit[1]


if __name__ == "__main__":
    run(attack)
