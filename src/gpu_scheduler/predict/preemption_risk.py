"""How often jobs are preempted: ended attempts come in; the share of like ones that were goes out.

Attempts are alike if they are of the same tenant and priority, since preemption goes by class and
by what tenants lent. The last ones count. Nothing is stored: a restarted server learns it again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from statistics import median_low
from typing import NamedTuple

from gpu_scheduler.model.job import Job

LAST = 50
LEAST = 10
"""With fewer ended attempts nothing is said."""
MOST_KINDS = 1_000
LIKELY_PERCENT = 20
"""A smaller share is not worth a warning."""


class Risk(NamedTuple):
    """Of the last attempts, how many were preempted, and within which time half of these."""

    attempts: int
    preempted: int
    half_within_ms: int


class PreemptionRisk:
    """Learns from ended attempts."""

    def __init__(self) -> None:
        """Start without attempts."""
        self._kinds: OrderedDict[tuple[str, int], deque[int | None]] = OrderedDict()

    def add(self, job: Job, ran_ms: int, *, preempted: bool) -> None:
        """An attempt has ended by itself, or was preempted after this time."""
        kind = (job.tenant, job.priority)
        last = self._kinds.get(kind)
        if last is None:
            last = self._kinds[kind] = deque(maxlen=LAST)
            if len(self._kinds) > MOST_KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(kind)
        last.append(ran_ms if preempted else None)

    def of(self, job: Job) -> Risk | None:
        """The risk of a job, if enough is known and it is worth a warning."""
        last = self._kinds.get((job.tenant, job.priority), ())
        times = [ran_ms for ran_ms in last if ran_ms is not None]
        if not job.preemptible or len(last) < LEAST:
            return None
        if 100 * len(times) < LIKELY_PERCENT * len(last):
            return None
        return Risk(len(last), len(times), median_low(times))
