"""A request becomes a job that waits, or a clear refusal that leaves nothing behind."""

from __future__ import annotations

import sys
from dataclasses import replace

from gpu_scheduler.control.book import Book
from gpu_scheduler.control.eligible import enqueue_if_ready, leave_queue, make_eligible
from gpu_scheduler.control.life import JobLife
from gpu_scheduler.control.messages import Outcome
from gpu_scheduler.engine.admit import never_admitted
from gpu_scheduler.engine.capacity import ever_fits, largest_node_gpus
from gpu_scheduler.model.errors import (
    AlreadyExists,
    InvalidRequest,
    NeverFits,
    QueueFull,
    QuotaTooSmall,
)
from gpu_scheduler.model.job import Job, over_nodes
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.snapshot import Standing
from gpu_scheduler.store.rows import EventRow

NO_NODE = "node"


def submit(book: Book, job: Job, now_ms: int, outcome: Outcome) -> None:
    """Accept a job, or raise and change nothing."""
    _check_new(book, job)
    nodes_known = bool(book.picture.index.by_id)
    job = _stamped(book, _over_nodes(book, job), now_ms)
    if nodes_known:
        missing = ever_fits(book.picture, book.picture.job_shape(job))
        if missing:
            raise NeverFits(f"job {job.id} can never run here: {missing}")
    _check_limits(book, job)
    book.next_number += 1
    book.queued_tasks += job.task_count
    life = JobLife(job)
    book.lives[job.id] = life
    if not nodes_known:
        book.unplaced[job.id] = None
    outcome.writes.append(EventRow(at_ms=now_ms, kind="submitted", job_id=job.id))
    make_eligible(book, life, now_ms, outcome)


def place_again(book: Book, now_ms: int, outcome: Outcome) -> None:
    """Nodes came: look again at jobs that were submitted before any was known.

    They were accepted, so what could never run on these nodes waits, and says so.
    """
    book.new_nodes = False
    for job_id in list(book.unplaced):
        life = book.lives[job_id]
        job = _over_nodes(book, life.job)
        missing = ever_fits(book.picture, book.picture.job_shape(job))
        if missing:
            leave_queue(book, life, now_ms)
            life.wait_on(NO_NODE, Reason(ReasonCode.NEVER_FITS, (("found", missing),)))
        else:
            del book.unplaced[job_id]
            life.wait_no_more(NO_NODE)
            if job is not life.job:
                leave_queue(book, life, now_ms)
                life.job = replace(job, members=book.shared_members(job.members))
        enqueue_if_ready(book, life, now_ms, outcome)


def check_room(book: Book, job_id: str, tasks: int) -> None:
    """Refuse more tasks than the queue has room for."""
    room = book.limits.max_queued_tasks - book.queued_tasks
    if tasks > room:
        raise QueueFull(
            f"job {job_id} has {tasks} tasks and the queue has room for {room} of "
            f"{book.limits.max_queued_tasks}; try again later or submit fewer"
        )


def _check_new(book: Book, job: Job) -> None:
    if job.id in book.lives or job.id in book.ended:
        raise AlreadyExists(f"job id '{job.id}' is taken; choose another")
    check_room(book, job.id, job.task_count)
    for dependency in job.dependencies:
        if dependency.job_id not in book.lives and dependency.job_id not in book.ended:
            raise InvalidRequest(
                f"job {job.id} depends on job {dependency.job_id}, which is not known; "
                "submit that one first"
            )


def _over_nodes(book: Book, job: Job) -> Job:
    """A plain request larger than any node becomes whole nodes and a remainder.

    All parts are of one GPU model, if the nodes of one model are enough.
    """
    if job.is_gang:
        return job
    request = job.members[0]
    split = _split(book, job, request)
    if len(split.members) == 1:
        return job
    known = {model for kind in book.picture.index.kinds for model in kind.models}
    models = sorted(known & set(request.gpu_models) if request.gpu_models else known)
    if len(models) > 1:
        for model in models:
            of_model = _split(book, job, replace(request, gpu_models=(model,)))
            if not ever_fits(book.picture, book.picture.job_shape(of_model)):
                return of_model
    return split


def _split(book: Book, job: Job, request: Request) -> Job:
    members = over_nodes(request, largest_node_gpus(book.picture.index, request))
    return replace(job, members=members, min_members=len(members))


def _stamped(book: Book, job: Job, now_ms: int) -> Job:
    """The job with its number and time; equal texts and requests of many jobs are one object."""
    return replace(
        job,
        number=book.next_number,
        submit_ms=now_ms,
        tenant=sys.intern(job.tenant),
        user=sys.intern(job.user),
        name=sys.intern(job.name),
        members=book.shared_members(job.members),
    )


def _check_limits(book: Book, job: Job) -> None:
    """More than a whole quota or pool is refused; over it just now only waits."""
    if not book.picture.has_limits:
        return
    book.picture.tenant_standings[job.tenant] = Standing(
        spent_gpu_milli_ms=book.accounts.total(job.tenant).gpu_milli_ms
    )
    refused = never_admitted(book.picture, job)
    if refused is not None:
        raise QuotaTooSmall(str(refused))
