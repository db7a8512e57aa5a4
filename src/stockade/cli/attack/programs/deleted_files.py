"""Fills the disk with files that have no name any more."""

import os

from stockade.cli.attack.programs.kit import reached, run

MIB = 1 << 20


def attack() -> None:
    piece = b"x" * MIB
    for count in range(1, 97):
        file = os.open("gone", os.O_RDWR | os.O_CREAT)
        os.unlink("gone")
        written = 0
        while written < MIB:
            written += os.write(file, piece[written:])
        reached(count * MIB)


if __name__ == "__main__":
    run(attack)
