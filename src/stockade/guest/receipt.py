"""What the agent can prove of its own confinement, from the inside.

Facts only. The executor compares them with what the profile promises and refuses the
sandbox where one is absent.
"""

import errno
import os
import socket

# Reachable in a host's network if anything is; never contacted, only routed.
METADATA = ("169.254.169.254", 80)


def _status():
    wanted = {
        "Uid": "uids",
        "Gid": "gids",
        "CapInh": "inheritable",
        "CapPrm": "permitted",
        "CapEff": "effective",
        "CapBnd": "bounding",
        "CapAmb": "ambient",
        "NoNewPrivs": "no_new_privs",
        "Seccomp": "seccomp",
    }
    found = {}
    with open("/proc/self/status") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in wanted:
                found[wanted[name]] = value.strip()
    return found


def _mounts():
    mounts = {}
    with open("/proc/self/mountinfo") as mountinfo:
        for line in mountinfo:
            fields = line.split()
            separator = fields.index("-")
            # A later mount covers an earlier one at the same place.
            mounts[fields[4]] = [fields[separator + 1], fields[5]]
    return mounts


def _attempt(action):
    """The name of the error that ``action`` ends with; empty if it succeeds."""
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return ""


def _connect():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as attempt:
        attempt.connect(METADATA)


def _write():
    os.close(os.open("/usr/.stockade-receipt", os.O_WRONLY | os.O_CREAT, 0o600))


def _open_agent():
    os.close(os.open("/proc/1/mem", os.O_RDONLY))


def _interfaces():
    with open("/proc/self/net/dev") as devices:
        return [line.split(":")[0].strip() for line in devices if ":" in line]


def _uid_map():
    with open("/proc/self/uid_map") as uid_map:
        return uid_map.read().split()


def collect():
    """The receipt, as a JSON object."""
    receipt = _status()
    receipt["uid_map"] = _uid_map()
    receipt["mounts"] = _mounts()
    receipt["interfaces"] = _interfaces()
    receipt["connect"] = _attempt(_connect)
    receipt["write"] = _attempt(_write)
    receipt["agent_memory"] = _attempt(_open_agent)
    receipt["kernel"] = os.uname().release
    receipt["cpus"] = len(os.sched_getaffinity(0))
    return receipt
