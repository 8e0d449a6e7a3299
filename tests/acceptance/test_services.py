"""Services with real programs on real ports over several real agents."""

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent.jobs.network import free_port
from tests.cluster import Cluster, Process, a_cluster

SERVE = ("--", "python3", "-c")
PROGRAM = """
import http.server, os, pathlib, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        told = os.environ["TGPU_REPLICA"] + " " + os.environ["VERSION"]
        is_sick = pathlib.Path(os.environ["SICK"]).exists() and self.path == "/health"
        self.send_response(503 if is_sick else 200)
        self.end_headers()
        self.wfile.write(told.encode())
    def log_message(self, *words):
        pass
if pathlib.Path(os.environ["DIE"]).exists():
    sys.exit(3)
assert os.environ["PORT"] == os.environ["TGPU_SERVICE_PORT"]
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Page).serve_forever()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with eight declared GPUs each."""
    with a_cluster("n1", "n2", jobs_grace_s="5") as running:
        yield running


def service(cluster: Cluster, name: str) -> Any:
    return json.loads(cluster.tgpu("service", "show", name, "--json"))


def options(cluster: Cluster, name: str, version: str = "v1") -> tuple[str, ...]:
    sick, die = (cluster.directory / f"{name}.{what}" for what in ("sick", "die"))
    return (
        *("--env", f"SICK={sick}", "--env", f"DIE={die}", "--env", f"VERSION={version}"),
        *("--http", "/health", "--check-interval", "0.2", "--check-failures", "2"),
        *("--backoff", "0.2", *SERVE, PROGRAM),
    )


def answers(cluster: Cluster, name: str) -> set[str]:
    """The responses of all endpoints."""
    found = json.loads(cluster.tgpu("service", "endpoints", name, "--json"))["endpoints"]
    said = set()
    for endpoint in found:
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint['port']}/", timeout=30) as reply:
            said.add(reply.read().decode())
    return said


def flag(cluster: Cluster, name: str) -> Path:
    return cluster.directory / name


def test_service_is_created_updated_scaled_and_deleted(cluster: Cluster) -> None:
    made = cluster.tgpu(
        *("service", "create", "web", "--gpus", "1", "--replicas", "2", "--wait"),
        *options(cluster, "web"),
    )
    assert "2 of 2 replicas ready" in made
    members = service(cluster, "web")["members"]
    assert sorted(replica["node"] for replica in members) == ["n1", "n2"]
    assert answers(cluster, "web") == {"0 v1", "1 v1"}
    assert "web.0" in cluster.tgpu("list")

    cluster.tgpu("service", "scale", "web", "3", "--wait")
    assert answers(cluster, "web") == {"0 v1", "1 v1", "2 v1"}

    cluster.tgpu(
        *("service", "update", "web", "--gpus", "1", "--replicas", "3", "--wait"),
        *options(cluster, "web", "v2"),
    )
    assert answers(cluster, "web") == {"0 v2", "1 v2", "2 v2"}

    assert cluster.tgpu("service", "delete", "web", "--wait") == "service web deleted\n"
    assert "web" not in cluster.tgpu("service", "list")
    cluster.until(lambda: "web." not in cluster.tgpu("list"), "its jobs have ended")


def test_unhealthy_replica_leaves_endpoints_and_dead_replica_is_replaced(cluster: Cluster) -> None:
    cluster.tgpu("service", "create", "api", "--wait", *options(cluster, "api"))
    flag(cluster, "api.sick").touch()
    cluster.until(lambda: not service(cluster, "api")["ready"], "it is not ready")
    # On a busy machine the last probe may also have timed out.
    told = "GET /health was answered with 503"
    cluster.until(
        lambda: service(cluster, "api")["members"][0]["detail"] == told, "it says what is wrong"
    )
    cluster.tgpu("service", "endpoints", "api", code=1)
    flag(cluster, "api.sick").unlink()
    cluster.until(lambda: bool(service(cluster, "api")["ready"]), "it is ready again")

    flag(cluster, "api.die").touch()
    job = service(cluster, "api")["members"][0]["job_id"]
    pid = next(
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and _is_of(entry, job, cluster)
    )
    os.kill(pid, signal.SIGKILL)
    cluster.until(lambda: service(cluster, "api")["restarts"] >= 2, "it is started again and again")
    assert service(cluster, "api")["members"][0]["last_end"] == "exit code 3"
    flag(cluster, "api.die").unlink()
    cluster.until(lambda: bool(service(cluster, "api")["ready"]), "it is ready at last")
    assert service(cluster, "api")["members"][0]["job_id"] == job
    cluster.tgpu("service", "delete", "api", "--wait")


