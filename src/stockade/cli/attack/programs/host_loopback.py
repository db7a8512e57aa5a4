"""Connects to services of the host by every spelling of "this machine"."""

import socket

from stockade.cli.attack.programs.kit import FACTS, refused, run


def attack() -> None:
    hosts = [
        "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "localhost",
        "localhost.", "::1", "::", "::ffff:127.0.0.1", *FACTS["addresses"],
    ]  # fmt: skip
    for host in hosts:
        for port in FACTS["ports"]:
            refused("%s port %d" % (host, port), lambda: _connect(host, port))


def _connect(host: str, port: int) -> object:
    try:
        return socket.create_connection((host, port), timeout=2).getpeername()
    except socket.gaierror as error:
        raise PermissionError(1, str(error)) from error


if __name__ == "__main__":
    run(attack)
