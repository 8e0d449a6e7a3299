"""Reads a cluster from a file: our own JSON or CSV, openb node lists, or virtual clusters."""

from __future__ import annotations

from pathlib import Path

from gpu_scheduler.model.errors import InvalidInput
from gpu_scheduler.simulator.traces import helios, openb
from gpu_scheduler.simulator.traces.native_format import read_json_nodes
from gpu_scheduler.simulator.traces.parsing import Layout, Row, head, header_of, read_rows
from gpu_scheduler.simulator.traces.records import (
    NODE_COLUMNS,
    REQUIRED_NODE_COLUMNS,
    read_node_group,
)
from gpu_scheduler.simulator.workload import Cluster, NodeGroup, nodes_of

LAYOUT = Layout(
    name="a list of nodes in CSV",
    required=REQUIRED_NODE_COLUMNS,
    optional=tuple(column for column in NODE_COLUMNS if column not in REQUIRED_NODE_COLUMNS),
)


def read_cluster(path: Path) -> Cluster:
    """Read nodes in any known format; the content decides which."""
    beginning = head(path).lstrip()
    if beginning.startswith(("{", "[")):
        return Cluster.pool(read_json_nodes(path))
    header = header_of(beginning.partition("\n")[0])
    if helios.NODE_LAYOUT.accepts(header):
        return helios.read_vc_nodes(path)
    if openb.NODE_LAYOUT.accepts(header):
        return Cluster.pool(openb.read_nodes(path))
    return _read_csv(path)


def _read_csv(path: Path) -> Cluster:
    def group(row: Row, _number: int) -> NodeGroup:
        return read_node_group(row)

    groups = list(read_rows(path, LAYOUT, group))
    nodes = nodes_of([made for _, made in groups])
    if not nodes:
        raise InvalidInput("the file holds no nodes; expected at least one", file=str(path))
    lines: dict[str, int] = {}
    for line, made in groups:
        for node in nodes_of([made]):
            if node.id in lines:
                raise InvalidInput(
                    f"node '{node.id}' is named twice, first in line {lines[node.id]}; "
                    "expected a different id for each node",
                    file=str(path),
                    line=line,
                )
            lines[node.id] = line
    return Cluster.pool(nodes)
