"""Usage intervals of allocations, and their totals by tenant and user: overall, by month, by week.

Each moment of an allocation is charged once: `charge` adds only what has not been charged yet, up
to the end of the interval. A repeated, late or unknown interval is ignored, so reports may be
delivered twice. Only running allocations are kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

from gpu_scheduler.ledger.decayed_usage import Account, account_of, account_order, tenant_and_user
from gpu_scheduler.ledger.units import Period
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.job import ENDED, Job, JobState
from gpu_scheduler.model.plan import Allocation

OUTCOMES = ENDED | {JobState.PREEMPTED, JobState.PENDING}
"""How an attempt can end; pending means that it was requeued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageInterval:
    """The resources of an allocation from `start_ms` up to, not including, `end_ms`.

    `gpu_models` divides `gpu_milli` by model, sorted by name. `outcome` is how the attempt ended,
    None while it runs. `lost_ms` is run time whose result was lost, `energy_uj` the measured
    energy; like the outcome both belong to the end of the interval.
    """

    allocation_id: str
    job_id: str
    task: int | None = None
    tenant: str
    user: str
    attempt: int
    start_ms: int
    end_ms: int
    gpu_milli: int = 0
    gpu_memory_mb: int = 0
    cpu_milli: int = 0
    memory_mb: int = 0
    gpu_models: tuple[tuple[str, int], ...] = ()
    outcome: JobState | None = None
    lost_ms: int = 0
    energy_uj: int = 0

    def __post_init__(self) -> None:
        """Reject negative amounts and inconsistent models."""
        if self.end_ms < self.start_ms:
            raise InternalError(f"{self._name} ends at {self.end_ms}, before {self.start_ms}")
        amounts = (
            *(self.gpu_milli, self.gpu_memory_mb, self.cpu_milli, self.memory_mb),
            *(self.lost_ms, self.energy_uj),
        )
        if min(amounts) < 0:
            raise InternalError(f"{self._name} holds a negative amount: {amounts}")
        if sum(milli for _, milli in self.gpu_models) != self.gpu_milli:
            raise InternalError(
                f"{self._name} holds {self.gpu_milli} milli-GPU, by model {self.gpu_models}"
            )
        models = [model for model, _ in self.gpu_models]
        if models != sorted(set(models)) or any(milli < 0 for _, milli in self.gpu_models):
            raise InternalError(f"{self._name} has models out of order: {self.gpu_models}")
        if self.outcome is not None and self.outcome not in OUTCOMES:
            raise InternalError(f"{self._name} cannot have ended as {self.outcome}")

    @property
    def duration_ms(self) -> int:
        return self.end_ms - self.start_ms

    @property
    def gpu_milli_ms(self) -> int:
        """GPU time."""
        return self.gpu_milli * self.duration_ms

    @property
    def lost_gpu_milli_ms(self) -> int:
        """GPU time whose result was lost."""
        return self.gpu_milli * self.lost_ms

    @property
    def _name(self) -> str:
        return f"the interval of allocation {self.allocation_id}"

    def split_at(self, at_ms: int) -> tuple[UsageInterval, UsageInterval]:
        """Split in two. Outcome, lost time and energy stay with the later part."""
        return (
            replace(self, end_ms=at_ms, outcome=None, lost_ms=0, energy_uj=0),
            replace(self, start_ms=at_ms),
        )

    def pieces(self, period: Period) -> Iterator[UsageInterval]:
        """Split at the boundaries of periods, the earliest part first."""
        rest = self
        boundary_ms = period.next_after(rest.start_ms)
        while boundary_ms < rest.end_ms:
            piece, rest = rest.split_at(boundary_ms)
            yield piece
            boundary_ms = period.next_after(boundary_ms)
        yield rest

    def within(self, start_ms: int, end_ms: int) -> UsageInterval | None:
        """The part between two times, if there is any."""
        if self.end_ms <= start_ms or self.start_ms >= end_ms:
            return None
        part = self if self.start_ms >= start_ms else self.split_at(start_ms)[1]
        return part if part.end_ms <= end_ms else part.split_at(end_ms)[0]


def interval_of(
    job: Job,
    allocation: Allocation,
    *,
    end_ms: int,
    model_of: Callable[[str, int], str],
    outcome: JobState | None = None,
    lost_ms: int = 0,
    energy_uj: int = 0,
) -> UsageInterval:
    """The usage interval of an allocation until `end_ms`.

    `model_of` returns the GPU model of a device. If the clock was set back, the interval is empty,
    never negative.
    """
    models: dict[str, int] = {}
    for placement in allocation.placements:
        for device in placement.devices:
            model = model_of(placement.node_id, device.index)
            models[model] = models.get(model, 0) + device.share_milli
    return UsageInterval(
        allocation_id=allocation.id,
        job_id=job.id,
        task=allocation.task,
        tenant=job.tenant,
        user=job.user,
        attempt=allocation.attempt,
        start_ms=allocation.start_ms,
        end_ms=max(allocation.start_ms, end_ms),
        gpu_milli=allocation.gpu_milli,
        gpu_memory_mb=sum(placement.gpu_memory_mb for placement in allocation.placements),
        cpu_milli=sum(placement.cpu_milli for placement in allocation.placements),
        memory_mb=sum(placement.memory_mb for placement in allocation.placements),
        gpu_models=tuple(sorted(models.items())),
        outcome=outcome,
        lost_ms=lost_ms,
        energy_uj=energy_uj,
    )


