"""Forwarded identity: a standby signs who called it, and the leader verifies the signature.

The standby forwards a token as it is, and the leader checks it. A caller on a Unix socket or
loopback is known only to the kernel of that machine. So the standby signs its uid, gid and name
together with the whole request, the term and the database's time. The signing key is in the
database, which only servers can read. A signature is valid for one request, in one term, once, for
some seconds.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import structlog

from gpu_scheduler.api.auth.accounts import Accounts
from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.ha.leadership_gate import LeadershipStatus
from gpu_scheduler.api.http.errors import error_form
from gpu_scheduler.api.http.idempotency import HEADER as KEY
from gpu_scheduler.api.http.request import (
    WEBSOCKET_RESPONSE,
    AsgiApp,
    ClientGone,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    encode,
    request_target,
    send_response,
)
from gpu_scheduler.model.errors import CallerError, NotLeader, SchedulerError
from gpu_scheduler.model.identity import Caller

HEADER = b"x-tgpu-vouched"
VALID_MS = 30_000
MOST_BYTES = 4096
MOST_NONCES = 100_000


class NotVouched(CallerError):
    """A forwarded identity is not valid."""

    code = "not_vouched"


class ForwardedIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who called which server, with which request, and when."""

    uid: int
    gid: int | None
    user: str
    origin: str
    server: str
    term: int
    at_ms: int
    nonce: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """The signed parts of a request."""

    method: bytes
    target: bytes
    body: bytes
    key: bytes = b""

    @property
    def digest(self) -> str:
        """A hash of all parts; their lengths keep them apart."""
        hashed = hashlib.sha256()
        for part in (self.method, self.target, self.key, self.body):
            hashed.update(len(part).to_bytes(8, "big"))
            hashed.update(part)
        return hashed.hexdigest()


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(ForwardedIdentity)


def sign_identity(
    secret: bytes,
    peer: Peer,
    user: str,
    request: SignedRequest,
    *,
    server: str,
    term: int,
    at_ms: int,
) -> bytes:
    """Return the header for a forwarded request; `user` is the account name of the peer here."""
    if peer.uid is None:
        raise NotVouched("the caller is not authenticated")
    identity = ForwardedIdentity(
        uid=peer.uid,
        gid=peer.gid,
        user=user,
        origin=peer.host,
        server=server,
        term=term,
        at_ms=at_ms,
        nonce=secrets.token_hex(16),
        request=request.digest,
    )
    text = base64.urlsafe_b64encode(_ENCODER.encode(identity))
    return text + b"." + _signature(secret, text)


class IdentityVerifier:
    """The leader's side: accepts each forwarded identity once."""

    def __init__(self, secret: bytes, term: int) -> None:
        """Accept identities that were signed for this term."""
        self._secret = secret
        self._term = term
        self._seen: dict[str, int] = {}

    def peer(self, identity: ForwardedIdentity, request: SignedRequest, now_ms: int) -> Peer:
        """Return the caller if the identity was signed for this request; raises `NotVouched`.

        An identity signed for another term raises `NotLeader`: it can be signed and sent again.
        """
        if identity.request != request.digest:
            raise NotVouched(
                "the signature is for another request; does something in between change requests?"
            )
        if identity.term != self._term:
            raise NotLeader(
                f"it was signed for the leader of term {identity.term}, and this is {self._term}"
            )
        if abs(now_ms - identity.at_ms) > VALID_MS:
            raise NotVouched("the signature is too old, or the clocks differ")
        if identity.nonce in self._seen:
            raise NotVouched("the same signature was sent before")
        self._remember(identity.nonce, now_ms)
        origin = f"{identity.origin} of {identity.server}"
        return Peer(uid=identity.uid, gid=identity.gid, unix=True, host=origin)

    def read(self, header: bytes) -> ForwardedIdentity:
        """Decode the header if a server of this cluster signed it; raises `NotVouched`."""
        text, _, signature = header.partition(b".")
        if len(header) > MOST_BYTES or not hmac.compare_digest(
            signature, _signature(self._secret, text)
        ):
            raise NotVouched("no server of this cluster signed this")
        try:
            return _DECODER.decode(base64.urlsafe_b64decode(text))
        except (msgspec.MsgspecError, ValueError):
            raise NotVouched(
                "the signed identity cannot be decoded; do all servers run the same version?"
            ) from None

    def _remember(self, nonce: str, now_ms: int) -> None:
        if len(self._seen) >= MOST_NONCES:
            oldest_ms = now_ms - 2 * VALID_MS
            self._seen = {one: at_ms for one, at_ms in self._seen.items() if at_ms > oldest_ms}
        self._seen[nonce] = now_ms


def check_account(identity: ForwardedIdentity, accounts: Accounts) -> None:
    """Check that the uid has the same name here, or jobs would run as another user.

    Raises `NotVouched` if it has not, `LookupPending` while the account is looked up.
    """
    here = accounts.of(identity.uid, identity.gid).name
    account = accounts.named(identity.user)
    if here != identity.user or (account is not None and account.uid != identity.uid):
        raise NotVouched(
            f"uid {identity.uid} is '{identity.user}' on server '{identity.server}' and '{here}' "
            "on the leader; give accounts the same uids on all servers, or use a token"
        )


def _signature(secret: bytes, text: bytes) -> bytes:
    return hmac.new(secret, b"gpu-scheduler voucher\n" + text, hashlib.sha256).hexdigest().encode()


ANONYMOUS = Caller(user="")
log = structlog.get_logger("api")


class ForwardedIdentityMiddleware:
    """ASGI middleware of the leader: replaces the forwarding server by the verified caller."""

    def __init__(
        self,
        application: AsgiApp,
        verifier: IdentityVerifier,
        leadership: LeadershipStatus,
        most_bytes: int,
        accounts: Accounts | None = None,
    ) -> None:
        """Reject bodies of more than `most_bytes`."""
        self._application = application
        self._verifier = verifier
        self._leadership = leadership
        self._most_bytes = most_bytes
        self._accounts = accounts or Accounts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        headers = dict(scope["headers"])
        if HEADER not in headers:
            await self._application(scope, receive, send)
            return
        is_socket = scope["type"] == "websocket"
        try:
            scope, body = await self._verified(scope, headers, receive)
        except ClientGone:
            return
        except SchedulerError as error:
            if isinstance(error, NotVouched):
                log.warning("forwarded request rejected", why=str(error))
            status, form = error_form(error)
            kind = WEBSOCKET_RESPONSE if is_socket else "http.response"
            response = Response(encode(form), status=status)
            await send_response(response, receive, send, "vouched", kind=kind)
            return
        await self._application(scope, receive if is_socket else _with_body(body, receive), send)

    async def _verified(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive
    ) -> tuple[Scope, bytes]:
        """Return the scope with the caller as its peer, and the request body."""
        identity = self._verifier.read(headers.pop(HEADER))
        body = b""
        if scope["type"] == "http":
            request = Request(
                scope, receive, caller=ANONYMOUS, headers=headers, params={}, request_id=""
            )
            body = await request.body(self._most_bytes)
        signed = SignedRequest(
            method=scope.get("method", "GET").encode(),
            target=request_target(scope),
            body=body,
            key=headers.get(KEY, b""),
        )
        peer = self._verifier.peer(identity, signed, self._leadership.database_ms())
        await self._accounts.wait_for(partial(check_account, identity, self._accounts))
        kept = [(name, value) for name, value in scope["headers"] if name != HEADER]
        return {**scope, "headers": kept, "state": {"peer": peer}}, body


def _with_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body that was read, then further messages."""
    is_sent = False

    async def receive_again() -> Any:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
