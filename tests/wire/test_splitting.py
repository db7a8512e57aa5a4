"""However the byte stream is split, it means the same."""

import time
import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.executor.wire import (
    Closed,
    Connection,
    Data,
    Event,
    Granted,
    Hello,
    Reset,
    WireViolation,
)

from .guest_bytes import DATA, close, credit, data, frame, greeted, hello, reset

STREAM = b"".join(
    [
        hello({"version": 1, "receipt": {"uid": 0}}),
        data(1, b"a"),
        data(2, bytes(range(256)) * 256),
        credit(3, 131_072),
        data(2, b"b" * 300),
        close(1),
        data(3, b"c" * 70),
        reset(3, "gone — 終"),
        close(2),
    ]
)
EVENTS: list[Event] = [
    Hello({"version": 1, "receipt": {"uid": 0}}),
    Data(1, b"a"),
    Data(2, bytes(range(256)) * 256),
    Granted(3),
    Data(2, b"b" * 300),
    Closed(1),
    Data(3, b"c" * 70),
    Reset(3, "gone — 終"),
    Closed(2),
]


def opened() -> Connection:
    connection = Connection()
    connection.open("test", span=3)
    connection.outgoing()
    return connection


def as_bytes(piece: bytes) -> bytes:
    return piece


def as_view(piece: bytes) -> memoryview:
    return memoryview(bytearray(piece))


def test_the_whole_stream_at_once() -> None:
    # One read of everything gives every event in order.
    assert opened().receive(STREAM) == EVENTS


@pytest.mark.parametrize("kind", [as_bytes, as_view])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 8, 13, 4096, 65_536, 65_543])
def test_reads_of_one_size(size: int, kind: Callable[[bytes], bytes | memoryview]) -> None:
    # Fixed read sizes, single bytes included, give the same events.
    connection = opened()
    events = []
    for start in range(0, len(STREAM), size):
        events += connection.receive(kind(STREAM[start : start + size]))
    assert events == EVENTS


def test_a_view_may_be_overwritten_after_receive() -> None:
    # Whoever reads into one buffer again and again does not change what was kept of it.
    connection = opened()
    buffer = bytearray(1000)
    events = []
    for start in range(0, len(STREAM), 1000):
        piece = STREAM[start : start + 1000]
        buffer[: len(piece)] = piece
        events += connection.receive(memoryview(buffer)[: len(piece)])
        buffer[:] = b"\xff" * 1000
    assert events == EVENTS


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, len(STREAM)), max_size=60), st.booleans())
def test_any_splitting(cuts: list[int], view: bool) -> None:
    # Any cuts, empty reads among them, give the same events.
    connection = opened()
    edges = [0, *sorted(cuts), len(STREAM)]
    events = []
    for start, stop in pairwise(edges):
        events += connection.receive((as_view if view else as_bytes)(STREAM[start:stop]))
    assert events == EVENTS


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=40), st.integers(0, 200), st.lists(st.integers(0, 240), max_size=8))
def test_a_violation_does_not_depend_on_the_splitting(
    noise: bytes, place: int, cuts: list[int]
) -> None:
    # The first thing wrong in the stream is what is reported, wherever reads end.
    stream = hello() + b"".join(data(1 + i % 3, bytes(i)) for i in range(1, 20))
    stream = stream[:place] + noise + stream[place:]

    def outcome(pieces: list[bytes]) -> str:
        connection = opened()
        try:
            for piece in pieces:
                connection.receive(piece)
        except WireViolation as violation:
            return str(violation)
        return repr(connection)

    edges = [0, *sorted(min(each, len(stream)) for each in cuts), len(stream)]
    assert outcome([stream]) == outcome([stream[a:b] for a, b in pairwise(edges)])


def test_single_bytes_cost_no_memory_and_no_quadratic_time() -> None:
    # A frame that trickles in is held in little more than its size, at linear cost.
    stream = data(1, bytes(65_536))
    connection = greeted(1)
    tracemalloc.start()
    for byte in stream[:-1]:
        connection.receive(bytes([byte]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 65_536
    assert "65542 of a frame" in repr(connection)

    connection = greeted(1)
    pieces = [bytes([byte]) for byte in stream]
    start = time.process_time()
    for piece in pieces:
        connection.receive(piece)
    assert time.process_time() - start < 2


def test_a_header_alone_reserves_nothing() -> None:
    # The announcement of a large frame allocates no room for it.
    connection = greeted(1)
    beginning = frame(DATA, 1, bytes(65_536))[:8]
    tracemalloc.start()
    connection.receive(beginning)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_096


def test_bulk_data_is_parsed_fast() -> None:
    # 64 KiB frames in 64 KiB reads go far faster than a pipe delivers (floor for slow machines).
    connection = greeted(1)
    stream = data(1, bytes(65_536)) * 8
    reads = [stream[start : start + 65_536] for start in range(0, len(stream), 65_536)]
    start = time.process_time()
    for _ in range(100):
        for read in reads:
            for event in connection.receive(read):
                assert isinstance(event, Data)
                connection.consumed(1, len(event.data))
        connection.outgoing()
    assert 800 * 65_536 / (time.process_time() - start) > 50e6
