"""Wait reasons, limits and start forecasts as users see them on a real server."""

import time
from typing import Any

from tests.acceptance.conftest import RealServer


def soon(server: RealServer, *words: object, key: str) -> Any:
    """Repeat a command until its answer has a value for the key."""
    for _ in range(600):
        answer = server.json(*words)
        if answer[key]:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"{words} says nothing: {answer}")


def test_explain_gives_reason_for_every_waiting_job_and_start_time_for_most(
    server: RealServer,
) -> None:
    first = server.submit("--gpus", 8, "--time", "20m", "--", "sleep", 600)
    second = server.submit("--gpus", 8, "--time", "20m", "--", "sleep", 600)
    held = server.submit("--hold", "--gpus", 1, "--", "true")
    later = server.submit("--begin", "+2h", "--gpus", 1, "--", "true")
    after = server.submit("--dependency", f"afterok:{second}", "--gpus", 1, "--", "true")
    soon(server, "explain", first, key="expected_end")
    told = {name: server.json("explain", name) for name in (second, held, later, after)}
    assert [told[name]["code"] for name in told] == [
        "resources",
        "held",
        "begin_time",
        "dependency",
    ]
    assert [told[name]["basis"] for name in told] == ["reserved", "", "known", "dependency"]
    assert told[held]["expected_start"] is None
    assert told[after]["expected_start"] > told[second]["expected_start"]
    assert "about" in server.tgpu("explain", after).stdout
    server.tgpu("cancel", held, later, after)
    soon(server, "report", "--estimates", key="open")
    server.tgpu("cancel", first)
    for _ in range(600):
        judged = server.json("report", "--estimates")["estimates"][0]["judged"]
        if judged:
            break
        time.sleep(0.1)
    assert judged == 1
    assert "KEPT" in server.tgpu("report", "--estimates").stdout
    server.tgpu("cancel", second)


def test_report_says_which_predictor_of_run_times_is_used(server: RealServer) -> None:
    found = server.json("report", "--predictors")
    assert found["model"]["state"] == "untrained"
    assert [one["used"] for one in found["scores"] if one["tenant_id"] is None] == ["history"]
    assert "No model yet" in server.tgpu("report", "--predictors").stdout


def test_explain_of_running_array_lists_its_task_states(server: RealServer) -> None:
    array = server.submit("--array", "0-3%1", "--gpus", 1, "--time", "5m", "--", "sleep", 300)
    for _ in range(600):
        told = server.json("explain", array)
        if told["state"] == "running":
            break
        time.sleep(0.1)
    assert told["reason"].startswith("running since 2")
    assert "tasks: 3 pending, 1 running; the next one: 1 tasks of the array run" in told["reason"]
    server.tgpu("cancel", array)


def test_preempted_job_says_for_whom_and_that_it_resumes(server: RealServer) -> None:
    low = server.submit("--priority", "low", "--gpus", 8, "--", "sleep", 600)
    soon(server, "show", low, key="started_at")
    urgent = server.submit("--priority", "urgent", "--gpus", 8, "--", "sleep", 600)
    soon(server, "show", urgent, key="started_at")
    name = urgent.replace("-", " ")
    told = server.tgpu("explain", low).stdout
    assert f"; attempt 1 was preempted for {name} at " in told
    assert ", and the job resumes by itself\n" in told
    assert "UTC" not in told
    assert f"preempted for {name}" in server.tgpu("show", low).stdout
    server.tgpu("cancel", urgent, low)
    server.tgpu("wait", urgent, low, code=143)


def test_user_limits_are_shown_and_enforced(server: RealServer) -> None:
    assert "no limits" in server.tgpu("limits").stdout
    server.tgpu(
        *("tenants", "create", "small", "--id", "small", "--user-max-gpus", 2),
        *("--user-max-gpu-hours", 10, "--budget-period", "week"),
    )
    job = server.submit("--tenant", "small", "--gpus", 2, "--time", "1h", "--", "sleep", 600)
    soon(server, "explain", job, key="expected_end")
    next_one = server.submit("--tenant", "small", "--gpus", 1, "--time", "1h", "--", "true")
    assert server.json("explain", next_one)["code"] == "user_limit"
    words = ("submit", "--tenant", "small", "--time", "1h", "--gpus", 3, "--", "true")
    assert "ask for 2 or fewer" in server.tgpu(*words, code=5).stderr
    rows = [
        line.split("\t")
        for line in server.tgpu("limits", "--tenant", "small", "--tabs").stdout.split("\n")
    ]
    assert rows[1][1:5] == ["GPUs", "2", "2", "0"]
    assert rows[2][1:5] == ["GPU-hours", "10", "2", "8"]
    assert rows[2][5].startswith("week, resets ")
    server.tgpu("cancel", job, next_one)
