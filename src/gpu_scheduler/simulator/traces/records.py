"""Jobs, nodes and tenants as flat records of text, the form that our CSV and JSON share.

Reads records into model objects and writes them back. docs/reference/traces.md describes every
column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import (
    Array,
    Dependency,
    DependencyKind,
    Job,
    Pool,
    parse_priority,
    split_over_nodes,
)
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.request import Request, Topology
from gpu_scheduler.model.tenant import Quota, Tenant, Tier
from gpu_scheduler.simulator.traces.parsing import (
    LONGEST_TEXT,
    as_decimal,
    choices,
    exact_thousandths,
    one_of,
    pairs,
    thousandths,
    unexpected,
    whole_number,
    yes_or_no,
)
from gpu_scheduler.simulator.workload import EmptyCluster, NodeGroup, TraceJob, nodes_of

MOST_MEMBERS = 100_000
HOUR_MS = 3_600_000
_LONG_NUMBER = re.compile(r"\d{8}")

# How each column is read into a field, and how the field is written back.


class _Kind(NamedTuple):
    """A kind of value: text and column name to value, and value to text."""

    read: Callable[[str, str], Any]
    write: Callable[[Any], str]


def _read_device_ids(text: str, name: str) -> tuple[int, ...]:
    return tuple(whole_number(part.strip(), name) for part in text.split(";"))


def _read_dependencies(text: str, name: str) -> tuple[Dependency, ...]:
    dependencies: dict[Dependency, None] = {}
    for part in text.split(";"):
        kind, _, job_id = (piece.strip() for piece in part.partition(":"))
        if kind not in list(DependencyKind) or not job_id:
            raise unexpected(text, name, "jobs such as afterok:17 or afterok:17;afterany:18")
        dependencies[Dependency(DependencyKind(kind), job_id)] = None
    return tuple(dependencies)


def _read_array(text: str, name: str) -> Array:
    # A range is expanded to single numbers, so a mistyped huge range would fill the memory.
    if _LONG_NUMBER.search(text):
        raise unexpected(text, name, "task numbers below 10,000,000")
    tasks, percent, at_once = text.partition("%")
    return Array(
        tasks=IntervalSet.parse(tasks),
        max_running=whole_number(at_once, name) if percent else 0,
    )


def _write_array(array: Array) -> str:
    return f"{array.tasks}%{array.max_running}" if array.max_running else str(array.tasks)


def _read_slices(text: str, name: str) -> tuple[tuple[str, int], ...]:
    slices = tuple((profile, whole_number(count, name)) for profile, count in pairs(text, name))
    if not all(count for _, count in slices):
        raise unexpected(text, name, "profiles with how many there are, such as 1g.10gb=4")
    return slices


def _write_pairs(pairs: tuple[tuple[str, object], ...]) -> str:
    return ";".join(f"{key}={value}" for key, value in pairs)


def _choice_of(kind: type[Enum]) -> _Kind:
    words = [str(choice.value) for choice in kind]
    return _Kind(lambda text, name: kind(one_of(text, name, words)), attrgetter("value"))


_TEXT = _Kind(lambda text, _name: text.strip(), str)
_WHOLE = _Kind(whole_number, str)
_DECIMAL = _Kind(thousandths, as_decimal)
_EXACT = _Kind(exact_thousandths, as_decimal)
_FLAG = _Kind(yes_or_no, lambda value: str(value).lower())
_LABELS = _Kind(pairs, _write_pairs)
_SLICES = _Kind(_read_slices, _write_pairs)
_MODELS = _Kind(choices, "|".join)
_DEVICE_IDS = _Kind(_read_device_ids, lambda ids: ";".join(map(str, ids)))
_PRIORITY = _Kind(lambda text, _name: parse_priority(text), str)
_DEPENDENCIES = _Kind(
    _read_dependencies,
    lambda dependencies: ";".join(f"{other.kind}:{other.job_id}" for other in dependencies),
)
_ARRAY = _Kind(_read_array, _write_array)
_GPU_HOURS = _Kind(
    # Thousandths of a GPU hour are milli-GPU hours.
    lambda text, name: thousandths(text, name) * HOUR_MS,
    lambda milli_ms: as_decimal(milli_ms // HOUR_MS),
)

_Fields = dict[str, tuple[str, _Kind]]
"""Columns, each with the name and the kind of its field."""
_REQUEST_FIELDS: _Fields = {
    "gpu_memory_mb": ("gpu_memory_mb", _WHOLE),
    "gpu_memory_mb_per_gpu": ("gpu_memory_mb_per_gpu", _WHOLE),
    "gpu_models": ("gpu_models", _MODELS),
    "mig_profile": ("mig_profile", _TEXT),
    "exclusive": ("exclusive", _FLAG),
    "device_ids": ("device_ids", _DEVICE_IDS),
    "cpu_cores": ("cpu_milli", _DECIMAL),
    "memory_mb": ("memory_mb", _WHOLE),
    "node_labels": ("node_labels", _LABELS),
    "topology": ("topology", _choice_of(Topology)),
    "contiguous": ("contiguous", _FLAG),
    "min_bandwidth_gbps": ("min_bandwidth_gbps", _WHOLE),
}
_ONLY_READ = ("gpu_memory_mb", "gpu_memory_mb_per_gpu", "exclusive")
_WRITTEN_REQUEST_FIELDS = {
    column: field for column, field in _REQUEST_FIELDS.items() if column not in _ONLY_READ
}
"""The writer chooses between the ways to state the GPU memory; see `_memory_candidates`."""
_JOB_FIELDS: _Fields = {
    "tenant": ("tenant", _TEXT),
    "user": ("user", _TEXT),
    "name": ("name", _TEXT),
    "priority": ("priority", _PRIORITY),
    "pool": ("pool", _choice_of(Pool)),
    "preemptible": ("preemptible", _FLAG),
    "interactive": ("interactive", _FLAG),
    "limit_s": ("max_runtime_ms", _DECIMAL),
    "estimate_s": ("estimate_ms", _DECIMAL),
    "deadline_s": ("deadline_ms", _DECIMAL),
    "begin_s": ("begin_ms", _DECIMAL),
    "after": ("dependencies", _DEPENDENCIES),
    "array": ("array", _ARRAY),
    "retries": ("retries", _WHOLE),
    "same_rack": ("same_rack", _FLAG),
    "requeue_on_node_loss": ("requeue_on_node_loss", _FLAG),
}
_NODE_FIELDS: _Fields = {
    "id": ("id", _TEXT),
    "count": ("count", _WHOLE),
    "gpus": ("gpus", _WHOLE),
    "model": ("model", _TEXT),
    "gpu_memory_mb": ("gpu_memory_mb", _WHOLE),
    "cpu_cores": ("cpu_milli", _DECIMAL),
    "memory_mb": ("memory_mb", _WHOLE),
    "rack": ("rack", _TEXT),
    "labels": ("labels", _LABELS),
    "island_size": ("island_size", _WHOLE),
    "island_gbps": ("island_gbps", _WHOLE),
    "mig_slices": ("mig_slices", _SLICES),
}
_TENANT_FIELDS: _Fields = {
    "id": ("id", _TEXT),
    "name": ("name", _TEXT),
    "tier": ("tier", _choice_of(Tier)),
    "weight": ("weight_milli", _EXACT),
    "elastic": ("elastic", _FLAG),
    "allow_preemption": ("allow_preemption", _FLAG),
    "can_preempt_others": ("can_preempt_others", _FLAG),
    "max_preemptions": ("max_preemptions", _WHOLE),
}
_QUOTA_FIELDS: _Fields = {
    "max_gpus": ("gpu_milli", _EXACT),
    "max_gpu_memory_mb": ("gpu_memory_mb", _WHOLE),
    "max_cpu_cores": ("cpu_milli", _DECIMAL),
    "max_memory_mb": ("memory_mb", _WHOLE),
    "max_concurrent_jobs": ("concurrent_jobs", _WHOLE),
    "max_gpu_hours": ("gpu_milli_ms", _GPU_HOURS),
}
REQUEST_COLUMNS = ("gpus", *_REQUEST_FIELDS)
"""The columns that describe the request of one member."""
GANG_COLUMNS = ("members", "min_members")
REQUIRED_COLUMNS = ("id", "submit_s", "run_s", "gpus")
JOB_COLUMNS = ("id", "submit_s", "run_s", *REQUEST_COLUMNS, *GANG_COLUMNS, *_JOB_FIELDS)
"""All columns, in the order in which they are written."""
NODE_COLUMNS = tuple(_NODE_FIELDS)
REQUIRED_NODE_COLUMNS = ("id", "gpus")
TENANT_COLUMNS = (*_TENANT_FIELDS, *_QUOTA_FIELDS)


def _values(record: Mapping[str, str], fields_: _Fields) -> dict[str, Any]:
    """The fields that the record sets."""
    values: dict[str, Any] = {}
    for column, (name, kind) in fields_.items():
        if text := record.get(column):
            if len(text) > LONGEST_TEXT:
                raise unexpected(text, column, f"at most {LONGEST_TEXT} characters")
            values[name] = kind.read(text, column)
    return values


def _texts(value: object, fields_: _Fields, defaults: Mapping[str, object]) -> dict[str, str]:
    """The fields that are set and differ from their defaults, as text by column."""
    record: dict[str, str] = {}
    for column, (name, kind) in fields_.items():
        item = getattr(value, name)
        if item is not None and item != defaults.get(name):
            record[column] = kind.write(item)
    return {column: text for column, text in record.items() if text}


_JOB_DEFAULTS = {field.name: field.default for field in fields(Job)}
_REQUEST_DEFAULTS = {field.name: field.default for field in fields(Request)}


class JobReader:
    """Turns flat records into jobs that fit a cluster. Equal requests are parsed once."""

    def __init__(self, fit: EmptyCluster) -> None:
        """Keep the cluster that every job must fit."""
        self._fit = fit
        self._known: dict[tuple[str | None, ...], tuple[tuple[Request, ...], int]] = {}

    def trace_job(
        self,
        record: Mapping[str, str],
        number: int,
        member_records: Sequence[Mapping[str, str]] = (),
    ) -> TraceJob:
        """Read one record; a gang of different members comes with a record for each of them."""
        if member_records:
            members, min_members = self._listed_members(record, member_records)
        else:
            members, min_members = self._members(record)
        job = Job(
            id=_given(record, "id"),
            number=number,
            submit_ms=thousandths(_given(record, "submit_s"), "submit_s"),
            members=members,
            min_members=min_members,
            **_values(record, _JOB_FIELDS),
        )
        return TraceJob(job, thousandths(_given(record, "run_s"), "run_s"))

    def _members(self, record: Mapping[str, str]) -> tuple[tuple[Request, ...], int]:
        key = tuple(map(record.get, REQUEST_COLUMNS + GANG_COLUMNS))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._read_members(record)
        return known

    def _read_members(self, record: Mapping[str, str]) -> tuple[tuple[Request, ...], int]:
        _given(record, "gpus")
        request = read_request(record)
        count = whole_number(record.get("members") or "1", "members")
        least = whole_number(record.get("min_members") or "0", "min_members")
        if not 1 <= count <= MOST_MEMBERS:
            raise unexpected(str(count), "members", f"a whole number from 1 to {MOST_MEMBERS}")
        if least > count:
            raise unexpected(str(least), "min_members", f"at most {count}, the number of members")
        if count == 1:
            return self._fit.spread(request), 0
        members = (request,) * count
        self._fit.check(members[: least or count])
        return members, least

    def _listed_members(
        self, record: Mapping[str, str], member_records: Sequence[Mapping[str, str]]
    ) -> tuple[tuple[Request, ...], int]:
        for column in REQUEST_COLUMNS:
            if record.get(column):
                raise InvalidRequest(
                    f"{column} is given beside a list of members; expected it inside each member"
                )
        members = tuple(read_request(member) for member in member_records)
        least = whole_number(record.get("min_members") or "0", "min_members")
        self._fit.check(members[: least or len(members)])
        return members, least


def read_request(record: Mapping[str, str]) -> Request:
    """The request of one member. GPU memory without GPUs means memory of one shared GPU."""
    options = _values(record, _REQUEST_FIELDS)
    gpus_milli = exact_thousandths(record.get("gpus") or "0", "gpus")
    if gpus_milli:
        return Request.for_gpus(gpus_milli, **options)
    total, each = options.pop("gpu_memory_mb", 0), options.pop("gpu_memory_mb_per_gpu", 0)
    if total and each:
        raise InvalidRequest("GPU memory was given in total and per GPU; expected one of them")
    exclusive = options.pop("exclusive", False)
    if not (total or each):
        return Request(**options)
    if exclusive:
        raise InvalidRequest("exclusive was given with 0 GPUs; expected 1 or more")
    return Request(gpu_count=1, gpu_share_milli=0, gpu_memory_mb=total or each, **options)


def _given(record: Mapping[str, str], column: str) -> str:
    text = (record.get(column) or "").strip()
    if not text:
        raise InvalidRequest(f"{column} is empty; expected a value for each job")
    return text


# Writing. Only values that differ from a default are written. A job that a flat record cannot
# express is rejected.


class JobWriter:
    """Turns jobs into flat records. Equal members are described once."""

    def __init__(self, *, lists_members: bool) -> None:
        """`lists_members`: whether the file can hold a record for each member of a gang."""
        self._lists_members = lists_members
        self._known: dict[tuple[Request, ...], tuple[dict[str, str], list[dict[str, str]]]] = {}

    def record(self, trace_job: TraceJob) -> tuple[dict[str, str], list[dict[str, str]]]:
        """The record of a job, and one for each member if the members differ."""
        job = trace_job.job
        _reject_fields_without_column(job)
        known = self._known.get(job.members)
        if known is None:
            known = self._known[job.members] = self._members(job)
        request, members = known
        record = {
            "id": job.id,
            "submit_s": as_decimal(job.submit_ms),
            "run_s": as_decimal(trace_job.run_ms),
            **request,
            **_texts(job, _JOB_FIELDS, _JOB_DEFAULTS),
        }
        if job.is_gang and job.min_members != len(job.members):
            record["min_members"] = str(job.min_members)
        return record, members

    def _members(self, job: Job) -> tuple[dict[str, str], list[dict[str, str]]]:
        first = job.members[0]
        if all(member == first for member in job.members):
            record = _request_record(first)
            if len(job.members) > 1:
                record["members"] = str(len(job.members))
            return record, []
        if self._lists_members:
            return {}, [_request_record(member) for member in job.members]
        return _split_record(job), []


def _reject_fields_without_column(job: Job) -> None:
    for name in ("hold", "command"):
        if getattr(job, name):
            raise InvalidRequest(
                f"job {job.id} has {name} set, which a trace cannot hold; remove it"
            )
    if any(";" in dependency.job_id for dependency in job.dependencies):
        raise InvalidRequest(f"job {job.id} depends on an id with ';' in it; use another id")


def _request_record(request: Request) -> dict[str, str]:
    """One member. Parses the record again to check that it gives an equal request."""
    gpus_milli = request.gpu_count * request.gpu_share_milli + request.gpu_extra_milli
    if request.mig_profile:
        gpus_milli = request.gpu_count * 1000
    record = {
        "gpus": as_decimal(gpus_milli),
        **_texts(request, _WRITTEN_REQUEST_FIELDS, _REQUEST_DEFAULTS),
    }
    for column, amount in _memory_candidates(request):
        candidate = {**record, column: str(amount)} if amount else record
        if read_request(candidate) == request:
            return candidate
    raise InvalidRequest(f"a trace cannot hold the request {request}; ask for it in another form")


def _memory_candidates(request: Request) -> Iterator[tuple[str, int]]:
    """Ways to write the GPU memory. Each device may have been rounded up by less than 1 MiB."""
    yield "gpu_memory_mb_per_gpu", request.gpu_memory_mb
    for rounded_up in range(request.device_count + 1):
        yield "gpu_memory_mb", max(0, request.gpu_memory_total_mb - rounded_up)


def _split_record(job: Job) -> dict[str, str]:
    """Members of different size as one large request, if reading it gives the same members."""
    first = job.members[0]
    whole = Request(
        gpu_count=sum(member.gpu_count for member in job.members),
        gpu_memory_mb=first.gpu_memory_mb,
        gpu_models=first.gpu_models,
        cpu_milli=sum(member.cpu_milli for member in job.members),
        memory_mb=sum(member.memory_mb for member in job.members),
        node_labels=first.node_labels,
        topology=first.topology,
        min_bandwidth_gbps=first.min_bandwidth_gbps,
    )
    if split_over_nodes(whole, first.gpu_count) != job.members or job.min_members != len(
        job.members
    ):
        raise InvalidRequest(
            f"job {job.id} is a gang of different members, which CSV cannot hold; write JSON"
        )
    return _request_record(whole)


def read_node_group(record: Mapping[str, str]) -> NodeGroup:
    """Some nodes of one kind."""
    for column in REQUIRED_NODE_COLUMNS:
        if not record.get(column):
            raise InvalidRequest(f"{column} is empty; expected a value for each group of nodes")
    return NodeGroup(**_values(record, _NODE_FIELDS))


def node_record(node: Node) -> dict[str, str]:
    """One node; raises if its devices differ in a way that a record cannot express."""
    models = {(device.model, device.memory_mb) for device in node.devices}
    model, gpu_memory_mb = min(models, default=("", 0))
    island_size = sum(device.island == 0 for device in node.devices)
    record = {
        "id": node.id,
        "gpus": str(node.gpu_count),
        "model": model,
        "gpu_memory_mb": str(gpu_memory_mb),
        "cpu_cores": as_decimal(node.cpu_milli),
        "memory_mb": str(node.memory_mb),
        "rack": node.rack,
        "labels": _write_pairs(node.labels),
        "island_size": str(island_size) if island_size < node.gpu_count else "",
        "island_gbps": str(node.devices[0].bandwidth_gbps) if node.devices else "",
        "mig_slices": _write_pairs(node.devices[0].mig_slices) if node.devices else "",
    }
    record = {column: text for column, text in record.items() if text}
    (again,) = nodes_of([read_node_group(record)])
    if (again.devices, again.labels) != (node.devices, node.labels):
        raise InvalidRequest(f"node {node.id} has devices of several kinds; a trace cannot hold it")
    return record


def read_tenant(record: Mapping[str, str]) -> Tenant:
    """A tenant; a missing limit means unlimited."""
    if not record.get("id"):
        raise InvalidRequest("id is empty; expected a value for each tenant")
    values = _values(record, _TENANT_FIELDS)
    if not values.get("weight_milli", 1):
        raise unexpected(record["weight"], "weight", "a number above 0")
    return Tenant(**values, quota=Quota(**_values(record, _QUOTA_FIELDS)))


def tenant_record(tenant: Tenant) -> dict[str, str]:
    """A tenant with everything that is set."""
    return _texts(tenant, _TENANT_FIELDS, {}) | _texts(tenant.quota, _QUOTA_FIELDS, {})
