"""What people have reserved, as it bears on one job: which devices are closed to it, and when.

A job without a right to a window may start on its devices only if it is over before the window
begins. What counts is its limit; a job that can be preempted may also rely on its expected run
time, as it is stopped in time if that was wrong. `eviction_ms` is left for the last one to leave.

Closed devices are taken out of the index for as long as a job is looked at that may not have them,
so every search obeys without knowing. Nothing here is made while nobody has reserved anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpu_scheduler.engine.policy import Preemption
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.state.cluster_state import ClusterState, RunningEntry
from gpu_scheduler.engine.state.node_resources import Grant, NodeResources
from gpu_scheduler.engine.state.shapes import lowest_bits
from gpu_scheduler.model.errors import UnknownThing, WrongState
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Device, Health, NodeState
from gpu_scheduler.model.plan import AdvanceReservation, Placement, ReservationSpec
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.utc import format_utc

Masks = dict[int, int]
"""Devices by the ordinal of their node."""


class ExclusionRule:
    """The windows that one job has no right to, and how far ahead it must look."""

    __slots__ = ("_windows", "reach_ms")

    def __init__(
        self, windows: tuple[tuple[AdvanceReservation, Masks], ...], reach_ms: int
    ) -> None:
        """`reach_ms` after its start the job is gone for sure."""
        self._windows = windows
        self.reach_ms = reach_ms

    @property
    def last_end_ms(self) -> int:
        """From then on nothing is closed."""
        return max(window.end_ms for window, _ in self._windows)

    @property
    def ordinals(self) -> list[int]:
        """The nodes with windows."""
        return sorted({ordinal for _, masks in self._windows for ordinal in masks})

    def closed_at(self, ordinal: int, at_ms: int) -> int:
        """The devices of a node on which the job must not start at that moment."""
        closed = 0
        for window, masks in self._windows:
            if at_ms < window.end_ms and at_ms + self.reach_ms > window.start_ms:
                closed |= masks.get(ordinal, 0)
        return closed

    def closed(self, at_ms: int | None) -> Masks:
        """The same for all nodes; for None, whatever is ever closed."""
        found: Masks = {}
        for window, masks in self._windows:
            if at_ms is None or (at_ms < window.end_ms and at_ms + self.reach_ms > window.start_ms):
                for ordinal, mask in masks.items():
                    found[ordinal] = found.get(ordinal, 0) | mask
        return found

    def ends_on(self, ordinal: int) -> list[int]:
        """When windows on a node end."""
        return [window.end_ms for window, masks in self._windows if ordinal in masks]

    def narrowed(self, resources: NodeResources, at_ms: int) -> NodeResources:
        """A node as the job may use it from that moment on."""
        closed = self.closed_at(resources.ordinal, at_ms) & resources.usable
        if not closed:
            return resources
        twin = resources.copy()
        twin.usable &= ~closed
        return twin

    def bars(self, grant: Grant, at_ms: int) -> bool:
        """Tell whether the job must not take certain devices at that moment."""
        return bool(touched(grant) & self.closed_at(grant.resources.ordinal, at_ms))

    def reason_at(self, at_ms: int) -> Reason:
        """The window that is first in the way, as a reason."""
        for window, _ in self._windows:
            if at_ms < window.end_ms and at_ms + self.reach_ms > window.start_ms:
                data: tuple[tuple[str, str | int], ...] = (
                    ("from_ms", window.start_ms),
                    ("gpus", window.gpu_count),
                    ("owner", window.owner),
                    ("reservation", window.id),
                    ("until_ms", window.end_ms),
                )
                is_ahead = at_ms < window.start_ms
                return Reason(ReasonCode.WINDOW_AHEAD if is_ahead else ReasonCode.WINDOW, data)
        return Reason(ReasonCode.RESOURCES)


class AdvanceReservations:
    """The windows of one pass, and what is closed on the index for the job that is looked at."""

    def __init__(self, state: ClusterState, now_ms: int) -> None:
        """Look at all windows that are not over."""
        self._state = state
        self._now_ms = now_ms
        self._all = tuple(
            (window, masks_of(state, window))
            for window in sorted(
                state.advance_reservations.values(),
                key=lambda window: (window.start_ms, window.number),
            )
            if now_ms < window.end_ms
        )
        self._rules: dict[tuple[str, str, int], ExclusionRule | None] = {}
        self._open: Masks = {}
        self._closures: dict[tuple[tuple[int, int], ...], int] = {(): 0}

    def rule_for(self, entry: Entry, duration_ms: int) -> ExclusionRule | None:
        """What a waiting job must keep to; None if it may go everywhere at any time."""
        job = entry.waiting.job
        reach_ms = self._reach_ms(entry, duration_ms)
        key = (job.tenant, job.user, reach_ms)
        if key not in self._rules:
            windows = tuple(item for item in self._all if not item[0].admits(job))
            self._rules[key] = ExclusionRule(windows, reach_ms) if windows else None
        return self._rules[key]

    def close(self, masks: Masks) -> int:
        """Have just these devices closed on the index; returns a number for this very choice."""
        key = tuple(sorted(item for item in masks.items() if item[1]))
        index = self._state.index
        for ordinal in sorted({*self._open, *masks}):
            resources = index.nodes[ordinal]
            usable = self._open.setdefault(ordinal, resources.usable) & ~masks.get(ordinal, 0)
            if usable != resources.usable:
                index.set_usable(resources, usable)
        return self._closures.setdefault(key, len(self._closures))

    def close_for(self, exclusion: ExclusionRule | None) -> int:
        """Close what a job may not use now; returns a number for this choice of devices."""
        return self.close({} if exclusion is None else exclusion.closed(self._now_ms))

    def usable_of(self, resources: NodeResources) -> int:
        """The devices that take work, closed or not."""
        return self._open.get(resources.ordinal, resources.usable)

    def own_of(self, entry: Entry, rule: ExclusionRule | None) -> tuple[Masks, int, int] | None:
        """The job's own windows now: what to close besides them, their nodes, and until when.

        None if it has none, or needs no GPU.
        """
        own: Masks = {}
        until_ms = 0
        if entry.shape.uses_gpus:
            for window, masks in self._all:
                if window.start_ms <= self._now_ms and window.admits(entry.waiting.job):
                    until_ms = max(until_ms, window.end_ms)
                    for ordinal, mask in masks.items():
                        own[ordinal] = own.get(ordinal, 0) | mask
        if not own:
            return None
        closed = {} if rule is None else rule.closed(self._now_ms)
        all_nodes = self._state.index.nodes
        outside = {o: self.usable_of(all_nodes[o]) & ~own[o] | closed.get(o, 0) for o in own}
        nodes = 0
        for ordinal in own:
            nodes |= all_nodes[ordinal].bit
        return outside, nodes, until_ms

    def _reach_ms(self, entry: Entry, duration_ms: int) -> int:
        policy = self._state.policy
        waiting = entry.waiting
        tenant = self._state.tenant(waiting.job.tenant)
        yields = (
            policy.fills_gaps
            and policy.preemption is not Preemption.NONE
            and waiting.job.preemptible
            and tenant.allow_preemption
            and waiting.preemptions < tenant.max_preemptions
        )
        lasts_ms = duration_ms if yields else self._state.limit_ms(waiting.job)
        return lasts_ms + policy.eviction_ms


def masks_of(state: ClusterState, window: AdvanceReservation) -> Masks:
    """The devices of a window on the nodes that are known."""
    masks: Masks = {}
    for node_id, indices in window.devices:
        resources = state.index.by_id.get(node_id)
        if resources is not None:
            masks[resources.ordinal] = masks.get(resources.ordinal, 0) | mask_of(resources, indices)
    return masks


def mask_of(resources: NodeResources, indices: Iterable[int]) -> int:
    """Devices of a node by their positions."""
    wanted = set(indices)
    mask = 0
    for position, device in enumerate(resources.node_class.devices):
        if device.index in wanted:
            mask |= 1 << position
    return mask


def intruders(state: ClusterState, window: AdvanceReservation) -> list[RunningEntry]:
    """What runs on the devices of a window, has no right to that, and may not be gone in time."""
    masks = masks_of(state, window)
    found: dict[str, RunningEntry] = {}
    for ordinal, mask in sorted(masks.items()):
        for allocation_id, entry in sorted(state.by_node.get(ordinal, {}).items()):
            running = entry.running
            if window.admits(running.job) or running.limit_end_ms <= window.start_ms:
                continue
            if any(touched(h) & mask for h in entry.grants if h.resources.ordinal == ordinal):
                found[allocation_id] = entry
    return list(found.values())


def can_yield(state: ClusterState, entry: RunningEntry) -> bool:
    """Tell whether a running job may be stopped for a window."""
    running = entry.running
    tenant = state.tenant(running.job.tenant)
    return (
        running.job.preemptible
        and tenant.allow_preemption
        and running.preemptions < tenant.max_preemptions
    )


def is_barred(
    windows: Iterable[AdvanceReservation], job: Job, placements: tuple[Placement, ...]
) -> bool:
    """Tell whether a placement lies on devices that are somebody else's; for tests and checks."""
    held = {(p.node_id, share.index) for p in placements for share in p.devices}
    return any(
        (node_id, index) in held
        for window in windows
        if not window.admits(job)
        for node_id, indices in window.devices
        for index in indices
    )


