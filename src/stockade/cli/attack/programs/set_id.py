"""Gains rights by exec or by asking: set-id programs, capabilities, ids."""

import ctypes
import os
import shutil
import subprocess
import time

from stockade.cli.attack.programs.kit import (
    FACTS,
    GVISOR,
    OWN_KERNEL,
    expect,
    refused,
    refuses,
    run,
    syscall,
)

PR_GET_NO_NEW_PRIVS = 39


def attack() -> None:
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file.read().splitlines())
    barred = syscall("prctl", PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
    expect("no new privileges", barred == 1, barred)
    expect("a filter of calls", status["Seccomp"].strip() == "2", status["Seccomp"].strip())
    # gVisor's kernel has no ambient set.
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", *(() if GVISOR else ("CapAmb",))):
        expect(name + " is empty", int(status[name], 16) == 0, status[name].strip())
    if not OWN_KERNEL:  # whose ids are none of the host's: that looks at its processes itself
        with open("/proc/self/uid_map") as file:
            inside, outside, count = map(int, file.read().split())
        # A plain user has but one id to give, and it is 0 in the namespace between, not on the
        # host.
        foreign = outside != 0 or FACTS["plain_user"]
        expect("one id, not root's", (inside, count) == (1000, 1) and foreign, (inside, outside))
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
    os.chmod("copy", 0o755)
    programs = _set_id_programs()
    gaining = _gaining(programs)
    for program in programs:
        # gVisor's mounts tell no such flag.
        inert = GVISOR or os.statvfs(program).f_flag & os.ST_NOSUID
        expect(
            program + " is inert", inert and program not in gaining, gaining.get(program, "no id")
        )


def _gaining(programs: "list[str]") -> "dict[str, str]":
    """Those that have another user id than ours while they wait for input, with that."""
    running = [(program, _start(program)) for program in programs if os.access(program, os.X_OK)]
    time.sleep(0.3)
    gaining = {}
    for program, process in running:
        try:
            with open("/proc/%d/status" % process.pid) as file:
                (ids,) = (line for line in file if line.startswith("Uid:"))
        except OSError:
            ids = ""
        if set(ids.split()[1:]) - {"1000"}:
            gaining[program] = ids
        process.kill()
        process.communicate()
    return gaining


def _start(program: str) -> "subprocess.Popen[bytes]":
    null = subprocess.DEVNULL
    return subprocess.Popen([program], stdin=subprocess.PIPE, stdout=null, stderr=null)


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
