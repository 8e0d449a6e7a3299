"""Collects the jobs of one trace; checks ids and dependencies, and sorts by submission time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

from gpu_scheduler.model.errors import InvalidInput
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.simulator.workload import Partition, TraceJob, Workload

DAY_MS = 86_400_000


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

    def __init__(self, path: Path, entries: Iterable[tuple[int | None, TraceJob | str]]) -> None:
        """Keep the jobs; count the rows that have a reason for skipping them instead."""
        self._path = path
        self._file = str(path)
        self._jobs: list[TraceJob] = []
        self._lines: dict[str, int | None] = {}
        self._skipped: Counter[str] = Counter()
        for line, entry in entries:
            if isinstance(entry, str):
                self._skipped[entry] += 1
                continue
            job_id = entry.job.id
            if job_id in self._lines:
                first = self._lines[job_id]
                where = "" if first is None else f", first in line {first}"
                raise InvalidInput(
                    f"job id {job_id!r} appears twice{where}; expected a different id for each job",
                    file=self._file,
                    line=line,
                )
            self._lines[job_id] = line
            self._jobs.append(entry)

    def jobs(self) -> list[TraceJob]:
        """All jobs by time of submission, then by number; numbers rise with that order."""
        if not self._jobs:
            rows = ", ".join(f"{count} rows with {why}" for why, count in self._skipped.items())
            raise InvalidInput(
                f"the file holds no jobs that can run (found {rows or 'none'}); "
                "expected at least one",
                file=self._file,
            )
        self._jobs.sort(key=lambda entry: (entry.job.submit_ms, entry.job.number))
        if any(earlier.job.number >= later.job.number for earlier, later in pairwise(self._jobs)):
            for place, entry in enumerate(self._jobs):
                if entry.job.number != place + 1:
                    job = replace(entry.job, number=place + 1)
                    self._jobs[place] = TraceJob(job, entry.run_ms)
        self._check_dependencies()
        return self._jobs

    def pool(
        self,
        nodes: tuple[Node, ...],
        tenants: tuple[Tenant, ...] = (),
        *,
        has_dates: bool = False,
    ) -> Reading:
        """All jobs on one pool of nodes; tenants not described have no limits.

        With `has_dates`, times count from the midnight before the first submission.
        """
        jobs = from_midnight(self.jobs()) if has_dates else self.jobs()
        return self.reading([partition_of("all", nodes, jobs, tenants)])

    def reading(self, partitions: list[Partition]) -> Reading:
        """The jobs in their partitions, with the numbers of skipped rows."""
        workload = Workload(name=self._path.name, partitions=partitions)
        return Reading(
            workload=workload, file=self._file, lines=self._lines, skipped=dict(self._skipped)
        )

    def _check_dependencies(self) -> None:
        earlier_ids = {
            entry.job.id: [dependency.job_id for dependency in entry.job.dependencies]
            for entry in self._jobs
            if entry.job.dependencies
        }
        for job_id, dependencies in earlier_ids.items():
            for other in dependencies:
                if other not in self._lines:
                    raise self._fault(
                        job_id,
                        f"job {job_id!r} depends on {other!r}; expected the id of a job here",
                    )
        try:
            TopologicalSorter(earlier_ids).prepare()
        except CycleError as error:
            # The sorter names each job after the one that it waits for.
            cycle = error.args[1][::-1]
            raise self._fault(
                cycle[0],
                f"the dependencies of the jobs form a cycle ({' -> '.join(cycle)}); "
                "expected dependencies without a cycle",
            ) from None
        numbers = {entry.job.id: entry.job.number for entry in self._jobs} if earlier_ids else {}
        for job_id, dependencies in earlier_ids.items():
            for other in dependencies:
                if numbers[other] > numbers[job_id]:
                    raise self._fault(
                        job_id,
                        f"job {job_id!r} depends on {other!r}, which is submitted later; "
                        "expected a job that is submitted earlier",
                    )

    def _fault(self, job_id: str, message: str) -> InvalidInput:
        return InvalidInput(message, file=self._file, line=self._lines[job_id])


def from_midnight(jobs: list[TraceJob]) -> list[TraceJob]:
    """Time 0 becomes the midnight before the first job, so that days stay aligned."""
    start_ms = jobs[0].job.submit_ms // DAY_MS * DAY_MS
    return [
        TraceJob(
            replace(
                entry.job,
                submit_ms=entry.job.submit_ms - start_ms,
                begin_ms=max(0, entry.job.begin_ms - start_ms),
            ),
            entry.run_ms,
        )
        for entry in jobs
    ]


def partition_of(
    name: str, nodes: tuple[Node, ...], jobs: list[TraceJob], tenants: tuple[Tenant, ...] = ()
) -> Partition:
    """A partition; tenants not described have no limits."""
    if not tenants:
        tenants = tuple(Tenant(id=name) for name in sorted({entry.job.tenant for entry in jobs}))
    return Partition(name=name, nodes=nodes, jobs=jobs, tenants=tenants, total_jobs=len(jobs))
