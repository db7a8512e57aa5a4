"""The most that an expression can cost, worked out from its tree before it runs.

CEL has no recursion and its loops go over values that are there, so the worst case follows from
the size of the input. The library bounds only the number of iterations: within it, 14 `map` one
after another double a list 14 times, and a `map` alone copies its list anew for every element.

Every size is an upper bound, and counted as ``ExpressionLimits`` counts it. Within a loop it is
linear in the sizes of the loops' variables: what a loop does with its elements then sums up to
the size of the list and not to its length times the largest element.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stockade.executor.expression.errors import InvalidExpression
from stockade.executor.expression.limits import MOST_ITERATIONS
from stockade.executor.expression.regular_expression import weight
from stockade.executor.expression.tree import (
    Call,
    Collection,
    Constant,
    Loop,
    Name,
    Node,
    Select,
    Tree,
)
from stockade.executor.expression.values import PER_VALUE, Measure

INPUT: Final = "input"

# In units of work, each about a nanosecond on a slow machine (docs/expressions.md says how it was
# measured).
_PER_NODE: Final = 150
_PER_INPUT: Final = 24  # conversion into the library's values, and out of them
_PER_OUTPUT: Final = 24
_PER_COMPARED: Final = 8
_PER_COPY: Final = 40  # of one element, when `map` and `filter` make their list anew
_PER_PIECE: Final = 128  # of a text that is split or replaced
_PER_INSTRUCTION: Final = 4_000  # to compile a regular expression
_PER_TIME: Final = 1_000  # to parse or to write a time
_PER_ZONE: Final = 5_000
_SHORT: Final = 32.0  # a number or a time as text

HEAVIEST_PATTERN: Final = 1_000

# A name below the system's time zones; never a path, which the library would open.
_ZONE: Final = re.compile(r"UTC|[+-]?\d\d:\d\d|[A-Z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")


class Size(NamedTuple):
    """``constant``, and for each loop around (the outermost first) a factor of its variable."""

    constant: float
    factors: tuple[float, ...] = ()

    def plus(self, other: "Size") -> "Size":
        """Both together."""
        longer, shorter = self.factors, other.factors
        if len(longer) < len(shorter):
            longer, shorter = shorter, longer
        factors = (*map(sum, zip(longer, shorter, strict=False)), *longer[len(shorter) :])
        return Size(self.constant + other.constant, factors)

    def times(self, factor: float) -> "Size":
        """So many of it."""
        return Size(self.constant * factor, tuple(factor * f for f in self.factors))


class Bound(NamedTuple):
    """Of a value: its size, and the length of the longest list or map in it."""

    size: Size
    longest: float = 0.0


_SCALAR: Final = Bound(Size(PER_VALUE))
_EMPTY: Final = Bound(Size(0.0))


class _Frame(NamedTuple):
    """A loop that is around."""

    length: float
    executions: float
    """Of its body, in the whole evaluation."""
    peak: float
    """The size of its variable at the most."""
    total: float
    """The sizes of its variable in all its iterations together."""


def worst_case(root: Node, measure: Measure) -> float:
    """The work of one evaluation with an input of that measure, at the most."""
    return _Estimate(measure).evaluation(root)


@dataclass(slots=True)
class _Estimate:
    measure: Measure
    work: float = 0.0
    frames: list[_Frame] = field(default_factory=list)
    scope: dict[str, Bound] = field(default_factory=dict)

    def evaluation(self, root: Node) -> float:
        result = self.of(root)
        self.charge(result.size.times(_PER_OUTPUT))
        return self.work + self.measure.size * _PER_INPUT

    def charge(self, size: Size) -> None:
        """Work that is done once in every execution of what is around."""
        self.work += self.total(size)

    def peak(self, size: Size) -> float:
        """The largest that it can be."""
        return size.constant + sum(
            factor * frame.peak
            for factor, frame in zip(size.factors, self.frames, strict=False)
            if factor
        )

    def _executions(self) -> float:
        return self.frames[-1].executions if self.frames else 1.0

    def total(self, size: Size) -> float:
        """The sum over all executions."""
        executions = self._executions()
        result = size.constant * executions
        inner = 1.0  # iterations of the loops within this one, per iteration of it
        for index in range(len(self.frames) - 1, -1, -1):
            frame = self.frames[index]
            if index < len(size.factors) and (factor := size.factors[index]):
                result += factor * min(executions * frame.peak, frame.total * inner)
            inner *= frame.length
        return result

    def of(self, node: Node) -> Bound:
        """The bound of a node's value. Charges what it takes to compute it."""
        self.charge(Size(_PER_NODE))
        match node:
            case Constant():
                return Bound(Size(PER_VALUE + node.size))
            case Name(name=name):
                return self._named(name)
            case Select():
                return self.of(node.operand)
            case Collection(parts=parts, is_list=is_list):
                bounds = [self.of(part) for part in parts]
                length = len(parts) / (1 if is_list else 2)
                return Bound(
                    _sum(bounds).plus(Size(PER_VALUE)),
                    max([length, *(bound.longest for bound in bounds)]),
                )
            case Call():
                bounds = [self.of(argument) for argument in node.arguments]
                price = _FUNCTIONS[node.function]
                return _SCALAR if price is None else price(_Called(self, node, bounds))
            case Loop():
                return self._loop(node)

    def _named(self, name: str) -> Bound:
        own = self.scope.get(name.lstrip("."))
        # ".input" is the input even where a loop's variable is called so too.
        if own is not None and name != INPUT and not name.startswith("."):
            return own
        whole = Bound(Size(self.measure.size), self.measure.longest)
        if own is None:  # the input, or the name of a type, which is smaller
            return whole
        return Bound(own.size.plus(whole.size), max(own.longest, whole.longest))

    def _loop(self, node: Loop) -> Bound:
        initial = self.of(node.initial)
        if _is_bind(node):
            return self._within({node.accumulator: initial}, node.result)
        over = self.of(node.range)
        length = min(over.longest, MOST_ITERATIONS)
        frame = _Frame(
            length,
            min(self._executions() * length, MOST_ITERATIONS),
            self.peak(over.size),
            self.total(over.size),
        )
        depth = len(self.frames)
        self.frames.append(frame)
        variable = Bound(Size(0.0, (0.0,) * depth + (1.0,)), over.longest)
        names = {node.variable: variable, node.accumulator: _EMPTY}
        self._within(names, node.condition)
        step = self._within(names, node.step)
        collects = isinstance(node.initial, Collection)
        if collects:
            self.charge(Size(length / 2 * _PER_COPY))
        self.frames.pop()
        if not collects:
            return self._within({node.accumulator: _SCALAR}, node.result)
        # For each of the iterations together: what was linear in this loop's variable is linear
        # in its list.
        own = step.size.factors[depth] if len(step.size.factors) > depth else 0.0
        around = Size(step.size.constant, step.size.factors[:depth]).times(length)
        size = around.plus(over.size.times(own)).plus(Size(PER_VALUE))
        return self._within({node.accumulator: Bound(size, max(length, step.longest))}, node.result)

    def _within(self, names: Mapping[str, Bound], node: Node) -> Bound:
        before = self.scope
        self.scope = {**before, **names}
        result = self.of(node)
        self.scope = before
        return result


