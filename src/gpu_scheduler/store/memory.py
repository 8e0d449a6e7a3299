"""The store that forgets everything when the process ends: for simulations and tests."""

from __future__ import annotations

from gpu_scheduler.model.allocation import Allocation
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.states import ENDED
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.rows import EventRow, JobRow, RemovedAllocation, RemovedNode, Write


class MemoryStore:
    """Rows in dictionaries. With `keep_ended` off, ended jobs and history are dropped."""

    def __init__(self, *, keep_ended: bool = True) -> None:
        """Start empty."""
        self._keep_ended = keep_ended
        self._jobs: dict[str, JobRow] = {}
        self._tenants: dict[str, Tenant] = {}
        self._pools: dict[Pool, PoolQuota] = {}
        self._nodes: dict[str, Node] = {}
        self._allocations: dict[str, Allocation] = {}
        self._events: list[EventRow] = []

    def commit(self, writes: list[Write]) -> None:
        """Keep a batch; a row of a kind that is not known is refused before anything is kept."""
        for write in writes:
            if type(write) not in _KINDS:
                raise InternalError(f"the store does not know rows of type {type(write).__name__}")
        for write in writes:
            self._keep(write)

    def _keep(self, write: Write) -> None:
        if isinstance(write, JobRow):
            if write.state in ENDED and not self._keep_ended:
                self._jobs.pop(write.job.id, None)
            else:
                self._jobs[write.job.id] = write
        elif isinstance(write, EventRow):
            if self._keep_ended:
                self._events.append(write)
        elif isinstance(write, Allocation):
            self._allocations[write.id] = write
        elif isinstance(write, RemovedAllocation):
            self._allocations.pop(write.id, None)
        elif isinstance(write, Node):
            self._nodes[write.id] = write
        elif isinstance(write, RemovedNode):
            self._nodes.pop(write.id, None)
        elif isinstance(write, Tenant):
            self._tenants[write.id] = write
        else:
            self._pools[write.pool] = write

    def job(self, job_id: str) -> JobRow | None:
        """One job."""
        return self._jobs.get(job_id)

    def jobs(self) -> list[JobRow]:
        """All jobs that are kept, by number."""
        return sorted(self._jobs.values(), key=lambda row: row.job.number)

    def tenants(self) -> list[Tenant]:
        """All tenants, by id."""
        return sorted(self._tenants.values(), key=lambda tenant: tenant.id)

    def pools(self) -> list[PoolQuota]:
        """All pools with a part of their own, by name."""
        return sorted(self._pools.values(), key=lambda quota: quota.pool)

    def nodes(self) -> list[Node]:
        """All nodes, by ordinal."""
        return sorted(self._nodes.values(), key=lambda node: node.ordinal)

    def allocations(self) -> list[Allocation]:
        """All that is held, by id."""
        return sorted(self._allocations.values(), key=lambda allocation: allocation.id)

    def events(self, after: int = 0) -> list[tuple[int, EventRow]]:
        """History with sequence numbers larger than `after`."""
        return list(enumerate(self._events[after:], start=after + 1))


_KINDS = frozenset(
    {JobRow, EventRow, Allocation, RemovedAllocation, Node, RemovedNode, Tenant, PoolQuota}
)
