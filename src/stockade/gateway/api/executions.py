"""Executions: one run of one program, in a sandbox of its own or in a session."""

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response

from stockade.api.answers import (
    ExecutionList,
    ExecutionMessage,
    ExecutionState,
    ExecutionSummary,
)
from stockade.api.headers import is_idempotency_key
from stockade.api.records import RecordMessage
from stockade.api.requests import (
    ExecutionRequestMessage,
    ProgramRequestMessage,
    SignalMessage,
    TerminalMessage,
)
from stockade.gateway.api import forms
from stockade.gateway.api.bodies import or_gone, streamed
from stockade.gateway.api.callers import Cursor, Id, PageSize, Reads, Runs, identified
from stockade.gateway.api.forms import Form, JsonAnswer, StreamAnswer
from stockade.gateway.api.lean import LeanRoute
from stockade.gateway.api.openapi import BINARY, NO_CONTENT, STREAMS
from stockade.gateway.api.services import Services
from stockade.gateway.calls import Call, Idempotency, Place, new_id
from stockade.gateway.clock import to_datetime
from stockade.gateway.executions import ExecutionEntry
from stockade.gateway.keys import Caller
from stockade.gateway.sandboxes import OpenSandbox, judged
from stockade.port import (
    Artefact,
    Captured,
    Execution,
    ExecutionRequest,
    InvalidRequest,
    MissingArtefact,
    Outcome,
    Refused,
    SandboxRequest,
    TerminalSize,
    Unavailable,
    placed,
)

_MOST_STDIN: Final = 2**40

Accept = Annotated[str, Header(description="The form of the answer; JSON at the end by default.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=128,
        description="The same request again with the same key returns the first one's record.",
    ),
]
Prefer = Annotated[
    str | None, Header(max_length=200, description="``respond-async`` makes it a job.")
]
Choose = Callable[[], AbstractAsyncContextManager[Place]]


