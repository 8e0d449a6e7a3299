"""Work and machines for a simulation: what every reader and the generator produce.

A workload is a set of partitions that share nothing; most have one. Jobs come in order of
submission and may be a lazy stream, so that a year of work does not have to fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.tenant import Tenant


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job and what only the trace knows: how long it really runs."""

    job: Job
    run_ms: int


@dataclass(slots=True, kw_only=True)
class Partition:
    """Nodes with a queue of their own. `total_jobs` is for the progress bar, when known."""

    name: str
    nodes: tuple[Node, ...]
    jobs: Iterable[TraceJob]
    tenants: tuple[Tenant, ...] = ()
    total_jobs: int | None = None


@dataclass(slots=True, kw_only=True)
class Workload:
    """What one simulation is fed with."""

    name: str
    partitions: list[Partition] = field(default_factory=list)
