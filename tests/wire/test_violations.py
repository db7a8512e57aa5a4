"""One test per violation that docs/wire.md lists, by the gist of its sentence."""

import struct
import tracemalloc

import pytest

from stockade.executor.wire import Connection, Reset, WireViolation

from .guest_bytes import (
    CLOSE,
    CREDIT,
    DATA,
    END,
    HELLO,
    OPEN,
    RESET,
    WINDOW,
    close,
    credit,
    data,
    end,
    frame,
    greeted,
    hello,
    reset,
)


def refused(connection: Connection, stream: bytes) -> str:
    with pytest.raises(WireViolation) as caught:
        connection.receive(stream)
    return str(caught.value)


def header(length: int, channel: int, kind: int) -> bytes:
    return struct.pack(">IHB", length, channel, kind)


def test_a_length_above_the_bound_is_refused_at_the_header() -> None:
    # A header alone is enough for the refusal, and nothing of that size is allocated.
    for length in (65_537, 2**31, 2**32 - 1):
        connection = greeted(1)
        tracemalloc.start()
        sentence = refused(connection, header(length, 1, DATA))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sentence == f"a frame of {length} bytes; at most 65536 may come"
        assert peak < 65_536


def test_an_unknown_kind_is_refused() -> None:
    # Kinds that the host does not know are refused, not skipped.
    for kind in (0, 8, 255):
        assert refused(greeted(1), header(0, 1, kind)) == f"a frame of unknown kind {kind}"


def test_open_from_the_guest_is_refused() -> None:
    # Only the host opens channels.
    assert "OPEN from the guest" in refused(greeted(), frame(OPEN, 2, b"\x01{}"))


@pytest.mark.parametrize(
    ("stream", "name"),
    [
        (data(1, b"x"), "DATA"),
        (credit(1, 1), "CREDIT"),
        (close(1), "CLOSE"),
        (reset(1), "RESET"),
        (end(1), "END"),
    ],
)
def test_any_frame_before_hello_is_refused(stream: bytes, name: str) -> None:
    # Nothing is believed from a guest that has not shown its receipt, on open channels too.
    connection = Connection()
    connection.open("test")
    assert refused(connection, stream) == f"{name} before HELLO"


def test_reset_on_channel_0_may_come_before_hello() -> None:
    # A sandbox that could not be set up says so without a receipt.
    assert Connection().receive(reset(0, "no cgroup")) == [Reset(0, "no cgroup")]


def test_a_frame_after_the_end_of_the_connection_is_refused() -> None:
    # After RESET on channel 0 there is nothing left to say.
    for stream in (hello(), data(1, b"x"), reset(0)):
        connection = greeted(1)
        connection.receive(reset(0))
        assert "after the guest ended" in refused(connection, stream)


def test_a_second_hello_is_refused() -> None:
    # A guest cannot replace the receipt that was checked.
    assert refused(greeted(), hello()) == "a second HELLO"


def test_hello_on_another_channel_is_refused() -> None:
    # HELLO belongs to the connection.
    stream = frame(HELLO, 3, b'{"version":1,"receipt":{}}')
    assert refused(Connection(), stream) == "HELLO on channel 3 instead of 0"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"version": 1},
        {"version": 2, "receipt": {}},
        {"version": True, "receipt": {}},
        {"version": 1.0, "receipt": {}},
        {"version": "1", "receipt": {}},
        {"version": 1, "receipt": []},
        {"version": 1, "receipt": None},
        {"version": 1, "receipt": {}, "more": 1},
    ],
)
def test_a_hello_of_another_shape_is_refused(body: object) -> None:
    # Exactly version 1 and a receipt; what the host does not know, it refuses.
    assert refused(Connection(), hello(body)).startswith("HELLO: ")


def test_a_hello_that_is_too_large_is_refused() -> None:
    # HELLO has a bound of its own, judged at its header.
    assert refused(Connection(), header(16_385, 0, HELLO)) == (
        "HELLO of 16385 bytes; at most 16384 may come"
    )


@pytest.mark.parametrize("stream", [data(9, b"x"), credit(9, 1), close(9), reset(9), end(9)])
def test_a_channel_that_is_not_open_is_refused(stream: bytes) -> None:
    # The guest may only speak on channels that the host has opened.
    assert "on channel 9, which is not open" in refused(greeted(2), stream)


@pytest.mark.parametrize("kind", [DATA, CREDIT, CLOSE, END])
def test_channel_0_carries_only_hello_and_reset(kind: int) -> None:
    # Channel 0 is the connection, not a stream.
    payload = {DATA: b"x", CREDIT: b"\0\0\0\1"}.get(kind, b"")
    assert "channel 0, which is not open" in refused(greeted(1), frame(kind, 0, payload))


@pytest.mark.parametrize("stream", [data(1, b"x"), credit(1, 1), close(1), reset(1), end(1)])
def test_a_channel_that_has_ended_is_refused(stream: bytes) -> None:
    # The guest's RESET or END is its last frame, even while bytes wait to be consumed.
    for last in (reset(1), close(1) + end(1)):
        connection = greeted(1)
        connection.close(1)
        connection.outgoing()
        connection.receive(data(1, b"unread"))
        connection.receive(last)
        assert "channel 1, which is not open" in refused(connection, stream)


