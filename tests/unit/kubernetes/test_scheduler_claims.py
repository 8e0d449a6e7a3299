"""ResourceClaims: what they mean for the engine, and how they are allocated under faults.

The fault tests are those of `test_scheduler_faults`, with pods whose GPUs come by ResourceClaims.
The checker knows more: a bound pod has exactly the devices of its annotation in its claim.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.kubernetes.client.errors import KubernetesError
from gpu_scheduler.kubernetes.dynamic_resources import (
    IN_USE_FINALIZER,
    POD_CLAIM,
    RESOURCE_CLAIMS,
    device_name,
)
from gpu_scheduler.kubernetes.names import ALLOCATED_ANNOTATION
from gpu_scheduler.kubernetes.objects import NODES
from gpu_scheduler.kubernetes.scheduler.decision import Decision, Memory, Translation, make_decision
from gpu_scheduler.kubernetes.scheduler.devices import Holder, lease_manifest
from gpu_scheduler.kubernetes.scheduler.dra.allocator import ClaimAllocator
from gpu_scheduler.kubernetes.scheduler.repair import find_repairs
from tests.fakes.kubernetes.api import FakeApi, Fault
from tests.faults.virtual_loop import part_name
from tests.kubernetes_objects import (
    NAMESPACE,
    NOW,
    NOW_MS,
    Manifest,
    a_claim,
    a_claiming_pod,
    a_device_class,
    a_dra_node,
    a_gpu,
    a_node,
    a_pod,
    a_request,
    a_resource_claim,
    meta,
    objects_of,
)
from tests.unit.kubernetes.test_scheduler_faults import (
    LEASE_NAMESPACE,
    World,
    check_end,
    check_history,
)

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

POLICY = preset("fair")
OURS = "device.attributes['gpu.scheduling']"
A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


def decided(*manifests: Manifest | list[Manifest]) -> Decision:
    every = [one for part in manifests for one in (part if isinstance(part, list) else [part])]
    return make_decision(objects_of(a_device_class(), *every), POLICY, NOW_MS, Memory())


def places(decision: Decision) -> dict[str, tuple[str, list[int]]]:
    return {
        one.pod.metadata.name: (one.node, sorted(device.index for device in one.devices))
        for assignment in decision.assignments
        for one in assignment.pods
    }


def given(decision: Decision) -> dict[str, dict[str, list[tuple[str, str]]]]:
    """For each pod and claim: the requests, with the devices that they get."""
    return {
        one.pod.metadata.name: {
            each.claim.name: [(result.request, result.device) for result in each.results]
            for each in one.allocations
        }
        for assignment in decision.assignments
        for one in assignment.pods
    }


def why(decision: Decision, pod: str = "p") -> str:
    return decision.waiting[NAMESPACE, pod].reason


def claiming(*requests: Manifest, devices: Manifest | None = None, **pod: Any) -> list[Manifest]:
    """A pod `p` with one ResourceClaim `c`."""
    claim = a_resource_claim("c", *requests, devices=devices)
    return [claim, a_claiming_pod("p", "c", **pod)]


def a_gpu_claim_pod(name: str, gpu_claim: str, **more: Any) -> Manifest:
    """A pod as the webhook changes it."""
    made = a_claiming_pod(name, f"gpus-{name}", claim=gpu_claim, **more)
    made["spec"]["resourceClaims"][0]["name"] = POD_CLAIM
    return made


def a_lease(pod: Manifest, node: str, index: int) -> Manifest:
    uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
    uuid = f"GPU-{node}-{index}"
    about = {"uid": uid, "namespace": NAMESPACE, "pod": name, "uuid": uuid, "attempt": "0"}
    holder = Holder(devices=(index,), start=f"of-{name}", **about)
    made: Manifest = lease_manifest(LEASE_NAMESPACE, node, index, (holder,), NOW)
    made["metadata"] = meta(f"gpu-{node}-{index}", LEASE_NAMESPACE) | made["metadata"]
    return {"kind": "Lease", **made}


# --- what a claim asks for


def test_a_claim_gets_as_many_devices_as_it_asks_for() -> None:
    decision = decided(a_dra_node("n"), claiming(a_request("gpus", count=2)))
    assert places(decision) == {"p": ("n", [0, 1])}
    assert given(decision) == {"p": {"c": [("gpus", "gpu-n-0"), ("gpus", "gpu-n-1")]}}


def test_several_requests_and_claims_of_a_pod_share_its_devices() -> None:
    decision = decided(
        a_dra_node("n"),
        a_resource_claim("c", a_request("a"), a_request("b", count=2)),
        a_resource_claim("d", a_request("x")),
        a_claiming_pod("p", "c", "d"),
    )
    assert given(decision)["p"] == {
        "c": [("a", "gpu-n-0"), ("b", "gpu-n-1"), ("b", "gpu-n-2")],
        "d": [("x", "gpu-n-3")],
    }


def test_a_template_is_waited_for_and_then_used() -> None:
    pod = a_claiming_pod("p", "c")
    pod["spec"]["resourceClaims"] = [{"name": "c0", "resourceClaimTemplateName": "t"}]
    assert "of template 't' is not made yet" in why(decided(a_dra_node("n"), pod))
    pod["status"]["resourceClaimStatuses"] = [{"name": "c0", "resourceClaimName": "made"}]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "controller": True}
    mine = {**owner, "uid": pod["metadata"]["uid"]}
    claim = a_resource_claim("made", ownerReferences=[mine])
    assert given(decided(a_dra_node("n"), claim, pod))["p"] == {"made": [("gpus", "gpu-n-0")]}
    claim = a_resource_claim("made", ownerReferences=[{**owner, "uid": "other"}])
    assert "was made for another pod" in why(decided(a_dra_node("n"), claim, pod))


def test_selectors_choose_nodes_by_model() -> None:
    decision = decided(
        a_dra_node("a", [a_gpu(n, "a", model=A100) for n in range(4)]),
        a_dra_node("h", [a_gpu(n, "h", model=H100) for n in range(4)]),
        claiming(a_request("gpus", f"{OURS}.model.contains('H100')", count=2)),
    )
    assert places(decision) == {"p": ("h", [0, 1])}


def test_selectors_choose_gpus_of_a_mixed_node_by_model() -> None:
    models = [A100, A100, H100, H100]
    decision = decided(
        a_dra_node("n", [a_gpu(n, "n", model=model) for n, model in enumerate(models)]),
        claiming(a_request("gpus", f"{OURS}.model.contains('H100')", count=2)),
    )
    assert places(decision) == {"p": ("n", [2, 3])}


def test_selectors_choose_gpus_by_index_and_uuid() -> None:
    decision = decided(a_dra_node("n"), claiming(a_request("gpus", f"{OURS}.index == 3")))
    assert places(decision) == {"p": ("n", [3])}
    decision = decided(
        a_dra_node("a"), a_dra_node("b"), claiming(a_request("gpus", f"{OURS}.uuid == 'GPU-b-2'"))
    )
    assert places(decision) == {"p": ("b", [2])}


def test_a_node_where_indices_stand_for_other_gpus_is_left_out() -> None:
    """Selected are GPUs 0 and 1 of `a` and 3 of `b`; the engine knows one list of indices."""
    expression = f"{OURS}.uuid in ['GPU-a-0', 'GPU-a-1', 'GPU-b-3']"
    decision = decided(
        a_dra_node("a"), a_dra_node("b"), claiming(a_request("gpus", expression, count=2))
    )
    assert not decision.assignments
    assert "2 where its selectors choose other GPUs than on most nodes" in why(decision)


def test_a_device_class_narrows_its_requests() -> None:
    decision = decided(
        a_dra_node("a", [a_gpu(0, "a", model=A100)]),
        a_dra_node("h", [a_gpu(0, "h", model=H100)]),
        a_device_class("h100", f"{OURS}.model == '{H100}'"),
        claiming({"name": "gpus", "exactly": {"deviceClassName": "h100"}}),
    )
    assert places(decision) == {"p": ("h", [0])}


def test_mig_slices_are_chosen_by_profile() -> None:
    pieces = [
        {"uuid": "MIG-s", "profile": "1g.10gb"},
        {"uuid": "MIG-t", "profile": "1g.10gb"},
        {"uuid": "MIG-b", "profile": "3g.40gb"},
    ]
    nodes = [
        *a_dra_node("m", [a_gpu(0, "m", mode="MIG", migSlices=pieces)]),
        *a_dra_node("n", 1),
    ]
    small = a_request("gpus", f"{OURS}.type == 'mig' && {OURS}.profile == '1g.10gb'", count=2)
    decision = decided(nodes, claiming(small))
    assert given(decision)["p"] == {"c": [("gpus", "mig-s"), ("gpus", "mig-t")]}
    any_slice = claiming(a_request("gpus", f"{OURS}.type == 'mig'"))
    assert "several profiles (1g.10gb, 3g.40gb)" in why(decided(nodes, any_slice))
    # Without a selector, a request gets whole GPUs.
    assert places(decided(nodes, claiming())) == {"p": ("n", [0])}


def test_all_takes_all_devices_of_a_node_of_the_most_frequent_size() -> None:
    nodes = [*a_dra_node("a", 2), *a_dra_node("b", 2), *a_dra_node("c", 4, labels={"big": "y"})]
    everything = a_request("gpus", allocationMode="All")
    name, indices = places(decided(nodes, claiming(everything)))["p"]
    assert (name in "ab", indices) == (True, [0, 1])
    decision = decided(nodes, claiming(everything, nodeSelector={"big": "y"}))
    assert places(decision) == {"p": ("c", [0, 1, 2, 3])}
    assert len(given(decision)["p"]["c"]) == 4


def test_all_waits_until_every_device_is_free() -> None:
    bound = a_pod("bound", gpus=1, node="n")
    lease = a_lease(bound, "n", 0)
    everything = claiming(a_request("gpus", allocationMode="All"))
    assert not decided(a_dra_node("n", 2), bound, lease, everything).assignments


def test_the_first_alternative_that_a_node_has_is_taken() -> None:
    def alternative(name: str, model: str, count: int) -> Manifest:
        return {
            **a_request(name, f"{OURS}.model == '{model}'", count=count)["exactly"],
            "name": name,
        }

    request = {
        "name": "gpus",
        "firstAvailable": [
            alternative("many", H100, 8),
            alternative("few", H100, 2),
            alternative("old", A100, 1),
        ],
    }
    decision = decided(a_dra_node("n", 4), claiming(request))
    assert given(decision)["p"]["c"] == [("gpus/few", "gpu-n-0"), ("gpus/few", "gpu-n-1")]


def test_an_island_constraint_keeps_the_devices_together() -> None:
    gpus = [a_gpu(n, "n", island=n // 2) for n in range(4)]
    busy = a_pod("busy", gpus=1, node="n")
    same = [{"requests": [], "matchAttribute": "gpu.scheduling/island"}]
    decision = decided(
        a_dra_node("n", gpus),
        busy,
        a_lease(busy, "n", 0),
        claiming(a_request("gpus", count=2), devices={"constraints": same}),
    )
    assert places(decision) == {"p": ("n", [2, 3])}


@pytest.mark.parametrize(
    ("request_", "devices", "reason"),
    [
        (a_request(adminAccess=True), {}, "unknown field `adminAccess`"),
        (a_request(capacity={"requests": {}}), {}, "unknown field `capacity`"),
        (a_request(allocationMode="Some"), {}, "allocationMode 'Some'"),
        (a_request("gpus", f"{OURS}.model.matches('H')"), {}, "it calls matches()"),
        ({"name": "a", "exactly": {"deviceClassName": "x"}}, {}, "DeviceClass 'x' does not exist"),
        (a_request(), {"config": [{}]}, "unknown field `config`"),
        (
            a_request(),
            {"constraints": [{"matchAttribute": "gpu.scheduling/numaNode"}]},
            "does not know: gpu.scheduling/numaNode",
        ),
        (
            a_request(),
            {"constraints": [{"distinctAttribute": "gpu.scheduling/island"}]},
            "unknown field `distinctAttribute`",
        ),
        (a_request("gpus", f"{OURS}.index == 1", count=2), {}, "choose at most 1 on a node"),
        ({"name": "new"}, {}, "has a form that this scheduler does not know"),
    ],
)
def test_what_is_not_allocated_is_refused_with_a_reason(
    request_: Manifest, devices: Manifest, reason: str
) -> None:
    decision = decided(a_dra_node("n"), claiming(request_, devices=devices))
    assert not decision.assignments
    assert reason in why(decision)


def test_requests_for_different_devices_in_one_pod_are_refused() -> None:
    requests = (a_request("a", f"{OURS}.index == 0"), a_request("b", f"{OURS}.index == 1"))
    assert "select different devices" in why(decided(a_dra_node("n"), claiming(*requests)))


def test_a_claim_beside_plain_gpus_or_a_gpu_claim_is_refused() -> None:
    both = claiming(gpus=1)
    assert "and by nvidia.com/gpu; leave one" in why(decided(a_dra_node("n"), both))
    also = claiming(claim="g")
    assert "and by a ResourceClaim; leave one" in why(decided(a_dra_node("n"), a_claim("g"), also))


def test_a_container_with_several_claims_is_refused() -> None:
    pod = a_claiming_pod("p", "c", "d")
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "c0"}, {"name": "c1"}]
    claims = [a_resource_claim("c"), a_resource_claim("d")]
    assert "put their requests into one claim" in why(decided(a_dra_node("n"), *claims, pod))


def test_claims_wait_where_dynamic_resource_allocation_is_off() -> None:
    objects = objects_of(*a_dra_node("n"), *claiming())
    off = type(objects)(**{**_fields(objects), "serves_claims": False})
    decision = make_decision(off, POLICY, NOW_MS)
    assert "Dynamic Resource Allocation is switched off" in why(decision)


def _fields(objects: Any) -> dict[str, Any]:
    return {name: getattr(objects, name) for name in objects.__dataclass_fields__}


# --- which nodes


def test_claims_never_go_to_old_kubelets_or_nodes_that_offer_nothing() -> None:
    old = a_dra_node("old", kubelet="v1.33.13")
    node, status, _ = a_dra_node("quiet")
    no_cdi = [a_node("no-cdi"), a_dra_node("no-cdi")[1]]
    no_cdi[1]["status"]["conditions"] = [
        {
            "type": "DevicesInjectable",
            "status": "False",
            "reason": "NotSupported",
            "message": "old",
            "lastTransitionTime": "2026-05-04T11:00:00Z",
        }
    ]
    decision = decided(old, node, status, no_cdi, a_node("bare"), claiming())
    assert not decision.assignments
    told = why(decision)
    assert "1 with a kubelet older than 1.34" in told
    assert "1 whose container runtime does not inject devices by CDI" in told
    assert "2 whose agent offers no devices to ResourceClaims" in told
    assert places(decided(old, a_dra_node("new"), claiming())) == {"p": ("new", [0])}


# --- never the same device twice


def test_devices_of_other_ways_are_not_given_to_claims() -> None:
    """One GPU is held by the device plugin, one by environment, one by another claim."""
    plugin = a_pod("plugin", gpus=1, node="n")
    environment = a_pod("environment", claim="g", node="n")
    other = a_claiming_pod("other", "o", node="n")
    held = a_resource_claim("o", allocated=("GPU-n-2",), node="n", reserved_for=other)
    decision = decided(
        a_dra_node("n"),
        a_claim("g"),
        plugin,
        environment,
        other,
        held,
        *(a_lease(pod, "n", index) for index, pod in enumerate((plugin, environment, other))),
        claiming(),
        a_pod("q", gpus=1),
    )
    assert list(places(decision).values()) == [("n", [3])]


def test_a_device_stays_taken_until_kubernetes_clears_the_claim() -> None:
    ended = a_claiming_pod("ended", "o", node="n", phase="Succeeded")
    held = a_resource_claim("o", allocated=("GPU-n-0",), node="n", reserved_for=ended)
    assert not decided(a_dra_node("n", 1), ended, held, claiming()).assignments
    assert not decided(a_dra_node("n", 1), ended, held, a_pod("q", gpus=1)).assignments
    cleared = a_resource_claim("o")
    assert decided(a_dra_node("n", 1), ended, cleared, claiming()).assignments


def test_a_device_stays_taken_while_the_slice_of_its_node_is_missing() -> None:
    """A kubelet that starts removes the ResourceSlices of its node."""
    ended = a_claiming_pod("ended", "o", node="n", phase="Succeeded")
    held = a_resource_claim("o", allocated=("GPU-n-0",), node="n", reserved_for=ended)
    node, status, _ = a_dra_node("n", 1)
    assert not decided(node, status, ended, held, a_pod("q", gpus=1)).assignments


def test_a_mig_slice_of_a_claim_stays_taken_while_the_resource_slice_is_missing() -> None:
    ended = a_claiming_pod("ended", "o", node="n", phase="Succeeded")
    held = a_resource_claim("o", allocated=("MIG-0",), node="n", reserved_for=ended)
    pieces = [{"uuid": "MIG-0", "profile": "1g.10gb"}]
    node, status, _ = a_dra_node("n", [a_gpu(0, mode="MIG", migSlices=pieces)])
    wanted = {"count": 1, "exclusivity": "Shared", "migProfile": "1g.10gb"}
    pod = a_pod("q", claim="slice")
    assert not decided(node, status, ended, held, a_claim("slice", devices=wanted), pod).assignments


def test_the_scheduler_may_write_allocations_of_kubernetes_1_36() -> None:
    manifests = (Path(__file__).parents[3] / "deployments/k8s/gpu-scheduler.yaml").read_text()
    [role] = [
        one
        for one in yaml.safe_load_all(manifests)
        if one and one["kind"] == "ClusterRole" and one["metadata"]["name"].endswith("-scheduler")
    ]
    [verbs] = [
        rule["verbs"] for rule in role["rules"] if "resourceclaims/binding" in rule["resources"]
    ]
    assert set(verbs) == {"update", "patch"}


def test_a_claim_is_for_one_pod_at_a_time() -> None:
    decision = decided(
        a_dra_node("n"), a_resource_claim("c"), a_claiming_pod("p", "c"), a_claiming_pod("q", "c")
    )
    assert places(decision) == {"p": ("n", [0])}
    assert "in use by another pod" in why(decision, "q")


def test_shares_of_a_gpu_are_given_by_claims() -> None:
    half = {"count": 1, "exclusivity": "Shared", "fraction": 0.5}
    decision = decided(
        a_dra_node("n", 1),
        a_claim("half", devices=half),
        *(a_gpu_claim_pod(f"p{number}", "half") for number in range(3)),
    )
    assert places(decision) == {"p0": ("n", [0]), "p1": ("n", [0])}
    assert given(decision)["p0"] == {"gpus-p0": [("gpus", "gpu-n-0")]}


# --- after an interruption


def repairs(*manifests: Manifest | list[Manifest]) -> Any:
    every = [one for part in manifests for one in (part if isinstance(part, list) else [part])]
    objects = objects_of(a_device_class(), *every)
    translation = Translation(objects, POLICY, NOW_MS, Memory())
    return find_repairs(objects, translation, now_ms=NOW_MS, incomplete_since_ms={})


def test_an_assignment_is_completed_with_the_devices_of_its_leases() -> None:
    claim, pod = claiming()
    found = repairs(a_dra_node("n"), claim, pod, a_lease(pod, "n", 2))
    [completion] = found.completions
    [allocation] = completion.allocations
    assert [one.device for one in allocation.results] == ["gpu-n-2"]


def test_an_assignment_whose_claim_has_other_devices_is_given_up() -> None:
    _, pod = claiming()
    claim = a_resource_claim("c", allocated=("GPU-n-1",), node="n", reserved_for=pod)
    found = repairs(a_dra_node("n"), claim, pod, a_lease(pod, "n", 2))
    assert not found.completions
    [rollback] = found.rollbacks
    assert "its ResourceClaims are not those of the assignment" in rollback.why


def test_devices_in_the_claim_of_a_pod_without_leases_are_taken_back() -> None:
    _, pod = claiming()
    claim = a_resource_claim("c", allocated=("GPU-n-1",), node="n", reserved_for=pod)
    assert [one.metadata.name for one in repairs(a_dra_node("n"), claim, pod).stale_claims] == ["p"]
    decision = decided(a_dra_node("n"), claim, pod)
    assert not decision.assignments
    assert "still has devices of an earlier attempt" in why(decision)


# --- under faults


async def controller(world: World) -> None:
    """What kube-controller-manager does: claims of pods that are gone lose their devices."""
    while True:
        uids = {
            one["metadata"]["uid"]: one
            for (path, _, _), one in world.api.objects.items()
            if path == "/api/v1/pods"
        }
        for (path, namespace, name), claim in list(world.api.objects.items()):
            reserved = claim.get("status", {}).get("reservedFor")
            if not path.endswith("/resourceclaims") or not reserved:
                continue
            if all(one["uid"] not in uids for one in reserved):
                assert IN_USE_FINALIZER in claim["metadata"]["finalizers"]
                changes = {"status": {"allocation": None, "reservedFor": None}}
                with suppress(KubernetesError):
                    await world.client.patch(
                        RESOURCE_CLAIMS, name, changes, namespace, subresource="status"
                    )
        await asyncio.sleep(0.2)


def check_claims(api: FakeApi) -> None:
    """Replay every change: a pod is bound when its claim has the devices of its annotation."""
    claims: dict[str, Manifest] = {}
    bound: set[str] = set()
    for change in api.history:
        metadata = change.object["metadata"]
        if change.path.endswith("/resourceclaims"):
            claims[metadata["name"]] = change.object
        if change.path != "/api/v1/pods" or not change.object["spec"].get("nodeName"):
            continue
        if metadata["uid"] in bound or not change.object["spec"].get("resourceClaims"):
            continue
        bound.add(metadata["uid"])
        told = metadata["annotations"][ALLOCATED_ANNOTATION].split(",")
        [entry] = change.object["spec"]["resourceClaims"]
        status = claims[entry["resourceClaimName"]]["status"]
        results = status["allocation"]["devices"]["results"]
        assert [one["device"] for one in results] == [device_name(uuid) for uuid in told]
        assert {one["pool"] for one in results} == {change.object["spec"]["nodeName"]}
        assert [one["uid"] for one in status["reservedFor"]] == [metadata["uid"]]
    assert bound


async def cluster(world: World) -> None:
    """Two nodes of 4 GPUs; a gang by GpuClaim, and a single pod with its own ResourceClaim."""
    for name in (NAMESPACE, LEASE_NAMESPACE):
        await world.create({"kind": "Namespace", "metadata": {"name": name}})
    await world.create(a_device_class())
    for name in ("a", "b"):
        for manifest in a_dra_node(name):
            await world.create(manifest)
            if manifest["kind"] == "GpuNodeStatus":
                await world.set_status(manifest)
    await world.create(a_claim("train", devices={"count": 2}, gang={"minMembers": 3}))
    for number in range(3):
        await world.create(a_gpu_claim_pod(f"w{number}", "train"))
    await world.create(a_resource_claim("mine"))
    await world.create(a_claiming_pod("single", "mine", priority=10))


async def life(world: World) -> None:
    await world.until(lambda: world.bound() >= {"w0", "w1", "w2", "single"})
    await world.create(a_resource_claim("much", a_request(count=3)))
    await world.create(a_claiming_pod("urgent", "much", priority=1_000_000))
    await world.until(lambda: "urgent" in world.bound())


def play(world: World, prepare: Any) -> None:
    async def main() -> None:
        await cluster(world)
        prepare()
        helpers = [asyncio.create_task(world.kubelet()), asyncio.create_task(controller(world))]
        await life(world)
        await asyncio.sleep(400)
        for task in (*helpers, *world.tasks):
            task.cancel()

    world.loop.run(main())
    check_history(world.api)
    check_claims(world.api)
    check_end(world)


def stopped_at(number: int, *, after: bool, freezes: bool, believes: bool = False) -> None:
    world = World(seed=number)

    def prepare() -> None:
        first = world.scheduler("first", always_leads=believes)
        first.stop_at, first.after = number, after
        if freezes:
            first.stop = first.frozen  # type: ignore[attr-defined]
            thaw = lambda: world.loop.thaw(first.part)  # type: ignore[attr-defined]  # noqa: E731
            world.loop.call_later(60.0, thaw)
        world.loop.call_later(1.0, lambda: world.scheduler("second", always_leads=believes))

    play(world, prepare)


def test_claims_are_allocated_and_preempted_without_faults() -> None:
    world = World()
    play(world, lambda: world.scheduler("first"))


# 7 writes are leases, 8 make claims or give them their finalizer and their devices, 4 bind.
@pytest.mark.parametrize("number", range(7, 22, 2))
def test_a_stop_between_leases_allocation_and_binding_is_repaired(number: int) -> None:
    stopped_at(number, after=number % 2 == 1, freezes=False)


@pytest.mark.parametrize("number", range(8, 22, 3))
def test_a_frozen_leader_that_believes_to_lead_allocates_nothing_twice(number: int) -> None:
    stopped_at(number, after=number % 2 == 1, freezes=True, believes=True)


@pytest.mark.slow
@pytest.mark.parametrize(("after", "believes"), [(False, False), (True, True)])
def test_a_stop_at_any_write_with_claims_is_repaired(after: bool, believes: bool) -> None:
    for number in range(1, 30, 2):
        stopped_at(number, after=after, freezes=believes, believes=believes)


@pytest.mark.parametrize("seed", range(2))
def test_lost_answers_and_conflicts_of_allocations(seed: int) -> None:
    world = World(seed=seed)

    def prepare() -> None:
        def some(request: Any) -> bool:
            is_claim = "/resourceclaims" in request.path and request.method != "GET"
            return bool(part_name()) and is_claim and world.random.random() < 0.3

        world.api.faults += [
            Fault(matches=some, times=6, loses_answer=True),
            Fault(matches=some, times=6, loses_request=True),
        ]
        for name in ("first", "second"):
            world.scheduler(name)

    play(world, prepare)


def late_allocation() -> None:
    """The allocation of a frozen leader arrives after its leases were released.

    Writes 1 and 2 are the lease and the finalizer, write 3 is the allocation.
    """
    world = World()

    async def main() -> None:
        for name in (NAMESPACE, LEASE_NAMESPACE):
            await world.create({"kind": "Namespace", "metadata": {"name": name}})
        await world.create(a_device_class())
        for manifest in a_dra_node("a", 2):
            await world.create(manifest)
            if manifest["kind"] == "GpuNodeStatus":
                await world.set_status(manifest)
        await world.create(a_resource_claim("c"))
        await world.create(a_claiming_pod("first", "c"))
        old = world.scheduler("old", always_leads=True)
        old.stop_at, old.stop = 3, old.frozen  # type: ignore[attr-defined]
        await asyncio.sleep(5)
        assert old.writes == 3
        await world.client.patch(NODES, "a", {"spec": {"unschedulable": True}})
        world.scheduler("new", always_leads=True)
        await asyncio.sleep(10)
        await world.create(a_resource_claim("d"))
        await world.create(a_claiming_pod("second", "d", priority=1_000_000))
        await world.client.patch(NODES, "a", {"spec": {"unschedulable": False}})
        await world.until(lambda: world.bound() == {"first", "second"})
        world.loop.thaw(old.part)  # type: ignore[attr-defined]
        await asyncio.sleep(60)
        for task in world.tasks:
            task.cancel()

    world.loop.run(main())
    check_history(world.api)
    check_claims(world.api)
    devices = [
        result["device"]
        for (path, _, _), one in world.api.objects.items()
        if path.endswith("/resourceclaims")
        for result in one["status"]["allocation"]["devices"]["results"]
    ]
    assert sorted(devices) == ["gpu-a-0", "gpu-a-1"]


def test_an_allocation_that_arrives_late_is_refused_or_taken_back() -> None:
    late_allocation()


def test_the_checker_sees_a_pod_that_is_bound_without_its_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def careless(*_: object) -> bool:
        return True

    monkeypatch.setattr(ClaimAllocator, "allocate", careless)
    world = World()
    with pytest.raises((AssertionError, KeyError)):
        play(world, lambda: world.scheduler("first"))
