"""Run the launcher: take over from its predecessor, then carry out orders until asked to leave.

The journal of a launcher that has died comes in, attempts come out: processes that run are watched
again, the others end with an unknown exit code, and nothing is ever started a second time. A
damaged journal is backed up; only what cannot be read of it is lost.
"""

from __future__ import annotations

import gc
import os

from gpu_scheduler.agent.cgroups import Group
from gpu_scheduler.agent.launcher import journal, processes
from gpu_scheduler.agent.launcher.context import LauncherContext
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.log_rotation import launcher_log
from gpu_scheduler.agent.launcher.loop import Loop, now_ms
from gpu_scheduler.agent.launcher.rpc import RpcServer
from gpu_scheduler.agent.launcher.supervisor import Supervisor
from gpu_scheduler.agent.launcher_protocol import (
    NOT_BEGUN,
    Key,
    Message,
    Work,
    decode_over,
    decode_work,
)
from gpu_scheduler.agent.runners.interface import Ending
from gpu_scheduler.agent.spawn.fork_server import ForkServer

REMOVE_GROUPS_MS = 1_000
"""By then the pre-forked children of a launcher that has died are gone as well."""
IDLE_EXIT_MS = 600_000
"""A launcher without work exits when no agent has connected for this long."""
REBOOTED = "the machine was restarted: exit code unknown"
NEVER_BEGAN = "the launcher died before the command began"


def serve(directory: str, fork_server: ForkServer | None) -> None:
    """Recover, then work until asked to leave, or idle without an agent for a long time.

    Ends that no agent has read stay in the journal, where the next launcher finds them.
    """
    launcher_log.open(directory)
    processes.become_subreaper()
    loop = Loop()
    server = RpcServer(loop, directory)
    context = LauncherContext(directory, loop, fork_server, server.broadcast, server.flush)
    loop.catch_children()
    supervisor = Supervisor(context)
    recover(context, supervisor)
    loop.after(REMOVE_GROUPS_MS, context.prefork.remove_old_groups)
    supervisor.commit_turn()
    server.open(supervisor)
    # These objects stay: a collection would write to their pages, which are copied after a fork.
    gc.collect()
    gc.freeze()
    while not server.stop_requested and not (server.alone_ms > IDLE_EXIT_MS and supervisor.is_idle):
        loop.turn()
        supervisor.commit_turn()
        server.flush()
    server.close()
    context.prefork.clear()
    context.directories.clear()
    context.cgroups.remove_empty_homes()


def recover(context: LauncherContext, supervisor: Supervisor) -> None:
    """Read the journal, take over its attempts, and rewrite it without what was forgotten."""
    os.makedirs(context.journal.directory, mode=0o700, exist_ok=True)
    found = journal.read(context.journal.path)
    removals = supervisor.cleanup.removals
    for record in found.records:
        if not removals.replay(record):
            _replay(context, record)
    backup = ""
    try:
        if found.unreadable or found.torn:
            backup = journal.back_up(context.journal.path)
            launcher_log.warning(f"damaged journal kept as {backup}")
        context.journal.rewrite(supervisor.records())
    except OSError as error:
        # Go on with the old file, including its damaged lines.
        launcher_log.warning(f"cannot rewrite the journal: {error}")
        context.journal.open()
    supervisor.leases.recover(context.boot)
    for attempt in list(context.attempts.values()):
        if attempt.over is None:
            context.loop.call(_take_over, context, supervisor, attempt)
    supervisor.leases.check()
    damaged = f"its record was damaged (kept as {backup or context.journal.path})"
    for key in found.damaged:
        _recover_unrecorded(context, supervisor, key, Ending(detail=damaged))
    for key in found.torn:
        _recover_unrecorded(context, supervisor, key, Ending(ran=False, detail=NEVER_BEGAN))
    supervisor.check_files_later()
    removals.resume()


