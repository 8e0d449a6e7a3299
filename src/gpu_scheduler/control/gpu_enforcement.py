"""Enforce the rules for GPU use with every device sample, and update the condition of devices.

A job that exceeds its GPU memory, or leaves its GPUs idle, is warned, and stopped later if the site
wants that. The warning is in its log, its events and its reason.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace

from gpu_scheduler.control.effects import Outcome, WarnOrder
from gpu_scheduler.control.gpu_metering import (
    Action,
    AttemptMeter,
    GpuRules,
    weight_of,
    with_reading,
)
from gpu_scheduler.control.jobs.queueing import GPU_IDLE, GPU_MEMORY, stop
from gpu_scheduler.control.messages import DeviceSample
from gpu_scheduler.control.state import ControlState, CoreLimits
from gpu_scheduler.model.cluster_snapshot import Running
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.measurements import DeviceProcess
from gpu_scheduler.model.node import Device, ForeignUse, Health, Node, is_hot_after
from gpu_scheduler.model.plan import DeviceShare
from gpu_scheduler.model.request import WHOLE_MILLI

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class _Holder:
    """A job that holds a part of one device."""

    running: Running
    share: DeviceShare
    weight: int


@dataclass(frozen=True, slots=True)
class _Case:
    """One attempt on the sampled node, and where to add the results."""

    state: ControlState
    node: Node
    running: Running
    meter: AttemptMeter
    now_ms: int
    outcome: Outcome
    loads: dict[int, int | None] = field(default_factory=dict)
    """Load of each of its devices on this node; None if unknown."""

    @property
    def rules(self) -> GpuRules:
        return self.state.limits.gpu_rules

    def write_event(self, kind: str, *data: tuple[str, str | int]) -> None:
        """Write an event of the job."""
        allocation, job = self.running.allocation, self.running.job
        self.outcome.job_event(job, kind, self.now_ms, task=allocation.task, data=data)

    def warn(self, kind: str, text: str, *data: tuple[str, str | int]) -> None:
        """Write an event and a line in the log of the job; store it as its last warning."""
        self.meter.warning = text
        self.meter.changed = True
        self.outcome.effects.append(WarnOrder(self.running.allocation.id, text))
        self.write_event(kind, *data, ("text", text))

    def stop(self, why: str, text: str) -> None:
        self.meter.warning = text
        allocation = self.running.allocation
        stop(self.state, allocation.id, why, self.outcome)
        self.outcome.effects.append(WarnOrder(allocation.id, f"stopped: {text}"))
        self.outcome.writes.append(self.meter.row(allocation))
        self.write_event("stopping", ("why", why), ("text", text))


def on_sample(
    state: ControlState,
    node: Node,
    readings: tuple[DeviceSample, ...],
    now_ms: int,
    outcome: Outcome,
) -> None:
    """Add new samples of a node to the meters and check the rules."""
    devices = {device.index: device for device in node.devices}
    by_index = {reading.index: reading for reading in readings if reading.index in devices}
    span_ms = state.gpu_meter.span_ms(node.id, now_ms, state.limits.gpu_rules.longest_gap_ms)
    holders = _holders(state, node, devices)
    cases: dict[str, _Case] = {}
    for index, reading in by_index.items():
        here = holders.get(index, [])
        if span_ms:
            held_milli = min(WHOLE_MILLI, sum(holder.weight for holder in here))
            state.gpu_meter.add_device(node.id, reading, held_milli, span_ms, now_ms)
        for holder in here:
            running = holder.running
            meter = state.gpu_meter.of(running.allocation)
            new = _Case(state, node, running, meter, now_ms, outcome)
            case = cases.setdefault(running.allocation.id, new)
            own = _own_part(reading, running.allocation.id) if len(here) > 1 else reading
            case.loads[index] = own.utilisation_percent
            held = running.allocation
            state.gpu_meter.curves.add(held.id, held.start_ms, node.id, reading, now_ms)
            mine_ms = min(span_ms, max(0, now_ms - running.allocation.start_ms))
            if mine_ms:
                weights = sum(other.weight for other in here)
                meter.measure = with_reading(meter.measure, own, mine_ms, holder.weight, weights)
                meter.changed = True
    for case in cases.values():
        _note_memory(case, by_index)
        if not _is_stopping(case):
            _check_memory(case, by_index)
        if not _is_stopping(case):
            _check_idle(case)
    _write(state, node.id, cases, now_ms, outcome)


def _is_stopping(case: _Case) -> bool:
    return case.state.cluster.running[case.running.allocation.id].running.stopping


def _holders(
    state: ControlState, node: Node, devices: dict[int, Device]
) -> dict[int, list[_Holder]]:
    """The jobs on each device of a node."""
    found: dict[int, list[_Holder]] = {}
    resources = state.cluster.index.resources(node.id)
    for entry in state.cluster.by_node.get(resources.ordinal, {}).values():
        for share in _shares(entry.running, node.id):
            holder = _Holder(entry.running, share, weight_of(share, devices[share.index]))
            found.setdefault(share.index, []).append(holder)
    return found


def _own_part(reading: DeviceSample, allocation_id: str) -> DeviceSample:
    """The sample with the load of one job only, if the device reports load per process."""
    if all(process.load_percent is None for process in reading.processes):
        return reading
    load = sum(
        process.load_percent or 0
        for process in reading.processes
        if process.allocation_id == allocation_id
    )
    return replace(reading, load_percent=load, utilisation_percent=load)


def _shares(running: Running, node_id: str) -> Iterator[DeviceShare]:
    for placement in running.allocation.placements:
        if placement.node_id == node_id:
            yield from placement.devices


def _used_mb(reading: DeviceSample, allocation_id: str) -> int:
    return sum(
        process.memory_mb for process in reading.processes if process.allocation_id == allocation_id
    )


def _note_memory(case: _Case, by_index: dict[int, DeviceSample]) -> None:
    meter, allocation_id = case.meter, case.running.allocation.id
    meter.read_ms[case.node.id] = case.now_ms
    meter.used_mb[case.node.id] = sum(
        _used_mb(by_index[share.index], allocation_id)
        for share in _shares(case.running, case.node.id)
        if share.index in by_index
    )
    used_mb = sum(meter.used_mb.values())
    if used_mb > meter.measure.peak_memory_mb:
        meter.measure = replace(meter.measure, peak_memory_mb=used_mb)
        meter.changed = True


def _check_memory(case: _Case, by_index: dict[int, DeviceSample]) -> None:
    """Check the memory of a job on shared devices; a whole device has no limit."""
    if case.rules.memory is Action.OFF:
        return
    for share in _shares(case.running, case.node.id):
        reading = by_index.get(share.index)
        if reading is None or share.share_milli >= WHOLE_MILLI or share.mig_profile:
            continue
        used_mb = _used_mb(reading, case.running.allocation.id)
        place = (case.node.id, share.index)
        most_mb = share.memory_mb * (100 + case.rules.memory_tolerance_percent) // 100
        if used_mb > most_mb:
            _over_memory(case, share, used_mb)
        elif place in case.meter.over_ms:
            del case.meter.over_ms[place]
            data = (("node", case.node.id), ("gpu", share.index), ("used_mb", used_mb))
            case.write_event("gpu_memory_ok", *data)


def _over_memory(case: _Case, share: DeviceShare, used_mb: int) -> None:
    rules, place = case.rules, (case.node.id, share.index)
    over_ms = case.meter.over_ms.get(place)
    text = (
        f"it uses {used_mb} MiB of the memory of GPU {share.index} on {case.node.id} "
        f"and was given {share.memory_mb}"
    )
    if over_ms is None:
        case.meter.over_ms[place] = case.now_ms
        then = ""
        if rules.memory is Action.STOP:
            then = f"; it is stopped in {rules.memory_grace_ms // 1000} s unless it gives some back"
        case.warn(
            "gpu_memory_warning",
            text + then,
            *(("node", case.node.id), ("gpu", share.index)),
            *(("used_mb", used_mb), ("given_mb", share.memory_mb)),
        )
    elif rules.memory is Action.STOP and case.now_ms - over_ms >= rules.memory_grace_ms:
        case.stop(GPU_MEMORY, text)


def _check_idle(case: _Case) -> None:
    """Check for idle GPUs: a job is idle if recent samples of all its devices are."""
    rules, meter, now_ms = case.rules, case.meter, case.now_ms
    if rules.idle is Action.OFF or _may_be_idle(rules, case.running.job):
        return
    if _is_busy(case) or not _all_read(case):
        if meter.idle_warned_ms is not None:
            case.write_event("gpu_idle_over")
        meter.busy_ms, meter.idle_warned_ms = now_ms, None
        return
    if meter.busy_ms is None:
        meter.busy_ms = now_ms
    minutes = (now_ms - meter.busy_ms) // MINUTE_MS
    text = f"its GPUs have been under {rules.idle_percent} % for {minutes} minutes"
    if meter.idle_warned_ms is not None:
        if rules.idle is Action.STOP and now_ms - meter.idle_warned_ms >= rules.idle_grace_ms:
            case.stop(GPU_IDLE, text)
    elif now_ms - meter.busy_ms >= rules.idle_ms:
        meter.idle_warned_ms = now_ms
        then = ""
        if rules.idle is Action.STOP:
            then = f"; it is stopped in {rules.idle_grace_ms // 1000} s unless it uses them"
        case.warn("gpu_idle_warning", text + then, ("minutes", minutes))


def _may_be_idle(rules: GpuRules, job: Job) -> bool:
    return (
        (rules.idle_opt_out and job.allow_idle)
        or (rules.idle_exempts_interactive and job.interactive)
        or job.user in rules.idle_exempt_users
        or job.tenant in rules.idle_exempt_tenants
    )


def _is_busy(case: _Case) -> bool:
    """Tell whether a device of the job on this node is busy; unknown load counts as busy."""
    for share in _shares(case.running, case.node.id):
        load = case.loads.get(share.index)
        if load is None or load >= case.rules.idle_percent:
            return True
    return False


def _all_read(case: _Case) -> bool:
    """Tell whether all nodes of the job with devices have a recent sample."""
    since_ms = case.now_ms - case.rules.longest_gap_ms
    return all(
        case.meter.read_ms.get(placement.node_id, -1) >= since_ms
        for placement in case.running.allocation.placements
        if placement.devices
    )


def _write(
    state: ControlState, node_id: str, cases: dict[str, _Case], now_ms: int, outcome: Outcome
) -> None:
    hours = state.gpu_meter.due_hours(node_id, now_ms)
    if hours is None:
        return
    outcome.writes += hours
    for case in cases.values():
        if case.meter.changed and case.meter.has_data:
            case.meter.changed = False
            outcome.writes.append(case.meter.row(case.running.allocation))


NEAR_MB = 256
"""A smaller change of the memory of a process is not written."""

Data = tuple[tuple[str, str | int], ...]


def after_reading(
    device: Device, reading: DeviceSample | None, limits: CoreLimits, held: Container[str]
) -> Device:
    """The device updated from a sample. `held` are the active allocations."""
    if reading is None:
        return device
    hot = limits.hot_above_c > 0 and is_hot_after(
        was_hot=device.hot,
        temperature_c=reading.temperature_c,
        threshold_c=limits.hot_above_c,
        hysteresis_c=limits.hot_hysteresis_c,
    )
    pids = {process.pid for process in reading.processes}
    changed = replace(
        device,
        hot=hot,
        health=Health.HEALTHY if reading.healthy else Health.UNHEALTHY,
        why="" if reading.healthy else reading.why,
        foreign=_taken_by(device, reading, held),
        forgiven=tuple(pid for pid in device.forgiven if pid in pids),
        trust_ms=0 if reading.trusted == device.trust_ms else device.trust_ms,
    )
    if changed == device:
        return device
    return replace(changed, temperature_c=reading.temperature_c)


def changes(old: Device, new: Device, xid: int) -> list[tuple[str, Data]]:
    """The events for a changed device."""
    found: list[tuple[str, Data]] = []
    if old.hot != new.hot:
        found.append(
            ("gpu_hot" if new.hot else "gpu_cool", (("temperature_c", new.temperature_c),))
        )
    if old.health is not new.health:
        if new.health is Health.UNHEALTHY:
            found.append(("gpu_unhealthy", (("why", new.why), ("xid", xid))))
        else:
            found.append(("gpu_healthy", ()))
    if _identity(old.foreign) != _identity(new.foreign):
        if new.foreign is None:
            found.append(("gpu_free", ()))
        else:
            kind = "gpu_leak" if new.foreign.leaked else "gpu_foreign"
            found.append((kind, _event_data(new.foreign)))
    return found


def _taken_by(device: Device, reading: DeviceSample, held: Container[str]) -> ForeignUse | None:
    """The process that blocks the device: one left by an ended job first, then a foreign one."""
    uses = []
    for process in reading.processes:
        if process.pid in device.forgiven and process.pid:
            continue
        if process.allocation_id and process.allocation_id not in held:
            uses.append(_use(process, leaked=True))
        elif not process.allocation_id:
            uses.append(_use(process, leaked=False))
    if reading.unexplained_mb:
        uses.append(ForeignUse(pid=0, memory_mb=reading.unexplained_mb, leaked=True))
    if not uses:
        return None
    before = device.foreign
    for use in uses:
        # Keep reporting the same process while it exists, to avoid alternating events.
        if before is not None and _identity(use) == _identity(before):
            is_near = abs(before.memory_mb - use.memory_mb) < NEAR_MB
            return replace(use, memory_mb=before.memory_mb) if is_near else use
    return max(uses, key=lambda use: (use.leaked, use.memory_mb, -use.pid))


def _use(process: DeviceProcess, *, leaked: bool) -> ForeignUse:
    return ForeignUse(
        pid=process.pid,
        user=process.user,
        memory_mb=process.memory_mb,
        command=process.command,
        leaked=leaked,
        job=process.allocation_id.rpartition(".")[0],
    )


def _identity(use: ForeignUse | None) -> tuple[int, bool] | None:
    return None if use is None else (use.pid, use.leaked)


def _event_data(use: ForeignUse) -> Data:
    data: Data = (
        *(("pid", use.pid), ("of_user", use.user)),
        *(("command", use.command), ("memory_mb", use.memory_mb)),
    )
    return (*data, ("job", use.job)) if use.job else data
