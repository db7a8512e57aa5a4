"""The sandboxes that are open: each with its authority, its credentials, and what it did."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from stockade.api.credentials import WayKind
from stockade.broker.authority import Authority
from stockade.broker.granting import Access
from stockade.broker.injection import masked_forms, new_placeholder
from stockade.broker.masking import Masks
from stockade.broker.room import ALL_BODIES, SandboxRoom
from stockade.broker.store import Opened
from stockade.egress.decision import Denied
from stockade.egress.names import Destination
from stockade.egress.room import Room
from stockade.port.egress import MAX_DENIED, EgressRule

_MOST: Final = 10_000
_MOST_TOLD: Final = 128
"""Of uses in one line, which is bounded, and no refusal has more than 300 characters."""


class TooManySandboxes(Exception):
    """As many are open as may be."""


@dataclass
class _Denial:
    reason: str
    detail: str
    count: int = 0


class BrokeredSandbox:
    """One. It ends with its lease, and its keys and secrets with it."""

    def __init__(
        self,
        tenant: str,
        execution: str,
        rules: Iterable[EgressRule],
        credentials: tuple[Opened, ...],
        room: SandboxRoom | None = None,
    ) -> None:
        self.id = secrets.token_hex(32)
        self.tenant = tenant
        self.execution = execution
        self.room = room or SandboxRoom()
        self.authority = Authority()
        self.access = Access(rules, credentials)
        self.masks = Masks(
            form
            for opened in credentials
            for form in masked_forms(opened.secret, (grant.way for grant in opened.grants))
        )
        self.placeholders: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        for opened in credentials:
            for grant in opened.grants:
                if grant.way.kind is WayKind.PLACEHOLDER and grant.way.name is not None:
                    placeholder = self.placeholders.setdefault(
                        opened.name, new_placeholder(opened.name)
                    )
                    self.environment[grant.way.name] = placeholder
        self.tasks: set[asyncio.Task[Any]] = set()
        """Its connections."""
        self._used: Counter[tuple[str, str]] = Counter()
        self._denied: dict[tuple[str, str], _Denial] = {}

    def __repr__(self) -> str:
        return f"<BrokeredSandbox {self.tenant}/{self.execution}: {len(self.tasks)} connections>"

    def note_use(self, credential: str, destination: Destination) -> None:
        """That it went into a request to there."""
        self._used[credential, str(destination)] += 1

    def note_denial(self, destination: Destination, denied: Denied) -> None:
        """That a request was refused."""
        key = (str(destination)[:300], denied.reason)
        if key in self._denied or len(self._denied) < MAX_DENIED:
            self._denied.setdefault(key, _Denial(denied.reason, denied.detail[:300])).count += 1

    def told(self) -> dict[str, Any]:
        """What was used and what was refused since this was asked the last time."""
        used, self._used = self._used, Counter()
        denied, self._denied = self._denied, {}
        return {
            "uses": [
                {"credential": credential, "destination": destination, "count": count}
                for (credential, destination), count in list(used.items())[:_MOST_TOLD]
            ],
            "denied": [
                {
                    "destination": destination,
                    "reason": denial.reason,
                    "detail": denial.detail,
                    "count": denial.count,
                }
                for (destination, _), denial in denied.items()
            ],
        }

    async def close(self) -> None:
        """End its connections."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class Sandboxes:
    """All of them, by the id that only their executor knows."""

    def __init__(self) -> None:
        self._open: dict[str, BrokeredSandbox] = {}
        self._bodies = Room(ALL_BODIES, "bytes of bodies to be signed, of all sandboxes")
        self.revocations = 0
        """How often something was revoked: what was read before that may be what was."""

    def __repr__(self) -> str:
        return f"<Sandboxes {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    def room(self) -> SandboxRoom:
        """For one more."""
        return SandboxRoom.within(self._bodies)

    def add(self, sandbox: BrokeredSandbox) -> None:
        """Raises :class:`TooManySandboxes`."""
        if len(self._open) >= _MOST:
            raise TooManySandboxes(f"{_MOST} sandboxes are open, the most")
        self._open[sandbox.id] = sandbox

    def find(self, id: str) -> BrokeredSandbox | None:  # noqa: A002 - the protocol's word
        """The id has 256 random bits: finding one by the time that a look-up takes is no way."""
        return self._open.get(id)

    async def remove(self, sandbox: BrokeredSandbox) -> None:
        """Its lease has ended."""
        self._open.pop(sandbox.id, None)
        await sandbox.close()

    async def revoke(self, tenant: str, credential: str) -> None:
        """It was deleted or replaced: no sandbox uses the old one from now on."""
        self.revocations += 1
        for sandbox in self._open.values():
            if sandbox.tenant == tenant:
                sandbox.access.revoke(credential)
