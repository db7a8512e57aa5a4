"""Tools as models are told of them: definitions of functions, and tools of MCP."""

from enum import StrEnum
from typing import Any

from stockade.tools.definition import Tool


class Form(StrEnum):
    """Whose form."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


def described(tool: Tool, form: Form) -> dict[str, Any]:
    """One tool; nothing of its source, of what it may reach, or of its credentials."""
    schema = dict(tool.input_schema)
    match form:
        case Form.OPENAI:
            return {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": schema,
                },
            }
        case Form.ANTHROPIC:
            return {
                "name": tool.name,
                "description": tool.description,
                "input_schema": schema,
            }
        case Form.MCP:
            told: dict[str, Any] = {
                "name": tool.name,
                "description": tool.description,
                "inputSchema": schema,
            }
            # MCP has structured results of objects alone.
            if isinstance(tool.output_schema, dict) and tool.output_schema.get("type") == "object":
                told["outputSchema"] = dict(tool.output_schema)
            return told
