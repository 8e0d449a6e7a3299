"""A cluster's server of root gives up privileges that it does not need."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_scheduler.server.privileges import KEPT
from tests.cluster import Cluster, a_cluster

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to give up")
NOBODY = 65_534


def status(pid: int | str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def names_caller(cluster: Cluster) -> str:
    """Who the server takes a user for who connects over loopback."""
    facts = json.loads((cluster.state / "server.json").read_text())
    done = subprocess.run(
        ["curl", "-s", "--noproxy", "*", f"{facts['http']}/api/v1/me"],
        capture_output=True,
        text=True,
        check=True,
        user=NOBODY,
        group=NOBODY,
        cwd="/",
    )
    return str(json.loads(done.stdout)["user"])


def test_server_without_agent_keeps_only_needed_capabilities_and_works() -> None:
    kept = sum(1 << number for number in KEPT.values())
    with a_cluster("n1") as cluster:
        pid = cluster.server.pid
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found = status(f"{pid}/task/{thread.name}")
            assert found["NoNewPrivs"] == "1"
            for name in ("CapPrm", "CapEff", "CapBnd"):
                assert int(found[name], 16) & ~kept == 0, name
        assert names_caller(cluster) == "nobody"
        with cluster.client() as client:
            body = {"command": ["true"], "gpu_count": 1}
            job = client.call("POST", "/api/v1/jobs", body)["job_id"]
            assert cluster.until(
                lambda: client.call("GET", f"/api/v1/jobs/{job}")["state"] == "completed", "its end"
            )
        agent = status(cluster.agents["n1"].pid)
        assert (agent["NoNewPrivs"], agent["CapEff"]) == ("0", status("self")["CapEff"])


def test_server_with_site_commands_keeps_privileges() -> None:
    with a_cluster(nodes_fencing_command='["true"]') as cluster:
        assert status(cluster.server.pid)["CapEff"] == status("self")["CapEff"]


TRY_TO_WRITE = """
import os, sys
from gpu_scheduler.server.privileges import reduce_privileges
reduce_privileges([sys.argv[1]])
open(sys.argv[1] + "/allowed", "w").write("x")
os.rename(sys.argv[1] + "/allowed", sys.argv[1] + "/renamed")
for deed in (
    lambda: open(sys.argv[2] + "/new", "w"),
    lambda: open(sys.argv[2] + "/old", "a"),
    lambda: os.truncate(sys.argv[2] + "/old", 0),
    lambda: os.unlink(sys.argv[2] + "/old"),
    lambda: os.rename(sys.argv[2] + "/old", sys.argv[1] + "/old"),
    lambda: os.link(sys.argv[2] + "/old", sys.argv[1] + "/old"),
    lambda: os.symlink("/etc", sys.argv[2] + "/link"),
    lambda: os.mkdir(sys.argv[2] + "/directory"),
):
    try:
        deed()
    except OSError:
        continue
    sys.exit("it could write")
assert open(sys.argv[2] + "/old").read() == "kept"
try:
    os.setuid(65534)
except PermissionError:
    sys.exit(0)
sys.exit("it could become another user")
"""


def test_confined_process_writes_nowhere_else_and_becomes_no_other_user(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    (other / "old").write_text("kept")
    done = subprocess.run(
        [sys.executable, "-c", TRY_TO_WRITE, str(own), str(other)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Operation not supported" in done.stdout or "not implemented" in done.stdout:
        pytest.skip("this kernel has no Landlock")
    assert done.returncode == 0, done.stderr
    assert (own / "renamed").read_text() == "x"
