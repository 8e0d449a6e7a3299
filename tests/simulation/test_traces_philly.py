"""The Philly table: one pool, by default the original 352 nodes."""

from pathlib import Path

from gpu_scheduler.simulator.traces.published_logs import read_philly
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
