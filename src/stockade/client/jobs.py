"""Executions that nobody waits for, of a gateway: submitted, looked at, watched, cancelled."""

from collections.abc import AsyncIterator, Callable
from typing import TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel

from stockade.api.answers import ExecutionList, ExecutionMessage, ExecutionSummary
from stockade.api.frames import MEDIA_TYPE
from stockade.api.headers import is_identifier
from stockade.client import calls, messages
from stockade.client.execution import RemoteExecution, Wanted
from stockade.client.transport import Interrupted, Outgoing, Transport, parsed
from stockade.port import (
    GIB,
    MIB,
    Execution,
    ExecutionRequest,
    InvalidRequest,
    Limits,
    OutputSink,
    SandboxRequest,
    StandardInput,
    StockadeError,
    Unavailable,
)

_MOST_LIST_BYTES = 16 * MIB
_MOST_RECORD_BYTES = 64 * MIB
# Of a job that somebody else may have submitted: what the API allows at all.
_ANY = Limits(
    wall_seconds=86_400,
    memory_bytes=1024 * GIB,
    output_bytes=1024 * GIB,
    result_bytes=GIB,
    artefact_bytes=GIB,
    record_bytes=64 * MIB,
)
_DEFAULT = SandboxRequest()
M = TypeVar("M", bound=BaseModel)


class RemoteJobs:
    """The jobs of one tenant, whom the key tells."""

    def __init__(self, transport: Transport, require_open: Callable[[], None]) -> None:
        self._transport = transport
        self._require_open = require_open

    async def submit(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        idempotency_key: str | None = None,
    ) -> str:
        """Begin one; its id. It goes on whatever becomes of the caller."""
        self._require_open()
        wanted = sandbox or _DEFAULT
        if wanted.tenant != _DEFAULT.tenant:
            raise InvalidRequest("tenant", "the service knows the tenant by the key; leave it out")
        inline = calls.inline(stdin)
        answer = await self._ask(
            "POST",
            "/v1/executions",
            message=messages.execution(request, wanted, inline),
            more={"Prefer": "respond-async", **calls.identity(None, idempotency_key)},
        )
        id = _understood(self._transport, ExecutionMessage, answer).id  # noqa: A001
        if not is_identifier(id):
            raise Unavailable(f"{self._transport}: its answer has no id")
        if inline is None:
            await self._feed(id, stdin)
        return id

    async def show(self, id: str) -> ExecutionMessage:  # noqa: A002
        """Its state, and its record when it has ended; artefacts are named, not fetched."""
        answer = await self._ask("GET", f"/v1/executions/{_checked(id)}", most=_MOST_RECORD_BYTES)
        return _understood(self._transport, ExecutionMessage, answer)

    async def page(
        self, *, cursor: str | None = None, limit: int = 100, running: bool | None = None
    ) -> ExecutionList:
        """Executions, newest first. ``cursor``: the ``next`` of the page before."""
        query: dict[str, str] = {"limit": str(limit)}
        if cursor is not None:
            query["cursor"] = cursor
        if running is not None:
            query["running"] = "true" if running else "false"
        answer = await self._ask("GET", f"/v1/executions?{urlencode(query)}", most=_MOST_LIST_BYTES)
        return _understood(self._transport, ExecutionList, answer)

    async def each(
        self, *, running: bool | None = None, most: int = 1000
    ) -> AsyncIterator[ExecutionSummary]:
        """Executions, newest first, page by page, up to ``most``."""
        cursor: str | None = None
        while True:
            page = await self.page(cursor=cursor, limit=min(100, most), running=running)
            for summary in page.executions[:most]:
                yield summary
            most -= len(page.executions)
            if page.next is None or not page.executions or most <= 0:
                return
            cursor = page.next

    async def cancel(self, id: str) -> None:  # noqa: A002
        """End it; its record says ``cancelled``. Raises :class:`Refused` for one that has ended."""
        await self._ask("POST", f"/v1/executions/{_checked(id)}/cancel")

    async def watch(self, id: str, on_output: OutputSink | None = None) -> Execution:  # noqa: A002
        """What was kept of its output, then what comes; its record when it has ended.

        Whoever watches holds nothing back and ends nothing. Raises
        :class:`~stockade.port.Unavailable` where the watching was cut: it goes on.
        """
        self._require_open()
        execution = RemoteExecution(
            self._transport,
            Wanted(_ANY, None),
            tenant=None,
            on_output=on_output,
            id=_checked(id),
            owned=False,
        )
        headers = self._transport.headers(None, {"Accept": MEDIA_TYPE})
        try:
            response = await self._transport.send("GET", f"/v1/executions/{id}/events", headers)
            try:
                await self._transport.require(response)
                await execution.follow(response, None)
            except BaseException:
                response.close()
                raise
        except Interrupted as error:
            raise _cut(self._transport, error) from None
        return await execution.wait()

    async def _feed(self, id: str, stdin: StandardInput) -> None:  # noqa: A002
        body = Outgoing(stdin, once=True)
        headers = self._transport.headers(None, {"Content-Type": "application/octet-stream"})
        try:
            response = await self._transport.send(
                "PUT", f"/v1/executions/{id}/stdin", headers, body, silent=True
            )
            try:
                await self._transport.require(response)
            finally:
                response.release()
        except Interrupted as error:
            raise Unavailable(
                f"{self._transport}: the standard input of {id} broke off: {error}"
            ) from None

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        message: bytes | None = None,
        most: int = MIB,
        more: dict[str, str] | None = None,
    ) -> bytes:
        self._require_open()
        try:
            return await self._transport.ask(
                method, path, message=message, most_bytes=most, more=more
            )
        except Interrupted as error:
            raise _cut(self._transport, error) from None


def _checked(id: str) -> str:  # noqa: A002
    if not is_identifier(id):
        raise InvalidRequest("id", f"{id!r} is no id of an execution")
    return id


def _cut(transport: Transport, error: Interrupted) -> StockadeError:
    return Unavailable(f"{transport}: {error}")


def _understood(transport: Transport, model: type[M], answer: bytes) -> M:
    try:
        return parsed(model, answer)
    except Interrupted as error:
        raise _cut(transport, error) from None
