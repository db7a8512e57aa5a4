"""Leaves a tree that is hard to delete: 4,096 levels deep, full of links, closed folders."""

import os

from stockade.cli.attack.programs.kit import expect, run


def attack() -> None:
    top = os.getcwd()
    for _ in range(4096):
        os.mkdir("d")
        os.chdir("d")
    os.symlink("/", "root")
    os.chdir(top)
    for number in range(2000):
        os.symlink("/usr" if number % 2 else "../..", "link-%d" % number)
    os.mkdir("closed")
    with open("closed/file", "w") as file:
        file.write("x")
    os.chmod("closed", 0)
    expect("the tree was made", True)


if __name__ == "__main__":
    run(attack)