def touched(grant: Grant) -> int:
    """All devices that a hold takes any part of."""
    mask = grant.mask
    for position, _, _ in grant.parts:
        mask |= 1 << position
    for position, _ in grant.slices:
        mask |= 1 << position
    return mask


# --- Which devices a person can reserve for a while, or what would fit instead. Changes nothing.
#
# A device can be kept if it takes work, is in no other window at that time, and whatever runs on it
# has a right to be there or is gone by its limit before the start. With `preempts`, jobs that can
# be
# preempted are no obstacle: they are stopped in time.

MOST_TRIED = 64
"""Each look goes over all nodes, and whoever is refused is not worth more than a moment."""
Devices = tuple[tuple[str, tuple[int, ...]], ...]
Place = tuple[str, int]
"""A node, and the index of one of its devices."""


class _Survey:
    """What stands in the way of a wish, counted by device."""

    def __init__(self, state: ClusterState, wish: ReservationSpec, start_ms: int) -> None:
        self.out = self.reserved = self.running = self.stoppable = 0
        self.open: list[tuple[NodeResources, int, int]] = []
        end_ms = start_ms + wish.end_ms - wish.start_ms
        for resources in _nodes(state, wish):
            wanted = _wanted(resources, wish)
            out = wanted & ~_trusted(resources)
            reserved = wanted & ~out & _in_windows(state, resources, start_ms, end_ms)
            stays, yields = _running(state, wish, resources, start_ms)
            running = wanted & ~out & ~reserved & stays
            stoppable = wanted & ~out & ~reserved & ~running & yields
            self.out += out.bit_count()
            self.reserved += reserved.bit_count()
            self.running += running.bit_count()
            self.stoppable += stoppable.bit_count()
            free = wanted & ~out & ~reserved & ~running & ~stoppable
            self.open.append((resources, free, stoppable if wish.preempts else 0))

    @property
    def count(self) -> int:
        """How many devices can be had."""
        return sum((free | more).bit_count() for _, free, more in self.open)


