"""The checked syntax tree of an expression, as small values.

The library gives it out as the protocol buffer ``cel.expr.CheckedExpr``; of its fields those are
described here that are read.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message,
    message_factory,
)

from stockade.executor.expression.errors import InvalidExpression, Place

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "int64": _FIELD.TYPE_INT64,
    "uint64": _FIELD.TYPE_UINT64,
    "int32": _FIELD.TYPE_INT32,
    "bool": _FIELD.TYPE_BOOL,
    "double": _FIELD.TYPE_DOUBLE,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}
# message: field: (number, type, repeated)
_SCHEMA: Final[dict[str, dict[str, tuple[int, str, bool]]]] = {
    "Any": {"type_url": (1, "string", False), "value": (2, "bytes", False)},
    "Checked": {"expr": (4, "Expr", False), "source_info": (5, "SourceInfo", False)},
    "SourceInfo": {"positions": (4, "Position", True)},
    "Position": {"id": (1, "int64", False), "offset": (2, "int32", False)},
    "Expr": {
        "id": (2, "int64", False),
        "constant": (3, "Constant", False),
        "ident": (4, "Ident", False),
        "select": (5, "Select", False),
        "call": (6, "Call", False),
        "list": (7, "List", False),
        "struct": (8, "Struct", False),
        "loop": (9, "Loop", False),
    },
    "Constant": {
        "bool": (2, "bool", False),
        "int": (3, "int64", False),
        "uint": (4, "uint64", False),
        "double": (5, "double", False),
        "string": (6, "string", False),
        "bytes": (7, "bytes", False),
    },
    "Ident": {"name": (1, "string", False)},
    "Select": {"operand": (1, "Expr", False), "field": (2, "string", False)},
    "Call": {
        "target": (1, "Expr", False),
        "function": (2, "string", False),
        "args": (3, "Expr", True),
    },
    "List": {"elements": (1, "Expr", True)},
    "Struct": {"message_name": (1, "string", False), "entries": (2, "Entry", True)},
    "Entry": {
        "field_key": (2, "string", False),
        "map_key": (3, "Expr", False),
        "value": (4, "Expr", False),
    },
    "Loop": {
        "variable": (1, "string", False),
        "range": (2, "Expr", False),
        "accumulator": (3, "string", False),
        "initial": (4, "Expr", False),
        "condition": (5, "Expr", False),
        "step": (6, "Expr", False),
        "result": (7, "Expr", False),
        "second_variable": (8, "string", False),
    },
}
_PACKAGE: Final = "stockade.expression"


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal. ``value`` of a text is a string, of anything else not of interest."""

    id: int
    size: int
    text: str | None


@dataclass(frozen=True, slots=True)
class Name:
    """A variable, or the name of a type."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """``operand.field``, or whether it is there."""

    id: int
    operand: "Node"
    field: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator; what a method is called on stands first."""

    id: int
    function: str
    arguments: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Collection:
    """A list, or the keys and values of a map."""

    id: int
    parts: tuple["Node", ...]
    is_list: bool


@dataclass(frozen=True, slots=True)
class Loop:
    """What ``all``, ``exists``, ``exists_one``, ``map``, ``filter`` and ``cel.bind`` expand to."""

    id: int
    variable: str
    range: "Node"
    accumulator: str
    initial: "Node"
    condition: "Node"
    step: "Node"
    result: "Node"


Node = Constant | Name | Select | Call | Collection | Loop


@dataclass(frozen=True, slots=True)
class Tree:
    """A whole expression."""

    root: Node
    nodes: tuple[Node, ...]
    places: Mapping[int, Place]
    """Of the nodes, by id."""

    def place(self, node: Node) -> Place:
        """Where it stands; the beginning where that is not known."""
        return self.places.get(node.id, Place(1, 1))


def read_tree(serialized: bytes, source: str, most_nodes: int) -> Tree:
    """Raises :class:`InvalidExpression` for a tree that is too large or too deep."""
    try:
        checked = _Checked.FromString(_Any.FromString(serialized).value)
    except message.DecodeError:  # the library reads a hundred messages deep, and no deeper
        raise InvalidExpression(1, 1, "nesting", "it is nested too deep: split it") from None
    places = _Places(source)
    return _Reader(
        {p.id: places.at(p.offset) for p in checked.source_info.positions}, most_nodes
    ).read(checked.expr)


class _Reader:
    def __init__(self, places: Mapping[int, Place], most: int) -> None:
        self._places = places
        self._most = most
        self._nodes: list[Node] = []

    def read(self, expression: Any) -> Tree:
        root = self._node(expression)
        return Tree(root, tuple(self._nodes), self._places)

    def _node(self, expression: Any) -> Node:
        node = self._build(expression)
        self._nodes.append(node)
        if len(self._nodes) > self._most:
            raise InvalidExpression(
                *self._place(expression.id), "nodes", f"it has more than {self._most} parts"
            )
        return node

    def _place(self, node_id: int) -> Place:
        return self._places.get(node_id, Place(1, 1))

    def _build(self, expression: Any) -> Node:
        kind = next((f.name for f, _ in expression.ListFields() if f.name != "id"), "")
        inner: Any = getattr(expression, kind, None)
        node = self._node
        match kind:
            case "constant":
                value = next((v for _, v in inner.ListFields()), None)
                size = len(value) if isinstance(value, str | bytes) else 0
                if isinstance(value, str):
                    size = len(value.encode())
                return Constant(expression.id, size, value if isinstance(value, str) else None)
            case "ident":
                return Name(expression.id, inner.name)
            case "select":
                return Select(expression.id, node(inner.operand), inner.field)
            case "call":
                target = (node(inner.target),) if inner.HasField("target") else ()
                return Call(expression.id, inner.function, (*target, *map(node, inner.args)))
            case "list":
                return Collection(expression.id, tuple(map(node, inner.elements)), True)
            case "struct" if not inner.message_name:
                parts = [node(part) for e in inner.entries for part in (e.map_key, e.value)]
                return Collection(expression.id, tuple(parts), False)
            case "loop" if not inner.second_variable:
                return Loop(
                    expression.id,
                    inner.variable,
                    node(inner.range),
                    inner.accumulator,
                    node(inner.initial),
                    node(inner.condition),
                    node(inner.step),
                    node(inner.result),
                )
        # Anything that is not known is refused: messages among them.
        raise InvalidExpression(
            *self._place(expression.id),
            "message" if kind == "struct" else "unknown",
            "messages cannot be made: write a map, {'name': value}"
            if kind == "struct"
            else "this part of the language is not supported",
        )


class _Places:
    """Offsets, counted in characters, to lines and columns."""

    def __init__(self, source: str) -> None:
        self._starts = [0, *(i + 1 for i, character in enumerate(source) if character == "\n")]
        self._length = len(source)

    def at(self, offset: int) -> Place:
        offset = min(max(offset, 0), self._length)
        line = bisect_right(self._starts, offset)
        return Place(line, offset - self._starts[line - 1] + 1)


def _messages() -> Iterator[Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="stockade/expression.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, members in _SCHEMA.items():
        described = file.message_type.add(name=name)
        for member, (number, kind, repeated) in members.items():
            scalar = _SCALARS.get(kind)
            described.field.add(
                name=member,
                number=number,
                type=scalar or _FIELD.TYPE_MESSAGE,
                type_name=None if scalar else f".{_PACKAGE}.{kind}",
                label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    for name in ("Any", "Checked"):
        yield message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


_Any, _Checked = _messages()
