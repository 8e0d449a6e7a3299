"""What-if questions: answers for jobs and for changes; nothing is stored, and who may ask what."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gpu_scheduler.api.planning import planner, worker
from gpu_scheduler.api.planning.worker import read_question, write_question
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.engine.what_if import Question
from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.predict.history import History
from tests.builders import a_job, a_node, a_state
from tests.unit.api.lab import ApiLab
from tests.unit.api.test_visibility import ByHeader, as_user

HOUR_S = 3600


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab(
        nodes=2,
        policy=preset("fair"),
        predictor=History(),
        authenticators=[ByHeader()],
        server_uid=0,
    ) as lab:
        yield lab


def ask(lab: ApiLab, user: str = "boss", **body: Any) -> Any:
    reply = lab.post("/what-if", body, headers=as_user(user))
    assert reply.status == 200, reply.body
    return reply.json


def job(**fields: Any) -> dict[str, Any]:
    return {"command": ["true"], "max_runtime_minutes": 60, **fields}


def submit(lab: ApiLab, **fields: Any) -> str:
    reply = lab.post("/jobs", job(**fields), headers=as_user("ada"))
    assert reply.status == 201, reply.body
    return str(reply.json["job_id"])


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def fill(lab: ApiLab) -> None:
    """Both nodes are full for an hour, and two jobs wait for one node each."""
    for _ in range(2):
        lab.start(submit(lab, gpu_count=8))
    for _ in range(2):
        submit(lab, gpu_count=8)


def test_jobs_are_answered_side_by_side(lab: ApiLab) -> None:
    lab.start(submit(lab, gpu_count=8))
    now, never = ask(lab, "ada", jobs=[job(gpu_count=8), job(gpu_count=99)])["jobs"]
    assert now["error"] == ""
    assert now["places"][0]["gpu_ids"] == list(range(8))
    assert seconds(now["expected_end"]) - seconds(now["expected_start"]) == HOUR_S
    assert never["code"] == "never_fits"
    assert lab.get("/jobs", headers=as_user("boss")).json["total"] == 1


def test_job_that_goes_first_moves_others(lab: ApiLab) -> None:
    fill(lab)
    waiting = submit(lab, gpu_count=8)
    (urgent,) = ask(lab, jobs=[job(gpu_count=8, priority=9000)])["jobs"]
    assert urgent["effect"]["later"] >= 1
    assert waiting in {moved["job_id"] for moved in urgent["effect"]["moved"]}
    assert urgent["effect"]["lost_seconds"] == pytest.approx(HOUR_S, abs=1)


def test_job_behind_one_of_unknown_run_time_says_so(lab: ApiLab) -> None:
    for _ in range(2):
        reply = lab.post("/jobs", {"command": ["true"], "gpu_count": 8}, headers=as_user("ada"))
        lab.start(reply.json["job_id"])
    (answer,) = ask(lab, "ada", jobs=[{"command": ["true"], "gpu_count": 8}])["jobs"]
    assert answer["depends_on"]
    assert answer["end_unknown"].startswith("it has no time limit of its own")
    assert answer["cost"] is None


def test_drained_node_delays_the_jobs_that_wait(lab: ApiLab) -> None:
    fill(lab)
    effect = ask(lab, drain_nodes=["n1"])["effect"]
    assert (effect["earlier"], effect["later"]) == (0, 1)
    assert effect["moved"][0]["seconds"] == pytest.approx(HOUR_S, abs=1)
    assert effect["owners"][0]["user"] == "ada"
    assert lab.get("/nodes", headers=as_user("boss")).json["nodes"][1]["state"] == "online"


def test_added_nodes_let_jobs_start_at_once(lab: ApiLab) -> None:
    fill(lab)
    effect = ask(lab, add_nodes={"count": 4, "like": "n0"})["effect"]
    assert (effect["earlier"], effect["later"]) == (2, 0)
    assert effect["gained_seconds"] == pytest.approx(2 * HOUR_S, abs=60)


def test_supposed_reservation_names_its_gpus(lab: ApiLab) -> None:
    wish = {"gpus": 3, "tenant_id": "default", "duration_minutes": 60}
    answer = ask(lab, reservation=wish)
    assert sum(len(place["gpu_ids"]) for place in answer["reserved"]) == 3
    assert lab.get("/reservations", headers=as_user("boss")).json["reservations"] == []


def test_quota_of_a_tenant_moves_its_jobs(lab: ApiLab) -> None:
    lab.post("/tenants", {"id": "vision", "name": "vision"}, headers=as_user("boss"))
    fill(lab)
    effect = ask(lab, quotas=[{"tenant_id": "vision", "max_gpus": 8}])["effect"]
    assert effect["later"] >= 1
    assert lab.get("/quota", headers=as_user("boss")).status == 200


def test_other_policy_is_compared(lab: ApiLab) -> None:
    fill(lab)
    effect = ask(lab, policy="fifo")["effect"]
    assert effect["compared"] == 2
    reply = lab.post("/what-if", {"policy": "srtf"}, headers=as_user("boss"))
    assert (reply.status, "tgpu simulate" in reply.error) == (400, True)
    assert lab.post("/what-if", {"policy": "nope"}, headers=as_user("boss")).status == 404


def test_impossible_change_is_rejected_with_the_reason(lab: ApiLab) -> None:
    wish = {"gpus": 17, "tenant_id": "default", "duration_minutes": 60}
    reply = lab.post("/what-if", {"reservation": wish}, headers=as_user("boss"))
    assert reply.status == 409
    assert "17" in reply.error


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"jobs": [job()], "policy": "fifo"}, 400),
        ({"jobs": [job()] * 9}, 400),
        ({"jobs": [{"command": ["true"], "gpu_count": -1}]}, 400),
        ({"drain_nodes": ["nope"]}, 404),
        ({"drain_nodes": [""]}, 400),
        ({"add_nodes": {"count": 1001, "like": "n0"}}, 400),
        ({"add_nodes": {"count": 1, "like": "<img src=x>"}}, 404),
        ({"quotas": [{"tenant_id": "nope", "max_gpus": 1}]}, 404),
        ({"quotas": [{"tenant_id": "default", "max_gpus": -1}]}, 400),
        ({"other": 1}, 400),
        ([], 400),
        (b'{"policy": "fifo", "policy": "easy"}', 400),
        (b"{" * 100_000, 400),
    ],
)
def test_hostile_question_is_rejected(lab: ApiLab, body: Any, status: int) -> None:
    reply = lab.post("/what-if", body, headers=as_user("boss"))
    assert reply.status == status, reply.body


@pytest.mark.parametrize(
    "change",
    [{"drain_nodes": ["n0"]}, {"policy": "fifo"}, {"add_nodes": {"count": 1, "like": "n0"}}],
)
@pytest.mark.parametrize("user", ["ada", "eve", "ada-looking"])
def test_only_admins_ask_about_the_cluster(lab: ApiLab, user: str, change: dict[str, Any]) -> None:
    assert lab.post("/what-if", change, headers=as_user(user)).status == 403


def test_job_for_a_tenant_of_others_is_rejected(lab: ApiLab) -> None:
    lab.post("/tenants", {"id": "vision", "name": "vision"}, headers=as_user("boss"))
    (answer,) = ask(lab, "bob", jobs=[job(tenant_id="vision")])["jobs"]
    assert answer["code"] == "forbidden"


def test_state_is_left_unchanged(lab: ApiLab) -> None:
    fill(lab)
    cluster = lab.loop.core.state.cluster
    before, events = replace(cluster.snapshot(), tenants=()), lab.store.last_event()
    ask(lab, drain_nodes=["n1"])
    ask(lab, jobs=[job(gpu_count=8)])
    assert replace(cluster.snapshot(), tenants=()) == before
    assert lab.store.last_event() == events


def test_long_queue_is_cut_to_the_jobs_that_come_first(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lab)
    monkeypatch.setattr(planner, "MOST_WAITING", 1)
    answer = ask(lab, drain_nodes=["n1"])
    assert answer["waiting"] == 2
    assert answer["effect"]["compared"] == 1
    assert answer["cut"][0].startswith("only the first")


def test_roll_out_that_runs_out_of_time_says_so(lab: ApiLab) -> None:
    fill(lab)
    lab.applications.main._context.planner._seconds = 0.0  # type: ignore[attr-defined]
    answer = ask(lab, drain_nodes=["n1"])
    assert answer["effect"]["compared"] == 0
    assert answer["cut"][0].startswith("the time ran out")


def test_too_many_questions_at_once_are_rejected(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "MOST_QUESTIONS", 0)
    assert lab.post("/what-if", {"jobs": [job()]}, headers=as_user("ada")).status == 429


def a_question() -> Question:
    state = a_state(nodes=[a_node(gpus=1)], queue=[a_job(number=n) for n in range(1, 700)])
    return Question(snapshot=state.snapshot(), policy=state.policy, now_ms=0)


def test_question_survives_the_way_to_the_worker(tmp_path: Any) -> None:
    asked = a_question()
    file = tmp_path / "question"
    file.write_bytes(b"".join(write_question(asked)))
    with file.open("rb") as stream:
        assert read_question(stream) == asked


def test_files_of_the_current_directory_are_no_modules_of_the_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "pickle.py").write_text("raise SystemExit('not the module of Python')\n")
    monkeypatch.chdir(tmp_path)
    found = asyncio.run(planner.run(a_question(), 1.0))
    assert found.error is None


def test_kernel_kills_the_worker_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    adjusted = tmp_path / "oom_score_adj"
    monkeypatch.setattr(worker, "OOM_SCORE_FILE", adjusted)
    worker.yield_memory()
    assert adjusted.read_text() == "1000"


def test_worker_that_fails_is_an_error_that_may_go_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ClusterError, match="failed"):
        asyncio.run(planner.run(a_question(), 1.0))


def test_worker_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 1000\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hangs))
    monkeypatch.setattr(planner, "MOST_SECONDS", 0.2)
    with pytest.raises(ClusterError, match="was stopped"):
        asyncio.run(planner.run(a_question(), 1.0))


def test_callers_that_waited_for_a_forecast_that_failed_do_not_each_repeat_it(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    async def fail(*_: object) -> None:
        runs.append(1)
        await asyncio.sleep(0)
        raise ClusterError("the forecast took too long")

    async def ask_often() -> list[Any]:
        service: Any = lab.loop
        asked = planner.Planner(service, clock=lambda: 100.0)
        return await asyncio.gather(*(asked.forecast() for _ in range(5)), return_exceptions=True)

    monkeypatch.setattr(planner, "run", fail)
    assert {str(error) for error in asyncio.run(ask_often())} == {"the forecast took too long"}
    assert len(runs) == 1


def test_supposed_job_that_waits_has_a_range_a_limit_and_a_basis(lab: ApiLab) -> None:
    running = [submit(lab, gpu_count=8) for _ in range(2)]
    for job_id in running:
        lab.start(job_id)
    (answer,) = ask(lab, "ada", jobs=[job(gpu_count=8)])["jobs"]
    earliest, latest = answer["expected_start_earliest"], answer["expected_start_latest"]
    assert seconds(earliest) < seconds(answer["expected_start"]) < seconds(latest)
    assert answer["expected_start_limit"] is not None
    assert answer["expected_start_after"] in running
    assert answer["expected_start_basis"] == "nothing known: the limit"


def test_supposed_job_that_starts_at_once_needs_no_range(lab: ApiLab) -> None:
    (answer,) = ask(lab, "ada", jobs=[job(gpu_count=8)])["jobs"]
    assert answer["expected_start_earliest"] == answer["expected_start_latest"]
    assert answer["expected_start_latest"] == answer["expected_start"]
