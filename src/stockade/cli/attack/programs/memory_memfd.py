"""Fills files that have no name, and so no place on a disk that is counted."""

import os

from stockade.cli.attack.programs.kit import reached, run

MIB = 1 << 20


def attack() -> None:
    piece = b"x" * MIB
    for count in range(24):
        file = os.memfd_create("hog")
        for _ in range(16):
            os.write(file, piece)
        reached((count + 1) * 16 * MIB)


if __name__ == "__main__":
    run(attack)
