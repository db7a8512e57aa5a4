"""A tenant's credentials, at a gateway: secrets go in, and none comes out."""

import json
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel

from stockade.api.credentials import (
    CredentialAnswer,
    CredentialBody,
    CredentialList,
    UseAnswer,
    UseList,
)
from stockade.client.transport import Interrupted, Transport, parsed
from stockade.port import MIB, Unavailable
from stockade.port.egress import check_credential_name

M = TypeVar("M", bound=BaseModel)

_MOST_BYTES: Final = 4 * MIB


class RemoteCredentials:
    """Those of one tenant, whom the key tells."""

    def __init__(self, transport: Transport, require_open: Callable[[], None]) -> None:
        self._transport = transport
        self._require_open = require_open

    async def put(self, name: str, body: CredentialBody) -> None:
        """Store one, in place of one of that name."""
        check_credential_name(name)
        plain = body.model_dump(mode="json", exclude_none=True)
        plain["secret"] = body.secret.get_secret_value()
        await self._ask("PUT", f"/v1/credentials/{name}", json.dumps(plain).encode())

    async def all(self) -> tuple[CredentialAnswer, ...]:
        """All of them, without their secrets."""
        return self._read(CredentialList, await self._ask("GET", "/v1/credentials")).credentials

    async def delete(self, name: str) -> None:
        """What runs cannot use it from now on."""
        check_credential_name(name)
        await self._ask("DELETE", f"/v1/credentials/{name}")

    async def uses(
        self, *, execution: str | None = None, credential: str | None = None, limit: int = 100
    ) -> tuple[UseAnswer, ...]:
        """Where they were used, the latest first."""
        query = {"limit": str(limit)}
        if execution is not None:
            query["execution"] = execution
        if credential is not None:
            query["credential"] = credential
        answer = await self._ask("GET", f"/v1/credential-uses?{urlencode(query)}")
        return self._read(UseList, answer).uses

    async def _ask(self, method: str, path: str, message: bytes | None = None) -> bytes:
        self._require_open()
        try:
            return await self._transport.ask(method, path, message=message, most_bytes=_MOST_BYTES)
        except Interrupted as error:
            raise Unavailable(f"{self._transport}: {error}") from None

    def _read(self, model: type[M], answer: bytes) -> M:
        try:
            return parsed(model, answer)
        except Interrupted as error:
            raise Unavailable(f"{self._transport}: {error}") from None
