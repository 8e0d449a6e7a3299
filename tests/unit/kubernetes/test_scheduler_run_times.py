"""Run times of ended pods: expected starts of others, and the record for the next leader."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.scheduler.decision import Memory, WaitingPod, make_decision
from gpu_scheduler.kubernetes.scheduler.loop import Scheduler
from gpu_scheduler.kubernetes.scheduler.run_times import MOST_RUNS, Run, RunTimes
from tests.fakes.kubernetes.api import FakeApi
from tests.fakes.kubernetes.transport import FakeTransport
from tests.kubernetes_objects import (
    FIELDS,
    NAMESPACE,
    NOW,
    NOW_MS,
    Manifest,
    a_claim,
    a_lease,
    a_node,
    a_pod,
    objects_of,
)

MINUTE_MS = 60_000
TRAIN = ["python", "train.py", "--lr", "1"]
QUEUE = "default"


def a_run(number: int, *command: str, minutes: float = 60, limit_ms: int = 0) -> Run:
    start_ms = NOW_MS - 86_400_000 + number
    return Run(
        uid=f"run-{number:06}",
        queue=QUEUE,
        namespace=NAMESPACE,
        command=command,
        limit_ms=limit_ms,
        start_ms=start_ms,
        end_ms=start_ms + int(minutes * MINUTE_MS),
    )


def with_command(pod: Manifest, *command: str) -> Manifest:
    pod["spec"]["containers"][0]["command"] = list(command)
    return pod


def bound(name: str, *command: str, phase: str = "", **spec: Any) -> Manifest:
    """A pod that has been on the node for half an hour."""
    pod = with_command(a_pod(name, gpus=1, node="n", phase=phase, **spec), *command)
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-05-04T11:30:00Z"}
    ]
    return pod


def ended(name: str, *command: str) -> Manifest:
    """A pod that ran from 11:30 to 11:50."""
    pod = bound(name, *command, phase="Succeeded")
    pod["status"]["conditions"].append(
        {"type": "Ready", "status": "False", "lastTransitionTime": "2026-05-04T11:50:00Z"}
    )
    return pod


def waiting(running: Manifest, *runs: Run) -> WaitingPod:
    """What a pod is told that waits for the only GPU."""
    cluster = objects_of(a_node("n", gpus=1), running, a_lease(running, "n", 0), a_pod("p", gpus=1))
    memory = Memory(run_times=RunTimes(runs))
    return make_decision(cluster, preset("fair"), NOW_MS, memory).waiting[NAMESPACE, "p"]


def test_runs_of_a_like_pod_give_an_expected_start_without_time_limits() -> None:
    runs = [a_run(number, *TRAIN) for number in range(5)]
    told = waiting(bound("now", *TRAIN), *runs)
    assert told.likely_ms == NOW_MS + 30 * MINUTE_MS
    assert told.latest_ms is None


def test_runs_of_other_programs_give_none() -> None:
    runs = [a_run(number, "python", "test.py") for number in range(5)]
    assert waiting(bound("now", *TRAIN), *runs).likely_ms is None


def test_a_likely_start_is_before_the_one_by_time_limits() -> None:
    runs = [a_run(number, *TRAIN, limit_ms=120 * MINUTE_MS) for number in range(5)]
    told = waiting(bound("now", *TRAIN, activeDeadlineSeconds=7200), *runs)
    assert told.likely_ms == NOW_MS + 30 * MINUTE_MS
    assert told.latest_ms == NOW_MS + 90 * MINUTE_MS


def test_decisions_do_not_depend_on_run_times() -> None:
    running = bound("now", *TRAIN)
    cluster = objects_of(
        a_node("n", gpus=2),
        running,
        a_lease(running, "n", 0),
        a_pod("large", gpus=2),
        a_pod("small", gpus=1, activeDeadlineSeconds=60),
    )
    found = [
        make_decision(cluster, preset("fair"), NOW_MS, Memory(run_times=RunTimes(runs)))
        for runs in ((), [a_run(number, *TRAIN) for number in range(5)])
    ]
    assert found[0].assignments == found[1].assignments
    assert found[0].reservations == found[1].reservations


def test_the_newest_runs_are_kept_and_each_is_learnt_once() -> None:
    known = RunTimes()
    runs = [a_run(number, "a") for number in range(MOST_RUNS + 5)]
    assert known.learn(runs)
    assert not known.learn(runs)
    assert [run.uid for run in known.newest_first()] == [
        run.uid for run in reversed(runs[-MOST_RUNS:])
    ]


def test_the_next_leader_knows_the_run_times_of_pods_that_are_gone() -> None:
    api = FakeApi()
    running = bound("running", *TRAIN)
    claim = a_claim("late", devices={"count": 2})

    def store(*manifests: Manifest) -> None:
        by_kind = {resource.kind: resource for resource in FIELDS.values()}
        for manifest in manifests:
            api._store(by_kind[manifest["kind"]].path(), manifest)

    store(a_node("n", gpus=2), ended("ended", *TRAIN))
    for name in ("gpu-scheduler", NAMESPACE):
        api._store("/api/v1/namespaces", {"metadata": {"name": name}})

    def run_until(condition: Callable[[], object]) -> None:
        async def main() -> None:
            scheduler = Scheduler(
                ApiClient(FakeTransport(api)),
                namespace="gpu-scheduler",
                identity="one",
                policy=preset("fair"),
                is_leader=lambda: True,
                now=lambda: NOW,
            )
            task = asyncio.create_task(scheduler.run())
            async with asyncio.timeout(60):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(main())

    path = ("/api/v1/configmaps", "gpu-scheduler", "gpu-scheduler-run-times")
    run_until(lambda: path in api.objects)
    (run,) = json.loads(api.objects[path]["data"]["run-times.json"])
    assert run[3] == TRAIN
    assert run[-1] - run[-2] == 20 * MINUTE_MS
    del api.objects["/api/v1/pods", NAMESPACE, "ended"]
    store(claim, running, a_pod("large", gpus=2, claim="late"))
    store(a_lease(api.objects["/api/v1/pods", NAMESPACE, "running"], "n", 0))
    claims = "/apis/gpu.scheduling/v1/gpuclaims"

    def start() -> Any:
        status = api.objects[claims, NAMESPACE, "late"].get("status", {})
        return status.get("expectedStart", {}).get("likely")

    def told() -> list[str]:
        return [
            one["message"]
            for (kind, _, _), one in api.objects.items()
            if kind == "/api/v1/events" and one["reason"] == "ExpectedStart"
        ]

    run_until(lambda: start() and told())
    (message,) = told()
    assert message == f"should start at {start()}, by the run times of like pods before it"


def test_pod_without_a_known_run_time_is_not_new_in_every_cycle() -> None:
    known = RunTimes()
    assert not known.learn([a_run(1, "a", minutes=0)])
    assert len(known) == 0
