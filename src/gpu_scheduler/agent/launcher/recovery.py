"""Taking over from a launcher that has died.

The journal comes in, attempts come out: living ones are watched again, dead ones end with an exit
code that nobody knows, and nothing is ever begun a second time. A damaged journal is kept aside and
costs only what cannot be read.
"""

from __future__ import annotations

import os

from gpu_scheduler.agent.cgroups.groups import Group
from gpu_scheduler.agent.launcher import journal, processes
from gpu_scheduler.agent.launcher.context import Kit
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.logs import own_log
from gpu_scheduler.agent.launcher.loop import now_ms
from gpu_scheduler.agent.launcher.messages import Form, Key, over_from, work_from
from gpu_scheduler.agent.launcher.supervisor import Supervisor
from gpu_scheduler.agent.runners.interface import Ending
from gpu_scheduler.agent.work import NOT_BEGUN, Work

RESTARTED = "the machine was restarted: exit code unknown"
NEVER_BEGAN = "the launcher died before the command began"


def recover(kit: Kit, supervisor: Supervisor) -> None:
    """Read the journal, take over, and write it anew without what was forgotten."""
    os.makedirs(kit.journal.directory, mode=0o700, exist_ok=True)
    found = journal.read(kit.journal.path)
    removals = supervisor.closer.removals
    for record in found.records:
        if not removals.replay(record):
            _replay(kit, record)
    aside = ""
    try:
        if found.unreadable or found.torn:
            aside = journal.keep_aside(kit.journal.path)
            own_log.warn(f"damaged journal kept as {aside}")
        kit.journal.rewrite(supervisor.records())
    except OSError as error:
        # It goes on as it is, with what is damaged still in it.
        own_log.warn(f"cannot rewrite the journal: {error}")
        kit.journal.open()
    kit.leases.take_over(kit.boot)
    for attempt in list(kit.attempts.values()):
        if attempt.over is None:
            kit.loop.call(_take_over, kit, supervisor, attempt)
    kit.leases.look()
    for key in found.bad:
        kept = aside or kit.journal.path
        _lost(kit, supervisor, key, Ending(detail=f"its record was damaged (kept as {kept})"))
    for key in found.torn:
        _lost(kit, supervisor, key, Ending(ran=False, detail=NEVER_BEGAN))
    supervisor.look_after()
    removals.take_over()


def _replay(kit: Kit, record: Form) -> None:
    """One record; those that make no sense are skipped."""
    try:
        key = (str(record["allocation_id"]), int(record["member"]))
        kind = record["kind"]
        if kind in {"accepted", "began"}:
            work = work_from(record["work"], lenient=True)
            attempt = kit.attempts.get(key)
            if attempt is None or kind == "began":
                attempt = Attempt(work, kit.runners.get(work.runner))
            kit.attempts[key] = attempt
            attempt.records.append(record)
            if kind == "began":
                _restore(attempt, record, kit.boot)
        elif kind == "stop" and key in kit.attempts:
            kit.attempts[key].stopped_by = str(record["why"])
            kit.attempts[key].records.append(record)
        elif kind == "job" and key in kit.attempts:
            _restore_job(kit.attempts[key], record)
        elif kind == "end":
            kit.attempts[key] = _ended(key, record)
        elif kind == "forget":
            kit.attempts.pop(key, None)
    except (KeyError, ValueError, TypeError) as error:
        own_log.warn(f"a record was skipped: {error!r}")


def _restore(attempt: Attempt, record: Form, boot: str) -> None:
    attempt.pid = int(record["pid"])
    attempt.ticks = int(record["ticks"])
    attempt.began_ms = int(record["boot_ms"])
    attempt.began_wall_ms = int(record["at_ms"])
    attempt.said_go = True
    if record["boot"] == boot:
        attempt.group = Group(tuple(record["groups"]), str(record["memory_group"]))
    else:
        attempt.pid = -1


def _restore_job(attempt: Attempt, record: Form) -> None:
    """Who runs below the shim of a session: what is for the job is not for the shim."""
    attempt.records.append(record)
    ticks = int(record["ticks"])
    if ticks:
        attempt.job_pid, attempt.job_ticks = int(record["pid"]), ticks


def _ended(key: Key, record: Form) -> Attempt:
    over = over_from(record["over"])
    if over is None:
        raise ValueError("an end without a report")
    work = Work(
        allocation_id=key[0],
        member=key[1],
        scratch_dir=str(record["scratch_dir"]),
        uid=int(record["uid"]),
    )
    attempt = Attempt(work, None)
    attempt.over = over
    attempt.phase = Phase.OVER
    attempt.records.append(record)
    return attempt


def _take_over(kit: Kit, supervisor: Supervisor, attempt: Attempt) -> None:
    attempt.adopted = True
    if attempt.pid == 0:
        attempt.began_ms = now_ms()
        if attempt.work.prepare_ms or attempt.work.prolog:
            # Nothing of it has run, so that it can be tried again.
            attempt.stopped_by = attempt.stopped_by or NOT_BEGUN
        supervisor.closer.ended(attempt, Ending(ran=False, detail=NEVER_BEGAN))
        return
    if attempt.pid < 0:
        attempt.pid = 0
        attempt.began_ms = now_ms()
        supervisor.closer.ended(attempt, Ending(detail=RESTARTED))
        return
    attempt.phase = Phase.RUNNING
    attempt.job_pid = attempt.job_pid or attempt.pid
    _watch(kit, supervisor, attempt)


def _watch(kit: Kit, supervisor: Supervisor, attempt: Attempt) -> None:
    attempt.pidfd = processes.open_pidfd(attempt.pid, attempt.ticks)
    if attempt.pidfd < 0:
        attempt.pid = 0
        supervisor.closer.ended(attempt, Ending())
        return
    kit.loop.add(attempt.pidfd, lambda: supervisor.starter.main_gone(attempt))
    supervisor.stopper.arm(attempt)
    if attempt.stopped_by:
        why, attempt.stopped_by = attempt.stopped_by, ""
        supervisor.stopper.stop(attempt, why, None)


def _lost(kit: Kit, supervisor: Supervisor, key: Key, ending: Ending) -> None:
    """A name without a record. If something of it runs, it is watched to its end."""
    if key in kit.attempts:
        return
    attempt = Attempt(Work(allocation_id=key[0], member=key[1]), kit.runners["process"])
    kit.attempts[key] = attempt
    attempt.adopted = True
    attempt.began_ms = now_ms()
    # Those that ended a moment ago have no beginning any more.
    began = {pid: processes.start_ticks(pid) for pid in kit.census.left(attempt)}
    running = sorted((pid for pid, ticks in began.items() if ticks), key=began.__getitem__)
    if not running:
        supervisor.closer.ended(attempt, ending)
        return
    attempt.phase = Phase.RUNNING
    attempt.said_go = True
    attempt.pid = attempt.job_pid = running[0]
    attempt.ticks = processes.start_ticks(attempt.pid)
    attempt.details.append(ending.detail)
    _watch(kit, supervisor, attempt)
