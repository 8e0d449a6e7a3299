"""Jobs, nodes and tenants as flat records of text, the form that our CSV and JSON share.

Reads records into model objects and writes them back. docs/reference/traces.md describes every
column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import (
    NORMAL_PRIORITY,
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
from gpu_scheduler.simulator.fit import Fit
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
from gpu_scheduler.simulator.workload import NodeGroup, TraceJob, nodes_of

MOST_MEMBERS = 100_000
_LONG_NUMBER = re.compile(r"\d{8}")

REQUEST_COLUMNS = (
    "gpus",
    "gpu_memory_mb",
    "gpu_memory_mb_per_gpu",
    "gpu_models",
    "mig_profile",
    "exclusive",
    "device_ids",
    "cpu_cores",
    "memory_mb",
    "node_labels",
    "topology",
    "contiguous",
    "min_bandwidth_gbps",
)
"""The columns that describe the request of one member."""
GANG_COLUMNS = ("members", "min_members")
REQUIRED_COLUMNS = ("id", "submit_s", "run_s", "gpus")


class JobReader:
    """Turns flat records into jobs that fit a cluster. Equal requests are parsed once."""

    def __init__(self, fit: Fit) -> None:
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
        options: dict[str, Any] = {}
        for column, (name, read) in _OPTIONS.items():
            if text := record.get(column):
                if len(text) > LONGEST_TEXT:
                    raise unexpected(text, column, f"at most {LONGEST_TEXT} characters")
                options[name] = read(text, column)
        job = Job(
            id=_given(record, "id"),
            number=number,
            submit_ms=thousandths(_given(record, "submit_s"), "submit_s"),
            members=members,
            min_members=min_members,
            **options,
        )
        return TraceJob(job, thousandths(_given(record, "run_s"), "run_s"))

    def _members(self, record: Mapping[str, str]) -> tuple[tuple[Request, ...], int]:
        key = tuple(map(record.get, _MEMBER_KEY))
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
    options: dict[str, Any] = {}
    for column, (name, read) in _REQUEST_OPTIONS.items():
        if text := record.get(column):
            if len(text) > LONGEST_TEXT:
                raise unexpected(text, column, f"at most {LONGEST_TEXT} characters")
            options[name] = read(text, column)
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


def _device_ids(text: str, name: str) -> tuple[int, ...]:
    return tuple(whole_number(part.strip(), name) for part in text.split(";"))


def _topology(text: str, name: str) -> Topology:
    return Topology(one_of(text, name, list(Topology)))


def _pool(text: str, name: str) -> Pool:
    return Pool(one_of(text, name, list(Pool)))


def _priority(text: str, _name: str) -> int:
    return parse_priority(text)


def _text(text: str, _name: str) -> str:
    return text.strip()


def _dependencies(text: str, name: str) -> tuple[Dependency, ...]:
    found: dict[Dependency, None] = {}
    for part in text.split(";"):
        kind, _, job_id = (piece.strip() for piece in part.partition(":"))
        if kind not in list(DependencyKind) or not job_id:
            raise unexpected(text, name, "jobs such as afterok:17 or afterok:17;afterany:18")
        found[Dependency(DependencyKind(kind), job_id)] = None
    return tuple(found)


def _array(text: str, name: str) -> Array:
    # A range is expanded to single numbers, so a mistyped huge range would fill the memory.
    if _LONG_NUMBER.search(text):
        raise unexpected(text, name, "task numbers below 10,000,000")
    tasks, percent, at_once = text.partition("%")
    return Array(
        tasks=IntervalSet.parse(tasks),
        max_running=whole_number(at_once, name) if percent else 0,
    )


_Read = Callable[[str, str], Any]
_REQUEST_OPTIONS: dict[str, tuple[str, _Read]] = {
    "gpu_memory_mb": ("gpu_memory_mb", whole_number),
    "gpu_memory_mb_per_gpu": ("gpu_memory_mb_per_gpu", whole_number),
    "gpu_models": ("gpu_models", choices),
    "mig_profile": ("mig_profile", _text),
    "exclusive": ("exclusive", yes_or_no),
    "device_ids": ("device_ids", _device_ids),
    "cpu_cores": ("cpu_milli", thousandths),
    "memory_mb": ("memory_mb", whole_number),
    "node_labels": ("node_labels", pairs),
    "topology": ("topology", _topology),
    "contiguous": ("contiguous", yes_or_no),
    "min_bandwidth_gbps": ("min_bandwidth_gbps", whole_number),
}
_OPTIONS: dict[str, tuple[str, _Read]] = {
    "tenant": ("tenant", _text),
    "user": ("user", _text),
    "name": ("name", _text),
    "priority": ("priority", _priority),
    "pool": ("pool", _pool),
    "preemptible": ("preemptible", yes_or_no),
    "interactive": ("interactive", yes_or_no),
    "limit_s": ("max_runtime_ms", thousandths),
    "estimate_s": ("estimate_ms", thousandths),
    "deadline_s": ("deadline_ms", thousandths),
    "begin_s": ("begin_ms", thousandths),
    "after": ("dependencies", _dependencies),
    "array": ("array", _array),
    "retries": ("retries", whole_number),
    "same_rack": ("same_rack", yes_or_no),
    "requeue_on_node_loss": ("requeue_on_node_loss", yes_or_no),
}
_MEMBER_KEY = REQUEST_COLUMNS + GANG_COLUMNS
JOB_COLUMNS = ("id", "submit_s", "run_s", *REQUEST_COLUMNS, *GANG_COLUMNS, *_OPTIONS)
"""All columns, in the order in which they are written."""


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
            **_options(job),
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
    record = {
        "gpus": as_decimal(_gpus_milli(request)),
        **_written(
            {
                "gpu_models": "|".join(request.gpu_models),
                "mig_profile": request.mig_profile,
                "device_ids": ";".join(map(str, request.device_ids)),
                "cpu_cores": as_decimal(request.cpu_milli) if request.cpu_milli else "",
                "memory_mb": _number(request.memory_mb),
                "node_labels": ";".join(f"{key}={value}" for key, value in request.node_labels),
                "topology": ""
                if request.topology is Topology.PREFER_ISLAND
                else str(request.topology),
                "contiguous": _flag(request.contiguous),
                "min_bandwidth_gbps": _number(request.min_bandwidth_gbps),
            }
        ),
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


def _options(job: Job) -> Mapping[str, str]:
    return _written(
        {
            "tenant": "" if job.tenant == "default" else job.tenant,
            "user": job.user,
            "name": job.name,
            "priority": "" if job.priority == NORMAL_PRIORITY else str(job.priority),
            "pool": "" if job.pool is Pool.BATCH else str(job.pool),
            "preemptible": "" if job.preemptible else "false",
            "interactive": _flag(job.interactive),
            "limit_s": _seconds(job.max_runtime_ms),
            "estimate_s": _seconds(job.estimate_ms),
            "deadline_s": _seconds(job.deadline_ms),
            "begin_s": _seconds(job.begin_ms),
            "after": ";".join(f"{other.kind}:{other.job_id}" for other in job.dependencies),
            "array": _array_text(job.array),
            "retries": _number(job.retries),
            "same_rack": _flag(job.same_rack),
            "requeue_on_node_loss": _flag(job.requeue_on_node_loss),
        }
    )


def _gpus_milli(request: Request) -> int:
    if request.mig_profile:
        return request.gpu_count * 1000
    return request.gpu_count * request.gpu_share_milli + request.gpu_extra_milli


def _array_text(array: Array | None) -> str:
    if array is None:
        return ""
    return f"{array.tasks}%{array.max_running}" if array.max_running else str(array.tasks)


def _written(record: dict[str, str]) -> dict[str, str]:
    return {column: text for column, text in record.items() if text}


def _number(amount: int) -> str:
    return str(amount) if amount else ""


def _seconds(milliseconds: int) -> str:
    return as_decimal(milliseconds) if milliseconds else ""


def _flag(value: bool) -> str:
    return "true" if value else ""


# Nodes and tenants as flat text records, the form that CSV and JSON share.

HOUR_MS = 3_600_000


def _tier(text: str, name: str) -> Tier:
    return Tier(one_of(text, name, [tier.value for tier in Tier]))


def _gpu_hours(text: str, name: str) -> int:
    # Thousandths of a GPU hour are milli-GPU hours.
    return thousandths(text, name) * HOUR_MS


def _slices(text: str, name: str) -> tuple[tuple[str, int], ...]:
    found = tuple((profile, whole_number(count, name)) for profile, count in pairs(text, name))
    if not all(count for _, count in found):
        raise unexpected(text, name, "profiles with how many there are, such as 1g.10gb=4")
    return found


_NODE_FIELDS: dict[str, tuple[str, _Read]] = {
    "id": ("id", _text),
    "count": ("count", whole_number),
    "gpus": ("gpus", whole_number),
    "model": ("model", _text),
    "gpu_memory_mb": ("gpu_memory_mb", whole_number),
    "cpu_cores": ("cpu_milli", thousandths),
    "memory_mb": ("memory_mb", whole_number),
    "rack": ("rack", _text),
    "labels": ("labels", pairs),
    "island_size": ("island_size", whole_number),
    "island_gbps": ("island_gbps", whole_number),
    "mig_slices": ("mig_slices", _slices),
}
NODE_COLUMNS = tuple(_NODE_FIELDS)
REQUIRED_NODE_COLUMNS = ("id", "gpus")

_TENANT_FIELDS: dict[str, tuple[str, _Read]] = {
    "id": ("id", _text),
    "name": ("name", _text),
    "tier": ("tier", _tier),
    "weight": ("weight_milli", exact_thousandths),
    "elastic": ("elastic", yes_or_no),
    "allow_preemption": ("allow_preemption", yes_or_no),
    "can_preempt_others": ("can_preempt_others", yes_or_no),
    "max_preemptions": ("max_preemptions", whole_number),
}
_QUOTA_FIELDS: dict[str, tuple[str, _Read]] = {
    "max_gpus": ("gpu_milli", exact_thousandths),
    "max_gpu_memory_mb": ("gpu_memory_mb", whole_number),
    "max_cpu_cores": ("cpu_milli", thousandths),
    "max_memory_mb": ("memory_mb", whole_number),
    "max_concurrent_jobs": ("concurrent_jobs", whole_number),
    "max_gpu_hours": ("gpu_milli_ms", _gpu_hours),
}
TENANT_COLUMNS = (*_TENANT_FIELDS, *_QUOTA_FIELDS)


def read_node_group(record: Mapping[str, str]) -> NodeGroup:
    """Some nodes of one kind."""
    for column in REQUIRED_NODE_COLUMNS:
        if not record.get(column):
            raise InvalidRequest(f"{column} is empty; expected a value for each group of nodes")
    return NodeGroup(**_read(record, _NODE_FIELDS))


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
        "labels": ";".join(f"{key}={value}" for key, value in node.labels),
        "island_size": str(island_size) if island_size < node.gpu_count else "",
        "island_gbps": str(node.devices[0].bandwidth_gbps) if node.devices else "",
        "mig_slices": ";".join(
            f"{profile}={count}"
            for profile, count in (node.devices[0].mig_slices if node.devices else ())
        ),
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
    fields = _read(record, _TENANT_FIELDS)
    if not fields.get("weight_milli", 1):
        raise unexpected(record["weight"], "weight", "a number above 0")
    return Tenant(**fields, quota=Quota(**_read(record, _QUOTA_FIELDS)))


def tenant_record(tenant: Tenant) -> dict[str, str]:
    """A tenant with everything that is set."""
    quota = tenant.quota
    amounts: dict[str, tuple[int | None, Callable[[int], str]]] = {
        "max_gpus": (quota.gpu_milli, as_decimal),
        "max_gpu_memory_mb": (quota.gpu_memory_mb, str),
        "max_cpu_cores": (quota.cpu_milli, as_decimal),
        "max_memory_mb": (quota.memory_mb, str),
        "max_concurrent_jobs": (quota.concurrent_jobs, str),
        "max_gpu_hours": (
            None if quota.gpu_milli_ms is None else quota.gpu_milli_ms // HOUR_MS,
            as_decimal,
        ),
    }
    record = {
        "id": tenant.id,
        "name": tenant.name,
        "tier": tenant.tier.value,
        "weight": as_decimal(tenant.weight_milli),
        "elastic": str(tenant.elastic).lower(),
        "allow_preemption": str(tenant.allow_preemption).lower(),
        "can_preempt_others": str(tenant.can_preempt_others).lower(),
        "max_preemptions": str(tenant.max_preemptions),
        **{name: write(limit) for name, (limit, write) in amounts.items() if limit is not None},
    }
    return {name: text for name, text in record.items() if text}


def _read(record: Mapping[str, str], fields: Mapping[str, tuple[str, _Read]]) -> dict[str, Any]:
    return {
        name: read(record[column], column)
        for column, (name, read) in fields.items()
        if record.get(column)
    }
