"""Floods the egress proxy: more connections than it takes, half requests, endless headers."""

import socket
import time

from stockade.cli.attack.programs.kit import expect, ready, run

_HALVES = (b"", b"C", b"CONNECT a.example:443 HT", b"\5", b"\5\1\0\5\1\0\3\xffa", b"\0" * 4096)


def attack() -> None:
    opened = []
    for number in range(200):
        each = socket.create_connection(("127.0.0.1", 3128), timeout=5)
        each.setblocking(False)
        opened.append(each)
        try:
            each.send(_HALVES[number % len(_HALVES)])
        except OSError:
            pass
    expect("connections are held by the kernel", len(opened) == 200, len(opened))
    ready()
    # Headers without end, on those that are taken.
    line = b"X-Filler: " + b"x" * 60_000 + b"\r\n"
    sent = 0
    for each in opened[:64]:
        try:
            each.send(b"GET http://a.example/ HTTP/1.1\r\n")
            for _ in range(50):
                sent += each.send(line)
        except OSError:
            pass
    expect("headers end somewhere", sent < 64 * 50 * len(line), sent)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for each in opened[:64]:
            try:
                each.send(b"x")
            except OSError:
                pass
        time.sleep(0.05)


if __name__ == "__main__":
    run(attack)
