"""Routes that FastAPI documents, and that are answered without its general way to a function.

Between a request and its function FastAPI opens three exit stacks, copies its notes about included
routers, and looks for forms, files and dependencies that could do anything. Nothing here has any of
that, and it took longer than what a call does in the gateway.
"""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_body_to_args, request_params_to_args
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from stockade.gateway.api.bodies import BoundedRequest


class LeanRoute(APIRoute):
    """Gives its function what FastAPI read in its signature: the request, parameters, a message.

    A signature that asks for more is refused as the route is made. The function returns a response.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        super().__init__(path, endpoint, **more)
        wanted = self.dependant
        plain = all(
            _is_plain(one) and not (one.dependencies or one.body_params or _parameters(one))
            for one in wanted.dependencies
        )
        if not plain or not _is_plain(wanted) or len(wanted.body_params) > 1:
            raise TypeError(f"{path}: its signature asks for more than a lean route gives")
        self.app = self._serve

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = BoundedRequest(scope, receive, send)
        wanted = self.dependant
        # First: what goes wrong as it is read is told apart from what it says.
        body = await request.json() if wanted.body_params else None
        given: dict[str, Any] = {}
        for one in wanted.dependencies:
            given[one.name or ""] = await _call(one, request)
        wrong: list[Any] = []
        for fields, values in (
            (wanted.path_params, request.path_params),
            (wanted.query_params, request.query_params if wanted.query_params else {}),
            (wanted.header_params, request.headers),
        ):
            if fields:
                found, errors = request_params_to_args(fields, values)
                given |= found
                wrong += errors
        if wanted.body_params:
            found, errors = await request_body_to_args(
                body_fields=wanted.body_params, received_body=body, embed_body_fields=False
            )
            given |= found
            wrong += errors
        if wrong:
            raise RequestValidationError(wrong, body=body)
        if wanted.request_param_name is not None:
            given[wanted.request_param_name] = request
        response = await self.endpoint(**given)
        await response(scope, receive, send)


class LeanApi(FastAPI):
    """An application of lean routes: no more around them than what makes answers of errors."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.router.route_class = LeanRoute

    def add(self, routes: APIRouter) -> None:
        """Its routes, as they are: an included router finds its route a second time."""
        self.router.routes.extend(routes.routes)

    def build_middleware_stack(self) -> ASGIApp:
        """What nobody foresaw goes on to whoever calls this: the envelope answers it."""
        return ExceptionMiddleware(self.router, handlers=self.exception_handlers)


def _parameters(one: Dependant) -> tuple[Any, ...]:
    return (*one.path_params, *one.query_params, *one.header_params)


def _is_plain(one: Dependant) -> bool:
    return not (
        one.cookie_params
        or one.websocket_param_name
        or one.http_connection_param_name
        or one.response_param_name
        or one.background_tasks_param_name
        or one.security_scopes_param_name
    )


async def _call(one: Dependant, request: BoundedRequest) -> Any:
    assert one.call is not None
    return await one.call(**{one.request_param_name: request} if one.request_param_name else {})
