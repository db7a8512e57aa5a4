"""Runs one command on a host that was crippled on purpose, and tells what it left behind.

A script: ``crippled.py CRIPPLE COMMAND...`` prints one JSON object with the command's exit
code, its output, and the processes that outlived it. CRIPPLE is one of

``nothing``        this host as it is
``plain-user``     as root: nobody's id, no capability
``no-namespaces``  a user namespace of its own, in which no further one may be made
``few-ids``        root of a user namespace that has one id only
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

NOBODY = 65_534
CLONE_NEWUSER = 0x1000_0000
PR_SET_CHILD_SUBREAPER = 36
LINGER_SECONDS = 3.0

libc = ctypes.CDLL(None, use_errno=True)


def main(cripple: str, command: list[str]) -> None:
    """Become the reaper of everything below, so that nothing of it can hide."""
    succeeded(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=CRIPPLES[cripple],  # noqa: PLW1509 - there is one thread
    )
    out, err = process.communicate()
    end = time.monotonic() + LINGER_SECONDS
    while (left := children()) and time.monotonic() < end:
        time.sleep(0.01)
    said = {"code": process.returncode, "out": out.decode(), "err": err.decode(), "left": left}
    sys.stdout.write(json.dumps(said))


def nothing() -> None:
    """This host as it is."""


def become_plain_user() -> None:
    """No privilege at all, for whoever has some."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def forbid_namespaces() -> None:
    """The setting is one of the user namespace in which it is written, and of no other."""
    enter_user_namespace(1000)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def keep_one_id() -> None:
    """Like a container with a map of one line and one id."""
    enter_user_namespace(0)


def enter_user_namespace(inside: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    succeeded(libc.unshare(CLONE_NEWUSER))
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"{inside} {uid} 1")
    (own / "gid_map").write_text(f"{inside} {gid} 1")


def succeeded(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def children() -> list[str]:
    """The command lines of this process's children, adopted ones too. The dead are reaped."""
    left = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        if os.waitpid(int(pid), os.WNOHANG) == (0, 0):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            left.append(line.replace(b"\0", b" ").decode("utf-8", "replace"))
    return left


CRIPPLES = {
    "nothing": nothing,
    "plain-user": become_plain_user,
    "no-namespaces": forbid_namespaces,
    "few-ids": keep_one_id,
}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
