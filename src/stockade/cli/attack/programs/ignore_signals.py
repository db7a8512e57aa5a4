"""Ignores and blocks every signal, and goes on."""

import signal
import time

from stockade.cli.attack.programs.kit import ready


def attack() -> None:
    every = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
    for number in every:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, every)
    ready()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    attack()
