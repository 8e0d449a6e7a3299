"""GPU time per tenant and user in the week that runs, for budgets that last a week.

Charged intervals come in, sums come out. Only the last week of an account is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from gpu_scheduler.ledger.interval import UsageInterval
from gpu_scheduler.ledger.periods import Period
from gpu_scheduler.ledger.shares import Account, account_of, tenant_and_user

WeekRow: TypeAlias = tuple[str, str | None, int, int]
"""Tenant, user (None: the tenant itself), start of the week, GPU time in it."""


class WeekUse:
    """What each account has used since Monday."""

    def __init__(self) -> None:
        self._sums: dict[Account, tuple[int, int]] = {}
        self._changed: dict[Account, None] = {}

    def add(self, part: UsageInterval) -> None:
        """Count what was charged. What belongs to a week that is over is dropped."""
        if not part.gpu_milli:
            return
        for piece in part.pieces(Period.WEEK):
            week_ms = Period.WEEK.start_of(piece.start_ms)
            used = piece.gpu_milli * piece.duration_ms
            for account in (part.tenant, (part.tenant, part.user)):
                known_ms, total = self._sums.get(account, (week_ms, 0))
                if week_ms >= known_ms:
                    self._sums[account] = (week_ms, used + (total if week_ms == known_ms else 0))
                    self._changed[account] = None

    def spent(self, account: Account, at_ms: int) -> int:
        """GPU time of an account in the week that holds this moment."""
        week_ms, total = self._sums.get(account, (0, 0))
        return total if week_ms == Period.WEEK.start_of(at_ms) else 0

    def take_changed(self) -> list[WeekRow]:
        """What changed since this was last asked."""
        changed = [(*tenant_and_user(account), *self._sums[account]) for account in self._changed]
        self._changed.clear()
        return changed

    @classmethod
    def from_rows(cls, rows: Iterable[WeekRow]) -> WeekUse:
        """What was saved."""
        weeks = cls()
        for tenant, user, week_ms, total in rows:
            weeks._sums[account_of(tenant, user)] = (week_ms, total)
        return weeks
