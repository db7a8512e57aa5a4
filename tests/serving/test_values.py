"""How many values a body has, however it comes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.serving.values import MOST_VALUES, TooManyValues, ValueCount

LARGE = 70_000


def _feed(body: bytes, step: int) -> None:
    count = ValueCount()
    for start in range(0, len(body), step):
        count.add(body[start : start + step])


@pytest.mark.parametrize("step", [999, 65_536, 10**9])
@pytest.mark.parametrize("values", [b"[],", b"1,", b'"a",', b'{"a":1},', b"[" * 10, b'"\\"",'])
def test_many_values_are_refused_before_the_body_is_whole(values: bytes, step: int) -> None:
    """Of these a parser would make millions of objects, while everybody waits."""
    with pytest.raises(TooManyValues):
        _feed(b"[" + values * (MOST_VALUES + 1), step)


@pytest.mark.parametrize("step", [1000, 65_536, 10**9])
@pytest.mark.parametrize("text", ["a,b[{", '",[{', "\\", '\\",', "\n", "é,"])
def test_what_is_in_a_string_is_one_value(text: str, step: int) -> None:
    """Source and files are: with commas, quotes and backslashes, and cut anywhere."""
    body = json.dumps({"source": text * MOST_VALUES, "files": {"a": text * 50_000}}).encode()
    _feed(body, step)


@given(
    text=st.text(alphabet='a,[{"\\\n', min_size=0, max_size=40),
    cuts=st.lists(st.integers(0, 200), max_size=5),
)
def test_a_cut_changes_nothing(text: str, cuts: list[int]) -> None:
    """In front of an escape, behind a quote, or anywhere."""
    tail = json.dumps([text, [text], {"a": text}]).encode()
    head = b'["' + b"x" * LARGE + b'",'
    whole = ValueCount()
    whole.add(head + tail)
    parts = ValueCount()
    parts.add(head)
    last = 0
    for cut in sorted(cuts):
        parts.add(tail[last:cut])
        last = max(last, cut)
    parts.add(tail[last:])
    assert repr(parts) == repr(whole)


def test_a_string_that_never_ends_is_looked_at_once() -> None:
    """Each piece by itself: what was looked at is not looked at again."""
    count = ValueCount()
    for _ in range(200):
        count.add(b'"' if not count._size else b"a\\" * 32_768)
    assert len(count._begun) <= 3


def test_what_is_small_is_left_to_the_parser() -> None:
    """It has few values anyway."""
    _feed(b"[" * 65_536, 10)
