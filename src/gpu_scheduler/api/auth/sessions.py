"""Browser sessions: a token in, an opaque cookie out that stands for it.

The page cannot read the cookie (HttpOnly), and browsers send it only with requests of our own pages
(SameSite=Strict; the Origin is checked as well). With each request the cookie is replaced by the
token it stands for, so a revoked or expired token ends its sessions. Sessions are kept in memory:
after a restart, or at another server, a person logs in again.

Browsers send a cookie to every port of a host, also to a server of another user there. So a cookie
is valid only for the kind of connection with which its session began: from other machines, or from
one user of this machine (as with `ssh -L`). A user has a bounded number of sessions.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.wire.handshake import secret_hash

COOKIE = b"tgpu_session"
VALID_S = 12 * 3600
MOST_SESSIONS = 10_000
MOST_OF_USER = 50
OTHER_MACHINE, UNKNOWN_PROCESS = -1, -2
_ATTRIBUTES = "Path=/api/v1; HttpOnly; SameSite=Strict"


def _set_cookie(value: str, seconds: int, *, secure: bool) -> bytes:
    end = "; Secure" if secure else ""
    return f"{COOKIE.decode()}={value}; Max-Age={seconds}; {_ATTRIBUTES}{end}".encode()


NO_SESSION = _set_cookie("", 0, secure=False)
"""The Set-Cookie header that removes the cookie."""


@dataclass(frozen=True, slots=True)
class _Session:
    """The header for which a cookie stands, and of whose connections."""

    authorization: bytes
    user: str
    origin: int
    until_s: float


class Sessions:
    """The open sessions of this server, by the hash of their cookie."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without sessions."""
        self._clock = clock
        self._open: OrderedDict[str, _Session] = OrderedDict()
        self._of_user: dict[str, OrderedDict[str, None]] = {}

    def begin(self, authorization: bytes, user: str, peer: Peer, *, secure: bool) -> bytes:
        """Remember an Authorization header, and return the Set-Cookie header that stands for it.

        The user's oldest session ends if there are too many; so one user ends none of others.
        """
        name = secrets.token_urlsafe(32)
        key, until_s = secret_hash(name), self._clock() + VALID_S
        self._open[key] = _Session(authorization, user, _origin(peer), until_s)
        own = self._of_user.setdefault(user, OrderedDict())
        own[key] = None
        if len(own) > MOST_OF_USER:
            self._drop(next(iter(own)))
        if len(self._open) > MOST_SESSIONS:
            self._drop(next(iter(self._open)))
        return _set_cookie(name, VALID_S, secure=secure)

    def end(self, headers: Mapping[bytes, bytes]) -> None:
        """Forget the session of a request."""
        self._drop(secret_hash(_cookie(headers)))

    def authorization(self, headers: Mapping[bytes, bytes], peer: Peer) -> bytes | None:
        """Return the Authorization header for which the cookie of a request stands, if any."""
        name = _cookie(headers)
        if not name:
            return None
        key = secret_hash(name)
        session = self._open.get(key)
        if session is None or session.origin != _origin(peer):
            return None
        if session.until_s <= self._clock():
            self._drop(key)
            return None
        return session.authorization

    def _drop(self, key: str) -> None:
        session = self._open.pop(key, None)
        if session is None:
            return
        own = self._of_user[session.user]
        del own[key]
        if not own:
            del self._of_user[session.user]


def _origin(peer: Peer) -> int:
    """The uid at the other end of a connection on this machine; another number if it has none."""
    if not peer.local:
        return OTHER_MACHINE
    return UNKNOWN_PROCESS if peer.uid is None else peer.uid


def _cookie(headers: Mapping[bytes, bytes]) -> str:
    for part in headers.get(b"cookie", b"").split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == COOKIE:
            return value.decode("latin-1")
    return ""
