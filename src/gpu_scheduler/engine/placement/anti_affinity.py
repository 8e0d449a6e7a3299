"""Anti-affinity: which nodes a job must not or should not share.

Replicas of a service prefer the nodes with the fewest replicas of it, and two jobs that ask for the
same port never share a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu_scheduler.engine.state.cluster_state import AntiAffinityCounts
from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.model.job import Job


class AntiAffinity:
    """The services and ports on each node in one cycle: of running jobs, starts and claims."""

    def __init__(self, running: AntiAffinityCounts, index: NodeIndex) -> None:
        """Begin with what runs."""
        self._running = running
        self._index = index
        self._started = AntiAffinityCounts()

    def add_start(self, job: Job, grants: list[Grant]) -> None:
        """A job will be on these nodes."""
        if job.service or job.port:
            self._started.add(job, grants)

    def forbidden_nodes(self, job: Job) -> int:
        """The nodes that the job may not have, as a bitmap: its port is taken there."""
        if not job.port:
            return 0
        return self._bits((*self._running.of(job.port), *self._started.of(job.port)))

    def preferred_nodes(self, job: Job, within: int | None) -> Iterator[int | None]:
        """Nodes to search, as bitmaps (None: all): first those with the fewest replicas."""
        if job.service:
            counts: dict[int, int] = {}
            for known in (self._running, self._started):
                for ordinal, count in known.of(job.service).items():
                    counts[ordinal] = counts.get(ordinal, 0) + count
            for most in sorted({0, *counts.values()})[: len(set(counts.values()))]:
                crowded = self._bits(ordinal for ordinal, count in counts.items() if count > most)
                yield ~crowded if within is None else within & ~crowded
        yield within

    def _bits(self, ordinals: Iterable[int]) -> int:
        bits = 0
        for ordinal in ordinals:
            bits |= self._index.nodes[ordinal].bit
        return bits
