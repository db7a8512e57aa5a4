"""Sleeps past its deadline."""

import time

from stockade.cli.attack.programs.kit import reached


def attack() -> None:
    began = time.monotonic()
    while True:
        time.sleep(0.1)
        reached(time.monotonic() - began)


if __name__ == "__main__":
    attack()
