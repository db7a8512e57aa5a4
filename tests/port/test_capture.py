"""Head, tail and total are exact, however a stream is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.port.capture import Capture

pytestmark = pytest.mark.plain_user


@given(
    st.lists(st.binary(max_size=400), max_size=60),
    st.sampled_from([0, 1, 2, 3, 7, 10, 64, 100, 1000, 5000]),
)
def test_any_chunking(pieces: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for piece in pieces:
        capture.add(piece)
    whole = b"".join(pieces)
    captured = capture.captured()
    assert captured.total == len(whole)
    assert len(captured.head) + len(captured.tail) == min(len(whole), limit)
    assert whole.startswith(captured.head)
    assert whole.endswith(captured.tail)
    assert captured.dropped == max(0, len(whole) - limit)
    if not captured.dropped:
        assert captured.content == whole


@given(st.integers(1, 400_000), st.integers(0, 70_000), st.integers(1, 70_000))
def test_long_streams(total: int, limit: int, step: int) -> None:
    """Also past the point where the tail is cut back."""
    whole = (bytes(range(251)) * (total // 251 + 1))[:total]
    capture = Capture(limit)
    for start in range(0, total, step):
        capture.add(whole[start : start + step])
    captured = capture.captured()
    assert captured.total == total
    assert captured.head == whole[: len(captured.head)]
    assert captured.tail == whole[total - len(captured.tail) :]
    assert len(captured.head) + len(captured.tail) == min(total, limit)
    assert len(captured.head) == min(total, (limit + 1) // 2)


def test_it_can_be_looked_at_in_between() -> None:
    capture = Capture(4)
    for number in range(10):
        capture.add(b"%d" % number)
        assert capture.captured().total == number + 1
    captured = capture.captured()
    assert (captured.head, captured.tail) == (b"01", b"89")


def test_memory_is_bounded() -> None:
    capture = Capture(1000)
    for _ in range(1000):
        capture.add(b"x" * 65_536)
    assert len(capture._tail) < 500_000
    assert capture.captured().total == 65_536_000
