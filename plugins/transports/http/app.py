"""The routes."""

from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .access import Access
from .chat import read_chat
from .completions import read_completion
from .errors import ApiError
from .evidence import Evidence
from .gate import Gate
from .gateway import Gateway
from .generate import Generate
from .info import Info
from .keyring import KeyRing

if TYPE_CHECKING:
    from . import Options

_UNROUTED = {404: "there is nothing at this path", 405: "this path takes another method"}


def build_app(
    gateway: Gateway, options: "Options", version: str, keyring: KeyRing | None
) -> Starlette:
    """The application, over a gateway that is started with the loop."""
    info = Info(gateway, version)
    evidence = Evidence(gateway)
    chat = partial(read_chat, window=options.window)
    completion = partial(read_completion, window=options.window, max_choices=options.max_choices)
    bounds = (options.max_body_bytes, options.body_seconds)
    routes = [
        Route("/v1/chat/completions", Generate(gateway, chat, *bounds), methods=["POST"]),
        Route("/v1/completions", Generate(gateway, completion, *bounds), methods=["POST"]),
        Route("/v1/models", info.models),
        Route("/v1/models/{id:path}", info.model),
        Route("/v1/requests", evidence.requests),
        Route("/v1/requests/{id}/timeline", evidence.timeline),
        Route("/v1/ledger", evidence.ledger),
        Route("/health", info.health),
        Route("/ready", info.ready),
        Route("/metrics", info.metrics),
        Route("/version", info.version),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(Access),
            Middleware(
                Gate,
                clients=gateway.clients,
                keyring=keyring,
                unlocked=frozenset() if options.protect_metrics else frozenset({"/metrics"}),
            ),
        ],
        exception_handlers={HTTPException: _unrouted},
    )


async def _unrouted(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    body = ApiError(status, _UNROUTED.get(status, "not accepted")).body()
    return Response(body, status, headers=headers, media_type="application/json")