TotalRow: TypeAlias = tuple[int | None, str, str | None, tuple[int, ...]]
"""Start of the period (None: overall), tenant, user (None: the tenant itself), totals."""
RunningRow: TypeAlias = tuple[str, int]
"""Allocation id, and until when it has been charged."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over intervals. Ends count per attempt: a job that fails twice counts twice."""

    gpu_milli_ms: int = 0
    gpu_memory_mb_ms: int = 0
    cpu_milli_ms: int = 0
    memory_mb_ms: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    preemptions: int = 0
    lost_gpu_milli_ms: int = 0
    energy_uj: int = 0


_PLACE = {field.name: place for place, field in enumerate(fields(Totals))}
_TIMES = tuple(
    _PLACE[name] for name in ("gpu_milli_ms", "gpu_memory_mb_ms", "cpu_milli_ms", "memory_mb_ms")
)
_LOST = _PLACE["lost_gpu_milli_ms"]
_ENERGY = _PLACE["energy_uj"]
_END = {
    JobState.COMPLETED: _PLACE["completed"],
    JobState.FAILED: _PLACE["failed"],
    JobState.CANCELLED: _PLACE["cancelled"],
    JobState.PREEMPTED: _PLACE["preemptions"],
}
"""Which counter an outcome increases; a requeued attempt increases none."""

_Key: TypeAlias = tuple[int | None, Account]


class UsageTotals:
    """Totals per tenant and user, overall and by period; independent of the order of charges."""

    def __init__(self, period: Period = Period.MONTH) -> None:
        self.period = period
        self._sums: dict[_Key, list[int]] = {}
        self._charged_until: dict[str, int] = {}
        self._changed: dict[_Key, None] = {}
        self._last_bounds = (0, 0)

    def begin(self, allocation_id: str, start_ms: int) -> None:
        """Start charging an allocation; a repeated call has no effect."""
        self._charged_until.setdefault(allocation_id, start_ms)

    def charge(self, interval: UsageInterval) -> UsageInterval | None:
        """Charge the part that is new, and return it; None if nothing is new.

        An interval with an outcome ends the allocation.
        """
        until_ms = self._charged_until.get(interval.allocation_id)
        if until_ms is None:
            return None
        end_ms = max(until_ms, interval.end_ms)
        if interval.outcome is not None:
            del self._charged_until[interval.allocation_id]
        elif end_ms == until_ms:
            return None
        else:
            self._charged_until[interval.allocation_id] = end_ms
        part = interval
        if (until_ms, end_ms) != (interval.start_ms, interval.end_ms):
            part = replace(interval, start_ms=until_ms, end_ms=end_ms)
        self._add_time(part)
        if part.outcome is not None:
            changes = [(_LOST, part.lost_gpu_milli_ms), (_ENERGY, part.energy_uj)]
            if part.outcome in _END:
                changes.append((_END[part.outcome], 1))
            self._add(part.tenant, part.user, part.end_ms, changes)
        return part

    def count_ended(
        self, tenant: str, user: str, state: JobState, *, at_ms: int, tasks: int = 1
    ) -> None:
        """Count jobs that ended while they waited, and so have no interval."""
        if tasks < 0 or state not in ENDED:
            raise InternalError(f"{tasks} tasks of {tenant}/{user} cannot end as {state}")
        self._add(tenant, user, at_ms, [(_END[state], tasks)])

    def correct(self, part: UsageInterval, sign: int) -> None:
        """Charge time again that was charged too little (1), or take it back (-1)."""
        self._add_time(part, sign)

    def count_running(self, interval: UsageInterval) -> None:
        """Add the usage of a running attempt, in a copy for a report; it is charged at its end."""
        self._add_time(interval)
        self._add(interval.tenant, interval.user, interval.end_ms, [(_ENERGY, interval.energy_uj)])

    def total(self, account: Account) -> Totals:
        """The overall totals of the account."""
        return self._totals(None, account)

    def total_in(self, account: Account, at_ms: int) -> Totals:
        """The totals of the account in the period that contains this time."""
        return self._totals(self.period.start_of(at_ms), account)

    def take_changed(self) -> list[TotalRow]:
        """The totals that changed since the last call."""
        changed = []
        for key in self._changed:
            sums = self._sums.get(key)
            if sums is not None:
                changed.append((key[0], *tenant_and_user(key[1]), tuple(sums)))
        self._changed.clear()
        return changed

    def to_rows(self) -> tuple[list[TotalRow], list[RunningRow]]:
        """All totals and all running allocations, each in a fixed order."""
        totals: list[TotalRow] = []
        for start_ms, account in sorted(self._sums, key=_key_order):
            tenant, user = tenant_and_user(account)
            totals.append((start_ms, tenant, user, tuple(self._sums[start_ms, account])))
        return totals, sorted(self._charged_until.items())

    @classmethod
    def from_rows(
        cls,
        totals: Iterable[TotalRow],
        running: Iterable[RunningRow],
        *,
        period: Period = Period.MONTH,
    ) -> UsageTotals:
        """Restore saved totals; the period must be the same as when they were saved.

        Rows of an older version with fewer sums are filled with 0.
        """
        accounts = cls(period)
        for start_ms, tenant, user, sums in totals:
            if not sums or len(sums) > len(_PLACE) or min(sums) < 0:
                raise InternalError(f"the totals of {tenant}/{user} cannot be right: {sums}")
            if start_ms is not None and start_ms != period.start_of(start_ms):
                raise InternalError(f"no {period} begins at {start_ms}; was it another period?")
            missing = [0] * (len(_PLACE) - len(sums))
            accounts._sums[start_ms, account_of(tenant, user)] = [*sums, *missing]
        accounts._charged_until = dict(running)
        return accounts

    def _totals(self, start_ms: int | None, account: Account) -> Totals:
        return Totals(*self._sums.get((start_ms, account), ()))

    def _add_time(self, part: UsageInterval, sign: int = 1) -> None:
        _, next_ms = self._bounds(part.start_ms)
        # Most intervals lie within one period, and need no split.
        pieces = (part,) if part.end_ms <= next_ms else part.pieces(self.period)
        for piece in pieces:
            span_ms = piece.duration_ms
            amounts = (piece.gpu_milli, piece.gpu_memory_mb, piece.cpu_milli, piece.memory_mb)
            changes = [
                (place, sign * amount * span_ms)
                for place, amount in zip(_TIMES, amounts, strict=True)
            ]
            self._add(piece.tenant, piece.user, piece.start_ms, changes)

    def _bounds(self, at_ms: int) -> tuple[int, int]:
        """The start of the period and of the next one; cached, since times come close together."""
        if not self._last_bounds[0] <= at_ms < self._last_bounds[1]:
            self._last_bounds = (self.period.start_of(at_ms), self.period.next_after(at_ms))
        return self._last_bounds

    def _add(self, tenant: str, user: str, at_ms: int, changes: list[tuple[int, int]]) -> None:
        """Add to tenant and user, overall and in the period that contains this time."""
        changes = [change for change in changes if change[1]]
        if not changes:
            return
        period_ms, _ = self._bounds(at_ms)
        pair = (tenant, user)
        for key in ((None, tenant), (None, pair), (period_ms, tenant), (period_ms, pair)):
            sums = self._sums.get(key)
            if sums is None:
                sums = self._sums[key] = [0] * len(_PLACE)
            for place, amount in changes:
                sums[place] = max(0, sums[place] + amount)
            self._changed[key] = None