def _is_of(entry: Path, job: str, cluster: Cluster) -> bool:
    """Other clusters on this machine have jobs of the same id."""
    try:
        variables = (entry / "environ").read_bytes()
    except OSError:
        return False
    is_ours = str(cluster.directory).encode() in variables
    return is_ours and f"TGPU_JOB_ID={job}\0".encode() in variables


def test_port_conflict_is_reported_and_retried(cluster: Cluster) -> None:
    """Both nodes of this cluster are one machine, so the second finds the port in use."""
    port = str(free_port())
    words = ("--port", port, "--max-backoff", "0.5")
    cluster.tgpu("service", "create", "one", *words, "--wait", *options(cluster, "one"))
    cluster.tgpu("service", "create", "two", *words, *options(cluster, "two"))
    cluster.until(lambda: service(cluster, "two")["restarts"] > 0, "it was tried")
    last_end = service(cluster, "two")["members"][0]["last_end"]
    assert (
        last_end == f"could not be started: cannot be prepared: port {port} is in use on this node"
    )
    cluster.tgpu("service", "delete", "one", "--wait")
    cluster.until(lambda: service(cluster, "two")["ready"] == 1, "it has the port now")
    assert service(cluster, "two")["members"][0]["port"] == int(port)
    cluster.tgpu("service", "delete", "two", "--wait")


def test_replica_leaves_drained_node(cluster: Cluster) -> None:
    cluster.tgpu("service", "create", "moves", "--wait", *options(cluster, "moves"))
    node = service(cluster, "moves")["members"][0]["node"]
    cluster.tgpu("nodes", "drain", node)
    cluster.until(
        lambda: service(cluster, "moves")["members"][0]["node"] not in ("", node), "moved"
    )
    cluster.until(lambda: service(cluster, "moves")["ready"] == 1, "it is ready there")
    assert answers(cluster, "moves") == {"0 v1"}
    cluster.tgpu("nodes", "uncordon", node)
    cluster.tgpu("service", "delete", "moves", "--wait")


