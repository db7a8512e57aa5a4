"""Connects to a socket of the host that has no place in the file system."""

import socket

from stockade.cli.attack.programs.kit import FACTS, refused, run


def attack() -> None:
    name = "\0" + FACTS["abstract"]
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        refused("connect", lambda: socket.socket(socket.AF_UNIX, kind).connect(name))
    refused(
        "a bus of the host",
        lambda: socket.socket(socket.AF_UNIX).connect("/run/dbus/system_bus_socket"),
    )


if __name__ == "__main__":
    run(attack)
