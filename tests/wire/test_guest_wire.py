"""The reference model by itself: what it hands out, queues, grants, and does not trip over."""

import random
import struct
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .guest_bytes import (
    CLOSE,
    CREDIT,
    DATA,
    END,
    FRAME,
    HELLO,
    OPEN,
    RESET,
    WINDOW,
    close,
    credit,
    cut,
    data,
    end,
    frame,
    hello,
    reset,
)
from .reference_guest import Wire, WireError


def opening(channel: int, span: int = 1, service: bytes = b"test\0") -> bytes:
    return frame(OPEN, channel, bytes([span]) + service)


def opened(span: int = 1) -> Wire:
    wire = Wire()
    wire.receive(opening(1, span))
    return wire


def test_events_are_handed_out_in_order() -> None:
    # One tuple per event, as the docstring says.
    stream = (
        opening(1, 2)
        + data(1, b"abc")
        + credit(2, 5)
        + close(1)
        + reset(2, "enough")
        + reset(0, "shut down")
    )
    assert Wire().receive(stream) == [
        ("open", 1, 2, "test", b""),
        ("data", 1, b"abc"),
        ("granted", 2),
        ("close", 1),
        ("reset", 2, "enough"),
        ("reset", 0, "shut down"),
    ]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 70_000), max_size=30))
def test_any_splitting_gives_the_same_events(cuts: list[int]) -> None:
    # However reads end, the host said the same.
    stream = opening(1, 2) + data(1, bytes(FRAME)) + data(2, b"abc") + credit(1, 9) + close(1)
    edges = [0, *sorted(min(each, len(stream)) for each in cuts), len(stream)]
    wire = Wire()
    events = []
    for start, stop in pairwise(edges):
        events += wire.receive(stream[start:stop])
    assert events == Wire().receive(stream)


def test_the_arguments_of_a_service_are_any_bytes() -> None:
    # They begin after the first NUL; what is in them is the service's affair.
    stream = opening(1, 1, b"get\0caf\xe9\0{}") + opening(2, 6, b"program\0")
    assert Wire().receive(stream) == [
        ("open", 1, 1, "get", b"caf\xe9\0{}"),
        ("open", 2, 6, "program", b""),
    ]


def test_hello_goes_first_and_once() -> None:
    # The receipt travels before anything else, with the version.
    wire = opened()
    wire.send(1, b"x")
    wire.hello({"uid": 0})
    assert cut(wire.outgoing()) == [
        (HELLO, 0, b'{"version":1,"receipt":{"uid":0}}'),
        (DATA, 1, b"x"),
    ]
    with pytest.raises(ValueError, match="hello was sent"):
        wire.hello({})
    with pytest.raises(ValueError, match="a receipt of"):
        Wire().hello({"x": "x" * 16_384})


def test_a_message_is_one_frame_and_waits_whole() -> None:
    # The host reads one JSON object per frame, so credit never cuts one.
    wire = opened()
    wire.send(1, bytes(WINDOW - 3))
    wire.send_json(1, {"a": "\udcff"})
    wire.outgoing()
    assert (wire.window(1), wire.queued(1)) == (0, 14)
    wire.receive(credit(1, 11))
    assert cut(wire.outgoing()) == [(DATA, 1, b'{"a":"\\udcff"}')]
    with pytest.raises(ValueError, match="a message of"):
        wire.send_json(1, {"a": "x" * FRAME})


def test_the_window_is_credit_less_what_is_queued() -> None:
    # The agent reads no more from a program than it can pass on.
    wire = opened()
    assert (wire.window(1), wire.window(2)) == (WINDOW, 0)
    wire.send(1, bytes(100))
    assert wire.window(1) == WINDOW - 100
    wire.outgoing()
    assert wire.window(1) == WINDOW - 100
    wire.send(1, bytes(WINDOW))
    assert wire.window(1) == 0
    wire.receive(credit(1, WINDOW))
    assert wire.window(1) == WINDOW - 100
    wire.close(1)
    assert wire.window(1) == 0


def test_channels_take_turns() -> None:
    # A frame each, in turn, so a full queue does not hold up the others.
    wire = opened(2)
    wire.send(1, bytes(3 * FRAME))
    wire.send(2, b"small")
    wire.close(2)
    order = [(kind, channel) for kind, channel, _ in cut(wire.outgoing())]
    assert order == [(DATA, 1), (DATA, 2), (CLOSE, 2), (DATA, 1), (DATA, 1)]


