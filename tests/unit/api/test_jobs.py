"""Reading and changing jobs over REST."""

from collections.abc import Iterator
from typing import Any

import pytest

from gpu_scheduler.api.interfaces import Bounds
from gpu_scheduler.api.routes import jobs
from gpu_scheduler.cli.jobs.columns import gpus_text
from gpu_scheduler.control.messages import Ended, NodeSilent, Started
from gpu_scheduler.store.interface import Cutoffs
from tests.unit.api.lab import ApiLab


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab() as lab:
        yield lab


def ids(reply: Any) -> list[str]:
    return [job["id"] for job in reply.json["jobs"]]


def test_job_shows_request_and_outcome(lab: ApiLab) -> None:
    job_id = lab.submit(
        name="train",
        gpu_count=2,
        gpu_memory_mb=80_000,
        cpu_cores=8,
        memory_mb=64_000,
        max_runtime_minutes=60,
        environment={"EPOCHS": "3", "WANDB_API_KEY": "s3cret", "DB_PASSWORD": "s3cret"},
        working_directory="/tmp",
    )
    lab.start(job_id)
    job = lab.get("/jobs/1").json
    assert (job["id"], job["job_id"], job["number"]) == (job_id, job_id, 1)
    assert (job["state"], job["attempt"], job["gpu_count"]) == ("running", 1, 2)
    assert (job["gpu_memory_mb"], job["cpu_cores"], job["memory_mb"]) == (80_000, 8, 64_000)
    assert (job["tenant_id"], job["max_runtime_minutes"]) == ("default", 60)
    assert job["time_limit_minutes"] == 60
    assert job["environment"] == {
        "EPOCHS": "3",
        "WANDB_API_KEY": "***",
        "DB_PASSWORD": "***",
    }
    (place,) = job["allocation"]
    assert (place["node"], [gpu["index"] for gpu in place["gpus"]]) == ("n0", [0, 1])
    assert job["submitted_at"].endswith("Z")
    assert job["ended_at"] is None
    lab.end(job_id, 7)
    job = lab.get(f"/jobs/{job_id}").json
    assert (job["state"], job["exit_code"], job["signal"]) == ("failed", 7, None)
    assert job["allocation"][0]["node"] == "n0"


def test_job_without_limit_shows_effective_limit(lab: ApiLab) -> None:
    job = lab.get(f"/jobs/{lab.submit(name='x')}").json
    assert (job["max_runtime_minutes"], job["time_limit_minutes"]) == (None, 7 * 24 * 60)


def test_elastic_gang_shows_running_members(lab: ApiLab) -> None:
    job_id = lab.submit(gpu_count=3, members=4, min_members=2)
    job = lab.get(f"/jobs/{job_id}").json
    assert (job["gpu_count"], job["members"]) == (12, 4), "what was asked for"
    assert (job["placed_members"], len(job["allocation"])) == (2, 2)
    assert (gpus_text(job), gpus_text(job | {"placed_members": None})) == ("2x3", "4x3")
    (line,) = lab.get("/overview").json["jobs"]
    assert (line["gpus"], line["members"]) == (6, 2)
    waits = lab.get(f"/jobs/{lab.submit(gpu_count=3, members=4, min_members=2)}").json
    assert (waits["placed_members"], gpus_text(waits)) == (None, "4x3")
    plain = lab.get(f"/jobs/{lab.submit(gpu_count=1)}").json
    assert plain["placed_members"] is None


def test_pages_continue_where_last_one_ended(lab: ApiLab) -> None:
    for number in range(7):
        lab.submit(name=f"n{number}", priority=100 * (number % 3))
    seen: list[str] = []
    cursor = ""
    while True:
        page = lab.get(f"/jobs?sort=-priority&limit=3{cursor}")
        assert page.json["total"] == 7
        seen += ids(page)
        if page.json["next_cursor"] is None:
            break
        cursor = f"&cursor={page.json['next_cursor']}"
    assert len(seen) == len(set(seen)) == 7
    assert ids(lab.get("/jobs?sort=-priority&limit=7")) == seen
    assert ids(lab.get("/jobs?sort=-priority&limit=3&offset=3")) == seen[3:6]
    assert ids(lab.get("/jobs?limit=2")) == ["job-7", "job-6"]


