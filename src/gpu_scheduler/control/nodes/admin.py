"""Commands of admins about nodes: cordon, drain, labels, removal.

A cordoned or draining node gets no new work, and its jobs keep running. At the deadline of a drain
the remaining jobs are stopped and requeued. All this works for disconnected nodes too.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.jobs.queueing import PREEMPTED, stop
from gpu_scheduler.control.messages import (
    Cordon,
    Drain,
    LabelNode,
    NodeCommand,
    RemoveNode,
    Uncordon,
)
from gpu_scheduler.control.nodes.inventory import OURSELVES, known_node, set_node
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.state.node_resources import NodeResources
from gpu_scheduler.model.errors import InvalidRequest, WrongState
from gpu_scheduler.model.names import check_name
from gpu_scheduler.model.node import Node, NodeClosure, NodeState, merge_labels
from gpu_scheduler.model.plan import Allocation, PreemptionReason
from gpu_scheduler.store.rows import Removed

DRAIN = "drain"
"""The kind of the timer of a drain; its name is the node id."""
OWN_LABELS = "tgpu."
MOST_LABELS = 100
LABEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
LABEL_VALUE = re.compile(r"[A-Za-z0-9._/:@+ -]{0,63}")


def apply(state: ControlState, message: NodeCommand, now_ms: int, outcome: Outcome) -> None:
    """Carry out a command about a node, or raise and change nothing."""
    resources = known_node(state, message.node_id)
    match message:
        case Cordon(_, by, reason):
            closed = NodeClosure(since_ms=now_ms, by=by, reason=reason)
            _close(state, resources, closed, "node_cordoned", outcome)
        case Drain(_, by, reason, within_ms):
            requeue_ms = None if within_ms is None else now_ms + within_ms
            closed = NodeClosure(
                since_ms=now_ms, by=by, reason=reason, drains=True, requeue_ms=requeue_ms
            )
            _close(state, resources, closed, "node_draining", outcome)
            set_drain_timer(state, resources.node)
            on_timer(state, resources.node.id, now_ms, outcome)
            _note_drained(state, resources, now_ms, outcome)
        case Uncordon():
            if resources.node.closed is not None:
                set_node(state, replace(resources.node, closed=None), outcome)
                state.new_nodes = True
                outcome.node_event(resources.node.id, "node_uncordoned", now_ms)
        case LabelNode(_, labels):
            _label(state, resources.node, dict(labels), now_ms, outcome)
        case RemoveNode():
            _remove(state, resources, now_ms, outcome)


def set_drain_timer(state: ControlState, node: Node) -> None:
    """Set the timer of the deadline of a drain."""
    if node.closed is not None and node.closed.requeue_ms is not None:
        state.set_timer(node.closed.requeue_ms, DRAIN, node.id)


def on_timer(state: ControlState, node_id: str, now_ms: int, outcome: Outcome) -> None:
    """At the deadline of a drain, stop the remaining jobs of the node and requeue them."""
    resources = state.cluster.index.by_id.get(node_id)
    closed = None if resources is None else resources.node.closed
    if (
        resources is None
        or closed is None
        or closed.requeue_ms is None
        or closed.requeue_ms > now_ms
    ):
        return
    for allocation_id, entry in list(state.cluster.by_node.get(resources.ordinal, {}).items()):
        if entry.running.stopping:
            continue
        cause = f"stopped at the end of the drain of {node_id}"
        stop(state, allocation_id, PREEMPTED, outcome, cause=cause)
        job = entry.running.job
        data = (("ground", PreemptionReason.DRAIN.value), ("node", node_id))
        outcome.job_event(job, "evicting", now_ms, data=data)


def on_ended(state: ControlState, allocation: Allocation, now_ms: int, outcome: Outcome) -> None:
    """An attempt has ended: write an event if a draining node is empty now."""
    for node_id in dict.fromkeys(placement.node_id for placement in allocation.placements):
        resources = state.cluster.index.by_id.get(node_id)
        if resources is not None:
            _note_drained(state, resources, now_ms, outcome)


def is_drained(state: ControlState, resources: NodeResources) -> bool:
    """Tell whether a draining node is empty."""
    closed = resources.node.closed
    return closed is not None and closed.drains and not state.cluster.by_node.get(resources.ordinal)


def set_aside(
    state: ControlState, node_id: str, reason: str, now_ms: int, outcome: Outcome
) -> None:
    """Drain a faulty node until an admin uncordons it.

    A node that is already cordoned or draining is left unchanged.
    """
    resources = state.cluster.index.by_id.get(node_id)
    if resources is not None and resources.node.closed is None:
        closed = NodeClosure(
            since_ms=now_ms, by=OURSELVES, reason=reason, drains=True, is_fault=True
        )
        _close(state, resources, closed, "node_set_aside", outcome)


def _close(
    state: ControlState, resources: NodeResources, closed: NodeClosure, kind: str, outcome: Outcome
) -> None:
    before = resources.node.closed
    kept = closed
    if before is not None:
        # A repeated command keeps the time and the reason of the first one.
        reason = closed.reason or before.reason
        kept = replace(closed, since_ms=before.since_ms, reason=reason)
    set_node(state, replace(resources.node, closed=kept), outcome)
    data: tuple[tuple[str, str | int], ...] = (("node", resources.node.id), ("by", closed.by))
    if closed.reason:
        data += (("reason", closed.reason),)
    if closed.requeue_ms is not None:
        data += (("requeue_ms", closed.requeue_ms),)
    outcome.event(kind, closed.since_ms, data)


def _note_drained(
    state: ControlState, resources: NodeResources, now_ms: int, outcome: Outcome
) -> None:
    if is_drained(state, resources):
        outcome.node_event(resources.node.id, "node_drained", now_ms)


def _label(
    state: ControlState, node: Node, wanted: dict[str, str | None], now_ms: int, outcome: Outcome
) -> None:
    for name, value in wanted.items():
        _check_label(name, value)
    found = dict(node.found_labels)
    given = {**dict(node.given_labels), **wanted}
    # A label that equals the agent's, or removes a missing one, is not stored.
    kept = {name: value for name, value in given.items() if found.get(name) != value}
    if len(kept) > MOST_LABELS:
        raise InvalidRequest(f"node '{node.id}' would have more than {MOST_LABELS} given labels")
    own = tuple(sorted(kept.items()))
    labels = merge_labels(node.found_labels, own)
    changed = replace(node, given_labels=own, labels=labels)
    if changed == node:
        return
    set_node(state, changed, outcome)
    state.new_nodes = True
    outcome.node_event(node.id, "node_labelled", now_ms)


def _check_label(name: str, value: str | None) -> None:
    if not LABEL_NAME.fullmatch(name):
        raise InvalidRequest(
            f"label '{name[:80]}' cannot be set; a name has letters, digits, '.', '_', '/' and "
            "'-', at most 63, and begins with a letter or digit"
        )
    check_name(name, "the name of a label", parts=True)
    if name.startswith(OWN_LABELS):
        raise InvalidRequest(f"label '{name}' is set by agents; choose one without '{OWN_LABELS}'")
    if value is not None and not LABEL_VALUE.fullmatch(value):
        raise InvalidRequest(
            f"label '{name}' cannot be '{value[:80]}'; a value has letters, digits, spaces and "
            "._/:@+-, at most 63"
        )


def _remove(state: ControlState, resources: NodeResources, now_ms: int, outcome: Outcome) -> None:
    """Remove a node, unless its agent is connected or it is in use."""
    node_id = resources.node.id
    held = sorted(state.cluster.by_node.get(resources.ordinal, {}))
    if held:
        more = f" and {len(held) - 3} more" if len(held) > 3 else ""
        raise WrongState(
            f"node '{node_id}' cannot be removed: {', '.join(held[:3])}{more} may still run there; "
            "drain it first, or confirm that it is dead"
        )
    if resources.node.state is NodeState.ONLINE:
        raise WrongState(
            f"node '{node_id}' cannot be removed: its agent is connected and would bring it back; "
            "stop the agent first"
        )
    reserved = [
        r.id for r in state.cluster.advance_reservations.values() if node_id in dict(r.devices)
    ]
    if reserved:
        raise WrongState(
            f"node '{node_id}' cannot be removed: {', '.join(sorted(reserved))} has GPUs there; "
            "cancel that reservation first"
        )
    for reservations in (state.cluster.reservations, state.unconfirmed_reservations):
        for number, reservation in list(reservations.items()):
            if any(placement.node_id == node_id for placement in reservation.placements):
                del reservations[number]
    state.pending_reports.pop(node_id, None)
    state.cluster.remove_node(node_id)
    state.changed = True
    outcome.writes.append(Removed(Node, node_id))
    outcome.node_event(node_id, "node_removed", now_ms)