def _key_order(key: _Key) -> tuple[bool, int, tuple[str, bool, str]]:
    start_ms, account = key
    return (start_ms is not None, start_ms or 0, account_order(account))


WeekRow: TypeAlias = tuple[str, str | None, int, int]
"""Tenant, user (None: the tenant itself), start of the week, GPU time in it."""


class WeeklyUsage:
    """GPU time of each account in its last week, for weekly budgets."""

    def __init__(self) -> None:
        self._sums: dict[Account, tuple[int, int]] = {}
        self._changed: dict[Account, None] = {}

    def add(self, part: UsageInterval, sign: int = 1) -> None:
        """Add a charged interval, or take it back (-1); the parts in earlier weeks are dropped."""
        if not part.gpu_milli:
            return
        for piece in part.pieces(Period.WEEK):
            week_ms = Period.WEEK.start_of(piece.start_ms)
            used = piece.gpu_milli * piece.duration_ms
            for account in (part.tenant, (part.tenant, part.user)):
                known_ms, total = self._sums.get(account, (week_ms, 0))
                if week_ms >= known_ms:
                    before = total if week_ms == known_ms else 0
                    self._sums[account] = (week_ms, max(0, before + sign * used))
                    self._changed[account] = None

    def spent(self, account: Account, at_ms: int) -> int:
        """GPU time of an account in the week that contains this time."""
        week_ms, total = self._sums.get(account, (0, 0))
        return total if week_ms == Period.WEEK.start_of(at_ms) else 0

    def take_changed(self) -> list[WeekRow]:
        """The rows that changed since the last call."""
        changed = [(*tenant_and_user(account), *self._sums[account]) for account in self._changed]
        self._changed.clear()
        return changed

    @classmethod
    def from_rows(cls, rows: Iterable[WeekRow]) -> WeeklyUsage:
        """Restore saved rows."""
        weeks = cls()
        for tenant, user, week_ms, total in rows:
            weeks._sums[account_of(tenant, user)] = (week_ms, total)
        return weeks
