"""Takes the proxy's port, to speak to the host in its place or to cut others off."""

import errno
import socket

from stockade.cli.attack.programs.kit import refused, run

_OPTIONS = (
    (), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,),
    (socket.SO_REUSEADDR, socket.SO_REUSEPORT),
)  # fmt: skip


def attack() -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        for options in _OPTIONS:
            refused(
                "listen at %s with %s" % (host, options),
                lambda: _listen(host, options),
                also=(errno.EADDRINUSE,),
            )


def _listen(host: str, options: "tuple[int, ...]") -> object:
    with socket.socket() as taken:
        for option in options:
            taken.setsockopt(socket.SOL_SOCKET, option, 1)
        taken.bind((host, 3128))
        taken.listen()
        return taken.getsockname()


if __name__ == "__main__":
    run(attack)
