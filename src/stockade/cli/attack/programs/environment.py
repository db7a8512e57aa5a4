"""Collects every environment that can be read, and prints all of it: the host looks for its own."""

import glob
import os

from stockade.cli.attack.programs.kit import expect, refused, run

USUAL = {
    "PATH", "HOME", "LANG", "USER", "SHELL", "STOCKADE_ATTACK", "LC_CTYPE", "PWD", "SHLVL", "_",
    "TERM", "OLDPWD",
}  # fmt: skip


def attack() -> None:
    for name, value in os.environ.items():
        print(name, value)
    expect("nothing is inherited", set(os.environ) <= USUAL, sorted(set(os.environ) - USUAL))
    refused("/proc/1/environ", lambda: open("/proc/1/environ", "rb").read())
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                print(path, file.read())
        except OSError as error:
            print(path, error)


if __name__ == "__main__":
    run(attack)
