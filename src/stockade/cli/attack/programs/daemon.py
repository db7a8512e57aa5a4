"""Leaves a daemon behind: its own session, no parent, deaf to signals, and ends with 0."""

import os
import signal
import time

from stockade.cli.attack.programs.kit import expect, run


def attack() -> None:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            time.sleep(60)
        os._exit(0)
    os.waitpid(pid, 0)
    expect("a daemon was left behind", True, "the host looks for it")


if __name__ == "__main__":
    run(attack)
