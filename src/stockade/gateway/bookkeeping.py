"""How executions and sandboxes are entered: their rows, what they cost, their audit records.

Everything here happens within one transaction of the writer's. A refusal is returned, so that the
audit record of it is kept.
"""

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql

from stockade.gateway import listing
from stockade.gateway.admission import Account, rate_refusal
from stockade.gateway.clock import DAY, SECOND
from stockade.gateway.executions import (
    Begun,
    ExecutionEntry,
    KeptRecord,
    Repeated,
    RequestFacts,
    lost,
    memory_time,
)
from stockade.gateway.journal import Action, canonical
from stockade.gateway.keys import Caller
from stockade.gateway.policy import Retention
from stockade.gateway.prepared import Prepared
from stockade.gateway.refusals import Refusals
from stockade.gateway.schema import (
    executions,
    idempotency,
    rates,
    records,
    sandboxes,
    usage,
    workspaces,
)
from stockade.gateway.writer import Turn
from stockade.port import EgressUse, Execution, Outcome, Refused, SandboxRequest


class Books:
    """What is entered for one gateway."""

    def __init__(self, retention: Retention, refusals: Refusals) -> None:
        self._retention = retention
        self._refusals = refusals

    # --- executions -----------------------------------------------------------------------------

    def begin(
        self,
        turn: Turn,
        instance: str,
        caller: Caller,
        execution_id: str,
        facts: RequestFacts,
        sandbox_id: str | None,
        idempotency_key: str | None,
        request_digest: str | None,
        job: bool,
    ) -> Begun | Repeated | Refused:
        """Admit it and enter it, or find what became of the same request before."""
        cpu = facts.most_cpu
        # A session's memory is reserved and charged by the session.
        memory = 0 if sandbox_id is not None else facts.most_memory

        def admit() -> Repeated | None:
            account = Account.read(turn.connection, caller.tenant, turn.now)
            if idempotency_key is not None:
                earlier = _earlier(turn, caller.tenant, idempotency_key, request_digest)
                if earlier is not None:
                    return Repeated(earlier)
            if sandbox_id is not None:
                listing.open_sandbox(turn.connection, caller.tenant, sandbox_id)
            account.admit_execution(cpu, memory)
            refused = rate_refusal(turn.connection, account, caller.tenant)
            if refused is not None:
                raise refused
            return None

        repeated: Repeated | Refused | None = self._admitted(
            turn, caller, Action.EXECUTION_REFUSED, execution_id, admit
        )
        if repeated is not None:
            return repeated
        data = facts.as_data()
        source = data.pop("source", None)
        _INSERT_EXECUTION.run(
            turn.connection,
            id=execution_id,
            tenant=caller.tenant,
            key_id=caller.key_id,
            instance=instance,
            sandbox_id=sandbox_id,
            tool=None if facts.tool is None else facts.tool.name,
            job=job,
            begun_at=turn.now,
            facts=canonical(data),
            reserved_cpu=cpu,
            reserved_memory=memory,
        )
        _COUNT_BEGUN.run(turn.connection, tenant=caller.tenant, second=turn.now // SECOND)
        if idempotency_key is not None:
            turn.connection.execute(
                insert(idempotency).values(
                    tenant=caller.tenant,
                    key=idempotency_key,
                    execution_id=execution_id,
                    request_digest=request_digest,
                    expires_at=turn.now + self._retention.idempotency_seconds * SECOND,
                )
            )
        data.update(sandbox=sandbox_id, job=job)
        if source is not None:
            data["source"] = source
        turn.journal.add(
            Action.EXECUTION_BEGUN,
            execution_id,
            tenant=caller.tenant,
            key_id=caller.key_id,
            facts=data,
            time=turn.now,
        )
        return Begun(execution_id)

    def end(
        self,
        turn: Turn,
        execution_id: str,
        execution: Execution,
        kept: KeptRecord,
        artefacts: tuple[str, ...],
    ) -> Refused | None:
        """Enter its record, and charge what it used. The database refuses to end one twice."""
        row = self._end_row(turn, execution_id, execution)
        if row is None:
            return Refused("conflict", "the execution has ended before, or never began")
        limits, used = json.loads(row.facts)["limits"], execution.usage
        # What could not be measured is charged as all that it may have been.
        if used.cpu_seconds is None:
            cpu = min(limits["cpu_seconds"], used.wall_seconds * limits["cpus"])
        else:
            cpu = used.cpu_seconds
        peak = used.peak_memory_bytes
        memory = memory_time(limits["memory_bytes"] if peak is None else peak, used.wall_seconds)
        self._settle(turn, row, execution, kept, artefacts, cpu, memory)
        return None

    def end_if_begun(self, turn: Turn, this: str, execution: Execution) -> None:
        """End an execution, or a sandbox, that has nobody who could tell what it used."""
        row = self._end_row(turn, this, execution)
        if row is not None:
            limits = json.loads(row.facts)["limits"]
            # It ran at the most from then until now.
            ran = min(limits["wall_seconds"], max(0, turn.now - row.begun_at) / SECOND)
            self._settle(
                turn,
                row,
                execution,
                KeptRecord.of(execution, self._retention.record_bytes),
                (),
                min(limits["cpu_seconds"], ran * limits["cpus"]),
                memory_time(limits["memory_bytes"], ran),
            )
        self.close_sandbox(turn, this, "lost")

    def end_all_of(self, turn: Turn, instance: str, why: str) -> dict[str, int]:
        """Everything that a gateway left; return how much."""
        running = turn.connection.scalars(
            select(executions.c.id).where(
                executions.c.instance == instance, executions.c.ended_at.is_(None)
            )
        ).all()
        opened = turn.connection.scalars(
            select(sandboxes.c.id).where(
                sandboxes.c.instance == instance, sandboxes.c.closed_at.is_(None)
            )
        ).all()
        for each in running:
            self.end_if_begun(turn, each, lost(why))
        for each in opened:
            self.close_sandbox(turn, each, "lost")
        return {"executions": len(running), "sandboxes": len(opened)}

    def _end_row(self, turn: Turn, execution_id: str, execution: Execution) -> Any:
        return _END_EXECUTION.one(
            turn.connection, this=execution_id, moment=turn.now, how=execution.outcome.value
        )

    def _settle(
        self,
        turn: Turn,
        row: Any,
        execution: Execution,
        kept: KeptRecord,
        artefacts: tuple[str, ...],
        cpu_seconds: float,
        memory: int,
    ) -> None:
        """What goes with the end of an execution whose row has just been ended."""
        _INSERT_RECORD.run(
            turn.connection,
            execution_id=row.id,
            expires_at=turn.now + self._retention.record_seconds * SECOND,
            shortened=" ".join(kept.shortened),
            record=kept.json,
        )
        if execution.outcome is Outcome.UNAVAILABLE:
            # Nothing ran: the same request may be tried again with its key.
            turn.connection.execute(delete(idempotency).where(idempotency.c.execution_id == row.id))
        used, hit = execution.usage, execution.limit
        _charge(
            turn,
            row.tenant,
            executions=1,
            cpu=round(cpu_seconds * SECOND),
            memory=0 if row.sandbox_id is not None else memory,
            wall=round(used.wall_seconds * SECOND),
        )
        turn.journal.add(
            Action.EXECUTION_ENDED,
            row.id,
            tenant=row.tenant,
            key_id=row.key_id,
            time=turn.now,
            facts={
                "outcome": execution.outcome.value,
                "exit_code": execution.exit_code,
                "signal": execution.signal,
                "limit": None if hit is None else hit.name,
                "tier": None if execution.tier is None else execution.tier.value,
                "image": execution.image,
                "cpu_seconds": used.cpu_seconds,
                "wall_seconds": used.wall_seconds,
                "peak_memory_bytes": used.peak_memory_bytes,
                "artefacts": list(artefacts[:64]),
                "artefact_count": len(artefacts),
                **_egress_facts(execution.egress),
            },
        )
        if execution.egress is not None and execution.egress.denied:
            turn.journal.add(
                Action.EGRESS_DENIED,
                row.id,
                tenant=row.tenant,
                key_id=row.key_id,
                time=turn.now,
                facts={
                    "denied": [
                        {
                            "destination": each.destination,
                            "reason": each.reason,
                            "count": each.count,
                        }
                        for each in execution.egress.denied
                    ],
                    "others": execution.egress.denied_others,
                },
            )

    # --- sandboxes ------------------------------------------------------------------------------

    def open_sandbox(
        self,
        turn: Turn,
        instance: str,
        caller: Caller,
        sandbox_id: str,
        request: SandboxRequest,
        lease_seconds: float,
        workspace: str | None,
    ) -> listing.SandboxEntry | Refused:
        """Admit a session and enter it; take its workspace for it alone."""
        size = request.limits.memory_bytes
        memory = memory_time(size, lease_seconds)

        def admit() -> int | Refused | None:
            Account.read(turn.connection, caller.tenant, turn.now).admit_sandbox(memory)
            return None if workspace is None else _take_workspace(turn, caller.tenant, workspace)

        fence = self._admitted(turn, caller, Action.SANDBOX_REFUSED, sandbox_id, admit)
        if isinstance(fence, Refused):
            return fence
        facts = {
            "trust": request.trust.value,
            "tier": None if request.tier is None else request.tier.value,
            "memory_bytes": size,
            "lease_seconds": lease_seconds,
            "workspace": workspace,
        }
        until = turn.now + round(lease_seconds * SECOND)
        turn.connection.execute(
            insert(sandboxes).values(
                id=sandbox_id,
                tenant=caller.tenant,
                key_id=caller.key_id,
                instance=instance,
                opened_at=turn.now,
                lease_until=until,
                workspace=workspace,
                fence=fence,
                facts=canonical(facts),
                memory_bytes=size,
                reserved_memory=memory,
            )
        )
        turn.journal.add(
            Action.SANDBOX_OPENED,
            sandbox_id,
            tenant=caller.tenant,
            key_id=caller.key_id,
            facts=facts,
            time=turn.now,
        )
        return listing.SandboxEntry(
            id=sandbox_id,
            tenant=caller.tenant,
            key_id=caller.key_id,
            opened_at=turn.now,
            lease_until=until,
            closed_at=None,
            reason=None,
            workspace=workspace,
            fence=fence,
        )

    def extend_lease(
        self, turn: Turn, caller: Caller, sandbox_id: str, seconds: float
    ) -> listing.SandboxEntry | Refused:
        """A lease from now on, within the tenant's ceilings and budgets."""
        try:
            found = listing.open_sandbox(turn.connection, caller.tenant, sandbox_id)
            until = turn.now + round(seconds * SECOND)
            whole = (until - found.opened_at) / SECOND
            if whole > caller.policy.ceilings.session_seconds:
                raise Refused(
                    "forbidden",
                    f"the session would last {whole:.0f} seconds, and may last "
                    f"{caller.policy.ceilings.session_seconds:g}; open a new one",
                )
            row = turn.connection.execute(
                select(sandboxes.c.memory_bytes, sandboxes.c.reserved_memory).where(
                    sandboxes.c.id == sandbox_id
                )
            ).one()
            # Never less than was reserved: a clock that was set back frees nothing.
            reserved = max(row.reserved_memory, memory_time(row.memory_bytes, max(0.0, whole)))
            account = Account.read(turn.connection, caller.tenant, turn.now)
            account.admit_memory(reserved - row.reserved_memory)
        except Refused as refused:
            return refused
        turn.connection.execute(
            update(sandboxes)
            .where(sandboxes.c.id == sandbox_id)
            .values(lease_until=until, reserved_memory=reserved)
        )
        return listing.open_sandbox(turn.connection, caller.tenant, sandbox_id)

    def close_sandbox(self, turn: Turn, sandbox_id: str, reason: str) -> None:
        """One that is closed stays as it is."""
        row = _CLOSE_SANDBOX.one(turn.connection, this=sandbox_id, moment=turn.now, why=reason[:32])
        if row is None:
            return
        held = max(0, turn.now - row.opened_at) / SECOND
        # A clock that was set ahead charges no more than was reserved.
        memory = min(row.reserved_memory, memory_time(row.memory_bytes, held))
        _charge(turn, row.tenant, sandboxes=1, memory=memory)
        turn.journal.add(
            Action.SANDBOX_CLOSED,
            row.id,
            tenant=row.tenant,
            key_id=row.key_id,
            facts={"reason": reason[:32], "held_seconds": held},
            time=turn.now,
        )

    # --- refusals -------------------------------------------------------------------------------

    def refuse(
        self,
        turn: Turn,
        tenant: str | None,
        key_id: str | None,
        action: Action,
        subject: str,
        refused: Refused,
    ) -> None:
        """Enter a refusal, whatever else was refused in this minute."""
        turn.journal.add(
            action,
            subject,
            tenant=tenant,
            key_id=key_id,
            facts={"code": refused.code, "reason": str(refused)[:1000]},
        )

    def _admitted(
        self, turn: Turn, caller: Caller, action: Action, subject: str, admit: Callable[[], Any]
    ) -> Any:
        """What ``admit`` returns; or its refusal, which is entered unless there is a flood."""
        try:
            return admit()
        except Refused as refused:
            # Nothing was written before it was raised.
            if self._refusals.first(caller.tenant, caller.key_id, action, refused.code):
                self.refuse(turn, caller.tenant, caller.key_id, action, subject, refused)
            return refused


# --- statements ----------------------------------------------------------------------------------

# PostgreSQL's insert is SQLite's too: both say ON CONFLICT in the same words.
_upsert = postgresql.insert

_INSERT_EXECUTION = Prepared(
    insert(executions),
    [
        "id", "tenant", "key_id", "instance", "sandbox_id", "tool", "job", "begun_at", "facts",
        "reserved_cpu", "reserved_memory",
    ],
)  # fmt: skip
_INSERT_RECORD = Prepared(insert(records), ["execution_id", "expires_at", "shortened", "record"])
_END_EXECUTION = Prepared(
    update(executions)
    .where(executions.c.id == bindparam("this"), executions.c.ended_at.is_(None))
    .values(
        ended_at=bindparam("moment"),
        outcome=bindparam("how"),
        reserved_cpu=0,
        reserved_memory=0,
    )
    .returning(
        executions.c.id,
        executions.c.tenant,
        executions.c.key_id,
        executions.c.sandbox_id,
        executions.c.begun_at,
        executions.c.facts,
    )
)
_CLOSE_SANDBOX = Prepared(
    update(sandboxes)
    .where(sandboxes.c.id == bindparam("this"), sandboxes.c.closed_at.is_(None))
    .values(closed_at=bindparam("moment"), reason=bindparam("why"))
    .returning(
        sandboxes.c.id,
        sandboxes.c.tenant,
        sandboxes.c.key_id,
        sandboxes.c.opened_at,
        sandboxes.c.memory_bytes,
        sandboxes.c.reserved_memory,
    )
)
_COUNT_BEGUN = Prepared(
    _upsert(rates)
    .values(tenant=bindparam("tenant"), second=bindparam("second"), begun=1)
    .on_conflict_do_update(
        index_elements=[rates.c.tenant, rates.c.second], set_={"begun": rates.c.begun + 1}
    )
)


def _charging() -> Prepared:
    names = ("executions", "sandboxes", "cpu", "memory", "wall")
    add = _upsert(usage).values({name: bindparam(name) for name in ("tenant", "day", *names)})
    return Prepared(
        add.on_conflict_do_update(
            index_elements=[usage.c.tenant, usage.c.day],
            set_={name: usage.c[name] + add.excluded[name] for name in names},
        )
    )


_CHARGE = _charging()


def _charge(
    turn: Turn,
    tenant: str,
    *,
    executions: int = 0,
    sandboxes: int = 0,
    cpu: int = 0,
    memory: int = 0,
    wall: int = 0,
) -> None:
    _CHARGE.run(
        turn.connection,
        tenant=tenant,
        day=turn.now // DAY,
        executions=executions,
        sandboxes=sandboxes,
        cpu=cpu,
        memory=memory,
        wall=wall,
    )


def _earlier(
    turn: Turn, tenant: str, key: str, request_digest: str | None
) -> ExecutionEntry | None:
    same = (idempotency.c.tenant == tenant) & (idempotency.c.key == key)
    row = turn.connection.execute(select(idempotency).where(same)).one_or_none()
    if row is None:
        return None
    if row.expires_at <= turn.now:
        turn.connection.execute(delete(idempotency).where(same))
        return None
    if row.request_digest != request_digest:
        raise Refused(
            "idempotency_conflict",
            "the idempotency key was used for another request; use a new one for each request",
        )
    return listing.find_execution(turn.connection, tenant, row.execution_id)


def _take_workspace(turn: Turn, tenant: str, name: str) -> int:
    """The fence of whoever takes it now: one more than any before."""
    holder = turn.connection.scalar(
        select(sandboxes.c.id).where(
            sandboxes.c.tenant == tenant,
            sandboxes.c.workspace == name,
            sandboxes.c.closed_at.is_(None),
        )
    )
    if holder is not None:
        raise Refused(
            "conflict", f"the workspace is in use by the sandbox {holder}; close that one first"
        )
    add = _upsert(workspaces).values(
        tenant=tenant,
        name=name,
        fence=1,
        generation=0,
        size=0,
        # What is never saved is gone after a day; a save says how long it is kept.
        expires_at=turn.now + DAY,
    )
    fence = turn.connection.scalar(
        add.on_conflict_do_update(
            index_elements=[workspaces.c.tenant, workspaces.c.name],
            set_={"fence": workspaces.c.fence + 1},
        ).returning(workspaces.c.fence)
    )
    assert isinstance(fence, int)
    return fence


def _egress_facts(use: EgressUse | None) -> dict[str, Any]:
    if use is None:
        return {}
    return {
        "egress": {
            "connections": use.connections,
            "sent_bytes": use.sent_bytes,
            "received_bytes": use.received_bytes,
            "denials": use.denials,
            "credentials": [
                {
                    "credential": each.credential,
                    "destination": each.destination,
                    "count": each.count,
                }
                for each in use.credentials
            ],
        }
    }
