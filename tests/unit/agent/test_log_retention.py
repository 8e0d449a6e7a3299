"""Retention of job logs on a node."""

import os
from pathlib import Path

import pytest

from gpu_scheduler.agent.jobs.log_reader import delete_expired_logs, job_of


def a_log(directory: Path, job: str, at_s: float) -> Path:
    place = directory / job
    place.mkdir()
    (place / "1.log").write_text("said", encoding="ascii")
    for path in (place / "1.log", place):
        os.utime(path, (at_s, at_s))
    return place


def test_logs_of_long_ended_jobs_are_deleted(tmp_path: Path) -> None:
    old, new = a_log(tmp_path, "job-1", 100), a_log(tmp_path, "job-2", 300)
    assert delete_expired_logs(tmp_path, set(), before_s=200) == 1
    assert (old.exists(), new.exists()) == (False, True)


def test_log_of_running_job_is_kept_however_silent(tmp_path: Path) -> None:
    silent = a_log(tmp_path, "job-1", 100)
    assert delete_expired_logs(tmp_path, {"job-1"}, before_s=200) == 0
    assert silent.exists()
    assert delete_expired_logs(tmp_path, set(), before_s=200) == 0, "its time begins with its end"
    assert silent.exists()


def test_recently_written_log_is_kept_though_directory_is_old(tmp_path: Path) -> None:
    place = a_log(tmp_path, "job-1", 100)
    os.utime(place / "1.log", (300, 300))
    assert delete_expired_logs(tmp_path, set(), before_s=200) == 0


@pytest.mark.parametrize("allocation", ["job-12.1", "job-12_7.3"])
def test_attempt_name_gives_job_id(allocation: str) -> None:
    assert job_of(allocation) == "job-12"


def test_unlistable_directory_is_only_logged(tmp_path: Path) -> None:
    assert delete_expired_logs(tmp_path / "gone", set(), before_s=200) == 0
