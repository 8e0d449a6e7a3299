"""Builders for the trace tests: files with given rows, small clusters, results."""

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.model.errors import InvalidInput
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.request import Request
from gpu_scheduler.simulator.traces.collector import Reading
from gpu_scheduler.simulator.workload import Cluster, NodeGroup, TraceJob, cluster_of, nodes_of


def a_cluster(nodes: int = 4, gpus_per_node: int = 8, **options: Any) -> Cluster:
    return cluster_of(nodes, gpus_per_node, **options)


def a_cluster_with_slices() -> Cluster:
    """Plain nodes, and one with MIG GPUs."""
    split = NodeGroup(id="split", gpus=4, mig_slices=(("1g.10gb", 3), ("3g.40gb", 1)))
    plain = NodeGroup(id="plain", count=4, gpus=8)
    return Cluster.pool(nodes_of([plain, split]))


def a_trace_job(job_id: str = "a", *, run_s: int = 60, number: int = 1, **options: Any) -> TraceJob:
    options = {"submit_ms": 0, "members": (Request(gpu_count=1),), **options}
    return TraceJob(Job(id=job_id, number=number, **options), run_s * 1000)


def a_file(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def a_table(folder: Path, name: str, rows: Iterable[Mapping[str, object]]) -> Path:
    """A CSV file with the columns of the first row."""
    rows = list(rows)
    header = ",".join(rows[0])
    return a_file(folder, name, header, *(",".join(map(str, row.values())) for row in rows))


def gzipped(path: Path, name: str = "") -> Path:
    """The same content, compressed; the name need not show it."""
    packed = path.with_name(name or path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return packed


def jobs_of(reading: Reading, partition: int = 0) -> list[TraceJob]:
    return list(reading.workload.partitions[partition].jobs)


class Refusal:
    """Expects `InvalidInput` at a line, and keeps its message."""

    def __init__(self, path: Path, line: int | None = None) -> None:
        self._raises = pytest.raises(InvalidInput)
        self._path, self._line = path, line
        self.message = ""

    def __enter__(self) -> "Refusal":
        self._caught = self._raises.__enter__()
        return self

    def __exit__(self, *details: Any) -> bool:
        passed = self._raises.__exit__(*details)
        error = self._caught.value
        self.message = str(error)
        assert error.file == str(self._path)
        assert error.line == self._line
        assert error.exit_code == 2
        return passed
