"""Reaches for the metadata service of a cloud, by many spellings, and asks a name server."""

import socket
from typing import Any, Tuple

from stockade.cli.attack.programs.kit import CONTROL, expect, refused, run

SPELLINGS = (
    "169.254.169.254", "2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "169.254.43518",
    "169.16689662", "\u2460\u2465\u2468.\u2461\u2464\u2463.\u2460\u2465\u2468.\u2461\u2464\u2463",
    "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "fd00:ec2::254",
    "100.100.100.200", "168.63.129.16", "169.254.170.2", "192.0.0.192", "10.0.0.1", "192.168.0.1",
    "172.17.0.1", "8.8.8.8", "1.1.1.1", "2606:4700:4700::1111",
)  # fmt: skip


def attack() -> None:
    for host in SPELLINGS:
        refused("a way to " + host, lambda: _route(host))
        if not CONTROL:
            refused("connect to " + host, lambda: _connect(host))
    if not CONTROL:
        for name in ("metadata.google.internal", "example.com", "host.docker.internal"):
            try:
                found: object = socket.getaddrinfo(name, 80)
                expect("look up " + name, False, found)
            except socket.gaierror as error:
                expect("look up " + name, True, error.strerror)


def _address(host: str) -> "tuple[int, Tuple[Any, ...]]":
    family, _, _, _, address = socket.getaddrinfo(host, 80)[0]
    return family, address


def _route(host: str) -> object:
    """Connecting a datagram socket sends nothing; it succeeds where there is a route."""
    family, address = _address(host)
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        return sock.getsockname()


def _connect(host: str) -> object:
    family, address = _address(host)
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(2)
        sock.connect(address)
        return sock.getpeername()


if __name__ == "__main__":
    run(attack)
