"""The JSON schemas of tokens, node keys and the audit log."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gpu_scheduler.model.identity import Role

Account = Annotated[str, Meta(max_length=256)]


class TokenRequest(Struct, forbid_unknown_fields=True):
    """A token to create. `user` and `tenant_id` default to those of the caller."""

    tenant_id: Annotated[str, Meta(max_length=256)] = ""
    role: Role = Role.USER
    user: Account = ""
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


NodeName = Annotated[str, Meta(max_length=63, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class JoinTokenRequest(Struct, forbid_unknown_fields=True):
    """A token for new nodes: for `uses` nodes, or only for those in `nodes`."""

    uses: Annotated[int, Meta(ge=1, le=100_000)] = 1
    nodes: Annotated[list[NodeName], Meta(max_length=10_000)] = []
    name: Annotated[str, Meta(max_length=256)] = ""
    expires_in_seconds: Annotated[float, Meta(gt=0, le=36_500 * 86_400)] = 3600


class JoinTokenForm(Struct):
    """A token for new nodes. `state` is active, expired, revoked or used up."""

    id: str
    name: str
    nodes: list[str]
    uses: int
    used: int
    state: str
    created_by: str
    created_at: str | None
    expires_at: str | None
    revoked_at: str | None


class NewJoinToken(JoinTokenForm, kw_only=True):
    """A new token with its secret, which is shown only once."""

    token: str


class JoinTokenList(Struct):
    """All tokens for new nodes, the newest first."""

    tokens: list[JoinTokenForm]


class NodeKeyForm(Struct):
    """The key of a node. `state` is active, expired or revoked."""

    node: str
    fingerprint: str
    state: str
    token_id: str
    issued_at: str | None
    expires_at: str | None
    revoked_at: str | None


class NodeKeyList(Struct):
    """The keys of all nodes that have joined, by name; the authority's pin and certificate."""

    keys: list[NodeKeyForm]
    pin: str
    authority: str


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
