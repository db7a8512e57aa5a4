"""The caller of a request, as the door knows it, and what names in paths may be."""

from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, Path, Query, Request

from stockade.api.headers import is_identifier
from stockade.gateway.keys import Caller, Scope
from stockade.gateway.sandboxes import no_such_thing


def caller_with(*scopes: Scope) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency: the caller, whose key has to have these scopes."""

    # A coroutine: FastAPI would call a plain function in a thread.
    async def caller(request: Request) -> Caller:
        found: Caller = request.scope["state"]["caller"]
        for scope in scopes:
            found.need(scope)
        return found

    return caller


Runs = Annotated[Caller, Depends(caller_with(Scope.RUN))]
Reads = Annotated[Caller, Depends(caller_with(Scope.READ))]
UsesSandboxes = Annotated[Caller, Depends(caller_with(Scope.SANDBOXES))]
UsesArtefacts = Annotated[Caller, Depends(caller_with(Scope.ARTEFACTS))]
KeepsCredentials = Annotated[Caller, Depends(caller_with(Scope.CREDENTIALS))]
KeepsTools = Annotated[Caller, Depends(caller_with(Scope.TOOLS))]
StoresTools = Annotated[Caller, Depends(caller_with(Scope.TOOLS, Scope.RUN))]
"""What is stored is run first."""
Audits = Annotated[Caller, Depends(caller_with(Scope.AUDIT))]

Id = Annotated[str, Path(description="An id that the gateway made.")]
Digest = Annotated[str, Path(description="``sha256:`` and 64 hexadecimal digits.")]
WorkspaceName = Annotated[str, Path(description="A workspace's name.")]
Cursor = Annotated[
    str | None,
    Query(max_length=512, description="``next`` of the page before; none for the first."),
]
PageSize = Annotated[int, Query(ge=1, le=500, description="How many at the most.")]


def plain(text: str) -> str:
    """A name in a path, which comes here as it was sent."""
    return unquote(text, errors="surrogateescape")


def identified(request: Request, id: str) -> str:
    """An id, or what never was. It is then the subject of the request's line in the log."""
    if not is_identifier(id):
        raise no_such_thing()
    request.scope["state"]["subject"] = id
    return id
