"""Health reports problems with remedies, worst first."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpu_scheduler.control.messages import DeviceSample, DevicesSampled, NodeSilent
from gpu_scheduler.control.self_monitoring import HealthFinding
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.engine.quota.usage import QuotaUsage
from gpu_scheduler.model.measurements import DeviceProcess, NodeFiles, NodeReadings
from gpu_scheduler.notify.retry_queue import Lane
from gpu_scheduler.store.rows import NoticeRow
from tests.unit.api.lab import ApiLab


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab() as made:
        yield made


def reasons(lab: ApiLab, check: str) -> list[dict[str, Any]]:
    health = lab.get("/health").json
    found = [reason for reason in health["reasons"] if reason["check"] == check]
    assert all(reason["remedy"] and reason["detail"] for reason in found)
    if found:
        assert health["status"] != "healthy"
        assert health["checks"][check] != "ok"
    return found


def test_healthy_lab_reports_every_component_ok(lab: ApiLab) -> None:
    health = lab.get("/health").json
    assert (health["status"], health["reasons"]) == ("healthy", [])
    assert set(health["checks"].values()) == {"ok"}


def test_disconnected_agent_is_reported(lab: ApiLab) -> None:
    lab.tell(NodeSilent("n0"))
    (reason,) = reasons(lab, "nodes")
    assert (reason["status"], reason["detail"]) == ("degraded", "no node is online")
    assert "agent.log" in reason["remedy"]


def test_scratch_directories_that_are_left_are_in_health_and_metrics(lab: ApiLab) -> None:
    lab.loop.loop_metrics.files["n0"] = NodeFiles(log_bytes=12, leftovers=3)
    lab.loop.loop_metrics.files["removed"] = NodeFiles(log_bytes=1, leftovers=0)
    (reason,) = reasons(lab, "nodes")
    assert reason["detail"] == "3 scratch directories could not be removed on node n0"
    assert "launcher.log" in reason["remedy"]
    metrics = lab.get("/metrics", root=True).body.decode()
    assert 'gpu_scheduler_node_leftover_directories{node="n0"} 3.0' in metrics
    assert 'gpu_scheduler_node_log_bytes{node="n0"} 12.0' in metrics
    assert 'node="removed"' not in metrics


def test_cluster_without_nodes_explains_how_to_join() -> None:
    with ApiLab(nodes=0) as lab:
        (reason,) = reasons(lab, "nodes")
    assert reason["detail"] == "no node is online"
    assert "tgpu node token create" in reason["remedy"]


def test_suspended_driver_polling_is_reported(lab: ApiLab) -> None:
    problem = "GPUs cannot be read: timed out; next try in 20 s"
    lab.loop.telemetry["n0"] = NodeReadings(at_ms=0, problem=problem)
    (reason,) = reasons(lab, "gpus")
    assert problem in reason["detail"]
    assert "nvidia-smi" in reason["remedy"]


def test_unhealthy_and_leaking_gpus_are_reported_with_remedies(lab: ApiLab) -> None:
    left = DeviceProcess(pid=4321, user="ann", memory_mb=9000, allocation_id="job-99.1")
    other = DeviceProcess(pid=1, user="bob", memory_mb=9000)
    lab.tell(
        DevicesSampled(
            "n0",
            (
                DeviceSample(index=1, healthy=False),
                DeviceSample(index=2, memory_used_mb=9000, processes=(left,)),
                DeviceSample(index=3, memory_used_mb=9000, processes=(other,)),
                DeviceSample(index=4, memory_used_mb=9000, unexplained_mb=9000),
            ),
        )
    )
    sick, leaking, full = reasons(lab, "gpus")
    assert "GPU 1 of n0" in sick["detail"]
    assert "XID" in sick["remedy"]
    assert "end process 4321" in leaking["remedy"]
    assert "--gpu-reset -i 4" in full["remedy"]
    lab.tell(DevicesSampled("n0", tuple(DeviceSample(index=i, healthy=False) for i in range(6))))
    assert "3 further GPUs" in reasons(lab, "gpus")[-1]["detail"]


def test_unwritable_or_unreadable_store_is_reported(lab: ApiLab, monkeypatch: Any) -> None:
    from gpu_scheduler.model.errors import StoreUnavailable

    lab.loop.store.full_reason = lambda: "the disk is full"  # type: ignore[method-assign]
    (reason,) = reasons(lab, "store")
    assert (reason["status"], "the disk is full" in reason["detail"]) == ("degraded", True)

    def unreadable() -> int:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(lab.store, "last_event", unreadable)
    reply = lab.get("/health")
    assert reply.status == 503
    assert reply.json["status"] == "unhealthy"


def test_full_queue_is_reported(lab: ApiLab) -> None:
    state = lab.loop.core.state
    state.queued_tasks = state.limits.max_queued_tasks
    assert "is full" in reasons(lab, "queue")[0]["detail"]
    state.queued_tasks = round(0.95 * state.limits.max_queued_tasks)
    assert "nearly full" in reasons(lab, "queue")[0]["detail"]
    state.queued_tasks = 0
    assert reasons(lab, "queue") == []


class Waiting:
    """Notifications of which one has waited for an hour."""

    def __init__(self) -> None:
        at_ms = round(time.time() * 1000) - 3_600_000
        row = NoticeRow(id="a", target="slack", at_ms=at_ms, document="{}")
        self.lanes = {"slack": Lane(waiting={"a": row}), "mail": Lane()}


def test_notification_backlog_is_reported() -> None:
    with ApiLab(notifications=Waiting()) as lab:
        (reason,) = reasons(lab, "notifications")
    assert "1 notifications wait for slack, for up to 60 minutes" in reason["detail"]
    assert "tgpu notify test slack" in reason["remedy"]


def test_self_monitoring_findings_are_reported_worst_first() -> None:
    found = [
        HealthFinding("disk", "degraded", "little room", "make some"),
        HealthFinding("clock", "unhealthy", "mad", "mend it"),
    ]
    with ApiLab(vitals=lambda: found) as lab:
        reply = lab.get("/health")
    assert reply.status == 503
    assert [reason["check"] for reason in reply.json["reasons"]] == ["clock", "disk"]


@pytest.fixture
def tolerant_lab() -> Iterator[ApiLab]:
    with ApiLab(limits=CoreLimits(sets_failing_jobs_aside=True)) as made:
        yield made


def test_job_that_was_set_aside_is_shown_in_health_list_and_explain(
    tolerant_lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    lab = tolerant_lab
    job = lab.submit(hold=True)
    other = lab.submit(hold=True)
    with monkeypatch.context() as patch, capture_logs():
        patch.setattr(QuotaUsage, "refusal", fails)
        assert lab.post(f"/jobs/{job}/release").status == 200
        (reason,) = reasons(lab, "queue")
        assert (reason["status"], f"job {job.removeprefix('job-')}" in reason["detail"]) == (
            "degraded",
            True,
        )
        assert "ZeroDivisionError in test_health.py" in reason["detail"]
        assert "tgpu release" in reason["remedy"]
        for path in (f"/jobs/{job}", f"/jobs/{job}/explain"):
            assert "internal error of the scheduler" in str(lab.get(path).json)
        assert "internal error of the scheduler" in str(lab.get("/jobs").json)
    lab.post(f"/jobs/{other}/release")
    lab.wait_for(other, "scheduled")
    lab.post(f"/jobs/{job}/release")
    lab.wait_for(job, "scheduled")
    assert reasons(lab, "queue") == []


def test_failing_cycle_is_reported(lab: ApiLab) -> None:
    lab.loop.cycle_trouble = "KeyError in queue.py:12"
    (reason,) = reasons(lab, "queue")
    assert "no job is started" in reason["detail"]
    assert "KeyError in queue.py:12" in reason["detail"]
