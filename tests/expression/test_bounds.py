"""No expression takes the process: not its time, not its memory, not its life.

What is tried runs in a process of its own, whose memory is limited.
"""

import json
import random
import subprocess
import sys

import pytest

from stockade.executor.expression import ExpressionEngine, ExpressionLimits, OverLimit
from stockade.executor.expression.cost import FUNCTIONS

# Some 100 MiB of it are what Python and the library have mapped.
MEMORY = 512 << 20
SECONDS = 100.0

_CHILD = """
import json, resource, sys
from stockade.executor.expression import ExpressionEngine, ExpressionError
engine = ExpressionEngine()
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
for line in sys.stdin:
    source, value = json.loads(line)
    try:
        engine.compile(source, tenant="one").evaluate(value)
        print("value", flush=True)
    except ExpressionError as error:
        print(type(error).__name__, flush=True)
"""


def ended(pairs: list[tuple[str, object]]) -> list[str]:
    """How each ended, in one process."""
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(MEMORY)],
        input="".join(json.dumps(pair) + "\n" for pair in pairs),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    assert len(child.stdout.split()) == len(pairs)
    return child.stdout.split()


# Each with an input that is a number of elements, bytes or so: what it does with more is to be
# refused, what it does with fewer is to be done.
_GROWS = (
    "input.l.map(x, x)",
    "input.l.map(x, [x, x, x, x, x, x])",
    "input.l.map(x, input.l)",
    "input.l.map(x, input.l.map(y, x))",
    "input.l.map(x, input.s)",
    "input.l.map(x, input.s + input.s)",
    "input.l.filter(x, x in input.l)",
    "input.l.all(x, input.l == input.l)",
    "input.l.map(x, input.l).map(x, input.l).map(x, input.l)",
    "input.l.map(x, [input, input]).map(y, [y, y]).map(z, [z, z])",
    "cel.bind(a, input.s + input.s, cel.bind(b, a + a, cel.bind(c, b + b, c + c)))",
    "cel.bind(a, [input, input], cel.bind(b, [a, a], cel.bind(c, [b, b], [c, c])))",
    "input.s.replace('x', input.s)",
    "input.s.replace('', input.s)",
    "input.s.split('').join(input.s)",
    "input.s.split('').map(x, x + input.s)",
    "input.s.split('').map(x, input.s.split(''))",
    "(input.s + input.s).indexOf(input.s + 'y')",
    "(input.s + 'z' + input.s).lastIndexOf(input.s + 'y')",
    "input.l.all(x, !(input.s + input.s).contains(input.s + 'y'))",
    "input.l.all(x, !input.s.matches('(.{0,9}){0,8}y'))",
    "input.l.all(x, !input.s.matches('(x|xx)*(x?){100}y'))",
    "input.l.all(x, base64.encode(bytes(input.s)) != '')",
    "input.l.all(x, input.s.reverse().lowerAscii().trim() != '')",
    "input.l.all(x, timestamp('2026-01-01T00:00:00Z').getHours('Europe/Berlin') > 9)",
    "input.l.map(x, {'a': input, 'b': input})",
    "input.l.map(x, string(x) + string(x))",
    # A loop's variable may be called as the input is; ".input" is the input all the same.
    "['a'].map(input, .input.l.map(x, .input.l))",
    "cel.bind(input, 1, [.input, .input].map(x, [x, x]).map(x, [x, x]).map(x, [x, x]))",
    "strings.quote(strings.quote(strings.quote(input.s)))",
)


