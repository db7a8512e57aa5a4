"""How an execution is asked for, of a session or in a sandbox of its own, and what its id may be."""

import asyncio
from collections.abc import Mapping

from stockade.api import headers as names
from stockade.api.frames import MEDIA_TYPE
from stockade.client.execution import RemoteExecution, Wanted
from stockade.client.transport import Interrupted, Outgoing, Transport
from stockade.port import (
    EgressSink,
    ExecutionRequest,
    InvalidRequest,
    Limits,
    OutputSink,
    StandardInput,
)

MOST_INLINE_BYTES = 256 * 1024
"""Of standard input that goes with the request; more goes beside it, as the program reads it."""


def identity(id: str | None, idempotency_key: str | None = None) -> dict[str, str]:  # noqa: A002
    """The headers for them. Raises :class:`~stockade.port.InvalidRequest`."""
    found: dict[str, str] = {}
    if id is not None:
        if not names.is_identifier(id):
            raise InvalidRequest(
                "id", f"{id!r} is not 1 to 64 letters, digits, '-' and '_', beginning with one"
            )
        found[names.ID] = id
    if idempotency_key is not None:
        if not names.is_idempotency_key(idempotency_key):
            raise InvalidRequest(
                "idempotency_key", f"{idempotency_key!r} is not 1 to 128 visible ASCII characters"
            )
        found[names.IDEMPOTENCY_KEY] = idempotency_key
    return found


def inline(stdin: StandardInput) -> bytes | None:
    """What of standard input goes with the request: all of it, or nothing."""
    return stdin if isinstance(stdin, bytes) and len(stdin) <= MOST_INLINE_BYTES else None


async def begin(
    transport: Transport,
    path: str,
    message: bytes,
    request: ExecutionRequest,
    limits: Limits,
    *,
    tenant: str | None,
    identity: Mapping[str, str],
    stdin: StandardInput,
    on_output: OutputSink | None,
    on_egress: EgressSink | None = None,
) -> RemoteExecution:
    """Start it; returns when it may run. Raises what a refusal says: then nothing ran.

    What was sent and not answered whole may have run: it is an execution that is ``lost``.
    """
    execution = RemoteExecution(
        transport,
        Wanted(limits, request.artefacts),
        tenant=tenant,
        on_output=on_output,
        on_egress=on_egress,
        id=identity.get(names.ID),
    )
    headers = transport.headers(
        tenant, {"Accept": MEDIA_TYPE, "Content-Type": "application/json", **identity}
    )
    body: bytes | Outgoing = message
    if len(message) > MOST_INLINE_BYTES:
        body = Outgoing(message)  # in pieces, or the loop would stand still for all of it
        headers["Content-Length"] = str(len(message))
    response = None
    seconds = transport.timeouts.start
    try:
        async with asyncio.timeout(seconds):
            response = await transport.send(
                "POST", path, headers, body, repeatable=names.IDEMPOTENCY_KEY in identity
            )
            if response.status != 200:
                await transport.require(response)
                raise Interrupted(f"it answers with status {response.status}")
            sent_apart = None if inline(stdin) is not None else stdin
            await execution.follow(response, sent_apart)
    except Interrupted as error:
        execution.lose(str(error))
    except TimeoutError:
        execution.lose(f"it said nothing of a start within {seconds:g} seconds")
    except BaseException:
        if response is not None:
            response.close()
        raise
    if execution.done and response is not None:
        response.close()
    return execution
