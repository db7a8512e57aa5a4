"""Leaves links where files are asked for."""

import os

from stockade.cli.attack.programs.kit import expect, run


def attack() -> None:
    os.symlink("/etc/passwd", "absolute")
    os.symlink("../../../../../../etc/passwd", "relative")
    os.symlink("absolute", "chained")
    os.symlink("looped", "looped")
    os.symlink("/etc", "folder")
    os.symlink("/proc/self/root/etc/passwd", "proc")
    os.symlink("/dev/zero", "device")
    with open("real", "w") as file:
        file.write("real")
    os.symlink("real", "sibling")
    os.mkdir("deep")
    os.symlink("..", "deep/up")
    expect("the links were made", True)


if __name__ == "__main__":
    run(attack)
