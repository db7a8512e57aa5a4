"""An environment whose sandboxes have a package set in their workspace."""

from dataclasses import replace
from types import TracebackType
from typing import Self

from stockade.packages.store import PackageSet, PackageStore
from stockade.port import (
    MIB,
    EgressSink,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    Limits,
    OutputSink,
    RunningExecution,
    SandboxRequest,
    Session,
    StandardInput,
    TerminalSize,
)

_FOLDER = "/workspace/.packages/python"
# The sandbox's own, behind what was installed.
_PATH = f"{_FOLDER}/bin:/workspace/node_modules/.bin:/usr/local/bin:/usr/bin:/bin"
VARIABLES = {"PYTHONPATH": _FOLDER, "PATH": _PATH}
"""Where a program finds the packages; a request's own variables win."""


class WithPackages:
    """An :class:`~stockade.port.ExecutionEnvironment` in front of another.

    Each program and each session gets a fresh sandbox with its own copy of the set in it, beside
    what its limits allow. The copy is its own: what is kept cannot be changed from inside.
    """

    def __init__(
        self, environment: ExecutionEnvironment, store: PackageStore, packages: PackageSet
    ) -> None:
        self._environment = environment
        self._store = store
        self._packages = packages

    def __repr__(self) -> str:
        return f"<WithPackages {self._packages.digest[:12]} {self._environment!r}>"

    async def start(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> RunningExecution:
        """See the port."""
        session = await self.open_session(sandbox)
        try:
            running = await session.start(
                _with_variables(request), stdin=stdin, on_output=on_output, on_egress=on_egress
            )
        except BaseException:
            await session.close()
            raise
        return _Single(running, session)

    async def run(
        self,
        request: ExecutionRequest,
        sandbox: SandboxRequest | None = None,
        *,
        stdin: StandardInput = b"",
        on_output: OutputSink | None = None,
        on_egress: EgressSink | None = None,
    ) -> Execution:
        """See the port."""
        running = await self.start(
            request, sandbox, stdin=stdin, on_output=on_output, on_egress=on_egress
        )
        return await running.wait()

    async def open_session(self, sandbox: SandboxRequest | None = None) -> Session:
        """See the port. The caller sets :data:`VARIABLES` for what it runs."""
        wanted = sandbox or SandboxRequest()
        wanted = replace(wanted, limits=self._widened(wanted.limits))
        session = await self._environment.open_session(wanted)
        try:
            await session.restore(self._store.read(wanted.tenant, self._packages))
        except BaseException:
            await session.close()
            raise
        return session

    def _widened(self, limits: Limits) -> Limits:
        """What was asked for is what the program has, beside its packages."""
        more = self._packages.disk_bytes + MIB
        return replace(
            limits,
            memory_bytes=limits.memory_bytes + more,
            disk_bytes=limits.disk_bytes + more,
            inodes=limits.inodes + self._packages.inodes,
        )

    async def close(self) -> None:
        """See the port."""
        await self._environment.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class _Single:
    """A program that has a session to itself, which ends with it."""

    def __init__(self, running: RunningExecution, session: Session) -> None:
        self._running = running
        self._session = session

    @property
    def done(self) -> bool:
        return self._running.done

    async def signal(self, number: int) -> None:
        await self._running.signal(number)

    async def resize(self, size: TerminalSize) -> None:
        await self._running.resize(size)

    async def cancel(self) -> None:
        await self._running.cancel()

    async def wait(self) -> Execution:
        try:
            return await self._running.wait()
        finally:
            await self._session.close()


def _with_variables(request: ExecutionRequest) -> ExecutionRequest:
    return replace(request, environment={**VARIABLES, **request.environment})
