"""Tools looked at, tested and called. Each of these is an execution like any other of its tenant:
admitted, budgeted, audited and cancelled as one, and never with more than its policy allows.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final

from stockade.gateway.brokering import Broker
from stockade.gateway.calls import Call, Calls, Idempotency, new_id
from stockade.gateway.executions import ExecutionEntry, ToolFacts
from stockade.gateway.executors import Executors
from stockade.gateway.keys import Caller
from stockade.gateway.policy import Ceilings
from stockade.gateway.sandboxes import judged
from stockade.gateway.tools import Tools, Version
from stockade.gateway.tools_java import Java, Repeated, Run
from stockade.gateway.tools_java import output as java_output
from stockade.gateway.tools_schemas import Flaw, Schemas, TooSlow
from stockade.port import (
    NO_EGRESS,
    Execution,
    ExecutionRequest,
    InvalidRequest,
    Outcome,
    Refused,
    SandboxLost,
    SandboxRequest,
    ToolFailed,
    Unavailable,
)
from stockade.port.egress import EgressRule
from stockade.tools import calling, checking, json_text
from stockade.tools.answers import Finding
from stockade.tools.choosing import Choice, choices
from stockade.tools.definition import Language, Tool

_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class Called:
    """What a call gave, and the execution that it was."""

    execution: str
    output: Any


@dataclass(frozen=True, slots=True)
class Tried:
    """One example of a tool, as it came out."""

    index: int
    execution: str | None
    failure: str | None
    """None: it passed."""


class ToolCalls:
    """What is done with tools beyond keeping them."""

    def __init__(
        self,
        tools: Tools,
        schemas: Schemas,
        calls: Calls,
        executors: Executors,
        broker: Broker,
        ceilings: Ceilings,
    ) -> None:
        self.tools = tools
        self._schemas = schemas
        self._calls = calls
        self._executors = executors
        self._broker = broker
        self._ceilings = ceilings
        self._java = Java()

    # --- storing --------------------------------------------------------------------------------

    async def store(self, caller: Caller, tool: Tool) -> Version:
        """Look at it, run its examples, and only then make it the live version, whole.

        Raises :class:`InvalidRequest` with the place for what is wrong with it, and
        :class:`Refused` for what the tenant may not.
        """
        chosen = choices(tool, caller.policy.tiers)
        await self._judge(caller, tool, chosen[0])
        for field, schema in (
            ("input_schema", tool.input_schema),
            ("output_schema", tool.output_schema),
        ):
            await self._schemas.check(caller.tenant, schema, field)
        for index, example in enumerate(tool.examples):
            for part in ("input", "output"):
                await self._require(
                    caller.tenant,
                    getattr(tool, f"{part}_schema"),
                    getattr(example, part),
                    f"examples/{index}/{part}",
                )
        choice = await self._tested(caller, tool, chosen)
        return await self.tools.add(caller, tool, choice.tier, choice.reason, len(tool.examples))

    async def test(self, caller: Caller, version: Version) -> tuple[Tried, ...]:
        """Run its examples once more."""
        facts = _facts(version, "example")
        return tuple(
            [
                await self._try(caller, version.tool, _choice(version), facts, index)
                for index in range(len(version.tool.examples))
            ]
        )

    async def _judge(self, caller: Caller, tool: Tool, choice: Choice) -> None:
        """What it is to reach is judged when it is stored, and again with each call."""
        sandbox = calling.sandbox(tool, caller.tenant, choice.tier)
        judged(caller, sandbox, None, self._ceilings)
        self._broker.check(sandbox)
        if not tool.credentials:
            return
        there = {
            each.name: each for each in (await self._broker.credentials(caller.tenant)).credentials
        }
        for name in tool.credentials:
            if name not in there:
                raise InvalidRequest("credentials", f"there is no credential {name!r}")
            rules: tuple[EgressRule, ...] = tuple(each.egress_rule for each in there[name].grants)
            caller.policy.judge_rules(rules)

    async def _tested(self, caller: Caller, tool: Tool, chosen: tuple[Choice, ...]) -> Choice:
        """The lightest tier that can be started, after all has passed in it."""
        missing: list[str] = []
        for last, choice in ((each is chosen[-1], each) for each in chosen):
            if missing:
                choice = replace(choice, reason=f"{choice.reason}; {', '.join(missing)}")
            facts = ToolFacts(tool.name, None, tool.digest, "example", choice.reason)
            try:
                await self._check_source(caller, tool, choice, replace(facts, purpose="check"))
                for index in range(len(tool.examples)):
                    tried = await self._try(caller, tool, choice, facts, index)
                    if tried.failure is not None:
                        raise InvalidRequest(
                            f"examples/{index}", f"{tried.failure}; the version was not stored"
                        )
            except Unavailable as error:
                if last:
                    raise
                missing.append(f"{choice.tier} (cannot be started: {str(error)[:_SHOWN]})")
            else:
                return choice
        raise AssertionError("there is at least one")

    async def _check_source(
        self, caller: Caller, tool: Tool, choice: Choice, facts: ToolFacts
    ) -> None:
        """Whether its language and its tenant's policy take the source; it is not run."""
        match tool.language:
            case Language.PYTHON:
                await self._check_python(caller, tool, choice, facts)
            case Language.JAVA:
                sandbox = calling.sandbox(tool, caller.tenant, choice.tier)
                await self._java.compile(tool, sandbox, self._runs(caller, facts, None, []))
            case Language.JAVASCRIPT:
                quiet = replace(
                    calling.sandbox(tool, caller.tenant, choice.tier),
                    limits=checking.CHECK_LIMITS,
                    egress=NO_EGRESS,
                )
                _, execution = await self._run(caller, calling.parsing(tool), quiet, b"", facts)
                _require_there(execution)
                try:
                    calling.output(tool, execution)
                except ToolFailed as failed:
                    raise InvalidRequest("source", str(failed)) from None
            case Language.EXPRESSION if not tool.examples:
                # It reaches nothing and has no effects: what does not compile says so.
                quiet = calling.sandbox(tool, caller.tenant, choice.tier)
                _, execution = await self._run(caller, calling.request(tool), quiet, b"{}", facts)
                _require_there(execution)
                if execution.outcome is Outcome.INVALID:
                    raise InvalidRequest("source", execution.detail)

    async def _check_python(
        self, caller: Caller, tool: Tool, choice: Choice, facts: ToolFacts
    ) -> None:
        given = caller.policy.python_checks
        # What main's argument is called here; the built-in of that name only reads what is read.
        names = given.get("names", [])
        policy = {"function": "main", **given}
        policy["names"] = [*names, "input"] if isinstance(names, list) else names
        asked = checking.request(tool.source, policy)
        if isinstance(asked, Finding):
            found = [asked]
        else:
            program, stdin = asked
            sandbox = SandboxRequest(
                tenant=caller.tenant,
                limits=checking.CHECK_LIMITS,
                egress=NO_EGRESS,
                trust=tool.trust,
                tier=choice.tier,
            )
            _, execution = await self._run(caller, program, sandbox, stdin, facts)
            found = checking.findings(execution)
        if found:
            raise InvalidRequest("source", _told(found))

    async def _try(
        self, caller: Caller, tool: Tool, choice: Choice, facts: ToolFacts, index: int
    ) -> Tried:
        example = tool.examples[index]
        sandbox = calling.sandbox(tool, caller.tenant, choice.tier)
        done = await self._carry_out(
            caller, tool, sandbox, calling.spelled(example.input), facts, None
        )
        assert not isinstance(done, ExecutionEntry)
        execution_id, execution = done
        _require_there(execution)
        try:
            output = await self._output(caller.tenant, tool, execution)
        except ToolFailed as failed:
            return Tried(index, execution_id, f"it gave no output: {failed}")
        if not json_text.same(output, example.output):
            gave, wanted = (
                json_text.dump(each).decode()[:_SHOWN] for each in (output, example.output)
            )
            return Tried(index, execution_id, f"it gave {gave}, and {wanted} was expected")
        return Tried(index, execution_id, None)

    # --- calling --------------------------------------------------------------------------------

    async def call(
        self,
        caller: Caller,
        version: Version,
        value: Any,
        idempotency: Idempotency | None = None,
    ) -> Called | ExecutionEntry:
        """Its output; or the execution of an earlier call with the same key.

        Raises :class:`InvalidRequest` with the place of what is wrong in the input, and
        :class:`ToolFailed`. A caller that leaves cancels it.
        """
        if version.disabled:
            raise Refused("conflict", f"{version.tool.name} is disabled; enable it first")
        tool = version.tool
        text = await self._require(caller.tenant, tool.input_schema, value, "input")
        sandbox = calling.sandbox(tool, caller.tenant, version.tier)
        done = await self._carry_out(
            caller, tool, sandbox, text, _facts(version, "call"), idempotency
        )
        if isinstance(done, ExecutionEntry):
            return done
        return await self.answer(caller.tenant, tool, *done)

    async def answer(self, tenant: str, tool: Tool, id: str, execution: Execution) -> Called:
        """Of its record. Raises :class:`ToolFailed` that names it."""
        try:
            return Called(id, await self._output(tenant, tool, execution))
        except ToolFailed as failed:
            raise ToolFailed(failed.reason, failed.message, failed.place, id) from None

    async def _output(self, tenant: str, tool: Tool, execution: Execution) -> Any:
        read = java_output if tool.language is Language.JAVA else calling.output
        output = read(tool, execution)
        try:
            flaws = await self._schemas.flaws(tenant, tool.output_schema, json_text.dump(output))
        except TooSlow as error:
            raise ToolFailed("output_schema", f"the output schema {error}") from None
        if flaws:
            nothing = "the tool returned nothing: " if output is None else ""
            place = flaws[0].place or None
            raise ToolFailed("output_schema", f"its output: {nothing}{_spell(flaws)}", place)
        return output

    async def _require(self, tenant: str, schema: object, value: Any, field: str) -> bytes:
        """The value as text: spelling a large one once more takes others' time."""
        try:
            text = calling.spelled(value)
            flaws = await self._schemas.flaws(tenant, schema, text)
        except TooSlow as error:
            raise InvalidRequest(field, f"the schema {error}") from None
        if flaws:
            raise InvalidRequest(field + flaws[0].place, _spell(flaws))
        return text

    async def _carry_out(
        self,
        caller: Caller,
        tool: Tool,
        sandbox: SandboxRequest,
        stdin: bytes,
        facts: ToolFacts,
        idempotency: Idempotency | None,
    ) -> tuple[str, Execution] | ExecutionEntry:
        """Call its function: the execution, or the one that had the key before."""
        if tool.language is not Language.JAVA:
            begun = await self._begin(
                caller, calling.request(tool), sandbox, stdin, facts, idempotency
            )
            return begun if isinstance(begun, ExecutionEntry) else (begun.id, await _end(begun))
        ids: list[str] = []
        run = self._runs(caller, facts, idempotency, ids)
        try:
            execution = await self._java.call(tool, stdin, sandbox, run)
        except Repeated as repeated:
            return repeated.entry
        return ids[-1], execution

    def _runs(
        self,
        caller: Caller,
        facts: ToolFacts,
        idempotency: Idempotency | None,
        ids: list[str],
    ) -> Run:
        """How what a Java tool needs is run: what makes its classes as a check, then the call."""

        async def run(
            request: ExecutionRequest, sandbox: SandboxRequest, stdin: bytes, is_call: bool
        ) -> Execution | ExecutionEntry:
            begun = await self._begin(
                caller,
                request,
                sandbox,
                stdin,
                facts if is_call else replace(facts, purpose="check"),
                idempotency if is_call else None,
                keep_artefacts=False,
            )
            if isinstance(begun, ExecutionEntry):
                return begun
            ids.append(begun.id)
            return await _end(begun)

        return run

    async def _run(
        self,
        caller: Caller,
        request: ExecutionRequest,
        sandbox: SandboxRequest,
        stdin: bytes,
        facts: ToolFacts,
    ) -> tuple[str, Execution]:
        begun = await self._begin(caller, request, sandbox, stdin, facts, None)
        assert isinstance(begun, Call)
        return begun.id, await _end(begun)

    async def _begin(
        self,
        caller: Caller,
        request: ExecutionRequest,
        sandbox: SandboxRequest,
        stdin: bytes,
        facts: ToolFacts,
        idempotency: Idempotency | None,
        *,
        keep_artefacts: bool = True,
    ) -> Call | ExecutionEntry:
        tiers = judged(caller, sandbox, None, self._ceilings)
        this = new_id()  # the ticket is for this execution
        self._broker.check(sandbox)
        return await self._calls.begin(
            caller,
            request,
            sandbox,
            lambda: self._executors.place(
                sandbox, tiers, lambda wanted: self._broker.admit(caller, this, wanted)
            ),
            stdin=stdin,
            idempotency=idempotency,
            id=this,
            tool=facts,
            keep_artefacts=keep_artefacts,
        )


