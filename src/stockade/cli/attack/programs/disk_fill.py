"""Writes files everywhere it can until no more fits."""

import os

from stockade.cli.attack.programs.kit import reached, run

MIB = 1 << 20


def attack() -> None:
    piece = b"x" * (64 << 10)
    places = [os.getcwd(), "/tmp", "/dev/shm", "/var/tmp"]
    total = 0
    for number in range(24):
        with open("%s/fill-%d-%d" % (places[number % 4], os.getpid(), number), "wb", 0) as file:
            for _ in range(4 * MIB // len(piece)):
                total += file.write(piece)
                reached(total)


if __name__ == "__main__":
    run(attack)
