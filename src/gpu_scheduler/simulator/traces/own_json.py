"""Our own JSON: one document with nodes, tenants and jobs, or one job in each line.

Names and values are those of the CSV columns; numbers, lists and objects may be written as such.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, NeverFits
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.simulator.cluster import Cluster, nodes_of
from gpu_scheduler.simulator.fit import Fit
from gpu_scheduler.simulator.traces.files import replacing, text_lines
from gpu_scheduler.simulator.traces.intake import Intake, Reading
from gpu_scheduler.simulator.traces.job_fields import JOB_COLUMNS, REQUEST_COLUMNS, JobReader
from gpu_scheduler.simulator.traces.job_text import JobWriter
from gpu_scheduler.simulator.traces.json_text import decode, flat_record, from_flat, sections
from gpu_scheduler.simulator.traces.node_fields import (
    NODE_COLUMNS,
    TENANT_COLUMNS,
    node_record,
    read_node_group,
    read_tenant,
    tenant_record,
)
from gpu_scheduler.simulator.workload import TraceJob

T = TypeVar("T")
Items = list[tuple[int, Any]]
SECTIONS = ("nodes", "tenants", "jobs")
_JOB_FIELDS = dict.fromkeys(JOB_COLUMNS)
_REQUEST_FIELDS = dict.fromkeys(REQUEST_COLUMNS)
_NODE_FIELDS = dict.fromkeys(NODE_COLUMNS)
_TENANT_FIELDS = dict.fromkeys(TENANT_COLUMNS)


def read_json(path: Path, cluster: Cluster | None = None) -> Reading:
    """Read one document. Nodes that are given beside it take the place of its own."""
    document = _document(path)
    nodes = cluster.nodes if cluster else _nodes(document, path)
    tenants = tuple(
        tenant for _, tenant in _made(document["tenants"], path, lambda item, _: _tenant(item))
    )
    known = {tenant.id for tenant in tenants}
    if len(known) != len(tenants):
        raise InvalidInput("two tenants have the same id; expected each once", file=str(path))
    reader = JobReader(Fit(nodes))
    intake = Intake(path)
    for line, trace_job in _made(document["jobs"], path, lambda item, n: _job(reader, item, n)):
        if known and trace_job.job.tenant not in known:
            raise InvalidInput(
                f"job {trace_job.job.id!r} belongs to tenant {trace_job.job.tenant!r}; "
                f"expected one of {', '.join(sorted(known))}",
                file=str(path),
                line=line,
            )
        intake.add(trace_job, line)
    return intake.pool(nodes, tenants)


def read_json_lines(path: Path, cluster: Cluster) -> Reading:
    """Read one job from each line; blank lines are passed over."""
    nodes = cluster.nodes
    reader = JobReader(Fit(nodes))
    intake = Intake(path)
    items = _decoded_lines(path)
    for line, trace_job in _made(items, path, lambda item, number: _job(reader, item, number)):
        intake.add(trace_job, line)
    return intake.pool(nodes)


def read_json_nodes(path: Path) -> tuple[Node, ...]:
    """The nodes of a document, whether it holds jobs or not."""
    return _nodes(_document(path), path)


def write_json(
    path: Path,
    jobs: Iterable[TraceJob],
    *,
    nodes: Iterable[Node] = (),
    tenants: Iterable[Tenant] = (),
) -> int:
    """Write one document, one item in each line; the number of jobs comes back."""
    count = 0
    with replacing(path) as text:
        text.write('{"nodes": [')
        _write_items(text.write, (from_flat(node_record(node)) for node in nodes))
        text.write('],\n"tenants": [')
        _write_items(text.write, (from_flat(tenant_record(tenant)) for tenant in tenants))
        text.write('],\n"jobs": [')
        count = _write_items(text.write, _job_objects(jobs))
        text.write("]}\n")
    return count


def write_json_lines(path: Path, jobs: Iterable[TraceJob]) -> int:
    """Write one job into each line; the number of jobs comes back."""
    count = 0
    with replacing(path) as text:
        for item in _job_objects(jobs):
            text.write(json.dumps(item) + "\n")
            count += 1
    return count


def _document(path: Path) -> dict[str, Items]:
    text = "".join(text_lines(path))
    document: dict[str, Items] = {}
    try:
        for name, items in sections(text):
            if name not in SECTIONS or name in document:
                raise InvalidInput(
                    f"section {name!r} is unknown or appears twice; expected nodes, tenants and "
                    "jobs, each once",
                    file=str(path),
                )
            document[name] = items
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f'not a valid trace ({error.msg}); expected {{"nodes": [...], "jobs": [...]}}',
            file=str(path),
            line=error.lineno,
        ) from error
    except RecursionError as error:
        raise InvalidInput(
            "the values are nested too deeply; expected flat objects", file=str(path)
        ) from error
    return {name: document.get(name, []) for name in SECTIONS}


def _decoded_lines(path: Path) -> Iterator[tuple[int, Any]]:
    for line, text in enumerate(text_lines(path), start=1):
        if text.isspace():
            continue
        try:
            yield line, decode(text)
        except (json.JSONDecodeError, InvalidRequest, RecursionError) as error:
            raise InvalidInput(
                f"not valid JSON ({getattr(error, 'msg', error)}); expected one job as an object",
                file=str(path),
                line=line,
            ) from error


def _made(
    items: Iterable[tuple[int, Any]], path: Path, make: Callable[[Any, int], T]
) -> Iterator[tuple[int, T]]:
    for number, (line, item) in enumerate(items, start=1):
        try:
            made = make(item, number)
        except (InvalidRequest, NeverFits) as error:
            raise InvalidInput(str(error), file=str(path), line=line) from error
        yield line, made


def _nodes(document: dict[str, Items], path: Path) -> tuple[Node, ...]:
    groups = [
        group
        for _, group in _made(
            document["nodes"],
            path,
            lambda item, _: read_node_group(flat_record(item, _NODE_FIELDS, "nodes")),
        )
    ]
    if not groups:
        raise InvalidInput(
            "the document holds no nodes; expected a list of nodes here or a cluster beside it",
            file=str(path),
        )
    nodes = nodes_of(groups)
    if len({node.id for node in nodes}) != len(nodes):
        raise InvalidInput("two nodes have the same id; expected each once", file=str(path))
    return nodes


def _tenant(item: Any) -> Tenant:
    return read_tenant(flat_record(item, _TENANT_FIELDS, "tenants"))


def _job(reader: JobReader, item: Any, number: int) -> TraceJob:
    listed: list[Any] = []
    if isinstance(item, dict) and isinstance(item.get("members"), list):
        listed = item["members"]
        if not listed:
            raise InvalidRequest("members is an empty list; expected at least one member")
        item = {name: value for name, value in item.items() if name != "members"}
    members = [flat_record(member, _REQUEST_FIELDS, "members") for member in listed]
    return reader.trace_job(flat_record(item, _JOB_FIELDS, "jobs"), number, members)


def _job_objects(jobs: Iterable[TraceJob]) -> Iterator[dict[str, Any]]:
    writer = JobWriter(lists_members=True)
    for trace_job in jobs:
        record, members = writer.record(trace_job)
        item = from_flat(record)
        if members:
            item["members"] = [from_flat(member) for member in members]
        yield item


def _write_items(write: Callable[[str], object], items: Iterable[dict[str, Any]]) -> int:
    count = 0
    for item in items:
        write(",\n" if count else "\n")
        write(json.dumps(item))
        count += 1
    return count
