"""What callers see of jobs of others: existence, owner, size and expected end."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.routes.job_views import PUBLIC_FIELDS
from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.predict.selection import SelectedPredictor
from tests.unit.api.lab import ApiLab

SECRET = "only-for-ada"
VISION, AUDIO = frozenset({"vision"}), frozenset({"audio"})
PEOPLE = {
    "ada": Caller(user="ada", uid=5000, gid=5000, tenant="vision", tenants=VISION),
    "bob": Caller(user="bob", uid=5001, gid=5001),
    "eve": Caller(
        user="eve",
        uid=5002,
        gid=5002,
        role=Role.TENANT_ADMIN,
        tenant="vision",
        tenants=VISION,
        administers=VISION,
    ),
    "ada-elsewhere": Caller(
        user="ada", uid=5000, gid=5000, tenant="audio", tenants=AUDIO, confined=True
    ),
    "ada-looking": Caller(user="ada", uid=5000, gid=5000, role=Role.VIEWER),
    "boss": Caller(user="boss", uid=5003, gid=5003, role=Role.ADMIN),
}
OUTSIDERS = ("bob", "ada-elsewhere")


class ByHeader:
    """Identifies callers by a header, as a stand-in for accounts; without it, as the admin."""

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        return PEOPLE.get(headers.get(b"x-test-user", b"boss").decode())


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    with ApiLab(authenticators=[ByHeader()], server_uid=0) as lab:
        for tenant in ("vision", "audio"):
            lab.post("/tenants", {"id": tenant, "name": tenant}, headers=as_user("boss"))
        yield lab


def as_user(name: str) -> dict[str, str]:
    return {"X-Test-User": name}


def submit(lab: ApiLab, **job: Any) -> str:
    body = {
        "command": [f"/bin/{SECRET}"],
        "name": SECRET,
        "environment": {SECRET.replace("-", "_"): SECRET},
        "working_directory": f"/{SECRET}",
        "output": f"/{SECRET}/log",
        "gpu_count": 2,
        "max_runtime_minutes": 60,
        "priority": 987,
    }
    reply = lab.post("/jobs", body | job, headers=as_user("ada"))
    assert reply.status == 201, reply.body
    return str(reply.json["job_id"])


def has_secret(text: bytes) -> bool:
    return any(word in text for word in (SECRET.encode(), SECRET.replace("-", "_").encode()))


@pytest.mark.parametrize("outsider", OUTSIDERS)
def test_jobs_of_others_show_only_size_user_place_and_expected_end(
    lab: ApiLab, outsider: str
) -> None:
    job = submit(lab)
    lab.start(job)
    for path in (f"/jobs/{job}", "/jobs", "/jobs?user=ada", "/jobs?state=running"):
        reply = lab.get(path, headers=as_user(outsider))
        assert not has_secret(reply.body), path
    form = lab.get(f"/jobs/{job}", headers=as_user(outsider)).json
    assert form["redacted"] is True
    told = {"id", "job_id", "number", "tenant_id", "user", "state", "gpu_count", "gpu_memory_mb"}
    told |= {"cpu_cores", "memory_mb", "members", "min_members", "gang_scheduling", "pool"}
    told |= {"submitted_at", "started_at", "allocation", "expected_end", "redacted", "runner"}
    assert {name for name, value in form.items() if value and name not in told} == set()
    assert (form["user"], form["gpu_count"], form["state"]) == ("ada", 2, "running")
    assert form["expected_end"] is not None
    assert len(form["allocation"][0]["gpus"]) == 2
    lab.end(job)


@pytest.mark.parametrize("outsider", OUTSIDERS)
def test_jobs_of_others_cannot_be_read_followed_or_changed(lab: ApiLab, outsider: str) -> None:
    job = submit(lab, hold=True)
    for method, path, body in (
        ("GET", "/logs", None),
        ("GET", "/logs?follow=true", None),
        ("GET", "/attempts", None),
        ("GET", "/tasks", None),
        ("DELETE", "", None),
        ("POST", "/hold", None),
        ("POST", "/release", None),
        ("POST", "/retry", None),
        ("POST", "/priority", {"priority": 1}),
        ("PATCH", "", {"name": "x"}),
    ):
        reply = lab.call(method, f"/jobs/{job}{path}", body, headers=as_user(outsider))
        assert (reply.status, reply.code) == (403, "forbidden"), path
        assert "belongs to 'ada'" in reply.error
    for method in ("GET", "DELETE"):
        assert lab.call(method, f"/tasks/{job}", headers=as_user(outsider)).status == 403
    lab.call("DELETE", f"/jobs/{job}", headers=as_user("ada"))


@pytest.mark.parametrize("outsider", OUTSIDERS)
def test_ended_jobs_of_others_are_invisible(lab: ApiLab, outsider: str) -> None:
    job = submit(lab)
    lab.start(job)
    lab.end(job, exit_code=3)
    for method, path in (("GET", ""), ("GET", "/explain"), ("GET", "/logs"), ("DELETE", "")):
        reply = lab.call(method, f"/jobs/{job}{path}", headers=as_user(outsider))
        assert (reply.status, reply.code) == (404, "not_found"), path
        unknown = lab.call(method, f"/jobs/job-99999{path}", headers=as_user(outsider))
        assert unknown.error.replace("99999", "") == reply.error.replace(job[4:], "")
    listed = lab.get("/jobs?limit=1000", headers=as_user(outsider)).json
    assert job not in {one["id"] for one in listed["jobs"]}
    assert listed["total"] == len(listed["jobs"])
    assert lab.get(f"/jobs/{job}", headers=as_user("ada")).json["exit_code"] == 3


def test_reason_of_others_is_hidden_but_position_and_forecast_are_shown(lab: ApiLab) -> None:
    first = submit(lab, gpu_count=8)
    lab.start(first)
    second = submit(lab, gpu_count=8)
    own = lab.get(f"/jobs/{second}/explain", headers=as_user("ada")).json
    other = lab.get(f"/jobs/{second}/explain", headers=as_user("bob")).json
    assert own["reason"] != "pending"
    assert (other["reason"], other["code"], other["details"]) == ("pending", "pending", {})
    assert other["position"] == own["position"] == 1
    assert other["expected_start"] == own["expected_start"] is not None
    lab.call("DELETE", f"/jobs/{second}", headers=as_user("ada"))
    lab.end(first)


@pytest.mark.parametrize(
    "query", [f"name={SECRET}", "sort=name", "sort=-priority", "sort=priority"]
)
def test_filters_and_sorting_reveal_nothing_hidden(lab: ApiLab, query: str) -> None:
    job = submit(lab, hold=True)
    listed = lab.get(f"/jobs?{query}", headers=as_user("bob")).json
    assert (listed["jobs"], listed["total"]) == ([], 0)
    assert job in json.dumps(lab.get(f"/jobs?{query}", headers=as_user("ada")).json)
    lab.call("DELETE", f"/jobs/{job}", headers=as_user("ada"))


@pytest.mark.parametrize("outsider", OUTSIDERS)
def test_events_short_forms_usage_and_metrics_reveal_nothing_of_others(
    lab: ApiLab, outsider: str
) -> None:
    job = submit(lab)
    lab.start(job)
    events = lab.get("/events?after=0&limit=1000", headers=as_user(outsider)).json["events"]
    assert {event["job_id"] for event in events} <= {None}
    assert lab.get("/tasks", headers=as_user(outsider)).json["total"] == 0
    assert lab.get("/usage", headers=as_user(outsider)).json["usage"] == []
    for path in ("/gpus", "/nodes", "/cluster/status"):
        assert not has_secret(lab.get(path, headers=as_user(outsider)).body), path
    assert not has_secret(lab.call("GET", "/metrics", root=True).body)
    lab.end(job)
    assert lab.get("/usage", headers=as_user("ada")).json["usage"] != []


@pytest.mark.parametrize("insider", ["ada", "eve", "boss"])
def test_owner_tenant_admin_and_admin_see_everything(lab: ApiLab, insider: str) -> None:
    job = submit(lab)
    lab.start(job)
    form = lab.get(f"/jobs/{job}", headers=as_user(insider)).json
    assert (form["name"], form["redacted"]) == (SECRET, False)
    assert lab.get(f"/jobs/{job}/logs", headers=as_user(insider)).status == 200
    events = lab.get("/events?after=0&limit=1000", headers=as_user(insider)).json["events"]
    assert job in {event["job_id"] for event in events}
    assert lab.call("DELETE", f"/jobs/{job}", headers=as_user(insider)).status == 200
    lab.end(job)
    listed = lab.get(f"/jobs?name={SECRET}&limit=1000", headers=as_user(insider)).json
    assert job in {one["id"] for one in listed["jobs"]}
    assert lab.get("/usage", headers=as_user(insider)).json["usage"] != []


def test_others_cannot_tell_whether_job_has_own_limits(lab: ApiLab) -> None:
    plain = {"command": ["true"], "gpu_count": 2}
    free = lab.post("/jobs", plain, headers=as_user("ada")).json["job_id"]
    limited = submit(lab, deadline="2099-01-01T00:00:00Z")
    forms = [lab.get(f"/jobs/{job}", headers=as_user("bob")).json for job in (limited, free)]
    hidden = [
        {name: value for name, value in form.items() if name not in PUBLIC_FIELDS} for form in forms
    ]
    for form in hidden:
        del form["expected_end"], form["allocation"]
    assert hidden[0] == hidden[1]
    for job in (limited, free):
        lab.call("DELETE", f"/jobs/{job}", headers=as_user("ada"))


def test_array_shows_expected_end_of_last_task_when_all_run(lab: ApiLab) -> None:
    job = submit(lab, array="0-1", gpu_count=1)
    for task in (0, 1):
        lab.start(f"{job}_{task}")
    form = lab.get(f"/jobs/{job}", headers=as_user("bob")).json
    task = lab.get(f"/jobs/{job}_1", headers=as_user("ada")).json
    assert form["expected_end"] is not None
    assert task["expected_end"] is not None
    assert form["expected_end"] >= task["expected_end"]
    lab.end(f"{job}_0")
    lab.end(f"{job}_1")


def test_array_with_waiting_tasks_has_no_expected_end(lab: ApiLab) -> None:
    job = submit(lab, array="0-1%1", gpu_count=1)
    lab.start(f"{job}_0")
    assert lab.get(f"/jobs/{job}", headers=as_user("bob")).json["expected_end"] is None
    lab.call("DELETE", f"/jobs/{job}", headers=as_user("ada"))
    lab.end(f"{job}_0")


def test_array_of_another_user_shows_task_count(lab: ApiLab) -> None:
    job = submit(lab, array="0-9", hold=True)
    form = lab.get(f"/jobs/{job}", headers=as_user("bob")).json
    assert form["array"] == {"tasks": "", "count": 10, "max_running": 0, "states": {}}
    assert lab.get(f"/jobs/{job}_3", headers=as_user("bob")).json["redacted"] is True
    lab.call("DELETE", f"/jobs/{job}", headers=as_user("ada"))


def test_job_without_tenant_goes_to_tenant_of_user(lab: ApiLab) -> None:
    job = submit(lab, hold=True)
    assert lab.get(f"/jobs/{job}", headers=as_user("ada")).json["tenant_id"] == "vision"
    lab.call("DELETE", f"/jobs/{job}", headers=as_user("ada"))


@pytest.mark.parametrize("tenant", ["audio", "default", "there-is-none"])
def test_foreign_tenant_is_rejected_whether_it_exists_or_not(lab: ApiLab, tenant: str) -> None:
    body = {"command": ["x"], "tenant_id": tenant}
    reply = lab.post("/jobs", body, headers=as_user("ada"))
    assert (reply.status, reply.code) == (403, "forbidden")
    assert reply.error.startswith(f"user 'ada' does not belong to tenant '{tenant}'")


def test_only_own_tenants_are_listed_and_only_admins_change_them(lab: ApiLab) -> None:
    listed = lab.get("/tenants", headers=as_user("ada")).json["tenants"]
    assert [tenant["id"] for tenant in listed] == ["vision"]
    assert lab.get("/tenants/audio", headers=as_user("ada")).status == 404
    for name in ("ada", "eve"):
        reply = lab.call("PATCH", "/tenants/vision", {"max_gpus": 9}, headers=as_user(name))
        assert reply.status == 403


def test_limits_of_other_tenants_and_users_are_hidden(lab: ApiLab) -> None:
    assert lab.get("/limits?tenant_id=audio", headers=as_user("ada")).status == 404
    assert lab.get("/limits?user=bob", headers=as_user("ada")).status == 403
    assert lab.get("/limits", headers=as_user("ada")).status == 200


def test_overview_shows_only_public_fields_of_others(lab: ApiLab) -> None:
    job = submit(lab, hold=True)
    for query in ("", "?sort=name", "?sort=-priority", "?user=ada"):
        assert not has_secret(lab.get(f"/overview{query}", headers=as_user("bob")).body)
    chosen = lab.get(f"/overview?filter={SECRET}", headers=as_user("bob")).json
    assert chosen["total"] == 0
    own = lab.get("/overview?user=@me", headers=as_user("ada")).json
    assert job in {line["id"] for line in own["jobs"]}
    lab.call("DELETE", f"/jobs/{job}", headers=as_user("ada"))


def test_viewer_reads_its_own_and_changes_nothing(lab: ApiLab) -> None:
    job = submit(lab, hold=True)
    assert lab.get(f"/jobs/{job}", headers=as_user("ada-looking")).json["name"] == SECRET
    for method, path, body in (
        ("DELETE", f"/jobs/{job}", None),
        ("POST", f"/jobs/{job}/release", None),
        ("POST", "/jobs", {"command": ["x"]}),
    ):
        reply = lab.call(method, path, body, headers=as_user("ada-looking"))
        assert (reply.status, reply.code) == (403, "forbidden")
    lab.call("DELETE", f"/jobs/{job}", headers=as_user("ada"))


def test_tenant_members_are_set_and_shown(lab: ApiLab) -> None:
    body = {"linux_groups": ["lab", "lab"], "users": ["mia"], "admins": ["tom"]}
    reply = lab.call("PATCH", "/tenants/audio", body, headers=as_user("boss"))
    assert (reply.json["linux_groups"], reply.json["users"]) == (["lab"], ["mia"])
    again = lab.get("/tenants/audio", headers=as_user("boss")).json
    assert again["admins"] == ["tom"]
    for bad in (["a:b"], ["a\nb"], [""], "lab"):
        refused = lab.call("PATCH", "/tenants/audio", {"users": bad}, headers=as_user("boss"))
        assert refused.status == 400


def test_scores_of_predictors_are_shown_for_own_tenants_only(lab: ApiLab) -> None:
    predictor = SelectedPredictor()
    for tenant in ("vision", "audio"):
        predictor.score(tenant, history_loss=1.0, model_loss=1.0)
    before = lab.loop.core.state.predictor
    lab.loop.core.state.predictor = predictor
    found = {}
    for name in ("ada", "bob", "boss"):
        told = lab.get("/report/predictors", headers=as_user(name)).json["scores"]
        found[name] = [one["tenant_id"] for one in told]
    lab.loop.core.state.predictor = before
    assert found == {
        "ada": [None, "vision"],
        "bob": [None],
        "boss": [None, "audio", "vision"],
    }
