"""What is no tool is refused with the place; what is one comes back from its data as it was."""

import json
from typing import Any

import pytest

from stockade.port import EgressRule, InvalidRequest, Limits, Tier, TrustLevel
from stockade.tools.definition import Example, Need, Tool

from .kit import INPUT, tool


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a" * 65}, "name"),
        ({"name": "../vat"}, "name"),
        ({"name": "vat\n"}, "name"),
        ({"name": "1st"}, "name"),
        ({"source": ""}, "source"),
        ({"source": "x" * 10_000_000}, "source"),
        ({"source": "é" * 600_000}, "source"),
        ({"source": "\ud800"}, "source"),
        ({"description": "x" * 4001}, "description"),
        ({"input_schema": True}, "input_schema"),
        ({"input_schema": {"type": "string"}}, "input_schema"),
        ({"output_schema": 1}, "output_schema"),
        ({"output_schema": {"$ref": "https://example.com/s.json"}}, "output_schema/$ref"),
        ({"output_schema": {"$ref": "other.json#/a"}}, "output_schema/$ref"),
        ({"output_schema": {"$ref": "file:///etc/passwd"}}, "output_schema/$ref"),
        (
            {"output_schema": {"properties": {"a/b": {"anyOf": [{}, {"$ref": "//x"}]}}}},
            "output_schema/properties/a~1b/anyOf/1/$ref",
        ),
        ({"output_schema": {"$defs": {"$id": {"$id": "https://e"}}}}, "output_schema/$defs/$id/$id"),
        ({"output_schema": {"items": {"$dynamicRef": "#a"}}}, "output_schema/items/$dynamicRef"),
        ({"output_schema": {"$schema": "http://json-schema.org/draft-07/schema#"}},
         "output_schema/$schema"),
        ({"output_schema": {"const": float("nan")}}, "output_schema"),
        ({"output_schema": {"const": b"bytes"}}, "output_schema"),
        ({"output_schema": {"title": "x" * 200_000}}, "output_schema"),
        ({"output_schema": deep(200)}, "output_schema"),
        ({"examples": (Example({}, {}),) * 21}, "examples"),
        ({"examples": (Example({"net": float("inf")}, {}),)}, "examples/0/input"),
        ({"examples": (Example({}, "x" * 70_000),)}, "examples/0/output"),
        ({"credentials": ("Not A Name",)}, "egress"),
        ({"needs": (Need.PACKAGES, Need.PACKAGES)}, "needs"),
    ],
)  # fmt: skip
def test_what_is_no_tool_is_refused_with_its_place(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tool(**changes)
    assert refused.value.field.startswith(field)
    assert len(str(refused.value)) < 1000


def test_a_cyclic_example_is_refused() -> None:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    with pytest.raises(InvalidRequest, match="examples/0/output"):
        tool(examples=(Example({}, cyclic),))


def test_a_recursive_schema_is_fine_and_a_property_may_be_called_ref() -> None:
    tool(
        output_schema={
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                "named": {"properties": {"$ref": {"type": "string"}, "$id": True}},
                "data": {"const": {"$ref": "https://example.com"}},
            },
        }
    )


def test_it_comes_back_from_its_data_and_its_digest_tells_it() -> None:
    first = tool(
        egress=(EgressRule.parse("GET https://api.example.com/v1"),),
        credentials=("key",),
        limits=Limits(wall_seconds=5),
        trust=TrustLevel.HOSTILE,
        tier=Tier.GVISOR,
        needs=(Need.SUBPROCESS,),
        description="é",
    )
    again = Tool.of_data(json.loads(json.dumps(first.as_data())))
    assert again == first
    assert again.digest == first.digest
    for changes in ({"description": "e"}, {"tier": None}, {"limits": Limits(wall_seconds=6)},
                    {"input_schema": {**INPUT, "title": "x"}}):  # fmt: skip
        assert tool(**changes).digest != first.digest