def choose_devices(state: ClusterState, wish: ReservationSpec) -> Devices:
    """The devices to keep: on one node if one has enough, those that nobody must leave first."""
    survey = _Survey(state, wish, wish.start_ms)
    if survey.count < wish.gpus:
        raise WrongState(_refusal(state, wish, survey))
    enough = [item for item in survey.open if (item[1] | item[2]).bit_count() >= wish.gpus]
    if enough:
        # Who must stop for it counts first, then the tightest node.
        resources, free, more = min(
            enough,
            key=lambda item: (
                max(0, wish.gpus - item[1].bit_count()),
                item[1].bit_count(),
                item[0].ordinal,
            ),
        )
        return ((resources.node.id, _indices(resources, _pick(resources, free, more, wish.gpus))),)
    chosen: list[tuple[str, tuple[int, ...]]] = []
    left = wish.gpus
    for resources, free, more in sorted(
        survey.open, key=lambda item: (-(item[1] | item[2]).bit_count(), item[0].ordinal)
    ):
        count = min(left, (free | more).bit_count())
        if count:
            chosen.append(
                (resources.node.id, _indices(resources, _pick(resources, free, more, count)))
            )
            left -= count
    return tuple(chosen)


def broken_devices(state: ClusterState, window: AdvanceReservation) -> tuple[Place, ...]:
    """Devices of a window that cannot be relied on: unhealthy, set aside, gone, or of a lost node.

    What an admin has paused or cordoned is not broken, and comes back by the admin's word.
    """
    broken = []
    for node_id, indices in window.devices:
        resources = state.index.by_id.get(node_id)
        is_lost = resources is None or resources.node.state in {NodeState.LOST, NodeState.DEAD}
        devices = {} if resources is None else {one.index: one for one in resources.node.devices}
        for index in indices:
            device = devices.get(index)
            if is_lost or device is None or _is_broken(device):
                broken.append((node_id, index))
    return tuple(sorted(broken))


