"""Finds the queued jobs that make the engine fail, and decides without them.

A bug in the engine that one job meets must not stop all others, nor may many such jobs of many
accounts (tenant and user). The engine names the job that it considered when it failed. The search
leaves out

1. the named jobs, up to `MOST_CULPRITS`;
2. if that is not enough, all jobs of accounts with such jobs, now or in earlier cycles. Other
   accounts get a plan, and the next cycle goes on with the jobs that were left out;
3. if the engine names no job, or not the right one, a job that bisection finds: of the jobs by
   number that are not left out yet, the last one of the shortest prefix that fails.

So accounts without such jobs wait at most for one cycle per `MOST_ACCOUNTS` accounts with them (one
per account where only bisection finds them), however many jobs those have; and a cycle runs the
engine at most `MOST_TRIES` times. What fails without any queued job is no job's fault: then the
error is raised, and scheduling pauses.

Every try gets a cluster state of its own, built from a snapshot. So nothing that an error may have
left half done is used again.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_scheduler.engine.decide import DecisionFailed, decide
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import Snapshot, Waiting
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.plan import Plan

MOST_CULPRITS = 8
"""So many jobs are left out one by one in one cycle."""
MOST_ACCOUNTS = 8
"""So many accounts that were not known before are left out as a whole in one cycle."""
MOST_TRIES = 64
"""So often a cycle runs the engine at most, with a queue of up to a hundred million jobs."""

JobOwner = tuple[str, str]
"""Tenant and user."""
Culprits = dict[int, DecisionFailed]


def decide_without_culprits(
    snapshot: Snapshot,
    policy: Policy,
    now_ms: int,
    failure: DecisionFailed,
    known: Collection[JobOwner] = (),
) -> tuple[Plan | None, dict[str, str]]:
    """A plan without the jobs that make the engine fail, and these jobs' ids with the error.

    `known` are the accounts whose jobs made it fail before. There is no plan if more accounts have
    such jobs than one cycle may leave out. Raise `failure` if it is no job's fault.
    """
    search = _Search(snapshot, policy, now_ms)
    culprits, plan = search.run(failure, set(known))
    if not culprits:
        raise failure
    return plan, {search.jobs[number].id: describe(error) for number, error in culprits.items()}


def describe(error: BaseException) -> str:
    """The kind and place of an error, without its message, which may name what others run."""
    cause = error.__cause__ or error
    frames = traceback.extract_tb(cause.__traceback__)
    place = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(cause).__name__}{place}"


def owner_of(job: Job) -> JobOwner:
    """The account of a job."""
    return job.tenant, job.user


class _Search:
    def __init__(self, snapshot: Snapshot, policy: Policy, now_ms: int) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._now_ms = now_ms
        self.jobs = {waiting.job.number: waiting.job for waiting in snapshot.waiting}

    def run(self, failure: DecisionFailed, known: set[JobOwner]) -> tuple[Culprits, Plan | None]:
        """The jobs to set aside, and a plan without them; no jobs if it is no job's fault."""
        if not isinstance(self._try(()), Plan):
            return {}, None
        culprits, plan = self._leave_out_named(failure)
        if plan is not None:
            return culprits, plan
        return self._leave_out_accounts(culprits, known)

    def _leave_out_named(self, failure: DecisionFailed) -> tuple[Culprits, Plan | None]:
        """Leave out the job that the engine considered, until it does not fail."""
        culprits: Culprits = {}
        while len(culprits) < MOST_CULPRITS:
            if failure.number in culprits or failure.number not in self.jobs:
                break
            culprits[failure.number] = failure
            result = self._try_without(culprits)
            if isinstance(result, Plan):
                return self._without_innocent(culprits, result)
            failure = result
        return culprits, None

    def _leave_out_accounts(
        self, culprits: Culprits, known: set[JobOwner]
    ) -> tuple[Culprits, Plan | None]:
        """Leave out all jobs of the accounts with culprits, until the engine does not fail.

        A plan without culprits would end the search for good, so each search finds one at least.
        """
        accounts = known | {owner_of(self.jobs[number]) for number in culprits}
        for _ in range(MOST_ACCOUNTS):
            rest = self._without_accounts(accounts)
            result = self._try(rest)
            if isinstance(result, Plan):
                if not culprits:
                    culprits = self._found_by_bisection(self._snapshot.waiting)
                return culprits, replace(result, complete=False)
            number = result.number
            if number not in self.jobs or owner_of(self.jobs[number]) in accounts:
                return self._leave_out_one_more(culprits, accounts, rest)
            culprits[number] = result
            accounts.add(owner_of(self.jobs[number]))
        return culprits, None

    def _leave_out_one_more(
        self, culprits: Culprits, accounts: set[JobOwner], rest: Sequence[Waiting]
    ) -> tuple[Culprits, Plan | None]:
        """Leave out a job that the engine did not name; if that is not enough, its account."""
        found = self._found_by_bisection(rest)
        culprits |= found
        result = self._try([one for one in rest if one.job.number not in found])
        if isinstance(result, Plan):
            return culprits, replace(result, complete=result.complete and not accounts)
        owners = {owner_of(self.jobs[number]) for number in found}
        result = self._try(self._without_accounts(accounts | owners))
        return culprits, replace(result, complete=False) if isinstance(result, Plan) else None

    def _found_by_bisection(self, waiting: Sequence[Waiting]) -> Culprits:
        """The last job of the shortest prefix that fails; none if all of them do not fail."""
        good, bad, failure = 0, len(waiting), self._try(waiting)
        if isinstance(failure, Plan):
            return {}
        while bad - good > 1:
            middle = (good + bad) // 2
            result = self._try(waiting[:middle])
            if isinstance(result, Plan):
                good = middle
            else:
                bad, failure = middle, result
        return {waiting[bad - 1].job.number: failure}

    def _without_accounts(self, accounts: Collection[JobOwner]) -> list[Waiting]:
        return [one for one in self._snapshot.waiting if owner_of(one.job) not in accounts]

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
