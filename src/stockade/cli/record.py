"""The record of an execution as one JSON object.

Bytes are an object with one key: ``text`` where they are UTF-8, else ``base64``. A stream
has all that was kept in ``head`` unless something was dropped between ``head`` and ``tail``.
"""

import base64
import json
from dataclasses import asdict

from stockade.port import Captured, Execution


def as_json(execution: Execution, exit_code: int) -> str:
    """One line, ASCII only: no guest can steer a terminal through it."""
    return json.dumps(as_data(execution, exit_code), ensure_ascii=True, allow_nan=False)


def as_data(execution: Execution, exit_code: int) -> dict[str, object]:
    """Every field of the record; ``command_exit_code`` is what ``stockade run`` exits with."""
    return {
        "outcome": execution.outcome.value,
        "detail": execution.detail,
        "exit_code": execution.exit_code,
        "signal": execution.signal,
        "limit": asdict(execution.limit) if execution.limit else None,
        "stdout": _stream(execution.stdout),
        "stderr": _stream(execution.stderr),
        "result": None if execution.result is None else _bytes(execution.result),
        "artefacts": [
            {"name": artefact.name, "digest": artefact.digest, "data": _bytes(artefact.data)}
            for artefact in execution.artefacts
        ],
        "missing_artefacts": [asdict(missing) for missing in execution.missing_artefacts],
        "usage": asdict(execution.usage),
        "timings": asdict(execution.timings),
        "tier": execution.tier.value if execution.tier else None,
        "image": execution.image,
        "enforcement": {name: how.value for name, how in execution.enforcement.items()},
        "egress": asdict(execution.egress) if execution.egress else None,
        "attestation": asdict(execution.attestation) if execution.attestation else None,
        "command_exit_code": exit_code,
    }


def _stream(captured: Captured) -> dict[str, object]:
    head, tail = captured.head, captured.tail
    if not captured.dropped:
        head, tail = head + tail, b""
    return {
        "head": _bytes(head),
        "tail": _bytes(tail),
        "total": captured.total,
        "dropped": captured.dropped,
    }


def _bytes(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}
