"""Leaves ten thousand dead children unburied."""

import os

from stockade.cli.attack.programs.kit import reached, run


def attack() -> None:
    for number in range(10_000):
        if os.fork() == 0:
            os._exit(0)
        reached(number + 1)


if __name__ == "__main__":
    run(attack)