def _replay(context: LauncherContext, record: Message) -> None:
    """Apply one record to the table of attempts; invalid records are skipped."""
    attempts = context.attempts
    try:
        key = (str(record["allocation_id"]), int(record["member"]))
        kind = record["kind"]
        if kind in {"accepted", "began"}:
            work = decode_work(record["work"], lenient=True)
            attempt = attempts.get(key)
            if attempt is None or kind == "began":
                attempt = Attempt(work, context.runners.get(work.runner))
            attempts[key] = attempt
            attempt.journal_records.append(record)
            if kind == "began":
                _restore_start(attempt, record, context.boot)
        elif kind == "stop" and key in attempts:
            attempts[key].stopped_by = str(record["why"])
            attempts[key].journal_records.append(record)
        elif kind == "job" and key in attempts:
            attempt = attempts[key]
            attempt.journal_records.append(record)
            ticks = int(record["ticks"])
            if ticks:
                attempt.job_pid, attempt.job_ticks = int(record["pid"]), ticks
        elif kind == "end":
            attempts[key] = _restore_end(key, record)
        elif kind == "forget":
            attempts.pop(key, None)
    except (KeyError, ValueError, TypeError) as error:
        launcher_log.warning(f"journal record skipped: {error!r}")


def _restore_start(attempt: Attempt, record: Message, boot: str) -> None:
    attempt.pid = int(record["pid"])
    attempt.ticks = int(record["ticks"])
    attempt.began_ms = int(record["boot_ms"])
    attempt.began_wall_ms = int(record["at_ms"])
    attempt.start.released = True
    if record["boot"] == boot:
        attempt.group = Group(tuple(record["groups"]), str(record["memory_group"]))
    else:
        attempt.pid = -1


def _restore_end(key: Key, record: Message) -> Attempt:
    over = decode_over(record["over"])
    if over is None:
        raise ValueError("an end without a report")
    work = Work(
        allocation_id=key[0],
        member=key[1],
        scratch_dir=str(record["scratch_dir"]),
        uid=int(record["uid"]),
    )
    attempt = Attempt(work)
    attempt.over = over
    attempt.phase = Phase.OVER
    attempt.journal_records.append(record)
    return attempt


def _take_over(context: LauncherContext, supervisor: Supervisor, attempt: Attempt) -> None:
    """Watch an attempt of the former launcher, or end it. Its pid is -1 after a reboot."""
    attempt.adopted = True
    if attempt.pid == 0:
        attempt.began_ms = now_ms()
        if attempt.work.prepare_ms or attempt.work.prolog:
            # Nothing of it has run, so that it can be tried again.
            attempt.stopped_by = attempt.stopped_by or NOT_BEGUN
        supervisor.main_process_ended(attempt, Ending(ran=False, detail=NEVER_BEGAN))
    elif attempt.pid < 0:
        attempt.pid = 0
        attempt.began_ms = now_ms()
        supervisor.main_process_ended(attempt, Ending(detail=REBOOTED))
    else:
        attempt.phase = Phase.RUNNING
        attempt.job_pid = attempt.job_pid or attempt.pid
        _watch(context, supervisor, attempt)


def _watch(context: LauncherContext, supervisor: Supervisor, attempt: Attempt) -> None:
    attempt.pidfd = processes.open_pidfd(attempt.pid, attempt.ticks)
    if attempt.pidfd < 0:
        attempt.pid = 0
        supervisor.main_process_ended(attempt, Ending())
        return
    context.loop.add(attempt.pidfd, _adopted_process_ended, attempt, context, supervisor)
    supervisor.stopper.watch_limits(attempt)
    if attempt.stopped_by:
        reason, attempt.stopped_by = attempt.stopped_by, ""
        supervisor.stopper.stop(attempt, reason, None)


def _adopted_process_ended(
    attempt: Attempt, context: LauncherContext, supervisor: Supervisor
) -> None:
    """Not our child, so its exit code is unknown."""
    context.close_pidfd(attempt)
    supervisor.main_process_ended(attempt, Ending())


def _recover_unrecorded(
    context: LauncherContext, supervisor: Supervisor, key: Key, ending: Ending
) -> None:
    """A key without a readable record. If processes of it run, they are watched to their end."""
    if key in context.attempts:
        return
    attempt = Attempt(Work(allocation_id=key[0], member=key[1]), context.runners["process"])
    context.attempts[key] = attempt
    attempt.adopted = True
    attempt.began_ms = now_ms()
    # A process that has just ended has no start time any more.
    started = {pid: processes.start_ticks(pid) for pid in context.tracker.leftovers(attempt)}
    running = sorted((pid for pid, ticks in started.items() if ticks), key=started.__getitem__)
    if not running:
        supervisor.main_process_ended(attempt, ending)
        return
    attempt.phase = Phase.RUNNING
    attempt.start.released = True
    attempt.pid = attempt.job_pid = running[0]
    attempt.ticks = processes.start_ticks(attempt.pid)
    attempt.details.append(ending.detail)
    _watch(context, supervisor, attempt)
