"""Leaves what is no regular file of its own where files are asked for."""

import os
import socket

from stockade.cli.attack.programs.kit import expect, run


def attack() -> None:
    os.mkfifo("fifo")
    socket.socket(socket.AF_UNIX).bind("socket")
    os.mkdir("folder")
    with open("one", "w") as file:
        file.write("two names")
    os.link("one", "two")
    with open("secret", "w") as file:
        file.write("unreadable")
    os.chmod("secret", 0)
    expect("all were made", True)


if __name__ == "__main__":
    run(attack)
