"""Two processes compute without end."""

import os
import time

from stockade.cli.attack.programs.kit import reached


def attack() -> None:
    os.fork()
    while True:
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        reached(time.process_time())


if __name__ == "__main__":
    attack()
