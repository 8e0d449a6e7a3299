"""Kubernetes: pods, GpuClaims and nodes as `kubectl get ... -o json` prints them.

A file holds one or more documents: lists of objects, or single objects as `--watch` prints them. Of
an object that appears several times the last version counts. A pod is a job; pods of a gang are one
job. Node affinity, taints and pods without GPUs are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, NeverFits
from gpu_scheduler.model.job import NORMAL_PRIORITY, Job
from gpu_scheduler.model.node import Device, DeviceMode, Node
from gpu_scheduler.model.request import WHOLE_MILLI, Request, Topology
from gpu_scheduler.simulator.traces.collector import Intake, Reading
from gpu_scheduler.simulator.traces.parsing import read_items, text_lines, unexpected
from gpu_scheduler.simulator.workload import (
    DEFAULT_GPU_MEMORY_MB,
    DEFAULT_MODEL,
    Cluster,
    EmptyCluster,
    TraceJob,
)

PODS_COMMAND = "kubectl get pods -A -o json"
NODES_COMMAND = "kubectl get nodes -o json"
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
MIG_RESOURCE = "nvidia.com/mig-"
PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
MEMORY_LABEL = "nvidia.com/gpu.memory"
COUNT_LABEL = "nvidia.com/gpu.count"
RACK_LABELS = ("gpu.scheduling/rack", "topology.kubernetes.io/rack")
HOST_LABEL = "kubernetes.io/hostname"
CLAIM_ANNOTATION = "gpu.scheduling/claim"
OWNER_ANNOTATION = "gpu.scheduling/owner"
ALLOCATED_ANNOTATION = "gpu.scheduling/allocated"
GANG_LABELS = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "kueue.x-k8s.io/pod-group-name",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
)
GANG_ANNOTATION = "scheduling.k8s.io/group-name"
"""Of Volcano. The labels are those of the coscheduling plugin, Kueue, Kubeflow and Ray."""
NEVER_STARTED = "no start"
END_UNKNOWN = "an unknown end"
NO_GPU = "no GPU"
BY_RESOURCE_CLAIM = "GPUs by ResourceClaim"
CLAIM_UNKNOWN = "a GpuClaim that the file does not have"
TOO_LARGE = "a request that the cluster can never run"
MIB = 1 << 20
MOST_GPUS = 1024

_FIRST_KEY = re.compile(r'\s*\{\s*"(apiVersion|items|kind|metadata)"')
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_CRON_SUFFIX = re.compile(r"-\d{8,}$")
_QUANTITY = re.compile(r"([+-]?[\d.]+(?:[eE][+-]?\d{1,2})?)([numkMGTPE]|[KMGTPE]i)?", re.ASCII)
_SUFFIXES = {"": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
_SUFFIXES |= {sign: Decimal(1000) ** power for power, sign in enumerate("kMGTPE", 1)}
_SUFFIXES |= {f"{sign}i": Decimal(1024) ** power for power, sign in enumerate("KMGTPE", 1)}

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A pod with GPUs, the claim that it names, and when it was on a node."""

    pod: Object
    claim: Object
    request: Request
    submit_ms: int
    start_ms: int
    end_ms: int


def is_kubernetes(beginning: str) -> bool:
    """Whether a text begins like an object or a list of Kubernetes."""
    return _FIRST_KEY.match(beginning) is not None


def read_pods(path: Path, cluster: Cluster | None = None) -> Reading:
    """Read pods with GPUs as jobs; without `cluster`, the nodes must be in the file.

    A pod runs from its binding to the end of its last container; one that still runs, to the
    latest time in the file. Skipped and counted: pods without GPUs, that were never bound, whose
    end or claim is unknown, or that the cluster can never run.
    """
    objects = _objects(path)
    if cluster is None:
        nodes = _nodes(path, objects)
        if not nodes:
            raise InvalidInput(
                "the file has no nodes; give them with --cluster FILE (the output of "
                f"{NODES_COMMAND}) or --nodes N",
                file=str(path),
            )
        cluster = Cluster.pool(nodes)
    reader = _PodReader(path, objects, cluster.nodes)
    jobs = read_items(path, reader.groups(), reader.job)
    return Intake(path, jobs).pool(cluster.nodes, has_dates=True)


