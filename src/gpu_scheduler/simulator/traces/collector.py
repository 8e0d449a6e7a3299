"""Collects the jobs of one trace; checks ids and dependencies, and sorts by submission time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from gpu_scheduler.model.errors import InvalidInput
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.simulator.workload import Partition, TraceJob, Workload


@dataclass(slots=True, kw_only=True)
class Reading:
    """A workload, and the number of rows that were skipped, by reason.

    `lines` gives the line of each job in the file, where it is known.
    """

    workload: Workload
    file: str
    lines: dict[str, int | None] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)


class Intake:
    """Jobs with their lines in the file. All checks run before any job is returned."""

    def __init__(self, path: Path) -> None:
        """Start empty."""
        self._path = path
        self._file = str(path)
        self._jobs: list[TraceJob] = []
        self._lines: dict[str, int | None] = {}
        self.skipped: dict[str, int] = {}

    def add(self, trace_job: TraceJob, line: int | None) -> None:
        """Keep one job; refuse a second one with the same id."""
        job_id = trace_job.job.id
        if job_id in self._lines:
            first = self._lines[job_id]
            where = "" if first is None else f", first in line {first}"
            raise InvalidInput(
                f"job id {job_id!r} appears twice{where}; expected a different id for each job",
                file=self._file,
                line=line,
            )
        self._lines[job_id] = line
        self._jobs.append(trace_job)

    def skip(self, reason: str) -> None:
        """Count a row that is skipped on purpose."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def finish(self) -> list[TraceJob]:
        """All jobs by time of submission, then by number; numbers rise with that order."""
        if not self._jobs:
            found = ", ".join(f"{count} rows with {why}" for why, count in self.skipped.items())
            raise InvalidInput(
                f"the file holds no jobs that can run (found {found or 'none'}); "
                "expected at least one",
                file=self._file,
            )
        self._jobs.sort(key=lambda entry: (entry.job.submit_ms, entry.job.number))
        _renumber(self._jobs)
        self._check_dependencies()
        return self._jobs

    def pool(self, nodes: tuple[Node, ...], tenants: tuple[Tenant, ...] = ()) -> Reading:
        """All jobs on one pool of nodes; tenants not described have no limits."""
        jobs = self.finish()
        partition = Partition(
            name="all",
            nodes=nodes,
            jobs=jobs,
            tenants=tenants or tenants_named_in(jobs),
            total_jobs=len(jobs),
        )
        return self.reading([partition])

    def reading(self, partitions: list[Partition]) -> Reading:
        """The jobs in their partitions, with the numbers of skipped rows."""
        workload = Workload(name=self._path.name, partitions=partitions)
        return Reading(workload=workload, file=self._file, lines=self._lines, skipped=self.skipped)

    def _check_dependencies(self) -> None:
        waiting = {entry.job.id: entry.job for entry in self._jobs if entry.job.dependencies}
        earlier_ids = {
            job.id: [dependency.job_id for dependency in job.dependencies]
            for job in waiting.values()
        }
        for job_id, wanted in earlier_ids.items():
            for other in wanted:
                if other not in self._lines:
                    raise self._fault(
                        job_id,
                        f"job {job_id!r} depends on {other!r}; expected the id of a job here",
                    )
        if cycle := _cycle(earlier_ids):
            raise self._fault(
                cycle[0],
                f"the dependencies of the jobs form a cycle ({' -> '.join(cycle)}); "
                "expected dependencies without a cycle",
            )
        numbers = {entry.job.id: entry.job.number for entry in self._jobs} if waiting else {}
        for job_id, wanted in earlier_ids.items():
            for other in wanted:
                if numbers[other] > numbers[job_id]:
                    raise self._fault(
                        job_id,
                        f"job {job_id!r} depends on {other!r}, which is submitted later; "
                        "expected a job that is submitted earlier",
                    )

    def _fault(self, job_id: str, message: str) -> InvalidInput:
        return InvalidInput(message, file=self._file, line=self._lines[job_id])


def tenants_named_in(jobs: Iterable[TraceJob]) -> tuple[Tenant, ...]:
    """A tenant without limits for each tenant name in the jobs, sorted by name."""
    return tuple(Tenant(id=name) for name in sorted({entry.job.tenant for entry in jobs}))


def _renumber(jobs: list[TraceJob]) -> None:
    """Number the jobs in order, unless their numbers already increase."""
    if all(earlier.job.number < later.job.number for earlier, later in pairwise(jobs)):
        return
    for place, entry in enumerate(jobs):
        if entry.job.number != place + 1:
            jobs[place] = TraceJob(replace(entry.job, number=place + 1), entry.run_ms)


def _cycle(successors: dict[str, list[str]]) -> list[str]:
    """One cycle as a list that ends with its first id, or an empty list. Not recursive."""
    done: set[str] = set()
    for start in successors:
        path: list[str] = []
        on_path: set[str] = set()
        stack = [(start, False)]
        while stack:
            job_id, leaving = stack.pop()
            if leaving:
                done.add(path.pop())
                on_path.remove(job_id)
            elif job_id in on_path:
                return [*path[path.index(job_id) :], job_id]
            elif job_id not in done:
                path.append(job_id)
                on_path.add(job_id)
                stack.append((job_id, True))
                stack.extend((other, False) for other in successors.get(job_id, ()))
    return []
