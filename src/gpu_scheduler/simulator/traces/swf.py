"""SWF, the Standard Workload Format of the Parallel Workloads Archive.

18 numbers in each line; a processor becomes a GPU, the machine becomes one node, and no run exceeds
its requested time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.request import Request
from gpu_scheduler.simulator.traces.collector import Intake, Reading
from gpu_scheduler.simulator.traces.parsing import (
    read_items,
    text_lines,
    thousandths,
    unexpected,
    whole_number,
)
from gpu_scheduler.simulator.workload import Cluster, EmptyCluster, NodeGroup, TraceJob, nodes_of

SWF_FIELDS = 18
SWF_COMMENT = ";"
_UNKNOWN = frozenset({"-1", "-1.0", "-1.00"})
_CANCELLED = "5"
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
    nodes = cluster.nodes if cluster else ()
    empty = EmptyCluster(nodes) if cluster else None

    def job_lines() -> Iterator[tuple[int, tuple[int, list[str]]]]:
        for line, text in enumerate(text_lines(path), start=1):
            if text.startswith(SWF_COMMENT):
                name, _, value = text.lstrip("; \t").partition(":")
                header.setdefault(name.strip(), value.strip())
            elif values := text.split():
                yield line, (line, values)

    def read_job(numbered: tuple[int, list[str]], _number: int) -> TraceJob | str:
        nonlocal nodes, empty
        if empty is None:
            nodes = _swf_machine(header)
            empty = EmptyCluster(nodes)
        line, values = numbered
        if len(values) != SWF_FIELDS:
            raise InvalidRequest(
                f"the line has {len(values)} fields; expected {SWF_FIELDS} numbers"
            )
        run_ms = _known(values[3], "run time", thousandths)
        if run_ms is None:
            return NEVER_RAN
        if run_ms == 0 and values[10] == _CANCELLED:
            return WAS_CANCELLED
        processors = _known(values[4], "number of processors", whole_number)
        requested = _known(values[7], "requested processors", whole_number)
        if not processors and requested is not None:
            processors = requested
        if processors is None and run_ms:
            processors = 1
        if not processors:
            return NO_PROCESSORS
        members = empty.spread(Request(gpu_count=processors))
        limit_ms = _known(values[8], "requested time", thousandths) or 0
        user = _known(values[11], "user", whole_number)
        group = _known(values[12], "group", whole_number)
        executable = _known(values[13], "executable", whole_number)
        job = Job(
            id=str(whole_number(values[0], "job number")),
            number=line,
            submit_ms=thousandths(values[1], "submit time"),
            tenant="default" if group is None else f"group-{group}",
            user="" if user is None else f"user-{user}",
            name="" if executable is None else f"executable-{executable}",
            members=members,
            max_runtime_ms=limit_ms,
        )
        return TraceJob(job, min(run_ms, limit_ms) if limit_ms else run_ms)

    return Intake(path, read_items(path, job_lines(), read_job)).pool(nodes)


def _known(text: str, name: str, read: Callable[[str, str], int]) -> int | None:
    return None if text in _UNKNOWN else read(text, name)


def _swf_machine(header: dict[str, str]) -> tuple[Node, ...]:
    for name in ("MaxProcs", "MaxNodes"):
        if name in header:
            processors = whole_number(header[name], name)
            if processors < 1:
                raise unexpected(header[name], name, "a number of 1 or more")
            group = NodeGroup(
                id="machine", gpus=processors, gpu_memory_mb=0, cpu_milli=0, memory_mb=0
            )
            return nodes_of([group])
    raise InvalidRequest(
        "MaxProcs is missing before the first job; add it, or give the machine with --cluster or "
        "--nodes"
    )
