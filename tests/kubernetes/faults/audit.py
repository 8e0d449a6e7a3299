"""An outside checker: it reads every change of the stored objects, and knows no scheduler.

Changes come in, in the order in which they were stored; what they break goes out, as sentences:

- a GPU has at most one living pod, or parts that add up to no more than one GPU
- a pod is bound once, to a node that exists, with as many GPUs as it asked for
- when it is bound, each of its GPUs has a lease that names it
- no pod is bound to a node with a taint that it does not tolerate, or to a cordoned node
- a lease does not outlive its pod, and a gang is not half on nodes, for longer than a bound
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.kubernetes.names import (
    CLAIM_ANNOTATION,
    GPU_RESOURCE,
    HOLDERS_ANNOTATION,
    INDICES_ANNOTATION,
    SCHEDULER_NAME,
)

Manifest = dict[str, Any]
WHOLE = 1000
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One change: the object as it is now, or as it was when it was deleted."""

    at: float
    """When, in seconds of any clock."""
    plural: str
    is_deleted: bool
    object: Manifest


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How long what is repaired later may last, in seconds."""

    gang_s: float = 150.0
    lease_s: float = 150.0
    taint_s: float = 10.0
    """A taint that is so old must be known to a scheduler that binds."""


@dataclass(kw_only=True)
class Gang:
    """Which pods of a gang are on nodes, and which have done their part."""

    minimum: int
    live: set[str] = field(default_factory=set)
    succeeded: set[str] = field(default_factory=set)

    @property
    def is_half(self) -> bool:
        return 0 < len(self.live) < self.minimum - len(self.succeeded)


class Audit:
    """The objects as they are now, and what was wrong on the way."""

    def __init__(self, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - frozen
        self.bounds = bounds
        self.findings: list[str] = []
        self.bindings = 0
        self.pods: dict[str, Manifest] = {}
        self.nodes: dict[str, Manifest] = {}
        self.claims: dict[tuple[str, str], Manifest] = {}
        self.leases: dict[str, dict[str, Manifest]] = {}
        """Holders by their uid, by the name of the lease."""
        self._places: dict[str, tuple[str, frozenset[int]]] = {}
        """Node and GPUs of the pods that are bound."""
        self._users: dict[tuple[str, int], dict[str, int]] = {}
        """Living pods of each GPU, and how much of it each has."""
        self._gangs: dict[tuple[str, str], Gang] = {}
        self._repelling_since: dict[tuple[str, str], float] = {}
        self._orphans_since: dict[tuple[str, str], float] = {}
        self._half_since: dict[tuple[str, str], float] = {}

    def see(self, change: Stored) -> None:
        """Take in the next change."""
        name = change.object["metadata"]["name"]
        match change.plural:
            case "nodes":
                self._see_node(name, change)
            case "gpuclaims":
                if not change.is_deleted:
                    self.claims[change.object["metadata"]["namespace"], name] = change.object
            case "leases":
                self._see_lease(name, change)
            case "pods":
                if change.object["spec"].get("schedulerName") == SCHEDULER_NAME:
                    self._see_pod(change)
        self._check_bounds(change.at)

    def finish(self, at: float) -> list[str]:
        """What is wrong at the end, when everything that was begun should be whole."""
        self._check_bounds(at)
        for lease, holders in self.leases.items():
            for uid, holder in holders.items():
                if not self._uses(uid, lease):
                    self._find(f"lease {lease} is left over; it names pod {holder['pod']}")
        for uid, (node, indices) in self._places.items():
            if self._is_live(uid):
                for index in indices:
                    if uid not in self.leases.get(f"gpu-{node}-{index}", {}):
                        self._find(f"pod {self._name(uid)} has no lease of GPU {index} of {node}")
        for key, gang in self._gangs.items():
            if gang.is_half:
                self._find(f"gang {key[1]} is half on nodes at the end")
        return self.findings

    def _find(self, text: str) -> None:
        if text not in self.findings:
            self.findings.append(text)

    # --- nodes and leases

    def _see_node(self, name: str, change: Stored) -> None:
        if change.is_deleted:
            self.nodes.pop(name, None)
            return
        self.nodes[name] = change.object
        repelling = {_taint_key(taint) for taint in _taints(change.object)}
        for known in [one for one in self._repelling_since if one[0] == name]:
            if known[1] not in repelling:
                del self._repelling_since[known]
        for key in repelling:
            self._repelling_since.setdefault((name, key), change.at)

    def _see_lease(self, name: str, change: Stored) -> None:
        told = change.object["metadata"].get("annotations", {}).get(HOLDERS_ANNOTATION)
        if change.is_deleted or told is None:
            holders = {}
        else:
            holders = {one["uid"]: one for one in json.loads(told)}
        before = self.leases.pop(name, {})
        if holders:
            self.leases[name] = holders
        for uid in {*before, *holders}:
            self._note_orphan(name, uid, change.at)

    def _note_orphan(self, lease: str, uid: str, at: float) -> None:
        """Remember since when a lease has named a pod that does not use its GPU."""
        is_orphan = uid in self.leases.get(lease, {}) and not self._uses(uid, lease)
        if is_orphan:
            self._orphans_since.setdefault((lease, uid), at)
        else:
            self._orphans_since.pop((lease, uid), None)

    def _uses(self, uid: str, lease: str) -> bool:
        node, indices = self._places.get(uid, ("", frozenset()))
        return self._is_live(uid) and lease in {f"gpu-{node}-{index}" for index in indices}

    # --- pods

    def _see_pod(self, change: Stored) -> None:
        uid = change.object["metadata"]["uid"]
        before = self.pods.get(uid)
        if change.is_deleted:
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = change.object
            self._check_place(uid, before, change)
        self._update_users(uid)
        self._update_gang(uid, change)
        for lease in [name for name, holders in self.leases.items() if uid in holders]:
            self._note_orphan(lease, uid, change.at)

    def _check_place(self, uid: str, before: Manifest | None, change: Stored) -> None:
        pod = change.object
        node = pod["spec"].get("nodeName", "")
        place = (node, _indices(pod))
        known = self._places.get(uid)
        if not node:
            return
        if known is not None:
            if known != place:
                self._find(f"pod {self._name(uid)} was moved from {known} to {place}")
            return
        self.bindings += 1
        self._places[uid] = place
        self._check_binding(uid, before or pod, change)

    def _check_binding(self, uid: str, before: Manifest, change: Stored) -> None:
        node, indices = self._places[uid]
        name, at = self._name(uid), change.at
        asked = self._asked(change.object)
        if len(indices) != asked:
            self._find(f"pod {name} asked for {asked} GPUs and got {len(indices)}")
        if before["metadata"].get("deletionTimestamp"):
            self._find(f"pod {name} was bound while it was being deleted")
        if node not in self.nodes:
            self._find(f"pod {name} was bound to {node}, which does not exist")
            return
        has = int(self.nodes[node]["status"].get("allocatable", {}).get(GPU_RESOURCE, "0"))
        for index in indices:
            if index >= has:
                self._find(f"pod {name} got GPU {index} of {node}, which has {has}")
            if uid not in self.leases.get(f"gpu-{node}-{index}", {}):
                self._find(f"pod {name} was bound without a lease of GPU {index} of {node}")
        for taint in _taints(self.nodes[node]):
            age = at - self._repelling_since[node, _taint_key(taint)]
            if age > self.bounds.taint_s and not _tolerates(change.object, taint):
                self._find(f"pod {name} was bound to {node} against {_taint_key(taint)}")

    def _asked(self, pod: Manifest) -> int:
        claim = self._claim(pod)
        if claim is not None:
            return int(claim["spec"]["devices"].get("count", 1))
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
        return int(limits.get(GPU_RESOURCE, "0"))

    def _share(self, pod: Manifest) -> int:
        claim = self._claim(pod)
        if claim is None or claim["spec"]["devices"].get("exclusivity") != "Shared":
            return WHOLE
        return round(WHOLE * claim["spec"]["devices"]["fraction"])

    def _claim(self, pod: Manifest) -> Manifest | None:
        meta = pod["metadata"]
        name = meta.get("annotations", {}).get(CLAIM_ANNOTATION, "")
        return self.claims.get((meta["namespace"], name))

    def _update_users(self, uid: str) -> None:
        if uid not in self._places:
            return
        node, indices = self._places[uid]
        for index in indices:
            users = self._users.setdefault((node, index), {})
            if self._is_live(uid):
                users[uid] = self._share(self.pods[uid])
            else:
                users.pop(uid, None)
            if sum(users.values()) > WHOLE:
                names = ", ".join(sorted(map(self._name, users)))
                self._find(f"GPU {index} of {node} was given to {names} at once")

    def _update_gang(self, uid: str, change: Stored) -> None:
        claim = self._claim(change.object)
        if claim is None or "gang" not in claim["spec"]:
            return
        key = (claim["metadata"]["namespace"], claim["metadata"]["name"])
        gang = self._gangs.setdefault(key, Gang(minimum=claim["spec"]["gang"]["minMembers"]))
        gang.live.discard(uid)
        if self._is_live(uid) and uid in self._places:
            gang.live.add(uid)
        if change.object["status"].get("phase") == "Succeeded":
            gang.succeeded.add(uid)
        if gang.is_half:
            self._half_since.setdefault(key, change.at)
        else:
            self._half_since.pop(key, None)

    def _is_live(self, uid: str) -> bool:
        pod = self.pods.get(uid)
        return pod is not None and pod["status"].get("phase") not in ENDED

    def _name(self, uid: str) -> str:
        pod = self.pods.get(uid)
        return uid if pod is None else str(pod["metadata"]["name"])

    # --- what may last for a while

    def _check_bounds(self, at: float) -> None:
        for (lease, uid), since in self._orphans_since.items():
            if at - since > self.bounds.lease_s:
                self._find(
                    f"lease {lease} has named {self._name(uid)}, which does not use it, for "
                    f"{self.bounds.lease_s:g} s"
                )
        for (_, name), since in self._half_since.items():
            if at - since > self.bounds.gang_s:
                self._find(f"gang {name} was half on nodes for {self.bounds.gang_s:g} s")


def _indices(pod: Manifest) -> frozenset[int]:
    told = pod["metadata"].get("annotations", {}).get(INDICES_ANNOTATION, "")
    return frozenset(int(one) for one in told.split(",") if one)


def _taints(node: Manifest) -> Iterator[Manifest]:
    for taint in node.get("spec", {}).get("taints", ()):
        if taint["effect"] in ("NoSchedule", "NoExecute"):
            yield taint
    if node.get("spec", {}).get("unschedulable"):
        yield {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def _taint_key(taint: Manifest) -> str:
    return f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"


def _tolerates(pod: Manifest, taint: Manifest) -> bool:
    return any(
        one.get("key", taint["key"]) == taint["key"]
        and one.get("effect", taint["effect"]) == taint["effect"]
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        for one in pod["spec"].get("tolerations", ())
    )
