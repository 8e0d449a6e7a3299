"""Bearer tokens: API tokens of this server, and JWTs if the settings name an issuer.

A request with an invalid token is rejected even if the kernel could identify its caller: an invalid
token should be noticed.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from gpu_scheduler.api.auth.accounts import Account, Directory
from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.http.errors import BadToken, WrongTenant
from gpu_scheduler.api.interfaces import Service
from gpu_scheduler.control.messages import UseToken
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.model.identity import DEFAULT_TENANT, SYSTEM, Caller, Role, Token
from gpu_scheduler.wire.handshake import secret_hash

PREFIX = "tgpu_"
"""The beginning of API tokens, so that people and secret scanners recognise them."""
MOST_BYTES = 16 << 10
RECORD_USE_S = 60.0


class Verifier(Protocol):
    """Verifies tokens that another issuer has signed."""

    def caller(self, text: str, origin: str) -> Caller:
        """Return the caller that the token names; raises `BadToken`."""
        ...


class BearerAuthenticator:
    """Authenticates callers by the Authorization header."""

    def __init__(
        self,
        service: Service,
        directory: Directory,
        verifier: Verifier | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`verifier` checks tokens that are not API tokens of this server."""
        self._service = service
        self._directory = directory
        self._verifier = verifier
        self._clock = clock
        self._record_after: dict[str, float] = {}
        self._recording: set[asyncio.Future[None]] = set()

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Return the caller of a token; None without a token."""
        given = headers.get(b"authorization")
        if given is None:
            return None
        secret = _read_header(given)
        if secret.startswith(PREFIX):
            return self._token_caller(secret, peer)
        if self._verifier is not None:
            return self._verifier.caller(secret, peer.host)
        raise BadToken(
            f"this is not a token of this server; those begin with '{PREFIX}'", code="token_unknown"
        )

    def _token_caller(self, secret: str, peer: Peer) -> Caller:
        state = self._service.core.state
        given = secret_hash(secret)
        if given not in state.token_ids:
            self._service.look_for_tokens()
        token = state.tokens.get(state.token_ids.get(given, ""))
        if token is None or not hmac.compare_digest(token.secret_hash, given):
            raise BadToken("this token is unknown", code="token_unknown")
        if token.revoked_ms:
            raise BadToken(f"token {token.id} has been revoked", code="token_revoked")
        if token.expires_ms <= self._service.now_ms():
            raise BadToken(
                f"token {token.id} has expired; make another with 'tgpu token create'",
                code="token_expired",
            )
        caller = self._user_of(token, peer)
        self._record_use(token)
        return caller

    def _user_of(self, token: Token, peer: Peer) -> Caller:
        account = self._directory.accounts.named(token.user)
        if account is None or account.uid != token.uid:
            raise BadToken(
                f"token {token.id} belongs to '{token.user}' with uid {token.uid}, and there is no "
                "such account any more",
                code="token_without_user",
            )
        tenants = self._service.core.state.cluster.tenants
        if token.tenant not in tenants and token.tenant != DEFAULT_TENANT:
            raise WrongTenant(f"token {token.id} is for tenant '{token.tenant}', which is gone")
        caller = confined_caller(account, token.role, token.tenant, peer.host, f"token {token.id}")
        return self._limit_to_creator(token, caller) if token.self_made else caller

    def _limit_to_creator(self, token: Token, caller: Caller) -> Caller:
        """Limit a token that its user created to what that user may do now."""
        maker = self._directory.caller(token.uid)
        if maker.is_admin:
            return caller
        if token.tenant not in maker.tenants:
            raise WrongTenant(
                f"token {token.id} is for tenant '{token.tenant}', and '{token.user}' does not "
                "belong to it any more"
            )
        most = Role.TENANT_ADMIN if token.tenant in maker.administers else Role.USER
        if caller.role.rank > most.rank:
            return replace(caller, role=most, administers=maker.administers & {token.tenant})
        return caller

    def _record_use(self, token: Token) -> None:
        """Store when the token was last used, at most once a minute."""
        now = self._clock()
        if now < self._record_after.get(token.id, 0.0):
            return
        self._record_after[token.id] = now + RECORD_USE_S
        recording = asyncio.ensure_future(self._store_use(token.id))
        self._recording.add(recording)
        recording.add_done_callback(self._recording.discard)

    async def _store_use(self, token_id: str) -> None:
        with suppress(SchedulerError):
            await self._service.apply(UseToken(token_id), SYSTEM)


def confined_caller(account: Account, role: Role, tenant: str, origin: str, via: str) -> Caller:
    """Return a caller that is limited to one tenant."""
    only = frozenset({tenant})
    return Caller(
        user=account.name,
        uid=account.uid,
        gid=account.gid,
        role=role,
        tenant=tenant,
        tenants=only,
        administers=only if role is Role.TENANT_ADMIN else frozenset(),
        confined=True,
        origin=origin,
        via=via,
    )


def _read_header(given: bytes) -> str:
    scheme, _, secret = given.partition(b" ")
    text = secret.strip()
    if scheme.lower() != b"bearer" or not text or len(text) > MOST_BYTES or not text.isascii():
        raise BadToken(
            "the Authorization header is not valid; send 'Authorization: Bearer TOKEN'",
            code="token_unreadable",
        )
    return text.decode("ascii")
