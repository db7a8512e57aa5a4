"""Writes to the program that runs it, and to every other one that can be seen (CVE-2019-5736)."""

import errno
import glob
import os
import subprocess
import time

from stockade.cli.attack.programs.kit import expect, ready, refused, run


def attack() -> None:
    ready()
    with open("again", "w") as file:
        file.write("#!/proc/self/exe\nprint('again')\n")
    os.chmod("again", 0o755)
    try:
        subprocess.run(["./again"], capture_output=True, timeout=2, check=False)
    except (OSError, subprocess.TimeoutExpired):
        pass
    paths = ["/proc/self/exe", "/proc/1/exe", "/usr/bin/python3", "/lib64/ld-linux-x86-64.so.2"]
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        for path in (*paths, *glob.glob("/proc/[0-9]*/exe")):
            try:
                os.close(os.open(path, os.O_WRONLY))
            except OSError:
                continue
            expect("write to " + path, False, "opened")
    for path in paths:
        for flags in (os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
            refused("write to " + path, lambda: os.open(path, flags), also=(errno.ETXTBSY,))


if __name__ == "__main__":
    run(attack)
