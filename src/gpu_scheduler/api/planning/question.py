"""Copies what a question about the future needs from the state of the control loop.

This is the only part of an answer that runs on the control loop, so it is bounded: it copies
references to frozen values, and of a long queue only the jobs that come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from gpu_scheduler.control.scheduling.cycle import (
    expected_end_ms,
    usage_of_tenant,
    usage_of_user,
)
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.fair_share import FairShare
from gpu_scheduler.engine.queue import Merge
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.what_if import Changes, Question
from gpu_scheduler.model.cluster_snapshot import Running, Snapshot, Waiting
from gpu_scheduler.model.job import Job
from gpu_scheduler.predict.interface import Predictor, is_guess

MOST_WAITING = 5_000
"""So many waiting jobs are rolled forward, those that come first."""


def question_of(
    state: ControlState, now_ms: int, *, jobs: Iterable[Job] = (), changes: Changes | None = None
) -> Question:
    """The question what happens, with each of these jobs submitted now, and with the changes."""
    cluster, predictor = state.cluster, state.predictor
    snapshot = cluster.snapshot(islice(_in_order(cluster), MOST_WAITING))
    running = tuple(_with_expected_end(predictor, one, now_ms) for one in snapshot.running)
    supposed = tuple(
        _as_waiting(predictor, job, state.next_number + place, now_ms)
        for place, job in enumerate(jobs)
    )
    snapshot = replace(snapshot, running=running)
    return Question(
        snapshot=_with_accounts(state, snapshot, supposed, now_ms),
        policy=state.policy,
        now_ms=now_ms,
        quota_nodes=tuple(cluster.quota_nodes.values()),
        guesses=frozenset(_guesses(predictor, snapshot, supposed, now_ms)),
        jobs=supposed,
        changes=changes,
    )


def _in_order(cluster: ClusterState) -> Iterator[Waiting]:
    """Yield the waiting jobs as a cycle would consider them."""
    if len(cluster.queue) <= MOST_WAITING:
        yield from (entry.waiting for _, entry in sorted(cluster.queue.entries.items()))
        return
    merge = Merge(cluster.queue, FairShare(cluster).penalty_ms)
    while (entry := merge.next()) is not None:
        yield entry.waiting
        merge.leave()


def _with_expected_end(predictor: Predictor, running: Running, now_ms: int) -> Running:
    end_ms = expected_end_ms(predictor, running, now_ms)
    return (
        running if end_ms == running.expected_end_ms else replace(running, expected_end_ms=end_ms)
    )


def _as_waiting(predictor: Predictor, job: Job, number: int, now_ms: int) -> Waiting:
    """A job as it would wait if it were submitted now."""
    return Waiting(
        job=replace(job, id=f"job-{number}", number=number, submit_ms=now_ms),
        expected_ms=predictor.expect(job, now_ms),
        tasks=None if job.array is None else job.array.tasks,
        since_ms=now_ms,
    )


def _with_accounts(
    state: ControlState, snapshot: Snapshot, supposed: tuple[Waiting, ...], now_ms: int
) -> Snapshot:
    """Add the usage of accounts of which only a supposed job waits."""
    users, tenants = dict(snapshot.user_usage), dict(snapshot.tenant_usage)
    for waiting in supposed:
        tenant, user = waiting.job.tenant, waiting.job.user
        if (tenant, user) not in users:
            users[tenant, user] = usage_of_user(state, tenant, user, now_ms)
        if tenant not in tenants:
            tenants[tenant] = usage_of_tenant(state, tenant, now_ms)
    return replace(snapshot, user_usage=tuple(users.items()), tenant_usage=tuple(tenants.items()))


def _guesses(
    predictor: Predictor, snapshot: Snapshot, supposed: tuple[Waiting, ...], now_ms: int
) -> Iterator[int]:
    """Yield the numbers of the jobs whose run time is unknown; services are meant to run on."""
    for running in snapshot.running:
        ran_ms = running.attained_ms + max(0, now_ms - running.allocation.start_ms)
        if (
            not running.stopping
            and not running.job.service
            and is_guess(predictor, running.job, ran_ms)
        ):
            yield running.job.number
    for waiting in (*snapshot.waiting, *supposed):
        job = waiting.job
        if not job.service and is_guess(predictor, job, waiting.attained_ms):
            yield job.number
