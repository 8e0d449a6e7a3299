"""What an attempt does that has its devices: its container is prepared, or it is being stopped.

A report of a node comes in; events, and the reason that users see beside the job's state, come out.
The state itself stays `running` or `scheduled`.
"""

from __future__ import annotations

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.job_record import JobRecord, TaskRecord
from gpu_scheduler.control.jobs.queueing import (
    CANCELLED,
    GPU_IDLE,
    GPU_MEMORY,
    NODE_LOST,
    NOT_BEGUN,
    PREEMPTED,
    TIMEOUT,
)
from gpu_scheduler.control.messages import ContainerProgress
from gpu_scheduler.control.nodes.lost_nodes import on_lost_node
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.reasons import Reason, ReasonCode

CONTAINER_PHASES = {
    "pulling": ReasonCode.PULLING_IMAGE,
    "creating": ReasonCode.CREATING_CONTAINER,
}
"""The phases before a container begins, in their order."""
BEGUN = "begun"
CAUSES = {
    PREEMPTED: "preempted",
    TIMEOUT: "its time limit",
    NODE_LOST: "its node was lost",
    NOT_BEGUN: "it did not start in time",
    GPU_MEMORY: "its GPU memory",
    GPU_IDLE: "its idle GPUs",
}


def on_container_progress(
    state: ControlState, fact: ContainerProgress, now_ms: int, outcome: Outcome
) -> None:
    """Keep how far a container engine is, with an event; a repeated report changes nothing."""
    found = state.running(fact.allocation_id)
    phases = state.container_phases.get(fact.allocation_id, {})
    if found is None or phases.get(fact.member) == (fact.node_id, fact.phase):
        return
    if fact.phase in CONTAINER_PHASES:
        phases = phases | {fact.member: (fact.node_id, fact.phase)}
        kind = CONTAINER_PHASES[fact.phase].value
    elif fact.phase == BEGUN and fact.member in phases:
        phases = {member: phase for member, phase in phases.items() if member != fact.member}
        kind = "container_begun"
    else:
        return
    state.container_phases[fact.allocation_id] = phases
    record, number, _ = found
    outcome.job_event(record.job, kind, now_ms, task=number, data=(("node", fact.node_id),))


def running_reason(
    state: ControlState, record: JobRecord, number: int | None = None
) -> Reason | None:
    """What to know of a job, or one task, that has its devices; None if there is nothing.

    Of an array as a whole, only what holds for all its tasks that have devices.
    """
    if (lost := on_lost_node(state, record, number)) is not None:
        return lost
    tasks = [record.only_task, *record.tasks.values()]
    if number is not None:
        tasks = [record.tasks.get(number)]
    reasons = {_task_reason(state, task) for task in tasks if task and task.allocation_id}
    return reasons.pop() if len(reasons) == 1 else None


def _task_reason(state: ControlState, task: TaskRecord) -> Reason | None:
    if task.allocation_id not in state.cluster.running:
        return None
    if task.stop_why == CANCELLED:
        return Reason(ReasonCode.CANCELLING)
    if task.stop_why:
        cause = task.stop_cause or CAUSES.get(task.stop_why, task.stop_why)
        return Reason(ReasonCode.BEING_STOPPED, (("cause", cause),))
    phases = state.container_phases.get(task.allocation_id, {})
    for phase, code in CONTAINER_PHASES.items():
        if nodes := sorted({node for node, its_phase in phases.values() if its_phase == phase}):
            return Reason(code, (("nodes", ", ".join(nodes)),))
    return None
