"""One job as a flat record of text, the shape that our CSV and JSON share, to `TraceJob`.

The way back is in `job_text`. Every column is described in docs/reference/traces.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, Dependency, DependencyKind, Job, Pool, read_priority
from gpu_scheduler.model.request import Request, Topology
from gpu_scheduler.simulator.fit import Fit
from gpu_scheduler.simulator.traces.values import (
    LONGEST_TEXT,
    choices,
    exact_thousandths,
    one_of,
    pairs,
    thousandths,
    unexpected,
    whole_number,
    yes_or_no,
)
from gpu_scheduler.simulator.workload import TraceJob

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
"""What one member asks of one node."""
GANG_COLUMNS = ("members", "min_members")
REQUIRED_COLUMNS = ("id", "submit_s", "run_s", "gpus")


class JobReader:
    """Turns flat records into jobs that fit a cluster. Equal requests are read once and shared."""

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
                    f"{column} stands beside a list of members; expected it inside each member"
                )
        members = tuple(read_request(member) for member in member_records)
        least = whole_number(record.get("min_members") or "0", "min_members")
        self._fit.check(members[: least or len(members)])
        return members, least


def read_request(record: Mapping[str, str]) -> Request:
    """What one member asks for. No GPU but GPU memory means memory of one shared GPU."""
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
    return read_priority(text)


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
    # A mistyped step over a huge range would be written out number by number.
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