def mended_devices(
    state: ClusterState, window: AdvanceReservation, broken: tuple[Place, ...], now_ms: int
) -> Devices:
    """The devices of a window, with others in place of as many broken ones as can be.

    Others are what was asked for and, if no model was, of the model of those that broke; rather on
    a node of which the window has some already.
    """
    wish = ReservationSpec(
        tenant=window.tenant,
        user=window.user,
        gpus=1,
        start_ms=max(now_ms, window.start_ms),
        end_ms=window.end_ms,
        node=window.asked_node,
        indices=window.asked_indices,
        preempts=window.preempts,
    )
    if wish.end_ms <= wish.start_ms or (wish.node and wish.node not in state.index.by_id):
        return window.devices
    places = {(node_id, index) for node_id, indices in window.devices for index in indices}
    taken: set[Place] = set()
    for place in broken:
        model = window.asked_model or _model_of(state, place)
        found = _other(state, replace(wish, gpu_model=model), places | taken)
        if found is not None:
            places.remove(place)
            taken.add(found)
    by_node: dict[str, list[int]] = {}
    for node_id, index in sorted(places | taken):
        by_node.setdefault(node_id, []).append(index)
    return tuple((node_id, tuple(indices)) for node_id, indices in by_node.items())


def _other(state: ClusterState, wish: ReservationSpec, places: set[Place]) -> Place | None:
    """One device more, that is not among these."""
    near = {node_id for node_id, _ in places}
    found = []
    for resources, free, more in _Survey(state, wish, wish.start_ms).open:
        for is_held, mask in ((False, free), (True, more)):
            found += [
                (
                    (is_held, resources.node.id not in near, resources.ordinal, index),
                    (resources.node.id, index),
                )
                for index in _indices(resources, mask)
                if (resources.node.id, index) not in places
            ]
    return min(found)[1] if found else None


def _model_of(state: ClusterState, place: Place) -> str:
    resources = state.index.by_id.get(place[0])
    devices = () if resources is None else resources.node.devices
    return next((device.model for device in devices if device.index == place[1]), "")


def _is_broken(device: Device) -> bool:
    return device.health is not Health.HEALTHY or device.quarantined


def _nodes(state: ClusterState, wish: ReservationSpec) -> list[NodeResources]:
    if wish.node:
        return [state.index.resources(wish.node)]
    return sorted(state.index.by_id.values(), key=lambda resources: resources.ordinal)


def _wanted(resources: NodeResources, wish: ReservationSpec) -> int:
    devices = resources.node_class.devices
    if wish.indices:
        unknown = sorted(set(wish.indices) - {device.index for device in devices})
        if unknown and wish.node:
            raise UnknownThing(f"node '{wish.node}' has no GPU {', '.join(map(str, unknown))}")
        mask = mask_of(resources, wish.indices)
    else:
        mask = (1 << len(devices)) - 1
    if wish.gpu_model:
        mask &= mask_of(resources, (d.index for d in devices if d.model == wish.gpu_model))
    return mask


