"""Budgets of job logs on a node: for each job, for each user and in total, and space that is kept.

A budget that is exceeded is kept in this order: rotated parts are deleted, the oldest first; then
logs of ended attempts, the oldest first; then the logs of running jobs are cut, the largest first.
A log that is cut begins with a line that says so, and the job goes on. When the file system is
nearly full, only logs of running jobs are cut: what others filled it with is not the logs' fault.

`choose_files` decides and does no I/O. The launcher stores the uid of a job's user as the group of
its log directory, which has mode 700.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.jobs.log_reader import job_of
from gpu_scheduler.agent.launcher.scratch import DISCARDED_PREFIX
from gpu_scheduler.agent.launcher_client import Launcher

SPACE_INTERVAL_S = 2.0
BUDGET_INTERVAL_S = 10.0
MAX_LOAD = 0.05
"""The part of the time that may be spent on listing the logs."""
REPORT_INTERVAL_S = 60.0
"""The cuts of one log within this time are reported as one."""
LEAST_CUT_BYTES = 1 << 20
"""Smaller logs of running jobs are not cut for lack of space."""
MOST_FREE_BYTES = 1 << 30
LEFT_AFTER_S = 120.0
"""A discarded scratch directory that is older could not be removed."""
BLOCK_BYTES = 512
"""The unit of `st_blocks`."""
PAUSE_EVERY = 50
PAUSE_S = 0.001
MB = 1 << 20

log = structlog.get_logger("agent")


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a log. `is_running`: its attempt has not ended; `is_part`: it was rotated."""

    path: str
    job_id: str
    uid: int
    size: int
    mtime_ns: int
    is_part: bool = False
    is_running: bool = False

    @property
    def log_name(self) -> str:
        """The name of the log that it is, or of which it is a part."""
        base, suffix, _ = os.path.basename(self.path).rpartition(".log")  # noqa: PTH119
        return base + suffix

    @property
    def is_open(self) -> bool:
        """Tell whether a job may still write to it."""
        return self.is_running and not self.is_part


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBudgets:
    """Limits in bytes; `user` is 0 where all jobs belong to one user.

    `free` bytes of the disk stay free.
    """

    job: int
    user: int
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class LogCut:
    """The number of bytes cut from the log of a running attempt."""

    allocation_id: str
    member: int
    cut_bytes: int
    reason: str


