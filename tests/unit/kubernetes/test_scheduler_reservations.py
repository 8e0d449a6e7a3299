"""GpuReservations: who gets their GPUs, what is kept, and what their statuses say."""

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.crds.reservation import GpuReservationStatus, ReservationPhase
from gpu_scheduler.kubernetes.names import INDICES_ANNOTATION
from gpu_scheduler.kubernetes.scheduler.decision import Decision, Memory, make_decision
from gpu_scheduler.kubernetes.scheduler.loop import Scheduler
from gpu_scheduler.kubernetes.scheduler.reporting import reservation_writes
from tests.fakes.kubernetes.api import FakeApi
from tests.fakes.kubernetes.transport import FakeTransport
from tests.kubernetes_objects import (
    FIELDS,
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
    a_reservation,
    objects_of,
)

HOUR_MS = 3_600_000
TEAM = [a_queue("team"), a_claim("team", queue="team")]


def decided(*manifests: Manifest, at_ms: int = NOW_MS, **memory: Any) -> Decision:
    return make_decision(objects_of(*TEAM, *manifests), preset("fair"), at_ms, Memory(**memory))


def status(decision: Decision, name: str = "r") -> GpuReservationStatus:
    return decision.reserved.statuses[name]


def with_status(reservation: Manifest, decision: Decision) -> Manifest:
    """The reservation as the API server has it after the status was written."""
    found = status(decision, reservation["metadata"]["name"])
    return {**reservation, "status": msgspec.to_builtins(found)}


def bound(decision: Decision) -> set[str]:
    return {one.pod.metadata.name for each in decision.assignments for one in each.pods}


def test_a_reservation_gets_gpus_and_says_which() -> None:
    decision = decided(a_node("n", gpus=4), a_reservation("r", count=2))
    found = status(decision)
    assert (found.phase, found.where) == (ReservationPhase.PLANNED, "n[0,1]")
    assert [(part.node, part.indices) for part in found.devices] == [("n", (0, 1))]


def test_others_use_reserved_gpus_only_if_they_end_in_time() -> None:
    cluster = [
        a_node("n", gpus=1),
        a_reservation("r"),
        a_claim("short", maxRunTimeSeconds=1800, preemptible=False),
        a_claim("long", maxRunTimeSeconds=7200, preemptible=False),
        a_claim("endless", preemptible=False),
    ]
    assert bound(decided(*cluster, a_pod("endless", claim="endless"))) == set()
    assert bound(decided(*cluster, a_pod("long", claim="long"))) == set()
    assert bound(decided(*cluster, a_pod("short", claim="short"))) == {"short"}


def test_only_pods_of_the_queue_use_the_gpus_while_it_is_active() -> None:
    cluster = [a_node("n", gpus=1), a_reservation("r")]
    cluster[1] = with_status(cluster[1], decided(*cluster))
    pods = [a_pod("other", gpus=1), a_pod("own", claim="team")]
    decision = decided(*cluster, *pods, at_ms=NOW_MS + HOUR_MS)
    assert status(decision).phase is ReservationPhase.ACTIVE
    assert bound(decision) == {"own"}
    assert bound(decided(*cluster, *pods, at_ms=NOW_MS + 2 * HOUR_MS)) == {"other"}


def test_a_namespace_of_its_own() -> None:
    cluster = [a_node("n", gpus=1), a_reservation("r", namespaces=["ml"])]
    cluster[1] = with_status(cluster[1], decided(*cluster))
    other = [
        a_claim("team", namespace="web", queue="team"),
        a_pod("web", namespace="web", claim="team"),
    ]
    assert bound(decided(*cluster, *other, at_ms=NOW_MS + HOUR_MS)) == set()
    assert bound(decided(*cluster, a_pod("own", claim="team"), at_ms=NOW_MS + HOUR_MS)) == {"own"}
    several = status(decided(a_node("n"), a_reservation("r", namespaces=["ml", "web"])))
    assert "make one reservation for each" in several.reason


def test_the_next_leader_keeps_the_gpus_of_the_status() -> None:
    first = [a_node("n", gpus=4), a_reservation("r", count=2)]
    kept = with_status(first[1], decided(*first))
    kept["status"]["devices"] = [{"node": "n", "indices": [2, 3]}]
    earlier = a_reservation("another", count=2)
    decision = decided(first[0], earlier, kept)
    assert status(decision).where == "n[2,3]"
    assert status(decision, "another").where == "n[0,1]"


