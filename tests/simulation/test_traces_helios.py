"""Helios job logs in both layouts, by virtual cluster or in one pool."""

from pathlib import Path

import pytest

from gpu_scheduler.model.request import Request
from gpu_scheduler.simulator.traces.helios_philly import read_helios, read_vc_nodes
from gpu_scheduler.simulator.workload import Cluster
from tests.simulation.trace_files import Refusal, a_cluster, a_file, a_table, gzipped, jobs_of


def a_row(job_id: str = "1", **columns: object) -> dict[str, object]:
    return {
        "job_id": job_id,
        "user": "u",
        "vc": "vcA",
        "gpu_num": 1,
        "cpu_num": 4,
        "state": "COMPLETED",
        "submit_s": 0,
        "submit_time": "2020-09-01 00:00:00",
        "duration_s": 60,
        "vc_row": 0,
        **columns,
    }


def an_original_row(job_id: str = "1", **columns: object) -> dict[str, object]:
    return {
        "job_id": job_id,
        "user": "u",
        "vc": "vcA",
        "gpu_num": 1,
        "cpu_num": 4,
        "node_num": 1,
        "state": "FAILED",
        "submit_time": "2020-09-02 00:00:10",
        "start_time": "2020-09-02 00:00:20",
        "end_time": "2020-09-02 00:00:50",
        "duration": 30,
        "queue": 10,
        **columns,
    }


def two_virtual_clusters(folder: Path) -> Cluster:
    path = a_file(folder, "vc_nodes.csv", "vc,nodes,gpus_per_node", "vcA,2,8", "vcB,1,8")
    return read_vc_nodes(path)


def test_each_virtual_cluster_is_a_partition(tmp_path: Path) -> None:
    rows = [a_row("1"), a_row("2", vc="vcB"), a_row("3")]
    reading = read_helios(a_table(tmp_path, "jobs.csv", rows), two_virtual_clusters(tmp_path))
    parts = reading.workload.partitions
    assert [(part.name, len(part.nodes), part.total_jobs) for part in parts] == [
        ("vcA", 2, 2),
        ("vcB", 1, 1),
    ]
    assert [node.ordinal for node in parts[1].nodes] == [0]
    assert [tenant.id for tenant in parts[1].tenants] == ["vcB"]
    assert jobs_of(reading, 1)[0].job.tenant == "vcB"


def test_ties_within_a_second_follow_row_order(tmp_path: Path) -> None:
    rows = [
        a_row("late", submit_s=5, vc_row=0),
        a_row("second", vc_row=7),
        a_row("other", vc="vcB", vc_row=9),
        a_row("first", vc_row=3),
    ]
    reading = read_helios(a_table(tmp_path, "jobs.csv", rows), two_virtual_clusters(tmp_path))
    jobs = jobs_of(reading)
    assert [entry.job.id for entry in jobs] == ["first", "second", "late"]
    numbers = [entry.job.number for entry in jobs]
    assert numbers == sorted(set(numbers))


def test_large_job_takes_whole_nodes_and_remainder(tmp_path: Path) -> None:
    path = a_table(tmp_path, "jobs.csv", [a_row(gpu_num=14)])
    job = jobs_of(read_helios(path, two_virtual_clusters(tmp_path)))[0].job
    assert job.members == (Request(gpu_count=8), Request(gpu_count=6))


def test_cpu_jobs_are_skipped_and_counted(tmp_path: Path) -> None:
    path = gzipped(a_table(tmp_path, "jobs.csv", [a_row("1", gpu_num=0), a_row("2")]))
    reading = read_helios(path, two_virtual_clusters(tmp_path))
    assert reading.skipped == {"gpu_num 0": 1}
    assert reading.workload.partitions[0].total_jobs == 1


