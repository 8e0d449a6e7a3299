"""Detects the format of a trace, by content and then by name, and calls its reader or writer."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.simulator.traces import cluster_file, helios, native_format, openb, philly, swf
from gpu_scheduler.simulator.traces.collector import Reading
from gpu_scheduler.simulator.traces.native_format import (
    read_json,
    read_json_lines,
    write_json,
    write_json_lines,
)
from gpu_scheduler.simulator.traces.parsing import Layout, head, header_of
from gpu_scheduler.simulator.workload import Cluster, TraceJob


class TraceFormat(StrEnum):
    """The formats that can be read."""

    JSON = "json"
    JSON_LINES = "jsonl"
    CSV = "csv"
    HELIOS = "helios"
    PHILLY = "philly"
    OPENB = "openb"
    SWF = "swf"


_TABLES: tuple[tuple[TraceFormat, Layout, str], ...] = (
    (TraceFormat.CSV, native_format.LAYOUT, "run_s"),
    (TraceFormat.HELIOS, helios.LAYOUT, "job_id"),
    (TraceFormat.OPENB, openb.POD_LAYOUT, "num_gpu"),
    (TraceFormat.PHILLY, philly.LAYOUT, "gpu_num"),
)
"""Each CSV format with the column that distinguishes it from the formats below it."""
_NODE_TABLES = (helios.NODE_LAYOUT, openb.NODE_LAYOUT, cluster_file.LAYOUT)


def read_trace(
    path: Path,
    *,
    cluster: Cluster | None = None,
    trace_format: TraceFormat | None = None,
    use_cpus: bool = False,
) -> Reading:
    """Read a trace in any known format. Formats without nodes need `cluster`."""
    found = trace_format or detect_format(path)
    if found is TraceFormat.JSON:
        return read_json(path, cluster)
    if found is TraceFormat.PHILLY:
        return philly.read_philly(path, cluster)
    if found is TraceFormat.SWF:
        return swf.read_swf(path, cluster)
    if cluster is None:
        raise InvalidInput(
            f"a trace in the format {found} has no nodes; expected a cluster in addition, "
            "from a file or by numbers",
            file=str(path),
        )
    if found is TraceFormat.HELIOS:
        return helios.read_helios(path, cluster, use_cpus=use_cpus)
    if found is TraceFormat.OPENB:
        return openb.read_openb(path, cluster)
    if found is TraceFormat.JSON_LINES:
        return read_json_lines(path, cluster)
    return native_format.read_csv(path, cluster)


def write_trace(
    path: Path,
    jobs: Iterable[TraceJob],
    *,
    nodes: Iterable[Node] = (),
    tenants: Iterable[Tenant] = (),
) -> int:
    """Write in the format that the file name ends with; returns the number of jobs.

    Only .json keeps nodes and tenants; .csv and .jsonl hold only jobs. All may end in .gz.
    """
    name = path.name.removesuffix(".gz")
    if name.endswith(".json"):
        return write_json(path, jobs, nodes=nodes, tenants=tenants)
    if name.endswith(".jsonl"):
        return write_json_lines(path, jobs)
    if name.endswith(".csv"):
        return native_format.write_csv(path, jobs)
    raise InvalidRequest(
        f"the name '{path.name}' does not say the format; end the name in .csv, .json or .jsonl, "
        "each also with .gz"
    )


def detect_format(path: Path) -> TraceFormat:
    """The format of a file; raises `InvalidInput` if it is unknown."""
    lines = [line for line in head(path).splitlines() if line.strip()]
    if not lines:
        raise InvalidInput("the file is empty; expected a trace", file=str(path))
    first = lines[0].strip()
    if first.startswith("{"):
        return _kind_of_json(first)
    if first.startswith(swf.COMMENT) or len(first.split()) == swf.FIELDS:
        return TraceFormat.SWF
    header = header_of(first)
    for found, _, telling in _TABLES:
        if telling in header:
            return found
    if any(layout.accepts(header) for layout in _NODE_TABLES):
        raise InvalidInput(
            "the file lists machines; expected a trace of jobs, so give this file as the cluster",
            file=str(path),
            line=1,
        )
    if ".swf" in path.suffixes:
        return TraceFormat.SWF
    if ".csv" in path.suffixes:
        native_format.LAYOUT.check(header, path, 1)
    raise InvalidInput(
        f"the format is not known; the first line is {first[:60]!r}, expected a trace in "
        f"{', '.join(TraceFormat)}",
        file=str(path),
        line=1,
    )


def _kind_of_json(first_line: str) -> TraceFormat:
    """JSON lines if the first line is a complete object with a submission time, else JSON."""
    complete = first_line.endswith("}") and '"submit_s"' in first_line
    if complete and '"jobs"' not in first_line:
        return TraceFormat.JSON_LINES
    return TraceFormat.JSON
