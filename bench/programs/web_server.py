"""A small web server in a process of its own: `web_server.py [CERTIFICATE KEY]`; prints its port.

`/small` answers a few bytes, `/large/N` N zeros, one thread a connection.
"""

import socket
import ssl
import sys
import threading
from typing import Any

PIECE = bytes(262_144)


def main(arguments: list[str]) -> None:
    context = None
    if arguments:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*arguments)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, context), daemon=True).start()


def serve(connection: Any, context: Any) -> None:
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)
        received = b""
        while True:
            while b"\r\n\r\n" not in received:
                if not (piece := connection.recv(65_536)):
                    return
                received += piece
            head, _, received = received.partition(b"\r\n\r\n")
            answer(connection, head.split(b" ")[1].decode())
    except OSError:
        pass
    finally:
        connection.close()


def answer(connection: Any, path: str) -> None:
    size = int(path.rpartition("/")[2]) if path.startswith("/large/") else 2
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    while size > 0:
        connection.sendall(PIECE[:size])
        size -= len(PIECE)


if __name__ == "__main__":
    main(sys.argv[1:])
