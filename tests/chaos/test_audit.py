"""Tests of the audit: consistent records pass, and each kind of violation is detected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.chaos.audit import Answers, Run, audit, read_notes
from tests.chaos.workload import Plan

SECOND = 1_000_000_000
KILLED = 3 * SECOND // 2
PLAN = Plan(token="plain-1", body={})
IDS = {"plain-1": "job-1"}
RUN = Run("plain-1", ("job-1", None, 1, 0), (0,), 1000, 50, SECOND, 2 * SECOND, "exit:0")
JOB: dict[str, Any] = {
    "id": "job-1",
    "name": "plain-1",
    "state": "completed",
    "reason": "",
    "exit_code": 0,
    "signal": None,
    "submitted_at": "2026-01-01T00:00:00.000Z",
    "started_at": "2026-01-01T00:00:01.000Z",
    "ended_at": "2026-01-01T00:00:02.000Z",
}
ATTEMPT: dict[str, Any] = {
    "id": "job-1.1",
    "attempt": 1,
    "state": "completed",
    "exit_code": 0,
    "signal": None,
    "detail": "",
    "started_at": "2026-01-01T00:00:01.000Z",
    "ended_at": "2026-01-01T00:00:02.000Z",
    "allocation": [{"member": 0, "node": "n0", "gpus": [{"index": 0, "share": 1}]}],
}


def violations(
    *,
    plans: tuple[Plan, ...] = (PLAN,),
    job: dict[str, Any] | None = None,
    attempt: dict[str, Any] | None = None,
    runs: tuple[Run, ...] = (RUN,),
    **more: Any,
) -> str:
    """The violations found for one job with these changes."""
    answers = Answers({"job-1": JOB | (job or {})}, {RUN.attempt: ATTEMPT | (attempt or {})})
    return "\n".join(audit(plans, IDS, answers, list(runs), **more))


def test_consistent_records_pass() -> None:
    assert violations() == ""


def test_lost_job_is_detected() -> None:
    assert "lost" in "\n".join(audit([PLAN], IDS, Answers(), []))


def test_doubled_submission_is_detected() -> None:
    both = Answers({"job-1": JOB, "job-2": JOB | {"id": "job-2"}}, {RUN.attempt: ATTEMPT})
    assert "there 2 times" in "\n".join(audit([PLAN], IDS, both, [RUN]))


def test_job_that_never_ends_is_detected() -> None:
    assert "has not ended" in violations(job={"state": "running", "ended_at": None})


def test_attempt_that_ran_twice_is_detected(tmp_path: Path) -> None:
    line = "begin job-1 - 1 0 0 1 {} 1000 - -\n"
    (tmp_path / "plain-1").write_text(line.format(50) + line.format(51))
    assert read_notes(tmp_path)[1] == ["('job-1', None, 1, 0) ran twice: pids 50 and 51"]


def test_run_unknown_to_server_is_detected() -> None:
    second = replace(RUN, key=("job-1", None, 2, 0), begin_ns=3 * SECOND, end_ns=4 * SECOND)
    assert "knows no such attempt" in violations(runs=(RUN, second))


def test_exit_code_reported_instead_of_signal_is_detected() -> None:
    killed = replace(RUN, how="signal:9")
    assert "but it was signal:9" in violations(runs=(killed,), attempt={"exit_code": 137})


def test_invented_result_is_detected_even_after_launcher_kill() -> None:
    failed = replace(RUN, how="exit:3")
    assert "but it was exit:3" in violations(runs=(failed,), launcher_kills_ns=[KILLED])


def test_unknown_result_is_accepted_only_if_launcher_kill_explains_it() -> None:
    cause = "the launcher that began it had died: exit code unknown"
    unknown = {"exit_code": None, "state": "failed", "detail": cause}
    job = {"exit_code": None, "state": "failed"}
    assert violations(attempt=unknown, job=job, launcher_kills_ns=[KILLED]) == ""
    assert "job-1.1: unknown" in violations(attempt=unknown, job=job)
    late = [KILLED + 60 * SECOND]
    assert "job-1.1: unknown" in violations(attempt=unknown, job=job, launcher_kills_ns=late)
    other = unknown | {"detail": "the launcher had an error: exit code unknown"}
    assert "job-1.1: unknown" in violations(attempt=other, job=job, launcher_kills_ns=[KILLED])


def test_unknown_result_without_cause_is_detected() -> None:
    unknown = {"exit_code": None, "state": "failed", "detail": ""}
    assert "no cause is named" in violations(attempt=unknown, launcher_kills_ns=[KILLED])
    assert "no cause is named" not in violations(attempt=unknown | {"state": "cancelled"})


def test_unknown_gang_result_is_accepted_only_if_member_never_ran() -> None:
    both = [{**ATTEMPT["allocation"][0], "member": rank, "node": f"n{rank}"} for rank in (0, 1)]
    late = {"exit_code": None, "state": "failed", "allocation": both}
    late["detail"] = "member 1 on n1 did not begin within 5 s, and its node does not answer"
    wrong = "job-1.1: unknown, but it was exit:0"
    assert wrong not in violations(attempt=late)
    assert wrong in violations(attempt=late | {"detail": ""})
    assert wrong not in violations(attempt=late | {"detail": "", "state": "preempted"})
    other = replace(RUN, key=("job-1", None, 1, 1))
    assert wrong in violations(attempt=late, runs=(RUN, other))


def test_result_of_job_that_never_ran_is_detected() -> None:
    assert "it never ran" in violations(runs=())


def test_job_killed_by_fault_injection_is_detected() -> None:
    assert "did not reach its end" in violations(runs=(replace(RUN, end_ns=None),))


def test_device_used_twice_at_once_is_detected() -> None:
    other = replace(RUN, key=("job-1", None, 1, 1), begin_ns=SECOND + 5, share_milli=100)
    both = {"allocation": [{**ATTEMPT["allocation"][0], "member": rank} for rank in (0, 1)]}
    assert "GPU 0 of n0 was used to 110%" in violations(runs=(RUN, other), attempt=both)
    later = replace(other, begin_ns=2 * SECOND, end_ns=3 * SECOND)
    assert "was used to" not in violations(runs=(RUN, later), attempt=both)
    both["allocation"][1]["node"] = "n1"
    assert "was used to" not in violations(runs=(RUN, other), attempt=both)


def test_use_of_other_devices_than_allocated_is_detected() -> None:
    assert "saw devices (1,)" in violations(runs=(replace(RUN, devices=(1,)),))
    assert "saw a share of 500" in violations(runs=(replace(RUN, share_milli=500),))


def test_overlapping_attempts_are_detected() -> None:
    second = replace(RUN, key=("job-1", None, 2, 0), begin_ns=SECOND + 5, devices=(1,))
    assert "overlap" in violations(runs=(RUN, second))


def test_gang_with_missing_rank_is_detected() -> None:
    assert "only {0} ran" in violations(plans=(replace(PLAN, ranks=2),))


def test_ranks_without_common_rendezvous_are_detected() -> None:
    other = replace(RUN, key=("job-1", None, 1, 1), devices=(1,), port="5001")
    assert "different ports" in violations(plans=(replace(PLAN, ranks=2),), runs=(RUN, other))


def test_truncated_long_job_is_detected() -> None:
    assert "ran for less than" in violations(plans=(replace(PLAN, undisturbed_ms=1500),))


def test_job_started_before_dependency_is_detected() -> None:
    other = replace(RUN, key=("job-0", None, 1, 0), token="plain-0", devices=(1,))
    assert "began before job-0 had ended" in violations(
        plans=(replace(PLAN, needs="job-0"),), runs=(RUN, other)
    )


def test_times_going_backwards_are_detected() -> None:
    assert "go backwards" in violations(job={"started_at": "2025-12-31T00:00:00.000Z"})
    assert "ended before it started" in violations(attempt={"ended_at": "2025-12-31T00:00:00.000Z"})
