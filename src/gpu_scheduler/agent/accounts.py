"""What a login of a user would have: name, home and shell, from the accounts of this machine.

Those may live in a directory service that hangs, and a look-up cannot be ended. So each has a
thread of its own, is waited for only so long, and is not repeated while it hangs; what was found is
remembered for a while, and longer if nobody answers. The agent's loop never waits for any of it:
one account that is slow delays the starts of its own user, in their order, and nobody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import pwd
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

PATIENCE_S = 10.0
FRESH_S = 60.0
MOST_KNOWN = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """An account. Without a name nobody knows one for that uid."""

    name: str = ""
    home: str = "/"
    shell: str = "/bin/sh"


class NoAnswer(Exception):
    """The accounts of this machine could not be asked; the text says what to do."""


class Logins:
    """Accounts by uid."""

    def __init__(
        self,
        look_up: Callable[[int], Login] | None = None,
        *,
        patience_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look_up` may take as long as it likes."""
        self._look_up = look_up or login_of
        self._patience_s = PATIENCE_S if patience_s is None else patience_s
        self._clock = clock
        self._known: dict[int, tuple[float, Login]] = {}
        self._asked: dict[int, asyncio.Future[None]] = {}

    def known(self, uid: int) -> Login | None:
        """What was found a short time ago."""
        found = self._known.get(uid)
        return found[1] if found is not None and found[0] > self._clock() else None

    async def of(self, uid: int) -> Login:
        """The account of a uid; an older answer if there is none now, NoAnswer without one."""
        if (login := self.known(uid)) is not None:
            return login
        asked = self._asked.get(uid)
        if asked is None or asked.done():
            asked = self._asked[uid] = self._ask(uid)
        await asyncio.wait([asked], timeout=self._patience_s)
        found = self._known.get(uid)
        if found is None:
            raise NoAnswer(
                f"the account of uid {uid} could not be looked up within {self._patience_s:g} s on "
                "this node; does its directory service (SSSD, LDAP, NIS) answer?"
            )
        return found[1]

    def _ask(self, uid: int) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()

        def hear(login: Login | None) -> None:
            if login is not None:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[uid] = (self._clock() + FRESH_S, login)
            self._asked.pop(uid, None)
            if not answer.done():
                answer.set_result(None)

        def ask() -> None:
            login = None
            with contextlib.suppress(OSError):
                login = self._look_up(uid)
            # A loop that has ended hears nothing more, and need not.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(hear, login)

        threading.Thread(target=ask, name="login", daemon=True).start()
        return answer


def login_of(uid: int) -> Login:
    """What the system says, for as long as that takes."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return Login()
    return Login(name=found.pw_name, home=found.pw_dir, shell=found.pw_shell or Login().shell)


# --- Looking at directories of users, which may be on a file server that is gone.
#
# Such a look never comes back and cannot be ended. So it has a thread of its own and is waited for
# only shortly; while it hangs the same is not looked for again. One user's dead server then costs
# that user's jobs a moment, and nobody else anything.

STAT_TIMEOUT_S = 0.5
T = TypeVar("T")
_hanging: dict[str, threading.Thread] = {}


def looked(place: str, look: Callable[[], T], otherwise: T) -> T:
    """What a look at a place finds, or `otherwise` if that takes too long."""
    before = _hanging.get(place)
    if before is not None and before.is_alive():
        return otherwise
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(look()), name="look", daemon=True)
    thread.start()
    thread.join(STAT_TIMEOUT_S)
    if thread.is_alive():
        _hanging[place] = thread
        return otherwise
    _hanging.pop(place, None)
    return found[0] if found else otherwise