def test_lists_are_filtered(lab: ApiLab) -> None:
    lab.post("/tenants", {"name": "The Vision"})
    first = lab.submit(name="a", hold=True)
    second = lab.submit(name="b", tenant_id="The Vision", hold=True)
    assert ids(lab.get("/jobs?name=b")) == [second]
    assert ids(lab.get("/jobs?tenant_id=The%20Vision")) == [second]
    assert ids(lab.get("/jobs?tenant_id=tenant-1")) == [second]
    assert ids(lab.get("/jobs?state=pending,running&sort=number")) == [first, second]
    assert ids(lab.get("/jobs?state=completed")) == []
    assert ids(lab.get("/jobs?user=nobody-else")) == []


@pytest.mark.parametrize(
    "query",
    [
        "state=lost",
        "sort=colour",
        "limit=-1",
        "limit=100000",
        "limit=x",
        "offset=1e3",
        "cursor=abc",
        "archived=maybe",
        "colour=red",
        "name=%FF",
        "name=%00",
        "since=yesterday",
        "ended_since=yesterday",
        "ended_before=7d",
        "name=" + "x" * 5000,
    ],
)
def test_invalid_query_is_rejected(lab: ApiLab, query: str) -> None:
    reply = lab.get(f"/jobs?{query}")
    assert (reply.status, reply.code) == (400, "invalid_request")


def test_unknown_job_is_not_found(lab: ApiLab) -> None:
    for path in ("/jobs/99", "/jobs/99/explain", "/jobs/99/attempts", "/jobs/99/logs", "/tasks/99"):
        assert (lab.get(path).status, lab.get(path).code) == (404, "not_found")
    assert lab.get("/jobs/none").status == 400
    assert lab.call("DELETE", "/jobs/99").status == 404


def test_waiting_job_shows_reason_position_and_forecast(lab: ApiLab) -> None:
    first = lab.submit(gpu_count=8, estimate_seconds=3600)
    lab.start(first)
    second = lab.submit(gpu_count=8, estimate_seconds=3600)
    third = lab.submit(gpu_count=8, estimate_seconds=3600)
    runs = lab.get(f"/jobs/{first}").json
    told = [lab.get(f"/jobs/{job_id}/explain").json for job_id in (second, third)]
    assert [one["position"] for one in told] == [1, 2]
    assert all(one["state"] == "pending" for one in told)
    assert "GPU" in told[0]["reason"]
    assert runs["started_at"] < told[0]["expected_start"] <= told[0]["expected_end"]
    assert told[0]["expected_end"] <= told[1]["expected_start"]
    running = lab.get(f"/jobs/{first}/explain").json
    assert (running["code"], running["position"]) == ("running", None)
    lab.end(first, 1)
    ended = lab.get(f"/jobs/{first}/explain").json
    assert (ended["state"], ended["reason"]) == ("failed", "failed with exit code 1")


def test_job_like_those_that_were_often_preempted_is_told_so(lab: ApiLab) -> None:
    job_id = lab.submit(gpu_count=1)
    record = lab.loop.core.state.jobs[job_id]
    for _ in range(10):
        lab.loop.core.state.preemption_risk.add(record.job, 90_000, preempted=True)
    told = lab.get(f"/jobs/{job_id}/explain").json["preemption_risk"]
    assert told.startswith("10 of the last 10 attempts of tenant ")
    assert told.endswith("half of them within 2 min")
    lab.start(job_id)
    lab.end(job_id, 0)
    assert lab.get(f"/jobs/{job_id}/explain").json["preemption_risk"] == ""


def test_held_job_waits_until_release(lab: ApiLab) -> None:
    job_id = lab.submit(hold=True)
    assert lab.get(f"/jobs/{job_id}/explain").json["code"] == "held"
    assert lab.post(f"/jobs/{job_id}/release").json["status"] == "pending"
    lab.wait_for(job_id, "scheduled")
    refused = lab.post(f"/jobs/{job_id}/hold")
    assert (refused.status, refused.code) == (409, "wrong_state")


