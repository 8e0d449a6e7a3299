"""The order of waiting jobs. Every weight is in milliseconds of waiting, so aging wins in the end.

The static key of a job is fixed when it enters the queue: aging is the same for all, so the order
inside one queue never changes with time. What changes with use is the penalty of the tenant and
user (`FairShare`), which is added when the queues are merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_scheduler.engine.policy import HOUR_MS, Feedback, Order
from gpu_scheduler.engine.queue import Entry, GroupKey
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.snapshot import Waiting
from gpu_scheduler.model.tenant import WEIGHT_ONE_MILLI, Tenant

if TYPE_CHECKING:
    from gpu_scheduler.engine.state.cluster_state import ClusterState

MILLI = 1000
PROTECTED_LEVEL = -1
LEVEL_MS = 1 << 50
"""One level of feedback outweighs every key (some 35,000 years)."""
PROJECTED_MS = HOUR_MS
"""A job that starts counts at once as if it had run for up to an hour."""
LEAST_USAGE = WHOLE_MILLI * HOUR_MS
"""Shares are measured against at least a GPU-hour each, so that a cold start is fair as well."""


def static_class(job: Job, tenant: Tenant) -> int:
    """The tenant's tier and the job's priority: the basis of preemption by class."""
    return tenant.tier.points + job.priority


def order_key(waiting: Waiting, tenant: Tenant, order: Order) -> int:
    """The static key; smaller comes first."""
    job = waiting.job
    key = job.submit_ms if order.age else 0
    key -= order.class_point_ms * static_class(job, tenant)
    key += short_penalty_ms(waiting, order)
    if order.expected_milli:
        key += (waiting.expected_ms - waiting.attained_ms) * order.expected_milli // MILLI
    if order.deadline_ms and job.deadline_ms:
        slack = max(0, job.deadline_ms - job.submit_ms - waiting.expected_ms)
        key -= max(0, order.deadline_ms - slack)
    return key


def short_penalty_ms(waiting: Waiting, order: Order) -> int:
    """What a long expected run (and many GPUs) costs, by doublings and never more than the cap."""
    if not order.short_ms:
        return 0
    doublings_milli = log2_milli(max(1, waiting.expected_ms)) - log2_milli(order.short_floor_ms)
    gpu_doublings = log2_milli(max(MILLI, waiting.job.gpu_milli)) - log2_milli(MILLI)
    doublings_milli += gpu_doublings * order.short_gpu_percent // 100
    return min(order.short_cap_ms, max(0, order.short_ms * doublings_milli // MILLI))


def largest_gap_ms(order: Order, class_span: int) -> int:
    """How much earlier than any later job's key a key can lie, at the most.

    A job that has waited this long is passed in the order by no job that comes after.
    """
    fair = (order.fair_ms + order.user_fair_ms) * order.fair_cap
    return order.class_point_ms * class_span + order.short_cap_ms + order.deadline_ms + fair


def longest_wait_ms(*, gap_ms: int, jobs_ahead: int, longest_run_ms: int) -> int:
    """No job that may run waits longer than this, under a policy with reservations.

    After the gap no new job comes ahead. Each of those ahead, and then the job itself, needs at
    most two runs of the longest job from when it is first: one until its reservation is due, one
    for whatever overruns on its place (docs/explanation/scheduling.md).
    """
    return gap_ms + 2 * (jobs_ahead + 1) * longest_run_ms


def level_of(
    attained_ms: int, gpu_milli: int, feedback: Feedback, *, protected: bool = False
) -> int:
    """How many thresholds of service a job has passed; -1 if it is protected."""
    if protected:
        return PROTECTED_LEVEL
    service = attained_ms
    if feedback.by_gpus:
        service = service * max(MILLI, gpu_milli) // MILLI
    level = 0
    for threshold in feedback.thresholds_ms:
        if service < threshold:
            break
        level += 1
    return level


def log2_milli(number: int) -> int:
    """The binary logarithm in thousandths, straight between powers of two; integers only."""
    if number < 1:
        return 0
    whole = number.bit_length() - 1
    return whole * MILLI + ((number << 10 >> whole) - 1024) * MILLI // 1024


def fair_ratio_milli(usage: int, weight_milli: int, total_usage: int, total_weight: int) -> int:
    """How many fair shares an account has had: 1000 is exactly its fair share."""
    if total_usage <= 0:
        return 0
    return usage * total_weight * MILLI // (weight_milli * total_usage)


class FairShare:
    """What the decayed usage of each account adds to the keys of its waiting jobs, in milliseconds.

    It only grows during a cycle, as the cycle starts jobs.
    """

    def __init__(self, state: ClusterState) -> None:
        """Sum up the usage of all accounts that have waiting jobs."""
        order = state.policy.order
        self._order = order
        self._state = state
        self._on = bool(order.fair_ms or order.user_fair_ms)
        self._added: dict[str | tuple[str, str], int] = {}
        self._cache: dict[tuple[str, str], int] = {}
        if not self._on:
            return
        accounts = dict.fromkeys((key[0], key[1]) for key in state.queue.groups)
        active = dict.fromkeys(tenant for tenant, _ in accounts)
        self._total_weight = sum(state.tenant(tenant).weight_milli for tenant in active)
        usage = sum(self._tenant_usage(tenant) for tenant in active)
        self._total_usage = max(usage, LEAST_USAGE * len(active))
        self._user_totals: dict[str, tuple[int, int]] = {}
        for tenant, user in accounts:
            total, count = self._user_totals.get(tenant, (0, 0))
            self._user_totals[tenant] = (total + self._user_usage(tenant, user), count + 1)

    def penalty_ms(self, group: GroupKey) -> int:
        """How far back an account's use puts its jobs now."""
        if not self._on:
            return 0
        account = (group[0], group[1])
        penalty = self._cache.get(account)
        if penalty is None:
            penalty = self._cache[account] = self._penalty(*account)
        return penalty

    def order_value(self, entry: Entry) -> int:
        """The place of a job in the order now: its static key and the penalty of its account."""
        return entry.key + self.penalty_ms(entry.group.key)

    def add_start(self, job: Job, gpu_milli: int, expected_ms: int) -> None:
        """Count a job that the cycle starts, so that one account does not get everything."""
        if not self._on:
            return
        usage = gpu_milli * min(expected_ms, PROJECTED_MS)
        account = (job.tenant, job.user)
        self._added[job.tenant] = self._added.get(job.tenant, 0) + usage
        self._added[account] = self._added.get(account, 0) + usage
        for known in [known for known in self._cache if known[0] == job.tenant]:
            del self._cache[known]

    def _tenant_usage(self, tenant: str) -> int:
        usage = self._state.tenant_usage.get(tenant)
        return self._added.get(tenant, 0) + (usage.usage if usage else 0)

    def _user_usage(self, tenant: str, user: str) -> int:
        usage = self._state.user_usage.get((tenant, user))
        return self._added.get((tenant, user), 0) + (usage.usage if usage else 0)

    def _penalty(self, tenant: str, user: str) -> int:
        order = self._order
        penalty = 0
        if order.fair_ms:
            ratio = fair_ratio_milli(
                self._tenant_usage(tenant),
                self._state.tenant(tenant).weight_milli,
                self._total_usage,
                self._total_weight,
            )
            penalty += order.fair_ms * min(order.fair_cap * MILLI, ratio) // MILLI
        if order.user_fair_ms:
            total, count = self._user_totals[tenant]
            ratio = fair_ratio_milli(
                self._user_usage(tenant, user),
                WEIGHT_ONE_MILLI,
                max(total, LEAST_USAGE * count),
                count * WEIGHT_ONE_MILLI,
            )
            penalty += order.user_fair_ms * min(order.fair_cap * MILLI, ratio) // MILLI
        return penalty
