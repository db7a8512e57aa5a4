"""JSON goes in, JSON comes out, and anything else is an error that names the place."""

import gc
import json
import sys
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.expression.conftest import Evaluate

from stockade.executor.expression import (
    JSON,
    EvaluationFailed,
    ExpressionEngine,
    ExpressionLimits,
    OverLimit,
)

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_TEXT, inner, max_size=5),
    max_leaves=30,
)
_ITSELF = ExpressionEngine().compile("input", tenant="one")


def _exactly(value: JSON) -> str:
    """Tells 1 from 1.0 and from true, and -0.0 from 0.0."""
    return json.dumps(value, sort_keys=True)


@given(_JSON)
def test_json_comes_out_as_it_went_in(value: JSON) -> None:
    assert _exactly(_ITSELF.evaluate(value)) == _exactly(value)


@given(st.dictionaries(_TEXT, _JSON, max_size=8), _TEXT)
def test_a_field_is_the_fields_value(value: dict[str, JSON], name: str) -> None:
    value[name] = "here"
    expression = ExpressionEngine().compile("input.filter(k, input[k] == 'here')", tenant="one")
    found = expression.evaluate(value)
    assert isinstance(found, list)
    assert name in found


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1u", 1),
        ("18446744073709551615u", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("1.0", 1.0),
        ("-0.0", -0.0),
        ("5 / 2", 2),
        ("-7 % 3", -1),
        ("0.1 + 0.2", 0.1 + 0.2),
        ("null", None),
        ("'\\u00e9' + '😀'", "é😀"),
        ("size('😀')", 1),
        ("string(timestamp('2026-02-03T04:05:06.000000007Z'))", "2026-02-03T04:05:06.000000007Z"),
        ("string(duration('90m'))", "5400s"),
        ("base64.encode(b'\\x00\\xff')", "AP8="),
        ("int(timestamp('1970-01-01T00:01:00Z'))", 60),
        ("timestamp('2026-07-01T12:00:00Z').getHours('Europe/Berlin')", 14),
        ("[1, 2u, 3.5, 'a', null, true]", [1, 2, 3.5, "a", None, True]),
        ("{'a': {'b': [1]}}", {"a": {"b": [1]}}),
        ("cel.bind(x, [1, 2], x + x)", [1, 2, 1, 2]),
        ("math.greatest(1, 7, 3)", 7),
        ("'a-b'.split('-').join('+').upperAscii()", "A+B"),
    ],
)
def test_what_comes_out(evaluate: Evaluate, source: str, value: JSON) -> None:
    assert _exactly(evaluate(source)) == _exactly(value)


@pytest.mark.parametrize(
    ("source", "path", "sentence"),
    [
        ("0.0 / 0.0", "output", "NaN is no JSON"),
        ("[{'a': 1.0 / 0.0}]", "output[0]['a']", "an infinity is no JSON"),
        ("double('-inf')", "output", "an infinity is no JSON"),
        ("[b'a']", "output[0]", "bytes are no JSON: write base64.encode(...) around them"),
        ("timestamp(0)", "output", "a timestamp is no JSON: write string(...) around it"),
        ("duration('1s')", "output", "a duration is no JSON: write string(...) around it"),
        ("{1: 2}", "output", "the key 1 is no text: JSON has no other keys"),
        ("{true: 2}", "output", "the key True is no text: JSON has no other keys"),
        ("type(1)", "output", "a value of type Type is no JSON"),
        ("['a\\u0000b']", "output[0]", "a text holds a NUL character"),
    ],
)
def test_a_result_that_is_no_json_fails_and_says_where(
    evaluate: Evaluate, source: str, path: str, sentence: str
) -> None:
    with pytest.raises(EvaluationFailed) as failure:
        evaluate(source)
    assert failure.value.path == path
    assert failure.value.sentence.startswith(sentence)


class _Text(str):
    __slots__ = ()


class _Number(int):
    pass


