"""Commands and programs of users that stay open over an upgrade in place continue afterwards.

They were started by the old version, lose their connection when the old server stops, and find the
new server. Whatever they import after that comes from the new files.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.terminal import Terminal, a_terminal, needs_tmux
from tests.upgrade.workstation import LONGEST_S, Workstation, a_workstation

FINISH = "echo before; until [ -e go ]; do sleep 0.1; done; echo after; exit 7"
PROGRAM = """
import gpu_scheduler

client = gpu_scheduler.Client()
job = client.submit(["sh", "-c", "until [ -e go ]; do sleep 0.1; done; echo hello; exit 7"], gpus=1)
print(job.id, flush=True)
input()
try:
    job.result(timeout=60)
except gpu_scheduler.JobFailed as failed:
    print(failed.__class__.__name__, job.info()["exit_code"])
print(*job.logs(), end="")
print(next(client.events(0))["sequence"])
try:
    client.submit(["true"], gpus=float("nan"))
except Exception as error:
    print(error.__class__.__name__)
"""
"""A program that imports parts of the client only when it needs them."""


class Open:
    """What a user has left open: commands, a program, and an interactive shell."""

    def __init__(self, station: Workstation, terminal: Terminal) -> None:
        self.station = station
        self.terminal = terminal
        self.job = station.submit("-G", 1, "--", "sh", "-c", FINISH)
        station.until_logged(self.job, "before")
        self.wait = self._run(*station.installation.program, "wait", self.job)
        self.logs = self._run(*station.installation.program, "logs", "-f", self.job)
        self.program = self._run(station.installation.python, "-c", PROGRAM)
        assert self.logs.stdout is not None
        assert self.logs.stdout.readline() == "before\n"
        assert self.program.stdout is not None
        self.program_job = self.program.stdout.readline().strip()
        terminal.enter("PS1='in> ' tgpu shell -q -G 1 -- bash --norc --noprofile")
        terminal.until(lambda screen: screen.rstrip().endswith("in>"), "the prompt of the job")

    def _run(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.station.work,
            env=self.station.environment,
        )


@pytest.fixture(scope="module")
def opened(old_package: Path) -> Iterator[Open]:
    """The results of all of it after the upgrade; jobs are released."""
    with a_workstation(old_package) as station:
        station.up()
        with a_terminal(station.environment, program=station.installation.program) as terminal:
            everything = Open(station, terminal)
            station.upgrade()
            (station.work / "go").touch()
            yield everything


def test_waiting_command_gets_exit_code(opened: Open) -> None:
    assert opened.wait.communicate(timeout=LONGEST_S)[0] == f"{opened.job} failed 7\n"
    assert opened.wait.returncode == 7


def test_log_follower_reads_to_end(opened: Open) -> None:
    assert opened.logs.communicate(timeout=LONGEST_S)[0] == "after\n"


def test_python_client_program_continues(opened: Open) -> None:
    said = opened.program.communicate("\n", timeout=LONGEST_S)[0].splitlines()
    assert said == ["JobFailed 7", "hello", "1", "InvalidRequest"]


@needs_tmux
def test_interactive_shell_reconnects(opened: Open) -> None:
    terminal = opened.terminal
    terminal.enter("echo $((6 * 7)) again")
    terminal.see("42 again")
    terminal.enter("exit 5")
    terminal.until(lambda screen: screen.rstrip().endswith("here>"), "the user's own prompt")
    assert terminal.answer("echo $?") == "5"
