"""From objects to assignments, on frozen objects and a given time."""

from datetime import timedelta
from typing import Any

import pytest

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.kubernetes.names import INDICES_ANNOTATION, OWNER_ANNOTATION, RACK_LABELS
from gpu_scheduler.kubernetes.scheduler.decision import Decision, Memory, make_decision
from tests.kubernetes_objects import (
    NAMESPACE,
    NOW,
    NOW_MS,
    Manifest,
    a_claim,
    a_gpu,
    a_lease,
    a_node,
    a_node_status,
    a_pod,
    a_queue,
    an_owner,
    meta,
    objects_of,
)

POLICY = preset("fair")


def decided(*manifests: Manifest, **memory: Any) -> Decision:
    return make_decision(objects_of(*manifests), POLICY, NOW_MS, Memory(**memory))


def places(decision: Decision) -> dict[str, tuple[str, list[int]]]:
    """Node and GPU indices of every assigned pod."""
    return {
        one.pod.metadata.name: (one.node, [device.index for device in one.devices])
        for assignment in decision.assignments
        for one in assignment.pods
    }


def why(decision: Decision, pod: str) -> str:
    return decision.waiting[NAMESPACE, pod].reason


# --- what a pod asks for


def test_plain_gpus_need_no_claim() -> None:
    assert places(decided(a_node("n"), a_pod("p", gpus=2))) == {"p": ("n", [0, 1])}


def test_a_claim_gives_the_uuids_of_the_agent() -> None:
    decision = decided(
        a_node("n", gpus=2),
        a_node_status("n", [a_gpu(0), a_gpu(1)]),
        a_claim("c", devices={"count": 2}),
        a_pod("p", claim="c"),
    )
    (assignment,) = decision.assignments
    assert [device.uuid for device in assignment.pods[0].devices] == ["GPU-n-0", "GPU-n-1"]


def test_a_missing_claim_is_named() -> None:
    decision = decided(a_node("n"), a_pod("p", claim="lost"))
    assert not decision.assignments
    assert why(decision, "p") == "its GpuClaim 'lost' does not exist in namespace 'ml'"


def test_a_claim_and_another_number_of_plain_gpus_contradict() -> None:
    decision = decided(a_node("n"), a_claim("c"), a_pod("p", claim="c", gpus=2))
    assert "is for 1 GPUs, but the pod asks for 2" in why(decision, "p")


def test_shared_parts_of_one_gpu() -> None:
    shared = {"count": 1, "exclusivity": "Shared", "fraction": 0.5}
    decision = decided(
        a_node("n", gpus=1),
        a_node_status("n", [a_gpu(0)]),
        a_claim("half", devices=shared),
        *(a_pod(f"p{n}", claim="half") for n in range(3)),
    )
    assert places(decision) == {"p0": ("n", [0]), "p1": ("n", [0])}
    assert "waiting for" in why(decision, "p2")


def test_mig_slices_are_given_once() -> None:
    slices = [{"uuid": f"MIG-{n}", "profile": "1g.10gb"} for n in range(2)]
    decision = decided(
        a_node("n", gpus=1),
        a_node_status("n", [a_gpu(0, mode="MIG", migSlices=slices)]),
        a_claim("slice", devices={"count": 1, "exclusivity": "Shared", "migProfile": "1g.10gb"}),
        *(a_pod(f"p{n}", claim="slice") for n in range(3)),
    )
    uuids = [one.pods[0].devices[0].uuid for one in decision.assignments]
    assert sorted(uuids) == ["MIG-0", "MIG-1"]
    assert (NAMESPACE, "p2") in decision.waiting


SLICES = [{"uuid": f"MIG-{number}", "profile": "1g.10gb"} for number in range(2)]
SLICE = {"nvidia.com/mig-1g.10gb": "1"}


def a_mig_node() -> list[Manifest]:
    node = a_node("n", gpus=0, more={"nvidia.com/mig-1g.10gb": "2"})
    return [node, a_node_status("n", [a_gpu(0, mode="MIG", migSlices=SLICES)])]