class _Trap(dict[str, Any]):
    """Would be called by a library that looks a name up in it."""

    def __getitem__(self, name: str) -> Any:
        raise AssertionError("the host's code ran")


@pytest.mark.parametrize(
    ("value", "path", "sentence"),
    [
        (2**63, "input", "a whole number is outside"),
        ({"a": [-(2**63) - 1]}, "input['a'][0]", "a whole number is outside"),
        (float("nan"), "input", "NaN is no JSON"),
        ([float("-inf")], "input[0]", "an infinity is no JSON"),
        ("a\0b", "input", "a text holds a NUL character"),
        ({"a\0": 1}, "input", "a key: a text holds a NUL character"),
        ("\ud800", "input", "a text holds half of a surrogate pair"),
        ({1: 2}, "input", "the key 1 is no text"),
        (b"bytes", "input", "a value of type bytes is no JSON"),
        ((1,), "input", "a value of type tuple is no JSON"),
        ({"a": {1}}, "input['a']", "a value of type set is no JSON"),
        (object(), "input", "a value of type object is no JSON"),
        (sys, "input", "a value of type module is no JSON"),
        (print, "input", "a value of type builtin_function_or_method is no JSON"),
        (_Text("a"), "input", "a value of type _Text is no JSON"),
        (_Number(1), "input", "a value of type _Number is no JSON"),
        (OrderedDict(a=1), "input", "a value of type OrderedDict is no JSON"),
        ([_Trap(a=1)], "input[0]", "a value of type _Trap is no JSON"),
        ({_Text("a"): 1}, "input", "the key 'a' is no text"),
    ],
)
def test_only_plain_json_enters(value: Any, path: str, sentence: str) -> None:
    with pytest.raises(EvaluationFailed) as failure:
        _ITSELF.evaluate(value)
    assert failure.value.path == path
    assert failure.value.sentence.startswith(sentence)


def test_a_cyclic_object_ends_at_the_depth() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(OverLimit) as failure:
        _ITSELF.evaluate(cycle)
    assert failure.value.limit == "input_depth"


def test_shared_parts_count_as_often_as_they_occur() -> None:
    value: list[Any] = []
    for _ in range(30):
        value = [value, value]
    with pytest.raises(OverLimit) as failure:
        _ITSELF.evaluate(value)
    assert failure.value.limit == "input_bytes"


@pytest.mark.parametrize(
    ("value", "limit"),
    [("x" * 1000, "input_bytes"), ({"x" * 1000: 1}, "input_bytes"), ([[[[1]]]], "input_depth")],
)
def test_an_input_over_its_limit_is_refused(value: JSON, limit: str) -> None:
    engine = ExpressionEngine(ExpressionLimits(input_bytes=1000, input_depth=3))
    with pytest.raises(OverLimit) as failure:
        engine.compile("true", tenant="one").evaluate(value)
    assert failure.value.limit == limit


@pytest.mark.parametrize(
    ("source", "limit"),
    [("input + input", "output_bytes"), ("[[[[1]]]]", "output_depth")],
)
def test_an_output_over_its_limit_is_refused(source: str, limit: str) -> None:
    engine = ExpressionEngine(ExpressionLimits(output_bytes=1000, output_depth=3))
    with pytest.raises(OverLimit) as failure:
        engine.compile(source, tenant="one").evaluate("x" * 600)
    assert failure.value.limit == limit


def test_nulls_do_not_take_none_from_the_process(evaluate: Evaluate) -> None:
    """The library forgets a reference at each; Python 3.11 aborts when none is left."""
    for _ in range(300):
        assert evaluate("[input, input]", [None] * 1000) == [[None] * 1000] * 2
    gc.collect()
    assert sys.getrefcount(None) > 1 << 30


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(_JSON, max_size=10))
def test_map_and_filter_keep_what_they_see(items: list[JSON]) -> None:
    engine = ExpressionEngine()
    for source in ("input.map(x, x)", "input.filter(x, true)", "[] + input"):
        assert _exactly(engine.compile(source, tenant="one").evaluate(items)) == _exactly(items)