def test_waiting_job_can_be_updated(lab: ApiLab) -> None:
    job_id = lab.submit(hold=True, gpu_count=1)
    changes = {"name": "new", "priority": "urgent", "gpu_count": 2, "max_runtime_minutes": 5}
    job = lab.call("PATCH", f"/jobs/{job_id}", changes).json
    assert (job["name"], job["priority"], job["gpu_count"]) == ("new", 2500, 2)
    assert job["max_runtime_minutes"] == 5
    assert lab.post(f"/jobs/{job_id}/priority", {"priority": 10}).status == 200
    assert lab.get(f"/jobs/{job_id}").json["priority"] == 10
    assert lab.call("PATCH", f"/jobs/{job_id}", {"hold": False}).status == 200
    lab.start(job_id)
    refused = lab.call("PATCH", f"/jobs/{job_id}", {"gpu_count": 1})
    assert (refused.status, refused.code) == (409, "wrong_state")
    assert lab.call("PATCH", f"/jobs/{job_id}", {"user": "root"}).status == 400


def test_waiting_job_is_cancelled_and_running_job_is_stopping(lab: ApiLab) -> None:
    waiting, running = lab.submit(hold=True), lab.submit()
    lab.start(running)
    assert lab.call("DELETE", f"/jobs/{waiting}").json["status"] == "cancelled"
    assert lab.call("DELETE", f"/jobs/{running}").json["status"] == "cancelling"


def test_repeated_cancel_changes_nothing_and_succeeds(lab: ApiLab) -> None:
    cancelled, completed = lab.submit(hold=True), lab.submit()
    for _ in range(2):
        assert lab.call("DELETE", f"/jobs/{cancelled}").json["status"] == "cancelled"
    lab.start(completed)
    lab.end(completed, 0)
    refused = lab.call("DELETE", f"/jobs/{completed}")
    assert (refused.status, refused.code) == (409, "wrong_state")


def test_rejected_update_does_not_hold_job(lab: ApiLab) -> None:
    job_id = lab.submit(hold=True, gpu_count=1)
    refused = lab.call("PATCH", f"/jobs/{job_id}", {"gpu_count": 999, "hold": False})
    assert refused.status == 422
    assert lab.get(f"/jobs/{job_id}").json["hold"] is True
    changed = lab.call("PATCH", f"/jobs/{job_id}", {"gpu_count": 2, "hold": False}).json
    assert (changed["gpu_count"], changed["hold"]) == (2, False)
    lab.start(job_id)


def test_failed_job_can_be_retried_and_keeps_attempts(lab: ApiLab) -> None:
    job_id = lab.submit()
    lab.start(job_id)
    lab.end(job_id, 3)
    assert lab.post(f"/jobs/{job_id}/retry").status == 200
    lab.start(job_id, attempt=2)
    attempts = lab.get(f"/jobs/{job_id}/attempts").json["attempts"]
    assert all(one["gpu_hours"] >= 0 and one["cost"] is not None for one in attempts)
    assert [(one["attempt"], one["state"], one["exit_code"]) for one in attempts] == [
        (1, "failed", 3),
        (2, "running", None),
    ]
    lab.end(job_id, 0, attempt=2)
    refused = lab.post(f"/jobs/{job_id}/retry")
    assert refused.status == 409


def test_admin_corrects_usage_of_ended_attempt() -> None:
    with ApiLab() as lab:
        job_id = lab.submit(gpu_count=1)
        lab.wait_for(job_id, "scheduled")
        lab.tell(Started(f"{job_id}.1"))
        lab.end(job_id, 0)
        body = {"attempt": 1, "run_seconds": 0, "reason": "wrong clock"}
        told = lab.post(f"/jobs/{job_id}/correct-usage", body)
        assert told.status == 200, told.error
        assert (told.json["attempt"], told.json["run_seconds"]) == (1, 0)
        assert told.json["run_seconds_before"] >= 0
        (attempt,) = lab.get(f"/jobs/{job_id}/attempts").json["attempts"]
        assert attempt["started_at"] == attempt["ended_at"]
        (entry,) = lab.get("/audit?action=correct_usage").json["records"]
        assert (entry["target"], entry["detail"]) == (job_id, "attempt 1: 0 s; wrong clock")
        for changes, status in (
            ({"attempt": 2}, 404),
            ({"run_seconds": -1}, 400),
            ({"run_seconds": 1e9}, 400),
            ({"reason": " "}, 400),
        ):
            refused = lab.post(f"/jobs/{job_id}/correct-usage", body | changes)
            assert refused.status == status, refused.error


