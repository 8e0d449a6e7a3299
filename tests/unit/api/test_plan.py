"""The plan of every GPU: what ran, runs, is reserved and is forecast; who sees what of it."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from gpu_scheduler.api.routes import plan as plan_route
from gpu_scheduler.predict.history import History
from tests.unit.api.lab import ApiLab
from tests.unit.api.test_visibility import ByHeader, as_user

HOUR_S = 3600


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab(nodes=2, predictor=History(), authenticators=[ByHeader()], server_uid=0) as lab:
        yield lab


def submit(lab: ApiLab, user: str = "ada", **job: Any) -> str:
    reply = lab.post(
        "/jobs", {"command": ["true"], "max_runtime_minutes": 60, **job}, headers=as_user(user)
    )
    assert reply.status == 201, reply.body
    return str(reply.json["job_id"])


def plan_for(lab: ApiLab, user: str = "ada", query: str = "") -> Any:
    reply = lab.get(f"/plan{query}", headers=as_user(user))
    assert reply.status == 200, reply.body
    return reply.json


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_plan_shows_past_running_reserved_and_forecast_runs(lab: ApiLab) -> None:
    ended = submit(lab, gpu_count=8, name="short")
    lab.start(ended)
    lab.end(ended)
    lab.wait_for(ended, "completed")
    running = [submit(lab, gpu_count=8) for _ in range(2)]
    for job in running:
        lab.start(job)
    first = submit(lab, gpu_count=8, name="first")
    second = submit(lab, gpu_count=8)
    third = submit(lab, gpu_count=8)
    found = plan_for(lab)
    by_job = {run["job_id"]: run for run in found["runs"]}
    kinds = {job: run["kind"] for job, run in by_job.items()}
    assert kinds[ended] == "past"
    assert [kinds[job] for job in running] == ["running", "running"]
    assert kinds[first] == "reserved"
    assert {kinds[second], kinds[third]} <= {"reserved", "forecast"}
    assert kinds[third] == "forecast"
    gap = seconds(by_job[third]["start"]) - seconds(by_job[first]["start"])
    assert gap == pytest.approx(HOUR_S, abs=60)
    assert by_job[first]["places"][0]["gpu_ids"] == list(range(8))
    assert by_job[first]["places"][0]["shares"] == [1] * 8
    assert [node["id"] for node in found["nodes"]] == ["n0", "n1"]
    assert (found["waiting"], found["forecast"], found["whole"], found["cut"]) == (3, 3, True, [])


def test_plan_names_jobs_of_unknown_run_time_before_a_start(lab: ApiLab) -> None:
    endless = lab.post("/jobs", {"command": ["true"], "gpu_count": 8}, headers=as_user("ada"))
    lab.start(endless.json["job_id"])
    other = lab.post("/jobs", {"command": ["true"], "gpu_count": 8}, headers=as_user("ada"))
    lab.start(other.json["job_id"])
    waits = submit(lab, gpu_count=8)
    runs = {run["job_id"]: run for run in plan_for(lab, query="?hours_ahead=720")["runs"]}
    assert runs[endless.json["job_id"]]["end_unknown"]
    assert len(runs[waits]["depends_on"]) == 1
    assert runs[waits]["expected_start"] is None
    assert set(runs[waits]["depends_on"]) < {endless.json["job_id"], other.json["job_id"]}


def test_plan_of_a_job_shows_only_its_nodes(lab: ApiLab) -> None:
    job = submit(lab, gpu_count=8)
    lab.start(job)
    places = lab.get(f"/jobs/{job}", headers=as_user("ada")).json["allocation"]
    found = plan_for(lab, query=f"?job={job}")
    assert [node["id"] for node in found["nodes"]] == [place["node"] for place in places]
    assert lab.get("/plan?job=job-99", headers=as_user("ada")).status == 404


def test_plan_comes_in_pages_of_nodes(lab: ApiLab) -> None:
    first = plan_for(lab, query="?limit=1")
    assert ([node["id"] for node in first["nodes"]], first["next_node"]) == (["n0"], "n0")
    second = plan_for(lab, query="?limit=1&after=n0")
    assert ([node["id"] for node in second["nodes"]], second["next_node"]) == (["n1"], "")


def test_plan_shows_advance_reservations(lab: ApiLab) -> None:
    wish = {"gpus": 2, "tenant_id": "default", "duration_minutes": 60}
    assert lab.post("/reservations", wish, headers=as_user("boss")).status == 201
    (reservation,) = plan_for(lab)["reservations"]
    assert sum(len(place["gpu_ids"]) for place in reservation["places"]) == 2


def test_plan_hides_names_and_ended_jobs_of_others(lab: ApiLab) -> None:
    ended = submit(lab, gpu_count=8, name="secret")
    lab.start(ended)
    lab.end(ended)
    lab.wait_for(ended, "completed")
    lab.start(submit(lab, gpu_count=8, name="secret"))
    assert "secret" in str(plan_for(lab, "boss"))
    seen = plan_for(lab, "bob")
    assert "secret" not in str(seen)
    past, running = sorted(seen["runs"], key=lambda run: run["kind"])
    assert (past["kind"], past["job_id"], past["user"]) == ("past", "", "")
    assert (running["kind"], running["user"]) == ("running", "ada")


def test_plan_says_where_it_was_cut(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        lab.start(submit(lab, gpu_count=1))
    monkeypatch.setattr(plan_route, "MOST_RUNS", 2)
    found = plan_for(lab)
    assert len(found["runs"]) == 2
    assert found["cut"] == ["2 of 3 runs are shown; ask for fewer nodes or hours"]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "hours_back=-1", "hours_back=169", "hours_ahead=0", "other=1"],
)
def test_plan_rejects_a_query_out_of_bounds(lab: ApiLab, query: str) -> None:
    assert lab.get(f"/plan?{query}", headers=as_user("ada")).status == 400


def test_forecast_is_shared_by_those_who_look_at_the_same_time(lab: ApiLab) -> None:
    assert plan_for(lab)["made_at"] == plan_for(lab, "bob")["made_at"]


def test_first_run_of_a_waiting_job_has_a_range_a_limit_and_a_basis(lab: ApiLab) -> None:
    running = [submit(lab, gpu_count=8) for _ in range(2)]
    for job in running:
        lab.start(job)
    waits = submit(lab, gpu_count=8)
    runs = {run["job_id"]: run for run in plan_for(lab, query="?hours_ahead=720")["runs"]}
    found = runs[waits]
    names = ("earliest", "latest", "limit")
    earliest, latest, limit = (seconds(found[f"expected_start_{name}"]) for name in names)
    assert earliest < seconds(found["expected_start"]) <= latest <= limit + 1
    assert limit == pytest.approx(seconds(found["start"]), abs=60)
    assert found["expected_start_after"] in running
    assert found["expected_start_basis"] == "nothing known: the limit"
    assert runs[running[0]]["expected_start"] is None
