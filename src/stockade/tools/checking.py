"""Checks a tool's source before it runs: in a sandbox, for a parser can be attacked as well.

Defence in depth and no boundary (docs/source-checks.md). What comes back was said by a guest: a
source that takes over the checker says that it is clean, and is then run behind the same
boundary as if nobody had looked. It is read as anything of a guest's: bounded and typed.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Final

from stockade.port import (
    KIB,
    MIB,
    NO_EGRESS,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    InvalidRequest,
    Limits,
    Outcome,
    PythonSource,
    SandboxLost,
    SandboxRequest,
    Unavailable,
)
from stockade.tools import answers
from stockade.tools.answers import LARGEST_ANSWER, Finding, unchecked
from stockade.tools.calling import guest_file

MOST_FINDINGS: Final = 200
LARGEST_SOURCE: Final = 4 * MIB
CHECK_LIMITS: Final = Limits(
    wall_seconds=20.0,
    cpu_seconds=15.0,
    cpus=1.0,
    memory_bytes=512 * MIB,
    processes=16,
    disk_bytes=1 * MIB,
    output_bytes=64 * KIB,
    result_bytes=LARGEST_ANSWER,
    artefact_bytes=0,
    record_bytes=4 * KIB,
)

_LONGEST_SENTENCE: Final = 300
_LARGEST_POLICY: Final = 60 * KIB
_CHECKER: Final = "checker"
"""The rule of a finding that is ours: the source could not be checked."""

# Not the tool's doing: there is nothing to correct in the source.
_OURS: Final = frozenset({Outcome.LOST, Outcome.CANCELLED})


async def check_python(
    environment: ExecutionEnvironment,
    source: bytes | str,
    policy: Mapping[str, object] | None = None,
    *,
    sandbox: SandboxRequest | None = None,
) -> list[Finding]:
    """What a policy (docs/source-checks.md) does not allow in a Python source; empty where all is.

    Of ``sandbox`` count the tenant, the trust level and the tier. A source that cannot be checked,
    for it is too large, too deep, or brings the checker down, has a finding that says so. Raises
    :class:`InvalidRequest` for a wrong policy, :class:`Unavailable` or :class:`SandboxLost` where
    there was no sandbox.
    """
    asked = request(source, policy)
    if isinstance(asked, Finding):
        return [asked]
    program, stdin = asked
    execution = await environment.run(
        program,
        replace(sandbox or SandboxRequest(), limits=CHECK_LIMITS, egress=NO_EGRESS),
        stdin=stdin,
    )
    return findings(execution)


def request(
    source: bytes | str, policy: Mapping[str, object] | None
) -> tuple[ExecutionRequest, bytes] | Finding:
    """What looks at a source, and its standard input; or why nothing has to."""
    written = _written(policy)
    # Half a surrogate pair is no UTF-8; the checker says where it stands.
    content = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else bytes(source)
    if len(content) > LARGEST_SOURCE:
        return unchecked(
            _CHECKER, f"it has {len(content)} bytes; at most {LARGEST_SOURCE} are looked at"
        )
    return ExecutionRequest(PythonSource(_program())), written + b"\n" + content


def findings(execution: Execution) -> list[Finding]:
    """What it found. Raises where it was not looked at for no fault of the source's."""
    if execution.outcome in _OURS:
        raise SandboxLost(f"the source was not checked: {execution.detail}")
    if execution.outcome is Outcome.UNAVAILABLE:
        raise Unavailable(execution.detail)
    if not execution.ok:
        return [_refused(f"the checker did not come to an end with it: {execution.outcome}")]
    try:
        return _read(execution)
    except answers.NoAnswer as error:
        return [_refused(f"the checker did not answer with findings: {error}")]


@cache
def _program() -> bytes:
    return guest_file("checks/python_source.py")


def _written(policy: Mapping[str, object] | None) -> bytes:
    try:
        written = json.dumps(dict(policy or {}), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest("policy", f"it is no JSON object: {error}") from None
    if len(written) > _LARGEST_POLICY:
        raise InvalidRequest("policy", f"{len(written)} bytes exceed {_LARGEST_POLICY}")
    return written


def _refused(sentence: str) -> Finding:
    return unchecked(_CHECKER, sentence, _LONGEST_SENTENCE)


def _read(execution: Execution) -> list[Finding]:
    said = answers.load(execution.result)
    if set(said) == {"policy"}:
        raise InvalidRequest("policy", answers.text(said["policy"], _LONGEST_SENTENCE))
    return answers.findings(said, MOST_FINDINGS, _LONGEST_SENTENCE)
