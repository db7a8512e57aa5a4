"""Stops itself, so that no time of its own passes; a child tells how long that lasts."""

import os
import signal
import time

from stockade.cli.attack.programs.kit import children, reached


def watch(_: int) -> None:
    began = time.monotonic()
    while True:
        time.sleep(0.1)
        reached(time.monotonic() - began)


def attack() -> None:
    children(1, watch)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


if __name__ == "__main__":
    attack()
