"""Compiles expressions, keeps them, evaluates them."""

import re
import threading
from collections import OrderedDict
from typing import Any, Final

from cel_expr_python import cel  # type: ignore[import-untyped]
from cel_expr_python.ext import (  # type: ignore[import-untyped]
    ext_bindings,
    ext_encoders,
    ext_math,
    ext_strings,
)

from stockade.executor.expression.cost import INPUT, check_calls, worst_case
from stockade.executor.expression.errors import (
    EvaluationFailed,
    InvalidExpression,
    OverLimit,
    Place,
)
from stockade.executor.expression.immortal_none import keep_none_alive
from stockade.executor.expression.limits import MOST_ITERATIONS, ExpressionLimits
from stockade.executor.expression.tree import Call, Node, Select, Tree, read_tree
from stockade.executor.expression.values import JSON, Measure, check_output, measure_input

_LONGEST_SENTENCE: Final = 300
_MOST_PLACES: Final = 3

# What the library says of a mistake: the first of them, and what comes before its picture.
_MISTAKE: Final = re.compile(
    r"ERROR: <input>:(-?\d+):(-?\d+): (.*?)(?=\n \| |\nERROR: |$)", re.DOTALL
)
_NO_CHARACTER: Final = re.compile("[\0\ud800-\udfff]")
_STATUS: Final = re.compile(r"\A[A-Z_]+: |(?: \[[A-Z_]+\])\Z")
_RULES: Final = (
    ("Syntax error", "syntax"),
    ("undeclared reference", "name"),
    ("no matching overload", "type"),
    ("recursion", "nesting"),
)
_ARITHMETIC: Final = frozenset({"_+_", "_-_", "_*_", "_/_", "_%_", "-_"})


class Expression:
    """A compiled expression. :class:`ExpressionEngine` makes it."""

    __slots__ = ("_admitted", "_largest", "_limits", "_program", "_tree", "source")

    def __init__(self, source: str, program: Any, tree: Tree, limits: ExpressionLimits) -> None:
        self.source = source
        self._program = program
        self._tree = tree
        self._limits = limits
        # Of the size of an input and of its longest list: the numbers of their binary digits.
        self._admitted: set[tuple[int, int]] = set()
        self._largest: dict[tuple[int, int], Measure] = {}

    def __repr__(self) -> str:
        return f"<Expression {self.source!r:.60}>"

    @property
    def nodes(self) -> int:
        """How large its tree is."""
        return len(self._tree.nodes)

    def evaluate(self, value: JSON) -> JSON:
        """Its value where ``input`` is ``value``.

        Raises :class:`EvaluationFailed` or :class:`OverLimit`. It blocks, for as long as
        ``ExpressionLimits.work`` says at the most.
        """
        self._admit(measure_input(value, self._limits))
        try:
            result = self._program.eval(data={INPUT: value})
            made = result.plain_value()
        except RuntimeError as error:
            raise self._failure(str(error)) from None
        if made is None or type(made) is bool:
            return made
        # An error is a value too, and as a plain one a text.
        if type(made) is str and result.type() == cel.Type.ERROR:
            raise self._failure(made)
        return check_output(made, self._limits)

    def _admit(self, measure: Measure) -> None:
        """Raises :class:`OverLimit` where the worst case of so large an input is too much."""
        steps = measure.size.bit_length(), measure.longest.bit_length()
        if steps in self._admitted:
            return
        # What holds for the largest of a kind holds for all of it; else each is looked at.
        known = self._largest.get(steps)
        if known is None:
            if self._costs(Measure(1 << steps[0], 1 << steps[1])) <= self._limits.work:
                self._admitted.add(steps)
                return
            known = self._largest[steps] = Measure(0, 0)
        if measure.size <= known.size and measure.longest <= known.longest:
            return
        if self._costs(measure) > self._limits.work:
            raise OverLimit(
                "work",
                f"with an input of {measure.size} bytes, whose longest list has {measure.longest} "
                f"elements, it could take more than {self._limits.work} steps: make the input "
                "smaller or the expression simpler",
            )
        self._largest[steps] = measure

    def _costs(self, measure: Measure) -> float:
        return worst_case(self._tree.root, measure)

    def _failure(self, said: str) -> Exception:
        if "Iteration budget exceeded" in said:
            return OverLimit("iterations", f"its loops take more than {MOST_ITERATIONS} steps")
        sentence = _one_line(said)
        return EvaluationFailed(sentence, places=self._suspects(sentence))

    def _suspects(self, sentence: str) -> list[Place]:
        """Where in the source this can have happened; all of it where nobody knows."""
        nodes = [node for node in self._tree.nodes if _can_say(node, sentence)]
        places = sorted({self._tree.place(node) for node in nodes})
        if not 1 <= len(places) <= _MOST_PLACES:
            return [self._tree.place(self._tree.root)]
        return places


