"""The order of waiting jobs. Every weight is in milliseconds of waiting, so aging wins in the end.

The static key of a job is fixed when it enters the queue: aging is the same for all, so the order
inside one queue never changes with time. What changes with use is the penalty of the tenant and
user (`fair_share`), which is added when the queues are merged.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.engine.policy import Feedback, Order
from gpu_scheduler.model.cluster_snapshot import Waiting
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.tenant import Tenant

MILLI = 1000
PROTECTED_LEVEL = -1
LEVEL_MS = 1 << 50
"""One level of feedback outweighs every key (some 35,000 years)."""
FEWEST_PAST = 5
FEWEST_PAST_PERCENT = 3
"""A threshold needs so many jobs that are past it to be judged."""


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
    service = service_ms(attained_ms, gpu_milli, feedback)
    level = 0
    for threshold in feedback.thresholds_ms:
        if service < threshold:
            break
        level += 1
    return level


def service_ms(attained_ms: int, gpu_milli: int, feedback: Feedback) -> int:
    """What the thresholds are compared with: run time, or GPU time (at least that of one GPU)."""
    return attained_ms * max(MILLI, gpu_milli) // MILLI if feedback.by_gpus else attained_ms


def useful_thresholds(services_ms: Sequence[int], candidates_ms: Sequence[int]) -> tuple[int, ...]:
    """The thresholds past which jobs have more left on average than at the threshold before.

    Only then it helps to preempt a job that is past it. Where jobs that got far have the less ahead
    of them, as when all take about as long, no threshold is useful. A threshold that few jobs
    reach is not used either.
    """
    before, before_count = sum(services_ms), len(services_ms)
    used: list[int] = []
    fewest = max(FEWEST_PAST, len(services_ms) * FEWEST_PAST_PERCENT // 100)
    for threshold in candidates_ms:
        left = [service - threshold for service in services_ms if service >= threshold]
        if len(left) < fewest:
            break
        total = sum(left)
        if total * before_count >= before * len(left):
            used.append(threshold)
            before, before_count = total, len(left)
    return tuple(used)


def log2_milli(number: int) -> int:
    """The binary logarithm in thousandths, straight between powers of two; integers only."""
    if number < 1:
        return 0
    whole = number.bit_length() - 1
    return whole * MILLI + ((number << 10 >> whole) - 1024) * MILLI // 1024
