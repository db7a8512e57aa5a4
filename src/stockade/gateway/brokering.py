"""The gateway's way to the broker, which holds the tenants' credentials. A secret only passes in."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
from pydantic import BaseModel, ValidationError

from stockade.api.credentials import CredentialBody, CredentialList, TicketAnswer, UseList
from stockade.api.problems import Code, Problem
from stockade.gateway.keys import Caller
from stockade.gateway.settings import BrokerSettings
from stockade.port import InvalidRequest, Refused, SandboxRequest, Unavailable
from stockade.port.egress import EgressRule
from stockade.port.errors import StockadeError

_SECONDS: Final = aiohttp.ClientTimeout(total=20, connect=5)
Message = TypeVar("Message", bound=BaseModel)

_MOST_ANSWER: Final = 4 * 1024 * 1024


class Broker:
    """One broker, or none: then there are no credentials, and whoever asks for one is told."""

    def __init__(self, session: aiohttp.ClientSession | None, base: str = "") -> None:
        self._session = session
        self._base = base

    def __repr__(self) -> str:
        return "<Broker none>" if self._session is None else f"<Broker {self._base}>"

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: BrokerSettings | None) -> AsyncIterator[Self]:
        """Nothing is asked of it before it is needed: the gateway does without it, too."""
        if settings is None:
            yield cls(None)
            return
        parts = urlsplit(settings.url)
        connector: aiohttp.BaseConnector
        if parts.scheme == "unix":
            connector, base = aiohttp.UnixConnector(path=parts.path), "http://broker"
        else:
            context = ssl.create_default_context(cafile=settings.ca)
            connector, base = aiohttp.TCPConnector(ssl=context), settings.url.rstrip("/")
        headers = {"Authorization": f"Bearer {settings.token()}"}
        async with aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=_SECONDS, trust_env=False
        ) as session:
            yield cls(session, base)

    async def put(self, tenant: str, name: str, body: CredentialBody) -> None:
        """Store it. Raises what the broker refuses."""
        await self._ask(
            "PUT",
            f"{_credentials(tenant)}/{name}",
            {
                "secret": body.secret.get_secret_value(),
                "grants": [each.model_dump(mode="json", exclude_none=True) for each in body.grants],
            },
        )

    async def credentials(self, tenant: str) -> CredentialList:
        """All of a tenant's, without their secrets."""
        return _read(CredentialList, await self._ask("GET", _credentials(tenant)))

    async def delete(self, tenant: str, name: str) -> None:
        """Raises :class:`~stockade.port.Refused` where there is none."""
        await self._ask("DELETE", f"{_credentials(tenant)}/{name}")

    async def uses(
        self, tenant: str, *, execution: str | None, credential: str | None, limit: int
    ) -> UseList:
        """The latest first."""
        query = {
            name: str(value)
            for name, value in (
                ("execution", execution),
                ("credential", credential),
                ("limit", limit),
            )
            if value is not None
        }
        path = f"/v1/tenants/{quote(tenant, safe='')}/uses"
        return _read(UseList, await self._ask("GET", path, query=query))

    def check(self, request: SandboxRequest) -> None:
        """What can be told without asking. Raises :class:`InvalidRequest`, :class:`Unavailable`."""
        if request.ticket is not None:
            raise InvalidRequest("sandbox.ticket", "tickets are the gateway's to give")
        if request.egress.credentials:
            self._require()

    async def admit(
        self, caller: Caller, execution: str, request: SandboxRequest
    ) -> SandboxRequest:
        """The request with a ticket for the credentials that it names, where it names any.

        A ticket is good once and soon: this comes last, once for each try. Raises
        :class:`InvalidRequest` for one that is unknown, and :class:`Refused` where the tenant's
        policy does not cover what it was granted for.
        """
        self.check(request)
        names = request.egress.credentials
        if not names:
            return request
        body = {"tenant": caller.tenant, "execution": execution, "credentials": list(names)}
        try:
            given = _read(TicketAnswer, await self._ask("POST", "/v1/tickets", body))
        except Refused as error:
            if error.code != Code.NOT_FOUND:
                raise
            raise InvalidRequest("sandbox.egress.credentials", str(error)) from None
        caller.policy.judge_rules(tuple(map(EgressRule.parse, given.rules)))
        return replace(request, ticket=given.ticket.get_secret_value())

    async def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        query: dict[str, str] | None = None,
    ) -> bytes:
        session = self._require()
        try:
            async with session.request(
                method, f"{self._base}{path}", json=body, params=query, allow_redirects=False
            ) as answer:
                said = await answer.content.read(_MOST_ANSWER + 1)
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            # What it says may repeat what was sent.
            raise Unavailable(
                "the broker does not answer; credentials cannot be used now"
            ) from None
        if 200 <= status < 300 and len(said) <= _MOST_ANSWER:
            return said
        raise _refusal(said)

    def _require(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise Unavailable("this gateway has no broker, and so no credentials")
        return self._session


def _credentials(tenant: str) -> str:
    return f"/v1/tenants/{quote(tenant, safe='')}/credentials"


def _refusal(said: bytes) -> StockadeError:
    try:
        problem = Problem.model_validate(json.loads(said))
    except ValueError:
        return Unavailable("the broker answers what nobody understands")
    match problem.code:
        case Code.NOT_FOUND | Code.CONFLICT:
            return Refused(problem.code.value, problem.detail)
        case Code.INVALID_REQUEST:
            return InvalidRequest("credential", problem.detail)
        case Code.UNAUTHENTICATED:
            return Unavailable("the broker does not take the gateway's token")
    return Unavailable(f"the broker: {problem.detail}")


def _read(kind: type[Message], said: bytes) -> Message:
    try:
        return kind.model_validate_json(said)
    except ValidationError:
        raise Unavailable("the broker answers what nobody understands") from None
