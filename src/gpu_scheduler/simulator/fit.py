"""Feasibility check against an empty cluster: rejects jobs of a trace that can never run.

An optimistic bound: it rejects only jobs that no placement could ever run. It also splits requests
that need whole GPUs of several nodes, which the engine's capacity check does not do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_scheduler.model.errors import NeverFits
from gpu_scheduler.model.job import split_over_nodes
from gpu_scheduler.model.node import Device, Node, matches_labels
from gpu_scheduler.model.request import WHOLE_MILLI, Request, Topology

UNBOUNDED = 1 << 60


@dataclass(slots=True)
class Group:
    """Devices of a node that a request could use together; some have enough memory for it."""

    devices: int = 0
    large_enough: int = 0


class Fit:
    """The kinds of nodes of a cluster, and how many there are of each."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        """Group equal nodes, so that ten thousand of them cost as much as one."""
        kinds: dict[tuple[object, ...], tuple[Node, int]] = {}
        for node in nodes:
            known, count = kinds.get(_kind(node), (node, 0))
            kinds[_kind(node)] = (known, count + 1)
        self._kinds = tuple(kinds.values())
        self._groups_known: dict[tuple[object, ...], list[list[Group]]] = {}
        self.gpu_count = sum(node.gpu_count * count for node, count in self._kinds)
        self.largest_gpu_count = max((node.gpu_count for node, _ in self._kinds), default=0)

    def spread(self, request: Request) -> tuple[Request, ...]:
        """The request itself, or its parts when it needs whole GPUs of several nodes.

        Raises `NeverFits` when the empty cluster could not hold it.
        """
        if self._holds([request]):
            return (request,)
        for node_gpus in self._sizes_below(request):
            parts = split_over_nodes(request, node_gpus)
            if self._holds(parts):
                return parts
        raise NeverFits(f"{_wanted(request)} can never run: {self._offer()}")

    def check(self, members: Sequence[Request]) -> None:
        """Raise `NeverFits` unless the empty cluster could hold all members at once."""
        for request, count in Counter(members).items():
            if not self._holds([request]):
                raise NeverFits(f"{_wanted(request)} can never run: {self._offer()}")
            if not self._holds([request] * count):
                raise NeverFits(
                    f"{count} times {_wanted(request)} can never run at once: {self._offer()}"
                )
        if not self._holds(members):
            gpus = sum(member.gpu_milli for member in members) / WHOLE_MILLI
            raise NeverFits(f"a gang of {gpus:g} GPUs can never run: {self._offer()}")

    def _holds(self, members: Sequence[Request]) -> bool:
        wanted = Counter(members)
        if sum(member.gpu_milli for member in members) > self._usable_gpus(wanted) * WHOLE_MILLI:
            return False
        return all(
            sum(
                _copies(node, request, groups) * nodes
                for (node, nodes), groups in zip(self._kinds, self._groups(request), strict=True)
            )
            >= count
            for request, count in wanted.items()
        )

    def _usable_gpus(self, requests: Iterable[Request]) -> int:
        """The GPUs that the requests may use if all have the same constraints; else all GPUs."""
        first, *others = {_constraint(request): request for request in requests}.values()
        if others or not first.device_count:
            return self.gpu_count
        return sum(
            group.devices * nodes
            for (_, nodes), groups in zip(self._kinds, self._groups(first), strict=True)
            for group in groups
        )

    def _sizes_below(self, request: Request) -> list[int]:
        """The possible numbers of GPUs per node when the request is split, largest first."""
        if not request.takes_whole_devices_only or request.device_ids or request.contiguous:
            return []
        sizes = {group.devices for groups in self._groups(request) for group in groups}
        return sorted((size for size in sizes if 0 < size < request.gpu_count), reverse=True)

    def _groups(self, request: Request) -> list[list[Group]]:
        """The usable groups of each kind of node, for any number of GPUs."""
        key = _constraint(request)
        if key not in self._groups_known:
            self._groups_known[key] = [_usable_groups(node, request) for node, _ in self._kinds]
        return self._groups_known[key]

    def _offer(self) -> str:
        largest = max(
            (node for node, _ in self._kinds),
            key=lambda node: (node.gpu_count, node.cpu_milli, node.memory_mb),
            default=None,
        )
        if largest is None:
            return "the cluster has no nodes"
        models = sorted({device.model for node, _ in self._kinds for device in node.devices})
        return (
            f"the cluster has {self.gpu_count} GPUs ({', '.join(models) or 'none'}), and its "
            f"largest node {largest.gpu_count} GPUs, {largest.cpu_milli / 1000:g} CPU cores "
            f"and {largest.memory_mb} MiB"
        )


def _wanted(request: Request) -> str:
    """A short description of the request, for messages."""
    gpus = request.gpu_count if request.mig_profile else request.gpu_milli / WHOLE_MILLI
    parts = [
        f"{gpus:g} GPUs",
        request.mig_profile and f"MIG profile {request.mig_profile}",
        request.gpu_models and f"model {'|'.join(request.gpu_models)}",
        request.gpu_memory_mb and f"{request.gpu_memory_mb} MiB of GPU memory each",
        request.device_ids and f"devices {', '.join(map(str, request.device_ids))}",
        request.cpu_milli and f"{request.cpu_milli / 1000:g} CPU cores",
        request.memory_mb and f"{request.memory_mb} MiB",
        request.node_labels and f"labels {dict(request.node_labels)}",
        request.topology is Topology.REQUIRE_ISLAND and "one island",
        request.min_bandwidth_gbps and f"{request.min_bandwidth_gbps} Gbit/s",
    ]
    return "a request for " + ", ".join(part for part in parts if part)


def _kind(node: Node) -> tuple[object, ...]:
    devices = tuple(
        (
            device.index,
            device.model,
            device.memory_mb,
            device.island,
            device.bandwidth_gbps,
            device.mig_slices,
        )
        for device in node.devices
    )
    return (node.cpu_milli, node.memory_mb, node.labels, devices)


def _constraint(request: Request) -> tuple[object, ...]:
    """The fields of a request that decide which devices it may use."""
    return (
        request.gpu_models,
        request.device_ids,
        request.gpu_memory_mb,
        request.gpu_extra_memory_mb if request.gpu_extra_milli else None,
        request.topology is Topology.REQUIRE_ISLAND,
        request.min_bandwidth_gbps if request.device_count > 1 else 0,
    )


def _usable_groups(node: Node, request: Request) -> list[Group]:
    """Usable devices by model, and by island where one island is required."""
    groups: dict[tuple[str, int], Group] = {}
    one_island = request.topology is Topology.REQUIRE_ISLAND
    for device in node.devices:
        if _usable(device, request):
            key = (device.model, device.island if one_island else 0)
            group = groups.setdefault(key, Group())
            group.devices += 1
            group.large_enough += device.memory_mb >= request.gpu_memory_mb
    return list(groups.values())


def _usable(device: Device, request: Request) -> bool:
    least_mb = request.gpu_memory_mb
    if request.gpu_extra_milli:
        least_mb = min(least_mb, request.gpu_extra_memory_mb)
    return (
        (not request.gpu_models or device.model in request.gpu_models)
        and (not request.device_ids or device.index in request.device_ids)
        and device.memory_mb >= least_mb
        and (request.device_count < 2 or device.bandwidth_gbps >= request.min_bandwidth_gbps)
    )


def _copies(node: Node, request: Request, groups: list[Group]) -> int:
    """An upper bound for how many such requests an empty node holds at once."""
    if not matches_labels(request.node_labels, node.id, node.labels):
        return 0
    copies = UNBOUNDED
    if request.mig_profile:
        slices = sum(dict(device.mig_slices).get(request.mig_profile, 0) for device in node.devices)
        copies = slices // max(1, request.gpu_count)
    elif request.device_count:
        copies = sum(_copies_in(group, request) for group in groups)
    if request.cpu_milli:
        copies = min(copies, node.cpu_milli // request.cpu_milli)
    if request.memory_mb:
        copies = min(copies, node.memory_mb // request.memory_mb)
    return copies


def _copies_in(group: Group, request: Request) -> int:
    if group.large_enough < request.gpu_count or group.devices < request.device_count:
        return 0
    if not request.gpu_milli:
        return UNBOUNDED
    if request.gpu_extra_milli:
        return group.devices * WHOLE_MILLI // request.gpu_milli
    share_milli = request.gpu_milli // request.gpu_count
    return group.devices * (WHOLE_MILLI // share_milli) // request.gpu_count
