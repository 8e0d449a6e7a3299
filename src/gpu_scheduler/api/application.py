"""All parts joined to one application, and a small one for the metrics port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from gpu_scheduler.api.auth.peer_credentials import (
    Authenticator,
    OpenAuthenticator,
    PeerAuthenticator,
)
from gpu_scheduler.api.auth.tokens import BearerAuthenticator, Verifier
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.ha.gate import AsgiApp
from gpu_scheduler.api.ha.proxy import LeaderProxy
from gpu_scheduler.api.http.app import App
from gpu_scheduler.api.http.openapi import describe
from gpu_scheduler.api.http.operations import Handler, Operation
from gpu_scheduler.api.http.request import HTML, Request, Response, encode
from gpu_scheduler.api.interfaces import ApiSettings, LogSource, Service, TerminalSource
from gpu_scheduler.api.routes import (
    access,
    cluster,
    events,
    explain,
    health,
    job_actions,
    jobs,
    logs,
    node_credentials,
    nodes,
    notifications,
    overview,
    reports,
    reservations,
    services,
    submit,
    tenants,
    usage,
)
from gpu_scheduler.api.routes.metrics import Metrics

DOCUMENTED_OPERATIONS: tuple[Operation, ...] = (
    *submit.OPERATIONS,
    *jobs.OPERATIONS,
    *explain.OPERATIONS,
    *jobs.SHORT_FORM_OPERATIONS,
    *jobs.SWEEPS_OPERATIONS,
    *job_actions.OPERATIONS,
    *logs.OPERATIONS,
    *tenants.OPERATIONS,
    *reservations.OPERATIONS,
    *services.OPERATIONS,
    *health.OPERATIONS,
    *usage.LIMITS_OPERATIONS,
    *explain.ESTIMATES_OPERATIONS,
    *cluster.OPERATIONS,
    *nodes.OPERATIONS,
    *overview.OPERATIONS,
    *events.OPERATIONS,
    *notifications.OPERATIONS,
    *usage.OPERATIONS,
    *reports.OPERATIONS,
    *access.OPERATIONS,
    *node_credentials.OPERATIONS,
)
_CONTENT_RULE = (
    b"default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
    b"script-src 'unsafe-inline'; frame-ancestors 'none'"
)
PAGE_RULES = ((b"content-security-policy", _CONTENT_RULE),)


@dataclass(frozen=True, slots=True)
class Applications:
    """`main` has everything, `metrics` only /metrics and /health."""

    main: AsgiApp
    metrics: AsgiApp


def build(
    service: Service,
    settings: ApiSettings,
    *,
    logs: LogSource | None = None,
    terminals: TerminalSource | None = None,
    authenticators: Sequence[Authenticator] = (),
    signed: Callable[[Context], Verifier] | None = None,
    forwarder: LeaderProxy | None = None,
) -> Applications:
    """Join the parts. Further authenticators are asked before the kernel is believed.

    `signed` makes what believes tokens that somebody else has signed. With a `forwarder`, what
    only the leader can do is passed on to it.
    """
    context = Context(service, settings, logs=logs, terminals=terminals)
    kernel = PeerAuthenticator(context.directory)
    verifier = None if signed is None else signed(context)
    known = (
        *authenticators,
        BearerAuthenticator(service, context.directory, verifier),
        kernel if settings.auth else OpenAuthenticator(kernel),
    )
    pages = _pages(settings.version)
    main = App(context, (*DOCUMENTED_OPERATIONS, *pages), known, forwarder)
    metrics = Metrics(context, main.requests).operation()
    main.add((metrics,))
    plain = [operation for operation in health.OPERATIONS if operation.path == "/health"]
    return Applications(main, App(context, (metrics, *plain), known, has_sockets=False))


def _pages(version: str) -> tuple[Operation, ...]:
    description = encode(describe(DOCUMENTED_OPERATIONS, version))
    page = (files("gpu_scheduler.api") / "docs_page.html").read_bytes()

    async def openapi(context: Context, request: Request) -> Response:
        context.parse_query(request)
        return Response(description)

    async def docs(context: Context, request: Request) -> Response:
        context.parse_query(request)
        return Response(page, media=HTML, headers=PAGE_RULES)

    return (
        _page("/openapi.json", openapi, "openapi", "This description."),
        _page("/docs", docs, "docs", "A page to browse it."),
    )


def _page(path: str, handler: Handler, name: str, summary: str) -> Operation:
    return Operation(
        method="GET",
        path=path,
        handler=handler,
        name=name,
        summary=summary,
        tag="pages",
        public=True,
    )