def test_service_file_is_equivalent_to_options(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "files.yaml"
    file.write_text(
        "name: files\nreplicas: 1\nport: auto\n"
        'command: exec python3 -m http.server "$PORT"\n'
        "readiness: {tcp: true, interval: 0.2s}\n"
        "restart: {policy: on-failure, backoff: 1s}\n"
    )
    cluster.tgpu("service", "create", "-f", str(file), "--wait")
    found = service(cluster, "files")
    assert (found["readiness"]["kind"], found["readiness"]["interval_seconds"]) == ("tcp", 0.2)
    assert (found["restart"]["policy"], found["restart"]["backoff_seconds"]) == ("on-failure", 1)
    cluster.tgpu("service", "delete", "files", "--wait")
    file.write_text("name: files\nreplica: 2\n")
    cluster.tgpu("service", "create", "-f", str(file), code=2)


def test_batch_jobs_yield_to_service_within_online_quota(cluster: Cluster) -> None:
    """Sixteen GPUs, all of them used by batch jobs; a quarter is guaranteed to online work."""
    quota = {"online_percent": 25, "batch_percent": 75, "elastic": True}
    with cluster.client() as client:
        client.call("PUT", "/api/v1/quota", quota)
    line = "trap 'echo told; exit 0' TERM; echo listens; while :; do sleep 0.1; done"
    jobs = [cluster.submit("--gpus", "4", "--", "sh", "-c", line) for _ in range(4)]
    cluster.until(lambda: cluster.states(*jobs) == {"running"}, "batch has all")
    for job in jobs:
        cluster.until(lambda job=job: "listens" in cluster.tgpu("logs", job), "it listens")
    assert "batch pool: uses 16 GPUs, guaranteed 12 (75 %), 4 of them borrowed" in (
        cluster.tgpu("status")
    )
    cluster.tgpu("service", "create", "llm", "--gpus", "4", "--wait", *options(cluster, "llm"))
    waiting = [job for job in jobs if cluster.states(job) == {"pending"}]
    assert len(waiting) == 1
    assert "told" in cluster.tgpu("logs", waiting[0])
    assert "online pool: uses 4 GPUs, guaranteed 4" in cluster.tgpu("status")
    cluster.tgpu("service", "delete", "llm", "--wait")
    cluster.until(lambda: cluster.states(*jobs) == {"running"}, "batch borrows again")
    cluster.tgpu("cancel", *jobs)


def test_crash_looping_service_is_failing_and_reports_exit_reason(cluster: Cluster) -> None:
    line = "echo try $TGPU_ATTEMPT; exit 3"
    cluster.tgpu("service", "create", "bad", "--backoff", "0.1", "--", "sh", "-c", line)
    cluster.until(lambda: service(cluster, "bad")["state"] == "failing", "it is failing")
    assert "last end: exit code 3" in cluster.tgpu("service", "show", "bad")
    pause = "before the next attempt"
    cluster.until(lambda: pause in cluster.tgpu("service", "show", "bad"), "it says what it awaits")
    # The newest attempt may not have written its line yet.
    cluster.until(lambda: "try " in cluster.tgpu("service", "logs", "bad"), "it shows its output")
    once = ("--restart", "never", "--", "sh", "-c", line)
    cluster.tgpu("service", "create", "once", *once)
    cluster.until(lambda: service(cluster, "once")["state"] == "ended", "it has ended")
    (member,) = service(cluster, "once")["members"]
    assert (member["state"], member["detail"]) == ("over", "ended with exit code 3")
    for name in ("bad", "once"):
        cluster.tgpu("service", "delete", name, "--wait")


def test_service_logs_are_those_of_its_replicas(cluster: Cluster) -> None:
    line = "echo hello from $TGPU_REPLICA; sleep 300"
    many = ("--replicas", "2", "--wait", "--", "sh", "-c", line)
    cluster.tgpu("service", "create", "talk", *many)
    wanted = "[0] hello from 0\n[1] hello from 1\n"
    cluster.until(lambda: cluster.tgpu("service", "logs", "talk") == wanted, "both have spoken")
    assert cluster.tgpu("service", "logs", "talk", "--replica", "1") == "hello from 1\n"
    told = cluster.tgpu("service", "logs", "talk", "-f", code=2)
    assert "has replicas 0, 1; choose one with --replica" in told
    told = cluster.tgpu("service", "logs", "talk", "--replica", "7", code=2)
    assert "has no replica 7; it has 0, 1" in told
    shown = cluster.tgpu("service", "show", "talk")
    assert re.search(r"since +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n", shown)
    assert cluster.tgpu("service", "delete", "talk").endswith("; 2 replicas are being stopped\n")
    cluster.until(lambda: "talk" not in cluster.tgpu("service", "list"), "it is gone")


def test_replica_logs_are_followed_over_restarts(cluster: Cluster, tmp_path: Path) -> None:
    line = (
        f"echo attempt $TGPU_ATTEMPT; while test ! -e {tmp_path}/$TGPU_ATTEMPT; do sleep 0.1; done"
    )
    once_more = ("--backoff", "0.1", "--", "sh", "-c", line)
    cluster.tgpu("service", "create", "again", *once_more)
    following = cluster._process("service", "logs", "again", "-f", log="again.log")
    following.environment = following.environment | {"TGPU_SERVER": str(cluster.state)}
    following.start()
    for attempt in (1, 2):
        cluster.until(lambda n=attempt: f"attempt {n}" in following.log(), f"attempt {attempt}")
        (tmp_path / str(attempt)).touch()
    cluster.until(lambda: "attempt 3" in following.log(), "attempt 3")
    cluster.tgpu("service", "delete", "again", "--wait")
    assert following.ended() == 0
    assert _written(following) == ["attempt 1", "attempt 2", "attempt 3"]


def test_logs_show_even_the_shortest_attempt_of_replica(cluster: Cluster, tmp_path: Path) -> None:
    gate = f"while test ! -e {tmp_path}/go; do sleep 0.1; done"
    line = f"echo attempt $TGPU_ATTEMPT; {gate}; test $TGPU_ATTEMPT -lt 6 || sleep 300"
    quick = ("--backoff", "0.01", "--", "sh", "-c", line)
    cluster.tgpu("service", "create", "quick", *quick)
    following = cluster._process("service", "logs", "quick", "-f", log="quick.log")
    following.environment = following.environment | {"TGPU_SERVER": str(cluster.state)}
    following.start()
    cluster.until(lambda: "attempt 1" in following.log(), "it follows")
    (tmp_path / "go").touch()
    cluster.until(lambda: "attempt 6" in _written(following), "attempt 6")
    cluster.tgpu("service", "delete", "quick", "--wait")
    assert following.ended() == 0
    assert _written(following) == [f"attempt {number}" for number in range(1, 7)]


def _written(following: Process) -> list[str]:
    """The output of the replica, without the lines that `tgpu` adds about its attempts."""
    return [line for line in following.log().splitlines() if not line.startswith("tgpu: ")]
