"""Sends signals to processes of the host, by their number there."""

import os

from stockade.cli.attack.programs.kit import FACTS, refused, run, syscall


def attack() -> None:
    for pid in FACTS["host_pids"]:
        refused("signal to process %d" % pid, lambda: os.kill(pid, 0))
        refused("a handle of process %d" % pid, lambda: syscall("pidfd_open", pid, 0))
        refused("look at process %d" % pid, lambda: os.listdir("/proc/%d/fd" % pid))


if __name__ == "__main__":
    run(attack)
