"""A source that cannot be compiled is refused with its line, its column, a rule and a sentence."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.expression.conftest import Evaluate

from stockade.executor.expression import (
    EvaluationFailed,
    ExpressionEngine,
    ExpressionLimits,
    InvalidExpression,
    Place,
)
from stockade.executor.expression.regular_expression import weight
from stockade.port import InvalidRequest


def refusal(engine: ExpressionEngine, source: str) -> InvalidExpression:
    with pytest.raises(InvalidExpression) as caught:
        engine.compile(source, tenant="one")
    assert caught.value.line >= 1
    assert caught.value.column >= 1
    assert caught.value.sentence.isprintable()
    assert len(caught.value.sentence) <= 300
    return caught.value


@pytest.mark.parametrize(
    ("source", "line", "column", "rule"),
    [
        ("", 1, 1, "syntax"),
        ("1 +", 1, 4, "syntax"),
        ("input.a ==\n  == 1", 2, 3, "syntax"),
        ("input.a\n&& missing", 2, 4, "name"),
        ("1 + 'a'", 1, 3, "type"),
        ("'é😀' + 1", 1, 6, "type"),
        ("(" * 100 + "1" + ")" * 100, 1, 1, "nesting"),
        ("1" + "+1" * 200, 1, 1, "nesting"),
        ("input" + ".a" * 200, 1, 1, "nesting"),
        ("'a'\n + 'b\0'", 2, 6, "source"),
        ("'\ud800'", 1, 2, "source"),
        ("x" * 9000, 1, 1, "length"),
        ("[" + "1," * 3000 + "1]", 1, 1, "nodes"),
        ("\n 'a'.matches(input)", 2, 13, "regular-expression"),
        ("'a'.matches('(a{0,90}){0,90}')", 1, 13, "regular-expression"),
        ("'%d'.format([1])", 1, 12, "function"),
        ("google.protobuf.Struct{}", 1, 1, "message"),
        ("[1].map(a, b)", 1, 12, "name"),
    ],
)
def test_the_place_and_the_rule(
    engine: ExpressionEngine, source: str, line: int, column: int, rule: str
) -> None:
    refused = refusal(engine, source)
    if rule == "nodes":
        assert refused.rule == rule
    else:
        assert (refused.line, refused.column, refused.rule) == (line, column, rule)


def test_what_is_no_text_is_refused(engine: ExpressionEngine) -> None:
    assert refusal(engine, b"1").rule == "source"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "source",
    [
        # Each doubles what the one before made.
        "cel.bind(a, 'xxxxxxxxxxxxxxxx', "
        + "".join("cel.bind(a, a + a, " for _ in range(25))
        + "size(a)"
        + ")" * 26,
        "[[1]]" + ".map(a, [a, a])" * 28,
        "['xxxxxxxx']" + ".map(a, a + a)" * 28,
        "'xxxxxxxxxxxxxxxxxxxxxxxx'" + ".replace('x', 'xxxxxxxxxxxxxxxx')" * 8,
        "'xxxxxxxxxxxxxxxxxxxxxxxx'" + ".split('').join('xxxxxxxxxxxxxxxxxxxxx')" * 8,
    ],
)
def test_what_grows_without_any_input_is_refused(engine: ExpressionEngine, source: str) -> None:
    assert refusal(engine, source).rule in ("work", "nesting")


@pytest.mark.parametrize(
    ("source", "value", "places"),
    [
        ("input.a", {}, [Place(1, 6)]),
        ("true &&\n input.a.b == 1", {"a": {}}, [Place(2, 9)]),
        ("1 + 6 / input", 0, [Place(1, 7)]),
        ("input % 0", 1, [Place(1, 7)]),
        ("input['a']", {}, [Place(1, 6)]),
        ("input[5]", [1], [Place(1, 6)]),
        ("input + 9223372036854775807", 1, [Place(1, 7)]),
        ("input.a + 1", {"a": "text"}, [Place(1, 9)]),
        ("input.a == input.b.a", {}, [Place(1, 6), Place(1, 19)]),
        ("[1, 2].all(x, int(input) == x)", "no number", [Place(1, 18)]),
    ],
)
def test_an_evaluation_error_names_its_place(
    evaluate: Evaluate, source: str, value: object, places: list[Place]
) -> None:
    with pytest.raises(EvaluationFailed) as failure:
        evaluate(source, value)
    assert failure.value.places == tuple(places)


def test_an_error_that_nobody_can_place_names_the_whole(evaluate: Evaluate) -> None:
    with pytest.raises(EvaluationFailed) as failure:
        evaluate("base64.decode(input)", "!")
    assert failure.value.places == (Place(1, 14),)


def test_a_text_that_looks_like_an_error_is_a_text(evaluate: Evaluate) -> None:
    said = "INVALID_ARGUMENT: divide by zero"
    assert evaluate("input", said) == said


def test_a_source_is_compiled_once(engine: ExpressionEngine) -> None:
    first = engine.compile("input + 1", tenant="one")
    assert engine.compile("input + 1", tenant="one") is first
    assert engine.compile("input + 2", tenant="one") is not first


def test_tenants_share_nothing(engine: ExpressionEngine) -> None:
    first = engine.compile("input + 1", tenant="one")
    assert engine.compile("input + 1", tenant="two") is not first
    engine.forget("two")
    assert engine.compile("input + 1", tenant="one") is first


def test_a_refused_source_is_not_kept(engine: ExpressionEngine) -> None:
    for _ in range(3):
        refusal(engine, "input +")
    assert repr(engine) == "<ExpressionEngine: 0 of 0 tenants, 0 nodes>"


def test_the_least_recently_used_is_dropped() -> None:
    engine = ExpressionEngine(ExpressionLimits(cached=2))
    first = engine.compile("1", tenant="one")
    second = engine.compile("2", tenant="one")
    assert engine.compile("1", tenant="one") is first
    engine.compile("3", tenant="one")
    assert engine.compile("1", tenant="one") is first
    assert engine.compile("2", tenant="one") is not second


def test_the_nodes_that_are_kept_are_bounded() -> None:
    engine = ExpressionEngine(ExpressionLimits(cached_nodes=10, cached_nodes_together=20))
    for tenant in ("one", "two", "three", "four"):
        for number in range(10):
            engine.compile(f"[{number}, 1, 2]", tenant=tenant)  # of four nodes
    assert repr(engine) == "<ExpressionEngine: 4 of 2 tenants, 16 nodes>"
    engine.forget("three")
    engine.forget("four")
    assert repr(engine) == "<ExpressionEngine: 0 of 0 tenants, 0 nodes>"


def test_an_expression_outlives_its_engine() -> None:
    expression = ExpressionEngine().compile("input + 1", tenant="one")
    gc.collect()
    assert expression.evaluate(1) == 2


def test_threads_may_share_an_engine(engine: ExpressionEngine) -> None:
    barrier = threading.Barrier(4)

    def work(number: int) -> int:
        barrier.wait()
        total = 0
        for i in range(200):
            made = engine.compile(f"input * {i % 7}", tenant=f"t{i % 3}").evaluate(number)
            assert made == number * (i % 7)
            total += 1
        return total

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [200] * 4


def test_a_limit_out_of_range_is_refused() -> None:
    for wrong in (0, -1, 1 << 40, 1.5, True, "1"):
        with pytest.raises(InvalidRequest):
            ExpressionLimits(work=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        ("abc", 3),
        ("a{50}", 50),
        ("(a{9}){9}", 81),
        ("((a|b){2,7}c){3,}", 7 * 2 * 4),
        (r"\pL{5}", 5 * 700),
        (r"[\p{Lu}]{2}", 2 * 700),
        (r"(?i)\pL", 4 * 700),
        (".{40}", 400),
        (r"\Q[\E.{1000}]", 1000),
        ("[^a]{20}", 200),
        ("(?:a{3}(?P<n>b{4}))", 7),
        ("a{1000}", 1000),
    ],
)
def test_a_regular_expression_is_not_underestimated(pattern: str, least: int) -> None:
    assert weight(pattern) >= least


@pytest.mark.parametrize(
    "pattern",
    ["^[a-z0-9._%+-]+@[a-z0-9.-]+\\\\.[a-z]{2,}$", "\\\\d{4}-\\\\d{2}-\\\\d{2}", "(a+)+$"],
)
def test_an_ordinary_regular_expression_is_accepted(evaluate: Evaluate, pattern: str) -> None:
    assert evaluate(f"input.matches('{pattern}')", "!") is False
