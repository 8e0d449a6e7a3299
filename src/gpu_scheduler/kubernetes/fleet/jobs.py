"""Pods and gangs as jobs of the REST API, and GpuQueues as its quota tree.

A job is a pod of the scheduler, or a gang. Its id is `NAMESPACE/POD` or `NAMESPACE/NAME (gang)`,
as the scheduler names it in reasons and events; its user is the namespace, its tenant the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpu_scheduler.kubernetes.crds.claim import ClaimPhase, GpuClaim
from gpu_scheduler.kubernetes.crds.queue import ANY_MODEL, GpuQueue
from gpu_scheduler.kubernetes.names import INDICES_ANNOTATION, SCHEDULER_NAME
from gpu_scheduler.kubernetes.objects import Pod
from gpu_scheduler.kubernetes.scheduler.objects_view import (
    Key,
    Objects,
    has_ended,
    is_bound,
)
from gpu_scheduler.kubernetes.scheduler.queues import Queues
from gpu_scheduler.kubernetes.scheduler.workloads import (
    ClaimFinder,
    Member,
    engine_priority,
    group_id,
    limit_ms,
    member_of,
    started_ms,
)
from gpu_scheduler.model.errors import InvalidRequest, UnknownThing
from gpu_scheduler.model.request import WHOLE_MILLI, Request
from gpu_scheduler.wire.times import write_time

MINUTE_MS = 60_000
NOT_SEEN = (
    "the scheduler has not looked at it yet; if that lasts, look whether the pods of gpu-scheduler "
    "run"
)
START_UNKNOWN = (
    "only claims have expected starts, and only if all that is ahead has a time limit, or like "
    "pods have ended"
)
SORTS = ("queue", "number", "user", "name", "state", "gpus", "priority", "time", "tenant")
_ORDER = {"running": 0, "scheduled": 1, "preempted": 2, "pending": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetJob:
    """A pod, or the pods of a gang, in the order of their age. Never empty."""

    id: str
    number: int
    members: tuple[Member, ...]
    state: str
    queue: str

    @property
    def claim(self) -> GpuClaim | None:
        """The claim of its pods."""
        return self.members[0].claim

    @property
    def namespace(self) -> str:
        """The namespace of its pods."""
        return self.members[0].pod.metadata.namespace

    @property
    def name(self) -> str:
        """The name of the claim; else nothing, because the id has the name of the pod."""
        return self.claim.metadata.name if self.claim is not None else ""

    @property
    def is_gang(self) -> bool:
        """Whether its pods start together or not at all."""
        return self.claim is not None and self.claim.spec.gang is not None

    @property
    def placed(self) -> tuple[Member, ...]:
        """The members on nodes."""
        return tuple(one for one in self.members if is_bound(one.pod) and not has_ended(one.pod))

    @property
    def waiting(self) -> tuple[Member, ...]:
        """The members that are not on nodes."""
        return tuple(
            one for one in self.members if not is_bound(one.pod) and not has_ended(one.pod)
        )

    @property
    def start_ms(self) -> int | None:
        """When its first pod was bound."""
        return min((at for one in self.members if (at := started_ms(one.pod))), default=None)

    @property
    def end_ms(self) -> int | None:
        """When its last pod ended, if all have."""
        ends = [_ended_ms(one.pod) for one in self.members]
        return (
            None
            if self.state not in ("completed", "failed") or None in ends
            else max(end for end in ends if end is not None)
        )

    @property
    def max_runtime_ms(self) -> int:
        """The time limit; 0 without one."""
        return limit_ms(self.members)

    @property
    def priority(self) -> int:
        """The urgency on the scale of the engine."""
        given = None if self.claim is None else self.claim.spec.priority
        if given is not None:
            return given
        return max(engine_priority(one.pod.spec.priority) for one in self.members)

    @property
    def reason(self) -> str:
        """Why it waits or has failed, as the scheduler or the kubelet has written it."""
        if self.state in ("pending", "preempted"):
            for member in self.waiting:
                for condition in member.pod.status.conditions:
                    if condition.type == "PodScheduled" and condition.message:
                        return condition.message
            return (self.claim.status.reason if self.claim is not None else "") or NOT_SEEN
        if self.state == "failed":
            failed = [one.pod.status for one in self.members if one.pod.status.phase == "Failed"]
            return next((each.message or each.reason for each in failed), "")
        return ""

    @property
    def position(self) -> int | None:
        """The place in line, as the claim says it."""
        return self.claim.status.queue_position if self.waiting and self.claim else None

    @property
    def expected_start(self) -> str | None:
        """The likely start, as the claim says it."""
        expected = self.claim.status.expected_start if self.waiting and self.claim else None
        return None if expected is None else _written(expected.likely)

    @property
    def latest_start(self) -> str | None:
        """The start if all pods before it use their time limits, as the claim says it."""
        expected = self.claim.status.expected_start if self.waiting and self.claim else None
        return None if expected is None else _written(expected.latest)

    @property
    def expected_end(self) -> str | None:
        """When its time limit ends it."""
        start_ms = self.start_ms
        if self.state not in ("running", "scheduled") or not start_ms or not self.max_runtime_ms:
            return None
        return write_time(start_ms + self.max_runtime_ms)

    def places(self) -> list[dict[str, Any]]:
        """The node and GPUs of each member that is, or was, on a node."""
        return [
            {
                "node": member.pod.spec.node_name,
                "gpus": held_gpus(member),
                "member": place,
                "task": None,
                "cpu_cores": member.request.cpu_milli / 1000,
                "memory_mb": member.request.memory_mb,
            }
            for place, member in enumerate(self.members)
            if is_bound(member.pod)
        ]


def fleet_jobs(objects: Objects) -> list[FleetJob]:
    """All jobs, the oldest first."""
    finder = ClaimFinder(objects)
    queues = Queues.of(objects.queues)
    groups: dict[str, list[Member]] = {}
    pods = (pod for pod in objects.pods.values() if pod.spec.scheduler_name == SCHEDULER_NAME)
    for pod in sorted(pods, key=lambda one: (_created_ms(one), one.key)):
        claim = None
        try:
            claim = finder.of(pod)
            member = member_of(pod, claim)
        except InvalidRequest:
            # The scheduler says in the pod what is wrong with it.
            member = Member(pod=pod, effective=pod, claim=claim, request=Request())
        groups.setdefault(group_id(pod, claim), []).append(member)
    jobs = []
    for number, (name, members) in enumerate(groups.items(), 1):
        wanted = members[0].claim.spec.queue if members[0].claim is not None else ""
        queue = wanted
        if objects.queues or not wanted:
            queue, _ = queues.choose(members[0].pod.metadata.namespace, wanted)
        jobs.append(
            FleetJob(
                id=name,
                number=number,
                members=tuple(members),
                state=_state(members),
                queue=queue,
            )
        )
    return jobs


def find_job(jobs: Iterable[FleetJob], wanted: str, namespace: str) -> FleetJob:
    """The job of an id, a pod or a claim; without a namespace it is in the one that is given."""
    where, slash, name = wanted.partition("/")
    if not slash:
        where, name = namespace, wanted
    candidates = [job for job in jobs if job.namespace == where]
    for job in candidates:
        if job.id in (f"{where}/{name}", f"{where}/{name} (gang)"):
            return job
    for job in candidates:
        if job.name == name or any(one.pod.metadata.name == name for one in job.members):
            return job
    raise UnknownThing(
        f"no pod or GpuClaim '{name}' of gpu-scheduler in namespace '{where}'; "
        "'tgpu list --kube -A' shows all"
    )


def job_document(job: FleetJob) -> dict[str, Any]:
    """A job in the form of GET /jobs."""
    members = len(job.members)
    minimum = job.claim.spec.gang.min_members if job.claim and job.claim.spec.gang else 1
    placed = [one for one in job.members if is_bound(one.pod)]
    limit = job.max_runtime_ms / MINUTE_MS or None
    return {
        "id": job.id,
        "job_id": job.id,
        "number": job.number,
        "name": job.name,
        "tenant_id": job.queue,
        "user": job.namespace,
        "state": job.state,
        "reason": job.reason,
        "priority": job.priority,
        "gpu_count": sum(one.request.gpu_milli for one in job.members) / WHOLE_MILLI,
        "gpu_memory_mb": sum(one.request.gpu_memory_mb for one in job.members),
        "cpu_cores": sum(one.request.cpu_milli for one in job.members) / 1000,
        "memory_mb": sum(one.request.memory_mb for one in job.members),
        "gpu_models": list(job.members[0].request.gpu_models),
        "gang_scheduling": job.is_gang,
        "members": members,
        "min_members": minimum,
        "placed_members": len(placed) if job.is_gang and placed else None,
        "max_runtime_minutes": limit,
        "time_limit_minutes": limit,
        "submitted_at": write_time(_created_ms(job.members[0].pod)),
        "started_at": write_time(job.start_ms),
        "ended_at": write_time(job.end_ms),
        "begin_at": _written(job.claim.spec.begin_time if job.claim is not None else None),
        "expected_end": job.expected_end,
        "allocation": job.places(),
    }


def explanation(job: FleetJob) -> dict[str, Any]:
    """Why a job waits, in the form of GET /jobs/ID/explain."""
    waits = job.state in ("pending", "preempted")
    start = job.expected_start if waits else write_time(job.start_ms)
    reason = job.reason or (f"{job.state} since {write_time(job.start_ms)}" if start else job.state)
    return {
        "job_id": job.id,
        "state": job.state,
        "reason": reason,
        "code": job.state,
        "position": job.position,
        "expected_start": start,
        "expected_start_limit": job.latest_start if waits else None,
        "expected_end": job.expected_end,
        "details": {},
        "basis": "forecast" if waits and start else "",
        "start_unknown": START_UNKNOWN if waits and not start else "",
        "end_unknown": "",
    }


def job_line(job: FleetJob) -> dict[str, Any]:
    """A job in one line of a live screen."""
    counted = job.placed if job.is_gang and job.placed else job.members
    return {
        "id": job.id,
        "name": job.name,
        "user": job.namespace,
        "tenant_id": job.queue,
        "state": job.state,
        "reason": job.reason,
        "gpus": sum(one.request.gpu_milli for one in counted) / WHOLE_MILLI,
        "members": len(counted),
        "priority": job.priority,
        "interactive": False,
        "hold": False,
        "tasks": "",
        "submitted_at": write_time(_created_ms(job.members[0].pod)),
        "started_at": write_time(job.start_ms),
        "max_runtime_minutes": job.max_runtime_ms / MINUTE_MS or None,
        "places": [_short(place) for place in job.places()] if job.placed else [],
        "may_change": False,
        "expected_start": job.expected_start,
        "expected_end": job.expected_end,
        "position": job.position,
    }


def job_window(jobs: Iterable[FleetJob], query: Mapping[str, str]) -> dict[str, Any]:
    """The part of an overview about jobs: a window of those that run or wait."""
    active = [job for job in jobs if job.state in _ORDER]
    counts = {"running": 0, "scheduled": 0, "pending": 0, "held": 0}
    for job in active:
        counts["pending" if job.state == "preempted" else job.state] += 1
    words = query.get("filter", "").lower().split()
    user = query.get("user", "")
    chosen = [
        job
        for job in active
        if user in ("", job.namespace) and all(word in _searched(job) for word in words)
    ]
    chosen = sorted_jobs(chosen, query.get("sort", "queue"))
    limit = int(query.get("limit", "100"))
    offset = min(int(query.get("offset", "0")), max(0, len(chosen) - limit))
    wanted = query.get("find", "")
    found = next((place for place, job in enumerate(chosen) if job.id == wanted), None)
    return {
        "counts": counts,
        "jobs": [job_line(job) for job in chosen[offset : offset + limit]],
        "offset": offset,
        "total": len(chosen),
        "found": found,
    }


def sorted_jobs(jobs: Iterable[FleetJob], sort: str) -> list[FleetJob]:
    """Jobs in the order of `--sort`, with - before it for the other way round."""
    key = sort.removeprefix("-")
    if key not in SORTS:
        raise InvalidRequest(
            f"sort '{sort}' is not known; use one of {', '.join(SORTS)}, with - before it for the "
            "other way round"
        )
    return sorted(jobs, key=lambda job: _sort_key(job, key), reverse=sort.startswith("-"))


def held_gpus(member: Member) -> list[dict[str, Any]]:
    """The GPUs of a pod, or its parts of them, as its Binding has told."""
    told = member.pod.metadata.annotations.get(INDICES_ANNOTATION, "")
    indices = [int(word) for word in told.split(",") if word.isdecimal()]
    request = member.request
    return [
        {
            "index": index,
            "share": request.gpu_share_milli / WHOLE_MILLI,
            "memory_mb": request.gpu_memory_mb,
            "mig_profile": request.mig_profile,
        }
        for index in indices
    ]


def _state(members: list[Member]) -> str:
    states = [_member_state(one) for one in members]
    for state in ("running", "scheduled", "preempted", "pending", "failed"):
        if state in states:
            return state
    return "completed"


def _member_state(member: Member) -> str:
    pod, claim = member.pod, member.claim
    if has_ended(pod):
        return "completed" if pod.status.phase == "Succeeded" else "failed"
    if is_bound(pod):
        return "running" if pod.status.phase == "Running" else "scheduled"
    was_preempted = claim is not None and claim.status.phase is ClaimPhase.PREEMPTED
    return "preempted" if was_preempted else "pending"


def _sort_key(job: FleetJob, key: str) -> tuple[Any, ...]:
    # Without a position a waiting job comes in the order of its age.
    place = (_ORDER.get(job.state, 4), job.position or 1 << 31, job.number)
    first: dict[str, Any] = {
        "number": job.number,
        "user": job.namespace,
        "name": job.name or job.id,
        "gpus": -sum(one.request.gpu_milli for one in job.members),
        "priority": -job.priority,
        "time": job.start_ms or 1 << 60,
        "tenant": job.queue,
    }
    return (first[key], *place) if key in first else place


def _searched(job: FleetJob) -> str:
    pods = " ".join(one.pod.metadata.name for one in job.members)
    return f"{job.id} {job.namespace} {job.state} {job.name} {pods}".lower()


def _short(place: Mapping[str, Any]) -> str:
    indices = ",".join(str(gpu["index"]) for gpu in place["gpus"])
    return f"{place['node']}[{indices}]" if indices else str(place["node"])


def _created_ms(pod: Pod) -> int:
    created = pod.metadata.creation_timestamp
    return 0 if created is None else int(created.timestamp() * 1000)


def _ended_ms(pod: Pod) -> int | None:
    """When a pod ended: since then it is no longer ready."""
    if not has_ended(pod):
        return None
    times = [
        int(one.last_transition_time.timestamp() * 1000)
        for one in pod.status.conditions
        if one.type == "Ready" and one.last_transition_time is not None
    ]
    return times[0] if times else None


def _written(at: datetime | None) -> str | None:
    return None if at is None else write_time(int(at.timestamp() * 1000))


def quota_documents(queues: Mapping[Key, GpuQueue]) -> list[dict[str, Any]]:
    """A line for each queue and model, each queue below its parent."""
    by_name = {queue.metadata.name: queue for queue in queues.values()}
    children: dict[str, list[str]] = {}
    for name, queue in sorted(by_name.items()):
        parent = queue.spec.parent if queue.spec.parent in by_name else ""
        children.setdefault(parent, []).append(name)
    found: list[dict[str, Any]] = []
    shown: set[str] = set()

    def add(names: list[str], level: int) -> None:
        for name in names:
            if name not in shown:  # queues that are below themselves come at the end
                shown.add(name)
                found.extend(_lines(by_name[name], level))
                add(children.get(name, []), level + 1)

    add(children.get("", []), 0)
    add(sorted(by_name), 0)
    return found


def _lines(queue: GpuQueue, level: int) -> list[dict[str, Any]]:
    quotas = {quota.model: quota for quota in queue.spec.quotas}
    uses = {use.model: use for use in queue.status.usage}
    lines = []
    for model in sorted({ANY_MODEL, *quotas, *uses}):
        quota, use = quotas.get(model), uses.get(model)
        guaranteed = 0 if quota is None else quota.guaranteed
        if model == ANY_MODEL and quota is None:
            guaranteed = sum(one.guaranteed for one in quotas.values())
        limit = None if quota is None else quota.borrowing_limit
        lines.append(
            {
                "name": queue.metadata.name,
                "parent": queue.spec.parent,
                "level": level,
                "model": model,
                "used_gpus": 0.0 if use is None else use.allocated,
                "guaranteed_gpus": float(guaranteed),
                "max_gpus": None if limit is None else float(guaranteed + limit),
                "borrowed_gpus": 0.0 if use is None else use.borrowed,
                "lent_gpus": 0.0 if use is None else use.lent,
            }
        )
    return lines
