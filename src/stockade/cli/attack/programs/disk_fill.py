"""Writes files everywhere it can until no more fits."""

import os

from stockade.cli.attack.programs.kit import CONTROL, reached, run

MIB = 1 << 20


def attack() -> None:
    piece = b"x" * (64 << 10)
    # On a host nobody else's disk is filled.
    places = [os.getcwd()] if CONTROL else [os.getcwd(), "/tmp", "/dev/shm", "/var/tmp"]
    total = 0
    for number in range(24):
        with open(
            "%s/fill-%d-%d" % (places[number % len(places)], os.getpid(), number), "wb", 0
        ) as file:
            for _ in range(4 * MIB // len(piece)):
                total += file.write(piece)
                reached(total)


if __name__ == "__main__":
    run(attack)
