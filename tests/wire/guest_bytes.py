"""Frames as a guest would write them, built without the code under test."""

import json
import struct

from stockade.executor.wire import Connection

HELLO, OPEN, DATA, CREDIT, CLOSE, RESET, END = range(1, 8)
WINDOW = 262_144
FRAME = 65_536


def frame(kind: int, channel: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IHB", len(payload), channel, kind) + payload


def hello(body: object = None) -> bytes:
    body = {"version": 1, "receipt": {}} if body is None else body
    return frame(HELLO, 0, json.dumps(body).encode())


def data(channel: int, payload: bytes) -> bytes:
    return frame(DATA, channel, payload)


def credit(channel: int, grant: int) -> bytes:
    return frame(CREDIT, channel, struct.pack(">I", grant))


def close(channel: int) -> bytes:
    return frame(CLOSE, channel)


def reset(channel: int, reason: str = "") -> bytes:
    return frame(RESET, channel, reason.encode())


def end(channel: int) -> bytes:
    return frame(END, channel)


def greeted(span: int = 0) -> Connection:
    """A connection after HELLO, with channels 1 to ``span`` open and their OPEN written."""
    connection = Connection()
    connection.receive(hello())
    if span:
        connection.open("test", span=span)
        connection.outgoing()
    return connection


def cut(stream: bytes) -> list[tuple[int, int, bytes]]:
    """The frames in ``stream`` as (kind, channel, payload)."""
    frames = []
    while stream:
        length, channel, kind = struct.unpack(">IHB", stream[:7])
        assert len(stream) >= 7 + length
        frames.append((kind, channel, stream[7 : 7 + length]))
        stream = stream[7 + length :]
    return frames
