"""The port over HTTP: ``open_remote(url, key=...)``."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from stockade.api.answers import SandboxList, SandboxStateMessage
from stockade.api.headers import is_identifier
from stockade.client import address, calls, messages
from stockade.client.credentials import RemoteCredentials
from stockade.client.execution import RemoteExecution
from stockade.client.jobs import RemoteJobs
from stockade.client.session import MOST_LIST_BYTES, RemoteSession
from stockade.client.tools import RemoteTools
from stockade.client.transport import Interrupted, Timeouts, Transport, client_tls, parsed
from stockade.port import (
    EgressSink,
    Execution,
    ExecutionRequest,
    InvalidRequest,
    OutputSink,
    SandboxRequest,
    StandardInput,
    Unavailable,
)

_DEFAULT = SandboxRequest()
DEFAULT_LEASE_SECONDS = 300.0
_CALLS_SECONDS = 5.0
"""How long closing waits for calls that have not begun, to cancel them by their ids."""


@asynccontextmanager
async def open_remote(
    url: str,
    *,
    key: str,
    tenant: str | None = None,
    ca: str | Path | None = None,
    client_certificate: tuple[str | Path, str | Path] | str | Path | None = None,
    timeouts: Timeouts | None = None,
    more_headers: Callable[[], Mapping[str, str]] = dict,
    called: str | None = None,
) -> "AsyncIterator[RemoteEnvironment]":
    """A service, by its URL; nothing is asked of it before the first call.

    ``key``: what it knows its caller by. ``tenant``: for an executor, which is told of each call
    whose it is: this one's, unless a :class:`~stockade.port.SandboxRequest` says another.
    ``ca``: a file with the certificates to trust instead of the system's. ``client_certificate``:
    a file with a certificate and its key, or one file each. ``more_headers``: called for each
    request; what it gives goes with it, such as ``traceparent``. ``called``: what errors and
    records call the service instead of its URL. Raises :class:`~stockade.port.InvalidRequest`.
    """
    if tenant is not None:
        SandboxRequest(tenant=tenant)  # refuses a name that is none
    transport = Transport(
        address.parse(url),
        key,
        tenant=tenant,
        tls=client_tls(ca, client_certificate),
        timeouts=timeouts or Timeouts(),
        more_headers=more_headers,
        called=called,
    )
    async with RemoteEnvironment(transport) as environment:
        yield environment


class RemoteEnvironment:
    """An :class:`~stockade.port.ExecutionEnvironment` whose sandboxes live behind a service."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._executions: set[RemoteExecution] = set()
        self._sessions: set[RemoteSession] = set()
        self._calling = 0
        self._nobody_calls = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "open" if self._closing is None else "closed"
        return (
            f"<RemoteEnvironment {self._transport} {state} [{len(self._executions)} executions, "
            f"{len(self._sessions)} sessions]>"
        )

    async def start(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
        id: str | None = None,  # noqa: A002 - the word of the API
        idempotency_key: str | None = None,
    ) -> RemoteExecution:
        """Start a program in a fresh sandbox of its own. Raises :class:`Unavailable`.

        ``id``: what it is to be called, of an executor. ``idempotency_key``: the same call again
        with the same key returns the first one's record, of a gateway.
        """
        self._require_open()
        wanted = sandbox or _DEFAULT
        tenant = self._tenant(sandbox)
        identity = calls.identity(id, idempotency_key)
        message = messages.execution(request, wanted, calls.inline(stdin), on_egress is not None)
        self._calling += 1
        try:
            execution = await calls.begin(
                self._transport,
                "/v1/executions",
                message,
                request,
                wanted.limits,
                tenant=tenant,
                identity=identity,
                stdin=stdin,
                on_output=on_output,
                on_egress=on_egress,
            )
        finally:
            self._has_called()
        self._executions.add(execution)
        execution.add_done_callback(lambda: self._executions.discard(execution))
        if self._closing is not None:
            await execution.cancel()
        return execution

    async def run(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
        id: str | None = None,  # noqa: A002
        idempotency_key: str | None = None,
    ) -> Execution:
        """Start a program in a fresh sandbox of its own and wait for its end."""
        running = await self.start(
            request,
            sandbox,
            stdin=stdin,
            on_output=on_output,
            on_egress=on_egress,
            id=id,
            idempotency_key=idempotency_key,
        )
        return await running.wait()

    async def open_session(
        self,
        sandbox: SandboxRequest | None = None,
        *,
        id: str | None = None,  # noqa: A002
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        workspace: str | None = None,
        keep_alive: bool = True,
    ) -> RemoteSession:
        """Take a sandbox for several executions.

        It lives for ``lease_seconds``, which are extended until it is closed, unless
        ``keep_alive`` says no. ``workspace``: a kept one to begin with and to save into.
        """
        self._require_open()
        wanted = sandbox or _DEFAULT
        tenant = self._tenant(sandbox)
        identity = calls.identity(id)
        if not lease_seconds > 0 or math.isinf(lease_seconds):
            raise InvalidRequest("lease_seconds", f"{lease_seconds!r} is not a number above 0")
        message = messages.session(wanted, lease_seconds, workspace)
        self._calling += 1
        try:
            answer = await self._transport.ask(
                "POST",
                "/v1/sandboxes",
                tenant=tenant,
                message=message,
                more=identity,
            )
            told = parsed(SandboxStateMessage, answer)
            if not is_identifier(told.id):
                raise Interrupted("its answer has no id")
        except Interrupted as error:
            # If it was opened, nobody extends its lease.
            raise Unavailable(f"{self._transport}: {error}") from None
        finally:
            self._has_called()
        session = RemoteSession(
            self._transport,
            told.id,
            wanted.limits,
            tenant=tenant,
            generation=told.generation,
            keep_alive=lease_seconds if keep_alive else None,
            tier=told.tier,
            on_close=self._sessions.discard,
        )
        self._sessions.add(session)
        if self._closing is not None:
            await session.close()
            self._require_open()
        return session

    def session(
        self,
        id: str,  # noqa: A002
        sandbox: SandboxRequest | None = None,
        *,
        generation: int | None = None,
    ) -> RemoteSession:
        """A session that is open already. Its lease stays as it is, and it stays open at the end.

        ``sandbox``: as it was asked for, by which what comes of it is judged. ``generation``: of
        an executor's, what its state said.
        """
        self._require_open()
        calls.identity(id)
        return RemoteSession(
            self._transport,
            id,
            (sandbox or _DEFAULT).limits,
            tenant=self._tenant(sandbox),
            generation=generation,
            keep_alive=None,
            on_close=self._sessions.discard,
        )

    @property
    def jobs(self) -> RemoteJobs:
        """Executions that nobody waits for."""
        return RemoteJobs(self._transport, self._require_open)

    @property
    def credentials(self) -> RemoteCredentials:
        """What tools show to the services that they call, as a gateway keeps it."""
        return RemoteCredentials(self._transport, self._require_open)

    @property
    def tools(self) -> RemoteTools:
        """The tenant's tools, as a gateway keeps them."""
        return RemoteTools(self._transport, self._require_open)

    async def sandboxes(self, *, tenant: str | None = None) -> list[SandboxStateMessage]:
        """The sessions that are open. ``tenant``: whose, of an executor."""
        self._require_open()
        whose = self._tenant(None if tenant is None else SandboxRequest(tenant=tenant))
        try:
            answer = await self._transport.ask(
                "GET", "/v1/sandboxes", tenant=whose, most_bytes=MOST_LIST_BYTES
            )
            return list(parsed(SandboxList, answer).sandboxes)
        except Interrupted as error:
            raise Unavailable(f"{self._transport}: {error}") from None

    async def close(self) -> None:
        """End everything that was begun here; returns when nothing of it lives.

        Raises :class:`~stockade.port.Unavailable` where nobody confirms that.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            ends = [one.end() for one in self._executions]
            closes = [one.close() for one in self._sessions]
            failures = [
                result
                for result in await asyncio.gather(*ends, *closes, return_exceptions=True)
                if isinstance(result, BaseException)
            ]
            try:
                async with asyncio.timeout(_CALLS_SECONDS):
                    while self._calling:
                        self._nobody_calls.clear()
                        await self._nobody_calls.wait()
            except TimeoutError:
                pass  # closing their connections cancels them
        finally:
            await self._transport.close()
        for failure in failures:
            raise failure

    def _has_called(self) -> None:
        self._calling -= 1
        if not self._calling:
            self._nobody_calls.set()

    def _tenant(self, sandbox: SandboxRequest | None) -> str | None:
        """What the service is told of whose it is."""
        if self._transport.tenant is None:
            if sandbox is not None and sandbox.tenant != _DEFAULT.tenant:
                raise InvalidRequest(
                    "tenant",
                    f"{sandbox.tenant!r} cannot be asked for: the service knows the tenant by the "
                    "key; leave it out, or call with that tenant's key",
                )
            return None
        return self._transport.tenant if sandbox is None else sandbox.tenant

    def _require_open(self) -> None:
        if self._closing is not None:
            raise Unavailable("the environment is closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
