"""Asks the egress proxy for the host, for metadata services and for what else is not public."""

import socket
import struct

from stockade.cli.attack.programs.kit import FACTS, expect, refused, run

_HOSTS = [
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "localhost",
    "LOCALHOST.", "localhost.localdomain", "ip6-localhost", "[::1]", "[::]", "[::ffff:127.0.0.1]",
    "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::1%25lo]", "127.0.0.1.",
    "169.254.169.254", "169.254.43518", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376",
    "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[fd00:ec2::254]",
    "metadata.google.internal", "Metadata.Google.Internal.", "100.100.100.200", "168.63.129.16",
    "allowed@127.0.0.1", "127.0.0.1#@allowed.example", "\uff11\uff12\uff17.0.0.1",
    "127\u30020\u30020\u30021",
]  # fmt: skip


def attack() -> None:
    hosts = [*_HOSTS, *(_bracketed(each) for each in FACTS["addresses"])]
    for host in hosts:
        for port in (*FACTS["ports"], 80):
            where = "%s:%d" % (host, port)
            for way, ask in (("CONNECT", _connect), ("GET", _get), ("SOCKS", _socks)):
                answer = ask(host, port)
                expect("%s %s" % (way, ascii(where)), _is_refusal(way, answer), answer[:60])
            with_other_host = _ask(
                "GET http://allowed.example/ HTTP/1.1\r\nHost: %s\r\n\r\n" % where
            )
            expect("Host " + ascii(where), _is_refusal("GET", with_other_host), with_other_host)
    # Without the proxy there is no way at all.
    for port in FACTS["ports"]:
        refused("direct %d" % port, lambda: socket.create_connection(("127.0.0.1", port), 2))


def _bracketed(address: str) -> str:
    return "[%s]" % address if ":" in address else address


def _is_refusal(way: str, answer: bytes) -> bool:
    if way == "SOCKS":
        return len(answer) < 2 or answer[1] != 0
    return answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))


def _connect(host: str, port: int) -> bytes:
    return _ask("CONNECT %s:%d HTTP/1.1\r\nHost: allowed.example\r\n\r\n" % (host, port))


def _get(host: str, port: int) -> bytes:
    return _ask("GET http://%s:%d/ HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (host, port, host, port))


def _socks(host: str, port: int) -> bytes:
    name = host.strip("[]").encode()
    asked = b"\5\1\0" + b"\5\1\0\3" + bytes([len(name)]) + name + struct.pack("!H", port)
    return _say(asked, 4)[2:]


def _ask(request: str) -> bytes:
    return _say(request.encode(), 60)


def _say(asked: bytes, most: int) -> bytes:
    with socket.create_connection(("127.0.0.1", 3128), timeout=8) as proxy:
        proxy.sendall(asked)
        answer = b""
        try:
            while len(answer) < most and (piece := proxy.recv(most - len(answer))):
                answer += piece
        except ConnectionResetError:
            pass
        return answer


if __name__ == "__main__":
    run(attack)
