"""What the scheduler writes into objects for users: statuses of queues."""

from typing import Any

import msgspec

from gpu_scheduler.engine.policy import preset
from gpu_scheduler.kubernetes.crds.queue import GpuQueueStatus
from gpu_scheduler.kubernetes.names import INDICES_ANNOTATION
from gpu_scheduler.kubernetes.scheduler.decision import Memory, Translation
from gpu_scheduler.kubernetes.scheduler.reporting import queue_writes
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
