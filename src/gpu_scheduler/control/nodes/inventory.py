"""Nodes and their devices, as agents report and measure them; pause, resume and quarantine.

A report never undoes what an admin decided about a node or a device.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

from gpu_scheduler.control import gpu_enforcement
from gpu_scheduler.control.effects import Outcome, TrustDeviceOrder, WarnOrder
from gpu_scheduler.control.gpu_enforcement import after_reading, changes
from gpu_scheduler.control.messages import (
    DevicesSampled,
    NodeReported,
    PauseDevice,
    ResumeDevice,
    SetNode,
)
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.state.equivalence_classes import same_hardware
from gpu_scheduler.engine.state.node_resources import NodeResources
from gpu_scheduler.model.errors import UnknownThing
from gpu_scheduler.model.names import MAX_NODE_NAME, check_name
from gpu_scheduler.model.node import Device, Health, Node, NodeClosure, NodeState, merge_labels
from gpu_scheduler.model.plan import Allocation

GONE = "it is not there any more"
OURSELVES = "gpu-scheduler"
"""The author of a closure that the scheduler made itself."""
LEAST_COMMANDS = 3
"""At least this many different commands must have failed before a device is quarantined."""


def known_node(state: ControlState, node_id: str) -> NodeResources:
    """The resources of a node; raise if it is unknown."""
    resources = state.cluster.index.by_id.get(node_id)
    if resources is None:
        known = ", ".join(sorted(state.cluster.index.by_id)[:20]) or "none"
        raise UnknownThing(f"node '{node_id[:63]}' is not known; known: {known}")
    return resources


def set_node(state: ControlState, node: Node, outcome: Outcome) -> None:
    """Add or replace a node."""
    if node.id not in state.cluster.index.by_id:
        state.new_nodes = True
    state.cluster.set_node(node)
    state.changed = True
    outcome.writes.append(node)


def on_set_node(state: ControlState, message: SetNode, _now_ms: int, outcome: Outcome) -> None:
    """The simulator or a test adds or replaces a node."""
    set_node(state, message.node, outcome)


def on_node_reported(
    state: ControlState, fact: NodeReported, now_ms: int, outcome: Outcome
) -> None:
    """An agent has connected and reported its hardware: its node is online."""
    resources = state.cluster.index.by_id.get(fact.node_id)
    known = None if resources is None else resources.node
    if known is None:
        check_name(fact.node_id, "the name of a node", longest=MAX_NODE_NAME)
    before = {} if known is None else {device.index: device for device in known.devices}
    node_state = NodeState.ONLINE
    given = () if known is None else known.given_labels
    node = Node(
        id=fact.node_id,
        ordinal=_next_ordinal(state) if known is None else known.ordinal,
        cpu_milli=fact.cpu_milli,
        memory_mb=fact.memory_mb,
        devices=tuple(
            _with_earlier_status(device, before.get(device.index)) for device in fact.devices
        ),
        labels=merge_labels(fact.labels, given),
        rack=fact.rack,
        state=node_state,
        closed=_closed(None if known is None else known.closed, fact.unfit, now_ms),
        found_labels=fact.labels,
        given_labels=given,
        address=fact.address,
        version=fact.version,
        numa_nodes=fact.numa_nodes,
        direct_storage=fact.direct_storage,
        adapters=fact.adapters,
    )
    state.pending_reports.pop(fact.node_id, None)
    if known is not None and not same_hardware(known, node):
        wanted, node = node, _with_held_hardware(state, known, node)
        if node != wanted:
            state.pending_reports[fact.node_id] = fact
    if node == known:
        return
    if known is None or same_hardware(known, node):
        set_node(state, node, outcome)
    else:
        state.cluster.change_hardware(node)
        state.changed = True
        outcome.writes.append(node)
        outcome.node_event(node.id, "node_changed", now_ms)
    healthy = {index for index, device in before.items() if device.health is Health.HEALTHY}
    for device in node.devices:
        if device.why == GONE and device.index in healthy:
            _warn_holders(state, node.id, device.index, device.why, outcome)
    state.new_nodes = True  # it may offer more than before
    if known is None or known.state is not node_state:
        kind = "node_joined" if known is None else "node_online"
        outcome.node_event(node.id, kind, now_ms)
    _write_closure_event(known, node, now_ms, outcome)


def _closed(before: NodeClosure | None, unfit: str, now_ms: int) -> NodeClosure | None:
    """A node that reports a problem is closed until the problem is gone; a cordon stays."""
    if before is None and unfit:
        return NodeClosure(since_ms=now_ms, by=OURSELVES, reason=unfit, is_fault=True, heals=True)
    if before is not None and before.heals:
        return replace(before, reason=unfit) if unfit else None
    return before


def _write_closure_event(known: Node | None, node: Node, now_ms: int, outcome: Outcome) -> None:
    before = None if known is None else known.closed
    if node.closed is not None and before is None:
        data = (("node", node.id), ("by", OURSELVES), ("reason", node.closed.reason))
        outcome.event("node_set_aside", now_ms, data)
    elif node.closed is None and before is not None:
        outcome.node_event(node.id, "node_uncordoned", now_ms)


def _next_ordinal(state: ControlState) -> int:
    """The lowest unused ordinal; those of removed nodes are used again."""
    used = {resources.ordinal for resources in state.cluster.index.by_id.values()}
    return next(ordinal for ordinal in range(len(used) + 1) if ordinal not in used)


def apply_pending_report(
    state: ControlState, allocation: Allocation, now_ms: int, outcome: Outcome
) -> None:
    """An attempt has ended: apply the pending hardware report of its nodes."""
    for node_id in dict.fromkeys(placement.node_id for placement in allocation.placements):
        fact = state.pending_reports.get(node_id)
        if fact is not None:
            on_node_reported(state, fact, now_ms, outcome)


def _with_held_hardware(state: ControlState, known: Node, node: Node) -> Node:
    """The new hardware, together with the old hardware that running jobs still hold.

    A device that is gone or was replaced stays, but gets no new work. A device with another MIG
    layout keeps the allocated slices beside the new ones.
    """
    devices = {device.index: device for device in node.devices}
    before = {device.index: device for device in known.devices}
    slices: Counter[tuple[int, str]] = Counter()
    cpu_milli = memory_mb = 0
    resources = state.cluster.index.resources(known.id)
    for entry in state.cluster.by_node.get(resources.ordinal, {}).values():
        for placement in entry.running.allocation.placements:
            if placement.node_id != known.id:
                continue
            cpu_milli += placement.cpu_milli
            memory_mb += placement.memory_mb
            for share in placement.devices:
                old, new = before[share.index], devices.get(share.index)
                if share.mig_profile and _has_new_mig_layout(old, new):
                    slices[share.index, share.mig_profile] += 1
                elif not _is_same_device(old, new):
                    devices[share.index] = replace(old, health=Health.UNHEALTHY, why=GONE)
    for (index, profile), count in sorted(slices.items()):
        devices[index] = _with_slices(devices[index], profile, count)
    return replace(
        node,
        cpu_milli=max(node.cpu_milli, cpu_milli),
        memory_mb=max(node.memory_mb, memory_mb),
        devices=tuple(device for _, device in sorted(devices.items())),
    )


def _warn_holders(
    state: ControlState, node_id: str, index: int, why: str, outcome: Outcome
) -> None:
    """Write a warning to the logs of all jobs on an unhealthy device."""
    resources = state.cluster.index.resources(node_id)
    text = f"GPU {index} of {node_id} cannot be trusted any more: {why or 'it is unhealthy'}"
    for allocation_id, entry in state.cluster.by_node.get(resources.ordinal, {}).items():
        held = {
            share.index
            for placement in entry.running.allocation.placements
            if placement.node_id == node_id
            for share in placement.devices
        }
        if index in held:
            outcome.effects.append(WarnOrder(allocation_id, text))


def _is_same_device(old: Device, new: Device | None) -> bool:
    return new is not None and (
        (old.uuid, old.model, old.memory_mb, old.mode, old.mig_slices)
        == (new.uuid, new.model, new.memory_mb, new.mode, new.mig_slices)
    )


def _has_new_mig_layout(old: Device, new: Device | None) -> bool:
    """Tell whether it is the same device with MIG on, before and now."""
    return new is not None and (
        (old.uuid, old.model, old.memory_mb, old.mode)
        == (new.uuid, new.model, new.memory_mb, new.mode)
    )


def _with_slices(device: Device, profile: str, least: int) -> Device:
    """The device with at least `least` slices of a profile."""
    counts = dict(device.mig_slices)
    counts[profile] = max(counts.get(profile, 0), least)
    return replace(device, mig_slices=tuple(sorted(counts.items())))


def on_devices_sampled(
    state: ControlState, fact: DevicesSampled, now_ms: int, outcome: Outcome
) -> None:
    """Update device health and usage from samples; a temperature change alone is not written."""
    node = state.cluster.index.resources(fact.node_id).node
    by_index = {reading.index: reading for reading in fact.readings}
    devices = tuple(
        device
        if device.why == GONE
        else after_reading(device, by_index.get(device.index), state.limits, state.by_allocation)
        for device in node.devices
    )
    if devices != node.devices:
        set_node(state, replace(node, devices=devices), outcome)
        for old, new in zip(node.devices, devices, strict=True):
            xid = by_index[new.index].xid if new.index in by_index else 0
            if old.health is Health.HEALTHY and new.health is not Health.HEALTHY:
                _warn_holders(state, node.id, new.index, new.why, outcome)
            for kind, data in changes(old, new, xid):
                where = (("node", node.id), ("gpu", new.index))
                outcome.event(kind, now_ms, (*where, *data))
    if fact.fresh:
        gpu_enforcement.on_sample(state, node, fact.readings, now_ms, outcome)


def set_paused(
    state: ControlState, message: PauseDevice | ResumeDevice, now_ms: int, outcome: Outcome
) -> None:
    """An admin takes a device out of use, or puts it back into use; jobs on it keep running.

    The latter also ends a quarantine, ignores the foreign process that blocked the device, and
    orders the node to trust the device again. The order is repeated until the node confirms it.
    """
    node_id, index, paused = message.node_id, message.index, isinstance(message, PauseDevice)
    resources = known_node(state, node_id)
    devices = list(resources.node.devices)
    place = next((i for i, device in enumerate(devices) if device.index == index), None)
    if place is None:
        indices = ", ".join(str(device.index) for device in devices) or "none"
        raise UnknownThing(f"node '{node_id}' has no GPU {index}; it has: {indices}")
    before = devices[place]
    if isinstance(message, PauseDevice):
        changed = replace(before, paused=True, pause_reason=message.reason)
    else:
        changed = _resumed(before, now_ms)
    if not paused:
        outcome.effects.append(TrustDeviceOrder(node_id, index, changed.trust_ms))
    if changed == before:
        return
    devices[place] = changed
    set_node(state, replace(resources.node, devices=tuple(devices)), outcome)
    if replace(changed, trust_ms=before.trust_ms) == before:
        return
    kind = "gpu_paused" if paused else "gpu_resumed"
    data: tuple[tuple[str, str | int], ...] = (("node", node_id), ("gpu", index))
    if changed.pause_reason:
        data = (*data, ("reason", changed.pause_reason))
    outcome.event(kind, now_ms, data)


def _resumed(device: Device, now_ms: int) -> Device:
    use, forgiven = device.foreign, device.forgiven
    if use is not None and use.pid and use.pid not in forgiven:
        forgiven = (*forgiven, use.pid)
    return replace(
        device,
        paused=False,
        pause_reason="",
        quarantined=False,
        foreign=None,
        forgiven=forgiven,
        trust_ms=max(now_ms, device.trust_ms + 1),
    )


def count_early_death(
    state: ControlState,
    allocation: Allocation,
    user: str,
    died: str,
    now_ms: int,
    outcome: Outcome,
) -> None:
    """Count attempts that failed right after their start, by device.

    `died` is the command of such an attempt, otherwise empty. A device is quarantined when its last
    attempts all failed early and belong to several different commands, so that one mistyped command
    does not cost a device. The last usable device of a node is never quarantined, and by the jobs
    of a single user only one device at a time: else a user could take all devices from the others.
    """
    for placement in allocation.placements:
        for share in placement.devices:
            key = (placement.node_id, share.index)
            limit = state.limits.quarantine_after
            if not died or not limit:
                state.early_deaths.pop(key, None)
                continue
            deaths = state.early_deaths.setdefault(key, deque(maxlen=limit))
            deaths.append((hash(died), user))
            commands, users = (set(column) for column in zip(*deaths, strict=True))
            is_enough = len(users) > 1 or not _any_quarantined(state)
            if len(deaths) >= limit and len(commands) >= LEAST_COMMANDS and is_enough:
                del state.early_deaths[key]
                _quarantine(state, placement.node_id, share.index, now_ms, outcome)


def _any_quarantined(state: ControlState) -> bool:
    nodes = (resources.node for resources in state.cluster.index.by_id.values())
    return any(device.quarantined for node in nodes for device in node.devices)


def _quarantine(
    state: ControlState, node_id: str, index: int, now_ms: int, outcome: Outcome
) -> None:
    node = state.cluster.index.resources(node_id).node
    if sum(device.takes_work for device in node.devices) <= 1:
        return
    devices = tuple(
        replace(device, quarantined=True) if device.index == index else device
        for device in node.devices
    )
    set_node(state, replace(node, devices=devices), outcome)
    data = (("node", node_id), ("gpu", index))
    outcome.event("gpu_quarantined", now_ms, data)


def _with_earlier_status(device: Device, before: Device | None) -> Device:
    """A reported device with its earlier pauses, quarantine and health."""
    if before is None or before.uuid != device.uuid:
        return device
    if before.why == GONE:
        before = replace(before, health=Health.HEALTHY, why="")
    return replace(
        device,
        paused=before.paused,
        pause_reason=before.pause_reason,
        quarantined=before.quarantined,
        hot=before.hot,
        health=before.health,
        foreign=before.foreign,
        why=before.why,
        forgiven=before.forgiven,
        trust_ms=before.trust_ms,
        temperature_c=before.temperature_c,
    )
