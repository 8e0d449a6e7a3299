"""A server run by root: jobs run as their submitters, and users cannot touch jobs of others."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import RealServer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
NOBODY = 65_534


def address(server: RealServer) -> str:
    facts = json.loads((Path(server.state_dir) / "server.json").read_text())
    return str(facts["http"])


def as_nobody(server: RealServer, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """The response to curl as another user over loopback, where the kernel names the caller."""
    words = ["curl", "-s", "--noproxy", "*", "-X", method, f"{address(server)}/api/v1{path}"]
    if body is not None:
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    for name, value in headers.items():
        words += ["-H", f"{name}: {value}"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, user=NOBODY, group=NOBODY, cwd="/"
    )
    return json.loads(done.stdout)


def test_job_runs_as_its_submitter(server: RealServer) -> None:
    body = {"command": ["sh", "-c", "id -u; id -g; pwd; cat $HOME/none 2>/dev/null; true"]}
    job = as_nobody(server, "POST", "/jobs", body)["job_id"]
    assert server.output(job).split()[:2] == [str(NOBODY), str(NOBODY)]
    assert server.json("show", job)["user"] == "nobody"


def test_script_of_another_user_runs(server: RealServer) -> None:
    job = as_nobody(server, "POST", "/jobs", {"script": "#!/bin/sh\necho from $(id -u)\n"})[
        "job_id"
    ]
    assert server.output(job) == f"from {NOBODY}\n"


def test_other_users_reach_only_the_socket_in_state_directory(
    server: RealServer,
) -> None:
    state = Path(server.state_dir)
    words = ["curl", "-s", "--unix-socket", state / "server.sock", "http://localhost/health"]
    done = subprocess.run(words, capture_output=True, check=True, user=NOBODY, group=NOBODY)
    assert json.loads(done.stdout)["status"] == "healthy"
    assert state.stat().st_mode & 0o077 == 0o011
    open_to_others = {path.name for path in state.iterdir() if path.stat().st_mode & 0o077}
    assert open_to_others == {"server.sock", "scratch"}


@pytest.mark.parametrize("field", ["user", "uid", "gid", "run_as"])
def test_no_request_field_changes_the_user(server: RealServer, field: str) -> None:
    refused = as_nobody(server, "POST", "/jobs", {"command": ["id"], field: 0})
    assert refused["code"] == "invalid_request"
    assert field in refused["error"]


def test_jobs_of_other_users_are_invisible_and_untouchable(server: RealServer) -> None:
    job = server.submit("--name", "private", "--", "sleep", "60")
    for method, path in (("DELETE", ""), ("GET", "/logs"), ("GET", "/attempts"), ("POST", "/hold")):
        assert as_nobody(server, method, f"/jobs/{job}{path}")["code"] == "forbidden"
    seen = as_nobody(server, "GET", f"/jobs/{job}")
    assert (seen["user"], seen["name"], seen["command"]) == ("root", "", [])
    for path in ("/jobs", "/events?after=0", f"/jobs/{job}", f"/jobs/{job}/explain"):
        assert "private" not in json.dumps(as_nobody(server, "GET", path))
    server.tgpu("cancel", job)
    with server.client() as client:
        client.wait(job, timeout=30)
    assert as_nobody(server, "GET", f"/jobs/{job}")["code"] == "not_found"


def test_admin_operations_are_denied_to_users(server: RealServer) -> None:
    assert as_nobody(server, "POST", "/tenants", {"name": "mine"})["code"] == "forbidden"
    assert as_nobody(server, "POST", "/gpus/0/pause")["code"] == "forbidden"
    assert as_nobody(server, "PUT", "/quota", {"online_percent": 1})["code"] == "forbidden"


def test_cross_site_request_is_rejected(server: RealServer) -> None:
    evil = as_nobody(server, "GET", "/jobs", Origin="http://evil.example")
    assert evil["code"] == "forbidden"
    rebound = as_nobody(server, "GET", "/jobs", Host="evil.example")
    assert rebound["code"] == "forbidden"
