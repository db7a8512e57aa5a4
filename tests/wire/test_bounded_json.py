"""JSON of a hostile guest: refused with a sentence, never slow, never a crash."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.executor.wire import WireViolation, dump_object, load_object

LIMIT = 65_536


def refused(payload: bytes, limit: int = LIMIT) -> str:
    start = time.process_time()
    with pytest.raises(WireViolation) as caught:
        load_object(payload, "X", limit)
    assert time.process_time() - start < 3  # what is not linear takes minutes
    return str(caught.value)


@pytest.mark.parametrize("opening", [b"[", b"{", b'{"a":', b"[{", b'"x"['])
def test_json_nested_100_000_levels_is_refused(opening: bytes) -> None:
    # Depth is judged by a scan, so the parser's stack never grows, whatever the size allowed.
    assert "more than 32 levels" in refused(opening * 100_000, limit=1 << 20)


def test_json_of_32_levels_is_taken_and_of_33_is_not() -> None:
    # The bound is exact.
    assert load_object(b'{"a":' + b"[" * 31 + b"]" * 31 + b"}", "X")
    assert "more than 32 levels" in refused(b'{"a":' + b"[" * 32 + b"]" * 32 + b"}")


def test_brackets_in_strings_are_no_depth() -> None:
    # Only brackets outside strings nest, whatever is escaped in front of a quote.
    for text in ("[" * 1000, '"' + "[{" * 100, "\\" + "[" * 100, '\\"' + "{" * 100):
        assert load_object(json.dumps({"a": text}).encode(), "X") == {"a": text}


def test_many_brackets_side_by_side_are_no_depth() -> None:
    # Breadth is bounded by the size alone.
    assert load_object(b'{"a":[' + b"[]," * 20_000 + b"{}]}", "X")


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"])
def test_numbers_that_are_not_finite_are_refused(value: bytes) -> None:
    # Comparisons with NaN and infinity would pass limits; 1e999 is an infinity too.
    sentence = refused(b'{"a":[1,' + value + b"]}")
    assert "not finite" in sentence or f"has {value.decode()}," in sentence


def test_duplicate_keys_are_refused_at_any_level() -> None:
    # Two readers must not see two values; an escaped spelling of a key is the same key.
    for payload in (b'{"a":1,"a":1}', b'{"b":[{"a":1,"a":2}]}', b'{"a":1,"\\u0061":2}'):
        assert "two members of one name" in refused(payload)


def test_huge_integers_are_refused_cheaply() -> None:
    # A million digits cost no conversion, which would take quadratic time.
    for sign in (b"", b"-"):
        sentence = refused(b'{"a":' + sign + b"9" * 1_000_000 + b"}", limit=1 << 21)
        assert "number of more than 20 digits" in sentence
        assert "digits" in refused(b'{"a":' + sign + b"9" * 21 + b"}")
        assert load_object(b'{"a":' + sign + b"18446744073709551615}", "X")


def test_lone_surrogates_are_kept() -> None:
    # A file name that is no UTF-8 travels as escaped lone surrogates (PEP 383).
    name = b"caf\xe9\xff".decode("utf-8", "surrogateescape")
    assert load_object(dump_object({"name": name}), "X") == {"name": name}
    assert load_object(b'{"\\udcff":"\\ud800"}', "X") == {"\udcff": "\ud800"}


@pytest.mark.parametrize(
    "payload",
    [
        b'{"a":"\xff"}',
        b'{"a":"\xed\xb3\xbf"}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-32-le"),
        b'{"a":"\xc0\xaf"}',
    ],
)
def test_json_that_is_not_utf8_is_refused(payload: bytes) -> None:
    # No guessing of encodings, no raw surrogates, no overlong forms.
    assert refused(payload).startswith("X: ")


@pytest.mark.parametrize("payload", [b"[]", b"1", b'"a"', b"null", b"true"])
def test_json_that_is_no_object_is_refused(payload: bytes) -> None:
    # Every message is an object.
    assert "not an object" in refused(payload)


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b'{"a"}', b"{}x", b'{"a":1,}', b"{'a':1}", b'\xef\xbb\xbf{"a":1}', b'{"a":"\n"}'],
)
def test_what_is_no_json_is_refused(payload: bytes) -> None:
    # The sentence says so and quotes nothing of it.
    assert refused(payload) == "X: no JSON"


def test_json_above_the_limit_is_refused_unread() -> None:
    # The limit is exact and comes first.
    assert load_object(b'{"a":"' + b"x" * 92 + b'"}', "X", 100)
    assert "JSON of 101 bytes; at most 100" in refused(b'{"a":"' + b"x" * 93 + b'"}', 100)


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 40 + b'"\\' * 32_000,
        b"[" * 40 + b'\\"' * 32_000,
        b"[" * 40 + b'"' * 65_000,
        b"[" * 33 + b'"' + b"\\" * 65_000,
        b'{"a":' + b"-" * 65_000,
        b'{"a":0.' + b"9" * 65_000 + b"x}",
        b'{"a":1e' + b"9" * 65_000 + b"}",
        b" " * 65_000,
        b'{"a":[' + b"{}," * 21_000,
    ],
)
def test_json_made_to_be_slow_is_refused_quickly(payload: bytes) -> None:
    # Every scan is linear: no text of the largest size takes long.
    refused(payload)


def any_json() -> st.SearchStrategy[object]:
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(10**20) + 1, 10**20 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters())
    )
    return st.recursive(
        leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
    )


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.text(st.characters()), any_json(), max_size=5))
def test_what_is_dumped_is_loaded(value: dict[str, object]) -> None:
    # Ordinary messages pass unchanged.
    assert load_object(dump_object(value), "X") == value


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from('{}[]",:\\ \n01e.-aNaN'), max_size=80).map("".join))
def test_text_that_looks_like_json_is_loaded_or_refused(text: str) -> None:
    # Only WireViolation escapes, and what is taken is what the standard parser sees.
    try:
        value = load_object(text.encode(), "X")
    except WireViolation:
        return
    assert value == json.loads(text)
