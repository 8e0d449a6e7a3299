"""Browser sessions: a token in, an opaque cookie out that stands for it.

The page cannot read the cookie (HttpOnly), and browsers send it only with requests of our own pages
(SameSite=Strict; the Origin is checked as well). With each request the cookie is replaced by the
token it stands for, so a revoked or expired token ends its sessions. Sessions are kept in memory:
after a restart, or at another server, a person logs in again.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from gpu_scheduler.wire.handshake import secret_hash

COOKIE = b"tgpu_session"
VALID_S = 12 * 3600
MOST_SESSIONS = 10_000
_ATTRIBUTES = "Path=/api/v1; HttpOnly; SameSite=Strict"


def _set_cookie(value: str, seconds: int, *, secure: bool) -> bytes:
    end = "; Secure" if secure else ""
    return f"{COOKIE.decode()}={value}; Max-Age={seconds}; {_ATTRIBUTES}{end}".encode()


NO_SESSION = _set_cookie("", 0, secure=False)
"""The Set-Cookie header that removes the cookie."""


class Sessions:
    """The open sessions of this server, by the hash of their cookie."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without sessions."""
        self._clock = clock
        self._open: OrderedDict[str, tuple[bytes, float]] = OrderedDict()

    def begin(self, authorization: bytes, *, secure: bool) -> bytes:
        """Remember an Authorization header, and return the Set-Cookie header that stands for it."""
        name = secrets.token_urlsafe(32)
        self._open[secret_hash(name)] = (authorization, self._clock() + VALID_S)
        while len(self._open) > MOST_SESSIONS:
            self._open.popitem(last=False)
        return _set_cookie(name, VALID_S, secure=secure)

    def end(self, headers: Mapping[bytes, bytes]) -> None:
        """Forget the session of a request."""
        self._open.pop(secret_hash(_cookie(headers)), None)

    def authorization(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """Return the Authorization header for which the cookie of a request stands, if any."""
        name = _cookie(headers)
        if not name:
            return None
        given = secret_hash(name)
        authorization, until = self._open.get(given, (None, 0.0))
        if until <= self._clock():
            self._open.pop(given, None)
            return None
        return authorization


def _cookie(headers: Mapping[bytes, bytes]) -> str:
    for part in headers.get(b"cookie", b"").split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == COOKIE:
            return value.decode("latin-1")
    return ""
