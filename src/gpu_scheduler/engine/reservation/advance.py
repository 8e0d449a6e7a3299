"""Advance reservations: which devices are closed to a job and when, and which can be reserved.

A job without a right to an advance reservation may start on its devices only if it ends before the
reservation begins. Its run time limit counts; a job that can be preempted may also rely on its
expected run time, as it is stopped in time if that was wrong. `eviction_ms` is left for stopping.

Devices that are closed to a job are unusable in the index while the job is considered, so every
search respects that. Without advance reservations none of this is built.
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
    """The advance reservations that one job has no right to, and how far ahead they matter."""

    __slots__ = ("_reservations", "reach_ms")

    def __init__(
        self, reservations: tuple[tuple[AdvanceReservation, Masks], ...], reach_ms: int
    ) -> None:
        """`reach_ms` after its start the job has ended in any case."""
        self._reservations = reservations
        self.reach_ms = reach_ms

    @property
    def last_end_ms(self) -> int:
        """From then on nothing is closed."""
        return max(reservation.end_ms for reservation, _ in self._reservations)

    @property
    def ordinals(self) -> list[int]:
        """The nodes with such reservations."""
        return sorted({ordinal for _, masks in self._reservations for ordinal in masks})

    def closed_at(self, ordinal: int, at_ms: int) -> int:
        """The devices of a node on which the job must not start at that moment."""
        closed = 0
        for reservation, masks in self._reservations:
            if at_ms < reservation.end_ms and at_ms + self.reach_ms > reservation.start_ms:
                closed |= masks.get(ordinal, 0)
        return closed

    def closed(self, at_ms: int | None) -> Masks:
        """The same for all nodes; for None, whatever is ever closed."""
        found: Masks = {}
        for reservation, masks in self._reservations:
            if at_ms is None or (
                at_ms < reservation.end_ms and at_ms + self.reach_ms > reservation.start_ms
            ):
                for ordinal, mask in masks.items():
                    found[ordinal] = found.get(ordinal, 0) | mask
        return found

    def ends_on(self, ordinal: int) -> list[int]:
        """When such reservations on a node end."""
        return [reservation.end_ms for reservation, masks in self._reservations if ordinal in masks]

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
        return bool(touched_devices(grant) & self.closed_at(grant.resources.ordinal, at_ms))

    def reason_at(self, at_ms: int) -> Reason:
        """The first reservation that excludes the job, as a reason."""
        for reservation, _ in self._reservations:
            if at_ms < reservation.end_ms and at_ms + self.reach_ms > reservation.start_ms:
                data: tuple[tuple[str, str | int], ...] = (
                    ("from_ms", reservation.start_ms),
                    ("gpus", reservation.gpu_count),
                    ("owner", reservation.owner),
                    ("reservation", reservation.id),
                    ("until_ms", reservation.end_ms),
                )
                is_ahead = at_ms < reservation.start_ms
                return Reason(
                    ReasonCode.ADVANCE_RESERVATION_AHEAD
                    if is_ahead
                    else ReasonCode.ADVANCE_RESERVATION,
                    data,
                )
        return Reason(ReasonCode.RESOURCES)


class AdvanceReservations:
    """The advance reservations of one pass; closes devices on the index for the considered job."""

    def __init__(self, state: ClusterState, now_ms: int) -> None:
        """Take all reservations that are not over."""
        self._state = state
        self._now_ms = now_ms
        self._all = tuple(
            (reservation, masks_of(state, reservation))
            for reservation in sorted(
                state.advance_reservations.values(),
                key=lambda reservation: (reservation.start_ms, reservation.number),
            )
            if now_ms < reservation.end_ms
        )
        self._rules: dict[tuple[str, str, int], ExclusionRule | None] = {}
        self._open: Masks = {}
        self._closures: dict[tuple[tuple[int, int], ...], int] = {(): 0}

    def rule_for(self, entry: Entry, duration_ms: int) -> ExclusionRule | None:
        """What excludes a waiting job; None if it may use all devices at any time."""
        job = entry.waiting.job
        reach_ms = self._reach_ms(entry, duration_ms)
        key = (job.tenant, job.user, reach_ms)
        if key not in self._rules:
            reservations = tuple(item for item in self._all if not item[0].admits(job))
            self._rules[key] = ExclusionRule(reservations, reach_ms) if reservations else None
        return self._rules[key]

    def close(self, masks: Masks) -> int:
        """Close exactly these devices on the index; returns a number for this choice."""
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
        """The job's own reservations now: what to close besides them, their nodes, and until when.

        None if it has none, or needs no GPU.
        """
        own: Masks = {}
        until_ms = 0
        if entry.shape.uses_gpus:
            for reservation, masks in self._all:
                if reservation.start_ms <= self._now_ms and reservation.admits(entry.waiting.job):
                    until_ms = max(until_ms, reservation.end_ms)
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


def masks_of(state: ClusterState, reservation: AdvanceReservation) -> Masks:
    """The devices of a reservation on the known nodes."""
    masks: Masks = {}
    for node_id, indices in reservation.devices:
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


def jobs_in_the_way(state: ClusterState, reservation: AdvanceReservation) -> list[RunningEntry]:
    """What runs on the devices of a reservation without a right to it, and may not end in time."""
    masks = masks_of(state, reservation)
    found: dict[str, RunningEntry] = {}
    for ordinal, mask in sorted(masks.items()):
        for allocation_id, entry in sorted(state.by_node.get(ordinal, {}).items()):
            running = entry.running
            if reservation.admits(running.job) or running.limit_end_ms <= reservation.start_ms:
                continue
            if any(
                touched_devices(h) & mask for h in entry.grants if h.resources.ordinal == ordinal
            ):
                found[allocation_id] = entry
    return list(found.values())


def can_be_evicted(state: ClusterState, entry: RunningEntry) -> bool:
    """Tell whether a running job may be evicted for an advance reservation."""
    running = entry.running
    tenant = state.tenant(running.job.tenant)
    return (
        running.job.preemptible
        and tenant.allow_preemption
        and running.preemptions < tenant.max_preemptions
    )


def is_excluded(
    reservations: Iterable[AdvanceReservation], job: Job, placements: tuple[Placement, ...]
) -> bool:
    """Tell whether a placement uses devices that are reserved for others; for tests and checks."""
    held = {(p.node_id, share.index) for p in placements for share in p.devices}
    return any(
        (node_id, index) in held
        for reservation in reservations
        if not reservation.admits(job)
        for node_id, indices in reservation.devices
        for index in indices
    )


def touched_devices(grant: Grant) -> int:
    """All devices that a hold takes any part of."""
    mask = grant.mask
    for position, _, _ in grant.parts:
        mask |= 1 << position
    for position, _ in grant.slices:
        mask |= 1 << position
    return mask


# Which devices can be reserved, or what would fit instead. Changes nothing.
#
# A device can be reserved if it takes work, is not reserved at that time, and what runs on it has a
# right to be there or ends by its limit before the start. With `preempts`, jobs that can be
# preempted are no obstacle: they are stopped in time.

MOST_TIMES = 64
"""Each survey goes over all nodes, so a refusal suggests only one of so many start times."""
Devices = tuple[tuple[str, tuple[int, ...]], ...]
Place = tuple[str, int]
"""A node, and the index of one of its devices."""


class _DeviceSurvey:
    """What stands in the way of a wish, counted by device."""

    def __init__(self, state: ClusterState, spec: ReservationSpec, start_ms: int) -> None:
        self.out = self.reserved = self.running = self.stoppable = 0
        self.open: list[tuple[NodeResources, int, int]] = []
        end_ms = start_ms + spec.end_ms - spec.start_ms
        for resources in _nodes(state, spec):
            wanted = _wanted(resources, spec)
            out = wanted & ~_trusted(resources)
            reserved = wanted & ~out & _reserved(state, resources, start_ms, end_ms)
            stays, yields = _running(state, spec, resources, start_ms)
            running = wanted & ~out & ~reserved & stays
            stoppable = wanted & ~out & ~reserved & ~running & yields
            self.out += out.bit_count()
            self.reserved += reserved.bit_count()
            self.running += running.bit_count()
            self.stoppable += stoppable.bit_count()
            free = wanted & ~out & ~reserved & ~running & ~stoppable
            self.open.append((resources, free, stoppable if spec.preempts else 0))

    @property
    def count(self) -> int:
        """How many devices can be had."""
        return sum((free | more).bit_count() for _, free, more in self.open)


def choose_devices(state: ClusterState, spec: ReservationSpec) -> Devices:
    """The devices to reserve: on one node if one has enough, free ones first."""
    survey = _DeviceSurvey(state, spec, spec.start_ms)
    if survey.count < spec.gpus:
        raise WrongState(_refusal(state, spec, survey))
    enough = [item for item in survey.open if (item[1] | item[2]).bit_count() >= spec.gpus]
    if enough:
        # Who must stop for it counts first, then the tightest node.
        resources, free, more = min(
            enough,
            key=lambda item: (
                max(0, spec.gpus - item[1].bit_count()),
                item[1].bit_count(),
                item[0].ordinal,
            ),
        )
        return ((resources.node.id, _indices(resources, _pick(resources, free, more, spec.gpus))),)
    chosen: list[tuple[str, tuple[int, ...]]] = []
    left = spec.gpus
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


def broken_devices(state: ClusterState, reservation: AdvanceReservation) -> tuple[Place, ...]:
    """Devices of a reservation that are unhealthy, quarantined, gone, or on a lost node.

    What an admin has paused or cordoned is not broken, and comes back by the admin's word.
    """
    broken = []
    for node_id, indices in reservation.devices:
        resources = state.index.by_id.get(node_id)
        is_lost = resources is None or resources.node.state in {NodeState.LOST, NodeState.DEAD}
        devices = {} if resources is None else {one.index: one for one in resources.node.devices}
        for index in indices:
            device = devices.get(index)
            if is_lost or device is None or _is_broken(device):
                broken.append((node_id, index))
    return tuple(sorted(broken))


def with_replacements(
    state: ClusterState, reservation: AdvanceReservation, broken: tuple[Place, ...], now_ms: int
) -> Devices:
    """The devices of a reservation, with as many broken ones as possible replaced.

    Others are what was asked for and, if no model was, of the model of those that broke; rather on
    a node of which the reservation has some already.
    """
    spec = ReservationSpec(
        tenant=reservation.tenant,
        user=reservation.user,
        gpus=1,
        start_ms=max(now_ms, reservation.start_ms),
        end_ms=reservation.end_ms,
        node=reservation.asked_node,
        indices=reservation.asked_indices,
        preempts=reservation.preempts,
    )
    if spec.end_ms <= spec.start_ms or (spec.node and spec.node not in state.index.by_id):
        return reservation.devices
    places = {(node_id, index) for node_id, indices in reservation.devices for index in indices}
    taken: set[Place] = set()
    for place in broken:
        model = reservation.asked_model or _model_of(state, place)
        found = _other(state, replace(spec, gpu_model=model), places | taken)
        if found is not None:
            places.remove(place)
            taken.add(found)
    by_node: dict[str, list[int]] = {}
    for node_id, index in sorted(places | taken):
        by_node.setdefault(node_id, []).append(index)
    return tuple((node_id, tuple(indices)) for node_id, indices in by_node.items())


def _other(state: ClusterState, spec: ReservationSpec, places: set[Place]) -> Place | None:
    """One device more, that is not among these."""
    near = {node_id for node_id, _ in places}
    found = []
    for resources, free, more in _DeviceSurvey(state, spec, spec.start_ms).open:
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


def _nodes(state: ClusterState, spec: ReservationSpec) -> list[NodeResources]:
    if spec.node:
        return [state.index.resources(spec.node)]
    return state.index.by_ordinal()


def _wanted(resources: NodeResources, spec: ReservationSpec) -> int:
    devices = resources.node_class.devices
    if spec.indices:
        unknown = sorted(set(spec.indices) - {device.index for device in devices})
        if unknown and spec.node:
            raise UnknownThing(f"node '{spec.node}' has no GPU {', '.join(map(str, unknown))}")
        mask = mask_of(resources, spec.indices)
    else:
        mask = (1 << len(devices)) - 1
    if spec.gpu_model:
        mask &= mask_of(resources, (d.index for d in devices if d.model == spec.gpu_model))
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


def _reserved(state: ClusterState, resources: NodeResources, start_ms: int, end_ms: int) -> int:
    mask = 0
    for reservation in state.advance_reservations.values():
        if reservation.overlaps(start_ms, end_ms):
            mask |= masks_of(state, reservation).get(resources.ordinal, 0)
    return mask


def _running(
    state: ClusterState, spec: ReservationSpec, resources: NodeResources, start_ms: int
) -> tuple[int, int]:
    """Devices of a node that may still be held at the start: for good, and by who can yield."""
    stays = yields = 0
    for entry in state.by_node.get(resources.ordinal, {}).values():
        running = entry.running
        gone_ms = running.limit_end_ms + state.policy.eviction_ms
        if spec.admits(running.job) or running.stopping or gone_ms <= start_ms:
            continue
        mask = 0
        for grant in entry.grants:
            if grant.resources is resources:
                mask |= touched_devices(grant)
        if can_be_evicted(state, entry):
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


def _refusal(state: ClusterState, spec: ReservationSpec, survey: _DeviceSurvey) -> str:
    """What was asked, what was found, and what would fit."""
    total = sum(_wanted(resources, spec).bit_count() for resources in _nodes(state, spec))
    found = [
        f"{count} {what}"
        for count, what in (
            (survey.out, "paused, unhealthy, drained or not online"),
            (survey.reserved, "reserved already"),
            (survey.running, "held by jobs that may run longer"),
            (0 if spec.preempts else survey.stoppable, "held by jobs that could be preempted"),
        )
        if count
    ]
    advice = [f"ask for {survey.count} or fewer"] if survey.count else []
    if not spec.preempts and survey.count + survey.stoppable >= spec.gpus:
        advice.append("let them be stopped for it (--preempt)")
    later_ms = _first_time(state, spec)
    if later_ms is not None:
        advice.append(f"begin at {format_utc(later_ms)}")
    return (
        f"{spec.gpus} GPUs cannot be free at {format_utc(spec.start_ms)}: of {total} that could "
        f"be meant, {survey.count} can" + (f" ({', '.join(found)})" if found else "") + "; "
        f"{', or '.join(advice) or 'choose other GPUs'}"
    )


def _first_time(state: ClusterState, spec: ReservationSpec) -> int | None:
    """The first later moment at which the wish could be granted; of many only some are tried."""
    eviction_ms = state.policy.eviction_ms
    moments = {entry.running.limit_end_ms + eviction_ms for entry in state.running.values()}
    moments |= {reservation.end_ms for reservation in state.advance_reservations.values()}
    later = sorted((moment for moment in moments if moment > spec.start_ms), reverse=True)
    # Backwards, so that the last one, when all have gone, is among those that are tried.
    tried = later[:: 1 + len(later) // MOST_TIMES][::-1]
    fitting = (at_ms for at_ms in tried if _DeviceSurvey(state, spec, at_ms).count >= spec.gpus)
    return next(fitting, None)
