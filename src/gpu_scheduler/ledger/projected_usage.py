"""The GPU time that running attempts are about to use, for fair share.

An attempt counts from its start as if it had run for up to an hour. Decayed usage grows only with
time: without the projection, an account could start job after job before its use shows.
Attempts and `now_ms` come in; milli-GPU-ms come out, as integers. What an attempt has used so far
is not part of its projection, so the sum of both hardly changes during that hour.
"""

from __future__ import annotations

from heapq import heappop, heappush

from gpu_scheduler.ledger.decayed_usage import Account


class ProjectedUsage:
    """Projections of attempts by account, with logarithmic work per attempt."""

    def __init__(self) -> None:
        """Start without attempts."""
        self._attempts: dict[str, tuple[tuple[Account, ...], int, int]] = {}
        self._ends: list[tuple[int, str]] = []
        self._sums: dict[Account, tuple[int, int]] = {}
        """By account: milli-GPUs, and milli-GPUs times the ends of the projections."""

    def add(
        self, attempt_id: str, accounts: tuple[Account, ...], gpu_milli: int, until_ms: int
    ) -> None:
        """Project an attempt for these accounts until a time."""
        if gpu_milli:
            self._attempts[attempt_id] = (accounts, gpu_milli, until_ms)
            heappush(self._ends, (until_ms, attempt_id))
            self._change(accounts, gpu_milli, until_ms)

    def remove(self, attempt_id: str) -> None:
        """The attempt has ended, or its projection has; ignored if it is not projected."""
        found = self._attempts.pop(attempt_id, None)
        if found is not None:
            accounts, gpu_milli, until_ms = found
            self._change(accounts, -gpu_milli, until_ms)

    def at(self, account: Account, now_ms: int) -> int:
        """What the attempts of an account are about to use, in milli-GPU-ms."""
        while self._ends and self._ends[0][0] <= now_ms:
            self.remove(heappop(self._ends)[1])
        gpu_milli, ends = self._sums.get(account, (0, 0))
        return ends - gpu_milli * now_ms

    def _change(self, accounts: tuple[Account, ...], gpu_milli: int, until_ms: int) -> None:
        for account in accounts:
            held, ends = self._sums.get(account, (0, 0))
            held, ends = held + gpu_milli, ends + gpu_milli * until_ms
            if held:
                self._sums[account] = (held, ends)
            else:
                del self._sums[account]