@pytest.mark.parametrize("size", [10, 300, 1_000, 3_000, 20_000, 200_000])
def test_growth_is_refused_before_it_happens(size: int) -> None:
    value = {"s": "x" * size, "l": list(range(size // 9))}
    outcomes = ended([(source, value) for source in _GROWS])
    assert set(outcomes) <= {"value", "OverLimit"}
    if size <= 10:
        assert set(outcomes) == {"value"}
    if size >= 20_000:
        assert outcomes.count("OverLimit") > len(_GROWS) // 2


def test_a_string_that_doubles_again_and_again() -> None:
    """A megabyte and eight doublings were 256 MB in the library."""
    source = "cel.bind(a, input, " + "cel.bind(a, a + a, " * 8 + "size(a)" + ")" * 9
    assert ended([(source, "x" * 200_000), (source, "x" * 1_000)]) == ["OverLimit", "value"]


def test_loops_in_loops_end() -> None:
    inner = "true"
    for name in "abcdef":
        inner = f"input.all({name}, {inner})"
    assert ended([(inner, list(range(100))), (inner, [1, 2])]) == ["OverLimit", "value"]


def test_a_regular_expression_does_not_backtrack() -> None:
    patterns = ["(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*)*$", "^(([a-z])+.)+[A-Z]([a-z])+$"]
    text = "a" * 30_000 + "!"
    outcomes = ended([(f"input.matches('{pattern}')", text) for pattern in patterns])
    assert outcomes == ["value"] * len(patterns)


@pytest.mark.parametrize(
    "opening", ["(", "[", "{'a':", "!(", "-(", "has(", "int(", "true ? (", "'"]
)
def test_deeply_nested_sources_are_refused(opening: str) -> None:
    sources = [opening * count for count in (10, 31, 33, 500, 8_192 // len(opening))]
    assert "value" not in ended([(source, None) for source in sources])


@pytest.mark.parametrize(
    "source",
    [
        "1" + "+1" * 4000,
        "true" + "&&true" * 1300,
        "[1]" + ".map(x,x)" * 900,
        "-" * 8000 + "1",
        "input" + "[0]" * 2700,
        "''" + "+''" * 2700,
        "." * 8192,
        "@" * 8192,
        "9" * 8192,
        "1e" + "9" * 8000,
        "'" + "\\u00e9" * 1300 + "'",
        "//" * 4000,
        "a" * 8192,
        "\n" * 8192,
    ],
)
def test_long_sources_end(source: str) -> None:
    assert len(ended([(source, None)])) == 1


def test_random_sources_neither_crash_nor_hang() -> None:
    """Strings of the language's own pieces, and of any characters at all."""
    chance = random.Random(20261130)
    pieces = [
        *("input", ".a", "[0]", "['a']", "(", ")", "[", "]", "{", "}", ",", ":", "?", "!", "-"),
        *("+", "*", "/", "%", "==", "<", "&&", "||", " in ", "1", "1u", "1.5", "'a'", "b'a'"),
        *("null", "true", "x", "\n", ".map(x, ", ".all(x, ", ".filter(x, ", "cel.bind(x, "),
        *("has(", "dyn(", "int", "'\\x", "r'", '"""', "//", "0x", "..", "\\", "\t", "é", "😀"),
        *(
            f"{name}(" if "." in name else f".{name}("
            for name in sorted(FUNCTIONS)
            if name[0] != "_"
        ),
    ]
    sources = [
        "".join(chance.choice(pieces) for _ in range(chance.randrange(1, 25))) for _ in range(3_000)
    ]
    sources += [
        "".join(chr(chance.randrange(1, 0x500)) for _ in range(chance.randrange(1, 60)))
        for _ in range(500)
    ]
    pairs: list[tuple[str, object]] = [(source, {"a": ["a", 1]}) for source in sources]
    assert set(ended(pairs)) <= {"value", "InvalidExpression", "EvaluationFailed", "OverLimit"}


def test_random_valid_expressions_stay_within_their_bounds() -> None:
    """Grown from the grammar, so that most of them compile."""
    chance = random.Random(7)

    def grown(depth: int, names: tuple[str, ...]) -> str:
        if depth == 0:
            return chance.choice([*names, "1", "'ab'", "[1, 2]", "input.l", "input.s", "input"])
        one, two = (grown(depth - 1, names) for _ in range(2))
        inner = grown(depth - 1, (*names, "v"))
        return chance.choice(
            [
                *(f"dyn({one}) + dyn({two})", f"[{one}, {two}]", f"{{'a': {one}, 'b': {two}}}"),
                *(f"dyn({one}).map(v, {inner})", f"dyn({one}).filter(v, {inner} == v)"),
                *(f"dyn({one}).all(v, {inner} != {two})", f"cel.bind(v, {one}, {inner})"),
                *(f"dyn({one}).split('')", f"dyn({one}).replace('a', dyn({two}))"),
                *(
                    f"dyn({one}).join(dyn({two}))",
                    f"string(dyn({one}))",
                    f"dyn({one}) in dyn({two})",
                ),
                *(f"dyn({one}) == {two} ? {one} : {two}", f"dyn({one})[dyn({two})]"),
            ]
        )

    value = {"l": list(range(400)), "s": "ab" * 2_000}
    pairs: list[tuple[str, object]] = [
        (grown(chance.randrange(1, 5), ("input",)), value) for _ in range(1_000)
    ]
    outcomes = ended(pairs)
    assert outcomes.count("value") > 50


def test_the_bound_follows_the_size_of_the_input() -> None:
    expression = ExpressionEngine().compile("input.map(x, x)", tenant="one")
    assert expression.evaluate(list(range(1_000))) == list(range(1_000))
    with pytest.raises(OverLimit) as refusal:
        expression.evaluate(list(range(5_000)))
    assert refusal.value.limit == "work"
    assert "5000 elements" in refusal.value.sentence
    assert expression.evaluate([1]) == [1]


def test_more_iterations_than_the_library_allows_are_a_limit() -> None:
    engine = ExpressionEngine(ExpressionLimits(work=200 << 20))
    with pytest.raises(OverLimit) as refusal:
        engine.compile("input.all(x, true)", tenant="one").evaluate([1] * 11_000)
    assert refusal.value.limit == "iterations"