async def _end(call: Call) -> Execution:
    """Its record; whoever stops waiting ends it."""
    try:
        return await call.wait()
    except asyncio.CancelledError:
        call.cancel()
        raise


def _require_there(execution: Execution) -> None:
    """Raises where nothing ran, or not to an end, which says nothing of the tool."""
    if execution.outcome is Outcome.UNAVAILABLE:
        raise Unavailable(execution.detail)
    if execution.outcome in (Outcome.LOST, Outcome.CANCELLED):
        raise SandboxLost(f"{execution.outcome}: {execution.detail}")


def _facts(version: Version, purpose: str) -> ToolFacts:
    return ToolFacts(version.tool.name, version.number, version.digest, purpose, version.reason)


def _choice(version: Version) -> Choice:
    return Choice(version.tier, version.reason)


def _spell(flaws: tuple[Flaw, ...]) -> str:
    more = "; ".join(f"{flaw.place or 'its top'}: {flaw.message[:100]}" for flaw in flaws[1:4])
    return flaws[0].message[:_SHOWN] + (f" (and {more})" if more else "")


def _told(found: list[Finding]) -> str:
    shown = [
        f"line {one.line}, column {one.column}: {one.rule}: {one.sentence}"
        + (f" ({one.suggestion})" if one.suggestion else "")
        for one in found[:5]
    ]
    if len(found) > 5:
        shown.append(f"{len(found) - 5} more")
    return "; ".join(shown)
