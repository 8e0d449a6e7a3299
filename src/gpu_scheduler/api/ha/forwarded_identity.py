"""A server vouches for a caller whom its own kernel has named, and the leader believes it.

Callers with a token need nobody: their token is passed on, and the leader looks at it itself. Who
comes over a Unix socket or loopback is known only to the machine it came to, so that server signs
what it found out (uid, gid, name), together with the whole request, the term and the database's
time. The key lies in the database, where only servers get to; whoever could read it there could
change the jobs themselves. A signature holds for one request, in one term, once, for some seconds.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import structlog

from gpu_scheduler.api.auth.accounts import Accounts
from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.ha.gate import AsgiApp, LeadershipStatus
from gpu_scheduler.api.http.errors import error_form
from gpu_scheduler.api.http.idempotency import HEADER as KEY
from gpu_scheduler.api.http.request import (
    SOCKET_REFUSED,
    ClientGone,
    Request,
    Response,
    encode,
    send_response,
)
from gpu_scheduler.model.errors import CallerError, NotLeader, SchedulerError
from gpu_scheduler.model.identity import Caller

HEADER = b"x-tgpu-vouched"
HOLDS_MS = 30_000
MOST_BYTES = 4096
MOST_REMEMBERED = 100_000


class NotVouched(CallerError):
    """What was said about a caller is not believed."""

    code = "not_vouched"


class ForwardedIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who asks, according to which server, for what, when."""

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
class Asked:
    """A request, as far as it is signed."""

    method: bytes
    target: bytes
    body: bytes
    key: bytes = b""

    @property
    def digest(self) -> str:
        """One name for all of it; lengths keep its parts apart."""
        hashed = hashlib.sha256()
        for part in (self.method, self.target, self.key, self.body):
            hashed.update(len(part).to_bytes(8, "big"))
            hashed.update(part)
        return hashed.hexdigest()


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(ForwardedIdentity)


def sign_identity(
    secret: bytes, peer: Peer, user: str, asked: Asked, *, server: str, term: int, at_ms: int
) -> bytes:
    """The header that says who asks; `user` is what the peer's account is called here."""
    if peer.uid is None:
        raise NotVouched("it is not known who is calling")
    voucher = ForwardedIdentity(
        uid=peer.uid,
        gid=peer.gid,
        user=user,
        origin=peer.host,
        server=server,
        term=term,
        at_ms=at_ms,
        nonce=secrets.token_hex(16),
        request=asked.digest,
    )
    text = base64.urlsafe_b64encode(_ENCODER.encode(voucher))
    return text + b"." + _signature(secret, text)


class IdentityVerifier:
    """The leader's side: believes each voucher once."""

    def __init__(self, secret: bytes, term: int) -> None:
        """For one term."""
        self._secret = secret
        self._term = term
        self._seen: dict[str, int] = {}

    def peer(self, voucher: ForwardedIdentity, asked: Asked, now_ms: int) -> Peer:
        """Who asks, if it was signed for this very request; raises `NotVouched`.

        What was signed for another term raises `NotLeader`: it can be signed and sent again.
        """
        if voucher.request != asked.digest:
            raise NotVouched("another request was signed than came; is something in between?")
        if voucher.term != self._term:
            raise NotLeader(
                f"it was signed for the leader of term {voucher.term}, and this is {self._term}"
            )
        if abs(now_ms - voucher.at_ms) > HOLDS_MS:
            raise NotVouched("it was signed too long ago, or by another clock")
        if voucher.nonce in self._seen:
            raise NotVouched("it was sent before")
        self._remember(voucher.nonce, now_ms)
        origin = f"{voucher.origin} of {voucher.server}"
        return Peer(uid=voucher.uid, gid=voucher.gid, unix=True, host=origin)

    def read(self, header: bytes) -> ForwardedIdentity:
        """What a server of this cluster has signed; raises `NotVouched`."""
        text, _, signature = header.partition(b".")
        if len(header) > MOST_BYTES or not hmac.compare_digest(
            signature, _signature(self._secret, text)
        ):
            raise NotVouched("no server of this cluster has signed this")
        try:
            return _DECODER.decode(base64.urlsafe_b64decode(text))
        except (msgspec.MsgspecError, ValueError):
            raise NotVouched(
                "what was signed cannot be read; are all servers of one version?"
            ) from None

    def _remember(self, nonce: str, now_ms: int) -> None:
        if len(self._seen) >= MOST_REMEMBERED:
            oldest_ms = now_ms - 2 * HOLDS_MS
            self._seen = {one: at_ms for one, at_ms in self._seen.items() if at_ms > oldest_ms}
        self._seen[nonce] = now_ms


def check_account(voucher: ForwardedIdentity, accounts: Accounts) -> None:
    """One uid must be one person everywhere, or jobs would run as somebody else.

    Raises `NotVouched` if it is not, `LookupPending` if that has to be waited for.
    """
    here = accounts.of(voucher.uid, voucher.gid).name
    account = accounts.named(voucher.user)
    if here != voucher.user or (account is not None and account.uid != voucher.uid):
        raise NotVouched(
            f"uid {voucher.uid} is '{voucher.user}' on server '{voucher.server}' and '{here}' on "
            "the leader; give accounts the same uids on all servers, or use a token"
        )


def _signature(secret: bytes, text: bytes) -> bytes:
    return hmac.new(secret, b"gpu-scheduler voucher\n" + text, hashlib.sha256).hexdigest().encode()


# --- The leader takes requests that a standby passes on: whom that one vouches for is believed.

ANONYMOUS = Caller(user="")
log = structlog.get_logger("api")

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class ForwardedIdentityMiddleware:
    """Puts the caller that was vouched for in the place of the server that passes it on."""

    def __init__(
        self,
        application: AsgiApp,
        vouched: IdentityVerifier,
        standing: LeadershipStatus,
        most_bytes: int,
        accounts: Accounts | None = None,
    ) -> None:
        """Bodies of more than `most_bytes` are refused."""
        self._application = application
        self._vouched = vouched
        self._standing = standing
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
            scope, body = await self._believed(scope, headers, receive)
        except ClientGone:
            return
        except SchedulerError as error:
            if isinstance(error, NotVouched):
                log.warning("a request that was passed on is refused", why=str(error))
            status, form = error_form(error)
            kind = SOCKET_REFUSED if is_socket else "http.response"
            response = Response(encode(form), status=status)
            await send_response(response, receive, send, "vouched", kind=kind)
            return
        await self._application(scope, receive if is_socket else _replayed(body, receive), send)

    async def _believed(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive
    ) -> tuple[Scope, bytes]:
        voucher = self._vouched.read(headers.pop(HEADER))
        body = b""
        if scope["type"] == "http":
            request = Request(
                scope, receive, caller=ANONYMOUS, headers=headers, params={}, request_id=""
            )
            body = await request.body(self._most_bytes)
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        asked = Asked(
            method=scope.get("method", "GET").encode(),
            target=target,
            body=body,
            key=headers.get(KEY, b""),
        )
        peer = self._vouched.peer(voucher, asked, self._standing.database_ms())
        await self._accounts.when_known(partial(check_account, voucher, self._accounts))
        kept = [(name, value) for name, value in scope["headers"] if name != HEADER]
        return {**scope, "headers": kept, "state": {"peer": peer}}, body


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, then what really comes."""
    is_given = False

    async def again() -> Any:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
