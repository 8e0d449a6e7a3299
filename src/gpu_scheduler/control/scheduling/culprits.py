"""Finds the queued jobs that make the engine fail, and decides without them.

A bug in the engine that one job meets must not stop all others. The engine names the job that it
considered when it failed: first that one is left out. If that leads nowhere, bisection finds a job:
of the jobs by number, the last one of the shortest prefix of the queue that fails. The number of
tries is bounded. What fails without any queued job, or with jobs of several users, is no job's
fault: then the error is raised, and scheduling pauses.

Every try gets a cluster state of its own, built from a snapshot. So nothing that an error may have
left half done is used again.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_scheduler.engine.decide import DecisionFailed, decide
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import Snapshot, Waiting
from gpu_scheduler.model.plan import Plan

MOST_CULPRITS = 8
"""So many jobs may be set aside in one cycle."""


def decide_without_culprits(
    snapshot: Snapshot, policy: Policy, now_ms: int, failure: DecisionFailed
) -> tuple[Plan | None, dict[str, str]]:
    """A plan without the jobs that make the engine fail, and these jobs' ids with the error.

    There is no plan if more jobs of one user fail than one cycle may set aside. Raise `failure` if
    it is no job's fault.
    """
    search = _Search(snapshot, policy, now_ms)
    for suspect in (_considered, search.bisect):
        culprits, plan = search.run(failure, suspect)
        jobs = {waiting.job.number: waiting.job for waiting in snapshot.waiting}
        names = {jobs[number].id: describe(error) for number, error in culprits.items()}
        if plan is not None:
            return plan, names
        guilty = {(jobs[number].tenant, jobs[number].user) for number in culprits}
        if len(guilty) == 1 and any((job.tenant, job.user) not in guilty for job in jobs.values()):
            return None, names
    raise failure


def describe(error: BaseException) -> str:
    """The kind and place of an error, without its message, which may name what others run."""
    cause = error.__cause__ or error
    frames = traceback.extract_tb(cause.__traceback__)
    place = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(cause).__name__}{place}"


Culprits = dict[int, DecisionFailed]
Suspect = Callable[[DecisionFailed, Collection[int]], int]
"""The number of a job that may have caused a failure; the numbers are of those left out already."""


def _considered(failure: DecisionFailed, _left_out: Collection[int]) -> int:
    return failure.number


class _Search:
    def __init__(self, snapshot: Snapshot, policy: Policy, now_ms: int) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._now_ms = now_ms
        self._numbers = {waiting.job.number for waiting in snapshot.waiting}

    def run(self, failure: DecisionFailed, suspect: Suspect) -> tuple[Culprits, Plan | None]:
        """Leave out one suspect after the other until the engine does not fail."""
        culprits: Culprits = {}
        while len(culprits) < MOST_CULPRITS:
            number = suspect(failure, culprits)
            if number in culprits or number not in self._numbers:
                break
            culprits[number] = failure
            result = self._try_without(culprits)
            if isinstance(result, Plan):
                return self._without_innocent(culprits, result)
            failure = result
        return culprits, None

    def bisect(self, _failure: DecisionFailed, left_out: Collection[int]) -> int:
        """The last job of the shortest prefix of the queue that fails; 0 if no job is needed."""
        waiting = [one for one in self._snapshot.waiting if one.job.number not in left_out]
        if not isinstance(self._try(()), Plan):
            return 0
        good, bad = 0, len(waiting)
        while bad - good > 1:
            middle = (good + bad) // 2
            if isinstance(self._try(waiting[:middle]), Plan):
                good = middle
            else:
                bad = middle
        return waiting[bad - 1].job.number if waiting else 0

    def _without_innocent(self, culprits: Culprits, plan: Plan) -> tuple[Culprits, Plan]:
        """Clear each suspect with which the engine does not fail."""
        for number in list(culprits) if len(culprits) > 1 else ():
            others = {other: error for other, error in culprits.items() if other != number}
            result = self._try_without(others)
            if isinstance(result, Plan):
                culprits, plan = others, result
        return culprits, plan

    def _try_without(self, left_out: Collection[int]) -> Plan | DecisionFailed:
        waiting = self._snapshot.waiting
        return self._try([one for one in waiting if one.job.number not in left_out])

    def _try(self, waiting: Sequence[Waiting]) -> Plan | DecisionFailed:
        snapshot = replace(self._snapshot, waiting=tuple(waiting))
        cluster = ClusterState.from_snapshot(snapshot, self._policy)
        try:
            return decide(cluster, self._policy, self._now_ms)
        except DecisionFailed as error:
            return error
