"""API tokens (create, list, revoke), the audit log, and the caller's own identity."""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gpu_scheduler.api.auth.accounts import ROOT, Account
from gpu_scheduler.api.auth.peer_credentials import peer_in
from gpu_scheduler.api.auth.sessions import NO_SESSION
from gpu_scheduler.api.auth.tokens import PREFIX
from gpu_scheduler.api.context import Context, expect_admin
from gpu_scheduler.api.http.openapi import Parameter, Removed, Router, integer_parameter
from gpu_scheduler.api.http.request import Request, Response, encode, form_of, json_response
from gpu_scheduler.control.access.permissions import sees_token
from gpu_scheduler.control.messages import MakeToken, RevokeToken
from gpu_scheduler.model.errors import Forbidden, InvalidRequest, UnknownThing
from gpu_scheduler.model.identity import Caller, Role, Token
from gpu_scheduler.model.names import check_name
from gpu_scheduler.store.interface import AuditQuery
from gpu_scheduler.store.rows import AuditRow
from gpu_scheduler.wire.handshake import secret_hash
from gpu_scheduler.wire.times import read_time, write_time

AccountName = Annotated[str, Meta(max_length=256)]


class TokenRequest(Struct, forbid_unknown_fields=True):
    """A token to create. `user` and `tenant_id` default to those of the caller."""

    tenant_id: Annotated[str, Meta(max_length=256)] = ""
    role: Role = Role.USER
    user: AccountName = ""
    name: Annotated[str, Meta(max_length=256)] = ""
    expires_in_seconds: Annotated[float, Meta(gt=0, le=36_500 * 86_400)] = 30 * 86_400


class TokenForm(Struct):
    """A token. `state` is active, expired or revoked; times are null until they occur."""

    id: str
    name: str
    user: str
    tenant_id: str
    role: str
    state: str
    created_by: str
    created_at: str | None
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class NewToken(TokenForm, kw_only=True):
    """A new token with its secret, which is shown only once."""

    token: str


class TokenList(Struct):
    """The caller's tokens (for admins: all tokens), the newest first."""

    tokens: list[TokenForm]


class AuditForm(Struct):
    """An entry of the audit log. `outcome` is done, or refused with its `code`.

    `origin` is the caller's address, `via` how the caller was authenticated if not by the kernel.
    `count` is the number of equal entries, or of jobs in one request.
    """

    number: int
    at: str
    user: str
    origin: str
    via: str
    action: str
    target: str
    outcome: str
    code: str
    detail: str
    count: int


class AuditPage(Struct):
    """Entries, the newest first; the next page is `before` = `next_before`."""

    records: list[AuditForm]
    next_before: int | None = None


class Myself(Struct):
    """The caller as the server sees it."""

    user: str
    uid: int | None
    role: str
    tenant_id: str
    tenants: list[str]
    administers: list[str]
    via: str


SECRET_BYTES = 32
DAY_S = 86_400
DEFAULT_PAGE = 100


router = Router("access")


@router.operation(
    "POST",
    "/tokens",
    body=TokenRequest,
    response=NewToken,
    status=201,
    errors=(403, 404, 413, 415, 503),
    example={"tenant_id": "vision", "role": "user", "expires_in_seconds": 2592000},
)
async def create_token(context: Context, request: Request) -> Response:
    """Create a token for callers from other machines; its secret is shown only once."""
    caller = request.caller
    body = await request.read_json(TokenRequest, context.settings.bounds.body_bytes)
    check_new_token(context, caller, body.name, body.expires_in_seconds)
    directory = context.directory
    account = await directory.accounts.wait_for(lambda: _account(context, request, body))
    tenant = context.submit_tenant(caller, body.tenant_id)
    if not body.tenant_id and account.uid != caller.uid:
        tenant = (await directory.accounts.wait_for(lambda: directory.caller(account.uid))).tenant
    now_ms = context.service.now_ms()
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    token = Token(
        id=f"tok-{secrets.token_hex(4)}",
        secret_hash=secret_hash(secret),
        name=body.name,
        user=account.name,
        uid=account.uid,
        tenant=tenant,
        role=body.role,
        created_by=caller.user,
        created_ms=now_ms,
        expires_ms=now_ms + round(body.expires_in_seconds * 1000),
    )
    await context.service.apply(MakeToken(token), caller)
    shown = msgspec.structs.asdict(_form(token, now_ms))
    return json_response(NewToken(**shown, token=secret), status=201)


def check_new_token(context: Context, caller: Caller, name: str, valid_seconds: float) -> None:
    """Reject a new API token or join token with a bad name or lifetime, or made with a token."""
    if caller.via:
        raise Forbidden("a token cannot be created with a token; create it on the server's machine")
    if name:
        check_name(name, "the name of a token")
    most_days = context.settings.max_token_days
    if valid_seconds > most_days * DAY_S:
        raise InvalidRequest(
            f"the token would be valid for {valid_seconds / DAY_S:g} days; at most "
            f"{most_days:g} are allowed (auth.max_token_days)"
        )


