"""How long logs stay on their node."""

import os
from pathlib import Path

import pytest

from gpu_scheduler.agent.jobs.logs import delete_expired_logs, job_of


def a_log(directory: Path, job: str, at_s: float) -> Path:
    place = directory / job
    place.mkdir()
    (place / "1.log").write_text("said", encoding="ascii")
    for path in (place / "1.log", place):
        os.utime(path, (at_s, at_s))
    return place


def test_logs_go_when_their_job_has_ended_long_ago_and_stay_before(tmp_path: Path) -> None:
    old, new = a_log(tmp_path, "job-1", 100), a_log(tmp_path, "job-2", 300)
    assert delete_expired_logs(tmp_path, set(), before_s=200) == 1
    assert (old.exists(), new.exists()) == (False, True)


def test_the_log_of_a_job_that_runs_stays_however_long_it_is_silent(tmp_path: Path) -> None:
    silent = a_log(tmp_path, "job-1", 100)
    assert delete_expired_logs(tmp_path, {"job-1"}, before_s=200) == 0
    assert silent.exists()
    assert delete_expired_logs(tmp_path, set(), before_s=200) == 0, "its time begins with its end"
    assert silent.exists()


def test_a_log_that_was_written_lately_stays_though_its_directory_is_old(tmp_path: Path) -> None:
    place = a_log(tmp_path, "job-1", 100)
    os.utime(place / "1.log", (300, 300))
    assert delete_expired_logs(tmp_path, set(), before_s=200) == 0


@pytest.mark.parametrize("allocation", ["job-12.1", "job-12_7.3"])
def test_an_attempt_names_its_job(allocation: str) -> None:
    assert job_of(allocation) == "job-12"


def test_a_directory_that_cannot_be_listed_costs_nothing_but_a_word(tmp_path: Path) -> None:
    assert delete_expired_logs(tmp_path / "gone", set(), before_s=200) == 0
