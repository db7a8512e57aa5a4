"""The service's paths: docs/api.md, what is marked `executor` or `both`."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final, TypeVar

from opentelemetry.trace import TracerProvider
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from stockade.api import headers as names
from stockade.api.answers import EntryMessage, FolderMessage, ReadyMessage, SandboxList
from stockade.api.frames import MEDIA_TYPE, FrameType, encode, encode_output
from stockade.api.problems import Code, Problem
from stockade.api.requests import (
    ExecutionRequestMessage,
    LeaseMessage,
    ProgramRequestMessage,
    SessionRequestMessage,
    SignalMessage,
    TerminalMessage,
)
from stockade.executor.service.bodies import (
    Body,
    BodyBudget,
    CallerGone,
    header,
    pieces,
    read_json,
)
from stockade.executor.service.executions import Executions, Served, Start, refuse_workspace
from stockade.executor.service.gate import Gate
from stockade.executor.service.identities import SeenIds
from stockade.executor.service.logs import Log, make_log
from stockade.executor.service.metrics import CONTENT_TYPE, Metrics
from stockade.executor.service.problems import Refusal, problem_of
from stockade.executor.service.sessions import Leased, Sessions
from stockade.executor.service.settings import ExecutorSettings
from stockade.executor.service.standard_input import StandardInputPipe
from stockade.executor.service.tracing import Tracing
from stockade.port import (
    EgressSink,
    ExecutionEnvironment,
    OutputSink,
    RunningExecution,
    StandardInput,
    StockadeError,
    TerminalSize,
    Unavailable,
)

_MOST_SMALL_BODY: Final = 4096
_OCTETS: Final = b"application/octet-stream"
T = TypeVar("T")
Endpoint = Callable[[Scope, Receive, Send], Awaitable[None]]


class Service:
    """What one application holds."""

    def __init__(
        self,
        environment: ExecutionEnvironment,
        settings: ExecutorSettings,
        log: Log,
        provider: TracerProvider | None,
    ) -> None:
        self._environment = environment
        self._settings = settings
        self._log = log
        self._tracing = Tracing(provider)
        self.metrics = Metrics()
        seen = SeenIds()
        self.executions = Executions(
            seen, self.metrics, self._tracing, log, settings.stalled_seconds
        )
        self.sessions = Sessions(seen, self.metrics, log, settings.max_lease_seconds)
        self._bodies = BodyBudget(settings.most_buffered_bytes)
        self._draining: asyncio.Task[None] | None = None
        read = getattr(environment, "metrics", None)
        if read is not None:
            self.metrics.watch_pool(read)

    def __repr__(self) -> str:
        state = "draining" if self.draining else "open"
        return f"<Service {state} {self.executions!r} {self.sessions!r}>"

    # --- its end ---

    @property
    def draining(self) -> bool:
        """Whether no calls are taken any more."""
        return self._draining is not None

    def drain(self) -> "asyncio.Task[None]":
        """Take no more calls; done when nothing lives, which the deadline sees to."""
        if self._draining is None:
            self.metrics.draining.set(1)
            self._log.info(
                "draining", executions=len(self.executions), sandboxes=len(self.sessions)
            )
            self._draining = asyncio.create_task(self._drain())
        return self._draining

    async def stop(self) -> None:
        """End everything now."""
        await self.executions.cancel_all()
        await self.sessions.close_all()
        await self.executions.ended()
        await self.sessions.ended()

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._settings.drain_seconds):
                await self.executions.ended()
                await self.sessions.ended()
        except TimeoutError:
            self._log.warning(
                "drain_deadline", executions=len(self.executions), sandboxes=len(self.sessions)
            )
            await self.stop()
        self._log.info("drained")

    def _require_calls(self) -> None:
        if self.draining:
            raise Unavailable("this executor is draining: it takes no more calls")

    # --- without a token ---

    async def healthz(self, scope: Scope, receive: Receive, send: Send) -> None:
        """That this is answered says that the event loop lives."""
        await _send_json(send, {"status": "ok"})

    async def readyz(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whether calls are taken. While the service listens, a tier is open."""
        if self.draining:
            await _send_json(send, {"status": "draining"}, 503)
        else:
            longest = self._settings.max_lease_seconds
            await _send_message(send, ReadyMessage(status="ready", max_lease_seconds=longest))

    async def show_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For Prometheus."""
        await _send(send, 200, CONTENT_TYPE.encode(), self.metrics.text())

    # --- executions ---

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/executions."""
        self._require_calls()
        _require_frames(scope)
        tenant, identity = _tenant(scope), _identity(scope)
        with self._bodies.account() as account:
            message = await read_json(
                ExecutionRequestMessage,
                scope,
                receive,
                account,
                self._settings.most_body_bytes,
                self._settings.stalled_seconds,
            )
            request = message.to_port()
            sandbox = message.sandbox.to_port(tenant)

            async def start(
                stdin: StandardInput, sink: OutputSink, told: EgressSink
            ) -> RunningExecution:
                return await self._environment.start(
                    request,
                    sandbox,
                    stdin=stdin if message.stdin is None else message.stdin,
                    on_output=sink,
                    on_egress=told if message.watch_egress else None,
                )

            await self._serve(scope, receive, send, identity, None, message, start)

    async def run_in_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/sandboxes/{id}/executions."""
        self._require_calls()
        _require_frames(scope)
        identity = _identity(scope)
        leased = self._leased(scope)
        with self._bodies.account() as account:
            message = await read_json(
                ProgramRequestMessage,
                scope,
                receive,
                account,
                self._settings.most_body_bytes,
                self._settings.stalled_seconds,
            )
            request = message.to_port()
            began = False

            async def start(
                stdin: StandardInput, sink: OutputSink, told: EgressSink
            ) -> RunningExecution:
                nonlocal began
                running = await leased.session.start(
                    request,
                    stdin=stdin if message.stdin is None else message.stdin,
                    on_output=sink,
                    on_egress=told if message.watch_egress else None,
                )
                leased.execution = identity
                began = True
                return running

            try:
                await self._serve(scope, receive, send, identity, leased.id, message, start)
            finally:
                if began and leased.execution == identity:
                    leased.execution = None

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        identity: str,
        sandbox: str | None,
        message: ProgramRequestMessage,
        start: Start,
    ) -> None:
        self._require_calls()  # once more: the body may have taken its time
        served = Served(
            id=identity,
            tenant=_tenant(scope),
            sandbox=sandbox,
            stdin=StandardInputPipe() if message.stdin is None else None,
            trace=self._tracing.parent(scope),
        )
        await self.executions.serve(served, start, receive, send)

    async def stdin(self, scope: Scope, receive: Receive, send: Send) -> None:
        """PUT /v1/executions/{id}/stdin."""
        await self.executions.feed(self._served(scope), receive)
        await _send_nothing(send)

    async def signal(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/executions/{id}/signal."""
        served = self._served(scope)
        message = await self._small(SignalMessage, scope, receive)
        await self.executions.signal(served, message.number)
        await _send_nothing(send)

    async def resize(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/executions/{id}/resize."""
        served = self._served(scope)
        message = await self._small(TerminalMessage, scope, receive)
        await self.executions.resize(served, TerminalSize(message.rows, message.columns))
        await _send_nothing(send)

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/executions/{id}/cancel."""
        await self._served(scope).cancel()
        await _send_nothing(send)

    # --- sessions ---

    async def open_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/sandboxes."""
        self._require_calls()
        tenant, identity = _tenant(scope), _identity(scope)
        message = await self._small(SessionRequestMessage, scope, receive)
        refuse_workspace(message.workspace)
        sandbox = message.sandbox.to_port(tenant)
        opening = self.sessions.open(
            tenant,
            identity,
            message.lease_seconds,
            lambda: self._environment.open_session(sandbox),
        )
        leased = await _unless_gone(receive, opening)
        if self.draining:
            await self.sessions.close(leased)
            self._require_calls()
        location = (b"location", f"/v1/sandboxes/{leased.id}".encode())
        await _send_message(send, self.sessions.state(leased), 201, location)

    async def list_sessions(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/sandboxes."""
        states = tuple(self.sessions.state(leased) for leased in self.sessions.of(_tenant(scope)))
        await _send_message(send, SandboxList(sandboxes=states))

    async def show_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/sandboxes/{id}."""
        await _send_message(send, self.sessions.state(self._leased(scope)))

    async def close_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        """DELETE /v1/sandboxes/{id}."""
        await self.sessions.close(self._leased(scope))
        await _send_nothing(send)

    async def extend_lease(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/sandboxes/{id}/lease."""
        leased = self._leased(scope)
        message = await self._small(LeaseMessage, scope, receive)
        self.sessions.extend(leased, message.seconds)
        await _send_message(send, self.sessions.state(leased))

    async def pause(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/sandboxes/{id}/pause."""
        await self._leased(scope).session.pause()
        await _send_nothing(send)

    async def resume(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/sandboxes/{id}/resume."""
        await self._leased(scope).session.resume()
        await _send_nothing(send)

    async def write_file(self, scope: Scope, receive: Receive, send: Send) -> None:
        """PUT /v1/sandboxes/{id}/files/{path}."""
        body = pieces(receive, self._settings.stalled_seconds)
        await self._leased(scope).session.write_file(_path(scope), body)
        await _send_nothing(send)

    async def read_file(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/sandboxes/{id}/files/{path}."""
        content = self._leased(scope).session.read_file(_path(scope))
        await self._stream(content, receive, send)

    async def list_folder(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/sandboxes/{id}/folders/{path}."""
        found = await self._leased(scope).session.list_files(_path(scope))
        entries = tuple(
            EntryMessage(name=entry.name, kind=entry.kind, size=entry.size) for entry in found
        )
        await _send_message(send, FolderMessage(entries=entries))

    async def save(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/sandboxes/{id}/workspace."""
        content = self._leased(scope).session.save()
        if MEDIA_TYPE in _accepted(scope):
            await self._stream(_framed(content), receive, send, MEDIA_TYPE.encode())
        else:
            await self._stream(content, receive, send)

    async def restore(self, scope: Scope, receive: Receive, send: Send) -> None:
        """PUT /v1/sandboxes/{id}/workspace."""
        body = pieces(receive, self._settings.stalled_seconds)
        await self._leased(scope).session.restore(body)
        await _send_nothing(send)

    # --- the service itself ---

    async def begin_drain(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/drain."""
        self.drain()
        await _send_json(
            send,
            {"executions": len(self.executions), "sandboxes": len(self.sessions)},
            202,
        )

    # --- what they share ---

    def _served(self, scope: Scope) -> Served:
        return self.executions.find(_tenant(scope), scope["path_params"]["id"])

    def _leased(self, scope: Scope) -> Leased:
        generation = header(scope, names.GENERATION.lower().encode())
        return self.sessions.find(
            _tenant(scope),
            scope["path_params"]["id"],
            None if generation is None else generation.decode("latin-1"),
        )

    async def _small(self, kind: type[Body], scope: Scope, receive: Receive) -> Body:
        with self._bodies.account() as account:
            return await read_json(
                kind, scope, receive, account, _MOST_SMALL_BODY, self._settings.stalled_seconds
            )

    async def _stream(
        self, content: AsyncIterator[bytes], receive: Receive, send: Send, kind: bytes = _OCTETS
    ) -> None:
        """Bytes that nobody is to take for a page; one that cannot be read is a problem."""

        async def copy() -> None:
            began = False
            async with aclosing(content):  # type: ignore[type-var]
                async for piece in content:
                    if not began:
                        await _send_head(send, 200, kind)
                        began = True
                    await self._send_soon(send, piece)
            if not began:
                await _send_head(send, 200, kind)
            await send({"type": "http.response.body", "body": b""})

        await _unless_gone(receive, copy())

    async def _send_soon(self, send: Send, piece: bytes) -> None:
        seconds = self._settings.stalled_seconds
        try:
            async with asyncio.timeout(seconds):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except TimeoutError:
            raise CallerGone(f"the reader took nothing for {seconds:g} s") from None


def create_app(
    environment: ExecutionEnvironment,
    settings: ExecutorSettings,
    *,
    log: Log | None = None,
    provider: TracerProvider | None = None,
) -> Starlette:
    """The application. Its ``state.service`` drains and stops it; ``environment`` stays the caller's.

    ``provider``: of traces; none are made without.
    """
    log = log or make_log(settings.log_level)
    service = Service(environment, settings, log, provider)
    session = "/v1/sandboxes/{id}"
    execution = "/v1/executions/{id}"
    paths: list[tuple[str, str, Endpoint]] = [
        ("GET", "/healthz", service.healthz),
        ("GET", "/readyz", service.readyz),
        ("GET", "/metrics", service.show_metrics),
        ("POST", "/v1/executions", service.run),
        ("PUT", f"{execution}/stdin", service.stdin),
        ("POST", f"{execution}/signal", service.signal),
        ("POST", f"{execution}/resize", service.resize),
        ("POST", f"{execution}/cancel", service.cancel),
        ("POST", "/v1/sandboxes", service.open_session),
        ("GET", "/v1/sandboxes", service.list_sessions),
        ("GET", session, service.show_session),
        ("DELETE", session, service.close_session),
        ("POST", f"{session}/executions", service.run_in_session),
        ("PUT", f"{session}/files/{{path:path}}", service.write_file),
        ("GET", f"{session}/files/{{path:path}}", service.read_file),
        ("GET", f"{session}/folders", service.list_folder),
        ("GET", f"{session}/folders/{{path:path}}", service.list_folder),
        ("POST", f"{session}/lease", service.extend_lease),
        ("POST", f"{session}/pause", service.pause),
        ("POST", f"{session}/resume", service.resume),
        ("GET", f"{session}/workspace", service.save),
        ("PUT", f"{session}/workspace", service.restore),
        ("POST", "/v1/drain", service.begin_drain),
    ]
    methods: dict[str, dict[str, Endpoint]] = {}
    for method, path, endpoint in paths:
        methods.setdefault(path, {})[method] = endpoint
    app = Starlette(routes=[Route(path, _Methods(found)) for path, found in methods.items()])
    app.router.redirect_slashes = False
    # Nothing stands around the gate, which makes an answer of whatever goes wrong behind it.
    app.middleware_stack = Gate(app.router, settings.read_token(), log)
    app.state.service = service
    return app


class _Methods:
    """One path's endpoints, as an application: Starlette wraps a function in more."""

    def __init__(self, endpoints: dict[str, Endpoint]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is None:
            allowed = ", ".join(self._endpoints)
            raise Refusal(
                Problem.make(
                    Code.METHOD_NOT_ALLOWED, f"what may be done to this path is: {allowed}"
                )
            )
        await endpoint(scope, receive, send)


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What comes of it. Raises :class:`CallerGone`, when it has ended, where the caller goes first."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.create_task(work)
    gone = asyncio.create_task(until_gone())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise CallerGone("the caller went away")
        return working.result()
    finally:
        gone.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})


def _tenant(scope: Scope) -> str:
    tenant: str = scope["stockade.tenant"]
    return tenant


def _identity(scope: Scope) -> str:
    value = header(scope, names.ID.lower().encode())
    if value is None:
        return secrets.token_hex(16)
    text = value.decode("latin-1")
    if not names.is_identifier(text):
        raise Refusal(
            Problem.make(
                Code.INVALID_REQUEST,
                f"the header {names.ID} is not 1 to 64 letters, digits, - and _",
            )
        )
    return text


def _path(scope: Scope) -> str:
    return names.decode_path(scope["path_params"].get("path", "").encode("latin-1"))


async def _framed(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """In frames, whose last one says whether this was all, and if not, why."""
    try:
        async with aclosing(content):  # type: ignore[type-var]
            async for piece in content:
                for frame in encode_output(FrameType.BLOB, piece):
                    yield frame
    except StockadeError as error:
        yield encode(FrameType.PROBLEM, problem_of(error).body())
        return
    yield encode(FrameType.END)


def _accepted(scope: Scope) -> set[str]:
    accept = (header(scope, b"accept") or b"*/*").decode("latin-1")
    return {part.partition(";")[0].strip().lower() for part in accept.split(",")}


def _require_frames(scope: Scope) -> None:
    if not _accepted(scope) & {MEDIA_TYPE, "application/*", "*/*"}:
        raise Refusal(
            Problem.make(Code.NOT_ACCEPTABLE, f"an executor answers with {MEDIA_TYPE} alone")
        )


async def _send(
    send: Send, status: int, content_type: bytes, body: bytes, *more: tuple[bytes, bytes]
) -> None:
    headers = [
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_head(send: Send, status: int, content_type: bytes) -> None:
    headers = [
        (b"content-type", content_type),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_json(send: Send, content: object, status: int = 200) -> None:
    await _send(send, status, b"application/json", json.dumps(content).encode())


async def _send_message(
    send: Send, message: BaseModel, status: int = 200, *more: tuple[bytes, bytes]
) -> None:
    body = message.model_dump_json().encode()
    await _send(send, status, b"application/json", body, *more)


async def _send_nothing(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})