def _account(context: Context, request: Request, body: TokenRequest) -> Account:
    """Return the account of the token's jobs; root only if it is named."""
    caller = request.caller
    if caller.uid == ROOT and not body.user:
        raise InvalidRequest(
            "whose token should it be? jobs sent with it run as that user; name one with --user, "
            "and only if you mean it, root"
        )
    name = body.user or caller.user
    account = context.directory.accounts.named(name)
    if account is None:
        raise InvalidRequest(f"there is no account '{name[:80]}' on this machine")
    if account.uid == ROOT and caller.uid != ROOT:
        raise Forbidden("only root can make a token of root")
    server_uid = context.settings.server_uid
    if server_uid not in {ROOT, account.uid} and body.role is not Role.VIEWER:
        raise Forbidden(
            f"this server does not run as root, so it runs jobs only as uid {server_uid}, and "
            f"'{account.name}' has uid {account.uid}; only a viewer's token is possible"
        )
    return account


@router.operation("GET", "/tokens", response=TokenList)
async def list_tokens(context: Context, request: Request) -> Response:
    """Your tokens (admins: all), without their secrets."""
    context.parse_query(request)
    caller = request.caller
    now_ms = context.service.now_ms()
    tokens = await asyncio.to_thread(context.service.store.tokens)
    seen = [token for token in tokens if sees_token(caller, token)]
    seen.sort(key=lambda token: (-token.created_ms, token.id))
    return json_response(TokenList([_form(token, now_ms) for token in seen]))


@router.operation("DELETE", "/tokens/{token_id}", response=Removed, errors=(403, 404, 409, 503))
async def revoke_token(context: Context, request: Request) -> Response:
    """Revoke a token; requests with it are rejected from now on."""
    context.parse_query(request)
    token_id = request.params["token_id"]
    if len(token_id) > 64 or not token_id.isprintable():
        raise UnknownThing("this is not the id of a token; 'tgpu token list' shows yours")
    await context.service.apply(RevokeToken(token_id), request.caller)
    return json_response(Removed(id=token_id, message="Token revoked", status="revoked"))


def _form(token: Token, now_ms: int) -> TokenForm:
    state = "expired" if token.expires_ms <= now_ms else "active"
    return form_of(
        TokenForm,
        token,
        tenant_id=token.tenant,
        state="revoked" if token.revoked_ms else state,
        created_at=write_time(token.created_ms),
        expires_at=write_time(token.expires_ms),
        last_used_at=write_time(token.last_used_ms or None),
        revoked_at=write_time(token.revoked_ms or None),
    )


@router.operation(
    "GET",
    "/audit",
    response=AuditPage,
    query=(
        Parameter(name="user", description="Only of this user."),
        Parameter(name="action", description="Only this, such as submit or cancel."),
        Parameter(name="outcome", description="done or refused."),
        Parameter(name="since", description="At this time or later."),
        integer_parameter("before", "`next_before` of the page before."),
        integer_parameter("limit", "How many records at most.", least=1, most=1000),
    ),
    errors=(403,),
)
async def list_audit(context: Context, request: Request) -> Response:
    """The audit log: changes and rejected requests, newest first (for admins)."""
    expect_admin(request.caller, "read the audit log")
    query = context.parse_query(request, "user", "action", "outcome", "since", "before", "limit")
    since = query.text("since")
    limit = query.number("limit", DEFAULT_PAGE, least=1, most=context.settings.bounds.page)
    audit_query = AuditQuery(
        user=query.text("user"),
        action=query.text("action"),
        outcome=query.text("outcome"),
        since_ms=read_time(since, "since") if since else 0,
        before=query.optional("before"),
        limit=limit,
    )
    # There may be millions of rows and no index: read them in a thread.
    rows = await asyncio.to_thread(context.service.store.audit, audit_query)
    more = rows[-1][0] if len(rows) == limit else None
    return json_response(AuditPage([_record(number, row) for number, row in rows], more))


def _record(number: int, row: AuditRow) -> AuditForm:
    return form_of(AuditForm, row, number=number, at=write_time(row.at_ms) or "", count=row.times)


class SessionForm(Struct):
    """Whose session has begun or ended."""

    user: str
    status: str


@router.operation("POST", "/session", response=SessionForm, status=201, stays_here=True)
async def begin_session(context: Context, request: Request) -> Response:
    """Exchange the token of this request (Authorization) for a cookie, for browsers.

    The cookie is opaque and HttpOnly, and is valid for 12 hours at this server, or until the token
    expires or is revoked.
    """
    context.parse_query(request)
    token = request.headers.get(b"authorization")
    if token is None:
        raise InvalidRequest(
            "send a token ('Authorization: Bearer ...') to begin a session with it"
        )
    user, peer = request.caller.user, peer_in(request.scope)
    cookie = context.sessions.begin(token, user, peer, secure=request.scope["scheme"] == "https")
    form = SessionForm(user, "begun")
    return Response(encode(form), status=201, headers=((b"set-cookie", cookie),))


@router.operation("DELETE", "/session", response=SessionForm, stays_here=True)
async def end_session(context: Context, request: Request) -> Response:
    """End the session of this browser."""
    context.parse_query(request)
    context.sessions.end(request.headers)
    form = SessionForm(request.caller.user, "ended")
    return Response(encode(form), headers=((b"set-cookie", NO_SESSION),))


@router.operation("GET", "/me", response=Myself)
async def who_am_i(context: Context, request: Request) -> Response:
    """Your identity, and the tenants you may submit to."""
    context.parse_query(request)
    caller = request.caller
    return json_response(
        form_of(
            Myself,
            caller,
            tenant_id=caller.tenant,
            tenants=sorted(caller.tenants),
            administers=sorted(caller.administers),
        )
    )
