"""Submission: one job, many, the short form, and errors."""

import gc
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_scheduler.api.interfaces import Bounds
from gpu_scheduler.control.state import CoreLimits
from tests.unit.api.lab import ApiLab


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    with ApiLab() as lab:
        yield lab


def count(lab: ApiLab) -> int:
    return int(lab.get("/jobs?limit=0").json["total"])


def test_submission_is_answered_as_documented(lab: ApiLab) -> None:
    reply = lab.post("/jobs", {"command": ["python", "train.py"], "gpu_count": 1})
    assert reply.status == 201
    job_id = reply.json["job_id"]
    assert reply.json == {
        "job_id": job_id,
        "status": "submitted",
        "message": "Job submitted successfully",
        "tasks": 1,
    }
    assert lab.get(f"/jobs/{job_id}").json["command"] == ["python", "train.py"]


def test_identical_jobs_keep_own_names_and_tenant(lab: ApiLab) -> None:
    made = lab.post("/tenants", {"name": "passing"}).json["id"]

    def submitted(name: str) -> dict[str, Any]:
        body = {"name": name, "command": ["run", name], "tenant_id": "passing", "hold": True}
        return {"status": (reply := lab.post("/jobs", body)).status, **reply.json}

    first, second = submitted("one"), submitted("two")
    for found, name in ((first, "one"), (second, "two")):
        job = lab.get(f"/jobs/{found['job_id']}").json
        assert (job["name"], job["command"], job["tenant_id"]) == (name, ["run", name], made)
        lab.call("DELETE", f"/jobs/{found['job_id']}")
    assert lab.call("DELETE", f"/tenants/{made}").status == 200
    assert submitted("three")["status"] == 404


def test_string_command_is_rejected_with_correct_form(lab: ApiLab) -> None:
    reply = lab.post("/jobs", {"command": "python train.py"})
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert reply.error == (
        "Invalid request body: command must be a list of strings, not one string; "
        'write for example ["python", "train.py"]'
    )


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "Invalid request body: it is not JSON"),
        (b"", "Invalid request body: it is not JSON"),
        (b'"text"', "Invalid request body: expected an object"),
        (b'{"command": ["\xff"]}', "Invalid request body: it is not UTF-8"),
        (
            b'{"command":["\\ud800"]}',
            "a string in it is not valid text: it has half of a character",
        ),
        (b'{"command":["\\ud800 and more"]}', "a string in it is not valid text"),
        (b'{"command":["\\udc00"]}', "a string in it is not valid text"),
        (b'{"command":["\\ud83d\\ude00"', "Invalid request body: it is not JSON"),
        (b'{"command": ["a"], "gpus": 1}', "unknown field `gpus`"),
        (b'{"command": ["a"], "prority": 1}', "unknown field `prority`; did you mean 'priority'?"),
        (b'{"command": ["a"], "gpu_count": "8"}', "gpu_count: expected a number"),
        (b'{"command": ["a"], "gpu_count": -1}', "gpu_count: expected a number >= 0"),
        (b'{"command": [1]}', "command[0]: expected a string"),
        (
            b'{"command": ["a"], "runner": "foo"}',
            "runner: 'foo' is not one of container, process, screen, terminal, tmux",
        ),
        (
            b'[{"command": ["a"]}, {"command": ["a"], "terminal": {"on_disconnect": "x"}}]',
            "terminal.on_disconnect: 'x' is not one of end, keep",
        ),
        (b'{"command": ["a"], "umask": "x"}', "umask: expected a whole number or null, got a str"),
        (b"{}", "there is nothing to run"),
        (b"[" * 100_000, "Invalid request body"),
        (b'{"members":' * 50_000, "Invalid request body"),
    ],
)
def test_unparsable_body_error_names_position(lab: ApiLab, body: bytes, told: str) -> None:
    gc.collect()  # A finalizer of an earlier test must not run at the depth reached here.
    reply = lab.post("/jobs", body)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert told in reply.error
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path", "body", "key"),
    [
        ("POST", "/jobs", b'{"command":["a"],"priority":1,"priority":2}', "priority"),
        ("POST", "/jobs", b'{"command":["a"],"priority" : 1, "priority"\t:2}', "priority"),
        ("POST", "/jobs", b'{"command":["a:b"],"environment":{"A":":","A":"x"}}', "A"),
        ("POST", "/jobs", b'{"command":["a"],"name":"x","n\\u0061me":"y"}', "name"),
        ("POST", "/jobs", b'{"command":["\\u003a"],"hold":true,"hold":false}', "hold"),
        ("POST", "/jobs", b'{"command":["\\u003A"],"hold":true,"hold":false}', "hold"),
        ("POST", "/jobs/validate", b'{"command":["a"],"hold":true,"hold":false}', "hold"),
        ("POST", "/tasks", b'{"command":"a","gpu_count":0,"gpu_count":1}', "gpu_count"),
        ("POST", "/tenants", b'{"name":"twice","max_gpus":1,"max_gpus":8}', "max_gpus"),
        (
            "POST",
            "/services",
            b'{"name":"s","replicas":1,"replicas":2,"command":["a"]}',
            "replicas",
        ),
        ("PUT", "/quota", b'{"online_percent":1,"online_percent":2}', "online_percent"),
    ],
)
def test_duplicate_json_key_is_rejected_and_named(
    lab: ApiLab, method: str, path: str, body: bytes, key: str
) -> None:
    before = count(lab)
    reply = lab.call(method, path, body)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert reply.error == f"Invalid request body: '{key}' is given twice; give it once"
    assert count(lab) == before


