"""Finds the jobs of a trace that would be rejected at submission, before the simulation starts.

The control core itself checks quotas, capacity and deadlines, as it does during the run.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.jobs.submit import would_accept
from gpu_scheduler.control.messages import SetNode, SetTenant, Submit
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.model.errors import CallerError, InvalidInput
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.simulator.predictors import Stated
from gpu_scheduler.simulator.traces.collector import Reading
from gpu_scheduler.simulator.workload import Partition


def check_accepted(reading: Reading, policy: Policy) -> None:
    """Raise `InvalidInput` with the line of the first job that the core would reject."""
    for partition in reading.workload.partitions:
        _check(partition, reading, policy)


def _check(partition: Partition, reading: Reading, policy: Policy) -> None:
    core = Core(policy, Stated())
    for node in partition.nodes:
        core.apply(SetNode(node), 0)
    for tenant in partition.tenants:
        core.apply(SetTenant(tenant), 0)
    tenants = {tenant.id: tenant for tenant in partition.tenants}
    accepted: set[Hashable] = set()
    for entry in partition.jobs:
        job = entry.job
        kind = _kind(job)
        if kind in accepted:
            continue
        try:
            # Whether a dependency is known was checked when the trace was read.
            would_accept(core.state, Submit(replace(job, dependencies=())), job.submit_ms)
        except CallerError as error:
            hint = _hint(job, tenants)
            line = reading.lines.get(job.id)
            raise InvalidInput(f"{error}{hint}", file=reading.file, line=line) from error
        accepted.add(kind)


def _kind(job: Job) -> Hashable:
    """The properties that decide whether a job is rejected; equal jobs get the same answer."""
    return (
        job.tenant,
        job.user,
        job.members,
        job.min_members,
        job.same_rack,
        job.pool,
        job.preemptible,
        job.max_runtime_ms,
        0 < job.deadline_ms <= job.submit_ms,
    )


def _hint(job: Job, tenants: Mapping[str, Tenant]) -> str:
    tenant = tenants.get(job.tenant)
    if job.max_runtime_ms or tenant is None or tenant.quota.gpu_milli_ms is None:
        return ""
    return "; a job counts with its limit and this one has none, so give limit_s or --default-limit"
