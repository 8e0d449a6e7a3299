"""The ASGI application: checks every request, finds who calls and what is asked, and answers.

Whatever goes wrong, the answer is JSON. Requests that a web page of another site could make are
refused by Host (DNS rebinding) and Origin (forgery), also for WebSockets.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import count
from secrets import token_hex
from typing import Any

import structlog

from gpu_scheduler.api.auth.accounts import LookupPending
from gpu_scheduler.api.auth.peer_credentials import UNKNOWN, Authenticator, Peer
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.ha.forwarded_identity import HEADER as VOUCHED
from gpu_scheduler.api.ha.gate import FORWARDED_HEADER
from gpu_scheduler.api.ha.proxy import LeaderProxy
from gpu_scheduler.api.http.audit import AuditLog, is_audited
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
from gpu_scheduler.api.http.operations import Handler, Operation
from gpu_scheduler.api.http.rate_limit import RateLimit
from gpu_scheduler.api.http.request import (
    SOCKET_REFUSED,
    ClientGone,
    Request,
    Response,
    encode,
    send_response,
)
from gpu_scheduler.api.routes.events import PATH as EVENTS_PATH
from gpu_scheduler.api.routes.events import EventSockets
from gpu_scheduler.api.routes.terminals import ACTION as TERMINAL
from gpu_scheduler.api.routes.terminals import PATTERN as TERMINAL_PATTERN
from gpu_scheduler.api.routes.terminals import TerminalSockets
from gpu_scheduler.model.errors import (
    Forbidden,
    InternalError,
    NotLeader,
    SchedulerError,
    StoreUnavailable,
    UnknownThing,
)
from gpu_scheduler.model.identity import Caller

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
READING = frozenset({"GET", "HEAD"})
ANONYMOUS = Caller(user="")
EVENTS = "list_events"
log = structlog.get_logger("api")

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Methods = dict[str, Operation]


class App:
    """One application for all listeners. `requests` counts answers by method, path and status."""

    def __init__(
        self,
        context: Context,
        operations: Iterable[Operation],
        authenticators: Sequence[Authenticator],
        forwarder: LeaderProxy | None = None,
        *,
        has_sockets: bool = True,
    ) -> None:
        """The first authenticator that knows the caller decides.

        With a `forwarder`, what only the leader can do is passed on to it. Without sockets there
        are no WebSockets.
        """
        self._has_sockets = has_sockets
        self._forwarder = forwarder
        self._context = context
        self._authenticators = tuple(authenticators)
        self.sockets = EventSockets(context)
        self.terminals = TerminalSockets(context)
        bounds = context.settings.bounds
        self._pace = RateLimit(bounds.requests_per_second, bounds.requests_burst)
        self._patience = bounds.receive_seconds
        self.refusals = AuditLog(context.service)
        self._names = LOOPBACK_NAMES | {name.lower() for name in context.settings.host_names}
        self._exact: dict[str, Methods] = {}
        self._patterns: list[tuple[re.Pattern[str], Methods]] = []
        self._numbers = count(1)
        self._prefix = token_hex(4)
        self.requests: dict[tuple[str, str, int], int] = {}
        self.seconds = 0.0
        self.add(operations)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        request_id = f"{self._prefix}-{next(self._numbers)}"
        if scope["type"] == "http":
            await self._answer(scope, receive, send, request_id)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send, request_id)

    # --- requests

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        method: str = scope["method"]
        path, action, who = "(unknown)", "(unknown)", ANONYMOUS
        try:
            headers = dict(scope["headers"])
            self._check_passed_on(headers)
            self._check_origin(scope, headers)
            operation, params = self._find(method, scope["path"])
            path, action = operation.path, operation.name
            try:
                who = self._let_in(operation, scope, headers)
            except LookupPending:
                let_in = partial(self._let_in, operation, scope, headers)
                who = await self._context.directory.when_known(let_in)
            request = Request(
                scope,
                receive,
                caller=who,
                headers=headers,
                params=params,
                request_id=request_id,
                patience=self._patience,
            )
            response = await self._handler(operation, headers)(self._context, request)
            if response.stream is not None:
                await response.stream.begin()
        except SchedulerError as error:
            response = self._refusal(error, request_id, path)
            self._keep_refusal(scope, who, action, response.status, error)
        except ClientGone:
            return
        except Exception:
            log.exception("a request failed", request_id=request_id, method=method, path=path)
            response = Response(encode(internal_error_form(request_id)), status=500)
        key = (method, path, response.status)
        self.requests[key] = self.requests.get(key, 0) + 1
        break_off = scope.get("state", {}).get("break_off")
        await send_response(response, receive, send, request_id, break_off=break_off)

    def _handler(self, operation: Operation, headers: dict[bytes, bytes]) -> Handler:
        if self._forwarder is not None and self._forwarder.wants(operation, headers):
            return partial(self._forwarder.forward, operation=operation)
        if self._forwarder is not None and not operation.public:
            return partial(self._forwarder.read, handler=operation.handler)
        if KEY in headers and operation.repeats:
            most = self._context.settings.bounds.body_bytes
            return lambda context, request: context.idempotency.apply_once(
                context, request, operation.handler, most
            )
        return operation.handler

    def _let_in(self, operation: Operation, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        """Who calls; for what is public on this machine, that does not matter."""
        peer: Peer = scope.get("state", {}).get("peer", UNKNOWN)
        if operation.public and (peer.local or operation.public_everywhere):
            if not peer.local:
                self._pace.take(f"address {peer.host}")
            return ANONYMOUS
        if away := self._context.service.away:
            raise StoreUnavailable(f"{away}. Running jobs go on; try again in a moment")
        caller = self._caller(scope, headers)
        if not caller.may_change and operation.method not in READING:
            raise Forbidden(f"'{caller.user}' calls as a viewer, who changes nothing")
        return caller

    def _keep_refusal(
        self, scope: Scope, who: Caller, action: str, status: int, error: SchedulerError
    ) -> None:
        """Refused attempts go into the record."""
        method = scope.get("method", "GET")
        if not is_audited(method, status, error.code):
            return
        peer: Peer = scope.get("state", {}).get("peer", UNKNOWN)
        self.refusals.add(
            who=(who.user, who.origin or peer.host, who.via),
            action=action,
            target=scope["path"],
            why=(error.code, str(error)),
        )

    def _find(self, method: str, path: str) -> tuple[Operation, dict[str, str]]:
        params: dict[str, str] = {}
        methods = self._exact.get(path)
        if methods is None:
            for pattern, found in self._patterns:
                match = pattern.fullmatch(path)
                if match is not None:
                    methods, params = found, match.groupdict()
                    break
            else:
                raise UnknownThing(
                    f"there is nothing under {path[:200]!r}; /docs shows what there is"
                )
        operation = methods.get(method)
        if operation is None and method == "HEAD":
            operation = methods.get("GET")
        if operation is None:
            allowed = tuple(sorted(methods))
            raise MethodNotAllowed(
                f"{method} is not possible here; use {' or '.join(allowed)}", allowed=allowed
            )
        return operation, params

    def add(self, operations: Iterable[Operation]) -> None:
        """Serve these too."""
        by_path: dict[str, Methods] = {}
        for operation in operations:
            by_path.setdefault(operation.path, {})[operation.method] = operation
        for path, methods in by_path.items():
            if "{" in path:
                text = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
                self._patterns.append((re.compile(text), methods))
            else:
                self._exact[path] = methods

    # --- who, and from where

    def _caller(self, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        peer: Peer = scope.get("state", {}).get("peer", UNKNOWN)
        caller = self._found(peer, headers)
        if caller is None:
            raise Unauthenticated(
                "it is not known who is calling; call from this machine, over the Unix socket or "
                "127.0.0.1, or with a token ('Authorization: Bearer ...')"
            )
        if not caller.is_admin:
            self._pace.take(f"{caller.user} {caller.via}")
        return caller

    def _found(self, peer: Peer, headers: dict[bytes, bytes]) -> Caller | None:
        try:
            for authenticator in self._authenticators:
                caller = authenticator.caller(peer, headers)
                if caller is not None:
                    return caller
        except BadToken:
            self._pace.take(f"address {peer.host}")
            raise
        return None

    def _check_passed_on(self, headers: dict[bytes, bytes]) -> None:
        """What another server has passed on is for the leader alone.

        The leader takes the voucher off when it believes it. Who finds one here would take the
        server at the other end, which may be root, for the caller.
        """
        if VOUCHED in headers or (self._forwarder is not None and FORWARDED_HEADER in headers):
            raise NotLeader("this server does not lead (any more); what was passed on was not done")

    def _check_origin(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """The server must have been called by one of its names, and from no other site."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        peer: Peer = scope.get("state", {}).get("peer", UNKNOWN)
        # What a client calls the host means something only where it is known by what it is: no
        # browser reaches a Unix socket, sends a token unasked, or is anybody from elsewhere.
        is_known = peer.local and not peer.unix and b"authorization" not in headers
        if is_known and _name(host) not in self._names:
            raise Forbidden(
                f"'{host[:100]}' is not a name of this server; call it localhost, or add the "
                "name to its settings (api.host_names)"
            )
        origin = headers.get(b"origin")
        if origin is not None:
            scheme, _, place = origin.decode("latin-1").lower().partition("://")
            if scheme not in {"http", "https"} or place != host:
                raise Forbidden("a page of another site may not call this server (Origin)")

    # --- WebSockets

    async def _socket(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        caller, action = ANONYMOUS, EVENTS
        try:
            headers = dict(scope["headers"])
            self._check_passed_on(headers)
            self._check_origin(scope, headers)
            action, params = self._socket_at(scope["path"])
            find = partial(self._caller, scope, headers)
            caller = await self._context.directory.when_known(find)
            request = Request(
                scope, receive, caller=caller, headers=headers, params=params, request_id=request_id
            )
            await self._server_of(action)(request, receive, send)
        except SchedulerError as error:
            response = self._refusal(error, request_id, scope["path"])
            self._keep_refusal(scope, caller, action, response.status, error)
            await send_response(response, receive, send, request_id, kind=SOCKET_REFUSED)
        except (TimeoutError, OSError):
            return
        except Exception:
            log.exception("a WebSocket failed", request_id=request_id, path=scope["path"])

    def _socket_at(self, path: str) -> tuple[str, dict[str, str]]:
        """What is served as a WebSocket under a path, and what the path names."""
        if path == EVENTS_PATH and self._has_sockets:
            return EVENTS, {}
        if (match := TERMINAL_PATTERN.fullmatch(path)) is not None and self._has_sockets:
            return TERMINAL, match.groupdict()
        raise UnknownThing(
            f"there is no WebSocket here; use {EVENTS_PATH}, or that of a job's terminal"
        )

    def _server_of(self, action: str) -> Callable[[Request, Receive, Send], Awaitable[None]]:
        if action == EVENTS:
            return self.sockets.serve
        if self._forwarder is None:
            return self.terminals.serve
        return partial(self._forwarder.socket, self._context)

    def _refusal(self, error: SchedulerError, request_id: str, path: str) -> Response:
        status, form = error_form(error)
        if isinstance(error, InternalError) or status == 500:
            log.error("a request failed", request_id=request_id, path=path, error=str(error))
            form = internal_error_form(request_id)
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if isinstance(error, TooFast):
            headers += ((b"retry-after", str(error.retry_after_s).encode()),)
        elif status in RETRY_AFTER:
            headers += ((b"retry-after", RETRY_AFTER[status].encode()),)
        if isinstance(error, Unauthenticated):
            headers += ((b"www-authenticate", b'Bearer realm="gpu-scheduler"'),)
        if isinstance(error, TooSlow):
            headers += ((b"connection", b"close"),)
        if isinstance(error, MethodNotAllowed):
            headers += ((b"allow", ", ".join(error.allowed).encode()),)
        return Response(encode(form), status=status, headers=headers)


def _name(host: str) -> str:
    """The host's name without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