def _trusted(resources: NodeResources) -> int:
    """Devices that should be there then: heat and other people's programs pass."""
    if not resources.takes_work:
        return 0
    return mask_of(
        resources, (device.index for device in resources.node.devices if _is_sound(device))
    )


def _is_sound(device: Device) -> bool:
    return device.health is Health.HEALTHY and not device.paused and not device.quarantined


def _in_windows(state: ClusterState, resources: NodeResources, start_ms: int, end_ms: int) -> int:
    mask = 0
    for window in state.advance_reservations.values():
        if window.overlaps(start_ms, end_ms):
            mask |= masks_of(state, window).get(resources.ordinal, 0)
    return mask


def _running(
    state: ClusterState, wish: ReservationSpec, resources: NodeResources, start_ms: int
) -> tuple[int, int]:
    """Devices of a node that may still be held at the start: for good, and by who can yield."""
    stays = yields = 0
    for entry in state.by_node.get(resources.ordinal, {}).values():
        running = entry.running
        gone_ms = running.limit_end_ms + state.policy.eviction_ms
        if wish.admits(running.job) or running.stopping or gone_ms <= start_ms:
            continue
        mask = 0
        for grant in entry.grants:
            if grant.resources is resources:
                mask |= touched(grant)
        if can_yield(state, entry):
            yields |= mask
        else:
            stays |= mask
    return stays, yields


def _pick(resources: NodeResources, free: int, more: int, count: int) -> int:
    """Neighbours on one island if possible, and no more of those in use than needed."""
    wanted = min(count, free.bit_count())
    mask = resources.node_class.pick(free, Request(gpu_count=wanted)) if wanted else 0
    return mask | lowest_bits(more & ~mask, count - wanted)


def _indices(resources: NodeResources, mask: int) -> tuple[int, ...]:
    devices = enumerate(resources.node_class.devices)
    return tuple(sorted(device.index for place, device in devices if mask >> place & 1))


def _refusal(state: ClusterState, wish: ReservationSpec, survey: _Survey) -> str:
    """What was asked, what was found, and what would fit."""
    total = sum(_wanted(resources, wish).bit_count() for resources in _nodes(state, wish))
    found = [
        f"{count} {what}"
        for count, what in (
            (survey.out, "paused, unhealthy, drained or not online"),
            (survey.reserved, "reserved already"),
            (survey.running, "held by jobs that may run longer"),
            (0 if wish.preempts else survey.stoppable, "held by jobs that could be preempted"),
        )
        if count
    ]
    advice = [f"ask for {survey.count} or fewer"] if survey.count else []
    if not wish.preempts and survey.count + survey.stoppable >= wish.gpus:
        advice.append("let them be stopped for it (--preempt)")
    later_ms = _first_time(state, wish)
    if later_ms is not None:
        advice.append(f"begin at {format_utc(later_ms)}")
    return (
        f"{wish.gpus} GPUs cannot be free at {format_utc(wish.start_ms)}: of {total} that could "
        f"be meant, {survey.count} can" + (f" ({', '.join(found)})" if found else "") + "; "
        f"{', or '.join(advice) or 'choose other GPUs'}"
    )


def _first_time(state: ClusterState, wish: ReservationSpec) -> int | None:
    """The first later moment at which the wish could be granted; of many only some are tried."""
    eviction_ms = state.policy.eviction_ms
    moments = {entry.running.limit_end_ms + eviction_ms for entry in state.running.values()}
    moments |= {window.end_ms for window in state.advance_reservations.values()}
    later = sorted((moment for moment in moments if moment > wish.start_ms), reverse=True)
    # Backwards, so that the last one, when all have gone, is among those that are tried.
    tried = later[:: 1 + len(later) // MOST_TRIED][::-1]
    fitting = (at_ms for at_ms in tried if _Survey(state, wish, at_ms).count >= wish.gpus)
    return next(fitting, None)
