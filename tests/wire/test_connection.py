"""The host's end by itself: what it queues, grants, frees and says."""

import pytest

from stockade.executor.wire import (
    CannotOpen,
    Closed,
    Connection,
    Data,
    Granted,
    Hello,
    Reset,
    WireViolation,
)

from .guest_bytes import (
    CLOSE,
    CREDIT,
    DATA,
    FRAME,
    OPEN,
    RESET,
    WINDOW,
    close,
    credit,
    cut,
    data,
    end,
    greeted,
    hello,
    reset,
)


def test_hello_is_handed_out_with_its_receipt() -> None:
    # The receipt reaches whoever compares it with the profile.
    body = {"version": 1, "receipt": {"seccomp": 2, "capabilities": "0" * 16}}
    assert Connection().receive(hello(body)) == [Hello(body)]


def test_open_writes_the_span_and_the_service() -> None:
    # OPEN names what was asked for; the service's arguments are any bytes.
    connection = greeted()
    assert connection.open("get", b"caf\xe9\0", 2) == 1
    assert cut(connection.outgoing()) == [(OPEN, 1, b"\x02get\0caf\xe9\0")]


def test_open_takes_the_lowest_free_block() -> None:
    # Numbers are packed from below; a block that does not fit a gap goes past it.
    connection = greeted()
    assert [connection.open("test", span=span) for span in (2, 1, 3)] == [1, 3, 4]
    connection.outgoing()
    for channel in (3, 5):
        connection.reset(channel, "")
    connection.receive(reset(3) + reset(5))
    connection.receive(b"")
    assert [connection.open("test", span=span) for span in (2, 1, 1, 1)] == [7, 3, 5, 9]


def test_open_refuses_what_the_protocol_cannot_carry() -> None:
    # Spans and services beyond the bounds are the caller's mistake, told at once.
    connection = greeted()
    for span in (0, 9, -1):
        with pytest.raises(ValueError, match="span"):
            connection.open("test", span=span)
    with pytest.raises(ValueError, match="at most 65535"):
        connection.open("get", bytes(65_532))
    with pytest.raises(ValueError, match="ascii"):
        connection.open("g\u00e9t")
    assert not connection.has_outgoing
    connection.open("get", bytes(65_531))


def test_open_stops_at_the_bound_on_channels() -> None:
    # A guest that never finishes its channels makes the host remember a bounded number.
    connection = greeted()
    for _ in range(512):
        connection.open("test", span=8)
    with pytest.raises(CannotOpen, match="4096 channels are open"):
        connection.open("test")


def test_a_message_is_one_frame() -> None:
    # What is sent in one go, up to 65,536 bytes, is neither cut nor joined with the next.
    connection = greeted(1)
    for message in (b"a", b"b" * FRAME, b"c"):
        connection.send(1, message)
    assert cut(connection.outgoing()) == [
        (DATA, 1, b"a"),
        (DATA, 1, b"b" * FRAME),
        (DATA, 1, b"c"),
    ]


def test_a_message_waits_whole_for_credit() -> None:
    # Too little credit delays a message; it never cuts one.
    connection = greeted(1)
    connection.send(1, bytes(WINDOW - 5))
    connection.send(1, b"message")
    assert sum(len(payload) for _, _, payload in cut(connection.outgoing())) == WINDOW - 5
    assert (connection.queued(1), connection.has_outgoing) == (7, False)
    connection.receive(credit(1, 1))
    assert not connection.has_outgoing
    assert connection.receive(credit(1, 1)) == [Granted(1)]
    assert cut(connection.outgoing()) == [(DATA, 1, b"message")]
    assert connection.queued(1) == 0


