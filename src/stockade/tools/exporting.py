"""Tools as models are told of them: definitions of functions, and tools of MCP."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Form(StrEnum):
    """Whose form."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


def described(
    form: Form,
    *,
    name: str,
    description: str,
    input_schema: Mapping[str, Any],
    output_schema: Mapping[str, Any] | bool,
) -> dict[str, Any]:
    """One tool; nothing of its source, of what it may reach, or of its credentials."""
    schema = dict(input_schema)
    match form:
        case Form.OPENAI:
            function = {"name": name, "description": description, "parameters": schema}
            return {"type": "function", "function": function}
        case Form.ANTHROPIC:
            return {"name": name, "description": description, "input_schema": schema}
        case Form.MCP:
            told: dict[str, Any] = {
                "name": name,
                "description": description,
                "inputSchema": schema,
            }
            # MCP has structured results of objects alone.
            if isinstance(output_schema, Mapping) and output_schema.get("type") == "object":
                told["outputSchema"] = dict(output_schema)
            return told
