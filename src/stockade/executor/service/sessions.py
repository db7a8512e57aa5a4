"""The sessions of all tenants, each for as long as its lease, by this executor's own clock."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from stockade.api.answers import SandboxState, SandboxStateMessage
from stockade.executor.service.identities import SeenIds
from stockade.executor.service.logs import Log
from stockade.executor.service.metrics import Metrics
from stockade.executor.service.problems import conflict, not_found
from stockade.port import InvalidRequest, SandboxLost, Session

_MICROSECONDS: Final = 1_000_000


@dataclass(slots=True, eq=False)
class Leased:
    """One session."""

    id: str
    tenant: str
    session: Session
    generation: int
    """Greater than that of any before it, of this executor or one before: docs/service.md."""
    ends: float = 0.0
    """When its lease does, on the loop's clock."""
    timer: asyncio.TimerHandle | None = None
    closing: "asyncio.Task[None] | None" = None
    execution: str | None = None
    """What runs in it."""


class Sessions:
    """Those of one service."""

    def __init__(self, seen: SeenIds, metrics: Metrics, log: Log, longest_lease: float) -> None:
        self._seen = seen
        self._metrics = metrics
        self._log = log
        self._longest_lease = longest_lease
        self._leased: dict[tuple[str, str], Leased] = {}
        self._last_generation = 0
        self._none_open = asyncio.Event()
        self._none_open.set()

    def __repr__(self) -> str:
        return f"<Sessions {len(self._leased)} open>"

    def __len__(self) -> int:
        return len(self._leased)

    async def open(
        self, tenant: str, identity: str, seconds: float, make: Callable[[], Awaitable[Session]]
    ) -> Leased:
        """Open one. What ``make`` raises is raised, and the id may be tried again."""
        self._check(seconds)
        if not self._seen.take(tenant, identity):
            raise conflict(f"the id {identity} was seen before: nothing with an id is made twice")
        try:
            session = await make()
        except BaseException:
            self._seen.release(tenant, identity)
            raise
        leased = Leased(identity, tenant, session, self._next_generation())
        self._leased[tenant, identity] = leased
        self._none_open.clear()
        self._metrics.sessions.inc()
        self.extend(leased, seconds)
        self._log.info("session_opened", tenant=tenant, sandbox=identity, lease_seconds=seconds)
        return leased

    def find(self, tenant: str, identity: str, generation: str | None = None) -> Leased:
        """One that is open. Raises :class:`Refusal`, the same whether it never was or is another's.

        ``generation``: the one that the caller knows. Of another, his is gone.
        """
        leased = self._leased.get((tenant, identity))
        if leased is None or generation not in (None, str(leased.generation)):
            raise not_found("sandbox, or it was closed, or its lease has ended")
        return leased

    def of(self, tenant: str) -> list[Leased]:
        """A tenant's."""
        return [leased for leased in self._leased.values() if leased.tenant == tenant]

    def extend(self, leased: Leased, seconds: float) -> None:
        """A lease of so many seconds from now, be it shorter or longer than what is left."""
        self._check(seconds)
        if leased.closing is not None:
            raise SandboxLost("the session is being closed")
        loop = asyncio.get_running_loop()
        if leased.timer is not None:
            leased.timer.cancel()
        leased.ends = loop.time() + seconds
        leased.timer = loop.call_at(leased.ends, self._expire, leased)

    def state(self, leased: Leased) -> SandboxStateMessage:
        """As its owner sees it. Asking extends nothing."""
        state = SandboxState.OPEN
        if leased.closing is not None:
            state = SandboxState.ENDED
        elif getattr(leased.session, "paused", False):
            state = SandboxState.PAUSED
        left = leased.ends - asyncio.get_running_loop().time()
        return SandboxStateMessage(
            id=leased.id,
            state=state,
            tier=getattr(leased.session, "tier", None),
            lease_seconds=max(0.0, round(left, 3)),
            execution=leased.execution,
            generation=leased.generation,
        )

    async def close(self, leased: Leased) -> None:
        """Close it; returns when nothing of it lives, whoever began."""
        if leased.closing is None:
            leased.closing = asyncio.create_task(self._close(leased))
        await asyncio.shield(leased.closing)

    async def close_all(self) -> None:
        """Close every one."""
        await asyncio.gather(
            *(self.close(leased) for leased in list(self._leased.values())), return_exceptions=True
        )

    async def ended(self) -> None:
        """Wait until none is open."""
        await self._none_open.wait()

    def _expire(self, leased: Leased) -> None:
        if leased.closing is None:
            self._metrics.leases_ended.inc()
            self._log.info("lease_ended", tenant=leased.tenant, sandbox=leased.id)
            leased.closing = asyncio.create_task(self._close(leased))

    async def _close(self, leased: Leased) -> None:
        if leased.timer is not None:
            leased.timer.cancel()
        try:
            await leased.session.close()
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it
            self._log.error("fault", tenant=leased.tenant, sandbox=leased.id, exc_info=error)
        finally:
            del self._leased[leased.tenant, leased.id]
            if not self._leased:
                self._none_open.set()
            self._seen.end(leased.tenant, leased.id)
            self._metrics.sessions.dec()
            self._log.info("session_closed", tenant=leased.tenant, sandbox=leased.id)

    def _check(self, seconds: float) -> None:
        if seconds > self._longest_lease:
            raise InvalidRequest(
                "lease_seconds",
                f"{seconds:g} is longer than this executor allows: {self._longest_lease:g} s are "
                "the most; extend it in time instead",
            )

    def _next_generation(self) -> int:
        self._last_generation = max(self._last_generation + 1, int(time.time() * _MICROSECONDS))
        return self._last_generation
