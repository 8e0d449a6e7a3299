"""`tgpu wait` and `tgpu logs -f` continue after the server is killed."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.acceptance.conftest import PROGRAM, RealServer


def kill_and_restart(server: RealServer) -> None:
    pid = json.loads(Path(server.state_dir, "server.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    while _lives(pid):
        time.sleep(0.01)
    server.start("8xA100-80GB")


def _lives(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def _await_connections(process: "subprocess.Popen[str]", count: int) -> None:
    """Wait until the process holds so many sockets: then it waits for the server."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        links = [str(entry.readlink()) for entry in Path(f"/proc/{process.pid}/fd").iterdir()]
        if sum(link.startswith("socket:") for link in links) >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{process.args} never held {count} sockets")


def started(server: RealServer, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*PROGRAM, *words], stdout=subprocess.PIPE, text=True, env=server.environment
    )


def test_wait_and_logs_continue_after_server_is_killed(server: RealServer, tmp_path: Path) -> None:
    script = "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 5"
    job = server.submit("-G", 1, "--", "sh", "-c", script, cwd=tmp_path)
    waiting = started(server, "wait", job)
    reading = started(server, "logs", "-f", job)
    assert reading.stdout is not None
    assert reading.stdout.readline() == "one\n"
    _await_connections(waiting, 2)
    kill_and_restart(server)
    (tmp_path / "go").touch()
    assert waiting.communicate(timeout=60)[0] == f"{job} failed 5\n"
    assert waiting.returncode == 5
    assert reading.communicate(timeout=60)[0] == "two\n"
    assert reading.returncode == 0
