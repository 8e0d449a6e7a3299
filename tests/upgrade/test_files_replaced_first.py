"""The installed files are replaced while the old server, agent and launcher still run.

This is what `pip install --upgrade` without stopping anything first does. Until they are restarted,
the old processes read some files and start some modules of the new version.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher_rig import is_alive
from tests.upgrade.runners import RUNNERS, options, why_not
from tests.upgrade.workstation import Workstation, a_workstation


def runs_everything(station: Workstation) -> None:
    """Jobs of every runner, and a service with a command as readiness check."""
    usable = [runner for runner in RUNNERS if not why_not(runner)]
    jobs = [
        station.submit(*options(station, runner), "--", "sh", "-c", "echo new; exit 5")
        for runner in usable
    ]
    for job in jobs:
        ended = station.ended(job)
        assert ended["exit_code"] == 5, ended
        assert station.log(job) == "new\n"
    check = ("--check", "test -e ../w", "--check-interval", "1s", "--wait")
    station.tgpu("service", "create", "web", "-c", "1", *check, "--", "sleep", "1000")
    station.tgpu("service", "delete", "web", "--wait")


def kill_and_wait_for_successor(station: Workstation, pid_now: Callable[[], int]) -> None:
    """End a process; another one restarts it."""
    dead = pid_now()
    os.kill(dead, signal.SIGKILL)
    station.until(lambda: pid_now() != dead and is_alive(pid_now()), "its successor")


def test_old_processes_work_with_new_files_until_restarted(old_package: Path) -> None:
    with a_workstation(old_package) as station:
        station.up()
        script = "echo before; until [ -e go ]; do sleep 0.1; done; exit 7"
        job = station.submit("-G", 1, "--", "sh", "-c", script)
        station.until_logged(job, "before")
        launcher, agent = station.launcher_pid(), station.agent_pid()
        station.installation.upgrade()
        runs_everything(station)
        assert (station.launcher_pid(), station.agent_pid()) == (launcher, agent)
        station.down()
        station.up()
        assert station.launcher_pid() == launcher
        (station.work / "go").touch()
        assert station.ended(job)["exit_code"] == 7


@pytest.mark.slow
def test_old_processes_restart_each_other_with_new_version(old_package: Path) -> None:
    """The old agent starts a new launcher, then the old server a new agent. Jobs continue."""
    with a_workstation(old_package) as station:
        station.up()
        script = "echo before; read word; echo after-$word; exit 7"
        job = station.submit("--runner", "terminal", "--", "sh", "-c", script)
        station.until_logged(job, "before")
        station.installation.upgrade()
        for pid_now in (station.launcher_pid, station.agent_pid):
            kill_and_wait_for_successor(station, pid_now)
            runs_everything(station)
            assert station.job(job)["state"] == "running"
        station.tgpu("cancel", job)
        assert station.ended(job)["state"] == "cancelled"


@pytest.mark.slow
def test_new_watchdog_ends_lease_that_old_launcher_cannot(old_package: Path) -> None:
    """The old launcher starts a watchdog of the new version, and is then frozen."""
    short = {"nodes_suspect_after_s": "5", "nodes_lost_after_s": "9", "nodes_lease_s": "10"}
    with a_workstation(old_package, agent_heartbeat_interval_s="1", **short) as station:
        station.up()
        kept = station.submit("-G", 1, "--", "sleep", "1000")
        station.until(lambda: station.job(kept)["state"] == "running", "a job that keeps it alive")
        launcher = station.launcher_pid()
        station.upgrade()
        assert station.launcher_pid() == launcher
        script = "echo $$ > pid; exec sleep 1000"
        station.submit("-G", 1, "--requeue-on-node-loss", "--", "sh", "-c", script)
        station.until((station.work / "pid").exists, "the job")
        station.until(lambda: is_alive(station.watchdog_pid()), "the watchdog")
        pid = int((station.work / "pid").read_text())
        assert is_alive(pid)
        os.kill(launcher, signal.SIGSTOP)
        try:
            station.until(lambda: not is_alive(pid), "the watchdog kills the job")
        finally:
            os.kill(launcher, signal.SIGCONT)
        assert station.job(kept)["state"] == "running"
