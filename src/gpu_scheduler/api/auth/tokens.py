"""Callers who show a token: one of ours, or one that an issuer whom we believe has signed.

Whoever shows something that is not believed is refused, even if the kernel could say who it is:
a token that is wrong should be noticed.
"""

from __future__ import annotations

import asyncio
import hashlib
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

PREFIX = "tgpu_"
"""What our secrets begin with, so that people and scanners know them when they see one."""
MOST_BYTES = 16 << 10
NOTE_USE_AFTER_S = 60.0


class Verifier(Protocol):
    """Believes what somebody else has signed, and says who that is."""

    def caller(self, text: str, origin: str) -> Caller:
        """Who shows this; raises `BadToken`."""
        ...


def hash_secret(secret: str) -> str:
    """What is kept of a secret. It has 256 bits of chance, so that a plain hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


class BearerAuthenticator:
    """Reads the Authorization header."""

    def __init__(
        self,
        service: Service,
        people: Directory,
        signed: Verifier | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`signed` takes care of tokens that are not ours."""
        self._service = service
        self._people = people
        self._signed = signed
        self._clock = clock
        self._noted: dict[str, float] = {}
        self._noting: set[asyncio.Future[None]] = set()

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Who shows a token; None if nobody does."""
        given = headers.get(b"authorization")
        if given is None:
            return None
        secret = _read_header(given)
        if secret.startswith(PREFIX):
            return self._known(secret, peer)
        if self._signed is not None:
            return self._signed.caller(secret, peer.host)
        raise BadToken(
            f"this is no token of this server, which begin with '{PREFIX}'", code="token_unknown"
        )

    def _known(self, secret: str, peer: Peer) -> Caller:
        state = self._service.core.state
        given = hash_secret(secret)
        if given not in state.token_ids:
            self._service.look_for_tokens()
        token = state.tokens.get(state.token_ids.get(given, ""))
        if token is None or not hmac.compare_digest(token.secret_hash, given):
            raise BadToken("this token is not known here", code="token_unknown")
        if token.revoked_ms:
            raise BadToken(f"token {token.id} has been revoked", code="token_revoked")
        if token.expires_ms <= self._service.now_ms():
            raise BadToken(
                f"token {token.id} has expired; make another with 'tgpu token create'",
                code="token_expired",
            )
        caller = self._as_its_user(token, peer)
        self._note_use(token)
        return caller

    def _as_its_user(self, token: Token, peer: Peer) -> Caller:
        account = self._people.named(token.user)
        if account is None or account.uid != token.uid:
            raise BadToken(
                f"token {token.id} is of '{token.user}' with uid {token.uid}, and there is no such "
                "account any more",
                code="token_without_user",
            )
        tenants = self._service.core.state.cluster.tenants
        if token.tenant not in tenants and token.tenant != DEFAULT_TENANT:
            raise WrongTenant(f"token {token.id} is for tenant '{token.tenant}', which is gone")
        caller = confined_caller(account, token.role, token.tenant, peer.host, f"token {token.id}")
        return self._worth_as_much(token, caller) if token.self_made else caller

    def _worth_as_much(self, token: Token, caller: Caller) -> Caller:
        """What people make for themselves is worth no more than they are at the moment."""
        maker = self._people.caller(token.uid)
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

    def _note_use(self, token: Token) -> None:
        now = self._clock()
        if now < self._noted.get(token.id, 0.0):
            return
        self._noted[token.id] = now + NOTE_USE_AFTER_S
        noting = asyncio.ensure_future(self._keep_use(token.id))
        self._noting.add(noting)
        noting.add_done_callback(self._noting.discard)

    async def _keep_use(self, token_id: str) -> None:
        with suppress(SchedulerError):
            await self._service.apply(UseToken(token_id), SYSTEM)


def confined_caller(account: Account, role: Role, tenant: str, origin: str, via: str) -> Caller:
    """An account as far as one tenant goes."""
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
            "the Authorization header cannot be read; send 'Authorization: Bearer TOKEN'",
            code="token_unreadable",
        )
    return text.decode("ascii")
