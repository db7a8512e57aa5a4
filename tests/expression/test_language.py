"""The language is CEL: what its definition says, over a table of small expressions.

The conformance suite itself is run by the library's authors over each of its releases.
"""

import pytest
from tests.expression.conftest import Evaluate

from stockade.executor.expression import EvaluationFailed, InvalidExpression

VALUES = {
    "1 + 2": 3,
    "7 / 2": 3,
    "-7 / 2": -3,
    "-7 % 3": -1,
    "1u + 2u": 3,
    "1.0 / 0.0 > 1.0": True,
    "dyn(1) == 1.0": True,
    "dyn(1u) == 1": True,
    "dyn(1) < 1.5": True,
    "dyn('a') == 1": False,
    "dyn([1]) == dyn(['a'])": False,
    "[1, 2] == [1.0, 2u]": True,
    "dyn({'a': 1}) == {'a': 1.0}": True,
    "double('NaN') == double('NaN')": False,
    "null == null": True,
    "true || 1/0 == 1": True,
    "1/0 == 1 || true": True,
    "false && 1/0 == 1": False,
    "1/0 == 1 && false": False,
    "true ? 1 : 1/0": 1,
    "!true": False,
    "'a' + 'b'": "ab",
    "size('😀é')": 2,
    "'abc'.contains('b')": True,
    "'abc'.startsWith('ab')": True,
    "'abc'.endsWith('bc')": True,
    "'abc'.matches('b')": True,
    "'abc'.matches('^b$')": False,
    "'a' < 'b'": True,
    "'\\u00e9\\n\\x41\\101' == 'é\\nAA'": True,
    "r'\\n'.size()": 2,
    "b'\\xff' == b'\\377'": True,
    "size(b'é')": 2,
    "[1, 2, 3].map(x, x * 2)": [2, 4, 6],
    "[1, 2, 3].filter(x, x > 1)": [2, 3],
    "[1, 2].all(x, x > 0)": True,
    "[1, 2].exists(x, x > 1)": True,
    "[1, 2].exists_one(x, x > 1)": True,
    "[1, 2, 3].map(x, x > 1, x * 10)": [20, 30],
    "{'a': 1}.all(k, k == 'a')": True,
    "[].all(x, false)": True,
    "[0, 1].exists(x, 1/x == 1)": True,
    "[1, 0].all(x, 1/x > 5)": False,
    "1 in [1, 2]": True,
    "'a' in {'a': 1}": True,
    "[1, 2][1]": 2,
    "{'a': 1}.a": 1,
    "has({'a': 1}.a)": True,
    "has({'a': 1}.b)": False,
    "{1: 'a'}[dyn(1u)]": "a",
    "int('12')": 12,
    "int(1.9)": 1,
    "int(-1.9)": -1,
    "double('1.5')": 1.5,
    "string(1.5)": "1.5",
    "string(true)": "true",
    "string(1u)": "1",
    "bool('true')": True,
    "type(1) == int": True,
    "type(type(1)) == type": True,
    "string(b'abc')": "abc",
    "timestamp('2009-02-13T23:31:30Z') + duration('1s') == timestamp('2009-02-13T23:31:31Z')": True,
    "timestamp('2009-02-13T23:31:30Z').getFullYear()": 2009,
    "timestamp('2009-02-13T23:31:30Z').getMonth()": 1,
    "timestamp('2009-02-13T23:31:30Z').getHours('Australia/Sydney')": 10,
    "string(timestamp('2009-02-13T23:31:30Z'))": "2009-02-13T23:31:30Z",
    "string(duration('90m'))": "5400s",
    "duration('1h').getMinutes()": 60,
    "int(timestamp('1970-01-01T00:01:00Z'))": 60,
    "size([1, 2, 3])": 3,
    "[1] + [2]": [1, 2],
    "0x1F": 31,
    "-0x1F": -31,
    "1e3": 1000.0,
    "'''a'b'''": "a'b",
    '"\\\'"': "'",
    "[1, 'a', null, 2.5]": [1, "a", None, 2.5],
    "cel.bind(x, 2, x * x)": 4,
    "'a-b'.split('-')": ["a", "b"],
    "['a','b'].join('-')": "a-b",
    "'hello'.replace('l','L',1)": "heLlo",
    "math.greatest(1, 2.5, 2u)": 2.5,
    "base64.encode(b'ab')": "YWI=",
    "'a'.charAt(0)": "a",
    "'tacocat'.lastIndexOf('t')": 6,
}

ERRORS = (
    "1 / 0",
    "1 % 0",
    "9223372036854775807 + 1",
    "-(-9223372036854775807 - 1)",
    "1u - 2u",
    "1 + 1.0",
    "1 + 1u",
    "[1, 2][5]",
    "{'a': 1}['b']",
    "{'a': 1, 'a': 2}",
    "{1.5: 1}",
    "int('x')",
    "uint(-1)",
    "int(9223372036854775808.0)",
    "string(b'\\xff')",
    "timestamp('0000-01-01T00:00:00Z')",
    "'a' && true",
    "undeclared",
)


@pytest.mark.parametrize(("source", "value"), VALUES.items())
def test_the_value_is_what_the_language_says(
    evaluate: Evaluate, source: str, value: object
) -> None:
    result = evaluate(source)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("source", ERRORS)
def test_what_the_language_calls_an_error_is_one(evaluate: Evaluate, source: str) -> None:
    with pytest.raises((InvalidExpression, EvaluationFailed)):
        evaluate(source)


def test_json_numbers_are_what_they_were_written_as(evaluate: Evaluate) -> None:
    """A whole number and one with a point compare, and do not calculate with one another."""
    assert evaluate("input > 100.5", 120) is True
    assert evaluate("double(input) * 1.5", 120) == 180.0
    with pytest.raises(EvaluationFailed, match="No matching overloads"):
        evaluate("input * 1.5", 120)
