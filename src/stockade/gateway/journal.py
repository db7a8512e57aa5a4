"""Writing the audit trail: append-only, each record chained to the one before by SHA-256.

A record's body is JSON in a canonical form (sorted keys, ASCII, no blanks). Its digest is taken over
the digest before it and the body. Whatever a caller or a guest named is in the body as an escaped
string: it can neither end a line nor steer a terminal.
"""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, update

from stockade.gateway.clock import Clock
from stockade.gateway.prepared import Prepared
from stockade.gateway.schema import audit, audit_head

GENESIS: Final = "0" * 64
_DOMAIN: Final = b"stockade audit 1\n"
MAX_BODY: Final = 256 * 1024
MAX_SUBJECT: Final = 512


class Action(StrEnum):
    """What was done."""

    EXECUTION_BEGUN = "execution.begun"
    EXECUTION_ENDED = "execution.ended"
    EXECUTION_REFUSED = "execution.refused"
    SANDBOX_OPENED = "sandbox.opened"
    SANDBOX_CLOSED = "sandbox.closed"
    SANDBOX_REFUSED = "sandbox.refused"
    REQUEST_REFUSED = "request.refused"
    EGRESS_DENIED = "egress.denied"
    ARTEFACT_KEPT = "artefact.kept"
    ARTEFACT_OUT = "artefact.out"
    ARTEFACT_DELETED = "artefact.deleted"
    WORKSPACE_SAVED = "workspace.saved"
    WORKSPACE_DELETED = "workspace.deleted"
    CREDENTIAL_STORED = "credential.stored"
    CREDENTIAL_DELETED = "credential.deleted"
    TOOL_STORED = "tool.stored"
    TOOL_ROLLED_BACK = "tool.rolled_back"
    TOOL_DISABLED = "tool.disabled"
    TOOL_ENABLED = "tool.enabled"
    TOOL_REMOVED = "tool.removed"
    TENANT_CREATED = "tenant.created"
    TENANT_DISABLED = "tenant.disabled"
    TENANT_ENABLED = "tenant.enabled"
    POLICY_CHANGED = "policy.changed"
    KEY_CREATED = "key.created"
    KEY_REVOKED = "key.revoked"
    GATEWAY_STARTED = "gateway.started"
    GATEWAY_STOPPED = "gateway.stopped"
    GATEWAY_LOST = "gateway.lost"


class Journal:
    """Appends records within one transaction, whose caller holds the head's lock."""

    def __init__(self, connection: Connection, clock: Clock, number: int, digest: str) -> None:
        self._connection = connection
        self._clock = clock
        self._number = number
        self._digest = digest
        self._rows: list[dict[str, Any]] = []

    def add(
        self,
        action: Action,
        subject: str,
        *,
        tenant: str | None = None,
        key_id: str | None = None,
        facts: Mapping[str, Any] | None = None,
        time: int | None = None,
    ) -> None:
        """Append one. It is written with the others of its transaction, by :meth:`finish`."""
        moment = self._clock() if time is None else time
        subject = subject[:MAX_SUBJECT]
        self._number += 1
        data = {
            "number": self._number,
            "time": moment,
            "tenant": tenant,
            "key_id": key_id,
            "action": action.value,
            "subject": subject,
            "facts": facts or {},
        }
        body = canonical(data)
        if len(body) > MAX_BODY:
            whole = hashlib.sha256(body.encode()).hexdigest()
            body = canonical({**data, "facts": {"too_long": len(body), "sha256": whole}})
        self._digest = chained(self._digest, body)
        self._rows.append(
            {
                "number": self._number,
                "digest": self._digest,
                "time": moment,
                "tenant": tenant,
                "action": action.value,
                "subject": escaped(subject),
                "body": body,
            }
        )

    def finish(self) -> None:
        """Write what was added, and the new end."""
        if not self._rows:
            return
        _APPEND.run_many(self._connection, self._rows)
        _MOVE_HEAD.run(self._connection, number=self._number, digest=self._digest)
        self._rows.clear()


_APPEND = Prepared(insert(audit))
_MOVE_HEAD = Prepared(
    update(audit_head)
    .where(audit_head.c.id == 1)
    .values(number=bindparam("number"), digest=bindparam("digest"))
)


def canonical(data: object) -> str:
    """The one spelling of a value: ASCII, no line breaks, keys sorted. Surrogates are escaped."""
    return json.dumps(
        data, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")
    )


def escaped(text: str) -> str:
    """A text as it stands between the quotes of JSON."""
    return json.dumps(text, ensure_ascii=True)[1:-1]


def chained(previous: str, body: str) -> str:
    """The digest of a record behind the one whose digest is ``previous``."""
    return hashlib.sha256(_DOMAIN + bytes.fromhex(previous) + body.encode("ascii")).hexdigest()
