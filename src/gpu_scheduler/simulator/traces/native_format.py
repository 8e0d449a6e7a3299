"""Our own formats: JSON with nodes, tenants and jobs, JSON lines with jobs, and CSV.

JSON names and values are those of the CSV columns; numbers, lists and objects may be JSON values.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.simulator.traces.collector import Intake, Reading
from gpu_scheduler.simulator.traces.parsing import (
    Layout,
    read_items,
    read_rows,
    replacing,
    text_lines,
    unexpected,
)
from gpu_scheduler.simulator.traces.records import (
    JOB_COLUMNS,
    NODE_COLUMNS,
    REQUEST_COLUMNS,
    REQUIRED_COLUMNS,
    TENANT_COLUMNS,
    JobReader,
    JobWriter,
    node_record,
    read_node_group,
    read_tenant,
    tenant_record,
)
from gpu_scheduler.simulator.workload import (
    Cluster,
    EmptyCluster,
    NodeGroup,
    TraceJob,
    nodes_of,
)

# JSON text to flat text records with line numbers. Numbers keep their digits, so that 0.1 stays
# 0.1; NaN, infinity and repeated names are rejected.

_SPACE = re.compile(r"[ \t\r\n]*")
_LISTS = {"gpu_models": "|", "device_ids": ";", "after": ";"}
_OBJECTS = ("node_labels", "labels", "mig_slices")
_NUMBERS = re.compile(r"-?\d{1,15}(\.\d{1,6})?", re.ASCII)
_TEXTS = frozenset({"id", "user", "name", "tenant", "model", "rack", "array", "labels"})


def decode(text: str) -> Any:
    """Any JSON value; raises `JSONDecodeError` or `InvalidRequest`."""
    value, end = _decode_at(text, _skip(text, 0))
    if _skip(text, end) != len(text):
        raise json.JSONDecodeError("more text than one value", text, end)
    return value


def sections(text: str) -> Iterator[tuple[str, list[tuple[int, Any]]]]:
    """The lists of a document such as {"jobs": [...]} by name, each item with its line.

    An error inside an item is raised as `JSONDecodeError` with its line.
    """
    place = _expect(text, 0, "{")
    if text[place : place + 1] == "}":
        return
    while True:
        if text[place : place + 1] != '"':
            raise json.JSONDecodeError("expected a name in double quotes", text, place)
        name, place = _decode_at(text, place)
        items, place = _items(text, _expect(text, _expect(text, place, ":"), "["))
        yield name, items
        if text[place : place + 1] == "}":
            break
        place = _expect(text, place, ",")
    if _skip(text, place + 1) != len(text):
        raise json.JSONDecodeError("more text after the end of the document", text, place + 1)


def flat_record(value: Any, columns: Collection[str], kind: str) -> dict[str, str]:
    """An object as text by column; lists and inner objects take the form they have in CSV."""
    if not isinstance(value, dict):
        raise unexpected(value, kind, "an object such as {...}")
    record: dict[str, str] = {}
    for name, item in value.items():
        if name not in columns:
            raise InvalidRequest(
                f"unknown field {name!r} in {kind}; expected fields are {', '.join(columns)}"
            )
        record[name] = _flat(name, item)
    return record


def from_flat(record: Mapping[str, str]) -> dict[str, Any]:
    """A flat record with numbers, truth values, lists and objects where JSON has them."""
    return {name: _typed(name, text) for name, text in record.items()}


def _items(text: str, place: int) -> tuple[list[tuple[int, Any]], int]:
    """The items of a list, from after its opening bracket, and the position after the list."""
    items: list[tuple[int, Any]] = []
    line, counted = text.count("\n", 0, place) + 1, place
    if text[place : place + 1] == "]":
        return items, _skip(text, place + 1)
    while True:
        line, counted = line + text.count("\n", counted, place), place
        try:
            item, place = _decode_at(text, place)
        except InvalidRequest as error:
            raise json.JSONDecodeError(str(error), text, place) from error
        items.append((line, item))
        place = _skip(text, place)
        if text[place : place + 1] == "]":
            return items, _skip(text, place + 1)
        place = _expect(text, place, ",")


def _decode_at(text: str, place: int) -> tuple[Any, int]:
    try:
        value, end = _DECODER.raw_decode(text, place)
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", text, place) from None
    return value, end


def _expect(text: str, place: int, sign: str) -> int:
    place = _skip(text, place)
    if text[place : place + 1] != sign:
        raise json.JSONDecodeError(f"expected {sign!r}", text, place)
    return _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _flat(name: str, item: Any) -> str:
    if isinstance(item, str):
        return item
    if item is None:
        return ""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, list) and name in _LISTS:
        return _LISTS[name].join(_flat(name, part) for part in item)
    if isinstance(item, dict) and name in _OBJECTS:
        return ";".join(f"{key}={_flat(name, part)}" for key, part in item.items())
    raise unexpected(item, name, "a single value")


def _typed(name: str, text: str) -> Any:
    if name in _OBJECTS:
        return dict(part.split("=", 1) for part in text.split(";"))
    if name in _LISTS:
        parts = text.split(_LISTS[name])
        return [int(part) for part in parts] if name == "device_ids" else parts
    if name not in _TEXTS and text in {"true", "false"}:
        return text == "true"
    if name not in _TEXTS and _NUMBERS.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text


def _refuse_constant(name: str) -> Any:
    raise unexpected(name, "a number", "digits")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"field {twice!r} appears twice in one object; expected it once")
    return found


# Numbers stay text: each column parses its own, so that 0.1 is never rounded.
_DECODER = json.JSONDecoder(
    parse_float=str,
    parse_int=str,
    parse_constant=_refuse_constant,
    object_pairs_hook=_unique,
)


# The JSON format: one document with nodes, tenants and jobs, or one job per line.

Items = list[tuple[int, Any]]
SECTIONS = ("nodes", "tenants", "jobs")


def read_json(path: Path, cluster: Cluster | None = None) -> Reading:
    """Read one document. If `cluster` is given, its nodes replace those of the document."""
    document = _document(path)
    nodes = cluster.nodes if cluster else _nodes(document, path)

    def read_one_tenant(item: Any, _number: int) -> Tenant:
        return read_tenant(flat_record(item, TENANT_COLUMNS, "tenants"))

    tenants = tuple(tenant for _, tenant in read_items(path, document["tenants"], read_one_tenant))
    known = {tenant.id for tenant in tenants}
    if len(known) != len(tenants):
        raise InvalidInput("two tenants have the same id; expected each once", file=str(path))
    read_job = _job_reader(nodes)

    def read_job_of_known_tenant(item: Any, number: int) -> TraceJob:
        trace_job = read_job(item, number)
        if known and trace_job.job.tenant not in known:
            raise InvalidRequest(
                f"job {trace_job.job.id!r} belongs to tenant {trace_job.job.tenant!r}; "
                f"expected one of {', '.join(sorted(known))}"
            )
        return trace_job

    jobs = read_items(path, document["jobs"], read_job_of_known_tenant)
    return Intake(path, jobs).pool(nodes, tenants)


def read_json_lines(path: Path, cluster: Cluster) -> Reading:
    """Read one job from each line; blank lines are ignored."""
    nodes = cluster.nodes
    jobs = read_items(path, _decoded_lines(path), _job_reader(nodes))
    return Intake(path, jobs).pool(nodes)


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
    """Write one document with one item per line; returns the number of jobs."""
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
    """Write one job per line; returns the number of jobs."""
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


def _nodes(document: dict[str, Items], path: Path) -> tuple[Node, ...]:
    def read_group(item: Any, _number: int) -> NodeGroup:
        return read_node_group(flat_record(item, NODE_COLUMNS, "nodes"))

    nodes = nodes_of(group for _, group in read_items(path, document["nodes"], read_group))
    if not nodes:
        raise InvalidInput(
            "the document has no nodes; expected a list of nodes here, or --cluster FILE or "
            "--nodes N",
            file=str(path),
        )
    if len({node.id for node in nodes}) != len(nodes):
        raise InvalidInput("two nodes have the same id; expected each once", file=str(path))
    return nodes


def _job_reader(nodes: tuple[Node, ...]) -> Callable[[Any, int], TraceJob]:
    reader = JobReader(EmptyCluster(nodes))

    def read_job(item: Any, number: int) -> TraceJob:
        listed: list[Any] = []
        if isinstance(item, dict) and isinstance(item.get("members"), list):
            listed = item["members"]
            if not listed:
                raise InvalidRequest("members is an empty list; expected at least one member")
            item = {name: value for name, value in item.items() if name != "members"}
        members = [flat_record(member, REQUEST_COLUMNS, "members") for member in listed]
        return reader.trace_job(flat_record(item, JOB_COLUMNS, "jobs"), number, members)

    return read_job


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


# The CSV format: a header row and one job per row; the nodes come from another file.

LAYOUT = Layout(
    name="a trace in CSV",
    required=REQUIRED_COLUMNS,
    optional=tuple(column for column in JOB_COLUMNS if column not in REQUIRED_COLUMNS),
)


def read_csv(path: Path, cluster: Cluster) -> Reading:
    """Read the jobs and put them on one pool of nodes."""
    nodes = cluster.nodes
    jobs = read_rows(path, LAYOUT, JobReader(EmptyCluster(nodes)).trace_job)
    return Intake(path, jobs).pool(nodes)


def write_csv(path: Path, jobs: Iterable[TraceJob]) -> int:
    """Write the jobs, which may be a stream; returns the number of jobs."""
    writer = JobWriter(lists_members=False)
    count = 0
    with replacing(path) as text:
        table = csv.DictWriter(text, JOB_COLUMNS, restval="", lineterminator="\n")
        table.writeheader()
        for trace_job in jobs:
            table.writerow(writer.record(trace_job)[0])
            count += 1
    return count