def test_duplicate_key_in_one_job_rejects_whole_batch(lab: ApiLab) -> None:
    jobs = [b'{"command":["a:b"]}', b'{"command":["c"],"environment":{"A":"1"}}']
    twice = b'{"command":["\\u003A"],"memory_mb":1,"memory_mb":2}'
    lines = {"Content-Type": "application/x-ndjson"}
    before = count(lab)
    for reply in (
        lab.post("/jobs", b"[" + b", ".join([*jobs, twice]) + b"]"),
        lab.post("/jobs/bulk", b"\n".join([*jobs, twice]), headers=lines),
    ):
        assert (reply.status, reply.json["details"]) == (400, {"index": 2})
        assert "'memory_mb' is given twice" in reply.error
    assert count(lab) == before


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (b'{"command":["\xff"]}', "it is not UTF-8"),
        (b'{"command":["a"],"gpu_count":1e999}', "gpu_count: number out of range"),
        (b'{"command":["a"],"gpus":1e999}', "unknown field `gpus`"),
        (b'{"command":["a"],"hold":true,"hold":false}, 3', "'hold' is given twice"),
    ],
)
def test_invalid_job_is_named_by_its_index(lab: ApiLab, job: bytes, told: str) -> None:
    reply = lab.post("/jobs", b'[{"command":["a"]}, ' + job + b"]")
    assert (reply.status, reply.json["details"]) == (400, {"index": 1})
    assert told in reply.error


def test_same_key_in_two_objects_and_colons_in_text_are_accepted(lab: ApiLab) -> None:
    job = {"command": ["a", '":":'], "name": "name: a", "environment": {"name": "b:", "A": "A:"}}
    assert lab.post("/jobs", job).status == 201
    assert lab.post("/jobs", [job, job]).status == 201


def test_only_json_is_accepted(lab: ApiLab) -> None:
    for media in ("text/plain", "application/x-www-form-urlencoded", ""):
        reply = lab.post("/jobs", b'{"command":["a"]}', headers={"Content-Type": media})
        assert (reply.status, reply.code) == (415, "unsupported_media_type")
    good = {"Content-Type": "application/json; charset=utf-8"}
    assert lab.post("/jobs", b'{"command":["a"]}', headers=good).status == 201


