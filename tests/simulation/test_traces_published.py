"""The published traces, if available, have as many jobs and nodes as their authors state."""

import os
from pathlib import Path

import pytest

from gpu_scheduler.simulator.traces.detect import read_cluster, read_trace
from gpu_scheduler.simulator.traces.openb import arrivals, read_pods

FOLDER = os.environ.get("TGPU_TRACES_DIR", "")
TRACES = Path(FOLDER)

pytestmark = pytest.mark.skipif(
    not FOLDER, reason="TGPU_TRACES_DIR is not set: no folder with published traces"
)


def test_helios_venus_has_23859_jobs_in_15_virtual_clusters() -> None:
    folder = TRACES / "helios_venus_sept2020"
    cluster = read_cluster(folder / "vc_nodes.csv")
    parts = read_trace(folder / "jobs.csv.gz", cluster=cluster).workload.partitions
    assert len(parts) == 15
    assert sum(len(part.nodes) for part in parts) == 135
    assert sum(part.total_jobs or 0 for part in parts) == 23_859


def test_kth_has_28476_jobs_on_100_processors() -> None:
    reading = read_trace(TRACES / "swf" / "KTH-SP2-1996-2.1-cln.swf.gz")
    (pool,) = reading.workload.partitions
    assert pool.nodes[0].gpu_count == 100
    assert pool.total_jobs == 28_476
    assert reading.skipped == {}


def test_openb_has_8152_pods_on_1213_nodes_with_6212_gpus() -> None:
    folder = TRACES / "openb_fgd"
    cluster = read_cluster(folder / "openb_node_list_gpu_node.csv.gz")
    assert (len(cluster.nodes), cluster.gpu_count) == (1213, 6212)
    path = folder / "openb_pod_list_default.csv.gz"
    pods = read_pods(path)
    assert len(pods) == 8152
    asked_milli = sum(pod.request.gpu_milli for pod in arrivals(pods, 42, 6_212_000))
    assert 1.29 * 6_212_000 < asked_milli <= 1.3 * 6_212_000
    reading = read_trace(path, cluster=cluster)
    ran = reading.workload.partitions[0].total_jobs or 0
    assert ran + sum(reading.skipped.values()) == 8152


def test_philly_has_111549_jobs() -> None:
    reading = read_trace(TRACES / "philly_all" / "jobs.csv.gz")
    assert reading.workload.partitions[0].total_jobs == 111_549
