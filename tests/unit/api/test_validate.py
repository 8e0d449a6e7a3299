"""Dry runs on the server: the same errors as a submission, a forecast, and nothing is stored."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.predict.history import History
from tests.unit.api.lab import ApiLab

HOUR_S = 3600


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab(predictor=History()) as lab:
        yield lab


def job(**fields: Any) -> dict[str, Any]:
    return {"command": ["python", "train.py"], "gpu_count": 8, **fields}


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_dry_run_reports_immediate_start_and_stores_nothing(lab: ApiLab) -> None:
    events, cluster = lab.store.last_event(), lab.loop.core.state.cluster
    before = replace(cluster.snapshot(), tenants=())
    reply = lab.post("/jobs/validate", job(max_runtime_minutes=60))
    assert reply.status == 200
    told = reply.json
    assert (told["status"], told["count"], told["tasks"], told["position"]) == ("valid", 1, 1, 1)
    assert told["basis"] == "forecast"
    assert seconds(told["expected_end"]) - seconds(told["expected_start"]) == HOUR_S
    assert lab.get("/jobs").json["total"] == 0
    assert lab.store.last_event() == events
    assert replace(cluster.snapshot(), tenants=()) == before
    assert lab.submit(**job()) == "job-1"


def test_dry_run_reports_forecast_and_queue_position(lab: ApiLab) -> None:
    lab.start(lab.submit(**job(max_runtime_minutes=120)))
    lab.submit(**job(max_runtime_minutes=60))
    told = lab.post("/jobs/validate", job(max_runtime_minutes=60)).json
    assert told["position"] == 2
    started = seconds(lab.get("/jobs/1").json["started_at"])
    assert seconds(told["expected_start"]) - started == pytest.approx(3 * HOUR_S, abs=60)


def test_dry_run_reports_job_of_unknown_length_ahead(lab: ApiLab) -> None:
    lab.start(lab.submit(**job()))
    told = lab.post("/jobs/validate", job(max_runtime_minutes=60)).json
    assert told["expected_start"] is None
    assert (
        told["start_unknown"]
        == "job 1 comes before it and has no time limit of its own and no history"
    )
    assert "--time or --estimate" in lab.post("/jobs/validate", job()).json["end_unknown"]


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu_count": 9},
        {"gpu_models": ["H900"]},
        {"dependencies": ["afterok:job-99"]},
        {"tenant_id": "nobody"},
        {"gpu_count": -1},
        {"surprise": 1},
    ],
    ids=["too_large", "no_such_model", "dependency", "tenant", "negative", "field"],
)
def test_dry_run_rejects_what_submission_rejects(lab: ApiLab, fields: dict[str, Any]) -> None:
    real = lab.post("/jobs", job(**fields))
    tried = lab.post("/jobs/validate", job(**fields))
    assert real.status >= 400
    assert (tried.status, tried.code, tried.error) == (real.status, real.code, real.error)


def test_dry_run_checks_quota_and_queue_limit() -> None:
    with ApiLab(limits=CoreLimits(max_queued_tasks=3)) as lab:
        tenant = lab.post("/tenants", {"name": "small", "max_gpus": 2}).json["id"]
        assert lab.post("/jobs/validate", job(tenant_id=tenant)).code == "quota_exceeded"
        assert lab.post("/jobs/validate", job(array="0-3", gpu_count=1)).code == "queue_full"
        many = [job(gpu_count=1), job(gpu_count=1), job(gpu_count=99)]
        assert lab.post("/jobs/validate", many).json["details"]["index"] == 2


def test_dry_run_checks_many_jobs_together(lab: ApiLab) -> None:
    told = lab.post("/jobs/validate", [job(), job(array="0-9"), job(name="other")]).json
    assert (told["count"], told["tasks"]) == (3, 12)
    assert lab.get("/jobs").json["total"] == 0


def test_dry_run_explains_hold_begin_time_and_dependency(lab: ApiLab) -> None:
    held = lab.post("/jobs/validate", job(hold=True)).json
    assert held["start_unknown"] == "it is held until it is released"
    later = lab.post("/jobs/validate", job(begin_at="2099-01-01T00:00:00Z")).json
    assert (later["expected_start"], later["basis"]) == ("2099-01-01T00:00:00.000Z", "known")
    lab.start(lab.submit(**job(max_runtime_minutes=120)))
    after = lab.post("/jobs/validate", job(dependencies=["afterok:job-1"])).json
    assert after["basis"] == "dependency"
    lab.end("job-1", 1)
    lab.wait_for("job-1", "failed")
    never = lab.post("/jobs/validate", job(dependencies=["afterok:job-1"])).json
    assert "can never be met" in never["warnings"][0]


def test_dry_run_warns_of_missing_container_engine(lab: ApiLab) -> None:
    told = lab.post("/jobs/validate", {"image": "busybox", "runner": "container"}).json
    assert "no node has a container engine" in told["warnings"][0]


def test_dry_run_is_audited_as_such(lab: ApiLab) -> None:
    lab.post("/jobs/validate", [job(), job()])
    (row,) = [row for row in lab.get("/audit").json["records"] if row["action"] == "submit"]
    assert (row["detail"], row["target"], row["count"]) == ("dry run", "", 2)
