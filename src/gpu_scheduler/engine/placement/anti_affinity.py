"""Anti-affinity: jobs that should not, or must not, share a node.

Replicas of a service prefer the nodes with the fewest replicas of it. Two jobs that ask for the
same port never share a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.model.job import Job

Key = str | int
"""A service, or a port."""


class AntiAffinityCounts:
    """How many jobs of each service and port are on which node, by ordinal."""

    def __init__(self) -> None:
        """Start with none."""
        self._counts: dict[Key, dict[int, int]] = {}

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._counts)

    def add(self, job: Job, grants: Iterable[Grant], sign: int = 1) -> None:
        """A job is on these nodes from now on (or no more)."""
        for key in _keys(job):
            counts = self._counts.setdefault(key, {})
            for grant in grants:
                ordinal = grant.resources.ordinal
                counts[ordinal] = counts.get(ordinal, 0) + sign
                if not counts[ordinal]:
                    del counts[ordinal]
            if not counts:
                del self._counts[key]

    def of(self, key: Key) -> dict[int, int]:
        """How many are where."""
        return self._counts.get(key, _NOWHERE)


class AntiAffinity:
    """The same for one cycle: running jobs, and those that the cycle starts or claims for."""

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


def _keys(job: Job) -> Iterator[Key]:
    if job.service:
        yield job.service
    if job.port:
        yield job.port


_NOWHERE: dict[int, int] = {}