def test_mig_slices_by_extended_resource_are_leased_as_well() -> None:
    decision = decided(*a_mig_node(), *(a_pod(f"p{n}", requests=SLICE) for n in range(3)))
    uuids = [one.pods[0].devices[0].uuid for one in decision.assignments]
    assert sorted(uuids) == ["MIG-0", "MIG-1"]
    assert "1g.10gb" in why(decision, "p2")


@pytest.mark.parametrize(
    ("requests", "devices", "reason"),
    [
        ({**SLICE, "nvidia.com/gpu": "1"}, {}, "a pod gets GPUs of one kind"),
        ({**SLICE, "nvidia.com/mig-2g.20gb": "1"}, {}, "a pod gets GPUs of one kind"),
        ({"nvidia.com/mig-large": "1"}, {}, "MIG profile 'large' is not known"),
        (SLICE, {"migProfile": "2g.20gb"}, "asks for 1 nvidia.com/mig-1g.10gb; make both equal"),
    ],
)
def test_mig_slices_that_no_container_could_get_are_refused(
    requests: dict[str, str], devices: dict[str, str], reason: str
) -> None:
    claim = a_claim("c", devices={"count": 1, "exclusivity": "Shared", **devices})
    pod = a_pod("p", claim="c" if devices else "", requests=requests)
    bound = a_pod("bound", requests=requests, node="n")
    assert reason in why(decided(*a_mig_node(), claim, pod, bound), "p")


def test_a_slice_that_a_lease_names_by_another_profile_does_not_stop_the_others() -> None:
    held = a_pod("held", requests=SLICE, node="n")
    lease = a_lease(held, "n", 0, uuid="MIG-0", profile="2g.20gb")
    pods = (a_pod("p0", requests=SLICE), a_pod("p1", requests=SLICE), a_pod("q", gpus=1))
    decision = decided(*a_mig_node(), a_node("m", gpus=1), held, lease, *pods)
    given = {
        one.pod.metadata.name: one.devices[0].uuid
        for assignment in decision.assignments
        for one in assignment.pods
    }
    assert given == {"p0": "MIG-1", "q": "0"}


def test_mig_slices_of_another_scheduler_close_the_node_to_gpu_pods() -> None:
    foreign = a_pod("foreign", requests=SLICE, node="n", scheduler="default-scheduler")
    decision = decided(*a_mig_node(), foreign, a_pod("p", requests=SLICE))
    assert "in use by pods of another scheduler" in why(decision, "p")


@pytest.mark.parametrize("memory", ["1e5000", "1e999999999", "1e9223372036854775807"])
def test_a_claim_for_an_absurd_amount_of_memory_does_not_stop_the_others(memory: str) -> None:
    decision = decided(
        a_node("n", gpus=1),
        a_node_status("n", [a_gpu(0)]),
        a_claim("absurd", devices={"count": 1, "exclusivity": "Shared", "memory": memory}),
        a_pod("absurd", claim="absurd"),
        a_pod("p", gpus=1),
    )
    assert places(decision) == {"p": ("n", [0])}
    assert "too small" in why(decision, "absurd")


