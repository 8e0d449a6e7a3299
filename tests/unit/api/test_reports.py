"""Reports and invoices over a period, and what each caller sees of them."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.store.rows import AttemptRow, JobRow, TaskRow
from tests.builders import a_job, an_array, on
from tests.unit.api.lab import ApiLab

HOUR = 3_600_000
MIDNIGHT = int(datetime(2025, 11, 1, tzinfo=UTC).timestamp()) * 1000
PEOPLE = {
    "root": Caller(user="root", role=Role.ADMIN),
    "ada": Caller(user="ada"),
    "bob": Caller(user="bob"),
    "chief": Caller(
        user="chief", role=Role.TENANT_ADMIN, administers=frozenset({"vision"}), tenant="vision"
    ),
}


class ByHeader:
    def caller(self, peer: Any, headers: Mapping[bytes, bytes]) -> Caller | None:
        return PEOPLE[headers.get(b"x-user", b"root").decode()]


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    with ApiLab(authenticators=[ByHeader()]) as made:
        made.store.commit(list(_rows()))
        yield made


def _attempt(job_id: str, start_ms: int, end_ms: int, **changes: Any) -> AttemptRow:
    values: dict[str, Any] = {
        "allocation_id": f"{job_id}.1",
        "job_id": job_id,
        "task": None,
        "attempt": 1,
        "placements": (on("n0", [0, 1]),),
        "start_ms": start_ms,
        "end_ms": end_ms,
        "state": JobState.COMPLETED,
        "gpu_models": (("A100", 2000),),
    }
    return AttemptRow(**(values | changes))


def _rows() -> Iterator[Any]:
    """Ada's job runs over midnight, Bob's fails in November; an array of Ada's is running."""
    over = a_job(id="job-101", number=101, user="ada", tenant="vision", submit_ms=MIDNIGHT - HOUR)
    yield JobRow(
        job=over,
        state=JobState.COMPLETED,
        attempt=1,
        first_start_ms=MIDNIGHT - HOUR,
        start_ms=MIDNIGHT - HOUR,
        end_ms=MIDNIGHT + 2 * HOUR,
        waited_ms=60_000,
    )
    yield _attempt("job-101", MIDNIGHT - HOUR, MIDNIGHT + 2 * HOUR)
    measure = Measure(
        gpu_ms=6 * HOUR,
        busy_percent_ms=6 * HOUR * 5,
        peak_percent=9,
        power_ms=6 * HOUR,
        energy_uj=3 * 3_600 * 10**9,
    )
    yield AttemptMeasure(allocation_id="job-101.1", job_id="job-101", measure=measure)
    bad = a_job(id="job-102", number=102, user="bob", tenant="default", name="bad", submit_ms=0)
    yield JobRow(job=bad, state=JobState.FAILED, attempt=1, waited_ms=180_000, exit_code=1)
    yield _attempt(
        "job-102",
        MIDNIGHT + HOUR,
        MIDNIGHT + 2 * HOUR,
        state=JobState.FAILED,
        placements=(on("gone", [5]),),
        gpu_models=(),
    )
    array = an_array(id="job-103", number=103, tasks="0-1", user="ada", tenant="vision")
    yield JobRow(job=array, state=JobState.COMPLETED)
    for task in (0, 1):
        waited_ms = 1000 * (task + 1)
        yield TaskRow(
            job_id="job-103",
            task=task,
            state=JobState.COMPLETED,
            attempt=1,
            waited_ms=waited_ms,
        )
        yield _attempt(
            "job-103",
            MIDNIGHT,
            MIDNIGHT + HOUR,
            allocation_id=f"job-103_{task}.1",
            task=task,
            placements=(on("n0", [2 + task]),),
            gpu_models=(("A100", 1000),),
        )
    yield DeviceHour(
        hour_ms=MIDNIGHT,
        node_id="n0",
        index=0,
        read_ms=HOUR,
        gpu_ms=HOUR,
        busy_percent_ms=40 * HOUR,
        peak_percent=97,
        power_ms=HOUR,
        energy_uj=3_600 * 10**8,
        peak_temperature_c=66,
    )


def report(lab: ApiLab, query: str = "period=2025-11", user: str = "root") -> Any:
    reply = lab.get(f"/report?{query}", headers={"X-User": user})
    assert reply.status == 200, reply.body
    return reply.json


def test_run_over_midnight_is_split_to_the_second(lab: ApiLab) -> None:
    october, november = report(lab, "period=2025-10"), report(lab)
    assert october["total"]["gpu_hours"] == 2.0
    assert november["total"]["gpu_hours"] == 4 + 1 + 2
    assert october["total"]["energy_kwh"] == 1.0
    assert november["total"]["energy_kwh"] == 2.0
    assert (october["total"]["started"], october["total"]["completed"]) == (1, 0)
    assert (november["total"]["started"], november["total"]["completed"]) == (3, 3)
    assert november["slices"][0]["gpu_hours"] == 7.0
    shifted = report(lab, "period=2025-10&time_zone=Asia/Tokyo")
    assert shifted["total"]["gpu_hours"] == 0


