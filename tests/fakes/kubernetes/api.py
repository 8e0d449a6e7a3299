"""A Kubernetes API server in memory, which keeps the contract that a scheduler relies on.

Requests come in, answers go out, without sockets: `transport` gives it to a client on virtual time,
`server` serves it over HTTP. `tests/contract/test_kubernetes_api.py` holds it to the real
kube-apiserver. Each write gets the next resource version; watches read from one history.
"""

import asyncio
import base64
import copy
import json
import re
import uuid
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from gpu_scheduler.kubernetes.client.client import Answer, Request
from tests.fakes.kubernetes.field_managers import ApplyConflict, FieldManagers

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
ANY_FIELDS = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How the API serves a resource."""

    kind: str
    is_namespaced: bool = True
    has_status: bool = False
    counts_generations: bool = False
    allows_blind_update: bool = True
    fields: tuple[str, ...] = ()


KINDS = {
    "/api/v1/namespaces": Kind(kind="Namespace", is_namespaced=False),
    "/api/v1/nodes": Kind(
        kind="Node", is_namespaced=False, has_status=True, fields=("spec.unschedulable",)
    ),
    "/api/v1/pods": Kind(
        kind="Pod",
        has_status=True,
        fields=("spec.nodeName", "spec.schedulerName", "status.phase"),
    ),
    "/api/v1/secrets": Kind(kind="Secret"),
    "/api/v1/configmaps": Kind(kind="ConfigMap"),
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": Kind(
        kind="MutatingWebhookConfiguration", is_namespaced=False
    ),
    "/apis/coordination.k8s.io/v1/leases": Kind(kind="Lease", allows_blind_update=False),
    "/apis/resource.k8s.io/v1/resourceclaims": Kind(kind="ResourceClaim", has_status=True),
    "/apis/resource.k8s.io/v1/resourceslices": Kind(
        kind="ResourceSlice", is_namespaced=False, fields=("spec.driver", "spec.nodeName")
    ),
    "/apis/resource.k8s.io/v1/deviceclasses": Kind(kind="DeviceClass", is_namespaced=False),
    "/apis/policy/v1/poddisruptionbudgets": Kind(kind="PodDisruptionBudget", has_status=True),
    "/api/v1/events": Kind(kind="Event"),
    "/api/v1/persistentvolumeclaims": Kind(kind="PersistentVolumeClaim", has_status=True),
    "/api/v1/persistentvolumes": Kind(
        kind="PersistentVolume", is_namespaced=False, has_status=True
    ),
    "/apis/storage.k8s.io/v1/storageclasses": Kind(kind="StorageClass", is_namespaced=False),
    "/apis/storage.k8s.io/v1/csinodes": Kind(kind="CSINode", is_namespaced=False),
    "/apis/storage.k8s.io/v1/csidrivers": Kind(kind="CSIDriver", is_namespaced=False),
    "/apis/storage.k8s.io/v1/csistoragecapacities": Kind(kind="CSIStorageCapacity"),
}
CUSTOM_KINDS = {
    f"/apis/gpu.scheduling/v1/{plural}": Kind(
        kind=kind,
        is_namespaced=kind == "GpuClaim",
        has_status=True,
        counts_generations=True,
        allows_blind_update=False,
    )
    for plural, kind in (
        ("gpuclaims", "GpuClaim"),
        ("gpunodestatuses", "GpuNodeStatus"),
        ("gpuqueues", "GpuQueue"),
        ("gpureservations", "GpuReservation"),
    )
}


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(
        self, code: int, reason: str, message: str, *, causes: Any = (), retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.code = code
        details: dict[str, Any] = {"causes": list(causes)} if causes else {}
        if retry_after:
            details["retryAfterSeconds"] = retry_after
        self.retry_after = retry_after
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        }


@dataclass(kw_only=True)
class Fault:
    """What goes wrong with the next `times` requests that `matches` says yes to."""

    matches: Callable[[Request], bool] = lambda _: True
    times: int = 1
    delay_seconds: float = 0.0
    answer_delay_seconds: float = 0.0
    refuses_connection: bool = False
    loses_request: bool = False
    loses_answer: bool = False
    answer: Answer | None = None


@dataclass(frozen=True)
class Change:
    """One event of the history; `before` is None if the object is new."""

    version: int
    path: str
    type: str
    object: dict[str, Any]
    before: dict[str, Any] | None


@dataclass(frozen=True)
class Target:
    """What a path names."""

    path: str
    kind: Kind
    namespace: str
    name: str
    subresource: str


@dataclass(eq=False)
class Watcher:
    """A running watch of the resource under `path`."""

    path: str
    wakes: asyncio.Event = field(default_factory=asyncio.Event)
    is_dropped: bool = False
    is_silent: bool = False
    is_expired: bool = False


class FakeApi:
    """The state of one cluster."""

    def __init__(self, *, bookmark_seconds: float = 60.0) -> None:
        self.bookmark_seconds = bookmark_seconds
        self.kinds = KINDS | CUSTOM_KINDS
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.version = 100
        self.oldest = 100
        self.history: list[Change] = []
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.watchers: dict[Watcher, None] = {}
        self.sends_twice = False
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.new_uid: Callable[[], str] = lambda: str(uuid.uuid4())
        self._managers = FieldManagers()
        self._pages: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        for name in ("default", "kube-system"):
            self._store("/api/v1/namespaces", {"metadata": {"name": name}})

    # --- faults

    def take_fault(self, request: Request) -> Fault | None:
        """The fault that this request meets."""
        for fault in self.faults:
            if fault.times and fault.matches(request):
                fault.times -= 1
                return fault
        return None

    def compact(self) -> None:
        """Forget the history: older versions and continue tokens are too old from now on."""
        self.oldest = self.version + 1
        self.version += 1
        self._pages.clear()

    def drop_watches(self) -> None:
        """Cut the connection of every watch."""
        self._mark_watchers("is_dropped")

    def silence_watches(self) -> None:
        """Send nothing more on the running watches, and keep their connections open."""
        self._mark_watchers("is_silent")

    def expire_watches(self) -> None:
        """End every running watch with the event 410."""
        self._mark_watchers("is_expired")

    def _mark_watchers(self, flag: str) -> None:
        for watcher in self.watchers:
            setattr(watcher, flag, True)
            watcher.wakes.set()

    # --- requests

    def handle(self, request: Request) -> Answer:
        """Carry out anything but a watch."""
        self.requests.append(request)
        try:
            code, content = self._dispatch(request)
        except Refusal as refusal:
            headers = {"content-type": "application/json"}
            if refusal.retry_after:
                headers["retry-after"] = str(refusal.retry_after)
            body = json.dumps(refusal.status).encode()
            return Answer(status=refusal.code, headers=headers, body=body)
        return Answer(
            status=code,
            headers={"content-type": "application/json"},
            body=json.dumps(content).encode(),
        )

    def _dispatch(  # noqa: PLR0911 - one line for each operation
        self, request: Request
    ) -> tuple[int, dict[str, Any]]:
        target = self._target(request.path)
        query = dict(request.query)
        body = json.loads(request.body) if request.body else {}
        match request.method, target.subresource:
            case "GET", "" if target.name:
                return 200, self._found(target)
            case "GET", "" if not target.name:
                return 200, self._list(target, query)
            case "POST", "binding":
                return 201, self._bind(target, body)
            case "POST", "eviction":
                return 201, self._evict(target, body)
            case "POST", "" if not target.name:
                return 201, self._create(target, body)
            case "PUT", "" | "status":
                return 200, self._replace(target, body)
            case "PATCH", "" | "status" if "apply-patch" in request.content_type:
                return self._apply(target, body, query)
            case "PATCH", "" | "status" if "merge-patch" in request.content_type:
                return 200, self._merge(target, body)
            case "DELETE", "":
                return 200, self._delete(target, body)
        raise Refusal(405, "MethodNotAllowed", "the server does not allow this method")

    def _target(self, path: str) -> Target:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        length = 2 if parts[0] == "api" else 3
        root, rest = "/" + "/".join(parts[:length]), parts[length:]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource, *_ = [*rest, "", "", ""]
        kind = self.kinds.get(f"{root}/{plural}")
        if kind is None or (subresource == "status" and not kind.has_status):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        return Target(f"{root}/{plural}", kind, namespace, name, subresource)

    def _found(self, target: Target) -> dict[str, Any]:
        found = self.objects.get((target.path, target.namespace, target.name))
        if found is None:
            plural = target.path.rsplit("/", 1)[1]
            raise Refusal(404, "NotFound", f'{plural} "{target.name}" not found')
        return found

    # --- reading

    def _list(self, target: Target, query: dict[str, str]) -> dict[str, Any]:
        limit = int(query.get("limit", "0"))
        token = query.get("continue", "")
        if token:
            if token not in self._pages:
                raise Refusal(410, "Expired", "The provided continue parameter is too old")
            version, items = self._pages.pop(token)
        else:
            selects = selector_of(target, query)
            keys = sorted(key for key in self.objects if key[0] == target.path)
            version = self.version
            items = [self.objects[key] for key in keys if selects(self.objects[key])]
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if limit and len(items) > limit:
            token = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()
            self._pages[token] = version, items[limit:]
            meta |= {"continue": token, "remainingItemCount": len(items) - limit}
            items = items[:limit]
        return {"kind": f"{target.kind.kind}List", "metadata": meta, "items": items}

    def watch(self, request: Request) -> AsyncGenerator[bytes]:
        """The lines of a watch, or a refusal; the caller closes it."""
        self.requests.append(request)
        target = self._target(request.path)
        query = dict(request.query)
        return self._watch(target, query, selector_of(target, query))

    async def _watch(
        self, target: Target, query: dict[str, str], selects: Callable[[dict[str, Any]], bool]
    ) -> AsyncGenerator[bytes]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + float(query.get("timeoutSeconds", "1800"))
        next_bookmark = float("inf")
        if query.get("allowWatchBookmarks") == "true":
            next_bookmark = min(loop.time() + self.bookmark_seconds, deadline - 2)
        given = query.get("resourceVersion", "")
        place = len(self.history)
        watcher = Watcher(target.path)
        self.watchers[watcher] = None
        try:
            if given in ("", "0"):
                for item in [one for key, one in self.objects.items() if key[0] == target.path]:
                    if selects(item):
                        yield _line("ADDED", item)
            else:
                watcher.is_expired = int(given) < self.oldest
                versions = [change.version for change in self.history]
                place = bisect_right(versions, int(given))
            while not watcher.is_dropped and loop.time() < deadline:
                if watcher.is_expired:
                    yield _line("ERROR", _expired(given, self.oldest))
                    return
                while place < len(self.history) and not watcher.is_silent:
                    line = _event_line(self.history[place], target, selects)
                    place += 1
                    for _ in range((2 if self.sends_twice else 1) if line else 0):
                        yield line
                if loop.time() >= next_bookmark and not watcher.is_silent:
                    meta = {"resourceVersion": str(self.version), "creationTimestamp": None}
                    yield _line("BOOKMARK", {"kind": target.kind.kind, "metadata": meta})
                    next_bookmark = loop.time() + self.bookmark_seconds
                await _wait(
                    watcher, deadline if watcher.is_silent else min(deadline, next_bookmark)
                )
        finally:
            self.watchers.pop(watcher, None)

    # --- writing

    def _create(self, target: Target, body: dict[str, Any]) -> dict[str, Any]:
        meta = body.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        name = meta.get("name", "")
        self._validate(target, body)
        if target.kind.is_namespaced:
            if ("/api/v1/namespaces", "", target.namespace) not in self.objects:
                raise Refusal(404, "NotFound", f'namespaces "{target.namespace}" not found')
            if meta.setdefault("namespace", target.namespace) != target.namespace:
                raise Refusal(400, "BadRequest", "the namespace of the object does not match")
        if (target.path, target.namespace, name) in self.objects:
            plural = target.path.rsplit("/", 1)[1]
            raise Refusal(409, "AlreadyExists", f'{plural} "{name}" already exists')
        if target.kind.has_status and target.kind.kind != "Node":
            body.pop("status", None)
        if target.kind.kind == "Pod":
            body["spec"].setdefault("schedulerName", "default-scheduler")
            body["spec"].setdefault("terminationGracePeriodSeconds", 30)
            body["status"] = {"phase": "Pending"}
        if target.kind.counts_generations:
            meta["generation"] = 1
        made = self._store(target.path, body)
        self._managers.record_update(_identity(made), "creator", {}, made)
        return made

    def _validate(self, target: Target, body: dict[str, Any]) -> None:
        name = body["metadata"].get("name", "")
        causes = []
        if not NAME.fullmatch(name):
            causes.append(("metadata.name", f'Invalid value: "{name}"'))
        if target.kind.kind == "Pod" and not body.get("spec", {}).get("containers"):
            causes.append(("spec.containers", "Required value"))
        if causes:
            text = ", ".join(f"{where}: {what}" for where, what in causes)
            raise Refusal(
                422,
                "Invalid",
                f'{target.kind.kind} "{name}" is invalid: {text}',
                causes=[
                    {"reason": "FieldValueInvalid", "message": what, "field": where}
                    for where, what in causes
                ],
            )

    def _replace(self, target: Target, body: dict[str, Any]) -> dict[str, Any]:
        meta = body.get("metadata", {})
        if meta.get("uid") and (target.path, target.namespace, target.name) not in self.objects:
            raise Refusal(409, "Conflict", "Precondition failed: UID in precondition")
        old = self._found(target)
        version = meta.get("resourceVersion", "")
        if not version and not target.kind.allows_blind_update:
            raise Refusal(
                422,
                "Invalid",
                f'"{target.name}" is invalid: metadata.resourceVersion: must be specified',
                causes=[{"field": "metadata.resourceVersion", "reason": "FieldValueInvalid"}],
            )
        if body["metadata"].get("name") != target.name:
            raise Refusal(400, "BadRequest", "the name of the object does not match the URL")
        return self._update(target, old, body)

    def _merge(self, target: Target, patch: dict[str, Any]) -> dict[str, Any]:
        old = self._found(target)
        new = merged(old, patch)
        if "resourceVersion" not in patch.get("metadata", {}):
            new["metadata"].pop("resourceVersion", None)
        return self._update(target, old, new)

    def _apply(
        self, target: Target, body: dict[str, Any], query: dict[str, str]
    ) -> tuple[int, dict[str, Any]]:
        manager = query.get("fieldManager", "")
        if not manager:
            raise Refusal(400, "BadRequest", "PatchOptions.meta.k8s.io is invalid: fieldManager")
        old = self.objects.get((target.path, target.namespace, target.name))
        if old is None and target.subresource:
            self._found(target)
        if old is None:
            made = self._create(target, copy.deepcopy(body))
            self._managers.forget(_identity(made))
            self._managers.apply(_identity(made), manager, {}, body, force=True)
            return 201, made
        try:
            new, is_reowned = self._managers.apply(
                _identity(old), manager, old, body, force=query.get("force") == "true"
            )
        except ApplyConflict as conflict:
            raise Refusal(
                409,
                "Conflict",
                f"Apply failed with {len(conflict.fields)} conflict: {conflict}",
                causes=[
                    {"reason": "FieldManagerConflict", "field": path, "message": f"owned by {who}"}
                    for path, who in conflict.fields
                ],
            ) from conflict
        new["metadata"].pop("resourceVersion", None)
        return 200, self._update(target, old, new, is_apply=True, is_reowned=is_reowned)

    def _update(
        self,
        target: Target,
        old: dict[str, Any],
        new: dict[str, Any],
        *,
        is_apply: bool = False,
        is_reowned: bool = False,
    ) -> dict[str, Any]:
        version = new["metadata"].get("resourceVersion", "")
        if version and version != old["metadata"]["resourceVersion"]:
            raise Refusal(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on "{target.name}": the object has been modified;'
                " please apply your changes to the latest version and try again",
            )
        uid = new["metadata"].get("uid", "")
        if uid and uid != old["metadata"]["uid"]:
            raise Refusal(409, "Conflict", "Precondition failed: UID in precondition")
        added = {*new["metadata"].get("finalizers", ())} - {*old["metadata"].get("finalizers", ())}
        if added and old["metadata"].get("deletionTimestamp"):
            raise Refusal(422, "Invalid", "no new finalizers can be added during a deletion")
        new = copy.deepcopy(new)
        if target.subresource == "status":
            given, new = new, copy.deepcopy(old)
            new["status"] = given.get("status", {})
            # Custom resources take only the status here, built-in ones also the metadata.
            if target.path in KINDS:
                new["metadata"] = given["metadata"]
        elif target.kind.has_status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = copy.deepcopy(old["status"])
        fixed = ("uid", "creationTimestamp", "deletionTimestamp", "generation", "namespace")
        fixed += ("deletionGracePeriodSeconds",)
        kept = {name: old["metadata"][name] for name in fixed if name in old["metadata"]}
        given = {name: value for name, value in new["metadata"].items() if name not in fixed}
        new["metadata"] = given | kept
        if target.kind.counts_generations and _without(new) != _without(old):
            new["metadata"]["generation"] += 1
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        _drop_empty(target.path, new)
        if new == old and not is_reowned:
            return old
        if not is_apply:
            self._managers.record_update(_identity(old), "updater", old, new)
        meta = new["metadata"]
        is_waiting = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
        if meta.get("deletionTimestamp") and not is_waiting:
            return self._remove(target.path, old)
        return self._store(target.path, new, old)

    def _delete(self, target: Target, options: dict[str, Any]) -> dict[str, Any]:
        old = self._found(target)
        self._check_preconditions(old, options)
        grace = 0
        is_pod = target.kind.kind == "Pod"
        is_running = is_pod and old["status"].get("phase") not in ("Succeeded", "Failed")
        if is_running and old["spec"].get("nodeName"):
            default = old["spec"]["terminationGracePeriodSeconds"]
            grace = options.get("gracePeriodSeconds", default)
        waits = bool(grace or old["metadata"].get("finalizers"))
        before = old["metadata"].get("deletionGracePeriodSeconds")
        if waits and before is not None and grace >= before:
            return old
        if waits or is_pod:  # a pod is always marked before it goes
            new = copy.deepcopy(old)
            new["metadata"]["deletionTimestamp"] = self._timestamp()
            new["metadata"]["deletionGracePeriodSeconds"] = grace
            old = self._store(target.path, new, old)
        return old if waits else self._remove(target.path, old)

    def _check_preconditions(self, old: dict[str, Any], options: dict[str, Any]) -> None:
        wanted = options.get("preconditions") or {}
        for name in ("uid", "resourceVersion"):
            if wanted.get(name, old["metadata"][name]) != old["metadata"][name]:
                raise Refusal(409, "Conflict", f"Precondition failed: {name} in precondition")

    def _bind(self, target: Target, body: dict[str, Any]) -> dict[str, Any]:
        old = self._found(target)
        meta = body.get("metadata", {})
        for name in ("uid", "resourceVersion"):
            if meta.get(name) and meta[name] != old["metadata"][name]:
                raise Refusal(409, "Conflict", f"Precondition failed: {name} in precondition")
        reason = ""
        if old["metadata"].get("deletionTimestamp"):
            reason = f"pod {target.name} is being deleted, cannot be assigned to a host"
        elif old["spec"].get("nodeName"):
            reason = f"pod {target.name} is already assigned to node {old['spec']['nodeName']!r}"
        elif old["spec"].get("schedulingGates"):
            reason = f"pod {target.name} has non-empty .spec.schedulingGates"
        if reason:
            raise Refusal(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on pods/binding "{target.name}": {reason}',
            )
        new = copy.deepcopy(old)
        new["spec"]["nodeName"] = body["target"]["name"]
        for part in ("annotations", "labels"):
            if meta.get(part):
                new["metadata"][part] = new["metadata"].get(part, {}) | meta[part]
        conditions = [c for c in new["status"].get("conditions", ()) if c["type"] != "PodScheduled"]
        scheduled = {"type": "PodScheduled", "status": "True"}
        scheduled["lastTransitionTime"] = self._timestamp()
        new["status"]["conditions"] = [*conditions, scheduled]
        self._store(target.path, new, old)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _evict(self, target: Target, body: dict[str, Any]) -> dict[str, Any]:
        pod = self._found(target)
        if pod["status"].get("phase") == "Running":
            for (path, namespace, name), budget in self.objects.items():
                if path.endswith("/poddisruptionbudgets") and namespace == target.namespace:
                    self._check_budget(target, name, budget, pod)
        options = body.get("deleteOptions") or {}
        self._check_preconditions(pod, options)
        why = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        new = copy.deepcopy(pod)
        others = [c for c in new["status"].get("conditions", ()) if c["type"] != why["type"]]
        new["status"]["conditions"] = [*others, why]
        if new != pod:
            self._store(target.path, new, pod)
        # The condition has changed the version; nothing else can have, meanwhile.
        self._delete(target, {**options, "preconditions": {}})
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _check_budget(
        self, target: Target, name: str, budget: dict[str, Any], pod: dict[str, Any]
    ) -> None:
        labels = budget["spec"]["selector"]["matchLabels"].items()
        if not labels <= pod["metadata"].get("labels", {}).items():
            return
        healthy = [
            one
            for key, one in self.objects.items()
            if key[:2] == (target.path, target.namespace)
            and labels <= one["metadata"].get("labels", {}).items()
            and one["status"].get("phase") == "Running"
            and not one["metadata"].get("deletionTimestamp")
        ]
        if len(healthy) <= budget["spec"]["minAvailable"]:
            raise Refusal(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                causes=[{"reason": "DisruptionBudget", "message": f"budget {name}"}],
                retry_after=10,
            )

    # --- storing

    def _store(
        self, path: str, new: dict[str, Any], old: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        new = copy.deepcopy(new)
        _drop_empty(path, new)
        kind = self.kinds[path]
        _, *group, version, _ = path.strip("/").split("/")
        new["apiVersion"], new["kind"] = "/".join([*group, version]), kind.kind
        meta = new["metadata"]
        if old is None:
            meta |= {"uid": self.new_uid(), "creationTimestamp": self._timestamp()}
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        self.objects[path, meta.get("namespace", ""), meta["name"]] = new
        self._publish(Change(self.version, path, "MODIFIED" if old else "ADDED", new, old))
        return new

    def _remove(self, path: str, old: dict[str, Any]) -> dict[str, Any]:
        meta = old["metadata"]
        before = self.objects.pop((path, meta.get("namespace", ""), meta["name"]))
        self.version += 1
        gone = copy.deepcopy(old)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._managers.forget(meta["uid"])
        self._publish(Change(self.version, path, "DELETED", gone, before))
        self._collect_garbage(meta["uid"])
        return gone

    def _collect_garbage(self, owner: str) -> None:
        """Delete what belonged to a deleted object, as the controller manager does."""
        for (path, namespace, name), one in list(self.objects.items()):
            owners = one["metadata"].get("ownerReferences", ())
            if owners and all(reference["uid"] == owner for reference in owners):
                self._delete(Target(path, self.kinds[path], namespace, name, ""), {})

    def _publish(self, change: Change) -> None:
        self.history.append(change)
        for watcher in self.watchers:
            if watcher.path == change.path:
                watcher.wakes.set()

    def _timestamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")


async def _wait(watcher: Watcher, until: float) -> None:
    watcher.wakes.clear()
    with suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await watcher.wakes.wait()


# --- selectors, merging


def selector_of(target: Target, query: dict[str, str]) -> Callable[[dict[str, Any]], bool]:
    """Whether an object belongs to the namespace and matches the selectors of a request."""
    fields = []
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        name, operator, value = re.split(r"(!=|==|=)", term, maxsplit=1)
        if name not in (*ANY_FIELDS, *target.kind.fields):
            raise Refusal(400, "BadRequest", f"field label not supported: {name}")
        fields.append((name.split("."), operator != "!=", value))
    labels = [_label_term(term) for term in _label_terms(query.get("labelSelector", ""))]

    def selects(one: dict[str, Any]) -> bool:
        if target.namespace and one["metadata"].get("namespace", "") != target.namespace:
            return False
        if any((str(_at(one, path)) == value) != equal for path, equal, value in fields):
            return False
        own = one["metadata"].get("labels")
        return all(term(own if isinstance(own, dict) else {}) for term in labels)

    return selects


def _label_terms(text: str) -> list[str]:
    """Split at commas, but not at those inside of parentheses."""
    return [term.strip() for term in re.split(r",(?![^(]*\))", text) if term.strip()]


def _label_term(term: str) -> Callable[[dict[str, str]], bool]:
    among = re.fullmatch(r"(\S+)\s+(in|notin)\s+\((.*)\)", term)
    if among:
        key, operator, listed = among.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda own: own.get(key) in values
        return lambda own: own.get(key) not in values
    for operator in ("!=", "==", "="):
        if operator in term:
            key, value = (part.strip() for part in term.split(operator, 1))
            if operator == "!=":
                return lambda own: own.get(key) != value
            return lambda own: own.get(key) == value
    if term.startswith("!"):
        return lambda own: term[1:] not in own
    return lambda own: term in own


def merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    new = copy.deepcopy(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = merged(new.get(name), value)
    return new


def _at(one: dict[str, Any], path: list[str]) -> Any:
    found: Any = one
    for part in path:
        found = found.get(part, {}) if isinstance(found, dict) else {}
    return "" if found == {} else found


def _without(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name not in ("metadata", "status")}


def _drop_empty(path: str, one: dict[str, Any]) -> None:
    """Built-in objects are Go values, which leave out empty lists and maps."""
    for part in ("metadata", "spec") if path in KINDS else ("metadata",):
        if part in one:
            one[part] = {name: value for name, value in one[part].items() if value not in ([], {})}


def _identity(one: dict[str, Any]) -> str:
    return str(one["metadata"]["uid"])


def _event_line(change: Change, target: Target, selects: Callable[[dict[str, Any]], bool]) -> bytes:
    """How a watch with this selection sees a change: an object that leaves it is deleted."""
    if change.path != target.path:
        return b""
    now = change.type != "DELETED" and selects(change.object)
    before = change.before is not None and selects(change.before)
    if now:
        return _line("MODIFIED" if before else "ADDED", change.object)
    return _line("DELETED", change.object) if before else b""


def _line(kind: str, one: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": one}).encode() + b"\n"


def _expired(given: str, oldest: int) -> dict[str, Any]:
    return {
        "kind": "Status",
        "status": "Failure",
        "message": f"too old resource version: {given} ({oldest})",
        "reason": "Expired",
        "code": 410,
    }