def test_required_topology_stays_within_an_island_of_the_bandwidth() -> None:
    gpus = [a_gpu(n, island=n // 2) for n in range(4)]
    links = [{"a": 0, "b": 1, "bandwidthGBps": 300}, {"a": 2, "b": 3, "bandwidthGBps": 600}]
    wants = {"mode": "Required", "minBandwidthGBps": 600}
    cluster = [a_node("n", gpus=4), a_node_status("n", gpus, links=links)]
    claim = a_claim("c", devices={"count": 2}, topology=wants)
    assert places(decided(*cluster, claim, a_pod("p", claim="c"))) == {"p": ("n", [2, 3])}


def test_preferred_bandwidth_is_taken_where_it_is_and_else_done_without() -> None:
    pairs = [{"a": 0, "b": 1, "bandwidthGBps": 600}]
    fast = [a_gpu(n, "fast", island=0 if n < 2 else n) for n in range(8)]
    cluster = [
        a_node("a-slow", gpus=2),
        a_node_status("a-slow", [a_gpu(n, "a-slow", island=n) for n in range(2)]),
        a_node("fast", gpus=8),
        a_node_status("fast", fast, links=pairs),
        a_claim("c", devices={"count": 2}, topology={"mode": "Preferred", "minBandwidthGBps": 600}),
    ]
    decision = decided(*cluster, *(a_pod(f"p{n}", claim="c") for n in range(2)))
    assert places(decision)["p0"] == ("fast", [0, 1]), "although the other node is a tighter fit"
    assert places(decision)["p1"][0] == "a-slow"


@pytest.mark.parametrize(
    ("policy", "expected"), [("pack", {("a", 0)}), ("spread", {("a", 0), ("b", 0)})]
)
def test_a_claim_chooses_whether_its_parts_are_spread(
    policy: str, expected: set[tuple[str, int]]
) -> None:
    part = {"count": 1, "exclusivity": "Shared", "fraction": 0.25, "policy": policy}
    cluster = [*(a_node(name, gpus=1) for name in "ab"), a_claim("c", devices=part)]
    decision = decided(*cluster, *(a_pod(f"p{n}", claim="c") for n in range(2)))
    assert {(node, index) for node, (index,) in places(decision).values()} == expected


def test_a_gang_prefers_one_rack_and_takes_several_if_it_must() -> None:
    racks = {"a": "1", "b": "2", "c": "2"}
    nodes = [a_node(name, gpus=1, labels={RACK_LABELS[0]: rack}) for name, rack in racks.items()]
    wish = {"mode": "Preferred", "sameRack": True}
    claim = a_claim("c", gang={"minMembers": 2}, topology=wish)
    gang = [a_pod(f"p{n}", claim="c") for n in range(2)]
    assert {node for node, _ in places(decided(*nodes, claim, *gang)).values()} == {"b", "c"}
    assert places(decided(*nodes[:2], claim, *gang)).keys() == {"p0", "p1"}
    required = a_claim("c", gang={"minMembers": 2}, topology={**wish, "mode": "Required"})
    assert places(decided(*nodes[:2], required, *gang)) == {}


def test_unhealthy_hot_paused_and_foreign_gpus_get_nothing() -> None:
    gpus = [
        a_gpu(0, health={"state": "Unhealthy", "reason": "XID 79"}),
        a_gpu(1, hot=True),
        a_gpu(2),
        a_gpu(3, foreignProcesses=[{"pid": 4711}]),
        a_gpu(4),
    ]
    cluster = [a_node("n", gpus=5), a_node_status("n", gpus, pausedGPUs=[2])]
    decision = decided(*cluster, a_claim("c"), a_pod("p", claim="c"), a_pod("q", claim="c"))
    assert places(decision) == {"p": ("n", [4])}


def test_gpus_of_a_silent_agent_get_nothing() -> None:
    long_ago = (NOW - timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = a_node_status("n", [a_gpu(0)], heartbeat=long_ago)
    assert not decided(a_node("n", gpus=1), status, a_pod("p", gpus=1)).assignments


def test_a_claim_can_name_the_owner_of_its_pods() -> None:
    owner = an_owner("ReplicaSet", "web-77d")
    decision = decided(
        a_node("n"),
        a_claim("c", devices={"count": 3}, annotations={OWNER_ANNOTATION: "Deployment/web"}),
        a_pod("p", owner=owner, labels={"pod-template-hash": "77d"}),
    )
    assert len(places(decision)["p"][1]) == 3


# --- who waits, and who runs


def test_leases_and_bound_pods_hold_their_gpus() -> None:
    bound = a_pod("bound", gpus=1, node="n")
    decision = decided(
        a_node("n", gpus=2), bound, a_lease(bound, "n", 1), a_pod("p", gpus=1), a_pod("q", gpus=1)
    )
    assert places(decision) == {"p": ("n", [0])}


def test_a_lease_without_a_pod_holds_its_gpu_until_it_is_released() -> None:
    gone = a_pod("gone", gpus=1)
    assert not decided(a_node("n", gpus=1), a_lease(gone, "n", 0), a_pod("p", gpus=1)).assignments


def test_a_gpu_with_a_new_index_is_not_given_twice() -> None:
    """After a reboot without its broken GPU 0, a node numbers the others anew."""
    told = {INDICES_ANNOTATION: "1"}
    pod = a_pod("kept", gpus=1, node="n", annotations=told)
    left = [a_gpu(0, uuid="GPU-n-1"), a_gpu(1, uuid="GPU-n-2"), a_gpu(2, uuid="GPU-n-3")]
    decision = decided(
        a_node("n", gpus=3),
        a_node_status("n", left),
        pod,
        a_lease(pod, "n", 1, uuid="GPU-n-1"),
        *(a_pod(f"p{number}", gpus=1) for number in range(3)),
    )
    # Index 0 is the GPU of the pod, and the lease of index 1 cannot be had.
    assert list(places(decision).values()) == [("n", [2])]


def test_pods_with_gates_or_being_deleted_are_left_alone() -> None:
    gated = a_pod("gated", gpus=1, schedulingGates=[{"name": "quota"}])
    deleted = a_pod("deleted", gpus=1)
    deleted["metadata"]["deletionTimestamp"] = "2026-05-04T11:00:00Z"
    decision = decided(a_node("n"), gated, deleted, a_pod("other", scheduler="default-scheduler"))
    assert not decision.assignments
    assert not decision.waiting


def test_a_claim_waits_for_its_begin_time() -> None:
    begin = (NOW + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    decision = decided(a_node("n"), a_claim("c", beginTime=begin), a_pod("p", claim="c"))
    assert why(decision, "p").endswith("not to begin before 2026-05-04T13:00:00Z")
    assert decision.next_begin_ms == NOW_MS + 3_600_000


def test_more_urgent_pods_go_first_and_evict() -> None:
    bound = a_pod("low", gpus=1, node="n", priority=0)
    urgent = a_pod("high", gpus=1, priority=1000)
    decision = decided(a_node("n", gpus=1), bound, a_lease(bound, "n", 0), urgent)
    assert [one.pod.metadata.name for one in decision.evictions] == ["low"]
    assert "its place is being cleared" in why(decision, "high")


def test_a_pod_with_preemption_policy_never_evicts_nobody() -> None:
    bound = a_pod("low", gpus=1, node="n", priority=0)
    urgent = a_pod("high", gpus=1, priority=1000, preemptionPolicy="Never")
    assert not decided(a_node("n", gpus=1), bound, a_lease(bound, "n", 0), urgent).evictions


def test_a_disruption_budget_protects_its_pods() -> None:
    bound = a_pod("low", gpus=1, node="n", labels={"app": "web"})
    budget = {
        "kind": "PodDisruptionBudget",
        "metadata": meta("b", NAMESPACE),
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": 0},
    }
    urgent = a_pod("high", gpus=1, priority=1000)
    cluster = [a_node("n", gpus=1), bound, a_lease(bound, "n", 0), urgent]
    assert not decided(*cluster, budget).evictions
    assert decided(*cluster).evictions
    assert not decided(*cluster, unevictable=frozenset({bound["metadata"]["uid"]})).evictions


def test_an_expected_start_follows_from_time_limits() -> None:
    bound = a_pod("now", gpus=1, node="n", activeDeadlineSeconds=3600)
    bound["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-05-04T11:30:00Z"}
    ]
    decision = decided(
        a_node("n", gpus=1), bound, a_lease(bound, "n", 0), a_pod("p", gpus=1), a_pod("q", gpus=1)
    )
    first, second = decision.waiting[NAMESPACE, "p"], decision.waiting[NAMESPACE, "q"]
    assert (first.position, first.likely_ms) == (1, NOW_MS + 1_800_000)
    # It would start after a pod that may run for ever.
    assert (second.position, second.likely_ms) == (2, None)


# --- gangs


GANG = {"minMembers": 3}


def gang(count: int, **limits: int) -> list[Manifest]:
    return [
        a_claim("c", devices={"count": 4}, gang={**GANG, **limits}),
        *(a_pod(f"w{n}", claim="c") for n in range(count)),
    ]


def test_a_gang_starts_together() -> None:
    decision = decided(a_node("a"), a_node("b"), *gang(3))
    (assignment,) = decision.assignments
    assert {one.pod.metadata.name for one in assignment.pods} == {"w0", "w1", "w2"}
    holders = [assignment.holder(one, one.devices[0], "s") for one in assignment.pods]
    assert {(holder.start, holder.members) for holder in holders} == {("s", 3)}


def test_a_gang_that_does_not_fit_as_a_whole_gets_nothing() -> None:
    decision = decided(a_node("a"), *gang(3))
    assert not decision.assignments
    assert "for each of 3 members" in why(decision, "w0")


def test_a_gang_waits_for_its_pods() -> None:
    decision = decided(a_node("a"), a_node("b"), *gang(2))
    assert why(decision, "w1") == "its gang has 2 of the 3 pods that must start together"


def test_a_gang_gets_no_more_than_its_maximum() -> None:
    decision = decided(a_node("a"), a_node("b"), *gang(4, maxMembers=3))
    assert len(places(decision)) == 3


def test_a_replaced_pod_joins_the_gang_that_runs() -> None:
    claim, *pods = gang(3)
    for number, pod in enumerate(pods[:2]):
        pod["spec"]["nodeName"] = "a"
        pod["status"]["phase"] = "Running"
        pods.append(a_lease(pod, "a", number))
    decision = decided(a_node("a"), claim, *pods)
    assert places(decision).keys() == {"w2"}
    (state,) = decision.gangs.values()
    assert state.is_incomplete


def test_members_that_exclude_each_other_are_spread() -> None:
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {"job": "x"}},
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    }
    nodes = [a_node(name) for name in "abc"]
    claim = a_claim("c", gang=GANG)
    pods = [a_pod(f"w{n}", claim="c", labels={"job": "x"}, affinity=apart) for n in range(3)]
    assert {node for node, _ in places(decided(*nodes, claim, *pods)).values()} == {"a", "b", "c"}
    decision = decided(*nodes[:2], claim, *pods)
    assert not decision.assignments
    assert why(decision, "w0")


def test_two_pods_of_one_plan_never_share_a_host_port() -> None:
    pods = [a_pod(f"p{n}", gpus=1, ports=(8080,)) for n in range(3)]
    decision = decided(a_node("a"), a_node("b"), *pods)
    assert sorted(node for node, _ in places(decision).values()) == ["a", "b"]


# --- queues


def test_a_strict_queue_holds_back_what_is_beyond_its_quota() -> None:
    queue = a_queue("team", namespaces=[NAMESPACE], quotas=[{"guaranteed": 1, "borrowingLimit": 0}])
    decision = decided(a_node("n"), queue, a_pod("p", gpus=1), a_pod("q", gpus=1))
    assert places(decision).keys() == {"p"}
    assert "node team of the quota tree may hold 1 GPU and holds 1" in why(decision, "q")


def test_queues_are_a_tree_with_quotas_for_models() -> None:
    cluster = [
        a_node("n", gpus=4),
        a_node_status("n", [a_gpu(n) for n in range(4)]),
        a_queue("org", quotas=[{"model": "H100", "guaranteed": 3}, {"guaranteed": 4}]),
        a_queue(
            "a", parent="org", quotas=[{"model": "h100", "guaranteed": 1, "borrowingLimit": 1}]
        ),
        a_queue("b", parent="org", quotas=[{"guaranteed": 1, "lendingLimit": 0}]),
        a_claim("a", queue="a"),
        a_claim("b", queue="b"),
    ]
    decision = decided(*cluster, *(a_pod(f"a{n}", claim="a") for n in range(4)))
    assert places(decision).keys() == {"a0", "a1"}, "one guaranteed and one borrowed"
    assert "node a of the quota tree may hold 2" in why(decision, "a2")


def test_a_lent_gpu_is_reclaimed_by_its_queue() -> None:
    cluster = [
        a_node("n", gpus=1),
        a_queue("owner", quotas=[{"guaranteed": 1}]),
        a_queue("guest"),
        a_claim("owner", queue="owner"),
        a_claim("guest", queue="guest"),
    ]
    guest = a_pod("guest", claim="guest", node="n", annotations={INDICES_ANNOTATION: "0"})
    decision = decided(*cluster, guest, a_lease(guest, "n", 0), a_pod("owner", claim="owner"))
    assert [one.pod.metadata.name for one in decision.evictions] == ["guest"]


def test_queues_that_contradict_each_other_do_not_stop_the_others() -> None:
    cluster = [
        a_node("n"),
        a_queue("small", quotas=[{"guaranteed": 1}]),
        a_queue("large", parent="small", quotas=[{"guaranteed": 5}]),
        a_queue("loop-1", parent="loop-2"),
        a_queue("loop-2", parent="loop-1"),
        a_queue("good", quotas=[{"guaranteed": 1}]),
        *(a_claim(name, queue=name) for name in ("small", "large", "loop-1", "good")),
        *(a_pod(name, claim=name) for name in ("small", "large", "loop-1", "good")),
    ]
    decision = decided(*cluster)
    assert places(decision).keys() == {"good"}
    assert "its children 5 GPUs together" in why(decision, "small")
    assert "is below 'small'" in why(decision, "large")
    assert "is below itself" in why(decision, "loop-1")


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"parent": "org"}, "has parent 'org', which is not in the tree"),
        ({"budget": {"gpuHours": 5}}, "budget of GPU-hours"),
        ({"namespaces": ["other"]}, "is not open to namespace 'ml'"),
    ],
)
def test_what_a_queue_asks_beyond_the_engine_is_refused(
    spec: dict[str, Any], sentence: str
) -> None:
    cluster = [a_node("n"), a_queue("q", **spec), a_claim("c", queue="q"), a_pod("p", claim="c")]
    decision = decided(*cluster)
    assert not decision.assignments
    assert sentence in why(decision, "p")


