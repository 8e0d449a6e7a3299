"""Decayed GPU usage of each account for fair share, with constant work per change.

Acquired and released GPUs and `now_ms` come in; decayed GPU time and a recent average come out, as
integers.
With half-life h and a rate r since dt, usage follows the closed form

    usage(now) = usage * 2**(-dt/h) + r * (1 - 2**(-dt/h)) * h / ln 2

About floats: sums of small decays need them, so usage is a float inside and is rounded to an
integer (half to even) when it is read. Only + - * / and square roots are used, which IEEE 754
fixes to the last bit; `exp` and `pow` differ between C libraries. So the same changes give the
same numbers on every machine, and saved rows restore them exactly.

`ProjectedUsage` adds the GPU time that running attempts are about to use: an attempt counts from
its start as if it had run for up to an hour. Decayed usage grows only with time; without the
projection, an account could start job after job before its use shows. What an attempt has used so
far is not part of its projection, so the sum of both hardly changes during that hour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

from gpu_scheduler.model.errors import InternalError, InvalidRequest

Account: TypeAlias = str | tuple[str, str]
"""A tenant, or a user of a tenant."""
ShareRow: TypeAlias = tuple[str, str | None, float, float, int, int]
"""Tenant, user (None: the tenant itself), usage, recent average, rate, as_of_ms."""

LN_2 = 0.6931471805599453
_STEPS = 1024
"""The steps per half-life in the table of powers."""
_LN_2_PER_STEP = LN_2 / _STEPS
_SIXTH = 1 / 6
_TWENTY_FOURTH = 1 / 24


@dataclass(slots=True)
class _Share:
    """The usage of one account at `as_of_ms`, and the milli-GPUs it has used since."""

    usage: float
    recent: float
    rate: int
    as_of_ms: int


class DecayedUsage:
    """Decayed usage of tenants and users.

    A change at an earlier time than the last one counts as made at that last time. No number is
    ever negative.
    """

    def __init__(self, *, half_life_ms: int, recent_half_life_ms: int) -> None:
        for name, span in (("half-life", half_life_ms), ("recent half-life", recent_half_life_ms)):
            if span < 1:
                raise InvalidRequest(f"the {name} of usage is {span} ms; it must be 1 or more")
        self._steps_per_ms = _STEPS / half_life_ms
        self._recent_steps_per_ms = _STEPS / recent_half_life_ms
        self._scale = half_life_ms / LN_2
        self._shares: dict[Account, _Share] = {}

    def hold(self, account: Account, gpu_milli: int, now_ms: int) -> None:
        """The account holds this much more from now on."""
        if gpu_milli < 0:
            raise InternalError(f"account {account} was to hold {gpu_milli} milli-GPU")
        share = self._shares.get(account)
        if share is None:
            self._shares[account] = _Share(0.0, 0.0, gpu_milli, now_ms)
            return
        self._settle(share, now_ms)
        share.rate += gpu_milli

    def release(
        self, account: Account, gpu_milli: int, now_ms: int, *, held_until_ms: int | None = None
    ) -> None:
        """The account holds this much less from now on.

        With `held_until_ms` the usage since that earlier time is subtracted again.
        """
        share = self._shares.get(account)
        held = share.rate if share is not None else 0
        if share is None or not 0 <= gpu_milli <= held:
            raise InternalError(
                f"account {account} holds {held} milli-GPU and was to release {gpu_milli}"
            )
        self._settle(share, now_ms)
        share.rate -= gpu_milli
        late_ms = 0 if held_until_ms is None else now_ms - held_until_ms
        if late_ms > 0:
            usage = gpu_milli * self._scale * _decayed_fraction(late_ms * self._steps_per_ms)
            share.usage = max(0.0, share.usage - usage)
            recent = gpu_milli * _decayed_fraction(late_ms * self._recent_steps_per_ms)
            share.recent = max(0.0, share.recent - recent)

    def correct(
        self, account: Account, gpu_milli: int, start_ms: int, end_ms: int, now_ms: int, sign: int
    ) -> None:
        """Count past time, from `start_ms` to `end_ms`, as used too (1), or as not used (-1)."""
        share = self._shares.get(account)
        if share is None:
            share = self._shares[account] = _Share(0.0, 0.0, 0, now_ms)
        self._settle(share, now_ms)
        for steps_per_ms, scale, name in (
            (self._steps_per_ms, self._scale, "usage"),
            (self._recent_steps_per_ms, 1.0, "recent"),
        ):
            gone = _decayed_fraction(max(0, share.as_of_ms - start_ms) * steps_per_ms)
            gone -= _decayed_fraction(max(0, share.as_of_ms - end_ms) * steps_per_ms)
            value = getattr(share, name) + sign * gpu_milli * scale * gone
            setattr(share, name, max(0.0, value))

    def held(self, account: Account) -> int:
        """Milli-GPU in use since the last change."""
        share = self._shares.get(account)
        return share.rate if share is not None else 0

    def usage_at(self, account: Account, now_ms: int) -> int:
        """Decayed GPU time in milli-GPU-ms."""
        share = self._shares.get(account)
        if share is None:
            return 0
        gone = _decayed_fraction(max(0, now_ms - share.as_of_ms) * self._steps_per_ms)
        return round(share.usage + (share.rate * self._scale - share.usage) * gone)

    def recent_at(self, account: Account, now_ms: int) -> int:
        """Recent average of milli-GPUs in use, by the shorter half-life."""
        share = self._shares.get(account)
        if share is None:
            return 0
        gone = _decayed_fraction(max(0, now_ms - share.as_of_ms) * self._recent_steps_per_ms)
        return round(share.recent + (share.rate - share.recent) * gone)

    def to_rows(self) -> list[ShareRow]:
        """All rows, each tenant before its users. Floats must be stored exactly."""
        return [self.row_of(account) for account in sorted(self._shares, key=account_order)]

    def row_of(self, account: Account) -> ShareRow:
        """The row of one account."""
        share = self._shares[account]
        tenant, user = tenant_and_user(account)
        return (tenant, user, share.usage, share.recent, share.rate, share.as_of_ms)

    @classmethod
    def from_rows(
        cls, rows: Iterable[ShareRow], *, half_life_ms: int, recent_half_life_ms: int
    ) -> DecayedUsage:
        """Restore saved rows; a changed half-life applies from the time of each row."""
        shares = cls(half_life_ms=half_life_ms, recent_half_life_ms=recent_half_life_ms)
        for tenant, user, usage, recent, rate, as_of_ms in rows:
            account = account_of(tenant, user)
            if usage < 0 or recent < 0 or rate < 0:
                raise InternalError(f"account {account} was saved with a negative amount")
            shares._shares[account] = _Share(usage, recent, rate, as_of_ms)
        return shares

    def _settle(self, share: _Share, now_ms: int) -> None:
        """Advance an account to now, at its rate so far."""
        passed_ms = now_ms - share.as_of_ms
        if passed_ms <= 0:
            return
        rate = share.rate
        # The closed form as a step towards the limit of a constant rate, so that rounding never
        # makes the result negative.
        usage = share.usage
        share.usage = usage + (rate * self._scale - usage) * _decayed_fraction(
            passed_ms * self._steps_per_ms
        )
        recent = share.recent
        share.recent = recent + (rate - recent) * _decayed_fraction(
            passed_ms * self._recent_steps_per_ms
        )
        share.as_of_ms = now_ms


def account_of(tenant: str, user: str | None) -> Account:
    """The account of a saved row."""
    return tenant if user is None else (tenant, user)


def tenant_and_user(account: Account) -> tuple[str, str | None]:
    """Tenant and user of an account."""
    return (account, None) if isinstance(account, str) else account


def account_order(account: Account) -> tuple[str, bool, str]:
    """Sorts each tenant before its users."""
    tenant, user = tenant_and_user(account)
    return (tenant, user is not None, user or "")


def _decayed_fraction(steps: float) -> float:
    """1 - 2**(-steps/_STEPS), from 0 to 1, precise even for tiny values."""
    whole = int(steps)
    # Less than one step is left, so four terms of the series are exact enough.
    y = (steps - whole) * _LN_2_PER_STEP
    gone_in_step = y - y * y * (0.5 - y * (_SIXTH - y * _TWENTY_FOURTH))
    if not whole:
        return gone_in_step
    kept = math.ldexp(_POWERS[whole % _STEPS], -(whole // _STEPS))
    return (1.0 - kept) + kept * gone_in_step


def _powers() -> list[float]:
    """2**(-i/_STEPS) for every step i, by square roots alone."""
    powers = [1.0]
    root = 0.5
    while len(powers) < _STEPS:
        root = math.sqrt(root)
        # Insert the power half a step further between every two powers.
        powers = [finer for power in powers for finer in (power, power * root)]
    return powers


_POWERS = _powers()


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
