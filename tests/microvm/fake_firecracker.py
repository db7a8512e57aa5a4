#!/usr/bin/python3 -I
"""Has the shape of Firecracker's API, as far as it is documented. It is no Firecracker."""

import contextlib
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

NAME = sys.argv[0].rpartition("/")[2]
VSOCK = "/tmp/vsock"
BODIES = {
    "/machine-config": {"vcpu_count", "mem_size_mib"},
    "/boot-source": {"kernel_image_path", "initrd_path", "boot_args"},
    "/drives/root": {"drive_id", "path_on_host", "is_root_device", "is_read_only"},
    "/vsock": {"guest_cid", "uds_path"},
    "/actions": {"action_type"},
    "/vm": {"state"},
    "/snapshot/create": {"snapshot_type", "snapshot_path", "mem_file_path"},
    "/snapshot/load": {"snapshot_path", "mem_backend", "resume_vm"},
}

if "--version" in sys.argv:
    sys.stdout.write("Firecracker v1.10.1\n\nSupported snapshot data format versions: 4\n")
    raise SystemExit
if NAME == "exits":
    sys.exit("firecracker: nothing works")


def listen(first: bytes) -> None:
    """An agent that has booted, or a copy of one."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(VSOCK)
    server.listen()

    def serve() -> None:
        refused, _ = server.accept()
        refused.close()  # nobody listened yet
        wire, _ = server.accept()
        assert wire.recv(100) == b"CONNECT 1024\n"
        wire.sendall(b"OK 1073741824\n" + first)
        wire.sendall(b"GO" + wire.recv(100))

    threading.Thread(target=serve, daemon=True).start()


def answer(connection: socket.socket, status: str, body: bytes = b"") -> None:
    """As HTTP has it."""
    connection.sendall(
        f"HTTP/1.1 {status}\r\nServer: Firecracker API\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def obey(connection: socket.socket, path: str, body: dict[str, Any]) -> None:
    """What is documented of it."""
    assert set(body) == BODIES[path], body
    if path.strip("/").replace("/", "-") == NAME:
        answer(connection, "400 Bad Request", b'{"fault_message": "not today\\u001b[31m"}')
        return
    if path == "/actions" and NAME != "never-listens":
        listen(b".")
    if path == "/snapshot/create":
        for key in ("snapshot_path", "mem_file_path"):
            with Path(body[key]).open("r+b") as file:
                file.write(key.encode())
    if path == "/snapshot/load":
        assert Path(body["snapshot_path"]).read_bytes() == b"snapshot_path"
        with Path(body["mem_backend"]["backend_path"]).open("rb") as file:
            assert file.read(13) == b"mem_file_path"
        listen(b"")
    answer(connection, "204 No Content")


api = socket.socket(socket.AF_UNIX)
api.bind(sys.argv[sys.argv.index("--api-sock") + 1])
api.listen()
os.write(1, b"the guest's console\n")
while True:
    connection, _ = api.accept()
    if NAME == "mute":
        threading.Event().wait()
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(65536)
    head, _, rest = request.partition(b"\r\n\r\n")
    size = int(head.rpartition(b"Content-Length: ")[2])
    while len(rest) < size:
        rest += connection.recv(65536)
    if NAME == "floods":
        with contextlib.suppress(OSError):
            connection.sendall(b"x" * 100_000)
    elif NAME == "long-body":
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\n")
    elif NAME == "bad-json":
        answer(connection, "400 Bad Request", b"[" * 60_000)
    elif NAME != "hangs-up":
        obey(connection, head.split()[1].decode(), json.loads(rest))
    connection.close()