def test_retry_names_requeued_array_tasks() -> None:
    with ApiLab() as lab:
        job_id = lab.submit(array="0-3", gpu_count=1)
        for task in range(4):
            lab.wait_for(f"{job_id}_{task}", "scheduled")
            lab.tell(Started(f"{job_id}_{task}.1"))
        for task, exit_code in ((0, 0), (1, 3), (2, 3)):
            lab.end(f"{job_id}_{task}", exit_code)
        lab.call("DELETE", f"/jobs/{job_id}_3")
        lab.end(f"{job_id}_3", 1)
        key = {"Idempotency-Key": "retry-of-an-array"}
        told = lab.post(f"/jobs/{job_id}/retry", headers=key).json
        assert told == {
            "job_id": job_id,
            "status": "pending",
            "message": "array tasks that are queued again: 2; cancelled tasks that are not: 1",
            "tasks": "1-2",
            "left": 1,
        }
        assert lab.post(f"/jobs/{job_id}/retry", headers=key).json == told | {
            "message": "array tasks are queued again; cancelled tasks that are not: 1",
            "tasks": None,
        }
        assert lab.get(f"/jobs/{job_id}_3").json["state"] == "cancelled"
        again = lab.post(f"/jobs/{job_id}/retry?cancelled=true").json
        assert (again["tasks"], again["left"]) == ("3", 0)
        assert lab.post(f"/jobs/{job_id}/retry?canceled=true").status == 400


def test_job_with_deleted_environment_cannot_be_retried(lab: ApiLab) -> None:
    job_id = lab.submit(captured_environment={"A": "1"})
    lab.start(job_id)
    lab.end(job_id, 1)
    lab.store.delete_expired(Cutoffs(environments_ms=2**62))
    refused = lab.post(f"/jobs/{job_id}/retry")
    assert (refused.status, refused.code) == (409, "wrong_state")
    assert "retention.environments_days" in refused.error


def test_array_shows_its_tasks(lab: ApiLab) -> None:
    reply = lab.post("/jobs", {"command": ["a"], "array": "0-9%2", "gpu_count": 1})
    assert reply.json["tasks"] == 10
    job_id = reply.json["job_id"]
    lab.wait_for(job_id, "scheduled")
    lab.tell(Started(f"{job_id}_0.1"))
    job = lab.get(f"/jobs/{job_id}").json
    assert (job["array"]["tasks"], job["array"]["max_running"]) == ("0-9", 2)
    assert job["array"]["states"] == {"pending": "2-9", "running": "0", "scheduled": "1"}
    assert sorted(place["task"] for place in job["allocation"]) == [0, 1]
    assert job["started_at"] is not None
    told = lab.get(f"/jobs/{job_id}/explain").json
    assert told["expected_start"] == job["started_at"]
    assert "tasks: 8 pending, 1 running, 1 scheduled; the next one: 2 tasks" in told["reason"]
    one = lab.get("/jobs/1_0").json
    assert (one["id"], one["task"], one["state"], one["attempt"]) == (
        f"{job_id}_0",
        0,
        "running",
        1,
    )
    assert lab.get("/jobs/1_5").json["state"] == "pending"
    assert lab.get("/jobs/1_10").status == 404
    tasks = lab.get(f"/jobs/{job_id}/tasks").json
    assert [task["task"] for task in tasks["tasks"]] == [0, 1]
    assert lab.get(f"/jobs/{job_id}/tasks?limit=1").json["next_task"] == 0
    assert lab.call("DELETE", "/jobs/1_7").json["status"] == "cancelled"
    assert lab.call("DELETE", f"/jobs/{job_id}?tasks=8-9").status == 200
    states = lab.get(f"/jobs/{job_id}").json["array"]["states"]
    assert (states["cancelled"], states["pending"]) == ("7-9", "2-6")
    assert lab.post("/jobs/1_2/hold").status == 400


def test_unknown_array_tasks_cannot_be_cancelled(lab: ApiLab) -> None:
    job_id = lab.submit(array="0-9", hold=True)
    for _ in range(2):
        for path in ("/jobs/1_12", "/jobs/1?tasks=12", "/jobs/1?tasks=5-12", "/tasks/1?tasks=10"):
            refused = lab.call("DELETE", path)
            assert (refused.status, refused.code) == (404, "not_found")
            assert "job 1 has no task 1" in refused.json["error"]
        # Also after the whole array has ended.
        lab.call("DELETE", f"/jobs/{job_id}")