def read_kubernetes_nodes(path: Path) -> Cluster:
    """Read the nodes with GPUs."""
    nodes = _nodes(path, _objects(path))
    if not nodes:
        raise InvalidInput(
            f"the file has no nodes with GPUs; expected the output of: {NODES_COMMAND}",
            file=str(path),
        )
    return Cluster.pool(nodes)


def _objects(path: Path) -> dict[str, dict[str, Object]]:
    """The objects of all documents by kind, and by name or uid; the last version counts."""
    text = "".join(text_lines(path))
    decoder = json.JSONDecoder()
    found: dict[str, dict[str, Object]] = {}
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        try:
            document, place = decoder.raw_decode(text, place)
            for item in document.get("items", [document]):
                meta = item["metadata"]
                key = meta.get("uid") or f"{meta.get('namespace', '')}/{meta['name']}"
                kind = item.get("kind") or document["kind"].removesuffix("List")
                found.setdefault(kind, {})[key] = item
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why, where = repr(error), place
            if isinstance(error, json.JSONDecodeError):
                why, where = error.msg, error.pos
            raise InvalidInput(
                f"not a list of Kubernetes objects ({why}); expected the output of: {PODS_COMMAND}",
                file=str(path),
                line=text.count("\n", 0, where) + 1,
            ) from error
    return found


