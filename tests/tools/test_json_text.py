"""JSON of tenants and guests is bounded, and one text has one meaning."""

import tracemalloc
from json import dumps
from typing import Any

import pytest

from stockade.tools import json_text, schemas
from stockade.tools.json_text import NoJson, SecondValue, load, same


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * 100_000, "nested"),
        (b'{"a":' * 10_000, "nested"),
        (b'"' + b"[" * 1000, "no JSON"),
        (b"[" + b"0," * 200_000 + b"0]", "more than 100000 values"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b"1e999", "not finite"),
        (b"1" * 101, "more than 100 digits"),
        (b'{"a": 1, "a": 2}', "two members of the name 'a'"),
        (b'{"x": {"\\u0061": 1, "a": 2}}', "two members"),
        (b"\xff", "UTF-8"),
        (b'{"x": ["\\ud800"]}', "at /x/0"),
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"'a'", "no JSON"),
    ],
)
def test_what_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(NoJson, match=words):
        load(text)


def test_what_stands_behind_a_value_is_a_second_one() -> None:
    for text in (b"1 2", b"{}{}", b'{"output":1}{"output":2}'):
        with pytest.raises(SecondValue):
            load(text)


def test_the_size_is_bounded_before_anything_is_read() -> None:
    with pytest.raises(NoJson, match="101 bytes; at most 100"):
        load(b" " * 101, 100)


@pytest.mark.parametrize("value", [None, True, 0, -(10**99), 1.5, "é\n", [], {"a": [{}]}])
def test_what_is_json_comes_through(value: Any) -> None:
    assert load(json_text.dump(value)) == value


def test_many_commas_in_a_text_are_no_values() -> None:
    text = "[,{" * 200_000
    assert load(json_text.dump([text])) == [text]


def test_same_is_by_value_and_kind() -> None:
    assert same({"a": [1, 2.0]}, {"a": [1.0, 2]})
    assert not same(1, True)
    assert not same([0], [False])
    assert not same({"a": 1}, {"a": 1, "b": 1})
    assert not same("1", 1)
    assert not same([1], [1, 2])


def deep(levels: int, inner: Any) -> Any:
    """Each level with a long name."""
    for _ in range(levels):
        inner = {"k" * 100: inner}
    return inner


def test_the_places_of_many_deep_values_are_not_all_spelled() -> None:
    """100,000 of them with 6 KB each would be 600 MB, of a text of 300 KB."""
    text = dumps(deep(62, ["\u00e9"] + [1] * 90_000)).encode()
    broken = dumps(deep(62, ["\ud800"] + [1] * 90_000)).encode()
    schema = deep(45, {"allOf": [1] * 60_000})
    tracemalloc.start()
    try:
        load(text)
        with pytest.raises(NoJson, match=r"half a surrogate pair in a text, at /k+/.*/0$"):
            load(broken)
        schemas.check(schema, "input_schema")
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