def test_plain_job_has_no_tasks(lab: ApiLab) -> None:
    job_id = lab.submit()
    assert lab.get(f"/jobs/{job_id}/tasks").status == 409
    assert lab.call("DELETE", f"/jobs/{job_id}?tasks=1").status == 409


# --- logs


def test_logs_are_those_of_last_attempt(lab: ApiLab) -> None:
    job_id = lab.submit()
    assert lab.get(f"/jobs/{job_id}/logs").status == 200
    lab.logs.texts[f"{job_id}.1", 0] = b"one\ntwo\nthree\n"
    lab.start(job_id)
    whole = lab.get(f"/jobs/{job_id}/logs")
    assert (whole.body, whole.headers["content-type"]) == (
        b"one\ntwo\nthree\n",
        "text/plain; charset=utf-8",
    )
    assert lab.get(f"/jobs/{job_id}/logs?tail=2").body == b"two\nthree\n"
    assert lab.get(f"/jobs/{job_id}/logs?offset=4").body == b"two\nthree\n"
    assert lab.get(f"/jobs/{job_id}/logs?limit=3").body == b"one"
    assert lab.get(f"/jobs/{job_id}/logs?attempt=2").body == b""
    assert lab.get(f"/jobs/{job_id}/logs?member=1").status == 404
    assert lab.get(f"/jobs/{job_id}/logs?task=1").status == 404


def test_logs_can_be_followed_before_start(lab: ApiLab) -> None:
    job_id = lab.submit(hold=True)
    lab.logs.texts[f"{job_id}.1", 0] = b"first\n"
    lab.logs.more[f"{job_id}.1", 0] = [b"second\n", b"third\n"]
    connection = lab.connection()
    connection.request("GET", f"/api/v1/jobs/{job_id}/logs?follow=1")
    answer = connection.getresponse()
    assert answer.status == 200
    lab.post(f"/jobs/{job_id}/release")
    assert answer.read() == b"first\nsecond\nthird\n"
    connection.close()
    followed = lab.get(f"/jobs/{job_id}/logs?follow=true&tail=1")
    assert followed.body == b"third\n"


def test_following_job_that_never_starts_ends_with_it(lab: ApiLab) -> None:
    job_id = lab.submit(hold=True)
    connection = lab.connection()
    connection.request("GET", f"/api/v1/jobs/{job_id}/logs?follow=1")
    answer = connection.getresponse()
    lab.call("DELETE", f"/jobs/{job_id}")
    assert answer.read() == b""
    connection.close()


def test_log_streams_per_user_are_limited() -> None:
    with ApiLab(bounds=Bounds(logs_per_user=1)) as lab:
        job_id = lab.submit(hold=True)
        connection = lab.connection()
        connection.request("GET", f"/api/v1/jobs/{job_id}/logs?follow=1")
        following = connection.getresponse()
        refused = lab.get(f"/jobs/{job_id}/logs")
        assert (refused.status, refused.code) == (429, "too_many")
        assert "1 logs open" in refused.error
        lab.call("DELETE", f"/jobs/{job_id}")
        following.read()
        connection.close()
        assert lab.get(f"/jobs/{job_id}/logs").status == 200


def test_failed_array_shows_how_it_failed(lab: ApiLab) -> None:
    job_id = lab.submit(array="0-2", gpu_count=1)
    for task, code in enumerate((0, 3, 4)):
        lab.start(f"{job_id}_{task}")
        lab.end(f"{job_id}_{task}", code)
    told = lab.get(f"/jobs/{job_id}/explain").json["reason"]
    assert told == "tasks: 1 completed, 2 failed; task 1 failed with exit code 3"
    assert lab.get(f"/jobs/{job_id}_2/explain").json["reason"] == "failed with exit code 4"