def test_request_over_whole_quota_is_rejected_as_documented(lab: ApiLab) -> None:
    tenant = {"id": "tenant-123", "name": "Small", "max_gpus": 4}
    assert lab.post("/tenants", tenant).status == 201
    running = lab.submit(tenant_id="tenant-123", gpu_count=2)
    lab.wait_for(running, "scheduled")
    reply = lab.post("/jobs", {"command": ["a"], "tenant_id": "tenant-123", "gpu_count": 8})
    assert (reply.status, reply.code) == (403, "quota_exceeded")
    assert reply.error == (
        "quota exceeded for tenant tenant-123: GPUs requested=8, quota=4, current=2"
    )
    assert reply.json["details"] == {
        "tenant": "tenant-123",
        "resource": "GPUs",
        "requested": 8,
        "limit": 4,
        "held": 2,
    }
    waiting = lab.submit(tenant_id="Small", gpu_count=3)
    told = lab.get(f"/jobs/{waiting}/explain").json
    assert told["reason"] == (
        "quota exceeded for tenant tenant-123: GPUs requested=3, quota=4, current=2"
    )
    assert (told["state"], told["code"]) == ("pending", "quota")
    lab.call("DELETE", f"/jobs/{running}")
    lab.call("DELETE", f"/jobs/{waiting}")


def test_request_that_no_node_can_run_is_rejected(lab: ApiLab) -> None:
    reply = lab.post("/jobs", {"command": ["a"], "gpu_count": 1, "gpu_model": "H100"})
    assert (reply.status, reply.code) == (422, "never_fits")
    assert "no node offers 1 GPU (H100)" in reply.error


def test_submission_to_unknown_tenant_is_rejected(lab: ApiLab) -> None:
    reply = lab.post("/jobs", {"command": ["a"], "tenant_id": "nobody"})
    assert (reply.status, reply.code) == (404, "not_found")


# --- bulk submission


def test_bulk_submission_is_json_array_or_lines(lab: ApiLab) -> None:
    jobs = [{"command": ["a"], "name": f"n{number}"} for number in range(3)]
    lines = b"\n".join(json.dumps(job).encode() for job in jobs) + b"\n\n"
    media = {"Content-Type": "application/x-ndjson"}
    for reply in (
        lab.post("/jobs", jobs),
        lab.post("/jobs/bulk", jobs),
        lab.post("/jobs/bulk", lines, headers=media),
    ):
        assert reply.status == 201
        assert (reply.json["count"], reply.json["status"]) == (3, "submitted")
        names = [lab.get(f"/jobs/{job_id}").json["name"] for job_id in reply.json["job_ids"]]
        assert names == ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    "bad",
    [
        {"comand": ["a"]},
        {"command": "a"},
        {"command": []},
        {"command": ["a"], "gpu_count": 1, "gpu_model": "none"},
        {"command": ["a"], "tenant_id": "nobody"},
        {"command": ["a"], "dependencies": ["99999"]},
    ],
)
def test_one_invalid_job_rejects_all_and_is_named(lab: ApiLab, bad: dict[str, Any]) -> None:
    before = count(lab)
    reply = lab.post("/jobs/bulk", [{"command": ["a"]}, {"command": ["b"]}, bad])
    assert 400 <= reply.status < 500
    assert reply.json["details"]["index"] == 2
    assert count(lab) == before


def test_empty_list_is_rejected(lab: ApiLab) -> None:
    assert lab.post("/jobs", []).status == 400
    assert lab.post("/jobs/bulk", b" ").status == 400


def test_shared_environment_is_stored_once_and_never_shown(lab: ApiLab) -> None:
    job = {"command": ["a"], "captured_environment": {"HOME": "/h", "SHARED": "hidden-value"}}
    ids = lab.post("/jobs/bulk", [job, {**job, "name": "x"}, job]).json["job_ids"]
    names = {lab.store.launch(job_id).captured for job_id in ids}  # type: ignore[union-attr]
    assert len(names) == 1
    assert lab.store.environment(names.pop()) == job["captured_environment"]
    for job_id in ids:
        assert b"hidden-value" not in lab.get(f"/jobs/{job_id}").body


# --- idempotency


def test_repeated_submission_is_harmless(lab: ApiLab) -> None:
    key = {"Idempotency-Key": "once-1"}
    first = lab.post("/jobs", {"command": ["a"]}, headers=key)
    before = count(lab)
    again = lab.post("/jobs", {"command": ["a"]}, headers=key)
    assert (again.status, again.body) == (201, first.body)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert count(lab) == before


def test_key_belongs_to_one_request(lab: ApiLab) -> None:
    key = {"Idempotency-Key": "once-2"}
    assert lab.post("/jobs", {"command": ["a"]}, headers=key).status == 201
    reply = lab.post("/jobs", {"command": ["b"]}, headers=key)
    assert (reply.status, reply.code) == (422, "key_reused")


