"""Budgets of job logs: which files go first, and how a log in use is cut."""

import asyncio
import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.jobs import log_budget
from gpu_scheduler.agent.jobs.log_budget import (
    LogBudgets,
    LogFile,
    LogKeeper,
    budgets_of,
    choose_files,
    choose_to_cut,
    count_leftovers,
)
from gpu_scheduler.agent.launcher_protocol import Over

MB = 1 << 20
PLENTY = 1_000 * MB
KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE"""


def a_file(name: str, size_mb: int = 1, *, uid: int = 1, age: int = 0, **more: Any) -> LogFile:
    job = name.partition("/")[0]
    return LogFile(name, job, uid, size_mb * MB, 1_000 - age, **more)


def budgets(job: int = PLENTY, user: int = PLENTY, total: int = PLENTY) -> LogBudgets:
    return LogBudgets(job=job, user=user, total=total, free=0)


def chosen(files: list[LogFile], limits: LogBudgets) -> list[str]:
    return [one.path for one, _ in choose_files(files, limits)]


def test_nothing_is_dropped_within_budgets() -> None:
    assert chosen([a_file("j/1", 10)], budgets(job=10 * MB, user=10 * MB, total=10 * MB)) == []


def test_rotated_parts_go_first_then_ended_logs_then_running_ones() -> None:
    files = [
        a_file("j/running", 4, is_running=True),
        a_file("j/ended", age=9),
        a_file("j/ended-later", age=1),
        a_file("j/running.1", is_part=True, is_running=True, age=2),
        a_file("j/ended.1", is_part=True, age=5),
    ]
    assert chosen(files, budgets(job=7 * MB)) == ["j/ended.1"]
    assert chosen(files, budgets(job=5 * MB)) == ["j/ended.1", "j/running.1", "j/ended"]
    assert chosen(files, budgets(job=1 * MB))[-1] == "j/running"


def test_user_over_budget_loses_no_log_of_others() -> None:
    files = [a_file(f"j{number}/log", 2, age=number) for number in range(5)]
    files.append(a_file("other/log", 2, uid=2, age=99))
    assert chosen(files, budgets(user=6 * MB)) == ["j4/log", "j3/log"]
    reasons = [reason for _, reason in choose_files(files, budgets(user=6 * MB))]
    assert reasons[0] == "the logs of this user exceed 6 MiB on this node (jobs.log_user_mb)"


def test_total_is_taken_from_users_with_most_logs() -> None:
    files = [a_file(f"big{number}/log", 2, age=number) for number in range(10)]
    files += [a_file("small/log", 2, uid=2, age=99), a_file("tiny/log", 1, uid=3, age=99)]
    dropped = chosen(files, budgets(total=9 * MB))
    assert dropped == [f"big{number}/log" for number in range(9, 2, -1)]


def test_lack_of_space_cuts_only_large_logs_of_running_jobs() -> None:
    files = [
        a_file("j/ended", 500),
        a_file("j/small", 0, is_running=True),
        a_file("j/flood", 50, is_running=True),
        a_file("j/flood.1", 10, is_running=True, is_part=True),
        a_file("k/other", 20, is_running=True),
    ]
    assert [one.path for one, _ in choose_to_cut(files, 30 * MB)] == ["j/flood.1", "j/flood"]


@pytest.mark.parametrize(("many", "user"), [(True, 25), (False, 0)])
def test_default_budgets_are_parts_of_the_file_system(many: bool, user: int) -> None:
    config = AgentConfig(node="n", targets=(), dir="", logs_dir="", scratch_dir="")
    found = budgets_of(config, 100 * MB, many_users=many)
    assert found == LogBudgets(job=25 * MB // 2, user=user * MB, total=50 * MB, free=5 * MB)


class HeldWork:
    """A launcher with one running and one ended attempt."""

    async def held(self) -> list[tuple[str, int, Over | None]]:
        over = Over(allocation_id="job-2.1", member=0, ran=True, at_ms=0)
        return [("job-1.1", 0, None), ("job-2.1", 0, over)]


def a_keeper(tmp_path: Path, **limits: int) -> LogKeeper:
    config = AgentConfig(
        node="n", targets=(), dir="", logs_dir=str(tmp_path), scratch_dir="", **limits
    )
    launcher: Any = HeldWork()
    return LogKeeper(config, launcher)


def test_log_in_use_is_cut_and_says_so(tmp_path: Path) -> None:
    for name, size in (("job-1/job-1.1.0.log", 3), ("job-2/job-2.1.0.log", 3)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"x" * size * MB)
    with (tmp_path / "job-1/job-1.1.0.log").open("ab") as writer:
        keeper = a_keeper(tmp_path, log_job_bytes=2 * MB, log_total_bytes=100 * MB)
        asyncio.run(keeper.check_budgets())
        writer.write(b"the job goes on\n")
    assert not (tmp_path / "job-2/job-2.1.0.log").exists()
    first, last = (tmp_path / "job-1/job-1.1.0.log").read_text().splitlines()
    assert first.startswith("tgpu: 3 MiB of this log were cut: the logs of this job exceed 2 MiB")
    assert last == "the job goes on"
    (cut,) = keeper.take_cuts()
    assert (cut.allocation_id, cut.member, cut.cut_bytes) == ("job-1.1", 0, 3 * MB)
    assert keeper.log_bytes == 0
    asyncio.run(keeper.check_budgets())
    assert keeper.take_cuts() == []


def test_space_that_job_reserves_behind_end_of_log_counts_and_is_freed(tmp_path: Path) -> None:
    log = tmp_path / "job-1/job-1.1.0.log"
    log.parent.mkdir()
    log.write_bytes(b"small\n")
    with log.open("ab") as writer:
        if ctypes.CDLL(None).fallocate(writer.fileno(), KEEP_SIZE, 0, ctypes.c_long(9 * MB)):
            pytest.skip("this file system cannot reserve space behind the end of a file")
        assert log.stat().st_size < MB < log.stat().st_blocks * 512
        keeper = a_keeper(tmp_path, log_job_bytes=2 * MB, log_total_bytes=100 * MB)
        asyncio.run(keeper.check_budgets())
    assert log.stat().st_blocks * 512 < MB
    assert b"were cut" in log.read_bytes()


def test_end_of_log_that_job_moves_away_counts_nothing(tmp_path: Path) -> None:
    """The sum of such sizes would not fit into the message of the agent."""
    for number in range(3):
        log = tmp_path / f"job-{number}/job-{number}.1.0.log"
        log.parent.mkdir()
        log.write_bytes(b"x" * MB)
        os.truncate(log, 1 << 43)
    keeper = a_keeper(tmp_path, log_total_bytes=100 * MB)
    asyncio.run(keeper.check_budgets())
    assert keeper.log_bytes < 4 * MB
    assert len(list(tmp_path.glob("*/*.log"))) == 3


def test_log_of_attempt_that_starts_during_the_check_is_kept(tmp_path: Path) -> None:
    large, new = tmp_path / "job-1/job-1.1.0.log", tmp_path / "job-3/job-3.1.0.log"
    large.parent.mkdir()
    large.write_bytes(b"x" * 9 * MB)
    keeper = a_keeper(tmp_path, log_total_bytes=2 * MB, log_job_bytes=100 * MB)

    class StartsWork(HeldWork):
        async def held(self) -> list[tuple[str, int, Over | None]]:
            before = await super().held()
            new.parent.mkdir(exist_ok=True)
            new.write_bytes(b"just begun\n")
            return before

    keeper._launcher = StartsWork()  # type: ignore[assignment]
    asyncio.run(keeper.check_budgets())
    assert new.read_bytes() == b"just begun\n"
    assert b"were cut" in large.read_bytes()


def test_writer_is_cut_when_space_is_low(tmp_path: Path) -> None:
    log = tmp_path / "job-1/job-1.1.0.log"
    log.parent.mkdir()
    log.write_bytes(b"x" * 3 * MB)
    asyncio.run(a_keeper(tmp_path, log_free_bytes=1).check_space())
    assert log.stat().st_size == 3 * MB
    asyncio.run(a_keeper(tmp_path, log_free_bytes=1 << 60).check_space())
    assert b"the disk of the logs is nearly full" in log.read_bytes()


def test_link_in_place_of_log_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"x" * 3 * MB)
    (tmp_path / "logs/job-1").mkdir(parents=True)
    (tmp_path / "logs/job-1/job-1.1.0.log").symlink_to(victim)
    asyncio.run(a_keeper(tmp_path / "logs", log_free_bytes=1 << 60).check_space())
    assert victim.stat().st_size == 3 * MB


def test_only_old_discarded_directories_are_leftovers(tmp_path: Path) -> None:
    for name in ("gone-1", "gone-2", "spare-3", "job-1.1.0"):
        (tmp_path / name).mkdir()
    now_s = (tmp_path / "gone-1").stat().st_ctime
    assert count_leftovers(tmp_path, now_s) == 0
    assert count_leftovers(tmp_path, now_s + log_budget.LEFT_AFTER_S + 1) == 2
    assert count_leftovers(tmp_path / "none", now_s) == 0
