"""Sends every signal to the agent, and to all processes at once."""

import os
import signal
import time

from stockade.cli.attack.programs.kit import CONTROL, VICTIM, expect, run


def _state() -> str:
    try:
        with open("/proc/%d/stat" % VICTIM) as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        # Covered, as gVisor's agent: that it is there is told by who may not signal it.
        try:
            os.kill(VICTIM, 0)
        except PermissionError:
            return "S"
        except OSError:
            pass
        return "gone"


def attack() -> None:
    # The one that stops comes first: the state tells whether it worked.
    for number in (signal.SIGSTOP, signal.SIGTSTP, *range(1, signal.NSIG)):
        try:
            os.kill(VICTIM, number)
        except OSError:
            continue
    time.sleep(0.2)
    expect("stop or kill the agent", _state() in "SR", "its state is " + _state())
    if not CONTROL:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            try:
                os.kill(-1, number)
            except OSError:
                pass
        time.sleep(0.2)
        expect("stop or kill all at once", _state() in "SR", "its state is " + _state())


if __name__ == "__main__":
    run(attack)
