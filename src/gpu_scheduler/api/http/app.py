"""The ASGI app: routes a request, authenticates its caller, calls the handler, sends the response.

`build` joins all routes to the main app and a small one for the metrics port. Every error becomes
a JSON response. Requests that a web page of another site could make are rejected by Host (DNS
rebinding) and Origin (forgery), for WebSockets too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import count
from secrets import token_hex
from urllib.parse import unquote

import structlog

from gpu_scheduler.api.auth.accounts import LookupPending
from gpu_scheduler.api.auth.peer_credentials import (
    Authenticator,
    OpenAuthenticator,
    PeerAuthenticator,
    peer_in,
)
from gpu_scheduler.api.auth.sessions import NO_SESSION
from gpu_scheduler.api.auth.tokens import BearerAuthenticator, Verifier
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.ha.forwarded_identity import HEADER as FORWARDED_IDENTITY
from gpu_scheduler.api.ha.leadership_gate import FORWARDED_HEADER
from gpu_scheduler.api.ha.proxy import LeaderProxy
from gpu_scheduler.api.http.dashboard import dashboard_operations
from gpu_scheduler.api.http.errors import (
    RETRY_AFTER,
    BadToken,
    MethodNotAllowed,
    TooFast,
    TooSlow,
    Unauthenticated,
    error_form,
    internal_error_form,
)
from gpu_scheduler.api.http.idempotency import HEADER as KEY
from gpu_scheduler.api.http.openapi import READING, Handler, Operation, Router, openapi_document
from gpu_scheduler.api.http.rate_limit import CALLER, RateLimit
from gpu_scheduler.api.http.rejected_requests_audit import AuditLog, is_audited
from gpu_scheduler.api.http.request import (
    HTML,
    WEBSOCKET_RESPONSE,
    AsgiApp,
    ClientGone,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    encode,
    send_response,
)
from gpu_scheduler.api.interfaces import ApiSettings, LogSource, Service
from gpu_scheduler.api.nodes.streams import TerminalStreams
from gpu_scheduler.api.routes import (
    access,
    cluster,
    events,
    explain,
    gpu_stream,
    health,
    jobs,
    logs,
    nodes,
    notifications,
    plan,
    reports,
    reservations,
    services,
    settings_view,
    submit,
    tenants,
    terminals,
    what_if,
)
from gpu_scheduler.api.routes.metrics import metrics_operation
from gpu_scheduler.model.errors import (
    Forbidden,
    InternalError,
    NotLeader,
    SchedulerError,
    StoreUnavailable,
    UnknownThing,
)
from gpu_scheduler.model.identity import Caller

_RESOURCES = (
    submit,
    jobs,
    explain,
    plan,
    what_if,
    logs,
    tenants,
    reservations,
    services,
    health,
    cluster,
    nodes,
    events,
    notifications,
    reports,
    access,
    settings_view,
)
DOCUMENTED_OPERATIONS: tuple[Operation, ...] = tuple(
    operation for resource in _RESOURCES for operation in resource.router.operations
)
_CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
    b"script-src 'unsafe-inline'; frame-ancestors 'none'"
)
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
ANONYMOUS = Caller(user="")
EVENTS = "list_events"
GPUS = "stream_gpus"
MB, HOUR_S = 1_000_000, 3_600
CHANGE_BYTES = 1_000
"""What a change adds to the database besides its body: an event and an entry of the audit log."""
log = structlog.get_logger("api")
Methods = dict[str, Operation]


@dataclass(frozen=True, slots=True)
class Applications:
    """`main` serves all operations, `metrics` only /metrics and /health."""

    main: AsgiApp
    metrics: AsgiApp


def build(
    service: Service,
    settings: ApiSettings,
    *,
    logs: LogSource | None = None,
    terminals: TerminalStreams | None = None,
    authenticators: Sequence[Authenticator] = (),
    jwt_verifier: Callable[[Context], Verifier] | None = None,
    proxy: LeaderProxy | None = None,
) -> Applications:
    """Build both apps. `authenticators` run before tokens and peer credentials.

    `jwt_verifier` makes the verifier of tokens that another issuer has signed. With a `proxy`, the
    apps forward to the leader what only the leader can do.
    """
    context = Context(service, settings, logs=logs, terminals=terminals)
    peer_authenticator = PeerAuthenticator(context.directory)
    verifier = None if jwt_verifier is None else jwt_verifier(context)
    known = (
        *authenticators,
        BearerAuthenticator(service, context.directory, verifier),
        peer_authenticator if settings.auth else OpenAuthenticator(peer_authenticator),
    )
    pages = (*_pages(settings.version), *dashboard_operations())
    main = App(context, (*DOCUMENTED_OPERATIONS, *pages), known, proxy)
    metrics = metrics_operation(context, main.requests)
    main.add((metrics,))
    plain = [operation for operation in health.router.operations if operation.path == "/health"]
    return Applications(main, App(context, (metrics, *plain), known, has_websockets=False))


def _pages(version: str) -> list[Operation]:
    """Return the operations of /openapi.json and /docs."""
    document = encode(openapi_document(DOCUMENTED_OPERATIONS, version))
    page = (files("gpu_scheduler.api") / "docs_page.html").read_bytes()
    page_headers = ((b"content-security-policy", _CONTENT_SECURITY_POLICY),)
    router = Router("pages")

    @router.operation("GET", "/openapi.json", prefix="", public=True)
    async def openapi(context: Context, request: Request) -> Response:
        """The OpenAPI document."""
        context.parse_query(request)
        return Response(document)

    @router.operation("GET", "/docs", prefix="", public=True)
    async def docs(context: Context, request: Request) -> Response:
        """The API documentation as a web page."""
        context.parse_query(request)
        return Response(page, media=HTML, headers=page_headers)

    return router.operations


class App:
    """The ASGI app of all listeners. `requests` counts responses by method, path and status."""

    def __init__(
        self,
        context: Context,
        operations: Iterable[Operation],
        authenticators: Sequence[Authenticator],
        proxy: LeaderProxy | None = None,
        *,
        has_websockets: bool = True,
    ) -> None:
        """Ask the `authenticators` in order; the first that knows the caller decides.

        A standby has a `proxy` to the leader.
        """
        self._has_websockets = has_websockets
        self._proxy = proxy
        self._context = context
        self._authenticators = tuple(authenticators)
        self.event_sockets = events.EventSockets(context)
        self._gpu_sockets = gpu_stream.GpuSockets(context)
        self._terminal_sockets = terminals.TerminalSockets(context)
        bounds = context.settings.bounds
        self._rate_limit = RateLimit(bounds.requests_per_second, bounds.requests_burst)
        mb_per_hour = bounds.body_mb_per_hour
        self._body_limit = RateLimit(
            mb_per_hour * MB / HOUR_S,
            max(mb_per_hour * MB, bounds.bulk_bytes),
            excess=f"sends more than {mb_per_hour:g} MB an hour (api.body_mb_per_hour)",
        )
        self._body_timeout_s = bounds.receive_seconds
        self.audit_log = AuditLog(context.service)
        self._host_names = LOOPBACK_NAMES | {name.lower() for name in context.settings.host_names}
        self._exact: dict[str, Methods] = {}
        self._patterns: list[tuple[re.Pattern[str], Methods]] = []
        self._numbers = count(1)
        self._prefix = token_hex(4)
        self.requests: dict[tuple[str, str, int], int] = {}
        self.add(operations)

    def add(self, operations: Iterable[Operation]) -> None:
        """Serve these operations too."""
        by_path: dict[str, Methods] = {}
        for operation in operations:
            by_path.setdefault(operation.path, {})[operation.method] = operation
        for path, methods in by_path.items():
            if "{" in path:
                text = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
                self._patterns.append((re.compile(text), methods))
            else:
                self._exact[path] = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        request_id = f"{self._prefix}-{next(self._numbers)}"
        if scope["type"] == "http":
            await self._serve_http(scope, receive, send, request_id)
        elif scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send, request_id)

    # HTTP requests

    async def _serve_http(
        self, scope: Scope, receive: Receive, send: Send, request_id: str
    ) -> None:
        method: str = scope["method"]
        path, action, caller = "(unknown)", "(unknown)", ANONYMOUS
        try:
            headers = dict(scope["headers"])
            self._reject_forwarded(headers)
            self._check_origin(scope, headers)
            self._resume_session(scope, headers)
            operation, params = self._route(method, scope)
            path, action = operation.path, operation.name
            try:
                caller = self._authorise(operation, scope, headers)
            except LookupPending:
                authorise = partial(self._authorise, operation, scope, headers)
                caller = await self._context.directory.accounts.wait_for(authorise)
            request = Request(
                scope,
                receive,
                caller=caller,
                headers=headers,
                params=params,
                request_id=request_id,
                body_timeout_s=self._body_timeout_s,
                count_body=None if caller.is_admin else partial(self._body_limit.take, caller.user),
            )
            response = await self._handler(operation, headers)(self._context, request)
            if response.stream is not None:
                await response.stream.begin()
        except SchedulerError as error:
            response = self._error_response(error, request_id, path)
            self._audit_rejection(scope, caller, action, response.status, error)
        except ClientGone:
            return
        except Exception:
            log.exception("request failed", request_id=request_id, method=method, path=path)
            response = Response(encode(internal_error_form(request_id)), status=500)
        key = (method, path, response.status)
        self.requests[key] = self.requests.get(key, 0) + 1
        abort = scope.get("state", {}).get("abort")
        await send_response(response, receive, send, request_id, abort=abort)

    def _resume_session(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Put the token of a browser's session in the place of its cookie."""
        if b"authorization" not in headers:
            token = self._context.sessions.authorization(headers, peer_in(scope))
            if token is not None:
                headers[b"authorization"] = token

    def _handler(self, operation: Operation, headers: dict[bytes, bytes]) -> Handler:
        if operation.stays_here:
            return operation.handler
        if self._proxy is not None and self._proxy.needs_leader(operation, headers):
            return partial(self._proxy.forward, operation=operation)
        if self._proxy is not None and not operation.public:
            return partial(self._proxy.read, handler=operation.handler)
        if KEY in headers and operation.is_key_optional:
            most = self._context.settings.bounds.body_bytes
            return lambda context, request: context.idempotency.apply_once(
                context, request, operation.handler, most
            )
        return operation.handler

    def _route(self, method: str, scope: Scope) -> tuple[Operation, dict[str, str]]:
        """Find the operation of a method on a path, and the parameters in the path.

        An encoded slash belongs to a parameter: names from before the rule for names may have it.
        """
        path: str = scope["path"]
        raw = (scope.get("raw_path") or b"").decode("latin-1")
        has_encoded_slash = "%2f" in raw.lower()
        if has_encoded_slash:
            path = raw
        params: dict[str, str] = {}
        methods = self._exact.get(path)
        if methods is None:
            for pattern, candidates in self._patterns:
                match = pattern.fullmatch(path)
                if match is not None:
                    methods, params = candidates, match.groupdict()
                    if has_encoded_slash:
                        params = {name: unquote(value) for name, value in params.items()}
                    break
            else:
                raise UnknownThing(f"there is no resource {path[:200]!r}; see /docs for all paths")
        operation = methods.get(method)
        if operation is None and method == "HEAD":
            operation = methods.get("GET")
        if operation is None:
            allowed = tuple(sorted(methods))
            raise MethodNotAllowed(
                f"{method} is not possible here; use {' or '.join(allowed)}", allowed=allowed
            )
        return operation, params

    # WebSockets

    async def _serve_websocket(
        self, scope: Scope, receive: Receive, send: Send, request_id: str
    ) -> None:
        caller, action = ANONYMOUS, EVENTS
        try:
            headers = dict(scope["headers"])
            self._reject_forwarded(headers)
            self._check_origin(scope, headers)
            self._resume_session(scope, headers)
            action, params = self._route_websocket(scope["path"])
            authenticate = partial(self._authenticate, scope, headers)
            caller = await self._context.directory.accounts.wait_for(authenticate)
            request = Request(
                scope, receive, caller=caller, headers=headers, params=params, request_id=request_id
            )
            if action == EVENTS:
                await self.event_sockets.serve(request, receive, send)
            elif self._proxy is not None:
                await self._proxy.forward_websocket(self._context, request, receive, send)
            elif action == GPUS:
                await self._gpu_sockets.serve(request, authenticate, receive, send)
            else:
                await self._terminal_sockets.serve(request, receive, send)
        except SchedulerError as error:
            response = self._error_response(error, request_id, scope["path"])
            self._audit_rejection(scope, caller, action, response.status, error)
            await send_response(response, receive, send, request_id, kind=WEBSOCKET_RESPONSE)
        except (TimeoutError, OSError):
            return
        except Exception:
            log.exception("WebSocket failed", request_id=request_id, path=scope["path"])

    def _route_websocket(self, path: str) -> tuple[str, dict[str, str]]:
        """Return which WebSocket a path serves, and the parameters in the path."""
        if path == events.PATH and self._has_websockets:
            return EVENTS, {}
        if path == gpu_stream.PATH and self._has_websockets:
            return GPUS, {}
        if (match := terminals.PATTERN.fullmatch(path)) is not None and self._has_websockets:
            return terminals.ACTION, match.groupdict()
        raise UnknownThing(
            f"there is no WebSocket here; use {events.PATH}, {gpu_stream.PATH}, or that of a job's "
            "terminal"
        )

    # Authentication

    def _authorise(self, operation: Operation, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        """Return the caller if it may call this operation; public ones need no caller."""
        peer = peer_in(scope)
        if operation.public and (peer.local or operation.public_everywhere):
            if not peer.local:
                self._rate_limit.take(f"address {peer.host}")
            return ANONYMOUS
        if away := self._context.service.away:
            raise StoreUnavailable(f"{away}. Running jobs go on; try again in a moment")
        caller = self._authenticate(scope, headers)
        is_change = operation.method not in READING and not operation.stays_here
        if is_change and not caller.may_change:
            raise Forbidden(f"'{caller.user}' has the role viewer, which may not change anything")
        if is_change and not caller.is_admin:
            self._body_limit.take(caller.user, CHANGE_BYTES)
        return caller

    def _authenticate(self, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        peer = peer_in(scope)
        caller = None
        try:
            for authenticator in self._authenticators:
                caller = authenticator.caller(peer, headers)
                if caller is not None:
                    break
        except BadToken:
            self._rate_limit.take(f"address {peer.host}")
            raise
        if caller is None:
            raise Unauthenticated(
                "the caller is not authenticated; call from this machine, over the Unix socket or "
                "127.0.0.1, or with a token ('Authorization: Bearer ...')"
            )
        if not caller.is_admin:
            self._rate_limit.take(f"{caller.user} {caller.via}")
        CALLER.set("" if caller.is_admin else caller.user)
        return caller

    def _reject_forwarded(self, headers: dict[bytes, bytes]) -> None:
        """Reject a request that another server has forwarded, unless this server leads.

        The leader removes the forwarded identity once it has verified it. Otherwise the server at
        the other end, which may run as root, would be taken for the caller.
        """
        if FORWARDED_IDENTITY in headers or (
            self._proxy is not None and FORWARDED_HEADER in headers
        ):
            raise NotLeader("this server is not the leader; the forwarded request was not executed")

    def _check_origin(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Reject a Host that is not one of this server's names, and an Origin of another site."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        peer = peer_in(scope)
        # The Host matters only where the connection alone authenticates the caller: no browser
        # reaches a Unix socket, adds a token by itself, or is authenticated from another machine.
        is_authenticated = peer.local and not peer.unix and b"authorization" not in headers
        if is_authenticated and _host_name(host) not in self._host_names:
            raise Forbidden(
                f"'{host[:100]}' is not a name of this server; call it localhost, or add the "
                "name to its settings (api.host_names)"
            )
        origin = headers.get(b"origin")
        if origin is not None:
            scheme, _, place = origin.decode("latin-1").lower().partition("://")
            if scheme not in {"http", "https"} or place != host:
                raise Forbidden("a page of another site may not call this server (Origin)")

    # Errors

    def _audit_rejection(
        self, scope: Scope, caller: Caller, action: str, status: int, error: SchedulerError
    ) -> None:
        method = scope.get("method", "GET")
        if not is_audited(method, status, error.code):
            return
        peer = peer_in(scope)
        self.audit_log.add(
            who=(caller.user, caller.origin or peer.host, caller.via),
            action=action,
            target=scope["path"],
            why=(error.code, str(error)),
        )

    def _error_response(self, error: SchedulerError, request_id: str, path: str) -> Response:
        status, form = error_form(error)
        if isinstance(error, InternalError) or status == 500:
            log.error("request failed", request_id=request_id, path=path, error=str(error))
            form = internal_error_form(request_id)
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if isinstance(error, TooFast):
            headers += ((b"retry-after", str(error.retry_after_s).encode()),)
        elif status in RETRY_AFTER:
            headers += ((b"retry-after", RETRY_AFTER[status].encode()),)
        if isinstance(error, Unauthenticated):
            headers += ((b"www-authenticate", b'Bearer realm="gpu-scheduler"'),)
        if isinstance(error, BadToken):
            # A browser whose session stands for this token would send it for ever.
            headers += ((b"set-cookie", NO_SESSION),)
        if isinstance(error, TooSlow):
            headers += ((b"connection", b"close"),)
        if isinstance(error, MethodNotAllowed):
            headers += ((b"allow", ", ".join(error.allowed).encode()),)
        return Response(encode(form), status=status, headers=headers)


def _host_name(host: str) -> str:
    """Return the host name without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
