"""How much one user may have open at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpu_scheduler.api.failures import TooMany


class Slots:
    """So many for each user, of one kind."""

    def __init__(self, most: int, what: str) -> None:
        """`what` names the kind, in the plural."""
        self._most = most
        self._what = what
        self._open: dict[str, int] = {}

    @contextmanager
    def one_of(self, user: str) -> Iterator[None]:
        """Hold one while something is open; refuse if the user has all of them."""
        if self._open.get(user, 0) >= self._most:
            raise TooMany(
                f"this user has {self._most} {self._what} open, and no more are allowed; "
                "close one of them"
            )
        self._open[user] = self._open.get(user, 0) + 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
