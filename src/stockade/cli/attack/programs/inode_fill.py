"""Makes empty files without end."""

import os

from stockade.cli.attack.programs.kit import reached, run


def attack() -> None:
    for number in range(3000):
        os.close(os.open("empty-%d" % number, os.O_CREAT | os.O_WRONLY))
        reached(number + 1)


if __name__ == "__main__":
    run(attack)
