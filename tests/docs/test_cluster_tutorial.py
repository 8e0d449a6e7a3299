"""Run every `$` line of the cluster tutorial and compare its output with the page.

Ports and the directory are private ones; numbers, times and names of people may differ.
"""

import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import kill_all_naming

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "cluster.md"
LONGEST_S = 60.0
VARYING = re.compile(rf"\d+|\b(ann|{re.escape(getpass.getuser())})\b")


def steps() -> list[tuple[str, list[str]]]:
    """Commands of all console blocks that begin with `$`, with their output."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif not line.startswith("# ") and found:
                found[-1][1].append(line)
    return found


def alike(text: str) -> str:
    """The output without what differs from run to run."""
    return VARYING.sub("#", " ".join(text.split()))


class Reader:
    """A reader who types the commands into one shell."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.started = 0
        ports = {name: free_port() for name in ("http", "grpc", "metrics")}
        self.grpc = ports["grpc"]
        program = Path(sys.executable).parent
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GPU_SCHEDULER_", "TGPU_"))
        }
        variables |= {
            "PATH": f"{program}:{variables['PATH']}",
            "HOME": str(home),
            "GPU_SCHEDULER_JOBS_GRACE_S": "1",
        }
        variables |= {
            f"GPU_SCHEDULER_API_{name.upper()}_PORT": str(port) for name, port in ports.items()
        }
        self.shell = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=home,
            env=variables,
            start_new_session=True,
        )

    def type(self, command: str) -> str:
        """The output of a command. A background command is awaited until it works."""
        command = command.replace("127.0.0.1:9090", f"127.0.0.1:{self.grpc}")
        if command.endswith("&"):
            self.started += 1
            out = self.home / f"out-{self.started}"
            self._run(f"{command[:-1]} >{out} 2>&1 &")
            return self._settled(command, out)
        text, code = self._run(command)
        assert code == 0, f"{command}: {text}"
        return text

    def _run(self, command: str) -> tuple[str, int]:
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.write(f"{command}\ncode=$?; echo; echo done=$code\n")
        self.shell.stdin.flush()
        lines: list[str] = []
        while not (line := self.shell.stdout.readline()).startswith("done="):
            assert line, "".join(lines)
            lines.append(line)
        return "".join(lines), int(line.partition("=")[2])

    def _settled(self, command: str, out: Path) -> str:
        """Wait, as a reader would, until a server is up or its nodes are connected."""
        words = command.split()
        give_up = time.monotonic() + LONGEST_S
        while time.monotonic() < give_up:
            text = out.read_text("utf-8") if out.exists() else ""
            if "tgpu: error" in text:  # an agent retries by itself while no server leads yet
                break
            if words[1] == "agent" and '"connected"' in text:
                return text
            if words[1] == "server" and "next " in text:
                self._wait_for_known_nodes(give_up)
                return text
            time.sleep(0.1)
        raise AssertionError(f"{command}: {text}")

    def _wait_for_known_nodes(self, give_up: float) -> None:
        while time.monotonic() < give_up:
            text, _ = self._run(f"tgpu nodes --json --server {self.home}/cluster/head")
            if all(node["state"] == "online" for node in json.loads(text)["nodes"]):
                return
            time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def reader() -> Iterator[Reader]:
    home = Path(tempfile.mkdtemp(prefix="tgpu-"))
    home.chmod(0o755)
    one = Reader(home)
    try:
        yield one
    finally:
        os.kill(one.shell.pid, signal.SIGKILL)
        one.shell.communicate()
        while kill_all_naming(home):
            time.sleep(0.05)
        shutil.rmtree(home, ignore_errors=True)


def test_cluster_tutorial_works_as_written(reader: Reader) -> None:
    page = steps()
    assert len(page) > 20
    for command, shown in page:
        give_up = time.monotonic() + LONGEST_S
        text = reader.type(command)
        # A list may be typed before a job has begun.
        while command == "tgpu list" and missing_in(text, shown) and time.monotonic() < give_up:
            time.sleep(0.1)
            text = reader.type(command)
        assert missing_in(text, shown) == [], (command, text)


def missing_in(text: str, shown: list[str]) -> list[str]:
    """The lines of the page that the output does not have."""
    # A job that is being stopped may have ended before the first look at it.
    varies = ("socket", "state ", "agents ", "n1: still running: ")
    said = alike(text)
    lines = (line for line in shown if line.strip() and not line.lstrip().startswith(varies))
    return [line for line in lines if alike(line) not in said]