def test_credit_goes_back_in_steps_of_half_the_window_until_close() -> None:
    # Many small reads make one CREDIT frame; after CLOSE there is nothing to grant for.
    wire = opened()
    wire.receive(data(1, bytes(FRAME)) * 4)
    wire.consumed(1, 2 * FRAME - 1)
    assert wire.outgoing() == b""
    wire.consumed(1, 1)
    assert cut(wire.outgoing()) == [(CREDIT, 1, struct.pack(">I", 2 * FRAME))]
    wire.receive(close(1))
    wire.consumed(1, 2 * FRAME)
    assert wire.outgoing() == b""
    with pytest.raises(ValueError, match="1 bytes consumed of 0"):
        wire.consumed(1, 1)


@pytest.mark.parametrize("last", ["our close", "their close", "the last byte"])
def test_end_follows_both_closes_and_the_last_byte(last: str) -> None:
    # END is sent once, whichever of the three comes last, and the channel is forgotten.
    wire = opened()
    wire.receive(data(1, b"abc"))
    steps: dict[str, Callable[[], object]] = {
        "our close": lambda: wire.close(1),
        "their close": lambda: wire.receive(close(1)),
        "the last byte": lambda: wire.consumed(1, 3),
    }
    final = steps.pop(last)
    for step in steps.values():
        step()
    assert (END, 1, b"") not in cut(wire.outgoing())
    final()
    assert cut(wire.outgoing())[-1] == (END, 1, b"")
    assert repr(wire) == "<Wire ready [Channels: 0 open | Bytes: 0 queued, 0 untaken]>"


def test_a_reset_by_the_host_is_answered() -> None:
    # The answer is the last frame on the channel; what was queued is dropped.
    wire = opened()
    wire.send(1, b"never")
    assert wire.receive(reset(1, "enough")) == [("reset", 1, "enough")]
    wire.send(1, b"dropped")
    assert cut(wire.outgoing()) == [(RESET, 1, b"")]


def test_frames_that_crossed_our_reset_are_ignored() -> None:
    # The host sent them before it saw how the channel ended.
    wire = opened()
    wire.reset(1, "no such file")
    assert cut(wire.outgoing()) == [(RESET, 1, b"no such file")]
    assert wire.receive(data(1, b"x") + credit(1, 1) + close(1) + reset(1)) == []
    assert wire.outgoing() == b""
    assert wire.receive(opening(1)) == [("open", 1, 1, "test", b"")]


def test_reset_of_channel_0_says_why_there_is_no_sandbox() -> None:
    # It goes out even before HELLO, cut to what the host takes.
    wire = Wire()
    wire.reset(0, "x" * 2000)
    assert cut(wire.outgoing()) == [(RESET, 0, b"x" * 1024)]


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack(">IHB", 65_537, 1, DATA),
        struct.pack(">IHB", 2**32 - 1, 1, DATA),
        frame(DATA, 1),
        frame(CREDIT, 1, b"\0\0\0"),
        frame(CLOSE, 1, b"x"),
        frame(RESET, 1, b"x" * 1025),
        frame(0, 1),
        frame(8, 1),
        hello(),
        end(1),
        data(0, b"x"),
        close(1) + close(1),
        close(1) + data(1, b"x"),
        data(1, bytes(FRAME)) * 4 + data(1, b"x"),
        opening(1),
        opening(2, 0),
        opening(2, 9),
        opening(0),
        opening(65_535, 2),
        opening(2, 1, b""),
        opening(2, 1, b"x"),
        opening(2, 1, b"\0path"),
        opening(2, 1, b"\xff\0"),
    ],
)
def test_what_breaks_the_protocol_is_a_wire_error(stream: bytes) -> None:
    # The connection is dead, and stays so.
    wire = opened()
    with pytest.raises(WireError) as caught:
        wire.receive(stream)
    with pytest.raises(WireError, match=str(caught.value)):
        wire.receive(b"")


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=200), st.integers(0, 2**32))
def test_only_wire_error_escapes(noise: bytes, seed: int) -> None:
    # Noise and damaged streams raise nothing else.
    for stream in (noise, damaged(random.Random(seed))):
        wire = opened(2)
        try:
            for start in range(0, len(stream), 50):
                wire.receive(stream[start : start + 50])
                wire.outgoing()
        except WireError:
            pass


def damaged(chance: random.Random) -> bytes:
    good = [opening(3, 2), data(1, b"x" * 30), credit(2, 7), close(1), reset(2, "r"), opening(9)]
    stream = bytearray(b"".join(chance.sample(good, len(good))))
    for _ in range(chance.randrange(4)):
        stream[chance.randrange(len(stream))] = chance.randrange(256)
    return bytes(stream)
