"""Looks for descriptors that leaked in, and for a folder of the host behind one (CVE-2024-21626)."""

import os
import re
import subprocess

from stockade.cli.attack.programs.kit import REPORT, expect, refused, run


def attack() -> None:
    listing = os.open("/proc/self/fd", os.O_RDONLY)
    for name in os.listdir(listing):
        number = int(name)
        if number == listing:
            continue
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        plain = re.fullmatch(r"pipe:\[\d+\]|/dev/null|/dev/pts/\d+|socket:\[\d+\]", target)
        expect("descriptor %d" % number, number <= 3 and plain, target)
    os.close(listing)
    for number in range(4, 32):
        if number != REPORT:
            refused("enter %d" % number, lambda: os.chdir("/proc/self/fd/%d/../../.." % number))
    told = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True, check=False)
    # ls holds one more of its own, by which it lists them.
    expect("a program that it starts", told.stdout.split() == ["0", "1", "2", "3"], told.stdout)
    here = os.getcwd()
    expect("the folder is the sandbox's own", here == "/workspace", here)


if __name__ == "__main__":
    run(attack)