def test_original_layout_counts_from_first_midnight(tmp_path: Path) -> None:
    rows = [
        an_original_row("2", submit_time="2020-09-03 00:00:00"),
        an_original_row("1", jobname="train"),
    ]
    rows[0]["jobname"] = "eval"
    reading = read_helios(a_table(tmp_path, "log.csv", rows), two_virtual_clusters(tmp_path))
    first, second = jobs_of(reading)
    assert (first.job.id, first.job.submit_ms, first.run_ms) == ("1", 10_000, 30_000)
    assert first.job.name == "train"
    assert second.job.submit_ms == 86_400_000


def test_single_pool_has_virtual_clusters_as_tenants(tmp_path: Path) -> None:
    rows = [a_row("1"), a_row("2", vc="vcZ")]
    reading = read_helios(a_table(tmp_path, "jobs.csv", rows), a_cluster())
    (pool,) = reading.workload.partitions
    assert [tenant.id for tenant in pool.tenants] == ["vcA", "vcZ"]


def test_cpus_count_only_on_request(tmp_path: Path) -> None:
    path = a_table(tmp_path, "jobs.csv", [a_row()])
    without = jobs_of(read_helios(path, a_cluster()))[0].job
    with_cpus = jobs_of(read_helios(path, a_cluster(), use_cpus=True))[0].job
    assert without.members == (Request(gpu_count=1),)
    assert with_cpus.members == (Request(gpu_count=1, cpu_milli=4000),)


def test_cpus_need_nodes_with_cpus(tmp_path: Path) -> None:
    path = a_table(tmp_path, "jobs.csv", [a_row()])
    with Refusal(path, 2) as refusal:
        read_helios(path, two_virtual_clusters(tmp_path), use_cpus=True)
    assert "4 CPU cores" in refusal.message


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"vc": "vcZ"}, "vc is 'vcZ'; expected one of vcA, vcB"),
        ({"vc": "vcB", "gpu_num": 9}, "the cluster has 8 GPUs"),
        ({"duration_s": -1}, "duration_s is '-1'"),
        ({"gpu_num": "one"}, "gpu_num is 'one'"),
        ({"submit_s": "inf"}, "submit_s is 'inf'"),
        ({"job_id": ""}, "job_id is empty"),
        ({"vc_row": "x"}, "vc_row is 'x'"),
    ],
)
def test_invalid_row_error_names_file_and_line(
    tmp_path: Path, columns: dict[str, object], words: str
) -> None:
    path = a_table(tmp_path, "jobs.csv", [a_row("0"), a_row(**columns)])
    with Refusal(path, 3) as refusal:
        read_helios(path, two_virtual_clusters(tmp_path))
    assert words in refusal.message


@pytest.mark.parametrize("moment", ["yesterday", "", "1969-01-01 00:00:00"])
def test_invalid_time_error_names_file_and_line(tmp_path: Path, moment: str) -> None:
    path = a_table(tmp_path, "log.csv", [an_original_row(submit_time=moment)])
    with Refusal(path, 2) as refusal:
        read_helios(path, two_virtual_clusters(tmp_path))
    assert "submit_time is" in refusal.message


def test_log_without_submission_times_is_rejected(tmp_path: Path) -> None:
    path = a_file(tmp_path, "log.csv", "job_id,user,gpu_num,duration", "1,u,1,5")
    with Refusal(path, 1) as refusal:
        read_helios(path, a_cluster())
    assert "column 'submit_s' or 'submit_time' is missing" in refusal.message


def test_duplicate_ids_are_found_across_virtual_clusters(tmp_path: Path) -> None:
    path = a_table(tmp_path, "jobs.csv", [a_row("1"), a_row("1", vc="vcB")])
    with Refusal(path, 3):
        read_helios(path, two_virtual_clusters(tmp_path))


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (("vcA,1,8", "vcA,2,8"), 3),
        (("vcA,0,8",), 2),
        ((",1,8",), 2),
        (("vcA,-1,8",), 2),
        ((), None),
    ],
)
def test_invalid_virtual_clusters_are_rejected(
    tmp_path: Path, lines: tuple[str, ...], line: int | None
) -> None:
    path = a_file(tmp_path, "vc_nodes.csv", "vc,nodes,gpus_per_node", *lines)
    with Refusal(path, line):
        read_vc_nodes(path)
