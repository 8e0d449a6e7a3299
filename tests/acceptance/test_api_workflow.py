"""The workflow of the manual, run literally with curl in a real shell."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import RealServer
from tests.unit.api.lab import ApiLab

pytestmark = pytest.mark.skipif(
    shutil.which("curl") is None or shutil.which("jq") is None, reason="needs curl and jq"
)

# Only the address is replaced, so that the server can be a private one.
WORKFLOW = r"""
# 1. Create a tenant
TENANT_ID=$(curl -s -X POST http://localhost:8080/api/v1/tenants \
  -H "Content-Type: application/json" \
  -d '{
    "name": "Data Science Team",
    "max_gpus": 12,
    "max_gpu_memory_mb": 150000,
    "max_cpu_cores": 48,
    "max_memory_mb": 400000,
    "max_concurrent_jobs": 10
  }' | jq -r '.id')

echo "Created tenant: $TENANT_ID"

# 2. Submit a high-priority production job
curl -X POST http://localhost:8080/api/v1/jobs \
  -H "Content-Type: application/json" \
  -d "{
    \"name\": \"Production Model Training\",
    \"tenant_id\": \"$TENANT_ID\",
    \"gpu_count\": 8,
    \"priority\": 2000,
    \"command\": [\"python\", \"train_production.py\"],
    \"image\": \"pytorch:2.0-cuda11.8\",
    \"gpu_memory_mb\": 80000,
    \"cpu_cores\": 32,
    \"memory_mb\": 128000
  }"

# 3. Submit a medium-priority research job
curl -X POST http://localhost:8080/api/v1/jobs \
  -H "Content-Type: application/json" \
  -d "{
    \"name\": \"Research Experiment\",
    \"tenant_id\": \"$TENANT_ID\",
    \"gpu_count\": 2,
    \"priority\": 500,
    \"command\": [\"python\", \"experiment.py\"],
    \"image\": \"tensorflow:2.13-gpu\"
  }"

# 4. Submit a low-priority background job
curl -X POST http://localhost:8080/api/v1/jobs \
  -H "Content-Type: application/json" \
  -d "{
    \"name\": \"Data Preprocessing\",
    \"tenant_id\": \"$TENANT_ID\",
    \"gpu_count\": 1,
    \"priority\": 100,
    \"command\": [\"python\", \"preprocess.py\"],
    \"image\": \"cuda:11.8-base\"
  }"

# 5. View all jobs (sorted by priority)
echo -e "\nJobs in queue (priority order):"
curl -s http://localhost:8080/api/v1/jobs | \
  jq -r '.jobs | sort_by(-.priority) | .[] |
  "\(.priority) | \(.name) | \(.gpu_count) GPUs | \(.state)"'

# 6. Check cluster status
echo -e "\nCluster status:"
curl -s http://localhost:8080/api/v1/cluster/status | jq .
"""


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab() as lab:
        yield lab


def shell(lab: ApiLab, text: str) -> str:
    return run_in_shell(lab.port, text)


def run_in_shell(port: int, text: str) -> str:
    """The output of the commands, without proxies of this machine."""
    text = text.replace("localhost:8080", f"localhost:{port}")
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_manual_workflow_runs_against_real_server(
    server: RealServer,
) -> None:
    running = json.loads((Path(server.state_dir) / "server.json").read_text())
    told = run_in_shell(int(running["http"].rpartition(":")[2]), WORKFLOW)
    check_workflow(told)


def test_manual_workflow_runs_against_api(lab: ApiLab) -> None:
    check_workflow(shell(lab, WORKFLOW))


def check_workflow(told: str) -> None:
    assert "Created tenant: tenant-1\n" in told
    for number in (1, 2, 3):
        assert (
            f'{{"job_id":"job-{number}","status":"submitted",'
            '"message":"Job submitted successfully","tasks":1}'
        ) in told
    listed = told.partition("(priority order):\n")[2].partition("\nCluster")[0]
    lines = [line.rpartition(" | ")[0] for line in listed.strip().splitlines()]
    assert lines == [
        "2000 | Production Model Training | 8 GPUs",
        "500 | Research Experiment | 2 GPUs",
        "100 | Data Preprocessing | 1 GPUs",
    ]
    assert '"total_gpus": 8' in told
    assert '"total_jobs": 3' in told


def test_manual_read_commands_work(lab: ApiLab) -> None:
    job_id = lab.submit(name="x", priority=1000)
    shown = shell(
        lab,
        f"""
        JOB_ID="{job_id}"
        curl http://localhost:8080/api/v1/health
        curl http://localhost:8080/health
        curl http://localhost:8080/api/v1/jobs | jq '.jobs | sort_by(-.priority)'
        curl http://localhost:8080/api/v1/jobs/$JOB_ID | jq .
        curl http://localhost:8080/api/v1/tenants | jq .
        """,
    )
    assert '"status":"healthy"' in shown
    assert f'"id": "{job_id}"' in shown
    assert '"id": "default"' in shown


def test_manual_tenant_and_job_objects_are_accepted(lab: ApiLab) -> None:
    tenant = {
        "name": "Team Name",
        "max_gpus": 16,
        "max_gpu_memory_mb": 200000,
        "max_cpu_cores": 64,
        "max_memory_mb": 500000,
        "max_concurrent_jobs": 20,
        "priority_tier": "high",
        "fair_share_weight": 1.0,
        "allow_preemption": True,
    }
    created = lab.post("/tenants", tenant)
    assert created.status == 201
    assert {name: created.json[name] for name in tenant} == tenant
    job = {
        "tenant_id": created.json["id"],
        "name": "Training Job",
        "priority": 1000,
        "gpu_count": 4,
        "gpu_memory_mb": 40000,
        "cpu_cores": 16,
        "memory_mb": 64000,
        "command": ["python", "train.py"],
        "args": ["--epochs", "100"],
        "image": "pytorch:2.0",
        "environment": {"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
        "gang_scheduling": True,
        "max_runtime_minutes": 1440,
    }
    accepted = lab.post("/jobs", job)
    assert accepted.status == 201
    shown = lab.get(f"/jobs/{accepted.json['job_id']}").json
    for name in job.keys() - {"command", "args"}:
        assert shown[name] == job[name], name
    assert shown["command"] == ["python", "train.py", "--epochs", "100"]


def test_manual_task_object_is_accepted(lab: ApiLab) -> None:
    told = shell(
        lab,
        """
        TASK=$(curl -s -X POST http://localhost:8080/api/v1/tasks \
          -H "Content-Type: application/json" \
          -d '{
            "priority": "high",
            "gpu_count": 2,
            "command": "python train.py"
          }' | jq -r .task_id)
        curl -s http://localhost:8080/api/v1/tasks/$TASK
        """,
    )
    assert '"task_id":"job-1","status":"pending","command":"python train.py"' in told
