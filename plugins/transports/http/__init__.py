"""The OpenAI-compatible HTTP transport.

``POST /v1/chat/completions`` and ``/v1/completions`` (JSON or server-sent events),
``GET /v1/models``, ``/v1/requests``, ``/v1/ledger``, ``/health``, ``/ready``,
``/metrics``, ``/version``. It sees engine clients alone and knows no sampling parameter by
name: what the core does not own goes to the running stack, which takes it or refuses it.
The tenant comes from the caller's API key (RFC 6750 for how it is sent).
"""

from typing import Annotated

import msgspec

from enginebay import hookimpl
from enginebay.hookspecs.transport import Transport, TransportContext

CONTRACT = (1, 0)

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to listen, and what one caller may take."""

    host: str = "127.0.0.1"
    """Address to listen at; ``0.0.0.0`` for all of them."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000
    """0: a free one."""
    keys: str = ""
    """File of API keys, see `enginebay keys`; each caller is its key's tenant. Empty: no
    key is asked for, and everyone is the tenant `default`."""
    protect_metrics: bool = False
    """Ask for an admin's key on `/metrics`, which names every tenant."""
    max_body_bytes: Positive = 4 * 1024 * 1024
    """A larger body is answered with 413."""
    body_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """A body that takes longer to arrive is answered with 408."""
    shutdown_timeout: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """Seconds that requests under way get when the server is told to stop."""
    window: Positive = 256
    """Tokens a stream may be ahead of its reader before the engine stops computing it."""
    slow_reader_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """A connection that takes nothing for so long is dropped."""
    encode_threads: Positive = 2
    """Threads that parse and tokenize."""
    max_pending: Positive = 1024
    """Requests that may wait for those threads; more are answered with 503."""
    max_choices: Positive = 1024
    """Choices that one request's list of prompts may make."""


@hookimpl
def enginebay_transport(options: Options, context: TransportContext) -> Transport:
    """Build the transport."""
    from .server import HttpTransport

    return HttpTransport(options, context)
