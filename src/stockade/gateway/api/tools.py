"""A tenant's tools: stored, listed, and called with JSON for JSON."""

from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Path, Query, Request, Response

from stockade.api.tools import (
    HIGHEST_VERSION,
    LiveVersionMessage,
    ToolBody,
    ToolCallAnswer,
    ToolCallMessage,
    ToolList,
    ToolMessage,
    ToolTestAnswer,
    ToolTestMessage,
    ToolVersionList,
    TriedMessage,
)
from stockade.gateway.api.bodies import MOST_JSON_BYTES, or_gone
from stockade.gateway.api.callers import Cursor, KeepsTools, PageSize, Reads, Runs, StoresTools
from stockade.gateway.api.forms import JsonAnswer
from stockade.gateway.api.lean import LeanRoute
from stockade.gateway.api.openapi import NO_CONTENT
from stockade.gateway.api.services import Services
from stockade.gateway.calls import Idempotency
from stockade.gateway.clock import to_datetime
from stockade.gateway.executions import ExecutionEntry
from stockade.gateway.keys import Caller
from stockade.gateway.tools import Version
from stockade.port import Captured, InvalidRequest, Outcome, Refused, Unavailable
from stockade.tools import json_text
from stockade.tools.definition import check_name

T = TypeVar("T")

ToolName = Annotated[str, Path(description="A tool's name: a letter, then letters, digits, _, -.")]
Number = Annotated[
    int | None, Query(ge=1, le=HIGHEST_VERSION, description="By default the live one.")
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=128,
        description="The same call again with the same key returns the first one's output.",
    ),
]


