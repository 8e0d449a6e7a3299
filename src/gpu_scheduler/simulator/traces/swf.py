"""The Standard Workload Format of the Parallel Workloads Archive: 18 numbers in each line.

A processor becomes a GPU, the machine becomes one node. No run exceeds its requested time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, NeverFits
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.request import Request
from gpu_scheduler.simulator.fit import Fit
from gpu_scheduler.simulator.traces.collector import Intake, Reading
from gpu_scheduler.simulator.traces.parsing import text_lines, thousandths, unexpected, whole_number
from gpu_scheduler.simulator.workload import Cluster, NodeGroup, TraceJob, nodes_of

_Read = Callable[[str, str], int]
FIELDS = 18
UNKNOWN = frozenset({"-1", "-1.0", "-1.00"})
CANCELLED = "5"
COMMENT = ";"
NEVER_RAN = "an unknown run time"
NO_PROCESSORS = "no processors"
WAS_CANCELLED = "a cancellation before the start"


def read_swf(path: Path, cluster: Cluster | None = None) -> Reading:
    """Read a log. Without `cluster`, one node with as many GPUs as MaxProcs says.

    Skipped and counted: jobs whose run time is unknown, that held no processor, or that were
    cancelled before they started. A job that ran on an unknown number of processors had at least
    one, so it counts as one; a run time of 0 stays 0.
    """
    header: dict[str, str] = {}
    intake = Intake(path)
    reader: _SwfReader | None = None
    for line, text in enumerate(text_lines(path), start=1):
        if text.startswith(COMMENT):
            name, _, value = text.lstrip("; \t").partition(":")
            header.setdefault(name.strip(), value.strip())
            continue
        values = text.split()
        if not values:
            continue
        try:
            if reader is None:
                reader = _SwfReader(cluster or _machine(header))
            made = reader.trace_job(values, line)
        except (InvalidRequest, NeverFits) as error:
            raise InvalidInput(str(error), file=str(path), line=line) from error
        if isinstance(made, str):
            intake.skip(made)
        else:
            intake.add(made, line)
    return intake.pool(reader.nodes if reader else ())


class _SwfReader:
    """Turns lines into jobs, or into the reason for skipping them."""

    def __init__(self, cluster: Cluster) -> None:
        self.nodes = cluster.nodes
        self._fit = Fit(self.nodes)
        self._members: dict[int, tuple[Request, ...]] = {}

    def trace_job(self, values: list[str], number: int) -> TraceJob | str:
        if len(values) != FIELDS:
            raise InvalidRequest(f"the line has {len(values)} fields; expected {FIELDS} numbers")
        run_ms = _known(values[3], "run time", thousandths)
        if run_ms is None:
            return NEVER_RAN
        if run_ms == 0 and values[10] == CANCELLED:
            return WAS_CANCELLED
        processors = _processors(values)
        if processors is None and run_ms:
            processors = 1
        if not processors:
            return NO_PROCESSORS
        if processors not in self._members:
            self._members[processors] = self._fit.spread(Request(gpu_count=processors))
        limit_ms = _known(values[8], "requested time", thousandths) or 0
        user = _known(values[11], "user", whole_number)
        group = _known(values[12], "group", whole_number)
        executable = _known(values[13], "executable", whole_number)
        job = Job(
            id=str(whole_number(values[0], "job number")),
            number=number,
            submit_ms=thousandths(values[1], "submit time"),
            tenant="default" if group is None else f"group-{group}",
            user="" if user is None else f"user-{user}",
            name="" if executable is None else f"executable-{executable}",
            members=self._members[processors],
            max_runtime_ms=limit_ms,
        )
        return TraceJob(job, min(run_ms, limit_ms) if limit_ms else run_ms)


def _processors(values: list[str]) -> int | None:
    """The allocated processors, else the requested ones; None if the log has neither."""
    held = _known(values[4], "number of processors", whole_number)
    wanted = _known(values[7], "requested processors", whole_number)
    return held if held or wanted is None else wanted


def _known(text: str, name: str, read: _Read) -> int | None:
    return None if text in UNKNOWN else read(text, name)


def _machine(header: dict[str, str]) -> Cluster:
    for name in ("MaxProcs", "MaxNodes"):
        if name in header:
            processors = whole_number(header[name], name)
            if processors < 1:
                raise unexpected(header[name], name, "a number of 1 or more")
            group = NodeGroup(
                id="machine", gpus=processors, gpu_memory_mb=0, cpu_milli=0, memory_mb=0
            )
            return Cluster.pool(nodes_of([group]))
    raise InvalidRequest("MaxProcs is missing before the first job; add it, or give a cluster")