def budgets_of(config: AgentConfig, size: int, *, many_users: bool) -> LogBudgets:
    """The budgets of the configuration; 0 there stands for a part of the file system's size."""
    total = config.log_total_bytes or size // 2
    user = config.log_user_bytes or total // 2
    job = config.log_job_bytes or user // 2
    free = config.log_free_bytes or min(MOST_FREE_BYTES, size // 20)
    return LogBudgets(job=job, user=user if many_users else 0, total=total, free=free)


def choose_files(logs: Iterable[LogFile], budgets: LogBudgets) -> Iterator[tuple[LogFile, str]]:
    """The files to delete or cut, each with the reason, to meet every budget."""
    left = {log.path: log for log in logs}
    jobs: dict[str, list[LogFile]] = {}
    for one in left.values():
        jobs.setdefault(one.job_id, []).append(one)
    for files in jobs.values():
        for chosen in _excess(files, budgets.job):
            del left[chosen.path]
            yield chosen, f"the logs of this job exceed {_mb(budgets.job)} (jobs.log_job_mb)"
    users: dict[int, list[LogFile]] = {}
    for one in left.values():
        users.setdefault(one.uid, []).append(one)
    for uid, files in users.items() if budgets.user else ():
        for chosen in _excess(files, budgets.user):
            users[uid].remove(chosen)
            yield (
                chosen,
                f"the logs of this user exceed {_mb(budgets.user)} on this node (jobs.log_user_mb)",
            )
    sizes = [sum(one.size for one in files) for files in users.values()]
    if sum(sizes) > budgets.total:
        # Users with few logs keep them: every user gets the same, and what one does not use is for
        # the others.
        share = _fair_share(sizes, budgets.total)
        for files in users.values():
            for chosen in _excess(files, share):
                yield (
                    chosen,
                    f"all logs exceed {_mb(budgets.total)} on this node (jobs.log_total_mb)",
                )


def choose_to_cut(logs: Iterable[LogFile], missing: int) -> Iterator[tuple[LogFile, str]]:
    """The files of running jobs to delete or cut, so that `missing` bytes become free."""
    running = [one for one in logs if one.is_running and one.size >= LEAST_CUT_BYTES]
    for chosen in _excess(running, sum(one.size for one in running) - missing):
        yield chosen, "the disk of the logs is nearly full (jobs.log_free_mb)"


def _excess(files: Collection[LogFile], most: int) -> list[LogFile]:
    over = sum(one.size for one in files) - most
    chosen = []
    for one in sorted(files, key=_order) if over > 0 else ():
        if over <= 0:
            break
        over -= one.size
        chosen.append(one)
    return chosen


def _order(one: LogFile) -> tuple[int, int, str]:
    if one.is_open:
        return 2, -one.size, one.path
    return (0 if one.is_part else 1), one.mtime_ns, one.path


def _fair_share(sizes: list[int], total: int) -> int:
    """The most that each user may have, so that all of them together have `total`."""
    for place, size in enumerate(sorted(sizes)):
        share = total // (len(sizes) - place)
        if size >= share:
            return share
        total -= size
    return total


def _mb(size: int) -> str:
    return f"{size / MB:.4g} MiB"


def find_logs(logs_dir: Path, jobs: Collection[str] | None = None) -> list[LogFile]:
    """The log files, of these jobs or of all.

    Their size is what they take on the disk: a job can reserve space behind the end of its log, or
    move that end far away without writing.
    Other threads get a chance now and then: there may be 100,000 directories.
    """
    found: list[LogFile] = []
    try:
        names = [path.name for path in logs_dir.iterdir()] if jobs is None else list(jobs)
    except OSError:
        return found
    one_user = os.geteuid() != 0
    for count, job_id in enumerate(names, 1):
        if count % PAUSE_EVERY == 0:
            time.sleep(PAUSE_S)
        try:
            uid = os.geteuid() if one_user else os.lstat(logs_dir / job_id).st_gid
            with os.scandir(logs_dir / job_id) as entries:
                for entry in entries:
                    _, is_log, part = entry.name.rpartition(".log")
                    status = entry.stat(follow_symlinks=False)
                    if is_log and entry.is_file(follow_symlinks=False):
                        found.append(
                            LogFile(
                                *(entry.path, job_id, uid),
                                *(status.st_blocks * BLOCK_BYTES, status.st_mtime_ns),
                                is_part=bool(part),
                            )
                        )
        except OSError:
            continue
    return found


def mark_running(logs: Iterable[LogFile], running: Collection[str]) -> list[LogFile]:
    """These files, marked if their logs are in use; `running` are the names of such logs."""
    return [
        replace(one, is_running=True) if running and one.log_name in running else one
        for one in logs
    ]


def drop(chosen: LogFile, reason: str) -> bool:
    """Delete a file, or cut it if a job has it open; False if that failed."""
    try:
        if not chosen.is_open:
            Path(chosen.path).unlink()
            return True
        file = os.open(chosen.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        try:
            # Tmpfs frees space behind the end of a file only if the size changes.
            os.ftruncate(file, 1)
            os.ftruncate(file, 0)
            cut = f"tgpu: {_mb(chosen.size)} of this log were cut: {reason}\n"
            os.write(file, cut.encode())
        finally:
            os.close(file)
    except OSError as error:
        log.warning("cannot cut a log", path=chosen.path, error=str(error))
        return False
    return True


def count_leftovers(scratch_dir: Path, now_s: float) -> int:
    """The number of scratch directories that could not be removed."""
    count = 0
    try:
        with os.scandir(scratch_dir) as entries:
            for entry in entries:
                if entry.name.startswith(DISCARDED_PREFIX):
                    status = entry.stat(follow_symlinks=False)
                    count += status.st_ctime < now_s - LEFT_AFTER_S
    except OSError:
        return count
    return count


@dataclass(frozen=True, slots=True)
class _Disk:
    """The file system of the logs: their budgets there, and how many bytes are free."""

    budgets: LogBudgets
    free: int


class LogKeeper:
    """Keeps the budgets. `log_bytes` and `leftovers` are as of the last check."""

    def __init__(self, config: AgentConfig, launcher: Launcher) -> None:
        """Nothing is checked yet."""
        self._config = config
        self._launcher = launcher
        self._logs_dir = Path(config.logs_dir)
        self._cuts: dict[str, LogCut] = {}
        self._reported_s = -REPORT_INTERVAL_S
        self.log_bytes = 0
        self.leftovers = 0

    async def run(self) -> None:
        """Check until cancelled."""
        budget_due_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= budget_due_s:
                await self.check_budgets()
                took_s = time.monotonic() - now_s
                budget_due_s = now_s + max(BUDGET_INTERVAL_S, took_s / MAX_LOAD)
            await self.check_space()
            await asyncio.sleep(SPACE_INTERVAL_S)

    async def check_budgets(self) -> None:
        """Delete and cut what exceeds a budget."""
        disk = await asyncio.to_thread(self._disk)
        if disk is None:
            return
        # Listed first: the log of an attempt that starts meanwhile is not one of an ended attempt.
        logs = await asyncio.to_thread(find_logs, self._logs_dir)
        running = await self._running()

        def choose() -> list[tuple[LogFile, str]]:
            return list(choose_files(mark_running(logs, running.keys()), disk.budgets))

        dropped = await self._drop(await asyncio.to_thread(choose), running)
        self.log_bytes = sum(one.size for one in logs) - dropped
        scratch = Path(self._config.scratch_dir)
        self.leftovers = await asyncio.to_thread(count_leftovers, scratch, time.time())

    async def check_space(self) -> None:
        """Cut the logs of running jobs, if the file system is nearly full."""
        disk = await asyncio.to_thread(self._disk)
        if disk is None or (missing := disk.budgets.free - disk.free) <= 0:
            return
        running = await self._running()
        jobs = {job_of(allocation_id) for allocation_id, _ in running.values()}
        logs = await asyncio.to_thread(find_logs, self._logs_dir, jobs)
        logs = mark_running(logs, running.keys())
        await self._drop(list(choose_to_cut(logs, missing)), running)

    async def _running(self) -> dict[str, tuple[str, int]]:
        """Allocation and member of every attempt that has not ended, by the name of its log."""
        return {
            f"{allocation_id}.{member}.log": (allocation_id, member)
            for allocation_id, member, over in await self._launcher.held()
            if over is None
        }

    def _disk(self) -> _Disk | None:
        try:
            disk = os.statvfs(self._logs_dir)
        except OSError:
            return None
        size = disk.f_blocks * disk.f_frsize
        budgets = budgets_of(self._config, size, many_users=os.geteuid() == 0)
        return _Disk(budgets, disk.f_bavail * disk.f_frsize)

    async def _drop(
        self, chosen: list[tuple[LogFile, str]], running: dict[str, tuple[str, int]]
    ) -> int:
        """Delete and cut these; returns how many bytes that freed."""
        freed = 0
        for one, reason in chosen:
            if not await asyncio.to_thread(drop, one, reason):
                continue
            freed += one.size
            if one.is_open:
                name = os.path.basename(one.path)  # noqa: PTH119
                before = self._cuts.get(name)
                size = one.size + (before.cut_bytes if before else 0)
                self._cuts[name] = LogCut(*running[name], size, reason)
        if chosen:
            log.warning("dropped logs", files=len(chosen), bytes=freed, reason=chosen[-1][1])
        return freed

    def take_cuts(self) -> list[LogCut]:
        """The logs that were cut, each at most once in `REPORT_INTERVAL_S`."""
        now_s = time.monotonic()
        if not self._cuts or now_s < self._reported_s + REPORT_INTERVAL_S:
            return []
        self._reported_s = now_s
        cuts = list(self._cuts.values())
        self._cuts.clear()
        return cuts