def test_array_task_that_could_not_start_says_why(lab: ApiLab) -> None:
    why = "cannot enter the working directory '/gone'"
    job_id = lab.submit(array="0-1", gpu_count=1)
    lab.tell(Ended(f"{job_id}_0.1", exit_code=None, ran=False, detail=why))
    assert lab.get(f"/jobs/{job_id}_0/explain").json["reason"] == f"failed: {why}"
    assert lab.get(f"/jobs/{job_id}_0").json["reason"] == why
    running = lab.get(f"/jobs/{job_id}/explain").json["reason"]
    assert running.endswith(f"; task 0 failed: {why}")
    lab.tell(Ended(f"{job_id}_1.1", exit_code=0))
    told = lab.get(f"/jobs/{job_id}/explain").json["reason"]
    assert told == f"tasks: 1 completed, 1 failed; task 0 failed: {why}"
    assert lab.get(f"/jobs/{job_id}").json["reason"] == f"task 0 failed: {why}"
    assert lab.get("/jobs").json["jobs"][0]["reason"] == f"task 0 failed: {why}"
    assert lab.get(f"/jobs/{job_id}_1").json["reason"] == ""


def test_attempts_of_very_large_array_come_in_pages(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MOST_ATTEMPTS", 2)
    job_id = lab.submit(array="0-4", gpu_count=1)
    lab.wait_for(job_id, "scheduled", "running")
    for task in (0, 1, 2, 3):
        lab.tell(Started(f"{job_id}_{task}.1"))
    for task in (0, 1, 2):
        lab.tell(Ended(f"{job_id}_{task}.1", 0))

    def page(query: str) -> tuple[list[int], int | None]:
        form = lab.get(f"/jobs/{job_id}/attempts{query}").json
        return [one["task"] for one in form["attempts"]], form.get("next_task")

    assert page("") == ([0, 1], 1)
    assert page("?after=1") == ([2, 3, 4], None)
    assert page("?task=3") == ([3], None)


def test_completed_job_is_resubmitted_as_a_new_one(lab: ApiLab) -> None:
    first = lab.submit(name="train", command=["true"], gpu_count=2, environment={"A": "1"})
    early = lab.call("POST", f"/jobs/{first}/resubmit")
    assert (early.status, early.code) == (409, "wrong_state")
    lab.start(first)
    lab.end(first)
    reply = lab.call("POST", f"/jobs/{first}/resubmit", headers={"Idempotency-Key": "k"})
    again = lab.call("POST", f"/jobs/{first}/resubmit", headers={"Idempotency-Key": "k"})
    assert (reply.status, again.json) == (201, reply.json)
    new = lab.get(f"/jobs/{reply.json['job_id']}").json
    old = lab.get(f"/jobs/{first}").json
    assert (old["state"], new["attempt"]) == ("completed", 1)
    alike = ("name", "command", "gpu_count", "environment", "working_directory", "tenant_id")
    assert [new[field] for field in alike] == [old[field] for field in alike]
    assert lab.get("/jobs").json["total"] == 2


def test_rules_of_the_site_check_the_environment_of_a_resubmitted_job(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = lab.submit(captured_environment={"LD_PRELOAD": "/tmp/x.so"})
    lab.start(job_id)
    lab.end(job_id)
    seen: list[Any] = []

    def check(submission: Any) -> Any:
        seen.append(submission)
        return submission

    monkeypatch.setattr(lab.loop, "_rules", check)
    assert lab.call("POST", f"/jobs/{job_id}/resubmit").status == 201
    assert dict(seen[0].environment.variables) == {"LD_PRELOAD": "/tmp/x.so"}


def test_resubmitted_job_waits_for_nothing(lab: ApiLab) -> None:
    before = lab.submit()
    job_id = lab.submit(dependencies=[f"afterok:{before}"], begin_at="2099-01-01T00:00:00Z")
    lab.call("DELETE", f"/jobs/{job_id}")
    new = lab.call("POST", f"/jobs/{job_id}/resubmit").json["job_id"]
    job = lab.get(f"/jobs/{new}").json
    assert (job["dependencies"], job["begin_at"]) == ([], None)


def test_owner_sees_script_of_job(lab: ApiLab) -> None:
    script = "#!/bin/sh\necho hi\n"
    job_id = lab.submit(command=["a"], script=script)
    assert lab.get(f"/jobs/{job_id}").json["script"] == script
    assert lab.get("/jobs").json["jobs"][0]["script"] == ""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"deadline": "2020-01-01T00:00:00Z"}, "the deadline 2020-01-01 00:00"),
        ({"allowed_gpus": "0-3"}, "is given without gpu_count"),
        ({"gpu_count": 1, "allowed_gpus": "x"}, "allowed_gpus is not a list of GPUs"),
    ],
)
def test_obviously_mistaken_values_are_rejected(
    lab: ApiLab, asked: dict[str, str], said: str
) -> None:
    reply = lab.post("/jobs", {"command": ["a"], **asked})
    assert reply.status == 400
    assert said in reply.error
    assert lab.get("/jobs").json["jobs"] == []


