"""What is kept: artefacts by their digest, workspaces by their name."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request, Response

from stockade.api.answers import (
    ArtefactList,
    ArtefactSummary,
    WorkspaceList,
    WorkspaceSummary,
)
from stockade.gateway.api.callers import (
    Cursor,
    Digest,
    PageSize,
    UsesArtefacts,
    UsesSandboxes,
    WorkspaceName,
    plain,
)
from stockade.gateway.api.forms import JsonAnswer, StreamAnswer
from stockade.gateway.api.lean import LeanRoute
from stockade.gateway.api.openapi import BYTES, NO_CONTENT
from stockade.gateway.api.services import Services
from stockade.gateway.clock import to_datetime
from stockade.gateway.journal import Action

_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)


def artefacts_router(services: Services) -> APIRouter:
    """What is below ``/v1/artefacts``."""
    routes = APIRouter(prefix="/v1", route_class=LeanRoute, tags=["artefacts"])
    artefacts = services.artefacts

    @routes.get(
        "/artefacts",
        response_model=ArtefactList,
        summary="List those that are kept, newest first",
        operation_id="list_artefacts",
    )
    async def list_artefacts(
        caller: UsesArtefacts, cursor: Cursor = None, limit: PageSize = 100
    ) -> Response:
        page = await artefacts.list(caller.tenant, cursor, limit)
        found = tuple(
            ArtefactSummary(
                digest=one.digest,
                size=one.size,
                created=to_datetime(one.created_at),
                expires=to_datetime(one.expires_at),
            )
            for one in page.artefacts
        )
        return JsonAnswer(ArtefactList(artefacts=found, next=page.next))

    @routes.get(
        "/artefacts/{digest}",
        response_class=Response,
        responses={
            200: {"content": BYTES, "description": "All of its bytes."},
            206: {"content": BYTES, "description": "The range that was asked for."},
            304: {"description": "The caller has it already."},
            416: {"description": "The range is beyond its end."},
        },
        summary="Its bytes, or a range of them",
        operation_id="get_artefact",
    )
    async def get_artefact(
        request: Request,
        caller: UsesArtefacts,
        digest: Digest,
        name: Annotated[
            str | None, Query(max_length=255, description="A file name for Content-Disposition.")
        ] = None,
        range: Annotated[str | None, Header(max_length=200)] = None,
        if_range: Annotated[str | None, Header(max_length=200)] = None,
        if_none_match: Annotated[str | None, Header(max_length=2000)] = None,
    ) -> Response:
        """Opaque: nobody here ever looked into it. Served so that no browser will, either."""
        digest = plain(digest)
        entry = await artefacts.find(caller.tenant, digest)
        request.scope["state"]["subject"] = entry.digest
        tag = f'"{entry.digest}"'
        headers = {
            "ETag": tag,
            "Accept-Ranges": "bytes",
            "Content-Disposition": disposition(name),
            "Cache-Control": "private, no-cache",
        }
        if if_none_match is not None and tag in (
            word.strip().removeprefix("W/") for word in if_none_match.split(",")
        ):
            return Response(status_code=304, headers=headers)
        start, end = 0, entry.size
        status = 200
        if range is not None and if_range in (None, tag):
            wanted = span(range, entry.size)
            if wanted == ():
                return Response(
                    status_code=416, headers=headers | {"Content-Range": f"bytes */{entry.size}"}
                )
            if wanted:
                start, end = wanted
                status = 206
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{entry.size}"
        await services.ledger.record(
            caller, Action.ARTEFACT_OUT, entry.digest, {"start": start, "end": end}
        )
        headers["Content-Length"] = str(end - start)
        return StreamAnswer(
            _each(artefacts.read(caller.tenant, entry.digest, start, end)),
            "application/octet-stream",
            headers=headers,
            status=status,
        )

    @routes.delete(
        "/artefacts/{digest}",
        status_code=204,
        responses=NO_CONTENT,
        summary="Forget it",
        operation_id="delete_artefact",
    )
    async def delete_artefact(caller: UsesArtefacts, digest: Digest) -> Response:
        await artefacts.delete(caller, plain(digest))
        return Response(status_code=204)

    return routes


def workspaces_router(services: Services) -> APIRouter:
    """What is below ``/v1/workspaces``."""
    routes = APIRouter(prefix="/v1", route_class=LeanRoute, tags=["workspaces"])
    workspaces = services.workspaces

    @routes.get(
        "/workspaces",
        response_model=WorkspaceList,
        summary="List those that are kept",
        operation_id="list_workspaces",
    )
    async def list_workspaces(
        caller: UsesSandboxes, cursor: Cursor = None, limit: PageSize = 100
    ) -> Response:
        page = await workspaces.list(caller.tenant, cursor, limit)
        found = tuple(
            WorkspaceSummary(
                name=one.name,
                size=one.size,
                generation=one.generation,
                saved=to_datetime(one.saved_at),
                expires=to_datetime(one.expires_at),
            )
            for one in page.workspaces
        )
        return JsonAnswer(WorkspaceList(workspaces=found, next=page.next))

    @routes.delete(
        "/workspaces/{name}",
        status_code=204,
        responses=NO_CONTENT,
        summary="Forget it",
        operation_id="delete_workspace",
    )
    async def delete_workspace(caller: UsesSandboxes, name: WorkspaceName) -> Response:
        """``conflict`` while a session has it."""
        await workspaces.delete(caller, plain(name))
        return Response(status_code=204)

    return routes


async def _each(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async for piece in pieces:
        yield piece


def span(text: str, size: int) -> tuple[int, int] | tuple[()] | None:
    """A range of bytes (RFC 9110, 14): start and end; ``()`` for none of these bytes.

    ``None`` for what is to be ignored: another unit, several ranges, no range at all.
    """
    found = _RANGE.fullmatch(text.replace(" ", ""))
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        last = int(found[2])
        return (max(0, size - last), size) if last and size else ()
    start = int(found[1])
    end = min(int(found[2]) + 1, size) if found[2] else size
    if found[2] and int(found[2]) < start:
        return None
    return (start, end) if start < size else ()


def disposition(name: str | None) -> str:
    """``Content-Disposition``, with a name of any characters (RFC 6266, RFC 8187)."""
    if not name:
        return "attachment"
    # Of a path only its end: a browser is not to be told of folders.
    name = re.split(r"[/\\]", name)[-1] or "artefact"
    simple = "".join(c if c.isascii() and (c.isalnum() or c in "._- ") else "_" for c in name)
    spelled = quote(name.encode("utf-8", "replace"), safe="!#$&+-.^_`|~")
    return f"attachment; filename=\"{simple}\"; filename*=UTF-8''{spelled}"