class Runner:
    """Begins executions and answers for them."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def fresh(
        self, request: Request, caller: Caller, message: ExecutionRequestMessage, asked: "Asked"
    ) -> Response:
        """One program in a sandbox of its own."""
        services = self._services
        wanted = message.to_port()
        sandbox = placed(wanted.program, message.sandbox.to_port(caller.tenant))
        tiers = judged(caller, sandbox, None, services.settings.ceilings)
        id = new_id()  # noqa: A001 - the ticket is for this execution
        services.broker.check(sandbox)
        return await self._answer(
            request, caller, message, asked, wanted, sandbox,
            lambda: services.executors.place(
                sandbox, tiers, lambda wanted: services.broker.admit(caller, id, wanted)
            ), id=id,
        )  # fmt: skip

    async def inside(
        self,
        request: Request,
        caller: Caller,
        sandbox: OpenSandbox,
        message: ProgramRequestMessage,
        asked: "Asked",
    ) -> Response:
        """One program in a session."""
        wanted = message.to_port()
        return await self._answer(
            request, caller, message, asked, wanted, sandbox.request,
            lambda: self._services.sandboxes.place(sandbox), sandbox,
        )  # fmt: skip

    async def _answer(
        self,
        request: Request,
        caller: Caller,
        message: ProgramRequestMessage,
        asked: "Asked",
        wanted: ExecutionRequest,
        limits: SandboxRequest,
        choose: Choose,
        inside: OpenSandbox | None = None,
        id: str | None = None,
    ) -> Response:
        if message.stdin is None and asked.form is Form.JSON and not asked.job:
            raise InvalidRequest(
                "stdin",
                "null means that it comes apart, and nobody knows where to before the end: ask "
                "for a stream (Accept) or a job (Prefer: respond-async), or send it here",
            )
        idempotency = None
        if asked.key is not None:
            idempotency = Idempotency.of(
                asked.key,
                inside.id if inside else "",
                message.model_dump_json().encode(),
            )
        found = await self._services.calls.begin(
            caller,
            wanted,
            limits,
            choose,
            stdin=message.stdin,
            watch_egress=message.watch_egress,
            session=inside,
            idempotency=idempotency,
            job=asked.job,
            id=id,
        )
        if isinstance(found, ExecutionEntry):
            return await self._repeat(caller, found, asked)
        request.scope["state"]["subject"] = found.id
        return await self._follow(request, found, asked)

    async def _follow(self, request: Request, call: Call, asked: "Asked") -> Response:
        where = {"Location": f"/v1/executions/{call.id}"}
        if asked.job:
            message = ExecutionMessage(id=call.id, state=ExecutionState.RUNNING)
            return JsonAnswer(message, 202, where)
        if asked.form is Form.JSON:
            execution = await _for_caller(request, call, call.wait())
            return JsonAnswer(ended(call.id, execution), 200, where)
        # Opened before it can print: it holds the guest back, and misses nothing.
        reader = call.log.open(holding=True)
        try:
            await _for_caller(request, call, forms.begun(call))
        except BaseException:
            reader.close()
            raise
        as_form = forms.as_frames if asked.form is Form.FRAMES else forms.as_events
        return StreamAnswer(
            as_form(call, reader), asked.form.value, headers=where, gone=call.cancel
        )

    async def _repeat(self, caller: Caller, entry: ExecutionEntry, asked: "Asked") -> Response:
        where = {"Location": f"/v1/executions/{entry.id}"}
        if entry.ended_at is None:
            if asked.job:
                message = ExecutionMessage(id=entry.id, state=ExecutionState.RUNNING)
                return JsonAnswer(message, 202, where)
            raise Refused(
                "conflict", f"the first request with this key still runs, as {entry.id}", 1.0
            )
        if entry.outcome is Outcome.UNAVAILABLE:
            detail = entry.record.detail if entry.record else "nothing could serve it"
            raise Unavailable(detail)
        if entry.record is None:
            raise Refused("conflict", f"the record of {entry.id} is not kept any more")
        if asked.form is Form.JSON or asked.job:
            message = ExecutionMessage(id=entry.id, state=ExecutionState.ENDED, record=entry.record)
            return JsonAnswer(message, 200, where)
        if asked.form is Form.EVENTS:
            pieces = forms.record_as_events(entry.id, entry.record)
        else:
            pieces = forms.record_as_frames(entry.id, await self.whole(caller, entry))
        return StreamAnswer(forms.each(pieces), asked.form.value, headers=where)

    async def whole(self, caller: Caller, entry: ExecutionEntry) -> Execution:
        """The record with the bytes of its artefacts, as far as they are kept."""
        record = entry.record
        assert record is not None
        there: list[Artefact] = []
        missing: list[MissingArtefact] = []
        for one in record.artefacts:
            try:
                pieces = self._services.artefacts.read(caller.tenant, one.digest)
                data = b"".join([piece async for piece in pieces])
                there.append(Artefact(one.name, data, one.digest))
            except Refused as refused:
                missing.append(MissingArtefact(one.name, str(refused)))
        return record.execution(
            stdout=Captured(**vars(record.stdout)),
            stderr=Captured(**vars(record.stderr)),
            result=record.result,
            artefacts=tuple(there),
            missing=tuple(missing),
        )


class Asked:
    """How a caller wants its answer."""

    def __init__(
        self, accept: str, key: str | None, prefer: str | None, own_id: str | None
    ) -> None:
        if own_id is not None:
            raise InvalidRequest("Stockade-Id", "is for executors: the gateway makes ids itself")
        if key is not None and not is_idempotency_key(key):
            raise InvalidRequest("Idempotency-Key", "it is not 1 to 128 visible ASCII characters")
        self.key = key
        self.job = "respond-async" in (
            word.partition(";")[0].strip().lower() for word in (prefer or "").split(",")
        )
        self.form = Form.JSON if self.job else forms.negotiated(accept)


def ended(id: str, execution: Execution) -> ExecutionMessage:
    """The message for a record."""
    return ExecutionMessage(id=id, state=ExecutionState.ENDED, record=RecordMessage.of(execution))


async def _for_caller(request: Request, call: Call, wanted: Coroutine[Any, Any, Any]) -> Any:
    """Wait as long as the caller does; one who leaves cancels it."""
    try:
        return await or_gone(request.receive, wanted)
    except BaseException:
        call.cancel()  # does nothing to what has ended
        raise


def router(services: Services, runner: Runner) -> APIRouter:
    """What is below ``/v1/executions``."""
    routes = APIRouter(prefix="/v1", tags=["executions"], route_class=LeanRoute)
    calls, ledger = services.calls, services.ledger

    async def find(caller: Caller, id: str) -> Call:
        call = calls.find(caller.tenant, id)
        if call is not None:
            return call
        entry = await ledger.find_execution(caller.tenant, id)
        if entry.ended_at is None:
            raise Refused("conflict", "another gateway runs it", 1.0)
        raise Refused("conflict", "it has ended")

    @routes.post(
        "/executions",
        response_model=ExecutionMessage,
        responses={200: STREAMS, 202: {"model": ExecutionMessage, "description": "It is a job."}},
        summary="Run one program in a fresh sandbox",
        operation_id="run_program",
    )
    async def run_program(
        request: Request,
        caller: Runs,
        message: ExecutionRequestMessage,
        accept: Accept = forms.JSON,
        idempotency_key: IdempotencyKey = None,
        prefer: Prefer = None,
        stockade_id: Annotated[str | None, Header(include_in_schema=False)] = None,
    ) -> Response:
        """The caller waits for its end, hears it as it runs, or makes it a job.

        A caller that goes away cancels what is not a job.
        """
        asked = Asked(accept, idempotency_key, prefer, stockade_id)
        return await runner.fresh(request, caller, message, asked)

    @routes.get(
        "/executions",
        response_model=ExecutionList,
        summary="List executions, newest first",
        operation_id="list_executions",
    )
    async def list_executions(
        caller: Reads,
        cursor: Cursor = None,
        limit: PageSize = 100,
        sandbox: Annotated[
            str | None, Query(max_length=64, description="Only this session's.")
        ] = None,
        running: Annotated[
            bool | None, Query(description="Only those that run, or that have ended.")
        ] = None,
        tool: Annotated[
            str | None, Query(max_length=64, description="Only those that were for this tool.")
        ] = None,
    ) -> Response:
        """Without their output. What comes after a page has its ``next`` as ``cursor``."""
        page = await ledger.list_executions(
            caller.tenant, cursor, limit, sandbox_id=sandbox, running=running, tool=tool
        )
        return JsonAnswer(
            ExecutionList(executions=tuple(map(summary, page.executions)), next=page.next)
        )

    @routes.get(
        "/executions/{id}",
        response_model=ExecutionMessage,
        summary="Its state, and its record when it has ended",
        operation_id="get_execution",
    )
    async def get_execution(request: Request, caller: Reads, id: Id) -> Response:
        """What was printed is shortened in a record that is kept."""
        identified(request, id)
        entry = await ledger.find_execution(caller.tenant, id)
        return JsonAnswer(
            ExecutionMessage(id=id, state=ExecutionState(entry.state), record=entry.record)
        )

    @routes.get(
        "/executions/{id}/events",
        response_class=Response,
        responses={200: STREAMS},
        summary="Watch it",
        operation_id="watch_execution",
    )
    async def watch_execution(
        request: Request,
        caller: Reads,
        id: Id,
        accept: Accept = forms.EVENTS,
        last_event_id: Annotated[
            str | None, Header(description="Go on behind this event's id.", max_length=20)
        ] = None,
    ) -> Response:
        """What was kept of its output so far, then what comes, then its record.

        Any number may watch. One that is slower than the program by more than is kept is told so
        and left; nobody who watches holds the program back.
        """
        identified(request, id)
        form = forms.negotiated(accept, among=(Form.EVENTS, Form.FRAMES))
        after = _position(last_event_id)
        call = calls.find(caller.tenant, id)
        if call is None:
            entry = await ledger.find_execution(caller.tenant, id)
            # It may have been begun, or have ended, meanwhile.
            call = calls.find(caller.tenant, id)
            if call is None:
                if entry.ended_at is None:
                    entry = await ledger.find_execution(caller.tenant, id)
                if entry.ended_at is None:
                    raise Refused("conflict", "another gateway runs it", 1.0)
                if entry.record is None:
                    raise Refused("not_found", "its record is not kept any more")
                pieces = (
                    forms.record_as_events(id, entry.record, after)
                    if form is Form.EVENTS
                    else forms.record_as_frames(id, await runner.whole(caller, entry))
                )
                return StreamAnswer(forms.each(pieces), form.value)
        reader = call.log.open(after=after)
        as_form = forms.as_events if form is Form.EVENTS else forms.as_frames
        return StreamAnswer(as_form(call, reader), form.value)

    @routes.put(
        "/executions/{id}/stdin",
        status_code=204,
        responses=NO_CONTENT,
        openapi_extra=BINARY,
        summary="Send its standard input",
        operation_id="send_stdin",
    )
    async def send_stdin(request: Request, caller: Runs, id: Id) -> Response:
        """The body's end is its end. A body that breaks off cancels it: half an input is none."""
        call = await find(caller, identified(request, id))
        await call.feed(streamed(request, _MOST_STDIN, idle_seconds=None))
        return Response(status_code=204)

    @routes.post(
        "/executions/{id}/signal",
        status_code=204,
        responses=NO_CONTENT,
        summary="Send a signal to the program and its process group",
        operation_id="signal_execution",
    )
    async def signal_execution(
        request: Request,
        caller: Runs,
        id: Id,
        message: SignalMessage,
    ) -> Response:
        call = await find(caller, identified(request, id))
        await call.signal(message.number)
        return Response(status_code=204)

    @routes.post(
        "/executions/{id}/resize",
        status_code=204,
        responses=NO_CONTENT,
        summary="Tell the program's terminal its new size",
        operation_id="resize_execution",
    )
    async def resize_execution(
        request: Request,
        caller: Runs,
        id: Id,
        message: TerminalMessage,
    ) -> Response:
        call = await find(caller, identified(request, id))
        await call.resize(TerminalSize(message.rows, message.columns))
        return Response(status_code=204)

    @routes.post(
        "/executions/{id}/cancel",
        status_code=204,
        responses=NO_CONTENT,
        summary="End it",
        operation_id="cancel_execution",
    )
    async def cancel_execution(request: Request, caller: Runs, id: Id) -> Response:
        """Its record says ``cancelled``."""
        (await find(caller, identified(request, id))).cancel()
        return Response(status_code=204)

    return routes


def summary(entry: ExecutionEntry) -> ExecutionSummary:
    """An entry in a list."""
    tier = entry.facts.get("tier")
    tool = entry.facts.get("tool") or {}
    return ExecutionSummary(
        id=entry.id,
        state=ExecutionState(entry.state),
        sandbox=entry.sandbox_id,
        begun=to_datetime(entry.begun_at),
        ended=None if entry.ended_at is None else to_datetime(entry.ended_at),
        outcome=entry.outcome,
        tier=tier,
        tool=tool.get("name"),
        tool_version=tool.get("version"),
        purpose=tool.get("purpose"),
    )


def _position(text: str | None) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise InvalidRequest("Last-Event-ID", "it is none of an event of an execution")
    return int(text)
