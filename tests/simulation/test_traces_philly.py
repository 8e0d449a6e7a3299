"""The Philly table: one pool, by default the original 352 nodes."""

from pathlib import Path

from gpu_scheduler.simulator.traces.helios_philly import read_philly, read_vc_nodes
from gpu_scheduler.simulator.workload import Cluster
from tests.simulation.trace_files import Refusal, a_cluster, a_file, gzipped, jobs_of

HEADER = "row,submit_time,submit_s,gpu_num,duration_s"


def test_original_cluster_is_default(tmp_path: Path) -> None:
    path = gzipped(a_file(tmp_path, "jobs.csv", HEADER, "4,2017-08-14 23:27:00,7,16,90"))
    reading = read_philly(path)
    (pool,) = reading.workload.partitions
    assert (len(pool.nodes), pool.nodes[0].gpu_count) == (352, 8)
    (only,) = jobs_of(reading)
    assert (only.job.id, only.job.submit_ms, only.run_ms) == ("4", 7000, 90_000)
    assert [member.gpu_count for member in only.job.members] == [8, 8]


def test_rows_may_lack_numbers_and_gpus(tmp_path: Path) -> None:
    path = a_file(tmp_path, "jobs.csv", "submit_s,gpu_num,duration_s", "0,0,5", "1,2,5")
    reading = read_philly(path, a_cluster())
    assert reading.skipped == {"gpu_num 0": 1}
    assert [entry.job.id for entry in jobs_of(reading)] == ["1"]


def test_negative_duration_error_names_file_and_line(tmp_path: Path) -> None:
    path = a_file(tmp_path, "jobs.csv", HEADER, "0,,0,1,5", "1,,0,1,-5")
    with Refusal(path, 3) as refusal:
        read_philly(path)
    assert "duration_s is '-5'; expected a number of 0 or more" in refusal.message


def test_job_larger_than_cluster_is_rejected(tmp_path: Path) -> None:
    path = a_file(tmp_path, "jobs.csv", HEADER, "0,,0,33,5")
    with Refusal(path, 2) as refusal:
        read_philly(path, a_cluster())
    assert "33 GPUs" in refusal.message


def test_workload_of_only_cpu_jobs_is_rejected(tmp_path: Path) -> None:
    path = a_file(tmp_path, "jobs.csv", HEADER, "0,,0,0,5")
    with Refusal(path) as refusal:
        read_philly(path)
    assert "1 rows with gpu_num 0" in refusal.message


VC_HEADER = "vc,row,submit_time,submit_s_since_2017_10_01,gpu_num,duration_s"


def virtual_clusters(tmp_path: Path) -> Cluster:
    rows = ("vc,nodes,gpus_per_node", "a,2,8", "b,1,8", "unused,4,8")
    return read_vc_nodes(a_file(tmp_path, "vc_nodes.csv", *rows))


def test_each_virtual_cluster_with_jobs_is_a_partition(tmp_path: Path) -> None:
    rows = (
        "b,0,2017-09-30 23:00:00,-3600,1,60",
        "a,0,2017-10-01 01:00:00,3600,16,90",
        "a,1,2017-10-01 01:00:00,3600,1,90",
    )
    path = a_file(tmp_path, "jobs.csv", VC_HEADER, *rows)
    partitions = read_philly(path, virtual_clusters(tmp_path)).workload.partitions
    assert [(part.name, len(part.nodes)) for part in partitions] == [("a", 2), ("b", 1)]
    jobs = [[(entry.job.id, entry.job.submit_ms) for entry in part.jobs] for part in partitions]
    # Time 0 is the midnight before the first job.
    assert jobs == [[("a-0", 90_000_000), ("a-1", 90_000_000)], [("b-0", 82_800_000)]]


def test_unknown_virtual_cluster_is_rejected(tmp_path: Path) -> None:
    path = a_file(tmp_path, "jobs.csv", VC_HEADER, "z,0,2017-10-01 00:00:00,0,1,5")
    with Refusal(path, 2) as refusal:
        read_philly(path, virtual_clusters(tmp_path))
    assert "vc is 'z'; expected one of a, b, unused, the parts in --cluster" in refusal.message


def test_virtual_clusters_may_share_one_pool(tmp_path: Path) -> None:
    path = a_file(tmp_path, "jobs.csv", VC_HEADER, "a,0,2017-10-01 00:00:00,0,1,5")
    (pool,) = read_philly(path, a_cluster()).workload.partitions
    assert [entry.job.tenant for entry in pool.jobs] == ["a"]
