"""Audit log of rejected requests: rejections in, one row per second for equal ones out.

A client that is rejected a thousand times a second makes one row a second, with a count.
"""

from __future__ import annotations

import asyncio

from gpu_scheduler.api.interfaces import Service
from gpu_scheduler.control.access.accepted_commands_audit import REFUSED
from gpu_scheduler.store.rows import AuditRow

FLUSH_S = 1.0
MOST_KINDS = 200
"""How many different rejections are kept apart; further ones are counted by caller only."""
MOST_TEXT = 200
ALWAYS_AUDITED = frozenset({401, 403, 429})
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_Key = tuple[str, str, str, str, str, str]


def is_audited(method: str, status: int, code: str) -> bool:
    """Whether a rejection is audited: always if access was denied, else only for changes."""
    if status in ALWAYS_AUDITED:
        return True
    return method in CHANGING and (400 <= status < 500 or code == "queue_full")


class AuditLog:
    """Collects rejections for a second, then writes them."""

    def __init__(self, service: Service) -> None:
        """The service writes the rows."""
        self._service = service
        self._counts: dict[_Key, tuple[int, int, str]] = {}

    def add(
        self, *, who: tuple[str, str, str], action: str, target: str, why: tuple[str, str]
    ) -> None:
        """Add a rejection. `who` is user, origin and via; `why` is error code and message."""
        code, detail = why
        key = (*who, action, _plain(target), code)
        if key not in self._counts and len(self._counts) >= MOST_KINDS:
            key = (*who, "(many)", "", code)
        at_ms, count, kept = self._counts.get(key, (self._service.now_ms(), 0, detail))
        if not self._counts:
            asyncio.get_running_loop().call_later(FLUSH_S, self.flush)
        self._counts[key] = (at_ms, count + 1, kept)

    def flush(self) -> None:
        """Write what was collected."""
        counts, self._counts = self._counts, {}
        for (user, origin, via, action, target, code), (at_ms, count, detail) in counts.items():
            self._service.note(
                AuditRow(
                    at_ms=at_ms,
                    user=user,
                    origin=origin,
                    via=via,
                    action=action,
                    target=target,
                    outcome=REFUSED,
                    code=code,
                    detail=_plain(detail),
                    times=count,
                )
            )


def _plain(text: str) -> str:
    """Shorten a text and replace control characters, which could manipulate a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text[:MOST_TEXT])
