"""A small tool, and variants of it."""

from typing import Any

from stockade.tools.definition import Example, Language, Tool

SOURCE = """
def main(input):
    return {"gross": round(input["net"] * 1.19, 2)}
"""
INPUT = {
    "type": "object",
    "properties": {"net": {"type": "number"}},
    "required": ["net"],
    "additionalProperties": False,
}
OUTPUT = {"type": "object", "properties": {"gross": {"type": "number"}}, "required": ["gross"]}


def tool(**changes: Any) -> Tool:
    """One with these fields."""
    return Tool(
        **{
            "name": "vat",
            "language": Language.PYTHON,
            "source": SOURCE,
            "input_schema": INPUT,
            "output_schema": OUTPUT,
            "examples": (Example({"net": 100}, {"gross": 119.0}),),
            **changes,
        }
    )
