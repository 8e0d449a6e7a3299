"""After all faults: the stored state agrees with what was observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_scheduler.model.job import ENDED, JobState
from gpu_scheduler.store.rows import AttemptRow
from tests.faults.audit import Run

if TYPE_CHECKING:
    from tests.faults.world import World


def is_settled(world: World) -> bool:
    """Nothing is queued, nothing runs, and nothing ended is remembered."""
    rows = world.disk.rows
    return (
        not rows.live_jobs()
        and not rows.allocations()
        and not rows.services()
        and not world.audit.alive
        and not any(node.journal.held() for node in world.nodes)
    )


def check_final_state(world: World) -> None:
    """Check the end of a run."""
    _check_settled(world)
    _check_acknowledged(world)
    _check_cancelled(world)
    _check_attempts(world)
    _check_free(world)
    _check_events(world)


def _check_settled(world: World) -> None:
    audit, rows = world.audit, world.disk.rows
    for row in rows.live_jobs():
        audit.problem(f"{row.job.id} is still {row.state.value}: {row.reason}")
    for service in rows.services():
        audit.problem(f"{service.id} was deleted and is still {service.state}")
    for allocation in rows.allocations():
        nodes = sorted({placement.node_id for placement in allocation.placements})
        audit.problem(f"{allocation.id} still holds devices on {', '.join(nodes)}")
    for run in audit.alive:
        audit.problem(f"{run.key[0]} member {run.key[1]} still runs on {run.node}")
    for node in world.nodes:
        for key in sorted(node.journal.held()):
            audit.problem(f"{node.name} still keeps a record of {key[0]} member {key[1]}")


def _check_acknowledged(world: World) -> None:
    """Each acknowledged submission exists once, and has ended."""
    audit, rows = world.audit, world.disk.rows
    seen: dict[str, str] = {}
    for submission in world.client.submissions:
        if not submission.job_id:
            continue
        if submission.job_id in seen:
            audit.problem(
                f"{submission.key} and {seen[submission.job_id]} were both told {submission.job_id}"
            )
        seen[submission.job_id] = submission.key
        row = rows.job(submission.job_id)
        if row is None:
            audit.problem(f"{submission.job_id} was acknowledged and is lost")
        elif (row.job.command, row.job.tenant) != (submission.argv, submission.job.tenant):
            audit.problem(f"{submission.job_id} was acknowledged and is another job")
    submitted = sum(not row.job.service for row in rows.jobs())
    if submitted > len(seen):
        audit.problem(f"{submitted} jobs are stored, and {len(seen)} were submitted")


def _check_cancelled(world: World) -> None:
    """A cancelled job is never started again."""
    for job_id, before in world.client.cancelled.items():
        for attempt in world.disk.rows.attempts(job_id):
            if attempt.allocation_id not in before and job_id not in world.client.retried:
                world.audit.problem(f"{job_id} was cancelled, and {attempt.allocation_id} began")


def _check_attempts(world: World) -> None:
    """Reported results of attempts are the real ones, wherever they could be observed."""
    audit, rows = world.audit, world.disk.rows
    told: dict[str, AttemptRow] = {}
    for row in rows.jobs():
        for attempt in rows.attempts(row.job.id):
            told[attempt.allocation_id] = attempt
            _check_attempt(world, attempt)
        if row.state not in ENDED:
            continue
        if row.state is JobState.COMPLETED and row.job.array is None:
            _check_completed(world, row.job.id)
    for run in audit.runs:
        if run.key[0] not in told:
            audit.problem(f"{run.key[0]} ran on {run.node}, and no attempt says so")


def _check_attempt(world: World, attempt: AttemptRow) -> None:
    runs = list(world.audit.member_runs(attempt.allocation_id))
    if attempt.exit_code is not None or attempt.signal is not None:
        ends = {(run.exit_code, run.signal) for run in runs}
        if (attempt.exit_code, attempt.signal) not in ends:
            world.audit.problem(
                f"{attempt.allocation_id} is said to have ended with {attempt.exit_code}, signal "
                f"{attempt.signal}, and its processes with {sorted(map(str, ends))}"
            )
    elif runs and not any(run.unwatched for run in runs) and not _was_stopped(attempt, runs):
        world.audit.problem(
            f"the exit code of {attempt.allocation_id} was not learnt "
            f"({[(run.exit_code, run.signal) for run in runs]}): {attempt.detail}"
        )


def _was_stopped(attempt: AttemptRow, runs: list[Run]) -> bool:
    """A gang with a member that never ran has no exit code of its own.

    Reports of an abandoned node are not awaited.
    """
    given_up = "its lease has expired" in attempt.detail or "is dead" in attempt.detail
    return given_up or len(runs) < len(attempt.placements)


def _check_completed(world: World, job_id: str) -> None:
    last = world.disk.rows.attempts(job_id)[-1]
    runs = list(world.audit.member_runs(last.allocation_id))
    if len(runs) != len(last.placements) or any(run.exit_code != 0 for run in runs):
        ends = [(run.exit_code, run.signal) for run in runs]
        world.audit.problem(f"{job_id} is said to have completed, and ended so: {ends}")


def _check_free(world: World) -> None:
    """One server leads, no other believes that it does, and all its devices are free."""
    leading = [server for server in world.servers if server.loop is not None]
    if len(leading) != 1:
        names = [server.name for server in leading]
        world.audit.problem(f"{len(leading)} servers believe that they lead: {names}")
    if len(world.servers) > 1 and [s.name for s in leading] != [world.disk.lead.holder]:
        world.audit.problem(f"the lead is {world.disk.lead.holder}'s, who does not know it")
    for server in leading:
        if server.loop is not None:
            for allocation_id in sorted(server.loop.core.state.cluster.running):
                world.audit.problem(f"{server.name} believes that {allocation_id} runs")


def _check_events(world: World) -> None:
    """Stored times never go back, whatever clocks do."""
    last_ms = 0
    for number, event in world.disk.rows.events(0):
        if event.at_ms < last_ms:
            world.audit.problem(f"event {number} is {last_ms - event.at_ms} ms before the last")
        last_ms = max(last_ms, event.at_ms)