def test_a_large_send_is_cut_and_respects_credit() -> None:
    # Any size may be queued; what goes out never exceeds the credit.
    connection = greeted(1)
    content = bytes(range(256)) * 4096
    connection.send(1, content)
    connection.close(1)
    sent = b"".join(payload for _, _, payload in cut(connection.outgoing()))
    assert (len(sent), connection.queued(1)) == (WINDOW, len(content) - WINDOW)
    frames = []
    while connection.queued(1):
        connection.receive(credit(1, WINDOW // 2))
        frames += cut(connection.outgoing())
    assert sent + b"".join(payload for _, _, payload in frames) == content
    assert frames[-1] == (CLOSE, 1, b"")


def test_what_was_sent_is_not_changed_by_its_owner() -> None:
    # A buffer may be used again as soon as send has returned.
    connection = greeted(1)
    buffer = bytearray(b"before")
    connection.send(1, buffer)
    buffer[:] = b"after!"
    assert cut(connection.outgoing()) == [(DATA, 1, b"before")]


def test_close_comes_after_what_is_queued_and_once() -> None:
    # CLOSE needs no credit, but waits its turn; a second close does nothing.
    connection = greeted(1)
    connection.send(1, b"x")
    connection.send(1, b"")
    connection.close(1)
    connection.close(1)
    assert cut(connection.outgoing()) == [(DATA, 1, b"x"), (CLOSE, 1, b"")]
    connection.close(1)
    assert not connection.has_outgoing
    with pytest.raises(ValueError, match="closed for sending"):
        connection.send(1, b"more")


def test_credit_goes_back_in_steps_of_half_the_window() -> None:
    # Many small reads make one CREDIT frame, not many.
    connection = greeted(1)
    for _ in range(2):
        connection.receive(data(1, bytes(FRAME)))
    connection.consumed(1, 2 * FRAME - 1)
    assert not connection.has_outgoing
    connection.consumed(1, 1)
    assert cut(connection.outgoing()) == [(CREDIT, 1, (2 * FRAME).to_bytes(4, "big"))]


def test_no_credit_is_granted_to_a_side_that_closed() -> None:
    # After CLOSE there is nothing to grant for.
    connection = greeted(1)
    connection.receive(data(1, bytes(FRAME)) * 4 + close(1))
    connection.consumed(1, WINDOW)
    assert not connection.has_outgoing


def test_more_cannot_be_consumed_than_was_handed_out() -> None:
    # A consumer that counts wrongly is told, instead of opening the window too far.
    connection = greeted(1)
    connection.receive(data(1, b"abc"))
    for n in (4, -1):
        with pytest.raises(ValueError, match="consumed of 3"):
            connection.consumed(1, n)


def test_channels_take_turns() -> None:
    # A frame each, in turn, so a full queue does not hold up the others.
    connection = greeted(3)
    connection.send(1, bytes(3 * FRAME))
    connection.send(2, b"small")
    connection.close(2)
    connection.send(3, bytes(FRAME + 1))
    order = [(kind, channel) for kind, channel, _ in cut(connection.outgoing())]
    assert order == [(DATA, 1), (DATA, 2), (CLOSE, 2), (DATA, 3), (DATA, 1), (DATA, 3), (DATA, 1)]


def test_a_limit_bounds_what_another_channel_waits_behind() -> None:
    # With a limit, a byte sent late goes out in the very next batch but one frame.
    connection = greeted(2)
    for _ in range(15):
        connection.receive(credit(1, 1_048_576))
    connection.send(1, bytes(8 << 20))
    assert len(connection.outgoing(FRAME)) <= 2 * (FRAME + 7)
    connection.send(2, b"urgent")
    following = connection.outgoing(FRAME) + connection.outgoing(FRAME)
    assert (DATA, 2, b"urgent") in cut(following)
    assert connection.has_outgoing


def test_frames_without_credit_overtake_queued_data() -> None:
    # CREDIT and RESET never wait behind a stream.
    connection = greeted(2)
    connection.receive(data(2, bytes(FRAME)) * 2)
    connection.send(1, bytes(FRAME))
    connection.consumed(2, 2 * FRAME)
    connection.reset(2, "enough")
    kinds = [(kind, channel) for kind, channel, _ in cut(connection.outgoing())]
    assert kinds == [(CREDIT, 2), (RESET, 2), (DATA, 1)]


def test_reset_drops_the_queue_and_silences_the_channel() -> None:
    # After our reset no event of the channel is handed out, and nothing is granted for it.
    connection = greeted(1)
    connection.send(1, b"never")
    connection.close(1)
    connection.reset(1, "enough")
    connection.reset(1, "again")
    assert cut(connection.outgoing()) == [(RESET, 1, b"enough")]
    late = data(1, b"late") + credit(1, 5) + close(1)
    assert connection.receive(late) == []
    connection.send(1, b"dropped")
    connection.consumed(1, 4)
    assert "0 open, 1 resetting, 0 finished | Bytes: 0 queued" in repr(connection)
    assert connection.receive(reset(1)) == []
    assert "0 open, 0 resetting, 0 finished" in repr(connection)
    assert not connection.has_outgoing


def test_nothing_is_left_to_say_after_a_dropped_queue() -> None:
    # A channel that was reset while its turn was due does not keep the writer busy.
    connection = greeted(2)
    for channel in (1, 2):
        connection.send(channel, b"never")
    connection.reset(1, "enough")
    connection.receive(reset(2))
    assert len(cut(connection.outgoing(1))) == 2
    assert not connection.has_outgoing


def test_a_reset_after_both_sides_closed_is_no_news() -> None:
    # Whoever saw the guest's CLOSE and sent its own has let go of the channel.
    connection = greeted(1)
    connection.close(1)
    connection.outgoing()
    assert connection.receive(close(1) + reset(1, "late")) == [Closed(1)]
    connection.receive(b"")
    assert connection.open("test") == 1


def test_a_reason_is_cut_to_what_fits() -> None:
    # A long reason is shortened between characters; lone surrogates are escaped.
    connection = greeted(2)
    connection.reset(1, "é" * 600 + "x")
    connection.reset(2, "caf\udce9")
    assert cut(connection.outgoing()) == [
        (RESET, 1, ("é" * 512).encode()),
        (RESET, 2, b"caf\\udce9"),
    ]


def test_a_reset_by_the_guest_is_answered_and_told() -> None:
    # The host answers with an empty RESET and drops what it had queued.
    connection = greeted(1)
    connection.send(1, bytes(FRAME))
    assert connection.receive(reset(1, "no such file")) == [Reset(1, "no such file")]
    assert cut(connection.outgoing()) == [(RESET, 1, b"")]
    assert connection.queued(1) == 0


def test_what_is_asked_of_an_ended_channel_does_nothing() -> None:
    # The event that tells of the end may stand further on in the list being worked off.
    connection = greeted(1)
    assert connection.receive(data(1, b"abc") + reset(1)) == [Data(1, b"abc"), Reset(1, "")]
    connection.outgoing()
    connection.consumed(1, 3)
    connection.consumed(1, 3)
    connection.send(1, b"answer")
    connection.close(1)
    connection.reset(1, "")
    assert not connection.has_outgoing


def test_a_channel_that_was_never_opened_is_a_mistake() -> None:
    # A wrong number is told, not ignored.
    connection = greeted(2)
    for channel in (3, -1, 65_536):
        with pytest.raises(ValueError, match="never opened"):
            connection.send(channel, b"x")


def test_a_number_is_free_after_end_and_one_more_receive() -> None:
    # No event of the list being worked off can be taken for the channel opened meanwhile.
    connection = greeted(1)
    connection.close(1)
    connection.outgoing()
    assert connection.receive(close(1)) == [Closed(1)]
    assert connection.open("test") == 2
    assert connection.receive(end(1)) == []
    assert connection.open("test") == 3
    connection.receive(b"")
    assert connection.open("test") == 1


def test_a_number_is_not_free_while_its_bytes_are_unread() -> None:
    # A slow consumer's word about an old channel cannot open the window of a new one.
    for last in (close(1) + end(1), reset(1)):
        connection = greeted(1)
        connection.close(1)
        connection.outgoing()
        connection.receive(data(1, b"abc") + last)
        connection.receive(b"")
        assert connection.open("test") == 2
        connection.consumed(1, 2)
        connection.receive(b"")
        assert connection.open("test") == 3
        connection.consumed(1, 1)
        connection.receive(b"")
        assert connection.open("test") == 1


def test_reset_lets_go_of_unread_bytes() -> None:
    # Whoever stops reading frees the number, also when the guest has ended the channel.
    connection = greeted(1)
    connection.receive(data(1, b"abc") + reset(1))
    connection.outgoing()
    connection.reset(1, "not read")
    assert not connection.has_outgoing
    connection.receive(b"")
    assert connection.open("test") == 1


def test_credit_that_crosses_our_close_is_taken() -> None:
    # A guest that closed first may still grant until it sees our CLOSE.
    connection = greeted(1)
    connection.send(1, bytes(FRAME) * 2)
    connection.close(1)
    connection.outgoing()
    assert connection.receive(close(1)) == [Closed(1)]
    assert connection.receive(credit(1, 2 * FRAME) + end(1)) == []


def test_a_reset_that_crosses_the_end_is_settled_by_it() -> None:
    # The guest forgot the channel before it saw RESET and will not answer; END is its last word.
    connection = greeted(1)
    connection.close(1)
    connection.outgoing()
    connection.receive(close(1))
    connection.reset(1, "too late")
    connection.receive(end(1))
    connection.receive(b"")
    assert connection.open("test") == 1


def test_crossing_resets_are_settled() -> None:
    # Each side's RESET is the answer to the other's.
    connection = greeted(1)
    connection.reset(1, "mine")
    assert connection.receive(reset(1, "yours")) == []
    assert cut(connection.outgoing()) == [(RESET, 1, b"mine")]
    connection.receive(b"")
    assert connection.open("test") == 1


def test_the_end_of_the_connection_by_the_guest() -> None:
    # It is told once; nothing goes out any more and no channel can be opened.
    connection = greeted(1)
    connection.send(1, b"x")
    assert connection.receive(reset(0, "out of memory")) == [Reset(0, "out of memory")]
    assert not connection.has_outgoing
    connection.send(1, b"x")
    with pytest.raises(CannotOpen, match="ended by the guest"):
        connection.open("test")


def test_the_end_of_the_connection_by_the_host() -> None:
    # RESET on channel 0 is the last thing said, and nothing more is listened to.
    connection = greeted(1)
    connection.send(1, b"x")
    connection.reset(0, "shut down")
    connection.reset(0, "again")
    assert cut(connection.outgoing()) == [(RESET, 0, b"shut down")]
    assert connection.receive(data(9, b"whatever")) == []
    with pytest.raises(CannotOpen, match="ended by the host"):
        connection.open("test")


def test_repr_shows_the_state() -> None:
    # What is open, waits or is unread can be read off.
    connection = Connection()
    assert repr(connection) == (
        "<Connection waiting for HELLO [Channels: 0 open, 0 resetting, 0 finished | "
        "Bytes: 0 queued, 0 untaken, 0 of a frame]>"
    )
    connection.receive(hello())
    connection.open("test", span=3)
    connection.send(1, b"12345")
    connection.reset(2, "")
    connection.receive(data(1, b"123") + data(3, b"12") + reset(3) + b"\0\0")
    assert repr(connection) == (
        "<Connection ready [Channels: 1 open, 1 resetting, 1 finished | "
        "Bytes: 5 queued, 5 untaken, 2 of a frame]>"
    )


def test_events_before_a_violation_are_not_handed_out() -> None:
    # A list with a violation in it is refused whole.
    with pytest.raises(WireViolation):
        greeted(1).receive(data(1, b"x") + close(7))
