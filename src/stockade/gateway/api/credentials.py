"""A tenant's credentials: stored here, kept by the broker, and never given back."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from stockade.api.credentials import MAX_USES, CredentialBody, CredentialList, UseList
from stockade.gateway.api.callers import KeepsCredentials
from stockade.gateway.api.forms import JsonAnswer
from stockade.gateway.api.lean import LeanRoute
from stockade.gateway.api.openapi import NO_CONTENT
from stockade.gateway.api.services import Services
from stockade.gateway.journal import Action
from stockade.port.egress import check_credential_name

CredentialName = Annotated[
    str, Path(description="A credential's name: a-z, 0-9, ``.``, ``_``, ``-``.")
]


def router(services: Services) -> APIRouter:
    """``/v1/credentials``."""
    routes = APIRouter(prefix="/v1", tags=["credentials"], route_class=LeanRoute)
    broker = services.broker

    @routes.put(
        "/credentials/{name}",
        status_code=204,
        responses=NO_CONTENT,
        summary="Store a credential, and what it may be used for",
        operation_id="put_credential",
    )
    async def put_credential(
        caller: KeepsCredentials, name: CredentialName, body: CredentialBody
    ) -> Response:
        """It takes the place of one of that name. No answer ever has the secret in it."""
        check_credential_name(name)
        rules = tuple(grant.egress_rule for grant in body.grants)
        caller.policy.judge_rules(rules)
        await broker.put(caller.tenant, name, body)
        facts = {
            "grants": [
                {"rule": str(each.egress_rule), "way": each.way.kind} for each in body.grants
            ]
        }
        await services.ledger.record(caller, Action.CREDENTIAL_STORED, name, facts)
        return Response(status_code=204)

    @routes.get(
        "/credentials",
        response_model=CredentialList,
        summary="The credentials, without their secrets",
        operation_id="list_credentials",
    )
    async def list_credentials(caller: KeepsCredentials) -> Response:
        """All that is told of them: their names, and what they may be used for."""
        return JsonAnswer(await broker.credentials(caller.tenant))

    @routes.delete(
        "/credentials/{name}",
        status_code=204,
        responses=NO_CONTENT,
        summary="Delete a credential",
        operation_id="delete_credential",
    )
    async def delete_credential(caller: KeepsCredentials, name: CredentialName) -> Response:
        """What runs cannot use it from now on. Its uses stay told."""
        check_credential_name(name)
        await broker.delete(caller.tenant, name)
        await services.ledger.record(caller, Action.CREDENTIAL_DELETED, name)
        return Response(status_code=204)

    @routes.get(
        "/credential-uses",
        response_model=UseList,
        summary="Where credentials were used, latest first",
        operation_id="list_credential_uses",
    )
    async def list_credential_uses(
        caller: KeepsCredentials,
        execution: Annotated[str | None, Query(max_length=64)] = None,
        credential: Annotated[str | None, Query(max_length=64)] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_USES)] = 100,
    ) -> Response:
        """Which, when, where and by which execution; never the value."""
        return JsonAnswer(
            await broker.uses(
                caller.tenant, execution=execution, credential=credential, limit=limit
            )
        )

    return routes
