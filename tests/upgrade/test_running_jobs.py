"""Jobs of every kind that run while gpu-scheduler is upgraded in place continue undisturbed.

The old version starts them. Then server and agent are stopped, the installed files are replaced
with those of the new version, and `tgpu up` starts the new server and agent. The launcher of the
old version stays, as its jobs do, and works for the new agent; or it dies meanwhile, and one of the
new version takes its place and reads its journal.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.launcher_rig import is_alive
from tests.terminal import a_terminal
from tests.upgrade.runners import RUNNERS, SESSIONS, needs, options, why_not
from tests.upgrade.workstation import Workstation, a_workstation, running_with

LIMIT = "15s"
"""Long enough for an upgrade on an idle machine, so that it usually expires after one."""
EXIT_CODE = 7
FINISH_WELL = "echo before; until [ -e go ]; do sleep 0.1; done; echo after"
FINISH = f"{FINISH_WELL}; exit {EXIT_CODE}"
ANSWER = f"echo before; read word; echo after-$word; exit {EXIT_CODE}"
_numbers = itertools.count(random.SystemRandom().randrange(100_000, 800_000))


def family() -> tuple[str, str]:
    """A script of several processes that run until they are killed, and what names all of them."""
    mark = f"sleep {next(_numbers)}"
    return f"({mark} &); {mark} & echo ready; {mark}; :", mark


@dataclass
class Upgraded:
    """A workstation after its upgrade, and the jobs that the old version has started."""

    workstation: Workstation
    is_launcher_kept: bool
    old_launcher: int = 0
    finishing: dict[str, str] = field(default_factory=dict)
    endless: dict[str, tuple[str, str]] = field(default_factory=dict)
    limited: dict[str, tuple[str, str]] = field(default_factory=dict)
    array: str = ""
    endless_array: tuple[str, str] = ("", "")
    gang: str = ""
    endless_gang: tuple[str, str] = ("", "")
    leased: str = ""
    service: str = ""

    def run(self, script: str, *words: str) -> str:
        return self.workstation.submit(*words, "--", "sh", "-c", script)

    def run_family(self, *words: str) -> tuple[str, str]:
        script, mark = family()
        return self.run(script, *words), mark

    def start_all(self) -> None:
        """Start one job of each kind, and wait until all of them run."""
        station = self.workstation
        usable = [runner for runner in RUNNERS if not why_not(runner)]
        for runner in usable:
            wanted = options(station, runner)
            self.finishing[runner] = self.run(ANSWER if runner in SESSIONS else FINISH, *wanted)
            self.endless[runner] = self.run_family(*wanted)
        self.array = self.run(f"{FINISH}$TGPU_ARRAY_INDEX", "-a", "1-2", "-c", "1")
        self.endless_array = self.run_family("-a", "0-1", "-c", "1")
        self.gang = self.run(FINISH_WELL, "-N", "2", "-G", "1")
        self.endless_gang = self.run_family("-N", "2", "-G", "1")
        self.leased = self.run(FINISH, "-G", "1", "--requeue-on-node-loss")
        check = ("--check", "test -e ../w", "--check-interval", "1s", "--wait")
        script, self.service = family()
        station.tgpu("service", "create", "web", "-c", "1", *check, "--", "sh", "-c", script)
        for runner in usable:
            self.limited[runner] = self.run_family("-t", LIMIT, *options(station, runner))
        for job in (*self.finishing.values(), self.gang, self.leased):
            station.until_logged(job, "before")
        for job, _ in (*self.endless.values(), *self.limited.values(), self.endless_gang):
            station.until_logged(job, "ready")
        for task in (1, 2):
            station.until_logged(self.array, "before", task=task)
        station.until(lambda: is_alive(station.watchdog_pid()), "the watchdog of leases")
        self.old_launcher = station.launcher_pid()


@pytest.fixture(
    scope="module",
    params=["launcher kept", pytest.param("launcher killed", marks=pytest.mark.slow)],
)
def upgraded(request: pytest.FixtureRequest, old_package: Path) -> Iterator[Upgraded]:
    """The workstation with all its jobs, right after the upgrade."""
    with a_workstation(old_package) as workstation:
        workstation.up()
        found = Upgraded(workstation, request.param == "launcher kept")
        found.start_all()
        workstation.down()
        workstation.installation.upgrade()
        if not found.is_launcher_kept:
            os.kill(found.old_launcher, signal.SIGKILL)
        workstation.up()
        yield found


def test_old_launcher_stays_as_long_as_it_has_jobs(upgraded: Upgraded) -> None:
    launcher = upgraded.workstation.launcher_pid()
    assert is_alive(launcher)
    assert (launcher == upgraded.old_launcher) == upgraded.is_launcher_kept


def test_jobs_are_listed_as_running(upgraded: Upgraded) -> None:
    listed = upgraded.workstation.json("list")["jobs"]
    running = {job["id"] for job in listed if job["state"] == "running"}
    assert running >= {
        *upgraded.finishing.values(),
        *(job for job, _ in upgraded.endless.values()),
        *(upgraded.array, upgraded.gang, upgraded.leased),
    }


@pytest.mark.parametrize("runner", RUNNERS)
def test_job_is_cancelled_with_all_its_processes(upgraded: Upgraded, runner: str) -> None:
    needs(runner)
    job, mark = upgraded.endless[runner]
    assert running_with(mark)
    upgraded.workstation.tgpu("cancel", job)
    assert upgraded.workstation.ended(job)["state"] == "cancelled"
    assert not running_with(mark)


@pytest.mark.parametrize("runner", SESSIONS)
def test_session_can_be_attached_and_its_exit_code_is_reported(
    upgraded: Upgraded, runner: str
) -> None:
    needs(runner)
    station, job = upgraded.workstation, upgraded.finishing[runner]
    with a_terminal(station.environment) as terminal:
        terminal.enter(f"tgpu attach {job}")
        terminal.see("before")
        terminal.enter("hello")
        ended = station.ended(job)
    assert (ended["state"], ended["exit_code"]) == ("failed", EXIT_CODE)
    assert "after-hello" in station.log(job)


def test_exit_codes_are_reported(upgraded: Upgraded) -> None:
    """The launcher that started a process learns its exit code; the next one learns its end."""
    station = upgraded.workstation
    known = upgraded.is_launcher_kept
    (station.work / "go").touch()
    jobs = [upgraded.finishing[name] for name in ("process", "container") if not why_not(name)]
    for job in (*jobs, upgraded.leased):
        ended = station.ended(job)
        is_known = known or ended["runner"] == "container"
        assert (ended["state"], ended["exit_code"]) == ("failed", EXIT_CODE if is_known else None)
        assert "after" in station.log(job)
    gang = station.ended(upgraded.gang)
    assert (gang["state"], gang["exit_code"]) == (("completed", 0) if known else ("failed", None))
    assert station.ended(upgraded.array)["state"] == "failed"
    for task in (1, 2):
        assert "after" in station.log(upgraded.array, task=task)
        code = station.job(f"{upgraded.array}_{task}")["exit_code"]
        assert code == (EXIT_CODE * 10 + task if known else None)


def test_arrays_and_gangs_are_cancelled_with_all_their_processes(upgraded: Upgraded) -> None:
    for job, mark in (upgraded.endless_array, upgraded.endless_gang):
        assert running_with(mark)
        upgraded.workstation.tgpu("cancel", job)
        assert upgraded.workstation.ended(job)["state"] == "cancelled"
        assert not running_with(mark)


def test_service_stays_ready_and_can_be_deleted(upgraded: Upgraded) -> None:
    station = upgraded.workstation
    before = running_with(upgraded.service)

    def is_ready() -> bool:
        return bool(station.json("service", "show", "web")["state"] == "ready")

    station.until(is_ready, "the service is ready")
    assert set(running_with(upgraded.service)) == set(before)
    station.tgpu("service", "delete", "web", "--wait")
    assert not running_with(upgraded.service)


@pytest.mark.parametrize("runner", RUNNERS)
def test_new_jobs_run_after_upgrade(upgraded: Upgraded, runner: str) -> None:
    needs(runner)
    job = upgraded.run("echo new; exit 5", *options(upgraded.workstation, runner))
    assert upgraded.workstation.ended(job)["exit_code"] == 5
    assert upgraded.workstation.log(job) == "new\n"


def test_dead_lease_watchdog_is_restarted(upgraded: Upgraded) -> None:
    """The launcher starts it by the name of its module, so the new version must have one too."""
    station = upgraded.workstation
    job = upgraded.run("echo ready; read forever < /dev/zero", "-G", "1", "--requeue-on-node-loss")
    station.until_logged(job, "ready")
    station.until(lambda: is_alive(station.watchdog_pid()), "a watchdog")
    first = station.watchdog_pid()
    os.kill(first, signal.SIGKILL)
    station.until(
        lambda: station.watchdog_pid() != first and is_alive(station.watchdog_pid()),
        "another watchdog",
    )
    station.tgpu("cancel", job)
    station.ended(job)


@pytest.mark.parametrize("runner", RUNNERS)
def test_time_limit_is_enforced(upgraded: Upgraded, runner: str) -> None:
    needs(runner)
    job, mark = upgraded.limited[runner]
    ended = upgraded.workstation.ended(job)
    assert ended["state"] == "failed"
    assert "time limit" in ended["reason"]
    assert not running_with(mark)
