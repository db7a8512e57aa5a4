"""One sandbox writes wherever it can, another one looks for it."""

import os
import socket
import sys

from stockade.cli.attack.programs.kit import CONTROL, FACTS, expect, linger, ready, refused, run

PLACES = ("/tmp", "/dev/shm", "/var/tmp", "/workspace", "/run", "/dev")
PORT = 45_873


def attack() -> None:
    name = "stockade-" + FACTS["abstract"]
    if sys.argv[1:] == ["first"]:
        for place in PLACES:
            try:
                with open(place + "/" + name, "w") as file:
                    file.write("told")
                os.chmod(place + "/" + name, 0o666)
            except OSError:
                continue
        unix = socket.socket(socket.AF_UNIX)
        unix.bind("\0" + name)
        unix.listen()
        inet = socket.socket()
        inet.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        inet.bind(("0.0.0.0", PORT))
        inet.listen()
        expect("the scene is set", True)
        ready()
        linger(20)
        return
    for place in PLACES:
        refused("read " + place, lambda: open(place + "/" + name).read())
        if CONTROL and os.path.exists(place + "/" + name):
            os.unlink(place + "/" + name)
    refused("its socket", lambda: socket.socket(socket.AF_UNIX).connect("\0" + name))
    refused("its port", lambda: socket.create_connection(("127.0.0.1", PORT), 2))
    seen = [pid for pid in os.listdir("/proc") if pid.isdigit() and _other(pid)]
    expect("no process of another", not seen, seen)


def _other(pid: str) -> bool:
    try:
        with open("/proc/%s/cmdline" % pid, "rb") as file:
            return b"first" in file.read().split(b"\0")
    except OSError:
        return False


if __name__ == "__main__":
    run(attack)
