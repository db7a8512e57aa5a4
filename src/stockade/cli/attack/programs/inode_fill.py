"""Makes empty files without end."""

import os
import sys

from stockade.cli.attack.programs.kit import reached, run


def attack() -> None:
    for number in range(int(sys.argv[1])):
        os.close(os.open("empty-%d" % number, os.O_CREAT | os.O_WRONLY))
        if number < 3000:
            reached(number + 1)


if __name__ == "__main__":
    run(attack)
