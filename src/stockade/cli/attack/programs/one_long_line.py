"""Writes one line of a gigabyte, on the descriptor named by its argument."""

import os
import sys


def attack(descriptor: int) -> None:
    piece = b"x" * (1 << 20)
    for _ in range(1024):
        os.write(descriptor, piece)
    os.write(descriptor, b"\n")


if __name__ == "__main__":
    attack(int(sys.argv[1]))
