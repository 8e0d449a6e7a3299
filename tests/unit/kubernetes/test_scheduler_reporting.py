"""What the scheduler writes for users and autoscalers: conditions, claims and queues."""

from typing import Any

import msgspec

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.kubernetes.crds.claim import NeededCapacity
from gpu_scheduler.kubernetes.crds.queue import GpuQueueStatus
from gpu_scheduler.kubernetes.names import INDICES_ANNOTATION
from gpu_scheduler.kubernetes.scheduler.decision import Memory, Translation
from gpu_scheduler.kubernetes.scheduler.reporting import (
    claim_writes,
    condition_writes,
    queue_writes,
)
from tests.kubernetes_objects import (
    NOW,
    NOW_MS,
    Manifest,
    a_claim,
    a_lease,
    a_node,
    a_pod,
    a_queue,
    objects_of,
)


def statuses(*manifests: Manifest) -> dict[str, GpuQueueStatus]:
    objects = objects_of(*manifests)
    translation = Translation(objects, preset("fair"), NOW_MS, Memory())
    decision = translation.decide()
    return {
        write.queue.metadata.name: write.status
        for write in queue_writes(objects, translation, decision, NOW)
    }


def a_running(name: str, claim: str, index: int) -> list[Manifest]:
    told = {INDICES_ANNOTATION: str(index)}
    pod = a_pod(name, claim=claim, node="n", annotations=told)
    return [pod, a_lease(pod, "n", index)]


def a_cluster(**more: Any) -> list[Manifest]:
    return [
        a_node("n", gpus=4),
        a_queue("owner", quotas=[{"guaranteed": 3}], weight=3, **more),
        a_queue("guest"),
        a_claim("owner", queue="owner"),
        a_claim("guest", queue="guest"),
    ]


def conditions(*manifests: Manifest) -> dict[str, dict[str, Any]]:
    """The status changes of waiting pods, by name."""
    objects = objects_of(*manifests)
    decision = Translation(objects, preset("fair"), NOW_MS, Memory()).decide()
    return {
        write.pod.metadata.name: write.changes(NOW)["status"]
        for write in condition_writes(decision.waiting)
    }


def reason_of(status: dict[str, Any]) -> str:
    (told,) = [one for one in status["conditions"] if one["type"] == "PodScheduled"]
    assert told["status"] == "False"
    return str(told["reason"])


def test_autoscalers_hear_of_pods_that_lack_room_only() -> None:
    found = conditions(
        a_node("n", gpus=1),
        a_queue("strict", quotas=[{"guaranteed": 0, "borrowingLimit": 0}]),
        a_claim("strict", queue="strict"),
        a_claim("gang", gang={"minMembers": 2}),
        a_claim("later", beginTime="2030-01-01T00:00:00Z"),
        a_pod("large", gpus=2),
        a_pod("quota", claim="strict"),
        a_pod("member", claim="gang"),
        a_pod("later", claim="later"),
    )
    reasons = {name: reason_of(status) for name, status in found.items()}
    waiting = dict.fromkeys(("quota", "member", "later"), "Waiting")
    assert reasons == {"large": "Unschedulable", **waiting}


def test_the_node_on_which_room_is_made_is_nominated() -> None:
    low = a_pod("low", node="n", gpus=1, annotations={INDICES_ANNOTATION: "0"})
    high = a_pod("high", gpus=1, priority=1_000_000)
    found = conditions(a_node("n", gpus=1), low, a_lease(low, "n", 0), high)
    assert found["high"]["nominatedNodeName"] == "n"
    assert reason_of(found["high"]) == "Unschedulable"
    waits = conditions(a_node("n", gpus=1), a_pod("large", gpus=2))
    assert waits["large"]["nominatedNodeName"] is None


def test_a_claim_says_what_added_nodes_would_have_to_offer() -> None:
    objects = objects_of(
        a_node("n", gpus=1),
        a_claim("c", devices={"count": 4, "models": ["H100"]}, gang={"minMembers": 2}),
        *(a_pod(f"p{n}", claim="c", requests={"cpu": "2", "memory": "1Gi"}) for n in range(2)),
    )
    translation = Translation(objects, preset("fair"), NOW_MS, Memory())
    (write,) = claim_writes(objects, translation, translation.decide(), NOW)
    assert write.status.needed == NeededCapacity(
        pods=2, gpus_per_pod=4, models=("H100",), cpu_per_pod="2000m", memory_per_pod="1024Mi"
    )


def test_a_queue_tells_what_it_uses_borrows_and_lends() -> None:
    found = statuses(*a_cluster(), *a_running("g0", "guest", 0), *a_running("g1", "guest", 1))
    owner, guest = found["owner"], found["guest"]
    assert (guest.running_claims, guest.allocated_gpus, guest.borrowed_gpus) == (2, 2, 2)
    assert (owner.guaranteed_gpus, owner.allocated_gpus) == (3, 0)
    assert [use.lent for use in owner.usage] == [1]
    assert (owner.fair_share_percent, guest.fair_share_percent) == (75, 25)
    assert [(one.type, one.status) for one in owner.conditions] == [("Accepted", "True")]


def test_a_status_that_is_true_is_not_written_again() -> None:
    first = statuses(*a_cluster())
    again = a_cluster()
    for manifest in again:
        if manifest["kind"] == "GpuQueue":
            manifest["status"] = msgspec.to_builtins(first[manifest["metadata"]["name"]])
    assert statuses(*again) == {}


def test_a_queue_that_contradicts_others_says_so() -> None:
    found = statuses(*a_cluster(parent="nowhere"))
    (condition,) = found["owner"].conditions
    assert (condition.status, condition.reason) == ("False", "Contradiction")
    assert "parent 'nowhere', which is not in the tree" in condition.message
