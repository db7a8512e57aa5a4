"""Lets a file grow and shrink as fast as it can while the host reads it."""

import time

from stockade.cli.attack.programs.kit import ready


def attack() -> None:
    piece = b"x" * (256 << 10)
    with open("out", "wb", 0) as file:
        file.write(piece)
        ready()
        while True:
            for _ in range(32):
                file.write(piece)
            file.seek(0)
            file.truncate(1)
            time.sleep(0.02)  # a slow host must meet it small now and then: a fetch that succeeds


if __name__ == "__main__":
    attack()