def test_a_queue_that_does_not_exist_is_named() -> None:
    decision = decided(a_node("n"), a_claim("c", queue="lost"), a_pod("p", claim="c"))
    assert why(decision, "p") == "its GpuQueue 'lost' does not exist"


# --- other pods and nodes


def test_cpu_and_memory_of_all_pods_count() -> None:
    other = a_pod("o", node="n", scheduler="default-scheduler", requests={"cpu": "3"})
    pod = a_pod("p", gpus=1, requests={"cpu": "2"})
    decision = decided(a_node("n", cpu="4"), other, pod)
    assert "too little free CPU" in why(decision, "p")


def test_gpus_of_another_scheduler_close_the_node_to_gpu_pods() -> None:
    other = a_pod("o", node="n", gpus=1, scheduler="default-scheduler")
    decision = decided(a_node("n"), other, a_pod("p", gpus=1), a_pod("q"))
    assert places(decision) == {"q": ("n", [])}
    assert "with GPUs in use by pods of another scheduler" in why(decision, "p")


def test_a_reason_names_the_rules_that_exclude_nodes() -> None:
    taint = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
    decision = decided(
        a_node("a", taints=[taint]), a_node("b", unschedulable=True), a_pod("p", gpus=1)
    )
    told = why(decision, "p")
    assert "of 2 nodes: 1 cordoned, 1 with the taint dedicated=ml:NoSchedule" in told


def test_the_same_objects_give_the_same_decision() -> None:
    cluster = [a_node("a"), a_node("b"), *gang(3), *(a_pod(f"p{n}", gpus=2) for n in range(5))]
    assert decided(*cluster) == decided(*reversed(cluster))


def test_a_node_that_holds_more_than_it_has_breaks_nothing() -> None:
    pods = [a_pod(f"b{n}", gpus=1, node="n", requests={"cpu": "60"}) for n in range(3)]
    leases = [a_lease(pod, "n", number + 6) for number, pod in enumerate(pods)]
    decision = decided(a_node("n", gpus=8), *pods, *leases, a_pod("p", gpus=1))
    assert places(decision) == {"p": ("n", [0])}
