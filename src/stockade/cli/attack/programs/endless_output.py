"""Writes lines without end on the descriptor named by its argument."""

import os
import sys


def attack(descriptor: int) -> None:
    lines = b"again and again\n" * 4096
    while True:
        os.write(descriptor, lines)


if __name__ == "__main__":
    attack(int(sys.argv[1]))