def test_data_after_close_is_refused() -> None:
    # CLOSE is the end of a direction.
    assert refused(greeted(1), close(1) + data(1, b"x")) == "DATA after CLOSE on channel 1"


def test_a_second_close_is_refused() -> None:
    # One CLOSE per direction.
    assert refused(greeted(1), close(1) + close(1)) == "a second CLOSE on channel 1"


def test_data_beyond_credit_is_refused() -> None:
    # The window is exact: its last byte is taken, one more is not.
    connection = greeted(1)
    for _ in range(4):
        connection.receive(data(1, bytes(65_536)))
    assert "beyond its credit of 0" in refused(connection, data(1, b"x"))


def test_data_beyond_credit_is_refused_after_our_reset_too() -> None:
    # A guest whose channel was reset cannot go on sending for ever.
    connection = greeted(1)
    connection.reset(1, "enough")
    for _ in range(4):
        assert connection.receive(data(1, bytes(65_536))) == []
    assert "beyond its credit of 0" in refused(connection, data(1, b"x"))


def test_credit_is_granted_only_for_what_was_consumed() -> None:
    # Bytes that wait for a slow consumer keep the window shut.
    connection = greeted(1)
    for _ in range(4):
        connection.receive(data(1, bytes(65_536)))
    connection.consumed(1, WINDOW // 2)
    for _ in range(2):
        connection.receive(data(1, bytes(65_536)))
    assert "beyond its credit of 0" in refused(connection, data(1, b"x"))


def test_empty_data_is_refused() -> None:
    # Frames that carry nothing would cost work without using credit.
    assert refused(greeted(1), header(0, 1, DATA)) == "DATA without a payload"


def test_credit_of_zero_is_refused() -> None:
    # A grant of nothing would cost work without end.
    assert refused(greeted(1), credit(1, 0)) == "CREDIT of zero on channel 1"


def test_a_credit_above_its_bound_is_refused() -> None:
    # One CREDIT grants at most 1,048,576.
    greeted(1).receive(credit(1, 1_048_576))
    assert "CREDIT of 1048577" in refused(greeted(1), credit(1, 1_048_577))


def test_credit_above_16_mib_in_total_is_refused() -> None:
    # A guest cannot make the host put any amount in flight.
    connection = greeted(1)
    for _ in range(15):
        connection.receive(credit(1, 1_048_576))
    connection.receive(credit(1, 1_048_576 - WINDOW))
    assert "above 16777216 in total" in refused(connection, credit(1, 1))


@pytest.mark.parametrize("size", [0, 1, 3, 5, 65_536])
def test_a_credit_payload_of_another_size_is_refused(size: int) -> None:
    # CREDIT carries a u32, judged at the header.
    assert f"CREDIT with a payload of {size} bytes" in refused(greeted(1), header(size, 1, CREDIT))


@pytest.mark.parametrize(("kind", "name"), [(CLOSE, "CLOSE"), (END, "END")])
def test_a_payload_where_none_belongs_is_refused(kind: int, name: str) -> None:
    # CLOSE and END are empty, judged at the header.
    assert f"{name} with a payload of 1 bytes" in refused(greeted(1), header(1, 1, kind))


@pytest.mark.parametrize("closed_by", ["nobody", "guest", "host", "host, not yet written"])
def test_an_early_end_is_refused(closed_by: str) -> None:
    # END frees a number, so it may come only when both sides have sent CLOSE.
    connection = greeted(1)
    if closed_by == "guest":
        connection.receive(close(1))
    if closed_by.startswith("host"):
        connection.close(1)
    if closed_by == "host":
        connection.outgoing()
    if closed_by == "host, not yet written":
        connection.receive(close(1))
    assert refused(connection, end(1)) == "END of channel 1 before both sides sent CLOSE"


def test_an_early_end_is_refused_after_our_reset() -> None:
    # A guest that saw RESET answers with RESET; END would mean it had seen our CLOSE.
    connection = greeted(1)
    connection.reset(1, "enough")
    assert "END of channel 1 before" in refused(connection, close(1) + end(1))


def test_a_reason_that_is_too_long_is_refused() -> None:
    # Reasons end in logs, so they are short; judged at the header.
    greeted(1).receive(reset(1, "x" * 1024))
    assert "a reason of 1025 bytes" in refused(greeted(1), header(1025, 1, RESET))


def test_a_reason_that_is_no_utf8_is_refused() -> None:
    # A reason is text.
    for channel in (0, 1):
        stream = frame(RESET, channel, b"\xff")
        assert "reason that is not UTF-8" in refused(greeted(1), stream)


def test_every_call_raises_after_a_violation() -> None:
    # A dead connection stays dead, and says why.
    connection = greeted(1)
    connection.send(1, b"queued")
    sentence = refused(connection, close(9))
    for call in (
        lambda: connection.receive(b""),
        lambda: connection.open("test"),
        lambda: connection.send(1, b"x"),
        lambda: connection.close(1),
        lambda: connection.reset(1, ""),
        lambda: connection.reset(0, ""),
        lambda: connection.consumed(1, 0),
        connection.outgoing,
    ):
        with pytest.raises(WireViolation, match=sentence):
            call()
    assert (connection.has_outgoing, connection.queued(1)) == (False, 0)
    assert repr(connection).startswith(f"<Connection dead: {sentence} [")
