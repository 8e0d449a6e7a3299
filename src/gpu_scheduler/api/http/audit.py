"""What was refused, for the record: refusals come in, rows go out, those that are alike as one.

Somebody who tries a thousand times a second makes a row a second, not a thousand.
"""

from __future__ import annotations

import asyncio

from gpu_scheduler.api.interfaces import Service
from gpu_scheduler.control.access.audit import REFUSED
from gpu_scheduler.store.rows import AuditRow

TOGETHER_S = 1.0
MOST_KINDS = 200
"""So many different ones are told apart; further ones go by caller alone."""
MOST_TEXT = 200
ALWAYS = frozenset({401, 403, 429})
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_Key = tuple[str, str, str, str, str, str]


def is_audited(method: str, status: int, code: str) -> bool:
    """Tell whether a refusal belongs into the record: of access always, else of changes."""
    if status in ALWAYS:
        return True
    return method in CHANGING and (400 <= status < 500 or code == "queue_full")


class AuditLog:
    """Gathers for a second, then notes."""

    def __init__(self, service: Service) -> None:
        """Nothing was refused yet."""
        self._service = service
        self._counts: dict[_Key, tuple[int, int, str]] = {}

    def add(
        self, *, who: tuple[str, str, str], action: str, target: str, why: tuple[str, str]
    ) -> None:
        """One more. `who` is user, origin and via; `why` the code and the sentence."""
        code, detail = why
        key = (*who, action, _plain(target), code)
        if key not in self._counts and len(self._counts) >= MOST_KINDS:
            key = (*who, "(many)", "", code)
        at_ms, count, kept = self._counts.get(key, (self._service.now_ms(), 0, detail))
        if not self._counts:
            asyncio.get_running_loop().call_later(TOGETHER_S, self.flush)
        self._counts[key] = (at_ms, count + 1, kept)

    def flush(self) -> None:
        """Note all that was gathered."""
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
    """Short, and without characters that could steer a terminal or begin a new line."""
    return "".join(char if char.isprintable() else "?" for char in text[:MOST_TEXT])
