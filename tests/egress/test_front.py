"""What a guest says first."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.egress.answers import Refusal
from stockade.egress.front import Asked, Front, Kind, Reply


def fed(data: bytes, size: int = 1) -> tuple[Asked | None, bytes, Front]:
    """What is asked in the end, what was replied on the way."""
    front = Front()
    replied = b""
    for at in range(0, len(data), size):
        front.receive(data[at : at + size])
        while (step := front.next()) is not None:
            if isinstance(step, Reply):
                replied += step.data
                continue
            front.receive(data[at + size :])
            return step, replied, front
    return None, replied, front


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("data", "kind", "where", "rest"),
    [
        (b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\nxy", Kind.CONNECT,
         "a.example:443", b"xy"),
        (b"CONNECT [2606:4700::1]:443 HTTP/1.0\r\n\r\n", Kind.CONNECT, "[2606:4700::1]:443", b""),
        (b"GET http://a.example/ HTTP/1.1\r\n", Kind.HTTP, "None",
         b"GET http://a.example/ HTTP/1.1\r\n"),
        (b"CONNECTED x", Kind.HTTP, "None", b"CONNECTED x"),
        (b"\x05\x01\x00\x05\x01\x00\x03\x09a.example\x01\xbbxy", Kind.SOCKS, "a.example:443",
         b"xy"),
        (b"\x05\x02\x02\x00\x05\x01\x00\x01\x08\x08\x08\x08\x00\x50", Kind.SOCKS, "8.8.8.8:80",
         b""),
        (b"\x05\x01\x00\x05\x01\x00\x04" + bytes(15) + b"\x01\x00\x50", Kind.SOCKS, "[::1]:80",
         b""),
    ],
)  # fmt: skip
def test_asked(data: bytes, kind: Kind, where: str, rest: bytes, size: int) -> None:
    asked, _, front = fed(data, size)
    assert asked is not None
    assert (asked.kind, str(asked.destination), front.rest) == (kind, where, rest)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00", 400),
        (b"\x16\x03\x01", 400),
        (b"\x04\x01\x00\x50\x08\x08\x08\x08\x00", 400),
        (b"\r\nCONNECT a.example:443 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a.example:443 HTTP/1.1\n\n", 400),
        (b"CONNECT a.example:443 HTTP/2.0\r\n\r\n", 400),
        (b"CONNECT  a.example:443 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a.example:443\r\n\r\n", 400),
        (b"CONNECT a.example:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\n", 400),
        (b"CONNECT a.example:443 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n", 400),
        (b"CONNECT a.example:443 HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"CONNECT a.example:443 HTTP/1.1\r\nHost : a.example\r\n\r\n", 400),
        (b"CONNECT a.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n", 403),
        (b"CONNECT user:pw@a.example:443 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT a.example HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT a.example:0 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT http://a.example:443/ HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT 2852039166:80 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT 0xA9FEA9FE:80 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT 0251.0376.0251.0376:80 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT a.example:443 HTTP/1.1\r\nx: " + b"x" * 70_000, 431),
        (b"CONNECT a.example:443 HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"\r\n", 431),
        (b"\x05\x01\x02", 400),
        (b"\x05\x00", 400),
        (b"\x05\x01\x00\x05\x02\x00\x01\x08\x08\x08\x08\x00\x50", 501),
        (b"\x05\x01\x00\x05\x03\x00\x01\x08\x08\x08\x08\x00\x50", 501),
        (b"\x05\x01\x00\x05\x01\x01\x01\x08", 400),
        (b"\x05\x01\x00\x05\x01\x00\x02\x08", 400),
        (b"\x05\x01\x00\x05\x01\x00\x01\x08\x08\x08\x08\x00\x00", 400),
        (b"\x05\x01\x00\x05\x01\x00\x03\x00\x00\x50", 403),
        (b"\x05\x01\x00\x05\x01\x00\x03\x0a2852039166\x00\x50", 403),
        (b"\x05\x01\x00\x05\x01\x00\x03\x09a.ex\x00mple\x00\x50", 403),
        (b"\x05\x01\x00\x05\x01\x00\x03\x04\xff\xfe.a\x00\x50", 403),
    ],
)
def test_refused(data: bytes, status: int) -> None:
    with pytest.raises(Refusal) as refused:
        fed(data, 8192)
    assert refused.value.status == status
    assert refused.value.http().isascii()


@given(st.binary(max_size=400), st.sampled_from([b"", b"CONNECT ", b"\x05\x01\x00\x05\x01\x00"]))
def test_garbage(data: bytes, start: bytes) -> None:
    try:
        fed(start + data, 50)
    except Refusal as refusal:
        shown = refusal.http()
    else:
        return
    assert shown.isascii()


def test_the_seeds_of_the_fuzzer() -> None:
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, root / "fuzz/fuzz_egress.py", root / "fuzz/seeds/egress"], check=False
    )
    assert ended.returncode == 0
