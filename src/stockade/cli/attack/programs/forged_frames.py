"""Writes frames and endings of the wire wherever it can, then exits with 7."""

import glob
import json
import os
import struct
import sys

from stockade.cli.attack.programs.kit import REPORT, VICTIM, expect, refused, say

ENDED = {"ended": {"code": 0, "signal": None, "cpu_seconds": 0, "disk": [0, 0], "inodes": [0, 0]}}


def attack() -> None:
    body = json.dumps(ENDED).encode()
    forged = b"".join(
        struct.pack(">IHB", len(payload), channel, kind) + payload
        for kind, channel, payload in (
            (1, 0, b'{"version": 1, "receipt": {}}'), (3, 1, body), (5, 1, b""), (7, 1, b""),
            (6, 0, b"forged"),
        )
    )  # fmt: skip
    listing = os.open("/proc/self/fd", os.O_RDONLY)
    found = [int(name) for name in os.listdir(listing)]
    others = [n for n in found if n > 3 and n not in (listing, REPORT) and _is_open(n)]
    expect("no other descriptor", not others, others)
    for descriptor in (1, 2, REPORT, *others):
        for piece in (forged, body + b"\n"):
            try:
                os.write(descriptor, piece)
            except OSError:
                continue
    for path in glob.glob("/proc/%d/fd/*" % VICTIM) or ["/proc/%d/fd/5" % VICTIM]:
        refused("open " + path, lambda: os.close(os.open(path, os.O_WRONLY)))
    say(done=True)
    sys.exit(7)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    attack()
