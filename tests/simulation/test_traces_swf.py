"""Logs of the Parallel Workloads Archive: processors as GPUs of one machine."""

from pathlib import Path

import pytest

from gpu_scheduler.simulator.traces.swf import read_swf
from tests.simulation.trace_files import Refusal, a_cluster, a_file, gzipped, jobs_of

HEADER = ("; Version: 2.2", "; MaxNodes: 50", ";  MaxProcs: 100", ";")
FIELDS = (
    *("job", "submit", "wait", "run", "procs", "cpu", "memory", "wanted_procs", "limit"),
    *("wanted_memory", "status", "user", "group", "executable", "queue", "partition"),
    *("preceding", "think"),
)


def a_line(job: int = 1, **fields: object) -> str:
    values = dict.fromkeys(FIELDS, "-1")
    values |= {"job": job, "submit": 0, "run": 60, "procs": 4, "limit": 600, "status": 1}
    values |= fields
    return "  " + "  ".join(str(values[name]) for name in FIELDS)


def test_processor_becomes_gpu_of_one_machine(tmp_path: Path) -> None:
    line = a_line(3, submit=7, user=12, group=2, executable=9)
    reading = read_swf(gzipped(a_file(tmp_path, "log.swf", *HEADER, line)))
    (pool,) = reading.workload.partitions
    assert [node.gpu_count for node in pool.nodes] == [100]
    (only,) = jobs_of(reading)
    assert (only.job.id, only.job.submit_ms, only.job.gpu_milli) == ("3", 7000, 4000)
    assert (only.job.user, only.job.tenant, only.job.name) == (
        "user-12",
        "group-2",
        "executable-9",
    )


def test_run_ends_at_requested_time(tmp_path: Path) -> None:
    lines = (a_line(1, run=700), a_line(2, run="12.5"), a_line(3, run=700, limit=-1))
    jobs = jobs_of(read_swf(a_file(tmp_path, "log.swf", *HEADER, *lines)))
    assert [entry.run_ms for entry in jobs] == [600_000, 12_500, 700_000]
    assert [entry.job.max_runtime_ms for entry in jobs] == [600_000, 600_000, 0]


def test_jobs_that_did_not_run_are_skipped_and_counted(tmp_path: Path) -> None:
    lines = (
        a_line(1, run=-1),
        a_line(2, run=0, procs=-1),
        a_line(3, procs=0),
        a_line(4, run=0, status=5),
        a_line(5, run="-1.0"),
        a_line(6),
    )
    reading = read_swf(a_file(tmp_path, "log.swf", *HEADER, *lines))
    assert [entry.job.id for entry in jobs_of(reading)] == ["6"]
    assert reading.skipped == {
        "an unknown run time": 2,
        "no processors": 2,
        "a cancellation before the start": 1,
    }


def test_zero_length_run_is_kept(tmp_path: Path) -> None:
    (only,) = jobs_of(read_swf(a_file(tmp_path, "log.swf", *HEADER, a_line(run=0))))
    assert only.run_ms == 0


@pytest.mark.parametrize(
    ("fields", "processors"),
    [
        ({"procs": -1, "wanted_procs": 8}, 8),
        ({"procs": 0, "wanted_procs": 8}, 8),
        ({"procs": 5, "wanted_procs": 8}, 5),
        ({"procs": -1, "wanted_procs": -1}, 1),
    ],
)
def test_processors_are_allocated_or_else_requested_ones(
    tmp_path: Path, fields: dict[str, object], processors: int
) -> None:
    (only,) = jobs_of(read_swf(a_file(tmp_path, "log.swf", *HEADER, a_line(**fields))))
    assert only.job.gpu_milli == processors * 1000


def test_given_nodes_replace_machine(tmp_path: Path) -> None:
    path = a_file(tmp_path, "log.swf", a_line(procs=20))
    (only,) = jobs_of(read_swf(path, a_cluster()))
    assert [member.gpu_count for member in only.job.members] == [8, 8, 4]


def test_max_nodes_is_used_when_max_procs_is_missing(tmp_path: Path) -> None:
    path = a_file(tmp_path, "log.swf", *HEADER[:2], a_line())
    assert read_swf(path).workload.partitions[0].nodes[0].gpu_count == 50


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (a_line(procs=101), "101 GPUs"),
        (a_line(run=-2), "run time is '-2'"),
        (a_line(run="nan"), "run time is 'nan'"),
        (a_line(submit=-5), "submit time is '-5'"),
        (a_line(user="ada"), "user is 'ada'"),
        ("1 2 3", "3 fields; expected 18"),
    ],
)
def test_invalid_line_error_names_file_and_line(tmp_path: Path, line: str, words: str) -> None:
    path = a_file(tmp_path, "log.swf", *HEADER, line)
    with Refusal(path, 5) as refusal:
        read_swf(path)
    assert words in refusal.message


def test_job_number_must_be_unique(tmp_path: Path) -> None:
    path = a_file(tmp_path, "log.swf", *HEADER, a_line(1), "", a_line(1))
    with Refusal(path, 7) as refusal:
        read_swf(path)
    assert "'1' appears twice, first in line 5" in refusal.message


@pytest.mark.parametrize("header", [(), ("; MaxProcs: 0",), ("; MaxProcs: many",)])
def test_log_needs_machine(tmp_path: Path, header: tuple[str, ...]) -> None:
    path = a_file(tmp_path, "log.swf", *header, a_line())
    with Refusal(path, len(header) + 1) as refusal:
        read_swf(path)
    assert "MaxProcs" in refusal.message


def test_log_of_comments_has_no_jobs(tmp_path: Path) -> None:
    path = a_file(tmp_path, "log.swf", *HEADER)
    with Refusal(path) as refusal:
        read_swf(path)
    assert "no jobs" in refusal.message
