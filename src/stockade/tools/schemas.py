"""JSON Schemas of tenants: what is refused of them without a validator.

A schema (2020-12) may be recursive and may refer to its own parts, and to nothing else: no URL is
ever fetched. What remains is compiled and used in a process that can be ended
(:mod:`~stockade.tools.schema_worker`): a schema can also be slow in ways that nobody listed.
"""

from collections.abc import Mapping
from typing import Any, Final

from stockade.port import KIB, InvalidRequest
from stockade.tools import json_text

LARGEST: Final = 128 * KIB
DEEPEST: Final = 48
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_REFERENCES: Final = frozenset({"$ref"})
# They make what a reference means depend on where it stands, or name other documents.
_REFUSED: Final = {
    "$id": "a schema has no other name here than its tool's",
    "$dynamicRef": "use $ref",
    "$dynamicAnchor": "use $anchor",
    "$recursiveRef": "use $ref",
    "$recursiveAnchor": "use $anchor",
    "$vocabulary": "the vocabularies of 2020-12 are used",
}
# Their values are data or names, where "$ref" is a word like others.
_DATA: Final = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired"})
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions",
                           "dependentSchemas"})  # fmt: skip


def check(schema: object, field: str) -> None:
    """Raises :class:`InvalidRequest` whose field has the place, as ``input_schema/properties/a``."""
    if not isinstance(schema, Mapping | bool):
        raise InvalidRequest(field, "it is no schema: neither an object, nor true or false")
    try:
        json_text.load(json_text.dump(schema), LARGEST)
    except json_text.NoJson as error:
        raise InvalidRequest(field, f"it {error}") from None
    _walk(schema, field)


_PLAIN: Final = frozenset(
    {
        *("$schema", "title", "description", "default", "examples", "type", "properties"),
        *("required", "additionalProperties", "items", "enum", "const", "minimum", "maximum"),
        *("exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems"),
        *("maxItems", "minProperties", "maxProperties"),
    }
)


def is_plain(schema: object) -> bool:
    """Whether each part of a value meets one part of the schema at the most, and no pattern.

    Looking at a small value by a small one of these takes a moment, whatever they are.
    """
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping) or not _PLAIN.issuperset(part):
            return False
        properties = part.get("properties", {})
        if not isinstance(properties, Mapping):
            return False
        left += properties.values()
        left += [part[name] for name in ("additionalProperties", "items") if name in part]
    return True


def _walk(schema: object, field: str) -> None:
    """A place is spelled where it is told: with all their names, those of all parts are too much."""
    left: list[tuple[object, _Place, int]] = [(schema, None, 0)]
    while left:
        part, place, depth = left.pop()
        if depth > DEEPEST:
            raise InvalidRequest(
                _spelled(field, place), f"it is nested more than {DEEPEST} levels deep"
            )
        if isinstance(part, list):
            left += [(each, (place, index), depth + 1) for index, each in enumerate(part)]
        if not isinstance(part, Mapping):
            continue
        for name, value in part.items():
            inner = (place, name)
            if name in _REFUSED:
                raise InvalidRequest(
                    _spelled(field, inner), f"{name} is not taken: {_REFUSED[name]}"
                )
            if name == "$schema" and value != DIALECT:
                raise InvalidRequest(
                    _spelled(field, inner), f"only {DIALECT} is understood, or none"
                )
            if name in _REFERENCES:
                _check_reference(value, field, inner)
            elif name in _NAMED and isinstance(value, Mapping):
                left += [(each, (inner, key), depth + 2) for key, each in value.items()]
            elif name not in _DATA:
                left.append((value, inner, depth + 1))


_Place = tuple["_Place", object] | None
"""Where a part stands: where what it is in stands, and its own name there."""


def _spelled(field: str, place: _Place) -> str:
    parts: list[object] = []
    while place is not None:
        place, part = place
        parts.append(part)
    return field + json_text.pointer(parts[::-1])


def _check_reference(value: Any, field: str, place: _Place) -> None:
    if not isinstance(value, str) or not value.startswith("#"):
        raise InvalidRequest(
            _spelled(field, place),
            f"{str(value)[:200]!a} leads out of the schema, and nothing is fetched: put it "
            "under $defs, and refer to it as #/$defs/NAME",
        )
