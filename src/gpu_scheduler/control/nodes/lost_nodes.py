"""Nodes without heartbeats, and the jobs on them.

A disconnected node may still run its jobs. So the jobs keep their resources and are not started
again until the node reconnects, an admin or a fencing agent confirms that it is dead, or (for jobs
with a lease) the lease has expired, so that the node has stopped them itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpu_scheduler.control.effects import NodeGone, Outcome
from gpu_scheduler.control.gang_commit import is_elastic
from gpu_scheduler.control.job_record import JobRecord
from gpu_scheduler.control.jobs.attempt_events import on_ended
from gpu_scheduler.control.jobs.queueing import NODE_LOST, PREEMPTED, stop
from gpu_scheduler.control.messages import (
    ConfirmDead,
    Ended,
    LeasesExpired,
    NodeFenced,
    NodeLost,
    NodeSilent,
)
from gpu_scheduler.control.nodes.inventory import known_node, set_node
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.state.node_resources import NodeResources
from gpu_scheduler.model.cluster_snapshot import Running
from gpu_scheduler.model.errors import WrongState
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node, NodeState
from gpu_scheduler.model.plan import Placement
from gpu_scheduler.model.reasons import Reason, ReasonCode

LEASE_LABEL = "tgpu.lease"
"""The label of nodes that stop jobs themselves when their lease expires."""
THEN = {
    False: "it is started again only when that node is back, or known to be dead",
    True: "it is started again when its lease has expired, or that node is back or dead",
}


def confirm_dead(state: ControlState, message: ConfirmDead, now_ms: int, outcome: Outcome) -> None:
    """An admin confirms that a node is dead; rejected while the node is connected."""
    resources = known_node(state, message.node_id)
    if resources.node.state is NodeState.ONLINE:
        raise WrongState(
            f"node '{message.node_id}' is connected, so it is not dead; "
            "to empty it, drain it with 'tgpu nodes drain'"
        )
    if not resources.node.silent_ms:
        raise WrongState(
            f"node '{message.node_id}' may still reconnect after the start of the server; "
            "try again when 'tgpu nodes' shows since when it is silent"
        )
    if message.silent_ms not in {0, resources.node.silent_ms}:
        raise WrongState(
            f"node '{message.node_id}' reconnected after it was found dead, and is silent again; "
            "check it again"
        )
    _mark_dead(state, resources, message.by, now_ms, outcome)


def with_leases(
    state: ControlState, job: Job, placements: tuple[Placement, ...]
) -> tuple[Placement, ...]:
    """The placements of a job, with leases if it asks for them and the nodes support them."""
    lease_ms = state.limits.lease_ms
    if not job.requeue_on_node_loss or not lease_ms:
        return placements
    return tuple(
        replace(placement, lease_ms=lease_ms)
        if (LEASE_LABEL, "yes") in state.cluster.index.resources(placement.node_id).node.labels
        else placement
        for placement in placements
    )


def leases_on(state: ControlState, node_id: str) -> set[int]:
    """The lease times of the jobs on a node."""
    resources = state.cluster.index.by_id.get(node_id)
    held = {} if resources is None else state.cluster.by_node.get(resources.ordinal, {})
    return {_lease_ms(entry.running, node_id) for entry in held.values()} - {0}


def on_lost_node(
    state: ControlState, record: JobRecord, number: int | None = None
) -> Reason | None:
    """The reason of a job, or of one task of an array, that is on a lost node; otherwise None."""
    for node, placement in _nodes_of(state, record, number):
        if node.state is NodeState.LOST:
            has_lease = placement.lease_ms > 0
            data = (("node", node.id), ("silent_ms", node.silent_ms), ("then", THEN[has_lease]))
            return Reason(ReasonCode.ON_LOST_NODE, data)
    return None


def suspect_node_of(
    state: ControlState, record: JobRecord, number: int | None = None
) -> Node | None:
    """The node of a job, or of one task, that is silent but does not count as lost yet."""
    nodes = (node for node, _ in _nodes_of(state, record, number))
    return next((node for node in nodes if node.state is NodeState.SUSPECT), None)


def _nodes_of(
    state: ControlState, record: JobRecord, number: int | None
) -> Iterator[tuple[Node, Placement]]:
    """The nodes on which a job, or one task of an array, runs."""
    tasks = [record.only_task, *record.tasks.values()]
    if number is not None:
        tasks = [record.tasks.get(number)]
    for allocation_id in [task.allocation_id for task in tasks if task is not None]:
        entry = state.cluster.running.get(allocation_id)
        for placement in () if entry is None else entry.running.allocation.placements:
            resources = state.cluster.index.by_id.get(placement.node_id)
            if resources is not None:
                yield resources.node, placement


def on_node_silent(state: ControlState, fact: NodeSilent, now_ms: int, outcome: Outcome) -> None:
    """A node has sent no heartbeat: it gets no new work, and its jobs keep their resources."""
    resources = state.cluster.index.by_id.get(fact.node_id)
    if resources is None or resources.node.silent_ms:
        return
    since_ms = max(1, now_ms - fact.for_ms)
    set_node(state, replace(resources.node, state=NodeState.SUSPECT, silent_ms=since_ms), outcome)
    outcome.node_event(fact.node_id, "node_silent", now_ms)


def on_node_lost(state: ControlState, fact: NodeLost, now_ms: int, outcome: Outcome) -> None:
    """Mark a node lost after the heartbeat timeout; its jobs stay allocated."""
    node_id = fact.node_id
    resources = state.cluster.index.by_id.get(node_id)
    if resources is None or resources.node.state is not NodeState.SUSPECT:
        return
    silent_ms = resources.node.silent_ms or now_ms
    set_node(state, replace(resources.node, state=NodeState.LOST, silent_ms=silent_ms), outcome)
    jobs = len(state.cluster.by_node.get(resources.ordinal, {}))
    outcome.node_event(node_id, "node_lost", now_ms, jobs=jobs)


def on_node_fenced(state: ControlState, fact: NodeFenced, now_ms: int, outcome: Outcome) -> None:
    """A fencing agent has powered the node off: its jobs have ended."""
    _mark_dead(state, state.cluster.index.resources(fact.node_id), "", now_ms, outcome)


def _mark_dead(
    state: ControlState, resources: NodeResources, by: str, now_ms: int, outcome: Outcome
) -> None:
    """End the jobs that ran only on this node; they may be started elsewhere.

    A gang with members on other nodes is stopped, and holds its resources until that is reported.
    """
    node_id = resources.node.id
    held = list(state.cluster.by_node.get(resources.ordinal, {}))
    if resources.node.state is not NodeState.DEAD:
        silent_ms = resources.node.silent_ms or now_ms
        set_node(state, replace(resources.node, state=NodeState.DEAD, silent_ms=silent_ms), outcome)
        outcome.node_event(
            node_id, "node_dead", now_ms, jobs=len(held), **({"by": by} if by else {})
        )
    detail = f"its node {node_id} is dead" + (f", confirmed by {by}" if by else "")
    for allocation_id in held:
        _end_on_node(state, allocation_id, node_id, detail, now_ms, outcome)
    outcome.effects.append(NodeGone(node_id))


def on_leases_expired(
    state: ControlState, fact: LeasesExpired, now_ms: int, outcome: Outcome
) -> None:
    """End the jobs on a silent node whose lease has expired: the node has stopped them."""
    resources = state.cluster.index.by_id.get(fact.node_id)
    if resources is None or resources.node.state is NodeState.ONLINE:
        return
    detail = f"its node {fact.node_id} is disconnected, and its lease has expired"
    for allocation_id, entry in list(state.cluster.by_node.get(resources.ordinal, {}).items()):
        lease_ms = _lease_ms(entry.running, fact.node_id)
        if lease_ms and lease_ms + state.limits.lease_margin_ms <= fact.waited_ms:
            _end_on_node(state, allocation_id, fact.node_id, detail, now_ms, outcome)
    outcome.effects.append(NodeGone(fact.node_id))


def _lease_ms(running: Running, node_id: str) -> int:
    """The lease of a job on a node; 0 if a member there has none."""
    placements = running.allocation.placements
    leases = [p.lease_ms for p in placements if p.node_id == node_id]
    return max(leases) if all(leases) else 0


def _end_on_node(
    state: ControlState,
    allocation_id: str,
    node_id: str,
    detail: str,
    now_ms: int,
    outcome: Outcome,
) -> None:
    """The part of an attempt on this node has ended."""
    found = state.running(allocation_id)
    if found is None:
        return
    record, _, task = found
    running = state.cluster.running[allocation_id].running
    why = PREEMPTED if _is_requeued(state, record.job) else NODE_LOST
    gone = state.fenced.setdefault(allocation_id, set())
    gone.add(node_id)
    if gone.issuperset(placement.node_id for placement in running.allocation.placements):
        task.stop_why = task.stop_why or why
        fact = Ended(allocation_id, exit_code=None, detail=detail)
        on_ended(state, fact, now_ms, outcome)
    else:
        stop(state, allocation_id, why, outcome)


def _is_requeued(state: ControlState, job: Job) -> bool:
    """Tell whether a job whose node is dead waits again."""
    if job.requeue_on_node_loss or is_elastic(job):
        return True
    return state.limits.requeue_after_death and not job.interactive
