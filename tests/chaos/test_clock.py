"""The server's wall clock is set ahead and back while it runs and while it is down."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.chaos.audit import ENDED, read_notes
from tests.chaos.single_server import SingleServer, a_single_server, compile_c
from tests.chaos.workload import Workload

pytestmark = pytest.mark.slow

HOUR_S = 3600


class WallClock:
    """The time of day as the server sees it."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "clock"
        self.file.write_bytes(struct.pack("q", 0))
        compile_c("clock.c", directory / "clock.so", "-shared", "-fPIC", "-O1")
        self.environment = {
            "LD_PRELOAD": str(directory / "clock.so"),
            "CLOCK_FILE": str(self.file),
        }

    def move(self, seconds: int) -> None:
        with self.file.open("r+b") as file:
            file.write(struct.pack("q", seconds))


def test_clock_step_back_stalls_nothing_and_gives_no_negative_time() -> None:
    with a_single_server(jobs_assignment_retry_wait_s="0.2") as scheduler:
        clock = WallClock(scheduler.directory)
        workload = Workload(scheduler.directory, Random(1))
        scheduler.start(environment=clock.environment)
        across = scheduler.submit(workload.until_told("exit:42").body)
        scheduler.until(scheduler.witnesses, "a job that runs while the clock is set")
        end(scheduler, submit_some(scheduler, workload))
        clock.move(-HOUR_S)
        end(scheduler, submit_some(scheduler, workload))
        scheduler.release_jobs()
        end(scheduler, [across])
        assert scheduler.get(f"/jobs/{across}")["exit_code"] == 42

        (scheduler.directory / "end").unlink()
        away = scheduler.submit(workload.until_told("exit:43").body)
        scheduler.until(scheduler.witnesses, "a job that runs while the server is away")
        scheduler.kill_server()
        clock.move(-5 * HOUR_S)
        scheduler.start(environment=clock.environment)
        end(scheduler, submit_some(scheduler, workload))
        scheduler.release_jobs()
        end(scheduler, [away])
        assert scheduler.get(f"/jobs/{away}")["exit_code"] == 43
        times_make_sense(scheduler, away)


def test_clock_that_steps_ten_days_ahead_and_back_charges_nothing_for_it() -> None:
    with a_single_server() as scheduler:
        clock = WallClock(scheduler.directory)
        workload = Workload(scheduler.directory, Random(2))
        scheduler.start(environment=clock.environment)
        began = datetime.now(UTC)
        in_five_days = (began + timedelta(days=5)).isoformat()
        later = scheduler.submit(workload.sleeper().body | {"begin_at": in_five_days})
        across = scheduler.submit(workload.until_told("exit:0").body)
        scheduler.until(scheduler.witnesses, "a job that runs while the clock is set")
        for days in (10, 0):
            clock.move(days * 24 * HOUR_S)
            scheduler.until(lambda: "the clock was set" in clock_check(scheduler), "a finding")
            end(scheduler, submit_some(scheduler, workload))
        clock.move(10 * 24 * HOUR_S)
        scheduler.kill_server()
        scheduler.start(environment=clock.environment)
        scheduler.until(lambda: "the clock was set" in clock_check(scheduler), "a finding")
        scheduler.release_jobs()
        end(scheduler, [across])
        assert scheduler.get(f"/jobs/{later}")["state"] == "pending"
        steps = [
            event["data"]["by_ms"]
            for event in scheduler.get("/events?after=0&limit=1000")["events"]
            if event["kind"] == "clock_stepped"
        ]
        assert [round(by_ms / 1000 / HOUR_S) for by_ms in steps] == [240, -240, 240]
        (usage,) = [row for row in scheduler.get("/usage")["usage"] if row["user"] is None]
        assert 0 < usage["gpu_hours"] < 24
        ended = datetime.fromisoformat(scheduler.get(f"/jobs/{across}")["ended_at"])
        assert began - timedelta(minutes=1) < ended < began + timedelta(hours=1)


def clock_check(scheduler: SingleServer) -> str:
    check: str = scheduler.get("/health")["checks"]["clock"]
    return check


def submit_some(scheduler: SingleServer, workload: Workload) -> list[str]:
    """Jobs that depend on time: retries with back-off, dependencies, sleeps."""
    drawn = [workload.retried(), workload.sleeper(), workload.array(), workload.gang()]
    ids = [scheduler.submit(plan.body) for plan in drawn]
    workload.acknowledged += ids
    return [*ids, scheduler.submit(workload.dependent().body)]


def end(scheduler: SingleServer, ids: list[str]) -> None:
    def ended() -> bool:
        return all(scheduler.get(f"/jobs/{job_id}")["state"] in ENDED for job_id in ids)

    scheduler.until(ended, f"the end of {ids}", 60)


def times_make_sense(scheduler: SingleServer, away: str) -> None:
    events = scheduler.get("/events?after=0&limit=1000")["events"]
    told = [event["at"] for event in events]
    assert told == sorted(told)
    runs, wrong = read_notes(scheduler.notes)
    assert wrong == []
    ran_s: dict[tuple[Any, ...], float] = {}
    for run in runs:
        assert run.end_ns is not None
        seconds = (run.end_ns - run.begin_ns) / 1e9
        ran_s[run.attempt] = max(seconds, ran_s.get(run.attempt, 0.0))
    for job in scheduler.jobs():
        for attempt in scheduler.get(f"/jobs/{job['id']}/attempts")["attempts"]:
            held_s = seconds_between(attempt["started_at"], attempt["ended_at"])
            # The duration of an outage can only be estimated when the clock was set meanwhile.
            least_s = 0 if job["id"] == away else ran_s[_key(attempt)]
            # Stored times have milliseconds; a busy machine is slow, but not by an hour.
            assert least_s - 0.01 <= held_s < least_s + HOUR_S / 2, attempt
    (usage,) = [row for row in scheduler.get("/usage")["usage"] if row["user"] is None]
    assert 0 < usage["gpu_hours"] < 1


def _key(attempt: dict[str, Any]) -> tuple[Any, ...]:
    return attempt["job_id"], attempt["task"], attempt["attempt"]


def seconds_between(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
