"""Traces of pods and GpuClaims, and nodes, as kubectl prints them."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.model.node import DeviceMode
from gpu_scheduler.simulator.traces.collector import Reading
from gpu_scheduler.simulator.traces.detect import (
    TraceFormat,
    detect_format,
    read_cluster,
    read_trace,
)
from gpu_scheduler.simulator.traces.kubernetes import (
    BY_RESOURCE_CLAIM,
    CLAIM_UNKNOWN,
    NEVER_STARTED,
    NO_GPU,
    TOO_LARGE,
)
from tests.simulation.trace_files import Refusal, a_cluster, a_file, jobs_of

HOUR_MS = 3_600_000


def at(clock: str) -> str:
    return f"2026-10-01T{clock}:00Z"


def a_pod(
    name: str = "train-0",
    *,
    gpus: int = 1,
    created: str = "08:00",
    bound: str | None = "09:00",
    ended: str | None = "10:30",
    resources: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
    **meta: Any,
) -> dict[str, Any]:
    """A pod as the API server returns it, with the fields that matter here."""
    amounts = {"cpu": "4", "memory": "16Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    amounts |= resources or {}
    status: dict[str, Any] = {"phase": "Pending", "conditions": []}
    if bound:
        status["conditions"].append(
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(bound)}
        )
        status["phase"] = "Running"
    if ended:
        state = {"terminated": {"exitCode": 0, "finishedAt": at(ended)}}
        status |= {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": state}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "vision",
            "uid": f"uid-{name}",
            "creationTimestamp": at(created),
            **meta,
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": amounts}}]} | (spec or {}),
        "status": status,
    }


def a_node(
    name: str = "n1", *, labels: dict[str, str] | None = None, **amounts: str
) -> dict[str, Any]:
    allocatable = {"cpu": "63500m", "memory": "500Gi", "nvidia.com/gpu": "8"}
    allocatable |= {key.replace("__", "/"): text for key, text in amounts.items()}
    labels = {"kubernetes.io/hostname": name, "zone": "a", **(labels or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": allocatable},
    }


def a_claim(name: str = "big", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gpu.scheduling/v1alpha1",
        "kind": "GpuClaim",
        "metadata": {"name": name, "namespace": "vision"},
        "spec": spec,
    }


def dump(folder: Path, *items: dict[str, Any], name: str = "pods.json") -> Path:
    text = json.dumps({"apiVersion": "v1", "items": items, "kind": "List"}, indent=4)
    return a_file(folder, name, text)


def read(folder: Path, *items: dict[str, Any]) -> Reading:
    path = dump(folder, *items)
    assert detect_format(path) is TraceFormat.KUBERNETES
    return read_trace(path, cluster=a_cluster())


def test_pod_runs_from_its_binding_to_the_end_of_its_containers(tmp_path: Path) -> None:
    (entry,) = jobs_of(read(tmp_path, a_pod(gpus=2, generateName="train-")))
    job = entry.job
    assert (job.id, job.tenant, job.name) == ("vision/train-0", "vision", "train")
    assert (job.submit_ms, entry.run_ms) == (8 * HOUR_MS, 1.5 * HOUR_MS)
    (request,) = job.members
    assert (request.gpu_count, request.cpu_milli, request.memory_mb) == (2, 4_000, 16_384)


def test_running_pod_runs_until_the_latest_time_of_the_file(tmp_path: Path) -> None:
    running = a_pod("a", ended=None)
    other = a_pod("b", ended="12:00")
    first, _ = jobs_of(read(tmp_path, running, other))
    assert (first.job.id, first.run_ms) == ("vision/a", 3 * HOUR_MS)


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (a_pod("x", bound=None, ended=None), NEVER_STARTED),
        (a_pod("x", gpus=0), NO_GPU),
        (a_pod("x", gpus=0, spec={"resourceClaims": [{"name": "g"}]}), BY_RESOURCE_CLAIM),
        (a_pod("x", gpus=16), TOO_LARGE),
        (a_pod("x", annotations={"gpu.scheduling/claim": "gone"}), CLAIM_UNKNOWN),
    ],
)
def test_pod_that_cannot_be_replayed_is_counted(
    tmp_path: Path, pod: dict[str, Any], why: str
) -> None:
    reading = read(tmp_path, a_pod(), pod)
    assert [entry.job.id for entry in jobs_of(reading)] == ["vision/train-0"]
    assert reading.skipped == {why: 1}


def test_gpu_claim_says_what_its_pod_asks_for(tmp_path: Path) -> None:
    claim = a_claim(
        devices={"count": 1, "exclusivity": "Shared", "fraction": 0.5},
        queue="research",
        priority=1500,
        maxRunTimeSeconds=3600,
    )
    pod = a_pod(gpus=0, annotations={"gpu.scheduling/claim": "big"})
    (entry,) = jobs_of(read(tmp_path, claim, pod))
    assert (entry.job.gpu_milli, entry.job.tenant, entry.job.priority) == (500, "research", 1500)
    assert entry.run_ms == entry.job.max_runtime_ms == HOUR_MS


def test_pods_of_a_gang_are_one_job(tmp_path: Path) -> None:
    claim = a_claim(devices={"count": 4}, gang={"minMembers": 2})
    pods = [
        a_pod(
            f"w{rank}", gpus=0, created=f"08:0{rank}", annotations={"gpu.scheduling/claim": "big"}
        )
        for rank in range(3)
    ]
    (entry,) = jobs_of(read(tmp_path, claim, *pods))
    assert [member.gpu_count for member in entry.job.members] == [4, 4, 4]
    assert (entry.job.id, entry.job.min_members) == ("vision/big", 2)


@pytest.mark.parametrize(
    "meta",
    [
        {"labels": {"training.kubeflow.org/job-name": "ddp"}},
        {"annotations": {"scheduling.k8s.io/group-name": "ddp"}},
    ],
)
def test_gangs_of_other_schedulers_are_one_job(tmp_path: Path, meta: dict[str, Any]) -> None:
    (entry,) = jobs_of(read(tmp_path, a_pod("w0", **meta), a_pod("w1", **meta)))
    assert (entry.job.id, len(entry.job.members)) == ("vision/ddp", 2)


def test_runs_of_one_controller_have_one_name(tmp_path: Path) -> None:
    def owned(name: str, kind: str, owner: str, **meta: Any) -> dict[str, Any]:
        return a_pod(name, ownerReferences=[{"kind": kind, "name": owner}], **meta)

    entries = jobs_of(
        read(
            tmp_path,
            owned("a", "Job", "nightly-29012345"),
            owned("b", "Job", "nightly-29013785"),
            owned("c", "ReplicaSet", "web-5d4f", labels={"pod-template-hash": "5d4f"}),
        )
    )
    assert [entry.job.name for entry in entries] == ["nightly", "nightly", "web"]


def test_last_version_of_an_object_counts(tmp_path: Path) -> None:
    documents = [a_pod(bound=None, ended=None), a_pod(ended=None), a_pod()]
    path = a_file(tmp_path, "watch.json", *(json.dumps(each, indent=1) for each in documents))
    (entry,) = jobs_of(read_trace(path, cluster=a_cluster()))
    assert entry.run_ms == 1.5 * HOUR_MS


def test_init_containers_and_sidecars_count_as_in_kubernetes(tmp_path: Path) -> None:
    def container(cpu: str, **fields: str) -> dict[str, Any]:
        return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **fields}

    pod = a_pod(
        spec={
            "initContainers": [container("500m", restartPolicy="Always"), container("9")],
            "containers": [
                {"name": "m", "resources": {"limits": {"cpu": "4", "nvidia.com/gpu": 1}}}
            ],
        }
    )
    (entry,) = jobs_of(read(tmp_path, pod))
    assert entry.job.members[0].cpu_milli == 9_000


def test_nodes_are_read_with_models_memory_and_labels(tmp_path: Path) -> None:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "nvidia.com/gpu.memory": "81559",
        "topology.kubernetes.io/rack": "r1",
    }
    path = dump(tmp_path, a_node("n2", nvidia_com="0"), a_node("n1", labels=labels))
    first, _ = read_cluster(path).nodes
    assert (first.id, first.gpu_count, first.cpu_milli, first.rack) == ("n1", 8, 63_500, "r1")
    assert first.memory_mb == 512_000
    assert (first.devices[0].model, first.devices[0].memory_mb) == ("NVIDIA-A100-SXM4-80GB", 81_559)
    assert ("zone", "a") in first.labels
    assert "kubernetes.io/hostname" not in dict(first.labels)


def test_mig_slices_are_read_and_asked_for(tmp_path: Path) -> None:
    node = a_node(labels={"nvidia.com/gpu.count": "2"}, **{"nvidia.com__gpu": "0"})
    node["status"]["allocatable"] |= {"nvidia.com/mig-1g.10gb": "8", "nvidia.com/mig-3g.40gb": "2"}
    pod = a_pod(gpus=0, resources={"nvidia.com/mig-1g.10gb": "2"})
    path = dump(tmp_path, node, pod)
    (entry,) = jobs_of(read_trace(path))
    (device, _) = read_cluster(path).nodes[0].devices
    assert (device.mode, device.mig_slices) == (DeviceMode.MIG, (("1g.10gb", 4), ("3g.40gb", 1)))
    assert entry.job.members[0].mig_profile == "1g.10gb"
    assert entry.job.members[0].gpu_count == 2


def test_selectors_hold_on_nodes_of_kubernetes(tmp_path: Path) -> None:
    product = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    nodes = a_node("n1", labels=product), a_node("n2", labels={"zone": "b"})
    pods = (
        a_pod("a", spec={"nodeSelector": {"zone": "b"}}),
        a_pod("b", spec={"nodeSelector": product}),
        a_pod("c", spec={"nodeSelector": {"zone": "nowhere"}}),
    )
    reading = read_trace(dump(tmp_path, *nodes, *pods))
    first, second = (entry.job.members[0] for entry in jobs_of(reading))
    assert first.node_labels == (("zone", "b"),)
    assert second.gpu_models == ("NVIDIA-A100-SXM4-80GB",)
    assert reading.skipped == {TOO_LARGE: 1}


def test_dump_without_nodes_names_the_options(tmp_path: Path) -> None:
    path = dump(tmp_path, a_pod())
    with Refusal(path) as refusal:
        read_trace(path)
    assert "--cluster FILE" in refusal.message
    assert "--nodes N" in refusal.message


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('{"apiVersion": "v1",\n "items": [{]}', 2, "not a list of Kubernetes objects"),
        ('{"apiVersion": "v1", "items": []}', None, "holds no pods"),
        ('{"apiVersion": "v1", "items": [{"kind": "Pod"}]}', 1, "'metadata'"),
    ],
)
def test_damaged_dump_is_rejected(tmp_path: Path, text: str, line: int | None, words: str) -> None:
    path = a_file(tmp_path, "pods.json", text)
    with Refusal(path, line) as refusal:
        read_trace(path, cluster=a_cluster())
    assert words in refusal.message


def test_pod_with_an_invalid_amount_is_named(tmp_path: Path) -> None:
    path = dump(tmp_path, a_pod(resources={"cpu": "many"}))
    with Refusal(path) as refusal:
        read_trace(path, cluster=a_cluster())
    assert "pod vision/train-0: a resource is 'many'" in refusal.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": {"startTime": "2026-13-41T00:00:00Z"}}, "a time is '2026-13-41"),
        ({"spec": {"containers": 5}}, "not as the API server writes it"),
        ({"status": []}, "not as the API server writes it"),
    ],
)
def test_malformed_pod_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = dump(tmp_path, {**a_pod(), **change})
    with Refusal(path) as refusal:
        read_trace(path, cluster=a_cluster())
    assert "pod vision/train-0" in refusal.message
    assert words in refusal.message


def test_absurd_number_of_gpus_is_rejected(tmp_path: Path) -> None:
    path = dump(tmp_path, a_node(**{"nvidia.com__gpu": "9E"}))
    with Refusal(path) as refusal:
        read_cluster(path)
    assert "node n1: the number of GPUs" in refusal.message
