"""An agent that could not join, or was stopped without jobs, leaves no launcher behind."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import LONGEST_S, PROGRAM, kill_leftovers


@pytest.fixture
def directory() -> Iterator[Path]:
    place = tempfile.mkdtemp(prefix="tgpu-")
    try:
        yield Path(place)
    finally:
        kill_leftovers(place)


def processes_of(directory: Path) -> list[str]:
    """The command lines of all processes that name the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(directory) in line:
                found.append(line)
    return found


def wait_until_gone(directory: Path) -> None:
    give_up = time.monotonic() + LONGEST_S
    while left := processes_of(directory):
        assert time.monotonic() < give_up, left
        time.sleep(0.05)


def an_agent(directory: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *PROGRAM,
            "agent",
            "--work-dir",
            str(directory / "n"),
            "--simulate",
            "1xH100-80GB",
            *words,
        ],
        env={name: value for name, value in os.environ.items() if not name.startswith("TGPU_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_agent_that_cannot_join_leaves_no_launcher(directory: Path) -> None:
    token = directory / "token"
    token.write_text("no token\n")
    token.chmod(0o600)
    agent = an_agent(directory, "--server", "127.0.0.1:1", "--token-file", str(token))
    told, _ = agent.communicate(timeout=LONGEST_S)
    assert agent.returncode != 0
    assert "the join token cannot be read" in told
    wait_until_gone(directory)


def test_agent_stopped_while_it_joins_leaves_no_launcher(directory: Path) -> None:
    token = directory / "token"
    token.write_text(f"tgpn_{'a' * 60}\n")
    token.chmod(0o600)
    agent = an_agent(directory, "--server", "127.0.0.1:1", "--token-file", str(token))
    assert agent.stdout is not None
    agent.stdout.readline()  # its first line in the log: it handles signals from now on
    agent.send_signal(signal.SIGTERM)
    agent.communicate(timeout=LONGEST_S)
    wait_until_gone(directory)
