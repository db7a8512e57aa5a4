"""Gains rights by exec or by asking: set-id programs, capabilities, ids."""

import ctypes
import os
import shutil
import subprocess

from stockade.cli.attack.programs.kit import FACTS, expect, refused, refuses, run


def attack() -> None:
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file.read().splitlines())
    expect("no new privileges", status["NoNewPrivs"].strip() == "1", status["NoNewPrivs"].strip())
    expect("a filter of calls", status["Seccomp"].strip() == "2", status["Seccomp"].strip())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        expect(name + " is empty", int(status[name], 16) == 0, status[name].strip())
    with open("/proc/self/uid_map") as file:
        inside, outside, count = map(int, file.read().split())
    # A plain user has but one id to give, and it is 0 in the namespace between, not on the host.
    foreign = outside != 0 or FACTS["plain_user"]
    expect("one id, and not root's", (inside, count) == (1000, 1) and foreign, (inside, outside))
    expect("no groups", set(os.getgroups()) <= {1000, 65534}, os.getgroups())
    for number in (0, 1, 999, 65534):
        refused("setuid %d" % number, lambda: os.setuid(number), also=(22,))  # EINVAL: not mapped
        refused("setgid %d" % number, lambda: os.setgid(number), also=(22,))
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    refuses("capset", header, (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6))
    shutil.copy("/usr/bin/id", "copy")
    os.chmod("copy", 0o6755)
    said = subprocess.run(["./copy", "-u"], capture_output=True, text=True, check=False).stdout
    expect("a set-id copy gains nothing", said.strip() == "1000", said.strip())
    for program in _set_id_programs():
        os.chmod("copy", 0o755)
        flags = os.statvfs(program).f_flag
        expect(program + " is inert", flags & os.ST_NOSUID, "nosuid")


def _set_id_programs() -> "list[str]":
    found = []
    for folder in (
        "/usr/bin",
        "/usr/sbin",
        "/usr/lib/openssh",
        "/usr/lib/dbus-1.0",
        "/usr/libexec",
    ):
        for path, _, names in os.walk(folder):
            for name in names:
                full = os.path.join(path, name)
                if os.lstat(full).st_mode & 0o6000:
                    found.append(full)
    return found


if __name__ == "__main__":
    run(attack)