def _is_bind(node: Loop) -> bool:
    return isinstance(node.range, Collection) and not node.range.parts


def _sum(bounds: Sequence[Bound]) -> Size:
    size = Size(0.0)
    for bound in bounds:
        size = size.plus(bound.size)
    return size


# --- the functions: what each charges, and how large its value is -----------------------------
# One that is not here is refused.


class _Called(NamedTuple):
    estimate: _Estimate
    node: Call
    bounds: Sequence[Bound]

    def charge(self, size: Size) -> None:
        self.estimate.charge(size)

    def peak(self, index: int) -> float:
        """The largest size of an argument; of one that is not there, 0."""
        return self.estimate.peak(self.bounds[index].size) if index < len(self.bounds) else 0.0


_Function = Callable[[_Called], Bound]


def _reads(called: _Called) -> Bound:
    """It goes over its arguments once."""
    called.charge(_sum(called.bounds))
    return _SCALAR


def _compares(called: _Called) -> Bound:
    """It ends with the smaller one."""
    first, second = called.bounds[0].size, called.bounds[1].size
    estimate = called.estimate
    smaller = first if estimate.total(first) <= estimate.total(second) else second
    called.charge(smaller.times(_PER_COMPARED))
    return _SCALAR


def _looks_through(called: _Called) -> Bound:
    called.charge(called.bounds[1].size.times(_PER_COMPARED))
    return _SCALAR


def _joins(called: _Called) -> Bound:
    """Its value holds what is in its arguments."""
    size = _sum(called.bounds)
    called.charge(size.times(2))
    return Bound(size, sum(bound.longest for bound in called.bounds))


def _chooses(called: _Called) -> Bound:
    return Bound(_sum(called.bounds[1:]), max(bound.longest for bound in called.bounds))


def _takes(called: _Called) -> Bound:
    """Its value is a part of the first argument."""
    return called.bounds[0]


def _rewrites(called: _Called) -> Bound:
    """Its value is a text, not larger than twice the first."""
    text = called.bounds[0].size
    called.charge(text.times(8))
    return Bound(text.times(2).plus(Size(_SHORT)))


def _finds(called: _Called) -> Bound:
    """Every place of the text may be compared with the whole of what is looked for."""
    text, needle = called.bounds[0].size, called.bounds[1].size
    called.charge(text.times(4 + called.peak(1) / 16).plus(needle))
    return _SCALAR


