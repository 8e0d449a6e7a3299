"""A full cluster with a long queue before it: what the measures of the cycle and queue work on."""

from __future__ import annotations

from random import Random

from benchmarks.cluster import any_request, distinct, drawn, large_cluster, whole_request
from gpu_scheduler.engine.policy import HOUR_MS, MINUTE_MS, Policy
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import AccountUsage, Running, Waiting
from gpu_scheduler.model.job import PRIORITY_NAMES, Job
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.model.request import WHOLE_MILLI, Request
from gpu_scheduler.model.tenant import Tenant

TENANTS = 100
USERS_PER_TENANT = 4
SHAPES = 500
NOW_MS = 1_000 * HOUR_MS
FILLER = 10_000_000
"""Numbers of running jobs begin here, beyond those of all that wait."""
PRIORITIES = (("low", 12), ("normal", 76), ("high", 10), ("urgent", 2))


class Backlog:
    """A cluster state that is filled, emptied a little and loaded with waiting jobs."""

    def __init__(self, policy: Policy, seed: int, *, nodes: int = 10_000) -> None:
        """Nodes and tenants with some past use; nothing runs and nothing waits."""
        self.chance = Random(seed)
        self.state = ClusterState(policy)
        self._requests = distinct(lambda: any_request(self.chance), SHAPES)
        self._next_filler = FILLER
        self._next_number = 1
        for node in large_cluster(nodes):
            self.state.set_node(node)
        for number in range(TENANTS):
            tenant = f"tenant-{number}"
            self.state.set_tenant(Tenant(id=tenant))
            self.state.tenant_usage[tenant] = AccountUsage(usage=self._some_usage())
            for user in range(USERS_PER_TENANT):
                account = (tenant, f"user-{user}")
                self.state.user_usage[account] = AccountUsage(usage=self._some_usage())

    def fill(self) -> None:
        """Let work run until no GPU is free, whole or in part."""
        misses = 0
        while misses < 200:
            misses = 0 if self._run(self.chance.choice(self._requests)) else misses + 1
        while self._run(whole_request(self.chance, 1)):
            pass
        for share in (500, 250, 100, 50, 10):
            while self._run(Request(gpu_count=1, gpu_share_milli=share)):
                pass

    def free_gpus(self, count: int) -> None:
        """End running jobs with whole GPUs, chosen by chance, until so many GPUs are free."""
        sizes: dict[int, list[str]] = {}
        for allocation_id, entry in self.state.running.items():
            milli = entry.running.job.gpu_milli
            if milli % WHOLE_MILLI == 0:
                sizes.setdefault(milli // WHOLE_MILLI, []).append(allocation_id)
        while count:
            size = self.chance.choice([size for size in sizes if size <= count])
            chosen = sizes[size].pop(self.chance.randrange(len(sizes[size])))
            self.state.finish(chosen)
            count -= size

    def wait(self, count: int, *, gpus: int = 0) -> None:
        """So many more jobs wait, of any shape or of one GPU count."""
        first = whole_request(self.chance, gpus) if gpus else None
        for _ in range(count):
            self.state.enqueue(self._waiting(first or self.chance.choice(self._requests)))

    def _waiting(self, request: Request) -> Waiting:
        number = self._next_number
        self._next_number += 1
        submit_ms = NOW_MS - 30 * HOUR_MS + number * 500
        job = self._job(number, request, submit_ms)
        return Waiting(job=job, expected_ms=self._some_run_ms(), since_ms=submit_ms)

    def _run(self, request: Request) -> bool:
        index = self.state.index
        hold = index.find(index.shape(request))
        if hold is None:
            return False
        number = self._next_filler
        self._next_filler += 1
        start_ms = NOW_MS - self.chance.randrange(24 * HOUR_MS)
        job = self._job(number, request, start_ms)
        allocation = Allocation(
            id=f"{job.id}.1",
            job_id=job.id,
            task=None,
            attempt=1,
            placements=(hold.placement(),),
            start_ms=start_ms,
        )
        end_ms = NOW_MS + self._some_run_ms()
        self.state.start(Running(job=job, allocation=allocation, expected_end_ms=end_ms))
        return True

    def _job(self, number: int, request: Request, submit_ms: int) -> Job:
        name = self.chance.choices(
            [name for name, _ in PRIORITIES], [weight for _, weight in PRIORITIES]
        )[0]
        return Job(
            id=f"j{number}",
            number=number,
            submit_ms=submit_ms,
            tenant=f"tenant-{self.chance.randrange(TENANTS)}",
            user=f"user-{self.chance.randrange(USERS_PER_TENANT)}",
            members=(request,),
            priority=PRIORITY_NAMES[name],
        )

    def _some_run_ms(self) -> int:
        minutes = drawn(self.chance, ((5, 30), (30, 30), (120, 20), (600, 15), (2_880, 5)))
        return minutes * MINUTE_MS + self.chance.randrange(MINUTE_MS)

    def _some_usage(self) -> int:
        return self.chance.randrange(1, 2_000) * WHOLE_MILLI * HOUR_MS
