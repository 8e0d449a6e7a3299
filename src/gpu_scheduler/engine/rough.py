"""About when a job far back in the queue may start: by the work ahead of it, not by a roll-out.

All that runs and all that stands before it is GPU time; the cluster does so much of it at once, and
a tenant or user no more of its own than its quota of GPUs.
Lines of like jobs are sampled, so the answer costs little however long the queue is. It knows
nothing of who fits where, of other limits or of reservations: it is rough, and should be shown as
such.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from gpu_scheduler.engine.admit import user_quota_of
from gpu_scheduler.engine.forecast import Guess
from gpu_scheduler.engine.picture import Picture
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.standing import Standings
from gpu_scheduler.model.request import WHOLE_MILLI

SAMPLED = 32
"""So many jobs of each line are looked at."""


def rough_start_ms(picture: Picture, number: int, now_ms: int) -> int | None:
    """About when a waiting job may start; None if it does not wait."""
    entry = picture.queue.entries.get(number)
    if entry is None:
        return None
    waits_ms = [1]
    for tenant, user, at_once_milli in _shares_of(picture, entry):
        work = _running_work(picture, now_ms, tenant, user)
        work += _work_before(picture, entry, tenant, user)
        waits_ms.append(work // max(WHOLE_MILLI, at_once_milli))
    return now_ms + max(waits_ms)


def _shares_of(picture: Picture, entry: Entry) -> Iterator[tuple[str, str, int]]:
    """How much is done at once of all work, and of that of the tenant and user who are limited."""
    yield "", "", picture.total_gpu_milli
    job = entry.waiting.job
    tenant = picture.tenants.get(job.tenant)
    if tenant is not None and tenant.quota.gpu_milli is not None and not tenant.elastic:
        yield job.tenant, "", tenant.quota.gpu_milli
    of_user = user_quota_of(tenant, picture.policy.user_quota).gpu_milli
    if of_user is not None:
        yield job.tenant, job.user, of_user


def _running_work(picture: Picture, now_ms: int, tenant: str, user: str) -> int:
    return sum(
        entry.amounts.gpu_milli * max(0, entry.running.expected_end_ms - now_ms)
        for entry in picture.running.values()
        if not entry.running.stopping
        and tenant in {"", entry.running.job.tenant}
        and user in {"", entry.running.job.user}
    )


def guesses_ahead(picture: Picture, number: int, now_ms: int, is_guess: Guess) -> frozenset[int]:
    """Jobs of unknown run time among those that run and, sampled, among those that go before."""
    found = set()
    for entry in picture.running.values():
        running = entry.running
        ran_ms = running.attained_ms + max(0, now_ms - running.allocation.start_ms)
        if not running.stopping and is_guess(running.job, ran_ms):
            found.add(running.job.number)
    entries = picture.queue.entries
    for sample, _ in _samples_before(picture, entries[number]):
        for before in sample:
            waiting = entries[before].waiting
            if is_guess(waiting.job, waiting.attained_ms):
                found.add(before)
    return frozenset(found)


def _work_before(picture: Picture, entry: Entry, tenant: str, user: str) -> int:
    """GPU time of all that goes before, line by line of every account and shape."""
    work = 0
    for sample, before in _samples_before(picture, entry, tenant, user):
        seen = sum(_work_of(picture, number) for number in sample)
        work += seen * before // len(sample)
    return work


def _samples_before(
    picture: Picture, entry: Entry, tenant: str = "", user: str = ""
) -> Iterator[tuple[list[int], int]]:
    """Of every line (of a tenant, or user) some jobs that go before, and how many do."""
    standings = Standings(picture)
    value = entry.key + standings.penalty_ms(entry.group.key)
    for group in picture.queue.groups.values():
        if tenant not in {"", group.key[0]} or user not in {"", group.key[1]}:
            continue
        bound = (value - standings.penalty_ms(group.key), entry.number)
        for line in group.by_shape.values():
            before = bisect_left(line, bound)
            if before:
                step = max(1, before // SAMPLED)
                yield [line[place][1] for place in range(0, before, step)], before


def _work_of(picture: Picture, number: int) -> int:
    waiting = picture.queue.entries[number].waiting
    left_ms = max(1, waiting.expected_ms - waiting.attained_ms)
    tasks = 1 if waiting.tasks is None else len(waiting.tasks)
    return waiting.job.gpu_milli * min(left_ms, picture.limit_ms(waiting.job)) * tasks