def _can_say(node: Node, sentence: str) -> bool:
    if isinstance(node, Select):
        return sentence == f'Key not found in map : "{node.field}"' or "SELECT" in sentence
    if not isinstance(node, Call):
        return False
    function = node.function
    if "overload" in sentence:
        return f": {function}(" in sentence
    return (
        (function == "_/_" and "divide by zero" in sentence)
        or (function == "_%_" and "modulus by zero" in sentence)
        or (function in _ARITHMETIC and "overflow" in sentence)
        or (function == "_[_]" and ("Key not found" in sentence or "index" in sentence.lower()))
        or (function == "matches" and "regular expression" in sentence)
        or (function in ("int", "uint", "double", "bool") and f"to {function}" in sentence)
    )


class ExpressionEngine:
    """Compiles expressions for tenants. Safe to use from several threads."""

    def __init__(self, limits: ExpressionLimits | None = None) -> None:
        keep_none_alive()
        self._limits = limits or ExpressionLimits()
        self._environment: Final = cel.NewEnv(
            variables={INPUT: cel.Type.DYN},
            extensions=[
                ext_bindings.ExtBindings(),
                ext_encoders.ExtEncoders(),
                ext_math.ExtMath(),
                ext_strings.ExtStrings(),
            ],
        )
        # Tenants and the expressions of each, the least recently used first.
        self._kept: OrderedDict[str, OrderedDict[str, Expression]] = OrderedDict()
        self._nodes_kept = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        count = sum(map(len, self._kept.values()))
        return f"<ExpressionEngine: {count} of {len(self._kept)} tenants, {self._nodes_kept} nodes>"

    def compile(self, source: str, *, tenant: str) -> Expression:
        """The expression, compiled once per tenant for as long as it is kept.

        Raises :class:`InvalidExpression`.
        """
        self._check_length(source)
        with self._lock:
            own = self._kept.get(tenant)
            if own is not None and (found := own.get(source)) is not None:
                own.move_to_end(source)
                self._kept.move_to_end(tenant)
                return found
            _check_characters(source)
            expression = self._compile(source)
            self._keep(tenant, expression)
            return expression

    def forget(self, tenant: str) -> None:
        """Drop what is kept of a tenant."""
        with self._lock:
            for expression in self._kept.pop(tenant, {}).values():
                self._nodes_kept -= expression.nodes

    def _check_length(self, source: str) -> None:
        if type(source) is not str:
            raise InvalidExpression(1, 1, "source", "it is no text")
        most = self._limits.source_characters
        if len(source) > most:
            sentence = f"it has {len(source)} characters; at most {most} are accepted"
            raise InvalidExpression(1, 1, "length", sentence)

    def _compile(self, source: str) -> Expression:
        try:
            program = self._environment.compile(source)
            serialized = program.serialize()
        except RuntimeError as error:
            raise _invalid(str(error)) from None
        tree = read_tree(serialized, source, self._limits.nodes)
        check_calls(tree)
        self._check_constant_cost(tree)
        return Expression(source, program, tree, self._limits)

    def _check_constant_cost(self, tree: Tree) -> None:
        if worst_case(tree.root, Measure(8, 0)) > self._limits.work:
            raise InvalidExpression(
                *tree.place(tree.root),
                "work",
                f"whatever its input is, it could take more than {self._limits.work} steps",
            )

    def _keep(self, tenant: str, expression: Expression) -> None:
        own = self._kept.setdefault(tenant, OrderedDict())
        self._kept.move_to_end(tenant)
        own[expression.source] = expression
        self._nodes_kept += expression.nodes
        while len(own) > 1 and (
            len(own) > self._limits.cached
            or sum(kept.nodes for kept in own.values()) > self._limits.cached_nodes
        ):
            self._nodes_kept -= own.popitem(last=False)[1].nodes
        while self._nodes_kept > self._limits.cached_nodes_together and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._nodes_kept -= sum(kept.nodes for kept in dropped.values())


def _check_characters(source: str) -> None:
    if found := _NO_CHARACTER.search(source):
        line = source.count("\n", 0, found.start()) + 1
        column = found.start() - source.rfind("\n", 0, found.start())
        raise InvalidExpression(line, column, "source", f"{found[0]!r} is no character")


def _invalid(said: str) -> InvalidExpression:
    """What the library says of a source, its first mistake only."""
    found = _MISTAKE.search(said)
    line, column, sentence = (1, 1, said) if found is None else found.groups()
    sentence = _one_line(sentence)
    rule = next((rule for words, rule in _RULES if words in sentence), "invalid")
    # It says -1 where it does not know.
    return InvalidExpression(max(1, int(line)), max(1, int(column)), rule, sentence)


def _one_line(said: str) -> str:
    text = _STATUS.sub("", _STATUS.sub("", said)).strip()
    text = "".join(c if c.isprintable() else " " for c in text[: 2 * _LONGEST_SENTENCE])
    return text if len(text) <= _LONGEST_SENTENCE else text[: _LONGEST_SENTENCE - 3] + "..."
