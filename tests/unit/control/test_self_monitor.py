"""Problems that a server detects in its own store, disk, clock and log, and their end."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.control.clock import SchedulerClock
from gpu_scheduler.control.self_monitoring import (
    KEPT,
    REMEMBERED_S,
    SAMPLE_S,
    SHORT_BOUNDS,
    HealthFinding,
    Histogram,
    SelfMonitor,
)


class Bench:
    """SelfMonitor on times that the test sets."""

    def __init__(self, directory: Path) -> None:
        self.commits = Histogram(SHORT_BOUNDS)
        self.monotonic = 100.0
        self.wall = 1_000_000.0
        self.lost = 0
        self.commit_age_s = 0.0
        self.clock = SchedulerClock(
            wall_ms=lambda: round(self.wall * 1000),
            boot_ms=lambda: round(self.monotonic * 1000),
            boot_id=lambda: "boot",
            is_synchronised=lambda: False,
        )
        self.vitals = SelfMonitor(
            str(directory),
            self.commits,
            self.clock,
            monotonic=lambda: self.monotonic,
            lost_lines=lambda: self.lost,
            commit_age_s=lambda: self.commit_age_s,
        )

    def pass_time(self, seconds: float = SAMPLE_S) -> None:
        self.monotonic += seconds
        self.wall += seconds
        self.vitals.sample()
        for step in self.clock.take_steps():
            self.vitals.note_step(step)

    def found(self, check: str) -> list[HealthFinding]:
        return [finding for finding in self.vitals() if finding.check == check]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_healthy_server_has_no_findings(bench: Bench) -> None:
    for _ in range(20):
        bench.commits.add(0.002)
        bench.pass_time()
    assert [finding for finding in bench.vitals() if finding.check != "disk"] == []


def test_hanging_commit_is_reported_while_it_lasts(bench: Bench) -> None:
    bench.commit_age_s = 1.9
    assert bench.found("store") == []
    bench.commit_age_s = 7.3
    (found,) = bench.found("store")
    assert found.status == "degraded"
    assert "running for 7 s" in found.detail
    assert "running jobs continue" in found.remedy
    bench.commit_age_s = 0.0
    assert bench.found("store") == []


def test_slow_commits_are_reported_until_fast_again(bench: Bench) -> None:
    for _ in range(5):
        bench.commits.add(2.0)
    bench.pass_time()
    (found,) = bench.found("store")
    assert found.status == "degraded"
    assert "2.0 s" in found.detail
    assert "SSD" in found.remedy
    for _ in range(KEPT + 1):
        bench.commits.add(0.01)
        bench.pass_time()
    assert bench.found("store") == []


def test_clock_step_is_reported_for_limited_time(bench: Bench) -> None:
    bench.wall += 3600
    bench.pass_time()
    held_back, step = bench.found("clock")
    assert "3600 s ahead; begin times" in held_back.detail
    assert "+3600 s" in step.detail
    assert "chrony" in step.remedy
    bench.wall -= 3600
    bench.pass_time()
    (step,) = bench.found("clock")
    assert "2 times recently, last by -3600 s" in step.detail
    bench.pass_time(REMEMBERED_S + 1)
    assert bench.found("clock") == []


def test_clock_behind_stored_time_is_reported_until_caught_up(bench: Bench) -> None:
    bench.wall -= 120
    bench.clock.resume(None, round((bench.wall + 120) * 1000), is_idle=False)
    (found,) = bench.found("clock")
    assert "120 s behind" in found.detail
    bench.wall += 120
    bench.pass_time()
    bench.pass_time(REMEMBERED_S + 1)
    assert bench.found("clock") == []


def test_gap_that_was_not_counted_is_reported(bench: Bench) -> None:
    stored = replace(bench.clock.stored(), boot_id="another")
    bench.wall += 864_000
    bench.clock.resume(stored, 0, is_idle=False)
    details = [finding.detail for finding in bench.found("clock")]
    assert any("by 864000 s, of which 86400 s count" in detail for detail in details)


def test_low_or_full_disk_is_reported(bench: Bench, tmp_path: Path, monkeypatch: Any) -> None:
    def a_disk(free_mb: int, files: int) -> os.statvfs_result:
        blocks = 100 * 1024
        return os.statvfs_result(
            (4096, 1 << 20, blocks, free_mb, free_mb, 10**6, files, files, 0, 255)
        )

    monkeypatch.setattr(os, "statvfs", lambda _: a_disk(50_000, 10**6))
    assert bench.found("disk") == []
    monkeypatch.setattr(os, "statvfs", lambda _: a_disk(100, 10**6))
    assert "100 MiB are free" in bench.found("disk")[0].detail
    monkeypatch.setattr(os, "statvfs", lambda _: a_disk(50_000, 3))
    assert "3 more files" in bench.found("disk")[0].detail
    monkeypatch.undo()
    gone = Bench(tmp_path / "gone")
    assert "cannot be read" in gone.found("disk")[0].detail


def test_lost_log_lines_are_reported(bench: Bench) -> None:
    bench.lost = 7
    assert "7 lines" in bench.found("logs")[0].detail
