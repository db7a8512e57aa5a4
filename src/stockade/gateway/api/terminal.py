"""A program with a terminal, over a WebSocket.

The caller sends one text message first, a :class:`TerminalRequest`; then binary messages are what is
typed, text messages a ``resize`` or a ``signal``. Back come ``started``, binary messages of what the
terminal shows, and at the end ``record`` or ``problem``. Closing the WebSocket ends the program.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from starlette.types import Message

from stockade.api.answers import StartedMessage
from stockade.api.headers import is_identifier
from stockade.api.problems import Problem
from stockade.api.records import RecordMessage
from stockade.api.requests import (
    CommandMessage,
    ProgramMessage,
    ProgramRequestMessage,
    SignalMessage,
    TerminalMessage,
)
from stockade.gateway.api.door import TERMINAL_PROTOCOL, refuse_websocket
from stockade.gateway.api.problems import answer, fault, problem_of
from stockade.gateway.api.services import Services
from stockade.gateway.calls import Call
from stockade.gateway.executions import ExecutionEntry
from stockade.gateway.keys import Caller, Scope
from stockade.gateway.sandboxes import OpenSandbox, no_such_thing
from stockade.gateway.watching import Piece
from stockade.port import InvalidRequest, StockadeError, TerminalSize

_FIRST_SECONDS = 10.0


class TerminalRequest(ProgramRequestMessage):
    """The program, by default a shell, and the size of its terminal."""

    program: ProgramMessage = Field(default_factory=lambda: CommandMessage(argv=("sh",)))
    terminal: TerminalMessage = TerminalMessage(rows=24, columns=80)
    stdin: None = None


class Resize(TerminalMessage):
    """The terminal's new size."""

    type: Literal["resize"]


class SendSignal(SignalMessage):
    """A signal to the program and its process group."""

    type: Literal["signal"]


_CONTROL: TypeAdapter[Resize | SendSignal] = TypeAdapter(
    Annotated[Resize | SendSignal, Field(discriminator="type")]
)


def router(services: Services) -> APIRouter:
    """``/v1/sandboxes/{id}/terminal``."""
    routes = APIRouter(prefix="/v1")

    @routes.websocket("/sandboxes/{id}/terminal")
    async def terminal(websocket: WebSocket, id: str) -> None:
        caller: Caller = websocket.scope["state"]["caller"]
        try:
            caller.need(Scope.RUN)
            if not is_identifier(id):
                raise no_such_thing()
            sandbox = services.sandboxes.find(caller, id)
            sandbox.require_idle()
        except StockadeError as error:
            refusal = answer(problem_of(error), websocket.scope)
            await refuse_websocket(
                websocket.scope, websocket.send, refusal.status_code, bytes(refusal.body)
            )
            return
        offered = websocket.scope.get("subprotocols", ())
        await websocket.accept(TERMINAL_PROTOCOL if TERMINAL_PROTOCOL in offered else None)
        await _Terminal(services, websocket, caller, sandbox).run()

    return routes


class _Terminal:
    def __init__(
        self, services: Services, websocket: WebSocket, caller: Caller, sandbox: OpenSandbox
    ) -> None:
        self._services = services
        self._websocket = websocket
        self._caller = caller
        self._sandbox = sandbox

    async def run(self) -> None:
        call: Call | None = None
        try:
            call = await self._begin()
            self._websocket.scope["state"]["subject"] = call.id
            await self._converse(call)
        except WebSocketDisconnect:
            pass
        except StockadeError as error:
            await self._end(problem_of(error))
        except Exception:
            await self._end(fault())
            raise
        finally:
            if call is not None:
                call.cancel()

    async def _begin(self) -> Call:
        try:
            async with asyncio.timeout(_FIRST_SECONDS):
                first = await self._websocket.receive()
        except TimeoutError:
            raise InvalidRequest(
                "terminal", f"no request came within {_FIRST_SECONDS:g} s"
            ) from None
        message = _understood(TerminalRequest.model_validate_json, _text(first))
        found = await self._services.calls.begin(
            self._caller,
            message.to_port(),
            self._sandbox.request,
            lambda: self._services.sandboxes.place(self._sandbox),
            stdin=None,
            session=self._sandbox,
        )
        assert not isinstance(found, ExecutionEntry)  # there is no idempotency key
        return found

    async def _converse(self, call: Call) -> None:
        typing = asyncio.ensure_future(call.feed(self._typed(call)))
        showing = asyncio.ensure_future(self._show(call))
        try:
            await asyncio.wait([typing, showing], return_when=asyncio.FIRST_COMPLETED)
            if not showing.done():
                # Typing ends first only where the caller left or broke a rule.
                typing.result()
                call.cancel()
            await showing
        finally:
            for task in (typing, showing):
                task.cancel()
            await asyncio.wait([typing, showing])
            if not typing.cancelled():
                typing.exception()

    async def _typed(self, call: Call) -> AsyncIterator[bytes]:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1006))
            if message.get("bytes") is not None:
                yield message["bytes"]
                continue
            control = _understood(_CONTROL.validate_json, _text(message))
            match control:
                case Resize():
                    await call.resize(TerminalSize(control.rows, control.columns))
                case SendSignal():
                    await call.signal(control.number)

    async def _show(self, call: Call) -> None:
        reader = call.log.open(holding=True)
        try:
            await call.started.wait()
            if not call.refused:
                await self._say("started", StartedMessage(id=call.id))
            async for piece in reader.pieces():
                if isinstance(piece, Piece):
                    await self._websocket.send_bytes(piece.data)
            await self._say("record", RecordMessage.of(await call.wait()))
            await self._websocket.close(1000)
        finally:
            reader.close()

    async def _say(self, kind: str, message: BaseModel) -> None:
        await self._websocket.send_text(f'{{"type":"{kind}","{kind}":{message.model_dump_json()}}}')

    async def _end(self, problem: Problem) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.send_text(
                f'{{"type":"problem","problem":{problem.body().decode()}}}'
            )
            await self._websocket.close(1008)


def _text(message: Message) -> str:
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    text = message.get("text")
    if text is None:
        raise InvalidRequest("terminal", "the first message is a request, as text")
    return str(text)


def _understood(parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "message"
        raise InvalidRequest(where, first["msg"]) from None
