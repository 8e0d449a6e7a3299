"""A sweep is shown as a grid of two parameters, or as a table of more."""

from typing import Any

import pytest

from gpu_scheduler.cli.jobs.sweeps import grid, show, values_of, varying


def a_job(number: int, state: str = "completed", **params: str) -> dict[str, Any]:
    ended = state in ("completed", "failed")
    return {
        "id": f"job-{number}",
        "state": state,
        "params": params,
        "exit_code": {"completed": 0, "failed": 3}.get(state),
        "started_at": "2026-01-01T00:00:00Z" if ended else None,
        "ended_at": "2026-01-01T00:01:05Z" if ended else None,
    }


def test_rows_and_columns_are_parameters_in_submission_order() -> None:
    jobs = [
        a_job(1, lr="0.1", bs="64"),
        a_job(2, "failed", lr="0.1", bs="8"),
        a_job(3, "pending", lr="0.01", bs="64"),
    ]
    names, fixed = varying(jobs)
    assert (names, fixed) == (["lr", "bs"], {})
    rows, columns = values_of(jobs, "lr"), values_of(jobs, "bs")
    assert columns == ["64", "8"]
    assert grid(jobs, names, rows, columns) == [["0.1", "CD 1:05", "F 3"], ["0.01", "PD", "-"]]


def test_constant_parameter_takes_no_column() -> None:
    jobs = [a_job(1, lr="0.1", seed="7"), a_job(2, lr="0.2", seed="7")]
    assert varying(jobs) == (["lr"], {"seed": "7"})


def test_cell_shows_newest_job_and_count_of_others() -> None:
    jobs = [a_job(1, "failed", a="1", b="1"), a_job(2, a="1", b="1"), a_job(3, a="1", b="1")]
    assert grid(jobs, ["a", "b"], ["1"], ["1"]) == [["1", "CD 1:05 (+2)"]]


def test_three_parameters_give_table_and_failures_give_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs = [a_job(1, a="1", b="1", c="x"), a_job(2, "failed", a="2", b="2", c="y\x1b[2J")]
    show("grid", jobs)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "grid  2 jobs: 1 completed, 1 failed"
    assert lines[2].split() == ["JOBID", "a", "b", "c", "ST", "TIME", "EXIT"]
    assert lines[4].split()[:3] == ["2", "2", "2"]
    assert "\x1b" not in lines[4]
    assert lines[-1] == "1 failed; 'tgpu sweep retry grid' retries them"
