"""The ResourceClaims of a pod in the engine's terms, or a sentence why they cannot be allocated.

The engine chooses GPUs by model, index, MIG profile and NVLink island. The selectors of a claim are
evaluated for every device of every ResourceSlice; what they select is expressed in these terms, and
nodes where that is not exact are left out. So an expression never leads to a device that it does
not select. What a claim says beyond that is rejected, never ignored.

A pod with a GpuClaim has one claim, which the webhook has named and the scheduler makes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import msgspec

from gpu_scheduler.kubernetes.crds.claim import GpuClaim
from gpu_scheduler.kubernetes.dynamic_resources import (
    DRIVER,
    MOST_RESULTS,
    POD_CLAIM,
    AllocatedDevice,
    ResourceClaim,
    device_name,
)
from gpu_scheduler.kubernetes.names import GPU_RESOURCE, SCHEDULER_NAME
from gpu_scheduler.kubernetes.objects import Pod
from gpu_scheduler.kubernetes.quantities import pod_requests
from gpu_scheduler.kubernetes.scheduler.devices import DeviceLeases, Inventory
from gpu_scheduler.kubernetes.scheduler.dra.selectors import device_value, parse_selector
from gpu_scheduler.kubernetes.scheduler.filters import node_rejection
from gpu_scheduler.kubernetes.scheduler.objects_view import (
    Key,
    Objects,
    has_ended,
    is_being_deleted,
    is_bound,
)
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.plan import DeviceShare
from gpu_scheduler.model.request import WHOLE_MILLI, Request, Topology

SINGLE_REQUEST = "gpus"
"""The request of a claim that the scheduler makes."""
ALL = "All"
THE_REST = 0
"""As a count: all devices of the pod."""
SAME_FOR_ALL = frozenset({f"{DRIVER}/model", f"{DRIVER}/type"})
"""Attributes that the GPUs of one pod always have in common."""
ISLAND = f"{DRIVER}/island"


class _Strict(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """A part of a claim; a field that is not known here makes the claim one to reject."""


class _Cel(_Strict, frozen=True, kw_only=True):
    expression: str


class _DeviceSelector(_Strict, frozen=True, kw_only=True):
    cel: _Cel


class _Exactly(_Strict, frozen=True, kw_only=True):
    device_class_name: str
    selectors: tuple[_DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    tolerations: tuple[Any, ...] = ()
    """Of taints, which the devices of this driver do not have."""


class _Alternative(_Exactly, frozen=True, kw_only=True):
    name: str


class _DeviceRequest(_Strict, frozen=True, kw_only=True):
    name: str
    exactly: _Exactly | None = None
    first_available: tuple[_Alternative, ...] = ()


class _Constraint(_Strict, frozen=True, kw_only=True):
    requests: tuple[str, ...] = ()
    match_attribute: str


class _Devices(_Strict, frozen=True, kw_only=True):
    requests: tuple[_DeviceRequest, ...] = ()
    constraints: tuple[_Constraint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaim:
    """A ResourceClaim of a pod, and how many devices each of its requests gets.

    The uid is empty if the scheduler has yet to make the claim.
    """

    namespace: str
    name: str
    uid: str
    parts: tuple[tuple[str, int], ...]
    is_made: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAllocation:
    """The devices of a node that a claim gets."""

    claim: PodClaim
    node: str
    results: tuple[AllocatedDevice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNeeds:
    """What the claims of a pod need of a node. For a GpuClaim, the claim itself says the rest.

    `rejections` are nodes that cannot satisfy the selectors, and why; `selected` the names of the
    devices that the selectors select, by node (None: any). Pods with the same `key` have both in
    common.
    """

    claims: tuple[PodClaim, ...]
    count: int = 0
    models: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()
    mig_profile: str = ""
    topology: Topology = Topology.PREFER_ISLAND
    rejections: Mapping[str, str] = field(default_factory=dict)
    selected: Mapping[str, frozenset[str]] | None = None
    key: bytes = b""

    def request(self, cpu_milli: int, memory_mb: int) -> Request:
        """The request to the engine for a pod without a GpuClaim."""
        return Request(
            gpu_count=self.count,
            gpu_models=self.models,
            device_ids=self.indices,
            mig_profile=self.mig_profile,
            topology=self.topology,
            cpu_milli=cpu_milli,
            memory_mb=memory_mb,
        )

    def selects(self, node: str, uuids: Iterable[str]) -> bool:
        """Tell whether the selectors select all these devices of a node."""
        if self.selected is None:
            return True
        return {device_name(uuid) for uuid in uuids} <= self.selected.get(node, frozenset())

    def allocations(self, node: str, uuids: Sequence[str]) -> tuple[ClaimAllocation, ...]:
        """Deal devices out to the requests, in the order of both; the same whenever it is asked.

        Raises `InvalidRequest` if the number of devices is not that of the requests.
        """
        devices = iter([device_name(uuid) for uuid in uuids])
        dealt = []
        for claim in self.claims:
            results = tuple(
                AllocatedDevice(request=name, driver=DRIVER, pool=node, device=device)
                for name, count in claim.parts
                for device in islice(devices, len(uuids) if count == THE_REST else count)
            )
            dealt.append(ClaimAllocation(claim=claim, node=node, results=results))
        wanted = sum(count for claim in self.claims for _, count in claim.parts)
        if wanted not in (THE_REST, len(uuids)):
            raise InvalidRequest(f"its ResourceClaims ask for {wanted} GPUs, not {len(uuids)}")
        return tuple(dealt)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A GPU or MIG slice that a node offers by DRA."""

    name: str
    index: int
    model: str
    profile: str
    takes_work: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One request of a claim, with the expressions that a device must satisfy."""

    claim: int
    name: str
    expressions: tuple[str, ...]
    count: int


def claim_names(pod: Pod) -> Iterator[str]:
    """The names of the ResourceClaims of a pod, as far as they are known."""
    for entry in pod.spec.resource_claims:
        name = entry.resource_claim_name or _claim_of_template(pod, entry.name)
        if name:
            yield name


def _claim_of_template(pod: Pod, entry: str) -> str | None:
    """The claim made from a template: None if there is none yet, empty if none is needed."""
    for status in pod.status.resource_claim_statuses:
        if status.name == entry:
            return status.resource_claim_name or ""
    return None


class ClaimReader:
    """Reads the claims of pods against the devices of one cluster."""

    def __init__(
        self, objects: Objects, inventories: Mapping[str, Inventory], leases: DeviceLeases
    ) -> None:
        """Nothing is worked out before a pod with claims asks."""
        self._objects = objects
        self._inventories = inventories
        self._leases = leases
        self._selected: dict[tuple[str, ...], dict[str, frozenset[str]]] = {}
        self._candidates: dict[str, tuple[_Candidate, ...]] = {}
        self._values: dict[str, dict[str, dict[str, Any]]] | None = None
        self._users: dict[Key, str] | None = None

    def needs(self, pod: Pod, gpu_claim: GpuClaim | None) -> DeviceNeeds:
        """What the claims of a pod need; raises `InvalidRequest` with the reason why it waits."""
        if not self._objects.serves_claims:
            raise InvalidRequest(
                "it uses a ResourceClaim, and Dynamic Resource Allocation is switched off; set "
                "agent.dra=true (Kubernetes 1.34 or newer), or ask for nvidia.com/gpu"
            )
        if pod_requests(pod).get(GPU_RESOURCE, 0):
            raise InvalidRequest(
                f"it asks for GPUs by a ResourceClaim and by {GPU_RESOURCE}; leave one of them out"
            )
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            if len({one.name for one in container.resources.claims}) > 1:
                raise InvalidRequest(
                    f"its container '{container.name}' uses several ResourceClaims; put their "
                    "requests into one claim"
                )
        if gpu_claim is not None:
            return self._of_gpu_claim(pod, gpu_claim)
        found = [self._claim(pod, name) for name in self._names(pod)]
        return self._of_claims(pod, found)

    def unleased(self) -> Iterator[tuple[str, DeviceShare]]:
        """Devices in allocations whose pod has no lease for them: they count as taken.

        Kubernetes takes them back a moment after the end of the pod.
        """
        for _, claim in sorted(self._objects.resource_claims.items()):
            held = [
                one
                for consumer in claim.status.reserved_for
                for one in self._leases.by_pod.get(consumer.uid, ())
            ]
            for one in claim.our_devices:
                for candidate in self._pieces(one.pool):
                    if candidate.name != one.device or any(
                        lease.node == one.pool
                        and lease.index == candidate.index
                        and (not candidate.profile or device_name(lease.holder.uuid) == one.device)
                        for lease in held
                    ):
                        continue
                    share = DeviceShare(candidate.index, WHOLE_MILLI, 0, candidate.profile)
                    yield one.pool, share

    def unleased_slices(self) -> Iterator[tuple[str, str]]:
        """Node and UUID of the MIG slices among them."""
        by_name = {
            (node, device_name(piece.uuid)): piece.uuid
            for node, inventory in self._inventories.items()
            for gpu in inventory.gpus.values()
            for piece in gpu.mig_slices
        }
        for claim in self._objects.resource_claims.values():
            for one in claim.our_devices:
                if (one.pool, one.device) in by_name:
                    yield one.pool, by_name[one.pool, one.device]

    # --- which claims

    def _names(self, pod: Pod) -> Iterator[str]:
        for entry in pod.spec.resource_claims:
            if entry.resource_claim_name:
                yield entry.resource_claim_name
                continue
            name = _claim_of_template(pod, entry.name)
            if name is None:
                raise InvalidRequest(
                    "its ResourceClaim of template "
                    f"'{entry.resource_claim_template_name}' is not made yet"
                )
            if name:
                yield name

    def _claim(self, pod: Pod, name: str) -> ResourceClaim:
        found = self._objects.resource_claims.get((pod.metadata.namespace, name))
        if found is None:
            raise InvalidRequest(
                f"its ResourceClaim '{name}' does not exist in namespace '{pod.metadata.namespace}'"
            )
        self._check_free(pod, found)
        return found

    def _check_free(self, pod: Pod, claim: ResourceClaim) -> None:
        """A claim is for one pod at a time, and has no devices before the pod has leases."""
        name, uid = claim.metadata.name, pod.metadata.uid
        owners = [one.uid for one in claim.metadata.owner_references if one.kind == "Pod"]
        if owners and uid not in owners:
            raise InvalidRequest(f"its ResourceClaim '{name}' was made for another pod")
        if claim.metadata.deletion_timestamp is not None:
            raise InvalidRequest(f"its ResourceClaim '{name}' is being deleted")
        others = [one.name for one in claim.status.reserved_for if one.uid != uid]
        if others or self._user_of(claim.key) not in ("", uid):
            who = f" by pod '{others[0]}'" if others else " by another pod"
            raise InvalidRequest(
                f"its ResourceClaim '{name}' is in use{who}, and this scheduler gives a claim to "
                "one pod at a time; use a ResourceClaimTemplate"
            )
        if claim.status.allocation is not None and uid not in self._leases.by_pod:
            raise InvalidRequest(
                f"its ResourceClaim '{name}' still has devices of an earlier attempt"
            )

    def _user_of(self, key: Key) -> str:
        """The uid of the pod that may use a claim: one with a place, else the oldest."""
        if self._users is None:
            ranked: dict[Key, tuple[bool, float, str]] = {}
            for pod in self._objects.pods.values():
                if not pod.spec.resource_claims or has_ended(pod):
                    continue
                uid, created = pod.metadata.uid, pod.metadata.creation_timestamp
                waits = not is_bound(pod) and uid not in self._leases.by_pod
                if waits and (is_being_deleted(pod) or pod.spec.scheduler_name != SCHEDULER_NAME):
                    continue
                rank = (waits, created.timestamp() if created is not None else 0.0, uid)
                for name in claim_names(pod):
                    place = (pod.metadata.namespace, name)
                    ranked[place] = min(ranked.get(place, rank), rank)
            self._users = {place: uid for place, (_, _, uid) in ranked.items()}
        return self._users.get(key, "")

    # --- a GpuClaim

    def _of_gpu_claim(self, pod: Pod, gpu_claim: GpuClaim) -> DeviceNeeds:
        entries = pod.spec.resource_claims
        if len(entries) != 1 or entries[0].name != POD_CLAIM or not entries[0].resource_claim_name:
            raise InvalidRequest(
                f"it asks for GPUs by its GpuClaim '{gpu_claim.metadata.name}' and by a "
                "ResourceClaim; leave one of them out"
            )
        count = gpu_claim.spec.devices.count
        if count > MOST_RESULTS:
            raise InvalidRequest(
                f"its GpuClaim '{gpu_claim.metadata.name}' is for {count} GPUs, and a "
                f"ResourceClaim has at most {MOST_RESULTS}; ask for them by nvidia.com/gpu"
            )
        name = entries[0].resource_claim_name
        found = self._objects.resource_claims.get((pod.metadata.namespace, name))
        if found is not None:
            self._check_free(pod, found)
        claim = PodClaim(
            namespace=pod.metadata.namespace,
            name=name,
            uid="" if found is None else found.metadata.uid,
            parts=((SINGLE_REQUEST, count),),
            is_made=True,
        )
        return DeviceNeeds(claims=(claim,), count=count)

    # --- ResourceClaims

    def _of_claims(self, pod: Pod, claims: Sequence[ResourceClaim]) -> DeviceNeeds:
        asked: list[_Asked] = []
        requires_island = False
        for place, claim in enumerate(claims):
            devices = _read(claim)
            requires_island = _check_constraints(claim, devices) or requires_island
            asked += [self._asked(claim, place, one) for one in devices.requests]
        if not asked:
            raise InvalidRequest("its ResourceClaims ask for no devices")
        selected = self._select(asked[0].expressions)
        if any(self._select(one.expressions) != selected for one in asked):
            raise InvalidRequest(
                "the requests of its ResourceClaims select different devices, which this scheduler "
                "does not allocate to one pod"
            )
        takes_all = any(one.count == THE_REST for one in asked)
        if takes_all and len(asked) > 1:
            raise InvalidRequest(
                "a request with allocationMode All must be the only one of its pod"
            )
        needs = self._translate(
            DeviceNeeds(
                claims=tuple(
                    PodClaim(
                        namespace=claim.metadata.namespace,
                        name=claim.metadata.name,
                        uid=claim.metadata.uid,
                        parts=tuple((one.name, one.count) for one in asked if one.claim == place),
                    )
                    for place, claim in enumerate(claims)
                ),
                count=sum(one.count for one in asked),
                selected=selected,
                topology=Topology.REQUIRE_ISLAND if requires_island else Topology.PREFER_ISLAND,
                key=msgspec.json.encode((asked[0].expressions, takes_all, requires_island)),
            )
        )
        if needs.mig_profile and requires_island:
            raise InvalidRequest(f"its ResourceClaims select MIG slices, which have no {ISLAND}")
        return self._taking_all(pod, needs) if takes_all else needs

    def _asked(self, claim: ResourceClaim, place: int, request: _DeviceRequest) -> _Asked:
        """A request, or the first of its alternatives that some node of the cluster could meet."""
        if request.exactly is not None:
            return self._exactly(claim, place, request.name, request.exactly)
        found = [
            self._exactly(claim, place, f"{request.name}/{one.name}", one)
            for one in request.first_available
        ]
        for one in found:
            most = max((len(names) for names in self._select(one.expressions).values()), default=0)
            if most >= max(1, one.count):
                return one
        if not found:
            raise InvalidRequest(
                f"request '{request.name}' of its ResourceClaim '{claim.metadata.name}' has a form "
                "that this scheduler does not know"
            )
        return found[0]

    def _exactly(self, claim: ResourceClaim, place: int, name: str, asked: _Exactly) -> _Asked:
        found = self._objects.device_classes.get(("", asked.device_class_name))
        if found is None:
            raise InvalidRequest(f"its DeviceClass '{asked.device_class_name}' does not exist")
        if found.spec.config:
            raise InvalidRequest(
                f"its DeviceClass '{asked.device_class_name}' has a configuration, and devices of "
                f"{DRIVER} take none"
            )
        if asked.allocation_mode not in ("ExactCount", ALL):
            raise InvalidRequest(
                f"its ResourceClaim '{claim.metadata.name}' has the allocationMode "
                f"'{asked.allocation_mode}'; ExactCount and All are supported"
            )
        of_class = [one.get("cel", {}).get("expression", "") for one in found.spec.selectors]
        expressions = (*of_class, *(one.cel.expression for one in asked.selectors))
        return _Asked(
            claim=place,
            name=name,
            expressions=expressions,
            count=THE_REST if asked.allocation_mode == ALL else asked.count,
        )

    # --- devices

    def _offered(self, node: str) -> tuple[_Candidate, ...]:
        """The GPUs and MIG slices of a node that its ResourceSlices contain."""
        found = self._candidates.get(node)
        if found is None:
            names = self._device_values().get(node, {})
            found = self._candidates[node] = tuple(
                one for one in self._pieces(node) if one.name in names
            )
        return found

    def _pieces(self, node: str) -> Iterator[_Candidate]:
        """All GPUs and MIG slices of a node; a kubelet that starts removes its ResourceSlices."""
        inventory = self._inventories.get(node)
        for device in () if inventory is None else inventory.node.devices:
            gpu = None if inventory is None else inventory.gpus.get(device.index)
            if gpu is None:
                continue
            pieces = [(one.uuid, one.profile) for one in gpu.mig_slices] or [(gpu.uuid, "")]
            for uuid, profile in pieces:
                yield _Candidate(
                    name=device_name(uuid),
                    index=device.index,
                    model=device.model,
                    profile=profile,
                    takes_work=device.takes_work,
                )

    def _device_values(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The devices of all slices as CEL sees them, by node and name."""
        if self._values is None:
            self._values = {}
            for _, one in sorted(self._objects.resource_slices.items()):
                if one.spec.driver == DRIVER:
                    devices = self._values.setdefault(one.spec.pool.name, {})
                    devices |= {device["name"]: device_value(device) for device in one.spec.devices}
        return self._values

    def _select(self, expressions: tuple[str, ...]) -> dict[str, frozenset[str]]:
        """The names of the devices that satisfy all expressions, by node."""
        found = self._selected.get(expressions)
        if found is None:
            selectors = [parse_selector(text) for text in expressions]
            found = self._selected[expressions] = {
                node: frozenset(names)
                for node, devices in self._device_values().items()
                if (
                    names := [
                        name
                        for name, value in devices.items()
                        if all(selector.selects(value) for selector in selectors)
                    ]
                )
            }
        return found

    # --- to the engine's terms

    def _translate(self, needs: DeviceNeeds) -> DeviceNeeds:
        """Express what is selected by model, index or MIG profile, and leave other nodes out.

        A request that selects whole GPUs and MIG slices gets whole GPUs.
        """
        chosen = {
            node: [one for one in self._offered(node) if one.name in names]
            for node, names in (needs.selected or {}).items()
        }
        every = [one for devices in chosen.values() for one in devices]
        profile = ""
        if every and all(one.profile for one in every):
            profiles = sorted({one.profile for one in every})
            if len(profiles) > 1:
                raise InvalidRequest(
                    f"its ResourceClaims select MIG slices of several profiles "
                    f"({', '.join(profiles)}); select one by "
                    f"device.attributes['{DRIVER}'].profile"
                )
            (profile,) = profiles
        chosen = {
            node: [one for one in devices if one.profile == profile]
            for node, devices in chosen.items()
        }
        models = {one.model for devices in chosen.values() for one in devices}
        indices = {one.index for devices in chosen.values() for one in devices}
        by_model = {node: self._differs(node, chosen, profile, models=models) for node in chosen}
        if not any(by_model.values()):
            # An empty set of models would mean any model.
            return self._narrowed(needs, chosen, profile, models=tuple(sorted(models)))
        by_index = {node: self._differs(node, chosen, profile, indices=indices) for node in chosen}
        exact = {node: devices for node, devices in chosen.items() if not by_index[node]}
        kept = tuple(sorted({one.index for devices in exact.values() for one in devices}))
        return self._narrowed(needs, exact, profile, indices=kept)

    def _differs(
        self,
        node: str,
        chosen: Mapping[str, list[_Candidate]],
        profile: str,
        *,
        models: Iterable[str] = (),
        indices: Iterable[int] = (),
    ) -> bool:
        """Tell whether models or indices stand for other devices of a node than the chosen ones."""
        names = {one.name for one in chosen[node]}
        return any(
            one.profile == profile
            and one.takes_work
            and one.name not in names
            and (one.model in models or one.index in indices)
            for one in self._offered(node)
        )

    def _narrowed(
        self,
        needs: DeviceNeeds,
        chosen: Mapping[str, list[_Candidate]],
        profile: str,
        *,
        models: tuple[str, ...] = (),
        indices: tuple[int, ...] = (),
    ) -> DeviceNeeds:
        rejections = {}
        for node in self._inventories:
            if not chosen.get(node):
                is_mixed = node in (needs.selected or {}) and not profile
                rejections[node] = (
                    "where its selectors choose other GPUs than on most nodes"
                    if is_mixed
                    else "without a device that its ResourceClaims select"
                )
        if needs.count and indices and len(indices) < needs.count:
            raise InvalidRequest(
                f"its ResourceClaims ask for {needs.count} GPUs, and their selectors choose at "
                f"most {len(indices)} on a node"
            )
        return replace(
            needs, models=models, indices=indices, mig_profile=profile, rejections=rejections
        )

    def _taking_all(self, pod: Pod, needs: DeviceNeeds) -> DeviceNeeds:
        """All selected devices of a node: of as many as most nodes have that the pod may use."""
        sizes = {}
        for node, names in (needs.selected or {}).items():
            found = self._objects.nodes.get(("", node))
            if node in needs.rejections or found is None or node_rejection(pod, found):
                continue
            sizes[node] = sum(
                one.name in names and one.profile == needs.mig_profile
                for one in self._offered(node)
            )
        counted = Counter(size for size in sizes.values() if size <= MOST_RESULTS)
        if not counted:
            raise InvalidRequest(
                "no node has a device that its ResourceClaim with allocationMode All selects"
            )
        size = max(counted, key=lambda one: (counted[one], one))
        rejections = dict(needs.rejections)
        for node, found_size in sizes.items():
            if found_size != size:
                rejections[node] = f"with {found_size} selected devices, where most have {size}"
        return replace(needs, count=size, rejections=rejections, key=needs.key + str(size).encode())


def _read(claim: ResourceClaim) -> _Devices:
    """The requests of a claim; raises `InvalidRequest` for what is not allocated here."""
    try:
        return msgspec.convert(claim.spec.devices, _Devices)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"its ResourceClaim '{claim.metadata.name}' asks for what this scheduler does not "
            f"allocate: {error}"
        ) from error


def _check_constraints(claim: ResourceClaim, devices: _Devices) -> bool:
    """Tell whether all devices must be of one NVLink island; other constraints are rejected."""
    requires_island = False
    names = {one.name for one in devices.requests}
    for one in devices.constraints:
        if one.match_attribute in SAME_FOR_ALL:
            continue
        if one.match_attribute != ISLAND or not names <= {*(one.requests or names)}:
            raise InvalidRequest(
                f"its ResourceClaim '{claim.metadata.name}' has a constraint that this scheduler "
                f"does not know: {one.match_attribute}; {ISLAND} for all requests, "
                f"{DRIVER}/model and {DRIVER}/type are supported"
            )
        requires_island = True
    return requires_island
