"""Detects the format of a trace or of a list of nodes, and calls its reader or writer.

The content decides, then the name. A cluster comes from our own JSON or CSV, an openb node list, a
list of virtual clusters, or what Slurm or Kubernetes print about their nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, tzinfo
from enum import StrEnum
from functools import partial
from pathlib import Path

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.simulator.traces import (
    helios_philly,
    kubernetes,
    native_format,
    openb,
    slurm,
    swf,
)
from gpu_scheduler.simulator.traces.collector import Reading
from gpu_scheduler.simulator.traces.parsing import Layout, Row, head, header_of, read_rows
from gpu_scheduler.simulator.traces.records import (
    NODE_COLUMNS,
    REQUIRED_NODE_COLUMNS,
    read_node_group,
)
from gpu_scheduler.simulator.workload import Cluster, NodeGroup, TraceJob, nodes_of


class TraceFormat(StrEnum):
    """The formats that can be read."""

    JSON = "json"
    JSON_LINES = "jsonl"
    CSV = "csv"
    HELIOS = "helios"
    PHILLY = "philly"
    OPENB = "openb"
    SWF = "swf"
    SACCT = "sacct"
    KUBERNETES = "kubernetes"


_TABLES: tuple[tuple[TraceFormat, str], ...] = (
    (TraceFormat.CSV, "run_s"),
    (TraceFormat.HELIOS, "job_id"),
    (TraceFormat.OPENB, "num_gpu"),
    (TraceFormat.PHILLY, "gpu_num"),
)
"""Each CSV format with the column that distinguishes it from the formats below it."""
NODE_LAYOUT = Layout(
    name="a list of nodes in CSV",
    required=REQUIRED_NODE_COLUMNS,
    optional=tuple(column for column in NODE_COLUMNS if column not in REQUIRED_NODE_COLUMNS),
)


def read_trace(
    path: Path,
    *,
    cluster: Cluster | None = None,
    trace_format: TraceFormat | None = None,
    use_cpus: bool = False,
    zone: tzinfo = UTC,
) -> Reading:
    """Read a trace in any known format. Formats without nodes need `cluster`.

    Times of `sacct` are in `zone`.
    """
    trace_format = trace_format or detect_format(path)
    if trace_format is TraceFormat.JSON:
        return native_format.read_json(path, cluster)
    if trace_format is TraceFormat.PHILLY:
        return helios_philly.read_philly(path, cluster)
    if trace_format is TraceFormat.SWF:
        return swf.read_swf(path, cluster)
    if trace_format is TraceFormat.KUBERNETES:
        return kubernetes.read_pods(path, cluster)
    if cluster is None:
        raise InvalidInput(
            f"a trace in the format {trace_format} has no nodes; give them with --cluster FILE or "
            "--nodes N",
            file=str(path),
        )
    readers: dict[TraceFormat, Callable[[Path, Cluster], Reading]] = {
        TraceFormat.CSV: native_format.read_csv,
        TraceFormat.JSON_LINES: native_format.read_json_lines,
        TraceFormat.HELIOS: partial(helios_philly.read_helios, use_cpus=use_cpus),
        TraceFormat.OPENB: openb.read_openb,
        TraceFormat.SACCT: partial(slurm.read_sacct, zone=zone),
    }
    return readers[trace_format](path, cluster)


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
        return native_format.write_json(path, jobs, nodes=nodes, tenants=tenants)
    if name.endswith(".jsonl"):
        return native_format.write_json_lines(path, jobs)
    if name.endswith(".csv"):
        return native_format.write_csv(path, jobs)
    raise InvalidRequest(
        f"the name '{path.name}' does not say the format; end the name in .csv, .json or .jsonl, "
        "each also with .gz"
    )


def detect_format(path: Path) -> TraceFormat:
    """The format of a file; raises `InvalidInput` if it is unknown."""
    beginning = head(path)
    lines = [line for line in beginning.splitlines() if line.strip()]
    if not lines:
        raise InvalidInput("the file is empty; expected a trace", file=str(path))
    first = lines[0].strip()
    if first.startswith("{"):
        if kubernetes.is_kubernetes(beginning):
            return TraceFormat.KUBERNETES
        return TraceFormat.SACCT if slurm.is_sacct_json(beginning) else _kind_of_json(first)
    if first.startswith(swf.SWF_COMMENT) or len(first.split()) == swf.SWF_FIELDS:
        return TraceFormat.SWF
    if slurm.is_sacct(first):
        return TraceFormat.SACCT
    header = header_of(first)
    for trace_format, column in _TABLES:
        if column in header:
            return trace_format
    node_layouts = (helios_philly.VC_LAYOUT, openb.NODE_LAYOUT, NODE_LAYOUT)
    is_node_list = not all(layout.fault(header) for layout in node_layouts)
    if is_node_list or slurm.is_node_list(first):
        raise InvalidInput(
            "the file lists machines; expected a trace of jobs, so give this file with --cluster",
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


def read_cluster(path: Path) -> Cluster:
    """Read nodes in any known format; the content decides which."""
    beginning = head(path).lstrip()
    if kubernetes.is_kubernetes(beginning):
        return kubernetes.read_kubernetes_nodes(path)
    if slurm.is_node_list(beginning.partition("\n")[0]):
        return slurm.read_slurm_nodes(path)
    if beginning.startswith(("{", "[")):
        return Cluster.pool(native_format.read_json_nodes(path))
    header = header_of(beginning.partition("\n")[0])
    if not helios_philly.VC_LAYOUT.fault(header):
        return helios_philly.read_vc_nodes(path)
    if not openb.NODE_LAYOUT.fault(header):
        return Cluster.pool(openb.read_nodes(path))

    def read_group(row: Row, _number: int) -> NodeGroup:
        return read_node_group(row)

    groups = list(read_rows(path, NODE_LAYOUT, read_group))
    nodes = nodes_of(group for _, group in groups)
    if not nodes:
        raise InvalidInput("the file holds no nodes; expected at least one", file=str(path))
    lines: dict[str, int] = {}
    for line, group in groups:
        for node in nodes_of([group]):
            if node.id in lines:
                raise InvalidInput(
                    f"node '{node.id}' is named twice, first in line {lines[node.id]}; "
                    "expected a different id for each node",
                    file=str(path),
                    line=line,
                )
            lines[node.id] = line
    return Cluster.pool(nodes)
