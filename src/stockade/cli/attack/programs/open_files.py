"""Opens files without end."""

import os

from stockade.cli.attack.programs.kit import reached, run


def attack() -> None:
    for _ in range(400):
        reached(os.open("/dev/null", os.O_RDONLY) + 1)


if __name__ == "__main__":
    run(attack)