def test_waits_and_run_times_cover_runs_and_tasks(lab: ApiLab) -> None:
    november = report(lab)
    assert november["waits"] == {
        "count": 3,
        "mean_seconds": 61.0,
        "median_seconds": 2.0,
        "p90_seconds": 180.0,
        "max_seconds": 180.0,
    }
    assert november["run_times"]["max_seconds"] == 3 * 3600
    assert november["total"]["failed"] == 1


def test_gpus_show_allocated_and_measured_time(lab: ApiLab) -> None:
    november = report(lab)
    gpus = {(gpu["node"], gpu["index"]): gpu for gpu in november["gpus"]}
    first = gpus["n0", 0]
    assert first["allocated_percent"] == round(100 * 2 / (30 * 24), 2)
    assert (first["mean_utilisation_percent"], first["peak_utilisation_percent"]) == (40.0, 97)
    assert (first["energy_kwh"], first["peak_temperature_c"]) == (0.1, 66)
    assert gpus["n0", 7]["mean_utilisation_percent"] is None
    assert gpus["gone", 5]["gpu_hours"] == 1.0
    (idler,) = november["low_utilisation"]
    assert (idler["job_id"], idler["mean_utilisation_percent"]) == ("job-101", 5.0)
    assert report(lab, "period=2025-11&below_percent=3")["low_utilisation"] == []


def test_users_see_only_their_own_reports(lab: ApiLab) -> None:
    assert {account["user"] for account in report(lab)["users"]} == {"ada", "bob"}
    bob = report(lab, user="bob")
    assert [account["user"] for account in bob["users"]] == ["bob"]
    assert bob["total"]["gpu_hours"] == 1.0
    assert bob["waits"]["count"] == 1
    assert bob["low_utilisation"] == []
    chief = report(lab, user="chief")
    assert [account["tenant_id"] for account in chief["tenants"]] == ["vision"]
    assert report(lab, "period=2025-11&user=ada", user="bob")["users"] == []
    invoice = lab.get("/invoice?period=2025-11", headers={"X-User": "bob"}).json
    assert {line["user"] for line in invoice["lines"]} == {"bob"}


def test_report_can_be_filtered_and_invalid_query_is_rejected(lab: ApiLab) -> None:
    assert report(lab, "period=2025-11&user=ada")["total"]["gpu_hours"] == 6.0
    assert report(lab, "period=2025-11&tenant_id=default")["total"]["failed"] == 1
    for query in ("period=lunch", "time_zone=Mars", "below_percent=101", "since=1"):
        assert lab.get(f"/report?{query}").status == 400, query
    assert lab.get("/report?tenant_id=nobody").status == 404


def test_running_jobs_count_up_to_now() -> None:
    with ApiLab() as lab:
        job = lab.submit(gpu_count=2)
        lab.start(job)
        made = lab.get("/report?period=today").json
        assert (made["total"]["started"], made["total"]["completed"]) == (1, 0)
        assert made["waits"]["count"] == 1
        used = lab.get("/usage?period=current").json["usage"]
        assert [row["user"] is None for row in used] == [True, False]
        lab.end(job)
        ended = lab.get("/report?period=today").json
        assert ended["total"]["completed"] == 1
        assert ended["total"]["gpu_hours"] >= made["total"]["gpu_hours"]
        assert lab.get("/invoice").json["is_final"] is False


def test_usage_and_report_count_same_gpu_hours() -> None:
    with ApiLab() as lab:
        ended, runs = lab.submit(gpu_count=1), lab.submit(gpu_count=2)
        lab.start(ended)
        lab.end(ended)
        lab.start(runs)
        before = lab.get("/report").json["total"]["gpu_hours"]
        in_all, this_month = (
            lab.get(f"/usage?period={period}").json["usage"] for period in ("all", "current")
        )
        after = lab.get("/report").json["total"]["gpu_hours"]
        for rows in (in_all, this_month):
            assert {row["user"] is None for row in rows} == {True, False}
            assert all(before <= row["gpu_hours"] <= after for row in rows)
            assert all(row["completed"] == 1 for row in rows)


def test_job_cancelled_while_waiting_counts_in_totals_but_not_as_run() -> None:
    with ApiLab() as lab:
        lab.call("DELETE", f"/jobs/{lab.submit(hold=True)}")
        assert [row["cancelled"] for row in lab.get("/usage").json["usage"]] == [1, 1]
        assert lab.get("/report").json["total"]["cancelled"] == 0


def test_fair_share_compares_what_tenants_used_and_deserve(lab: ApiLab) -> None:
    found = lab.get("/report/fair-share?period=2025-11").json
    used = {one["tenant_id"]: one["used_gpu_hours"] for one in found["tenants"]}
    assert used == {"default": 1.0, "vision": 6.0}
    assert [one["deserved_gpu_hours"] for one in found["tenants"]] == [3.5, 3.5]
    assert found["slices"][0]["used"] == used
    assert found["slices"][0]["deserved"] == {"default": 3.5, "vision": 3.5}


def test_fair_share_shows_only_tenants_of_the_caller(lab: ApiLab) -> None:
    found = lab.get("/report/fair-share?period=2025-11", headers={"X-User": "ada"}).json
    assert [one["tenant_id"] for one in found["tenants"]] == ["default"]
    assert found["tenants"][0]["deserved_percent"] == 50.0
