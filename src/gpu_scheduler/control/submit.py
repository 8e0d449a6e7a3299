"""A request becomes a job that waits, or a clear refusal that leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.book import Book
from gpu_scheduler.control.eligible import make_eligible
from gpu_scheduler.control.life import JobLife
from gpu_scheduler.control.messages import Outcome
from gpu_scheduler.engine.admit import Amounts, job_amounts
from gpu_scheduler.engine.capacity import ever_fits, largest_node_gpus
from gpu_scheduler.model.errors import (
    AlreadyExists,
    InvalidRequest,
    NeverFits,
    QueueFull,
    QuotaTooSmall,
)
from gpu_scheduler.model.job import Job, over_nodes
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.tenant import Quota
from gpu_scheduler.store.rows import EventRow


def submit(book: Book, job: Job, now_ms: int, outcome: Outcome) -> None:
    """Accept a job, or raise and change nothing."""
    _check_new(book, job)
    job = replace(_over_nodes(book, job), number=book.next_number, submit_ms=now_ms)
    _check_fits(book, job)
    _check_quota(book, job)
    book.next_number += 1
    book.queued_tasks += job.task_count
    life = JobLife(job)
    book.lives[job.id] = life
    book.by_number[job.number] = life
    outcome.writes.append(EventRow(at_ms=now_ms, kind="submitted", job_id=job.id))
    make_eligible(book, life, now_ms, outcome)


def _check_new(book: Book, job: Job) -> None:
    if job.id in book.lives or job.id in book.ended:
        raise AlreadyExists(f"job id '{job.id}' is taken; choose another")
    room = book.limits.max_queued_tasks - book.queued_tasks
    if job.task_count > room:
        raise QueueFull(
            f"job {job.id} has {job.task_count} tasks and the queue has room for {room} of "
            f"{book.limits.max_queued_tasks}; try again later or submit fewer"
        )
    for dependency in job.dependencies:
        if dependency.job_id not in book.lives and dependency.job_id not in book.ended:
            raise InvalidRequest(
                f"job {job.id} depends on job {dependency.job_id}, which is not known; "
                "submit that one first"
            )


def _over_nodes(book: Book, job: Job) -> Job:
    """A plain request larger than any node becomes whole nodes and a remainder."""
    if job.is_gang:
        return job
    request = job.members[0]
    members = over_nodes(request, largest_node_gpus(book.picture.index, request))
    return job if len(members) == 1 else replace(job, members=members, min_members=len(members))


def _check_fits(book: Book, job: Job) -> None:
    """What could never run on any known node, even empty, is refused now."""
    if not book.picture.index.by_id:
        return
    missing = ever_fits(book.picture, book.picture.job_shape(job))
    if missing:
        raise NeverFits(f"job {job.id} can never run here: {missing}")


def _check_quota(book: Book, job: Job) -> None:
    """More than the whole quota is refused; over the quota just now only waits."""
    tenant = book.picture.tenant(job.tenant)
    if tenant.quota == _NO_LIMITS:
        return
    wanted = job_amounts(job, book.picture.limit_ms(job), job.min_members)
    held = book.picture.holdings.of(job.tenant)
    for resource, limit, request, current, unit in _checks(tenant.quota, wanted, held):
        may_borrow = resource == "GPUs" and tenant.elastic
        if limit is not None and request > limit and not may_borrow:
            raise QuotaTooSmall(
                f"quota exceeded for tenant {tenant.id}: {resource} requested={request / unit:g}, "
                f"quota={limit / unit:g}, current={current / unit:g}"
            )


def _checks(
    quota: Quota, wanted: Amounts, held: Amounts
) -> list[tuple[str, int | None, int, int, int]]:
    hour = WHOLE_MILLI * 3_600_000
    return [
        ("GPUs", quota.gpu_milli, wanted.gpu_milli, held.gpu_milli, WHOLE_MILLI),
        ("GPU memory MiB", quota.gpu_memory_mb, wanted.gpu_memory_mb, held.gpu_memory_mb, 1),
        ("CPU cores", quota.cpu_milli, wanted.cpu_milli, held.cpu_milli, 1000),
        ("memory MiB", quota.memory_mb, wanted.memory_mb, held.memory_mb, 1),
        ("concurrent jobs", quota.concurrent_jobs, wanted.jobs, held.jobs, 1),
        ("GPU-hours", quota.gpu_milli_ms, wanted.gpu_milli_ms, held.gpu_milli_ms, hour),
    ]


_NO_LIMITS = Quota()
