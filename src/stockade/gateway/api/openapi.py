"""The OpenAPI document: what FastAPI finds, and what it cannot see: problems, streams, the key."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from stockade.api.frames import MEDIA_TYPE as FRAMES
from stockade.api.problems import MEDIA_TYPE, STATUS, Code, Problem

STREAMS: Final[dict[str, Any]] = {
    "description": "In the form that ``Accept`` names.",
    "content": {
        "text/event-stream": {
            "schema": {
                "type": "string",
                "description": "Events `started` (StartedMessage), `output` (OutputMessage), "
                "`omitted` (OmittedMessage), `egress` (EgressEventMessage), then `record` (RecordMessage) or `problem` (Problem); "
                "a stream that stops without one of these two was cut.",
            }
        },
        FRAMES: {"schema": {"type": "string", "format": "binary"}},
    },
}
NO_CONTENT: Final[dict[int | str, dict[str, Any]]] = {204: {"description": "It is done."}}
BYTES: Final[dict[str, Any]] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
}
BINARY: Final[dict[str, Any]] = {"requestBody": {"required": True, "content": BYTES}}

_EXAMPLE = {
    "program": {"kind": "python", "source": "print(6 * 7)"},
    "sandbox": {"limits": {"wall_seconds": 5}},
}
_EVERYWHERE = (
    Code.UNAUTHENTICATED, Code.FORBIDDEN, Code.NOT_FOUND, Code.CONFLICT, Code.TOO_LARGE,
    Code.INVALID_REQUEST, Code.INTERNAL, Code.UNAVAILABLE,
)  # fmt: skip
_ALSO = {
    "post": (Code.NOT_ACCEPTABLE, Code.SANDBOX_LOST, Code.BUDGET_EXHAUSTED,
             Code.UNSUPPORTED_MEDIA_TYPE, Code.TOOL_FAILED),
    "put": (Code.SANDBOX_LOST, Code.BUDGET_EXHAUSTED),
    "get": (Code.NOT_ACCEPTABLE, Code.SANDBOX_LOST),
    "delete": (Code.SANDBOX_LOST, Code.BUDGET_EXHAUSTED),
}  # fmt: skip


def install(app: FastAPI) -> None:
    """Let the application describe itself in full."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def document(app: FastAPI) -> dict[str, Any]:
    """The whole document."""
    found = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
        separate_input_output_schemas=False,
    )
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs", {})
    schemas["Problem"] = problem
    for message in _of_events():
        schema = message.model_json_schema(ref_template="#/components/schemas/{model}")
        for name, inner in schema.pop("$defs", {}).items():
            schemas.setdefault(name, inner)
        schemas[message.__name__] = schema
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key."}
    }
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            _complete(path, method, operation)
    request = found["paths"]["/v1/executions"]["post"]["requestBody"]
    request["content"]["application/json"]["example"] = _EXAMPLE
    return found


def _of_events() -> Any:
    from stockade.api import answers, records

    return (
        answers.StartedMessage, answers.OutputMessage, answers.OmittedMessage,
        records.RecordMessage,
    )  # fmt: skip


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    if not path.startswith("/v1/"):
        if path != "/healthz":
            responses["503"] = {"description": "It takes no calls.", "content": content}
        return
    operation["security"] = [{"key": []}]
    codes: dict[int, list[str]] = {}
    for code in (*_EVERYWHERE, *_ALSO.get(method, ())):
        codes.setdefault(int(STATUS[code]), []).append(code.value)
    for status, names in sorted(codes.items()):
        response = {"description": ", ".join(f"`{name}`" for name in names), "content": content}
        if status in (429, 503):
            response["headers"] = {
                "Retry-After": {
                    "description": "In how many seconds it may succeed, where that is known.",
                    "schema": {"type": "integer", "minimum": 0},
                }
            }
        responses[str(status)] = response
    responses["default"] = {"description": "Any other problem.", "content": content}
