"""Leaves a file that is huge by its size and holds nothing."""

import os

from stockade.cli.attack.programs.kit import CONTROL, expect, run


def attack() -> None:
    for name, size in (("fifty-gigabytes", 50 << 30), ("largest", 20 << 20)):
        with open(name, "wb") as file:
            try:
                file.truncate(size)
            except OSError as error:
                expect("a file of %d bytes" % size, True, error.strerror)
            else:
                expect("a file of %d bytes" % size, CONTROL or size < (1 << 30), "made")
    os.stat("largest")


if __name__ == "__main__":
    run(attack)