def test_gpus_stay_the_same_until_the_status_is_seen() -> None:
    reservation = a_reservation("r")
    nodes = [a_node("n", gpus=1), a_node("m", gpus=1)]
    before = decided(*nodes, reservation)
    running = a_pod("p", node="m", gpus=1, annotations={INDICES_ANNOTATION: "0"})
    after = decided(
        *nodes, reservation, running, a_lease(running, "m", 0), advance=before.reserved.found
    )
    assert status(after).where == status(before).where


def test_what_cannot_be_guaranteed_is_rejected_with_what_would_fit() -> None:
    running = a_pod("p", node="n", gpus=1, annotations={INDICES_ANNOTATION: "0"})
    cluster = [a_node("n", gpus=2), running, a_lease(running, "n", 0)]
    found = status(decided(*cluster, a_reservation("r", count=2)))
    assert found.phase is ReservationPhase.REJECTED
    assert "of 2 that match, 1 can" in found.reason
    assert "ask for 1 or fewer" in found.reason
    decision = decided(*cluster, a_reservation("r", count=2, preempts=True))
    assert status(decision).where == "n[0,1]"


def test_a_rejected_one_is_tried_again_after_a_minute() -> None:
    reservation = a_reservation("r", count=2)
    first = decided(a_node("n", gpus=1), reservation)
    memory = first.reserved.found
    large = a_node("large", gpus=2)
    soon = decided(large, reservation, at_ms=NOW_MS + 1000, advance=memory)
    assert status(soon).phase is ReservationPhase.REJECTED
    later = decided(large, reservation, at_ms=NOW_MS + 61_000, advance=memory)
    assert status(later).phase is ReservationPhase.PLANNED


def test_pods_in_the_way_are_evicted_shortly_before_the_start() -> None:
    running = a_pod("p", node="n", gpus=1, annotations={INDICES_ANNOTATION: "0"})
    cluster = [a_node("n", gpus=1), running, a_lease(running, "n", 0)]
    reservation = a_reservation("r", preempts=True)
    reservation = with_status(reservation, decided(*cluster, reservation))
    assert not decided(*cluster, reservation).evictions
    (eviction,) = decided(*cluster, reservation, at_ms=NOW_MS + HOUR_MS - 30_000).evictions
    assert (eviction.pod.metadata.name, eviction.for_job_id) == ("p", "GpuReservation r")


def test_a_broken_gpu_is_replaced_or_missed() -> None:
    reservation = a_reservation("r", count=2)
    healthy = [a_node("n", gpus=3), a_node_status("n", [a_gpu(n) for n in range(3)])]
    reservation = with_status(reservation, decided(*healthy, reservation))
    ill = {"state": "Unhealthy", "reason": "XID 79"}
    broken = a_node_status("n", [a_gpu(0, health=ill), a_gpu(1), a_gpu(2)])
    found = status(decided(healthy[0], broken, reservation))
    assert (found.where, found.missing) == ("n[1,2]", 0)
    worse = a_node_status("n", [a_gpu(0, health=ill), a_gpu(1), a_gpu(2, health=ill)])
    found = status(decided(healthy[0], worse, reservation))
    assert found.missing == 1
    assert "1 of its GPUs are broken" in found.reason


def test_a_queue_or_node_that_does_not_exist_is_named() -> None:
    found = status(decided(a_node("n"), a_reservation("r", queue="lost")))
    assert found.reason == "GpuQueue 'lost' does not exist; create it"
    found = status(decided(a_node("n"), a_reservation("r", node="lost")))
    assert "node 'lost' does not exist" in found.reason


def test_an_ended_reservation_holds_nothing_and_is_written_once() -> None:
    reservation = a_reservation("r")
    nodes = [a_node("n", gpus=1)]
    reservation = with_status(reservation, decided(*nodes, reservation))
    objects = objects_of(*TEAM, *nodes, reservation, a_pod("p", gpus=1))
    decision = make_decision(objects, preset("fair"), NOW_MS + 2 * HOUR_MS)
    assert bound(decision) == {"p"}
    (write,) = reservation_writes(objects, decision, NOW)
    assert write.status.phase is ReservationPhase.ENDED
    assert write.status.where == "n[0]"
    again = {**reservation, "status": msgspec.to_builtins(write.status)}
    objects = objects_of(*TEAM, *nodes, again)
    decision = make_decision(objects, preset("fair"), NOW_MS + 2 * HOUR_MS)
    assert not list(reservation_writes(objects, decision, NOW))


