"""The workload and the cluster of a simulation: a trace is read, or work is generated.

Invalid input is rejected here, before anything runs or is written.
"""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import replace
from datetime import UTC
from heapq import merge
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from gpu_scheduler.cli.simulate.command import CLUSTER, SHAPE, is_given
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.model.node import Node
from gpu_scheduler.simulator.experiment import NO_LIMIT_MS
from gpu_scheduler.simulator.generator import (
    DAY_S,
    WorkShape,
    generate,
    generated_workload,
    with_priorities,
)
from gpu_scheduler.simulator.traces import openb
from gpu_scheduler.simulator.traces.collector import Reading
from gpu_scheduler.simulator.traces.detect import TraceFormat, read_cluster, read_trace
from gpu_scheduler.simulator.workload import Cluster, Partition, TraceJob, Workload, cluster_of
from gpu_scheduler.simulator.world import check_accepted

DEFAULT_NODES = 8
DEFAULT_GPUS_PER_NODE = 8
DEFAULT_SEED = 1
MOST_JOBS = 10_000_000
_SHAPE_FIELDS = {"median_run": "median_run_s", "longest_run": "longest_run_s"}
_CLUSTER_FIELDS = {"gpu_model": "model", "cpu_cores": "cpu_milli"}


def trace_reading(args: Namespace) -> Reading:
    """Read the trace, and keep its first jobs if --limit-jobs says so."""
    trace_format = TraceFormat(args.format) if args.format else None
    reading = read_trace(
        args.trace,
        cluster=_cluster(args),
        trace_format=trace_format,
        zone=args.time_zone or UTC,
    )
    if args.limit_jobs is not None:
        _keep_first(reading.workload, args.limit_jobs)
    if args.priorities is not None:
        for part in reading.workload.partitions:
            part.jobs = with_priorities(part.jobs, args.priorities, seed_of(args))
    limit_ms = args.default_limit or NO_LIMIT_MS
    check_accepted(reading, replace(preset("fifo"), default_limit_ms=limit_ms))
    return reading


def generated(args: Namespace) -> Workload:
    """Generate the workload, on the cluster of a file or of the options."""
    seed = seed_of(args)
    cluster = _cluster(args) or cluster_of(
        DEFAULT_NODES, _gpus_per_node(args), **_node_options(args)
    )
    nodes = cluster.nodes
    shape = _shape(args)
    if args.days is not None:
        shape = replace(shape, jobs=_jobs_within(shape, nodes, seed, args.days))
    if args.limit_jobs is not None:
        shape = replace(shape, jobs=min(shape.jobs, args.limit_jobs))
    return generated_workload(shape, nodes, seed, name=f"generated, seed {seed}")


def openb_lists(args: Namespace) -> tuple[tuple[Node, ...], list[openb.Pod]]:
    """Nodes and pods for --fill."""
    cluster = _cluster(args)
    if args.trace is None or cluster is None:
        raise InvalidRequest("--fill needs an openb pod list as --trace and nodes as --cluster")
    if args.format not in {None, "openb"}:
        raise InvalidRequest(f"--fill reads openb pod lists, but --format is '{args.format}'")
    return cluster.nodes, openb.read_pods(args.trace)


def seed_of(args: Namespace) -> int:
    """The random seed."""
    return DEFAULT_SEED if args.seed is None else int(args.seed)


def _cluster(args: Namespace) -> Cluster | None:
    if args.cluster is not None:
        return read_cluster(args.cluster)
    if args.nodes is None:
        return None
    return cluster_with(args, args.nodes)


def cluster_with(args: Namespace, nodes: int) -> Cluster:
    """So many nodes of the kind that the options describe."""
    return cluster_of(nodes, _gpus_per_node(args), **_node_options(args))


def _gpus_per_node(args: Namespace) -> int:
    gpus = args.gpus_per_node or DEFAULT_GPUS_PER_NODE
    if args.gpus_per_island is not None and args.gpus_per_island > gpus:
        raise InvalidRequest(
            f"--gpus-per-island is {args.gpus_per_island}, but a node has {gpus} GPUs; "
            "an island is part of one node"
        )
    return gpus


def _node_options(args: Namespace) -> dict[str, Any]:
    return {
        _CLUSTER_FIELDS.get(name, name): getattr(args, name)
        for name in CLUSTER
        if name not in {"nodes", "gpus_per_node"} and is_given(args, name)
    }


def _shape(args: Namespace) -> WorkShape:
    values = {
        _SHAPE_FIELDS.get(name, name): getattr(args, name) for name in SHAPE if is_given(args, name)
    }
    if "gpu_mix" in values:
        values["gpu_mix"] = tuple((_gpu_count(n), weight) for n, weight in values["gpu_mix"])
    if args.jobs is not None:
        values["jobs"] = args.jobs
    shape = WorkShape(**values)
    if shape.jobs > MOST_JOBS:
        raise InvalidRequest(f"{shape.jobs} jobs requested; at most {MOST_JOBS} are allowed")
    return shape


def _gpu_count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"--gpu-mix has {text!r}; expected whole GPU counts such as 1:70,8:30")
    return int(text)


def _jobs_within(shape: WorkShape, nodes: tuple[Node, ...], seed: int, days: float) -> int:
    """The number of jobs within so many days; a longer stream starts with the same jobs."""
    end_ms = days * DAY_S * 1000
    endless = replace(shape, jobs=MOST_JOBS)
    stream = generate(endless, nodes, seed)
    jobs = sum(1 for _ in takewhile(lambda entry: entry.job.submit_ms < end_ms, stream))
    if not jobs:
        raise InvalidRequest(f"no job is submitted within {days:g} days; give more days")
    return jobs


def _keep_first(workload: Workload, count: int) -> None:
    """Keep the jobs that were submitted first, over all partitions."""

    def in_order(part: Partition, place: int) -> list[tuple[int, int, TraceJob]]:
        return [(entry.job.submit_ms, place, entry) for entry in part.jobs]

    streams = [in_order(part, place) for place, part in enumerate(workload.partitions)]
    kept: list[list[TraceJob]] = [[] for _ in streams]
    for _, place, entry in islice(merge(*streams, key=lambda item: item[:2]), count):
        kept[place].append(entry)
    for part, jobs in zip(workload.partitions, kept, strict=True):
        part.jobs = jobs
        part.total_jobs = len(jobs)


def check_writable(path: Path) -> None:
    """Reject a path that cannot be written, before the simulation runs."""
    if path.is_dir():
        raise InvalidInput("is a directory; name a file", file=str(path))
    folder = path.absolute().parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise InvalidInput(f"cannot be written: {folder} is not a directory", file=str(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidInput(f"cannot be written: no permission to write in {folder}", file=str(path))