def test_logs_of_array_need_task(lab: ApiLab) -> None:
    job_id = lab.submit(array="0-1")
    lab.logs.texts[f"{job_id}_1.1", 0] = b"task one\n"
    lab.wait_for(job_id, "scheduled")
    assert lab.get(f"/jobs/{job_id}/logs").status == 400
    assert lab.get(f"/jobs/{job_id}/logs?task=1").body == b"task one\n"
    assert lab.get("/jobs/1_1/logs").body == b"task one\n"


def test_jobs_can_be_listed_by_end_time(lab: ApiLab) -> None:
    ended, running = lab.submit(), lab.submit()
    for job in (ended, running):
        lab.start(job)
    lab.end(ended, 1)
    at = lab.get(f"/jobs/{ended}").json["ended_at"]
    numbers = {
        query: [job["id"] for job in lab.get(f"/jobs?{query}").json["jobs"]]
        for query in (f"ended_since={at}", f"ended_before={at}", "ended_since=2099-01-01")
    }
    assert list(numbers.values()) == [[lab.get(f"/jobs/{ended}").json["id"]], [], []]


def test_job_can_name_its_nodes() -> None:
    with ApiLab(nodes=2) as lab:
        job = lab.submit(gpu_count=1, nodes=["n1"])
        lab.start(job)
        assert lab.get(f"/jobs/{job}").json["allocation"][0]["node"] == "n1"
        refused = lab.post("/jobs", {"command": ["true"], "nodes": ["n1"], "exclude_nodes": ["n1"]})
        assert refused.status == 400
        assert "node 'n1' is in both 'nodes' and 'exclude_nodes'" in refused.error
        refused = lab.post("/jobs", {"command": ["true"], "gpu_count": 1, "nodes": ["n9"]})
        assert "no node is called n9" in refused.error
        both = lab.post("/jobs", {"command": ["true"], "gpu_count": 8, "exclude_nodes": ["n0"]})
        told = lab.get(f"/jobs/{both.json['job_id']}/explain").json["reason"]
        assert "1 x excluded by name" in told


def test_explain_says_that_node_of_running_job_is_silent(lab: ApiLab) -> None:
    job_id = lab.submit(gpu_count=1)
    lab.start(job_id)
    assert "heartbeats" not in lab.get(f"/jobs/{job_id}/explain").json["reason"]
    lab.tell(NodeSilent("n0"))
    reason = lab.get(f"/jobs/{job_id}/explain").json["reason"]
    assert reason.startswith("running since ")
    assert "; node n0 sends no heartbeats since " in reason


def test_task_tells_cancelled_from_failed(lab: ApiLab) -> None:
    cancelled, failed = lab.submit(gpu_count=1, hold=True), lab.submit(gpu_count=1)
    lab.call("DELETE", f"/jobs/{cancelled}")
    lab.start(failed)
    lab.end(failed, exit_code=1)
    tasks = {name: lab.get(f"/tasks/{name}").json for name in (cancelled, failed)}
    assert [task["status"] for task in tasks.values()] == ["failed", "failed"]
    assert [task["cancelled"] for task in tasks.values()] == [True, False]


def test_list_has_the_expected_starts_of_waiting_jobs_with_their_ranges(lab: ApiLab) -> None:
    running = lab.submit(gpu_count=8, max_runtime_minutes=60)
    lab.start(running)
    waits = lab.submit(gpu_count=8, max_runtime_minutes=60)
    jobs = {job["id"]: job for job in lab.get("/jobs").json["jobs"]}
    names = ("expected_start_earliest", "expected_start", "expected_start_latest")
    times = [jobs[waits][name] for name in names]
    assert None not in times
    assert times == sorted(times)
    assert [jobs[running][name] for name in names] == [None] * 3
