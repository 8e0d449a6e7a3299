"""A cluster with a quota tree on which cycles run until nothing changes: evictions end at once."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.explain import explain
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.model.cluster_snapshot import AccountUsage, Waiting
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import Allocation, Plan
from gpu_scheduler.model.quota_tree import NodeQuota, QuotaNode, checked_tree
from gpu_scheduler.model.tenant import Tenant
from tests.builders import DAY, HOUR, MINUTE, a_cluster, a_job, a_policy, a_state, running, waiting

MOST_CYCLES = 200


def gpus(
    guaranteed: float = 0,
    *,
    model: str = "*",
    most: float | None = None,
    borrow: float | None = None,
    lend: float | None = None,
) -> NodeQuota:
    """A quota in whole GPUs."""
    limits = [None if limit is None else round(limit * 1000) for limit in (most, borrow, lend)]
    return NodeQuota(
        model=model,
        guaranteed_milli=round(guaranteed * 1000),
        maximum_milli=limits[0],
        borrowing_limit_milli=limits[1],
        lending_limit_milli=limits[2],
    )


def a_quota(name: str, *quotas: NodeQuota, parent: str = "", **changes: Any) -> QuotaNode:
    """A node of the tree."""
    return QuotaNode(name=name, parent=parent, quotas=quotas, **changes)


class QuotaLab:
    """Submits jobs of tenants that run for a day, and runs cycles.

    `reclaims` has for every eviction by reclaiming its victim and the job it was for.
    """

    def __init__(
        self,
        *tree: QuotaNode,
        nodes: Iterable[Node] | None = None,
        tenants: Iterable[Tenant] = (),
        policy: Policy | None = None,
        grace_ms: int = 0,
    ) -> None:
        """Start with an empty cluster of two nodes with eight A100s, or these nodes.

        What is evicted ends `grace_ms` later.
        """
        policy = policy or a_policy(name="fair")
        policy = replace(policy, quota_tree=checked_tree(tree))
        self.state = a_state(policy=policy, nodes=nodes or a_cluster(nodes=2), tenants=tenants)
        self.now_ms = 0
        self.plan = Plan()
        self.plans: list[Plan] = []
        self._jobs: dict[str, Job] = {}
        self._attempts: Counter[str] = Counter()
        self._grace_ms = grace_ms
        self._leaving: list[tuple[int, str]] = []

    def submit(
        self, tenant: str, count: int = 1, *, member_models: tuple[str, ...] = (), **changes: Any
    ) -> list[str]:
        """Queue jobs of a tenant, of one GPU each, or gangs with a member on each of some models.

        Returns their ids.
        """
        ids = []
        for _ in range(count):
            number = len(self._jobs) + 1
            values = {"user": f"{tenant}-user", "estimate_ms": DAY, "submit_ms": self.now_ms}
            job = a_job(number=number, tenant=tenant, **(values | changes))
            if member_models:
                request = job.members[0]
                each = tuple(replace(request, gpu_models=(model,)) for model in member_models)
                job = replace(job, members=each, min_members=len(each))
            self._jobs[job.id] = job
            self.state.enqueue(waiting(job))
            ids.append(job.id)
        return ids

    def use(self, gpu_hours: Mapping[str, int]) -> None:
        """Tenants have used so many GPU-hours, as far as fair share remembers."""
        for tenant, hours in gpu_hours.items():
            self.state.tenant_usage[tenant] = AccountUsage(usage=hours * 1000 * HOUR)

    def end(self, *job_ids: str) -> None:
        """Let running jobs end."""
        for job_id in job_ids:
            self.state.finish(f"{job_id}.{self._attempts[job_id]}")

    def cycle(self) -> Plan:
        """Run one cycle and apply its plan."""
        self.now_ms += MINUTE
        self._end_evicted()
        self.plan = plan = decide(self.state, self.state.policy, self.now_ms)
        self.plans.append(plan)
        self.state.remember(plan)
        for start in plan.starts:
            job = self._jobs[start.job_id]
            self.state.dequeue(job.number)
            self._attempts[job.id] += 1
            allocation = Allocation(
                id=f"{job.id}.{self._attempts[job.id]}",
                job_id=job.id,
                task=None,
                attempt=self._attempts[job.id],
                placements=start.placements,
                start_ms=self.now_ms,
            )
            held = running(job, end_ms=self.now_ms + DAY)
            self.state.start(replace(held, allocation=allocation))
        for eviction in plan.evictions:
            leaving = self.state.running[eviction.allocation_id].running
            self.state.revise(replace(leaving, stopping=True))
            self._leaving.append((self.now_ms + self._grace_ms, eviction.allocation_id))
        if not self._grace_ms:
            self._end_evicted()
        return plan

    def _end_evicted(self) -> None:
        """End what was evicted long enough ago, and queue it again."""
        for end_ms, allocation_id in list(self._leaving):
            if end_ms <= self.now_ms:
                self._leaving.remove((end_ms, allocation_id))
                ended = self.state.finish(allocation_id)
                again = Waiting(job=ended.job, expected_ms=DAY, since_ms=self.now_ms)
                self.state.enqueue(again)

    def settle(self) -> None:
        """Run cycles until one changes nothing; that it comes to that is a rule itself."""
        for _ in range(MOST_CYCLES):
            plan = self.cycle()
            if not plan.starts and not plan.evictions:
                return
        raise AssertionError(f"no end of starts and evictions after {MOST_CYCLES} cycles")

    def held(self) -> dict[str, float]:
        """The GPUs of every tenant that has some."""
        tenants = self.state.holdings.tenants.items()
        return {name: one.gpu_milli / 1000 for name, one in sorted(tenants) if one.gpu_milli}

    def held_by_model(self) -> dict[tuple[str, str], float]:
        """The GPUs of every tenant by model."""
        tenants = self.state.holdings.tenants.items()
        return {
            (name, model): milli / 1000
            for name, one in sorted(tenants)
            for model, milli in sorted(one.models.items())
            if milli
        }

    def running(self) -> set[str]:
        """The ids of all jobs that run."""
        return {entry.running.job.id for entry in self.state.running.values()}

    def evictions(self) -> list[tuple[str, str, str]]:
        """Of every eviction the victim, the job it was for, and the reason."""
        return [
            (each.job_id, each.for_job_id, each.ground.value)
            for plan in self.plans
            for each in plan.evictions
        ]

    def why(self, job_id: str) -> str:
        """Why a job waits."""
        return str(explain(self.state, self.plan, self._jobs[job_id].number))
