"""openb node and pod lists, and the order in which the experiments let pods arrive."""

from pathlib import Path

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.request import Request
from gpu_scheduler.simulator.traces.openb import (
    Pod,
    arrivals,
    read_nodes,
    read_openb,
    read_pods,
)
from gpu_scheduler.simulator.workload import Cluster
from tests.simulation.trace_files import Refusal, a_file, a_table, jobs_of

NODE_HEADER = "sn,cpu_milli,memory_mib,gpu,model"


def a_row(name: str = "p0", **columns: object) -> dict[str, object]:
    return {
        "name": name,
        "cpu_milli": 4000,
        "memory_mib": 1024,
        "num_gpu": 1,
        "gpu_milli": 460,
        "gpu_spec": "",
        "qos": "LS",
        "pod_phase": "Running",
        "creation_time": 10,
        "deletion_time": 100,
        "scheduled_time": 40,
        **columns,
    }


def some_nodes(folder: Path) -> Cluster:
    lines = ("n-b,8000,65536,2,T4", "n-a,64000,262144,8,V100M32")
    return Cluster.pool(read_nodes(a_file(folder, "nodes.csv", NODE_HEADER, *lines)))


def a_pod(name: str, gpu_milli: int = 1000) -> Pod:
    request = Request(gpu_count=1, gpu_share_milli=gpu_milli) if gpu_milli else Request(cpu_milli=1)
    return Pod(name=name, request=request)


def test_ordinals_follow_node_names(tmp_path: Path) -> None:
    first, second = some_nodes(tmp_path).nodes
    assert (first.id, first.ordinal, first.gpu_count) == ("n-a", 0, 8)
    assert (second.id, second.ordinal, second.cpu_milli) == ("n-b", 1, 8000)
    assert {device.model for device in first.devices} == {"V100M32"}


@pytest.mark.parametrize(
    ("columns", "request_"),
    [
        ({}, Request(gpu_count=1, gpu_share_milli=460, cpu_milli=4000, memory_mb=1024)),
        ({"num_gpu": 2, "gpu_milli": 1000}, Request(gpu_count=2, cpu_milli=4000, memory_mb=1024)),
        ({"num_gpu": 0, "gpu_milli": 0}, Request(cpu_milli=4000, memory_mb=1024)),
        (
            {"gpu_spec": "V100M32|T4", "gpu_milli": 1000},
            Request(gpu_count=1, gpu_models=("T4", "V100M32"), cpu_milli=4000, memory_mb=1024),
        ),
    ],
)
def test_pod_becomes_request(tmp_path: Path, columns: dict[str, object], request_: Request) -> None:
    path = a_table(tmp_path, "pods.csv", [a_row(**columns)])
    (only,) = jobs_of(read_openb(path, some_nodes(tmp_path)))
    assert only.job.members == (request_,)
    assert (only.job.submit_ms, only.run_ms) == (10_000, 60_000)


def test_pods_that_never_ran_are_no_jobs_but_still_pods(tmp_path: Path) -> None:
    path = a_table(tmp_path, "pods.csv", [a_row("p0"), a_row("p1", scheduled_time="")])
    reading = read_openb(path, some_nodes(tmp_path))
    assert reading.skipped == {"no scheduled_time": 1}
    assert [pod.run_ms for pod in read_pods(path)] == [60_000, None]


def test_every_pod_arrives_once_before_any_repeats() -> None:
    pods = [a_pod(f"p{number}") for number in range(10)]
    arrived = arrivals(reversed(pods), 42, capacity_milli=10_000)
    assert sorted(pod.name for pod in arrived[:10]) == [pod.name for pod in pods]
    assert len(arrived) == 13
    assert len({pod.name for pod in arrived}) == 13


def test_arrival_order_depends_only_on_seed() -> None:
    pods = [a_pod(f"p{number}") for number in range(50)]
    assert arrivals(pods, 1, 60_000) == arrivals(reversed(pods), 1, 60_000)
    assert arrivals(pods, 1, 60_000) != arrivals(pods, 2, 60_000)


def test_arrivals_end_before_limit_is_exceeded() -> None:
    pods = [a_pod("whole"), a_pod("half", 500), a_pod("cpu", 0)]
    arrived = arrivals(pods, 7, capacity_milli=20_000, tune=1.0)
    total = sum(pod.request.gpu_milli for pod in arrived)
    assert 19_000 < total <= 20_000


def test_pods_without_gpus_never_fill_cluster() -> None:
    with pytest.raises(InvalidRequest):
        arrivals([a_pod("cpu", 0)], 1, 1000)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"deletion_time": 39}, "deletion_time is '39'"),
        ({"deletion_time": ""}, "deletion_time is ''"),
        ({"gpu_milli": 0}, "gpu_milli is '0'"),
        ({"gpu_milli": 1001}, "1001"),
        ({"num_gpu": 9}, "never run"),
        ({"gpu_spec": "A100"}, "model A100"),
        ({"cpu_milli": -1}, "cpu_milli is '-1'"),
        ({"name": ""}, "name is empty"),
        ({"name": "p-first"}, "'p-first' appears twice"),
    ],
)
def test_invalid_pod_error_names_file_and_line(
    tmp_path: Path, columns: dict[str, object], words: str
) -> None:
    path = a_table(tmp_path, "pods.csv", [a_row("p-first"), a_row(**columns)])
    with Refusal(path, 3) as refusal:
        read_openb(path, some_nodes(tmp_path))
    assert words in refusal.message


def test_pods_and_nodes_must_be_unique(tmp_path: Path) -> None:
    pods = a_table(tmp_path, "pods.csv", [a_row("p"), a_row("p")])
    with Refusal(pods, 3):
        read_pods(pods)
    nodes = a_file(tmp_path, "nodes.csv", NODE_HEADER, "n,1,1,1,T4", "n,1,1,1,T4")
    with Refusal(nodes, 3):
        read_nodes(nodes)


def test_lists_without_rows_are_rejected(tmp_path: Path) -> None:
    nodes = a_file(tmp_path, "nodes.csv", NODE_HEADER)
    with Refusal(nodes):
        read_nodes(nodes)
    pods = a_file(tmp_path, "pods.csv", ",".join(a_row()))
    with Refusal(pods):
        read_pods(pods)


def test_node_needs_name(tmp_path: Path) -> None:
    nodes = a_file(tmp_path, "nodes.csv", NODE_HEADER, ",1,1,1,T4")
    with Refusal(nodes, 2):
        read_nodes(nodes)
