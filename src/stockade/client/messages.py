"""What is asked for, as JSON: what src/stockade/api/requests.py reads, of what differs from a default.

Each call makes one, and the port has judged each value already: so without models.
"""

import base64
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from stockade.api.content import encode_content, encode_name
from stockade.port import (
    NO_EGRESS,
    Command,
    EgressPolicy,
    ExecutionRequest,
    ExpressionSource,
    JavaScriptSource,
    Limits,
    Program,
    PythonScript,
    PythonSource,
    SandboxRequest,
    WasmModule,
)

_LIMITS = tuple(field.name for field in fields(Limits))
_EGRESS = tuple(field.name for field in fields(EgressPolicy))
_DEFAULT = Limits()
_SHORT = 4096
_ESCAPED = b'"\\\b\t\n\f\r'
"""Two bytes each in JSON."""
_CONTROLS = bytes(set(range(32)) - set(_ESCAPED))
"""Six bytes each."""


def execution(
    request: ExecutionRequest,
    sandbox: SandboxRequest,
    stdin: bytes | None,
    watch_egress: bool = False,
) -> bytes:
    """An ``ExecutionRequestMessage``."""
    found = _program_request(request, stdin, watch_egress)
    return _dumped({**found, "sandbox": _sandbox(sandbox)})


def program(request: ExecutionRequest, stdin: bytes | None, watch_egress: bool = False) -> bytes:
    """A ``ProgramRequestMessage``."""
    return _dumped(_program_request(request, stdin, watch_egress))


def session(sandbox: SandboxRequest, lease_seconds: float, workspace: str | None) -> bytes:
    """A ``SessionRequestMessage``."""
    found: dict[str, Any] = {"sandbox": _sandbox(sandbox), "lease_seconds": lease_seconds}
    if workspace is not None:
        found["workspace"] = workspace
    return _dumped(found)


def _program_request(
    request: ExecutionRequest, stdin: bytes | None, watch_egress: bool
) -> dict[str, Any]:
    found: dict[str, Any] = {"program": _program(request.program)}
    if watch_egress:
        found["watch_egress"] = True
    if request.environment:
        found["environment"] = _named(request.environment, encode_name, "value")
    if request.files:
        found["files"] = _named(request.files, _content, "content")
    if request.artefacts:
        found["artefacts"] = [encode_name(name) for name in request.artefacts]
    if request.working_directory:
        found["working_directory"] = encode_name(request.working_directory)
    if request.terminal is not None:
        found["terminal"] = {
            "rows": request.terminal.rows,
            "columns": request.terminal.columns,
        }
    if stdin is None or stdin:
        found["stdin"] = None if stdin is None else _content(stdin)
    return found


def _named(
    pairs: Mapping[str, Any], encode: Callable[[Any], object], content: str
) -> dict[str, object] | list[dict[str, object]]:
    """By name; a list where a name is no text."""
    if all(_is_text(name) for name in pairs):
        return {name: encode(value) for name, value in pairs.items()}
    return [{"name": encode_name(name), content: encode(value)} for name, value in pairs.items()]


def _content(data: bytes) -> str | dict[str, str]:
    """Bytes, as what is asked for has them: never much longer than base64.

    A file of zeros is text, and six times as long in JSON: what a gateway takes, an executor would
    refuse as too large.
    """
    if len(data) > _SHORT:
        others = len(data.translate(None, _CONTROLS))
        escapes = 5 * (len(data) - others) + len(data) - len(data.translate(None, _ESCAPED))
        if escapes > len(data) // 3:
            return {"base64": base64.b64encode(data).decode()}
    return encode_content(data)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _program(program: Program) -> dict[str, Any]:
    found: dict[str, Any]
    match program:
        case PythonSource(source=source):
            if isinstance(source, str):
                source = os.fsencode(source)
            found = {"kind": "python", "source": _content(source)}
        case PythonScript():
            found = {
                "kind": "script",
                "name": encode_name(program.name),
                "source": _content(program.source),
            }
        case Command():
            return {"kind": "command", "argv": [encode_name(word) for word in program.argv]}
        case ExpressionSource():
            return {"kind": "expression", "source": program.source}
        case JavaScriptSource(source=source):
            if isinstance(source, str):
                source = os.fsencode(source)
            found = {"kind": "javascript", "source": _content(source)}
        case WasmModule():
            found = {"kind": "wasm", "module": _content(program.module)}
    if program.arguments:
        found["arguments"] = [encode_name(argument) for argument in program.arguments]
    if isinstance(program, PythonSource | PythonScript) and program.fresh:
        found["fresh"] = True
    return found


@lru_cache(maxsize=64)  # a caller has few kinds of sandbox, and asks again and again
def _sandbox(sandbox: SandboxRequest) -> dict[str, Any]:
    limits = {
        name: getattr(sandbox.limits, name)
        for name in _LIMITS
        if getattr(sandbox.limits, name) != getattr(_DEFAULT, name)
    }
    found: dict[str, Any] = {"trust": sandbox.trust}
    if limits:
        found["limits"] = limits
    if sandbox.tier is not None:
        found["tier"] = sandbox.tier
    if sandbox.egress != NO_EGRESS:
        found["egress"] = _egress(sandbox.egress)
    if sandbox.ticket is not None:
        found["ticket"] = sandbox.ticket
    return found


def _egress(policy: EgressPolicy) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: getattr(policy, name)
        for name in _EGRESS
        if getattr(policy, name) != getattr(NO_EGRESS, name)
    }
    if policy.rules:
        found["rules"] = [str(rule) for rule in policy.rules]
    return found


def _dumped(found: dict[str, Any]) -> bytes:
    # As UTF-8: what is not ASCII would be two or three times as long in escapes.
    text = json.dumps(found, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")  # what is no text, the service refuses
