"""Sandboxes as sessions."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from stockade.api.answers import (
    EntryMessage,
    ExecutionMessage,
    FolderMessage,
    SandboxList,
    SandboxStateMessage,
)
from stockade.api.headers import decode_path
from stockade.api.requests import LeaseMessage, ProgramRequestMessage, SessionRequestMessage
from stockade.gateway.api import forms
from stockade.gateway.api.bodies import or_gone, streamed
from stockade.gateway.api.callers import Id, Runs, UsesSandboxes, identified
from stockade.gateway.api.executions import Accept, Asked, IdempotencyKey, Prefer, Runner
from stockade.gateway.api.forms import JsonAnswer, StreamAnswer
from stockade.gateway.api.lean import LeanRoute
from stockade.gateway.api.openapi import BINARY, BYTES, NO_CONTENT, STREAMS
from stockade.gateway.api.services import Services
from stockade.gateway.sandboxes import OpenSandbox
from stockade.port import MIB, SandboxLost, check_workspace_path


def router(services: Services, runner: Runner) -> APIRouter:
    """What is below ``/v1/sandboxes``."""
    routes = APIRouter(prefix="/v1", tags=["sandboxes"], route_class=LeanRoute)
    sandboxes = services.sandboxes

    @routes.post(
        "/sandboxes",
        status_code=201,
        response_model=SandboxStateMessage,
        summary="Open a session",
        operation_id="open_sandbox",
    )
    async def open_sandbox(
        request: Request, caller: UsesSandboxes, message: SessionRequestMessage
    ) -> Response:
        """It lives as long as its lease. A lease above the ceiling is refused, never clamped."""
        opened: SandboxStateMessage = await or_gone(
            request.receive, sandboxes.open(caller, message)
        )
        request.scope["state"]["subject"] = opened.id
        return JsonAnswer(opened, 201, {"Location": f"/v1/sandboxes/{opened.id}"})

    @routes.get(
        "/sandboxes",
        response_model=SandboxList,
        summary="List the open ones",
        operation_id="list_sandboxes",
    )
    async def list_sandboxes(caller: UsesSandboxes) -> Response:
        return JsonAnswer(SandboxList(sandboxes=tuple(sandboxes.list(caller))))

    @routes.get(
        "/sandboxes/{id}",
        response_model=SandboxStateMessage,
        summary="Its state, and what is left of its lease",
        operation_id="get_sandbox",
    )
    async def get_sandbox(request: Request, caller: UsesSandboxes, id: Id) -> Response:
        """Asking extends nothing."""
        return JsonAnswer(sandboxes.find(caller, identified(request, id)).message())

    @routes.delete(
        "/sandboxes/{id}",
        status_code=204,
        responses=NO_CONTENT,
        summary="Close it",
        operation_id="close_sandbox",
    )
    async def close_sandbox(request: Request, caller: UsesSandboxes, id: Id) -> Response:
        """Returns when nothing of it lives. Its workspace, where it has one, is saved first."""
        await sandboxes.close(sandboxes.find(caller, identified(request, id)))
        return Response(status_code=204)

    @routes.post(
        "/sandboxes/{id}/executions",
        response_model=ExecutionMessage,
        responses={200: STREAMS, 202: {"model": ExecutionMessage, "description": "It is a job."}},
        summary="Run one program in it",
        operation_id="run_program_in_sandbox",
    )
    async def run_program_in_sandbox(
        request: Request,
        caller: Runs,
        id: Id,
        message: ProgramRequestMessage,
        accept: Accept = forms.JSON,
        idempotency_key: IdempotencyKey = None,
        prefer: Prefer = None,
        stockade_id: Annotated[str | None, Header(include_in_schema=False)] = None,
    ) -> Response:
        """One at a time. Its files stay for the next one, its processes do not."""
        sandbox = sandboxes.find(caller, identified(request, id))
        asked = Asked(accept, idempotency_key, prefer, stockade_id)
        return await runner.inside(request, caller, sandbox, message, asked)

    @routes.put(
        "/sandboxes/{id}/files/{path:path}",
        status_code=204,
        responses=NO_CONTENT,
        openapi_extra=BINARY,
        summary="Write a file of the workspace",
        operation_id="write_file",
    )
    async def write_file(
        request: Request,
        caller: UsesSandboxes,
        id: Id,
        path: str,
    ) -> Response:
        """Streamed. A body that breaks off is not written whole."""
        sandbox, name = _file(request, caller, id, path)
        # The sandbox says itself what does not fit; this is what it never needs to see.
        most = sandbox.request.limits.disk_bytes + MIB
        async with sandboxes.watched(sandbox) as session:
            await session.write_file(name, streamed(request, most))
        return Response(status_code=204)

    @routes.get(
        "/sandboxes/{id}/files/{path:path}",
        response_class=Response,
        responses={200: {"content": BYTES, "description": "The file's bytes."}},
        summary="Read a file of the workspace",
        operation_id="read_file",
    )
    async def read_file(
        request: Request,
        caller: UsesSandboxes,
        id: Id,
        path: str,
    ) -> Response:
        """Streamed. An answer that stops without its end was cut."""
        sandbox, name = _file(request, caller, id, path)
        pieces = _read(sandbox, name)
        first = await or_gone(request.receive, _first(pieces))
        return StreamAnswer(
            _with_first(first, pieces),
            "application/octet-stream",
            headers={"Content-Disposition": "attachment"},
        )

    async def _read(sandbox: OpenSandbox, name: str) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in sandbox.session.read_file(name):
                yield piece
        except SandboxLost:
            async with sandboxes.watched(sandbox):
                raise

    @routes.get("/sandboxes/{id}/folders", include_in_schema=False)
    async def list_workspace(request: Request, caller: UsesSandboxes, id: Id) -> Response:
        return await list_folder(request, caller, id, "")

    @routes.get(
        "/sandboxes/{id}/folders/{path:path}",
        response_model=FolderMessage,
        summary="List a folder of the workspace",
        operation_id="list_folder",
    )
    async def list_folder(
        request: Request,
        caller: UsesSandboxes,
        id: Id,
        path: str,
    ) -> Response:
        """Without a path, all of it."""
        sandbox = sandboxes.find(caller, identified(request, id))
        name = decode_path(path.encode())
        if name:
            check_workspace_path("path", name)
        async with sandboxes.watched(sandbox) as session:
            entries = await session.list_files(name)
        return JsonAnswer(
            FolderMessage(
                entries=tuple(
                    EntryMessage(name=entry.name, kind=entry.kind, size=entry.size)
                    for entry in entries
                )
            )
        )

    @routes.post(
        "/sandboxes/{id}/lease",
        response_model=SandboxStateMessage,
        summary="Extend its lease",
        operation_id="extend_lease",
    )
    async def extend_lease(
        request: Request,
        caller: UsesSandboxes,
        id: Id,
        message: LeaseMessage,
    ) -> Response:
        """So many seconds from now."""
        sandbox = sandboxes.find(caller, identified(request, id))
        await sandboxes.extend(caller, sandbox, message.seconds)
        return JsonAnswer(sandbox.message())

    @routes.post(
        "/sandboxes/{id}/pause",
        status_code=204,
        responses=NO_CONTENT,
        summary="Stop its processes",
        operation_id="pause_sandbox",
    )
    async def pause_sandbox(request: Request, caller: UsesSandboxes, id: Id) -> Response:
        """Its lease goes on."""
        await sandboxes.pause(sandboxes.find(caller, identified(request, id)))
        return Response(status_code=204)

    @routes.post(
        "/sandboxes/{id}/resume",
        status_code=204,
        responses=NO_CONTENT,
        summary="Let its processes go on",
        operation_id="resume_sandbox",
    )
    async def resume_sandbox(request: Request, caller: UsesSandboxes, id: Id) -> Response:
        await sandboxes.resume(sandboxes.find(caller, identified(request, id)))
        return Response(status_code=204)

    def _file(
        request: Request, caller: UsesSandboxes, id: str, path: str
    ) -> tuple[OpenSandbox, str]:
        sandbox = sandboxes.find(caller, identified(request, id))
        name = decode_path(path.encode())
        check_workspace_path("path", name)
        return sandbox, name

    return routes


async def _first(pieces: AsyncIterator[bytes]) -> bytes | None:
    """What refuses it is then the answer's status, and no cut answer."""
    return await anext(pieces, None)


async def _with_first(
    first: bytes | None, pieces: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    try:
        if first is not None:
            yield first
            async for piece in pieces:
                yield piece
    finally:
        await pieces.aclose()