def test_rejected_submission_leaves_key_unused(lab: ApiLab) -> None:
    key = {"Idempotency-Key": "once-3"}
    assert lab.post("/jobs", {"command": []}, headers=key).status == 400
    assert lab.post("/jobs", {"command": ["a"]}, headers=key).status == 201


@pytest.mark.parametrize("key", [" ", "x" * 256, "\u00e9"])
def test_key_must_be_short_and_printable(lab: ApiLab, key: str) -> None:
    reply = lab.post("/jobs", {"command": ["a"]}, headers={"Idempotency-Key": key})
    assert reply.status == 400


@pytest.mark.parametrize("path", ["/jobs", "/jobs/bulk"])
def test_concurrent_identical_requests_submit_once(lab: ApiLab, path: str) -> None:
    before = count(lab)
    key = {"Idempotency-Key": f"race{path}"}
    body = [{"command": ["a"]}] if path == "/jobs/bulk" else {"command": ["a"]}
    answers: list[bytes] = []

    def send() -> None:
        answers.append(lab.post(path, body, headers=key).body)

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 1
    assert count(lab) == before + 1


# --- the short form


def test_task_is_a_command_line(lab: ApiLab) -> None:
    task = {"priority": "high", "gpu_count": 2, "command": "python train.py"}
    reply = lab.post("/tasks", task)
    assert reply.status == 201
    task_id = reply.json["task_id"]
    assert reply.json == {"task_id": task_id, "status": "pending"}
    lab.start(task_id)
    shown = lab.get(f"/tasks/{task_id}").json
    assert (shown["status"], shown["command"]) == ("running", "python train.py")
    lab.end(task_id)
    assert lab.get(f"/tasks/{task_id}").json["status"] == "success"
    assert task_id in {task["task_id"] for task in lab.get("/tasks?status=success").json["tasks"]}


def test_cancelled_task_keeps_its_submitted_name(lab: ApiLab) -> None:
    task_id = lab.post("/tasks", {"command": "x"}).json["task_id"]
    told = lab.call("DELETE", f"/tasks/{task_id}").json
    assert (told["task_id"], told["job_id"]) == (task_id, task_id)


def test_failed_task_shows_status_and_exit_code(lab: ApiLab) -> None:
    task_id = lab.post("/tasks", {"command": "x", "priority": "low"}).json["task_id"]
    lab.start(task_id)
    lab.end(task_id, 3)
    shown = lab.get(f"/tasks/{task_id}").json
    assert (shown["status"], shown["exit_code"]) == ("failed", 3)
    assert lab.get("/tasks?status=nope").status == 400


# --- limits


def test_oversized_request_is_rejected() -> None:
    bounds = Bounds(body_bytes=2_000, bulk_bytes=20_000, bulk_jobs=10)
    with ApiLab(bounds=bounds) as lab:
        for path, body in (
            ("/jobs", {"command": ["x" * 3_000]}),
            ("/jobs", {"command": ["x" * 30_000]}),
            ("/jobs/bulk", [{"command": ["x"]}] * 11),
            ("/jobs/bulk", [{"command": ["x" * 10_000]}] * 3),
            ("/tenants", {"name": "x" * 3_000}),
        ):
            reply = lab.post(path, body)
            assert (reply.status, reply.code) == (413, "too_large"), path
        assert lab.post("/jobs", {"command": ["x"]}).status == 201


def test_full_queue_gives_retry_after() -> None:
    with ApiLab(nodes=0, limits=CoreLimits(max_queued_tasks=2)) as lab:
        lab.submit()
        reply = lab.post("/jobs", {"command": ["a"], "array": "0-1"})
        assert (reply.status, reply.code) == (503, "queue_full")
        assert int(reply.headers["Retry-After"]) > 0


def test_job_waits_with_reason_without_nodes() -> None:
    with ApiLab(nodes=0) as lab:
        job_id = lab.submit(gpu_count=1)
        told = lab.get(f"/jobs/{job_id}/explain").json
        assert (told["state"], told["code"]) == ("pending", "no_nodes")