def _replaces(called: _Called) -> Bound:
    text = called.bounds[0].size
    size = text.plus(Size(1.0)).times(1 + called.peak(2))
    called.charge(text.times(_PER_PIECE + called.peak(1) / 16).plus(size.times(2)))
    return Bound(size)


def _splits(called: _Called) -> Bound:
    text = called.bounds[0].size.plus(Size(1.0))
    called.charge(text.times(_PER_PIECE + called.peak(1) / 16))
    return Bound(text.times(1 + PER_VALUE), called.estimate.peak(text))


def _writes_list(called: _Called) -> Bound:
    size = called.bounds[0].size.times(1 + called.peak(1) / PER_VALUE)
    called.charge(size.times(2))
    return Bound(size)


def _parses_time(called: _Called) -> Bound:
    called.charge(Size(_PER_TIME).plus(called.bounds[0].size))
    return _SCALAR


def _reads_clock(called: _Called) -> Bound:
    called.charge(Size(_PER_ZONE if len(called.bounds) > 1 else _PER_TIME))
    return _SCALAR


def _matches(called: _Called) -> Bound:
    pattern = called.node.arguments[1]
    assert isinstance(pattern, Constant)
    instructions = weight(pattern.text or "")
    called.charge(Size(instructions * _PER_INSTRUCTION))
    called.charge(called.bounds[0].size.times(4 + instructions / 2))
    return _SCALAR


_FUNCTIONS: Final[dict[str, _Function | None]] = {
    # None: as much work as any other node.
    **dict.fromkeys(("_&&_", "_||_", "!_", "-_", "@not_strictly_false", "type"), None),
    **dict.fromkeys(("_-_", "_*_", "_/_", "_%_"), None),
    **dict.fromkeys(("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"), _compares),
    **dict.fromkeys(("startsWith", "endsWith"), _compares),
    "@in": _looks_through,
    **dict.fromkeys(("int", "uint", "double", "bool", "size"), _reads),
    **dict.fromkeys(("math.@max", "math.@min"), _joins),
    **{
        f"math.{name}": None
        for name in (
            *("ceil", "floor", "round", "trunc", "abs", "sign", "sqrt"),
            *("isNaN", "isInf", "isFinite"),
            *("bitOr", "bitAnd", "bitXor", "bitNot", "bitShiftLeft", "bitShiftRight"),
        )
    },
    "_+_": _joins,
    "_?_:_": _chooses,
    "_[_]": _takes,
    "dyn": _takes,
    **dict.fromkeys(("string", "bytes", "base64.encode", "base64.decode"), _rewrites),
    **dict.fromkeys(("lowerAscii", "upperAscii", "trim", "reverse", "substring"), _rewrites),
    **dict.fromkeys(("charAt", "strings.quote"), _rewrites),
    **dict.fromkeys(("contains", "indexOf", "lastIndexOf"), _finds),
    "replace": _replaces,
    "split": _splits,
    "join": _writes_list,
    "matches": _matches,
    **dict.fromkeys(("timestamp", "duration"), _parses_time),
    **dict.fromkeys(
        (
            *("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek"),
            *("getDayOfYear", "getHours", "getMinutes", "getSeconds", "getMilliseconds"),
        ),
        _reads_clock,
    ),
}
FUNCTIONS: Final = frozenset(_FUNCTIONS)


def check_calls(tree: Tree) -> None:
    """Refuse what could cost too much whatever the input, and what reaches the host.

    Raises :class:`InvalidExpression`.
    """
    for node in tree.nodes:
        if not isinstance(node, Call):
            continue
        if node.function not in _FUNCTIONS:
            refuse = f"the function {node.function!r:.60} is not supported"
            raise InvalidExpression(*tree.place(node), "function", refuse)
        if node.function == "matches":
            _check_pattern(tree, node)
        if _FUNCTIONS[node.function] is _reads_clock and len(node.arguments) > 1:
            _check_zone(tree, node)


def _check_pattern(tree: Tree, node: Call) -> None:
    pattern = node.arguments[1] if len(node.arguments) == 2 else None
    if not isinstance(pattern, Constant) or pattern.text is None:
        sentence = "the pattern of matches() must be a literal text"
        raise InvalidExpression(*tree.place(node), "regular-expression", sentence)
    if weight(pattern.text) > HEAVIEST_PATTERN:
        sentence = "the regular expression is too large: repeat less, and use fewer \\p classes"
        raise InvalidExpression(*tree.place(pattern), "regular-expression", sentence)


def _check_zone(tree: Tree, node: Call) -> None:
    zone = node.arguments[1]
    if not isinstance(zone, Constant) or not _ZONE.fullmatch(zone.text or ""):
        sentence = "the time zone must be a literal: 'Europe/Berlin', '+01:00' or 'UTC'"
        raise InvalidExpression(*tree.place(node), "time-zone", sentence)
