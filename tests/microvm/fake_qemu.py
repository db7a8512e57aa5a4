#!/usr/bin/python3 -I
"""Stands in for QEMU, and misbehaves as its own name says. Python of the host: a jail has /usr."""

import json
import os
import select
import signal
import socket
import sys
import time

NAME = sys.argv[0].rpartition("/")[2]
VERSION = {"major": 10, "minor": 0, "micro": 2}
STATE = b"STATE" * 20_000
KNOWN = ("qmp_capabilities", "migrate-set-capabilities", "getfd", "migrate", "migrate-incoming")

if "--version" in sys.argv:
    sys.stdout.write("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright\n")
    raise SystemExit
if NAME == "exits":
    sys.exit("qemu: nothing\nworks\033[31m here")

wire = socket.socket(fileno=0)
control = socket.socket(fileno=1)
console = socket.socket(fileno=int(sys.argv[sys.argv.index("-serial") - 1].rpartition("=")[2]))
restoring = "-incoming" in sys.argv
descriptor = -1


def say(**message: object) -> None:
    """One line of QMP."""
    control.sendall(json.dumps(message).encode() + b"\r\n")


def event(name: str, **data: object) -> None:
    """Something happened."""
    say(event=name, data=data, timestamp={"seconds": 1, "microseconds": 2})


def never() -> None:
    """Hang."""
    while True:
        time.sleep(60)


def obey(command: str, arguments: dict[str, str], number: int) -> None:
    """What a QEMU does, or does not."""
    if command == NAME:
        say(error={"class": "GenericError", "desc": "not today\033[31m"}, id=number)
        return
    assert command in KNOWN, command
    say(**{"return": {}}, id=number)
    if command == "migrate":
        if NAME == "saves-nothing":
            event("MIGRATION", status="failed")
            return
        if NAME == "saves-too-much":
            while True:
                os.write(descriptor, bytes(1 << 20))
        os.write(descriptor, STATE)
        event("MIGRATION", status="active")
        event("STOP")
        event("MIGRATION", status="completed")
    if command == "migrate-incoming":
        if NAME == "dies-restoring":
            os.kill(os.getpid(), signal.SIGKILL)
        if NAME == "never-resumes":
            never()
        source = int(arguments["uri"].removeprefix("fd:"))
        state = b""
        while piece := os.read(source, 65536):
            state += piece
        if state != STATE:
            sys.exit("qemu: load of migration failed: Invalid argument")
        event("RESUME")


if NAME == "floods-stderr":
    os.write(2, b"x" * (4 << 20) + b"\nlast words\n")
if NAME == "floods-console":
    console.setblocking(False)
    for _ in range(10_000):
        try:
            console.send(b"y" * 4096)
        except BlockingIOError:
            break
if NAME == "panics":
    console.sendall(b"\033[2JOut of memory: Killed process 7\r\nKernel panic - not syncing\r\n")
    raise SystemExit(1)
if not restoring:
    if NAME == "hangs":
        never()
    wire.sendall(b"Segfault" if NAME == "garbage" else b".")
if NAME == "mute":
    never()
if NAME == "endless-line":
    while True:
        control.sendall(b"x" * 65536)
if NAME == "endless-events":
    say(QMP={"version": {"qemu": VERSION, "package": ""}, "capabilities": []})
    while True:
        event("BALLOON_CHANGE", actual=1)
if NAME == "other-version" and restoring:
    VERSION["minor"] = 1
say(QMP={"version": {"qemu": VERSION, "package": "Fake"}, "capabilities": ["oob"]})

lines = b""
go_ahead = b""
while not go_ahead:
    ready = select.select([wire, control], [], [])[0]
    if control in ready:
        data, descriptors, _, _ = socket.recv_fds(control, 65536, 4)
        descriptor = (descriptors or [descriptor])[0]
        if not data:
            select.select([wire], [], [])  # nobody tells it anything any more
        lines += data
        *complete, lines = lines.split(b"\n")
        for line in complete:
            body = json.loads(line)
            obey(body["execute"], body["arguments"], body["id"])
    if wire in ready:
        go_ahead = wire.recv(100)
wire.sendall(b"GO" + go_ahead)
never()