def test_a_restarted_scheduler_keeps_what_the_status_says() -> None:
    api = FakeApi()
    for manifest in (*TEAM[:1], a_node("n", gpus=4), a_reservation("r", count=2)):
        kind = next(one for one in FIELDS.values() if one.kind == manifest["kind"])
        api._store(kind.path(), manifest)
    path = ("/apis/gpu.scheduling/v1/gpureservations", "", "r")
    spec = api.objects[path]["spec"]
    spec["startTime"], spec["endTime"] = "2100-01-01T00:00:00Z", "2100-01-02T00:00:00Z"

    async def run_until(condition: Callable[[], bool]) -> None:
        scheduler = Scheduler(
            ApiClient(FakeTransport(api)),
            namespace="gpu-scheduler",
            identity="one",
            policy=preset("fair"),
            is_leader=lambda: True,
        )
        task = asyncio.create_task(scheduler.run())
        async with asyncio.timeout(60):
            while not condition() or not scheduler.counters.cycles:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])

    def told() -> Any:
        return api.objects[path].get("status", {})

    asyncio.run(run_until(lambda: told().get("phase") == "Planned"))
    assert told()["where"] == "n[0,1]"
    assert [one["type"] for one in told()["conditions"]] == ["Guaranteed"]
    # Another place would be chosen now, but the GPUs were promised.
    api.objects[path]["status"] |= {
        "where": "n[2,3]",
        "devices": [{"node": "n", "indices": [2, 3]}],
    }
    asyncio.run(run_until(lambda: True))
    assert told()["where"] == "n[2,3]"


def test_a_blocked_job_keeps_its_reservation_through_a_restart() -> None:
    """The next leader knows since when the job has had it; a damaged record costs nothing else."""
    api = FakeApi()
    running = a_pod("running", node="n", claim="long", annotations={INDICES_ANNOTATION: "0,1"})
    bound_at = "2026-05-04T11:59:00Z"
    running["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": bound_at}
    ]
    nodes_and_claims = [
        a_node("n", gpus=2),
        a_claim("long", devices={"count": 2}, maxRunTimeSeconds=7200),
        a_claim("blocked", devices={"count": 2}, maxRunTimeSeconds=600),
    ]

    def store(*manifests: Manifest) -> None:
        for manifest in manifests:
            kind = next(one for one in FIELDS.values() if one.kind == manifest["kind"])
            api._store(kind.path(), manifest)

    store(*nodes_and_claims, running, a_pod("waits", claim="blocked"))
    stored = api.objects["/api/v1/pods", "ml", "running"]
    store(*(a_lease(stored, "n", index) for index in range(2)))
    api._store("/api/v1/namespaces", {"metadata": {"name": "gpu-scheduler"}})
    path = ("/api/v1/configmaps", "gpu-scheduler", "gpu-scheduler-reservations")

    def recorded() -> list[dict[str, Any]]:
        found = api.objects.get(path, {}).get("data", {}).get("reservations.json", "[]")
        return list(json.loads(found)) if found.startswith("[") else []

    def run_at(at: datetime, condition: Callable[[], bool]) -> None:
        async def main() -> None:
            scheduler = Scheduler(
                ApiClient(FakeTransport(api)),
                namespace="gpu-scheduler",
                identity=at.isoformat(),
                policy=preset("fair"),
                is_leader=lambda: True,
                now=lambda: at,
            )
            task = asyncio.create_task(scheduler.run())
            async with asyncio.timeout(60):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(main())

    run_at(NOW, lambda: bool(recorded()))
    (first,) = recorded()
    assert (first["job_id"], first["made_ms"]) == ("ml/waits", NOW_MS)
    version = api.objects[path]["metadata"]["resourceVersion"]
    later = NOW + timedelta(minutes=30)
    # It takes longer, so the start moves.
    now = api.objects["/api/v1/pods", "ml", "running"]
    now["status"]["conditions"][0]["lastTransitionTime"] = "2026-05-04T12:10:00Z"
    run_at(later, lambda: api.objects[path]["metadata"]["resourceVersion"] != version)
    (kept,) = recorded()
    assert kept["made_ms"] == NOW_MS
    assert kept["at_ms"] > first["at_ms"]
    api.objects[path]["data"]["reservations.json"] = "damaged"
    run_at(later, lambda: bool(recorded()))
    (new,) = recorded()
    assert new["made_ms"] == NOW_MS + 30 * 60_000
