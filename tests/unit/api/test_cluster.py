"""Cluster resources: tenants, devices, nodes, usage, quota, health, metrics, OpenAPI document."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.cli.jobs.columns import place_text
from gpu_scheduler.control.gpu_metering import Action, GpuRules
from gpu_scheduler.control.messages import Cordon, DeviceSample, DevicesSampled, NodeSilent, Started
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.model.measurements import DeviceProcess, DeviceReading, NodeReadings
from tests.quota_lab import a_quota, gpus
from tests.unit.api.lab import ApiLab


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab() as lab:
        yield lab


# --- tenants


def test_tenant_is_created_with_generated_id(lab: ApiLab) -> None:
    reply = lab.post("/tenants", {"name": "ML Research Team", "max_gpus": 16})
    assert reply.status == 201
    assert (reply.json["id"], reply.json["max_gpus"]) == ("tenant-1", 16)
    assert reply.json["max_cpu_cores"] is None
    assert lab.post("/tenants", {"name": "Another one"}).json["id"] == "tenant-2"
    names = [tenant["id"] for tenant in lab.get("/tenants").json["tenants"]]
    assert names == ["default", "tenant-1", "tenant-2"]
    assert lab.get("/tenants/Another%20one").json["id"] == "tenant-2"
    assert lab.get("/tenants/nobody").status == 404


def test_tenant_name_that_is_valid_id_becomes_id(lab: ApiLab) -> None:
    assert lab.post("/tenants", {"name": "vision"}).json["id"] == "vision"
    assert lab.post("/tenants", {"name": "v" * 65}).json["id"] == "tenant-1"
    assert lab.post("/tenants", {"name": "../x"}).json.get("id") != "../x"


def test_tenant_ids_and_names_are_unique(lab: ApiLab) -> None:
    assert lab.post("/tenants", {"name": "A", "id": "vision"}).status == 201
    for clash in ({"name": "B", "id": "vision"}, {"name": "A"}, {"name": "vision"}):
        reply = lab.post("/tenants", clash)
        assert (reply.status, reply.code) == (409, "already_exists")
    assert lab.post("/tenants", {"name": "default"}).status == 409
    assert lab.post("/tenants", {"name": "x", "id": "a b"}).status == 400


def test_tenant_shows_holdings_and_can_be_updated(lab: ApiLab) -> None:
    lab.post("/tenants", {"name": "A", "max_gpus": 4})
    job_id = lab.submit(tenant_id="A", gpu_count=2, cpu_cores=4, memory_mb=1000)
    lab.start(job_id)
    tenant = lab.get("/tenants/A").json
    assert (tenant["current_gpus"], tenant["current_jobs"]) == (2, 1)
    assert (tenant["current_cpu_cores"], tenant["current_memory_mb"]) == (4, 1000)
    assert lab.call("PATCH", "/tenants/A", {"max_gpus": None}).json["max_gpus"] is None
    assert lab.call("PUT", "/tenants/A", {"priority_tier": "high"}).json["priority_tier"] == "high"
    refused = lab.call("DELETE", "/tenants/A")
    assert (refused.status, refused.code) == (409, "wrong_state")
    assert "tenant 'A' has 1 job that has not ended; cancel what is left" in str(refused.json)
    lab.end(job_id)
    assert lab.call("DELETE", "/tenants/A").json["status"] == "deleted"
    assert lab.get("/tenants/A").status == 404
    assert lab.call("DELETE", "/tenants/default").status == 409


def test_id_of_tenant_with_usage_is_not_reused(lab: ApiLab) -> None:
    lab.post("/tenants", {"name": "A"})
    job_id = lab.submit(tenant_id="A", gpu_count=1)
    lab.start(job_id)
    lab.end(job_id)
    lab.call("DELETE", "/tenants/A")
    assert lab.post("/tenants", {"name": "A"}).json["id"] == "tenant-1"


# --- devices, nodes, numbers


def test_cluster_status_counts_nodes_gpus_and_jobs(lab: ApiLab) -> None:
    lab.start(lab.submit(gpu_count=2))
    lab.start(lab.submit(gpu_count=0.5))
    lab.submit(hold=True)
    status = lab.get("/cluster/status").json
    assert {name: status[name] for name in list(status)[:7]} == {
        "total_nodes": 1,
        "online_nodes": 1,
        "total_gpus": 8,
        "available_gpus": 5,
        "total_jobs": 3,
        "running_jobs": 2,
        "pending_jobs": 1,
    }
    assert status["allocated_gpus"] == 2.5
    lab.tell(NodeSilent("n0"))
    status = lab.get("/cluster/status").json
    assert (status["total_nodes"], status["online_nodes"], status["available_gpus"]) == (1, 0, 0)


def test_gpu_shows_allocation_and_readings(lab: ApiLab) -> None:
    job_id = lab.submit(gpu_count=1)
    lab.start(job_id)
    ours = DeviceProcess(pid=1, user="x", command="python", memory_mb=5, allocation_id="job-1.1")
    lab.loop.telemetry["n0"] = NodeReadings(
        at_ms=1,
        readings=(
            DeviceReading(
                index=0,
                utilisation_percent=40,
                memory_used_mb=1024,
                temperature_c=60,
                power_mw=250_500,
                processes=(ours,),
            ),
        ),
    )
    first, second = lab.get("/gpus").json["gpus"][:2]
    assert (first["state"], first["jobs"], first["allocated_share"]) == ("used", [job_id], 1)
    assert (first["utilisation_percent"], first["power_watts"]) == (40, 250.5)
    assert first["processes"][0]["job_id"] == job_id
    assert (second["state"], second["utilisation_percent"]) == ("free", None)


def test_missing_gpu_reading_is_null_not_zero(lab: ApiLab) -> None:
    read = (DeviceReading(index=0), DeviceReading(index=1, load_percent=0))
    lab.loop.loop_metrics.note_readings("n0", NodeReadings(at_ms=1, readings=read))
    first, second = lab.get("/gpus").json["gpus"][:2]
    assert first["utilisation_mean_percent"] is None
    assert second["utilisation_mean_percent"] == 0


def test_gpu_and_waiting_job_name_foreign_process(lab: ApiLab) -> None:
    eve = DeviceProcess(pid=7, user="eve", command="python3", memory_mb=900)
    left = DeviceProcess(pid=8, user="ada", memory_mb=50, allocation_id="job-9.1")
    reads = (DeviceSample(index=0, processes=(eve,)), DeviceSample(index=1, processes=(left,)))
    lab.tell(DevicesSampled("n0", reads))
    first, second, third = lab.get("/gpus").json["gpus"][:3]
    assert (first["state"], first["why"]) == ("foreign", "process 7 (python3) of eve holds 900 MiB")
    assert second["state"] == "leaking"
    assert second["why"] == "job 9 is over, and process 8 of ada still holds 50 MiB"
    assert (third["state"], third["why"]) == ("free", "")
    waits = lab.submit(gpu_count=8)
    told = lab.get(f"/jobs/{waits}/explain").json["details"]["gpus"]
    assert told == {"n0:0": first["why"], "n0:1": second["why"]}


def test_running_job_shows_warning_and_measures() -> None:
    rules = GpuRules(memory=Action.WARN)
    with ApiLab(limits=CoreLimits(gpu_rules=rules)) as lab:
        job_id = lab.submit(gpu_count=0.5)
        lab.start(job_id)
        greedy = DeviceProcess(pid=7, memory_mb=80_000, allocation_id=f"{job_id}.1")
        lab.tell(DevicesSampled("n0", (DeviceSample(index=0, processes=(greedy,)),)))
        reason = lab.get(f"/jobs/{job_id}/explain").json["reason"]
        assert "; warned: it uses 80000 MiB of the memory of GPU 0" in reason
        measured = lab.get(f"/jobs/{job_id}").json["measured"]
        assert measured["peak_memory_mb"] == 80_000
        assert measured["energy_wh"] is None
        assert measured["warning"].startswith("it uses 80000 MiB")
        listed = lab.get("/jobs").json["jobs"][0]
        assert listed["reason"].startswith("warned: it uses 80000 MiB")
        assert place_text(listed).startswith("n0[0] (warned: it uses 80000 MiB")
        lab.tell(DevicesSampled("n0", (DeviceSample(index=0),)))
        assert lab.get("/jobs").json["jobs"][0]["reason"] == ""


def test_idle_array_task_shows_warning() -> None:
    rules = GpuRules(idle=Action.WARN, idle_ms=0)
    with ApiLab(limits=CoreLimits(gpu_rules=rules)) as lab:
        job_id = lab.submit(gpu_count=1, array="0-1")
        lab.tell(Started(f"{job_id}_0.1"))
        lab.tell(DevicesSampled("n0", (DeviceSample(index=0, utilisation_percent=0),)))
        told = lab.get(f"/jobs/{job_id}_0").json
        assert told["reason"].startswith("warned: its GPUs have been under 5 %")
        assert lab.get(f"/jobs/{job_id}_1").json["reason"] == ""


def test_gpu_is_paused_and_resumed(lab: ApiLab) -> None:
    assert lab.post("/gpus/3/pause").json["paused"] is True
    assert lab.get("/gpus").json["gpus"][3]["state"] == "paused"
    assert lab.get("/cluster/status").json["available_gpus"] == 7
    assert lab.post("/gpus/n0/3/resume").json["paused"] is False
    assert lab.get("/gpus").json["gpus"][3]["state"] == "free"
    for path in ("/gpus/9/pause", "/gpus/x/pause", "/gpus/n7/0/pause"):
        assert lab.post(path).status == 404


def test_gpu_needs_node_name_with_several_nodes() -> None:
    with ApiLab(nodes=2) as lab:
        refused = lab.post("/gpus/0/pause")
        assert refused.status == 400
        assert (
            "there are 2 nodes, so a number alone is ambiguous; write NODE:INDEX" in refused.error
        )
        assert lab.post("/gpus/n1/0/pause").status == 200
        nodes = lab.get("/nodes").json["nodes"]
        assert [(node["id"], node["free_gpus"]) for node in nodes] == [("n0", 8), ("n1", 7)]


def test_usage_is_listed_by_account(lab: ApiLab) -> None:
    job_id = lab.submit(gpu_count=1)
    lab.start(job_id)
    lab.end(job_id)
    rows = lab.get("/usage").json["usage"]
    assert {(row["tenant_id"], row["period"], row["completed"]) for row in rows} == {
        ("default", "all", 1)
    }
    assert lab.get("/usage?period=current").json["usage"]
    assert lab.get("/usage?user=nobody-else").json["usage"] == []
    assert lab.get("/usage?tenant_id=nobody").status == 404


def test_online_quota_can_be_changed(lab: ApiLab) -> None:
    whole = {"online_percent": 100, "batch_percent": 100, "elastic": True}
    assert lab.get("/quota").json == whole
    changed = {"online_percent": 30, "batch_percent": 70, "elastic": False}
    assert lab.call("PUT", "/quota", {"online_percent": 30, "elastic": False}).json == changed
    assert lab.get("/quota").json == changed
    for bad in (
        {"online_percent": 101},
        {"online_percent": 60, "batch_percent": 60},
        {"batch_percent": 1},
    ):
        assert lab.call("PUT", "/quota", bad).status == 400
    assert lab.get("/cluster/status").json["pools"][0]["percent"] == 30
    assert lab.call("PUT", "/quota", whole).json == whole
    assert [pool["percent"] for pool in lab.get("/cluster/status").json["pools"]] == [None, None]


def test_pools_show_guarantee_while_node_is_closed(lab: ApiLab) -> None:
    lab.call("PUT", "/quota", {"online_percent": 25, "batch_percent": 75})
    assert [pool["sure_of_gpus"] for pool in lab.get("/cluster/status").json["pools"]] == [2, 6]
    lab.start(lab.submit(gpu_count=4))
    lab.tell(Cordon("n0"))
    batch = lab.get("/cluster/status").json["pools"][1]
    assert (batch["sure_of_gpus"], batch["borrowed_gpus"]) == (2, 2)


# --- health and metrics


def test_health_reports_problems(lab: ApiLab) -> None:
    health = lab.get("/health").json
    assert (health["status"], health["version"]) == ("healthy", "1.2.3")
    assert lab.get("/health", root=True).json["status"] == "healthy"
    lab.loop.telemetry["n0"] = NodeReadings(at_ms=1, problem="the driver does not answer")
    degraded = lab.get("/health").json
    assert (degraded["status"], degraded["checks"]["gpus"]) == (
        "degraded",
        "the driver does not answer",
    )
    lab.tell(NodeSilent("n0"))
    assert lab.get("/health").json["checks"]["nodes"] == "no node is online"


def test_metrics_have_documented_names_and_bounded_labels(lab: ApiLab) -> None:
    job_id = lab.submit(gpu_count=1, name="a-name", tenant_id="default")
    lab.start(job_id)
    lab.end(job_id)
    lab.loop.telemetry["n0"] = NodeReadings(
        at_ms=1, readings=(DeviceReading(index=0, utilisation_percent=50),)
    )
    reply = lab.get("/metrics", root=True)
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    for line in (
        'gpu_scheduler_jobs_total{state="completed"} 1.0',
        "gpu_scheduler_queue_size 0.0",
        'gpu_scheduler_gpu_utilization{gpu="0",node="n0"} 0.5',
        "gpu_scheduler_preemptions_total 0.0",
        "gpu_scheduler_submissions_total 1.0",
        'gpu_scheduler_agent_connected{node="n0"} 1.0',
        'gpu_scheduler_http_requests_total{method="POST",path="/api/v1/jobs",status="201"} 1.0',
    ):
        assert line in text
    assert "gpu_scheduler_scheduling_latency_bucket" in text
    assert job_id not in text
    assert "a-name" not in text
    assert lab.get("/jobs/1").status == 200
    assert "/api/v1/jobs/{job_id}" in lab.get("/metrics", root=True).body.decode()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_metrics(lab: ApiLab) -> None:
    lab.start(lab.submit(gpu_count=1))
    text = lab.get("/metrics", root=True).body
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_metrics_port_serves_only_metrics(lab: ApiLab) -> None:
    from http.client import HTTPConnection

    answers = {}
    for path in ("/metrics", "/health", "/api/v1/jobs"):
        connection = HTTPConnection("127.0.0.1", lab.sockets.metrics_port)
        connection.request("GET", path)
        answers[path] = connection.getresponse().status
        connection.close()
    assert answers == {"/metrics": 200, "/health": 200, "/api/v1/jobs": 404}


# --- the description


def test_openapi_document_has_every_operation_and_resolves(lab: ApiLab) -> None:
    api = lab.get("/openapi.json", root=True).json
    assert api["openapi"] == "3.1.0"
    names = [
        operation["operationId"] for path in api["paths"].values() for operation in path.values()
    ]
    assert len(names) == len(set(names))
    assert {"submit_job", "list_jobs", "create_tenant", "cluster_status"} <= set(names)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(api)))
    assert references <= set(api["components"]["schemas"])


def test_api_page_loads_nothing_external(lab: ApiLab) -> None:
    reply = lab.get("/docs", root=True)
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    text = reply.body.decode()
    assert not re.search(r"(src|href)=\"(https?:)?//", text)
    assert "/openapi.json" in text


def test_manual_names_every_path(lab: ApiLab) -> None:
    manual = (Path(__file__).parents[3] / "docs" / "reference" / "rest.md").read_text("utf-8")
    api = lab.get("/openapi.json", root=True).json
    for path, methods in api["paths"].items():
        for method in methods:
            short = path.removeprefix("/api/v1")
            assert f"`{method.upper()} {short}`" in manual, (method, path)


def test_manual_names_every_metric(lab: ApiLab) -> None:
    manual = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text("utf-8")
    text = lab.get("/metrics", root=True).body.decode()
    names = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    assert {name for name in names if f"`{name}`" not in manual} == set()


def test_quota_tree_shows_guaranteed_and_borrowed_gpus(lab: ApiLab) -> None:
    assert lab.get("/quota/tree").json == {"nodes": [], "warnings": []}
    lab.loop.core.state.cluster.set_quota_tree([a_quota("science", gpus(1.5, most=4))])
    _, science = lab.get("/quota/tree").json["nodes"]
    assert science == {
        "name": "science",
        "parent": "",
        "level": 1,
        "model": "*",
        "used_gpus": 0.0,
        "guaranteed_gpus": 1.5,
        "max_gpus": 4.0,
        "borrowed_gpus": 0.0,
        "lent_gpus": 0.0,
    }


def test_quota_tree_warns_about_nodes_and_models_that_match_nothing(lab: ApiLab) -> None:
    for name in ("vision", "atlas"):
        lab.post("/tenants", {"name": name})
    lab.loop.core.state.cluster.set_quota_tree(
        [a_quota("vison", gpus(2)), a_quota("atlas", gpus(2, model="A1000"))]
    )
    warnings = lab.get("/quota/tree").json["warnings"]
    assert ["did you mean 'A100'?" in warning for warning in warnings] == [True, False]
    assert "node 'vison' of quota_tree has no children and is not the id of a tenant" in warnings[1]
    assert warnings[1].endswith("did you mean 'vision'?")


def test_pause_shows_its_reason_until_the_gpu_is_resumed(lab: ApiLab) -> None:
    assert lab.post("/gpus/0/pause?reason=fan%20broken", None).status == 200
    gpu = lab.get("/gpus").json["gpus"][0]
    assert (gpu["state"], gpu["why"]) == ("paused", "an admin has paused it: fan broken")
    event = next(e for _, e in lab.store.events() if e.kind == "gpu_paused")
    assert ("reason", "fan broken") in event.data
    assert lab.post("/gpus/0/resume", None).status == 200
    assert lab.post("/gpus/0/pause", None).status == 200
    assert lab.get("/gpus").json["gpus"][0]["why"] == "an admin has paused it"
    assert lab.post(f"/gpus/0/pause?reason={'x' * 300}", None).status == 400
    assert lab.post("/gpus/0/resume?reason=x", None).status == 400