@contextmanager
def _well_formed(path: Path, what: str) -> Iterator[None]:
    """Name the file and the object in the error about an object."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidInput(f"{what}: {error}", file=str(path)) from error
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"{what} is not as the API server writes it ({error!r})", file=str(path)
        ) from error
    except RecursionError as error:
        raise InvalidInput(f"{what} is nested too deeply", file=str(path)) from error


class _PodReader:
    """Groups pods into jobs, and makes their requests."""

    def __init__(
        self, path: Path, objects: Mapping[str, Mapping[str, Object]], nodes: tuple[Node, ...]
    ) -> None:
        self._path = path
        self._pods = objects.get("Pod", {}).values()
        self._claims = {
            (_meta(claim, "namespace"), _meta(claim, "name")): claim
            for claim in objects.get("GpuClaim", {}).values()
        }
        self._by_owner = {
            (namespace, owner): claim
            for (namespace, _), claim in self._claims.items()
            if (owner := _annotations(claim).get(OWNER_ANNOTATION))
        }
        self._empty = EmptyCluster(nodes)
        self._has_labels = any(node.labels for node in nodes)
        self._latest_ms = 0

    def groups(self) -> Iterator[tuple[None, tuple[str, list[_Member]] | str]]:
        """The jobs with their pods, the oldest first; or why a pod is left out."""
        path = self._path
        if not self._pods:
            raise InvalidInput(
                f"the file holds no pods; expected the output of: {PODS_COMMAND}", file=str(path)
            )
        for pod in self._pods:
            with _well_formed(path, f"pod {_name(pod)}"):
                times = map(_ms, _times(pod.get("status", {})))
                self._latest_ms = max(self._latest_ms, *times, 0)
        groups: dict[str, list[_Member]] = {}
        for pod in sorted(self._pods, key=_age):
            with _well_formed(path, f"pod {_name(pod)}"):
                member = self._member(pod)
                group = member if isinstance(member, str) else _group(pod, member.claim)
            if isinstance(member, str):
                yield None, member
            else:
                groups.setdefault(group, []).append(member)
        for name, members in groups.items():
            yield None, (name, members)

    def job(self, group: tuple[str, list[_Member]] | str, number: int) -> TraceJob | str:
        """The job of some pods; all of a gang count as if they had run equally long."""
        if isinstance(group, str):
            return group
        name, members = group
        with _well_formed(self._path, f"pod {_name(members[0].pod)}"):
            return self._job(name, members, number)

    def _job(self, name: str, members: list[_Member], number: int) -> TraceJob | str:
        requests = tuple(member.request for member in members)
        first = members[0]
        spec = first.claim.get("spec", {})
        least = (spec.get("gang") or {}).get("minMembers", len(members))
        least = min(len(members), least) if len(members) > 1 else 0
        try:
            self._empty.check(requests[: least or 1])
        except NeverFits:
            return TOO_LARGE
        limits_s = [
            limit
            for limit in (
                first.pod["spec"].get("activeDeadlineSeconds"),
                spec.get("maxRunTimeSeconds"),
            )
            if limit
        ]
        limit_ms = min(limits_s, default=0) * 1000
        start_ms, end_ms = min(m.start_ms for m in members), max(m.end_ms for m in members)
        run_ms = max(0, end_ms - start_ms)
        submit_ms = min(member.submit_ms for member in members)
        begin_ms = _ms(spec["beginTime"]) if spec.get("beginTime") else 0
        namespace = _meta(first.pod, "namespace") or "default"
        priority, preemptible = spec.get("priority"), spec.get("preemptible")
        job = Job(
            id=name,
            number=number,
            submit_ms=submit_ms,
            begin_ms=begin_ms if begin_ms > submit_ms else 0,
            tenant=str(spec.get("queue") or namespace),
            user=namespace,
            name=_workload_name(first.pod),
            members=requests,
            min_members=least,
            priority=NORMAL_PRIORITY if priority is None else priority,
            preemptible=True if preemptible is None else preemptible,
            max_runtime_ms=limit_ms,
        )
        return TraceJob(job, min(run_ms, limit_ms) if limit_ms else run_ms)

    def _member(self, pod: Object) -> _Member | str:
        try:
            return self._fitting_member(pod)
        except NeverFits:
            return TOO_LARGE

    def _fitting_member(self, pod: Object) -> _Member | str:
        amounts = _pod_amounts(pod["spec"])
        annotations = _annotations(pod)
        claim = self._claim_of(pod)
        wants_claim = CLAIM_ANNOTATION in annotations
        gpus = sum(int(amounts.get(name, 0)) for name in GPU_RESOURCES)
        profiles = {
            name.removeprefix(MIG_RESOURCE): int(count)
            for name, count in amounts.items()
            if name.startswith(MIG_RESOURCE) and count
        }
        if claim is None and wants_claim and ALLOCATED_ANNOTATION not in annotations:
            return CLAIM_UNKNOWN
        if claim is None and wants_claim:
            gpus = gpus or len(annotations[ALLOCATED_ANNOTATION].split(","))
        if claim is None and not gpus and not profiles:
            return BY_RESOURCE_CLAIM if pod["spec"].get("resourceClaims") else NO_GPU
        status = pod.get("status", {})
        start_ms = _bound_ms(status)
        if start_ms is None:
            return NEVER_STARTED
        end_ms = self._end_ms(status)
        if end_ms is None:
            return END_UNKNOWN
        request = Request(
            cpu_milli=int(amounts.get("cpu", 0) * 1000),
            memory_mb=int(-(-amounts.get("memory", 0) // MIB)),
        )
        selector = dict(pod["spec"].get("nodeSelector") or {})
        if claim is not None:
            request = self._with_claim(request, claim["spec"])
            selector |= claim["spec"].get("nodeSelector") or {}
        elif profiles and not gpus:
            ((profile, count), *others) = profiles.items()
            if others:
                raise unexpected(", ".join(profiles), "the MIG profile", "one profile for each pod")
            request = replace(request, gpu_count=count, mig_profile=profile)
        else:
            request = replace(request, gpu_count=gpus)
        for label in PRODUCT_LABELS:
            if product := selector.pop(label, ""):
                request = replace(request, gpu_models=self._empty.models_like((product,)))
        selector.pop(HOST_LABEL, None)
        if self._has_labels:
            labels = sorted((str(label), str(value)) for label, value in selector.items())
            request = replace(request, node_labels=tuple(labels))
        return _Member(
            pod=pod,
            claim=claim or {},
            request=request,
            submit_ms=_ms(_meta(pod, "creationTimestamp")),
            start_ms=start_ms,
            end_ms=end_ms,
        )

    def _with_claim(self, request: Request, spec: Object) -> Request:
        devices, topology = spec["devices"], spec.get("topology") or {}
        is_required = topology.get("mode") == "Required"
        profile = devices.get("migProfile", "")
        is_shared = devices.get("exclusivity") == "Shared" and not profile
        share_milli = round(devices.get("fraction", 0) * WHOLE_MILLI) if is_shared else WHOLE_MILLI
        bandwidth = topology.get("minBandwidthGBps", 0)
        return replace(
            request,
            gpu_count=int(devices.get("count", 1)),
            gpu_share_milli=share_milli,
            gpu_memory_mb=int(-(-_quantity(devices.get("memory", 0)) // MIB)),
            gpu_models=self._empty.models_like(devices.get("models") or ()),
            mig_profile=profile,
            topology=Topology.REQUIRE_ISLAND if is_required else Topology.PREFER_ISLAND,
            contiguous=devices.get("policy") == "contiguous",
            spread=devices.get("policy") == "spread",
            min_bandwidth_gbps=bandwidth if is_required else 0,
        )

    def _claim_of(self, pod: Object) -> Object | None:
        namespace = _meta(pod, "namespace")
        if name := _annotations(pod).get(CLAIM_ANNOTATION):
            return self._claims.get((namespace, name))
        owners = (self._by_owner.get((namespace, owner)) for owner in _owners(pod))
        return next(filter(None, owners), None)

    def _end_ms(self, status: Object) -> int | None:
        """The end of the last container; of a pod that still runs, the latest time in the file."""
        if status.get("phase") not in ("Succeeded", "Failed"):
            return self._latest_ms
        ends = [
            _ms(ended["finishedAt"])
            for container in status.get("containerStatuses") or ()
            if (ended := container.get("state", {}).get("terminated") or {}).get("finishedAt")
        ]
        # An evicted pod may have lost the states of its containers.
        ends = ends or [
            _ms(condition["lastTransitionTime"])
            for condition in status.get("conditions") or ()
            if condition.get("type") in ("Ready", "DisruptionTarget")
            and condition.get("lastTransitionTime")
        ]
        return max(ends, default=None)


def _bound_ms(status: Object) -> int | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return _ms(condition["lastTransitionTime"])
    return _ms(status["startTime"]) if status.get("startTime") else None


def _pod_amounts(spec: Object) -> dict[str, Decimal]:
    """What a pod takes of its node: its containers and sidecars, or its largest init container."""
    total: dict[str, Decimal] = {}
    start: dict[str, Decimal] = {}

    def add(resources: Object) -> None:
        for name, amount in resources.items():
            total[name] = total.get(name, Decimal(0)) + amount

    for container in spec.get("initContainers") or ():
        needed = _container_amounts(container)
        if container.get("restartPolicy") == "Always":
            add(needed)
        else:
            start |= {
                name: max(amount, start.get(name, Decimal(0))) for name, amount in needed.items()
            }
    for container in spec["containers"]:
        add(_container_amounts(container))
    total |= {name: max(amount, total.get(name, Decimal(0))) for name, amount in start.items()}
    add({name: _quantity(text) for name, text in (spec.get("overhead") or {}).items()})
    return total


def _container_amounts(container: Object) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: _quantity(text) for name, text in given.items()}


def _quantity(text: object) -> Decimal:
    match = _QUANTITY.fullmatch(str(text))
    try:
        if match is not None:
            return Decimal(match[1]) * _SUFFIXES[match[2] or ""]
    except InvalidOperation:
        pass
    raise unexpected(text, "a resource", "a quantity such as 500m, 2 or 16Gi")


def _group(pod: Object, claim: Object) -> str:
    """The id of the job of a pod: that of its gang, or its own."""
    namespace, labels = _meta(pod, "namespace"), pod["metadata"].get("labels") or {}
    if gang := claim.get("spec", {}).get("gang"):
        return f"{namespace}/{gang.get('group') or _meta(claim, 'name')}"
    names = [labels[label] for label in GANG_LABELS if labels.get(label)]
    names += filter(None, [_annotations(pod).get(GANG_ANNOTATION)])
    return f"{namespace}/{names[0]}" if names else f"{_name(pod)}"


def _owners(pod: Object) -> Iterator[str]:
    """The controllers of a pod as Kind/name."""
    suffix = (pod["metadata"].get("labels") or {}).get("pod-template-hash", "")
    for owner in pod["metadata"].get("ownerReferences") or ():
        yield f"{owner['kind']}/{owner['name']}"
        if suffix and owner["name"].endswith(f"-{suffix}"):
            yield f"Deployment/{owner['name'].removesuffix(f'-{suffix}')}"


def _workload_name(pod: Object) -> str:
    """What runs of one kind have in common: the controller without what it adds to its name."""
    owners = [owner.partition("/")[2] for owner in _owners(pod)]
    name = owners[-1] if owners else _meta(pod, "generateName").rstrip("-") or _meta(pod, "name")
    return _CRON_SUFFIX.sub("", name)


def _meta(item: Object, field: str) -> str:
    return str(item["metadata"].get(field) or "")


def _annotations(item: Object) -> Mapping[str, str]:
    return item["metadata"].get("annotations") or {}


def _name(pod: Object) -> str:
    return f"{_meta(pod, 'namespace')}/{_meta(pod, 'name')}"


def _age(pod: Object) -> tuple[str, str]:
    return _meta(pod, "creationTimestamp"), _name(pod)


def _times(value: Any) -> Iterator[str]:
    """All times in a status, at any depth."""
    if isinstance(value, str) and _TIME.fullmatch(value):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _times(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _times(inner)


def _ms(text: str) -> int:
    if not _TIME.fullmatch(str(text)):
        raise unexpected(text, "a time", "one such as 2026-10-01T00:02:34Z")
    try:
        seconds = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise unexpected(text, "a time", "one such as 2026-10-01T00:02:34Z") from error
    if seconds < 0:
        raise unexpected(text, "a time", "one after 1970")
    return round(seconds * 1000)


# Nodes


def _nodes(path: Path, objects: Mapping[str, Mapping[str, Object]]) -> tuple[Node, ...]:
    """The nodes with GPUs, by name."""
    nodes: list[Node] = []
    for item in sorted(objects.get("Node", {}).values(), key=lambda item: _meta(item, "name")):
        with _well_formed(path, f"node {_meta(item, 'name')}"):
            node = _node(item, len(nodes))
        if node.devices:
            nodes.append(node)
    return tuple(nodes)


def _node(item: Object, ordinal: int) -> Node:
    status, labels = item.get("status", {}), dict(item["metadata"].get("labels") or {})
    given = status.get("allocatable") or status.get("capacity") or {}
    amounts = {name: _quantity(text) for name, text in given.items()}
    slices = {
        name.removeprefix(MIG_RESOURCE): int(count)
        for name, count in amounts.items()
        if name.startswith(MIG_RESOURCE) and count
    }
    gpus = sum(int(amounts.get(name, 0)) for name in GPU_RESOURCES)
    model = next((labels[label] for label in PRODUCT_LABELS if labels.get(label)), DEFAULT_MODEL)
    memory_mb = int(_quantity(labels.get(MEMORY_LABEL) or DEFAULT_GPU_MEMORY_MB))
    split = int(labels.get(COUNT_LABEL) or 1) - gpus if slices else 0
    if max(gpus, split) > MOST_GPUS:
        raise unexpected(max(gpus, split), "the number of GPUs", f"at most {MOST_GPUS}")
    if slices and (split < 1 or any(count % split for count in slices.values())):
        raise unexpected(slices, "the MIG slices", f"as many on each GPU of {COUNT_LABEL}")
    devices = [Device(index=index, model=model, memory_mb=memory_mb) for index in range(gpus)]
    devices += (
        Device(
            index=gpus + place,
            model=model,
            memory_mb=memory_mb,
            mode=DeviceMode.MIG,
            mig_slices=tuple(sorted((name, count // split) for name, count in slices.items())),
        )
        for place in range(split)
    )
    labels.pop(HOST_LABEL, None)
    return Node(
        id=_meta(item, "name"),
        ordinal=ordinal,
        cpu_milli=int(amounts.get("cpu", 0) * 1000),
        memory_mb=int(amounts.get("memory", 0) // MIB),
        devices=tuple(devices),
        labels=tuple(sorted((name, str(text)) for name, text in labels.items())),
        rack=next((labels[label] for label in RACK_LABELS if labels.get(label)), ""),
    )