def router(services: Services) -> APIRouter:
    """``/v1/tools``."""
    routes = APIRouter(prefix="/v1", tags=["tools"], route_class=LeanRoute)
    tools, tool_calls = services.tools, services.tool_calls

    @routes.get(
        "/tools",
        response_model=ToolList,
        summary="The tools, each by the version that is called",
        operation_id="list_tools",
    )
    async def list_tools(caller: Reads, cursor: Cursor = None, limit: PageSize = 100) -> Response:
        """With their schemas, and without their source. ``next`` is the following ``cursor``."""
        page = await tools.list(caller.tenant, cursor, limit)
        return JsonAnswer(ToolList(tools=tuple(map(_message, page.versions)), next=page.next))

    @routes.get(
        "/tools/{name}",
        response_model=ToolMessage,
        summary="One version of a tool, whole",
        operation_id="get_tool",
    )
    async def get_tool(caller: Reads, name: ToolName, version: Number = None) -> Response:
        """The live one, unless another is named."""
        return JsonAnswer(_whole(await tools.find(caller.tenant, name, version)))

    @routes.delete(
        "/tools/{name}",
        status_code=204,
        responses=NO_CONTENT,
        summary="Remove a tool with all of its versions",
        operation_id="remove_tool",
    )
    async def remove_tool(caller: KeepsTools, name: ToolName) -> Response:
        """What it has done stays told: its executions, and the audit."""
        await tools.remove(caller, name)
        return Response(status_code=204)

    @routes.get(
        "/tools/{name}/versions",
        response_model=ToolVersionList,
        summary="The versions of a tool that are kept",
        operation_id="list_tool_versions",
    )
    async def list_tool_versions(caller: Reads, name: ToolName) -> Response:
        """The latest first."""
        found = await tools.versions(caller.tenant, name)
        return JsonAnswer(ToolVersionList(versions=tuple(map(_message, found))))

    @routes.post(
        "/tools/{name}/versions",
        status_code=201,
        response_model=ToolMessage,
        summary="Store a version of a tool, and call it from now on",
        operation_id="store_tool",
    )
    async def store_tool(
        request: Request, caller: StoresTools, name: ToolName, body: ToolBody
    ) -> Response:
        """Its source is looked at and its examples are run, in sandboxes, before anything is kept.

        A version that is refused leaves nothing behind; the one before it goes on being called.
        """
        check_name(name)
        await _check_text(request)
        storing = tool_calls.store(caller, body.to_tool(name))
        version = await _for_caller(request, storing)
        return JsonAnswer(_whole(version), 201, {"Location": f"/v1/tools/{name}"})

    @routes.post(
        "/tools/{name}/live",
        status_code=204,
        responses=NO_CONTENT,
        summary="Call this version from now on",
        operation_id="make_tool_live",
    )
    async def make_tool_live(
        caller: KeepsTools, name: ToolName, body: LiveVersionMessage
    ) -> Response:
        """An earlier one, to roll back, or a later one again. Calls that run go on."""
        await tools.make_live(caller, name, body.version)
        return Response(status_code=204)

    @routes.post(
        "/tools/{name}/disable",
        status_code=204,
        responses=NO_CONTENT,
        summary="Call it no more",
        operation_id="disable_tool",
    )
    async def disable_tool(caller: KeepsTools, name: ToolName) -> Response:
        """Calls that run go on."""
        await tools.set_enabled(caller, name, enabled=False)
        return Response(status_code=204)

    @routes.post(
        "/tools/{name}/enable",
        status_code=204,
        responses=NO_CONTENT,
        summary="Call it again",
        operation_id="enable_tool",
    )
    async def enable_tool(caller: KeepsTools, name: ToolName) -> Response:
        """The version that was live."""
        await tools.set_enabled(caller, name, enabled=True)
        return Response(status_code=204)

    @routes.post(
        "/tools/{name}/test",
        response_model=ToolTestAnswer,
        summary="Run a version's examples once more",
        operation_id="test_tool",
    )
    async def test_tool(
        request: Request, caller: Runs, name: ToolName, body: ToolTestMessage
    ) -> Response:
        """Nothing is changed by what comes of it."""
        version = await tools.find(caller.tenant, name, body.version)
        tried = await _for_caller(request, tool_calls.test(caller, version))
        return JsonAnswer(
            ToolTestAnswer(
                version=version.number,
                passed=all(each.failure is None for each in tried),
                examples=tuple(
                    TriedMessage(example=each.index, execution=each.execution, failure=each.failure)
                    for each in tried
                ),
            )
        )

    @routes.post(
        "/tools/{name}/call",
        response_model=ToolCallAnswer,
        summary="Call a tool",
        operation_id="call_tool",
    )
    async def call_tool(
        request: Request,
        caller: Runs,
        name: ToolName,
        body: ToolCallMessage,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Its output, when it is there. A caller that goes away cancels it.

        Input and output are held against the version's schemas. ``invalid_request``: the input is
        not of them; ``tool_failed``: it ran, and gave no output, or none of its schema.
        """
        await _check_text(request)
        version = await tools.find(caller.tenant, name, body.version)
        idempotency = None
        if idempotency_key is not None:
            where = f"/v1/tools/{name}/call"
            idempotency = Idempotency.of(
                idempotency_key, where, json_text.canonical([body.version, body.input])
            )
        calling = tool_calls.call(caller, version, body.input, idempotency)
        called = await _for_caller(request, calling)
        if isinstance(called, ExecutionEntry):
            version, called = await _repeated(services, caller, name, called)
        request.scope["state"]["subject"] = called.execution
        return JsonAnswer(
            ToolCallAnswer(
                tool=name,
                version=version.number,
                execution=called.execution,
                tier=version.tier,
                reason=version.reason,
                output=called.output,
            ),
            200,
            {"Location": f"/v1/executions/{called.execution}"},
        )

    return routes


async def _repeated(
    services: Services, caller: Caller, name: str, entry: ExecutionEntry
) -> tuple[Version, Any]:
    """The answer of an earlier call, by the version that it was of."""
    if entry.ended_at is None:
        raise Refused("conflict", f"the first call with this key still runs, as {entry.id}", 1.0)
    record = entry.record
    if entry.outcome is Outcome.UNAVAILABLE:
        raise Unavailable(record.detail if record else "nothing could serve it")
    if record is None or "result" in entry.shortened:
        raise Refused("conflict", f"the output of {entry.id} is not kept any more")
    facts = entry.facts.get("tool") or {}
    version = await services.tools.find(caller.tenant, name, facts.get("version"))
    if version.digest != facts.get("digest"):
        raise Refused("conflict", f"the version that {entry.id} was a call of is not kept any more")
    execution = record.execution(
        stdout=Captured(), stderr=Captured(), result=record.result, artefacts=(), missing=()
    )
    return version, await services.tool_calls.answer(
        caller.tenant, version.tool, entry.id, execution
    )


async def _for_caller(request: Request, wanted: Coroutine[Any, Any, T]) -> T:
    """Wait as long as the caller does; what it began ends with it."""
    return await or_gone(request.receive, wanted)


async def _check_text(request: Request) -> None:
    """A member that is there twice is another one for another reader: of tools there is none."""
    try:
        json_text.load(await request.body(), MOST_JSON_BYTES)
    except json_text.NoJson as error:
        raise InvalidRequest("body", f"it {error}") from None


def _message(version: Version) -> ToolMessage:
    tool = version.tool
    return ToolMessage(
        name=tool.name,
        version=version.number,
        digest=version.digest,
        live=version.live,
        disabled=version.disabled,
        created=to_datetime(version.created_at),
        tested=version.tested,
        chosen_tier=version.tier,
        reason=version.reason,
        description=tool.description,
        language=tool.language,
        input_schema=dict(tool.input_schema),
        output_schema=tool.output_schema
        if isinstance(tool.output_schema, bool)
        else dict(tool.output_schema),
    )


def _whole(version: Version) -> ToolMessage:
    return _message(version).model_copy(update={"definition": ToolBody.of(version.tool)})
