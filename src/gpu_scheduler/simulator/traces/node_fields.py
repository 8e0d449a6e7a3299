"""Nodes and tenants as flat records of text, the shape that CSV and JSON share, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.tenant import Quota, Tenant, Tier
from gpu_scheduler.simulator.cluster import NodeGroup, nodes_of
from gpu_scheduler.simulator.traces.values import (
    as_decimal,
    exact_thousandths,
    one_of,
    pairs,
    thousandths,
    unexpected,
    whole_number,
    yes_or_no,
)

HOUR_MS = 3_600_000
_Read = Callable[[str, str], Any]


def _text(text: str, _name: str) -> str:
    return text.strip()


def _tier(text: str, name: str) -> Tier:
    return Tier(one_of(text, name, [tier.value for tier in Tier]))


def _gpu_hours(text: str, name: str) -> int:
    # Thousandths of an hour on one GPU are so many milli-GPU hours.
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
    """One node. Refused when its devices differ in a way that the record cannot say."""
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
    """A tenant; a limit that is not given is no limit."""
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
