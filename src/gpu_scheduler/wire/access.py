"""Tokens and the record of changes, as JSON says them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gpu_scheduler.model.caller import Role

Account = Annotated[str, Meta(max_length=256)]


class TokenRequest(Struct, forbid_unknown_fields=True):
    """A token to make. Without `user` it is the caller's own, without `tenant_id` for its own."""

    tenant_id: Annotated[str, Meta(max_length=256)] = ""
    role: Role = Role.USER
    user: Account = ""
    name: Annotated[str, Meta(max_length=256)] = ""
    expires_in_seconds: Annotated[float, Meta(gt=0, le=36_500 * 86_400)] = 30 * 86_400


class TokenForm(Struct):
    """A token. `state` is active, expired or revoked; times are null where nothing happened."""

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
    """A token that was just made, with its secret, which is told this once."""

    token: str


class TokenList(Struct):
    """The caller's tokens, for admins all of them, the newest first."""

    tokens: list[TokenForm]


class AuditForm(Struct):
    """Who changed what (`outcome` done), or tried to (refused, with its `code`).

    `origin` is from where, `via` by what the caller was known if not by the kernel. `count` stands
    for so many alike, or so many jobs at once.
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
    """Records, the newest first; go on with `before` = `next_before`."""

    records: list[AuditForm]
    next_before: int | None = None


class Myself(Struct):
    """Who the server takes the caller for."""

    user: str
    uid: int | None
    role: str
    tenant_id: str
    tenants: list[str]
    administers: list[str]
    via: str
