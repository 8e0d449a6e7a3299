"""Which devices an advance reservation can get, or what would fit instead. Changes nothing.

A device can be reserved if it takes work, is not reserved at that time, and what runs on it has a
right to be there or ends by its limit before the start. If the reservation `preempts`, jobs that
can be preempted are no obstacle: they are stopped in time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpu_scheduler.engine.placement.gpu_choice import lowest_bits
from gpu_scheduler.engine.reservation.advance_reservations import (
    can_be_evicted,
    masks_of,
    touched_devices,
)
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.node_resources import NodeResources
from gpu_scheduler.model.errors import UnknownThing, WrongState
from gpu_scheduler.model.node import Health, NodeState
from gpu_scheduler.model.plan import AdvanceReservation, ReservationSpec
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.utc import format_utc

MOST_TIMES = 64
"""Each survey goes over all nodes, so a refusal suggests only one of so many start times."""
Devices = tuple[tuple[str, tuple[int, ...]], ...]
"""Nodes, and the indices of some of their devices."""
Place = tuple[str, int]
"""A node, and the index of one of its devices."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one node offers: `free` devices, and those of jobs that can be `preempted`, as masks."""

    resources: NodeResources
    free: int
    preempted: int

    @property
    def count(self) -> int:
        return (self.free | self.preempted).bit_count()

    def indices(self, mask: int) -> tuple[int, ...]:
        """The devices of a mask by their index."""
        devices = enumerate(self.resources.node_class.devices)
        return tuple(sorted(device.index for place, device in devices if mask >> place & 1))

    def pick(self, count: int) -> tuple[str, tuple[int, ...]]:
        """Neighbours on one island if possible, and no more of those in use than needed."""
        wanted = min(count, self.free.bit_count())
        mask = 0
        if wanted:
            mask = self.resources.node_class.pick(self.free, Request(gpu_count=wanted))
        mask |= lowest_bits(self.preempted & ~mask, count - wanted)
        return self.resources.node.id, self.indices(mask)


class _DeviceSurvey:
    """The wanted devices at a start time: what the nodes offer, and how many devices do not fit.

    Those are `out` of use, `reserved`, used by jobs that stay `running`, or `stoppable`.
    """

    def __init__(self, state: ClusterState, spec: ReservationSpec, start_ms: int) -> None:
        self.out = self.reserved = self.running = self.stoppable = self.total = 0
        self.offers: list[_Offer] = []
        end_ms = start_ms + spec.end_ms - spec.start_ms
        overlapping = [
            masks_of(state, reservation)
            for reservation in state.advance_reservations.values()
            if reservation.overlaps(start_ms, end_ms)
        ]
        index = state.index
        for resources in [index.resources(spec.node)] if spec.node else index.by_ordinal():
            wanted = left = _wanted(resources, spec)
            out = left & ~_trusted(resources)
            left &= ~out
            reserved = 0
            for masks in overlapping:
                reserved |= left & masks.get(resources.ordinal, 0)
            left &= ~reserved
            stays, yields = _held_at(state, spec, resources, start_ms)
            running = left & stays
            stoppable = left & ~running & yields
            self.total += wanted.bit_count()
            self.out += out.bit_count()
            self.reserved += reserved.bit_count()
            self.running += running.bit_count()
            self.stoppable += stoppable.bit_count()
            free = left & ~running & ~stoppable
            self.offers.append(_Offer(resources, free, stoppable if spec.preempts else 0))

    @property
    def count(self) -> int:
        """The number of devices that can be reserved."""
        return sum(offer.count for offer in self.offers)


def choose_devices(state: ClusterState, spec: ReservationSpec) -> Devices:
    """The devices to reserve: on one node if one has enough, free ones first."""
    survey = _DeviceSurvey(state, spec, spec.start_ms)
    if survey.count < spec.gpus:
        raise WrongState(_refusal(state, spec, survey))

    def tightness(offer: _Offer) -> tuple[int, int, int]:
        """How many devices must be freed for it counts first, then the tightest node."""
        free = offer.free.bit_count()
        return max(0, spec.gpus - free), free, offer.resources.ordinal

    enough = [offer for offer in survey.offers if offer.count >= spec.gpus]
    if enough:
        return (min(enough, key=tightness).pick(spec.gpus),)
    chosen = []
    left = spec.gpus
    for offer in sorted(survey.offers, key=lambda offer: (-offer.count, offer.resources.ordinal)):
        count = min(left, offer.count)
        if count:
            chosen.append(offer.pick(count))
            left -= count
    return tuple(chosen)


def broken_devices(state: ClusterState, reservation: AdvanceReservation) -> tuple[Place, ...]:
    """Devices of a reservation that are unhealthy, quarantined, gone, or on a lost node.

    What an admin has paused or cordoned is not broken: the admin brings it back.
    """
    broken = []
    for node_id, indices in reservation.devices:
        resources = state.index.by_id.get(node_id)
        sound: set[int] = set()
        if resources is not None and resources.node.state not in {NodeState.LOST, NodeState.DEAD}:
            sound = {
                device.index
                for device in resources.node.devices
                if device.health is Health.HEALTHY and not device.quarantined
            }
        broken += [(node_id, index) for index in indices if index not in sound]
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
    for node_id, index in broken:
        model = reservation.asked_model
        if not model and node_id in state.index.by_id:
            devices = state.index.by_id[node_id].node.devices
            model = next((device.model for device in devices if device.index == index), "")
        found = _other(state, replace(spec, gpu_model=model), places | taken)
        if found is not None:
            places.remove((node_id, index))
            taken.add(found)
    return by_node(sorted(places | taken))


def by_node(places: Iterable[Place]) -> Devices:
    """These devices, in their order, for each node."""
    indices_of: dict[str, list[int]] = {}
    for node_id, index in places:
        indices_of.setdefault(node_id, []).append(index)
    return tuple((node_id, tuple(indices)) for node_id, indices in indices_of.items())


def _other(state: ClusterState, spec: ReservationSpec, places: set[Place]) -> Place | None:
    """One device more, that is not among these: rather a free one, and on one of their nodes."""
    near = {node_id for node_id, _ in places}
    found = []
    for offer in _DeviceSurvey(state, spec, spec.start_ms).offers:
        node = offer.resources.node
        for is_held, mask in ((False, offer.free), (True, offer.preempted)):
            found += [
                (is_held, node.id not in near, node.ordinal, index, node.id)
                for index in offer.indices(mask)
                if (node.id, index) not in places
            ]
    if not found:
        return None
    *_, index, node_id = min(found)
    return node_id, index


def _wanted(resources: NodeResources, spec: ReservationSpec) -> int:
    """The devices of a node that the request names, as a mask."""
    node_class = resources.node_class
    mask = node_class.everything
    if spec.indices:
        unknown = sorted(set(spec.indices) - {device.index for device in node_class.devices})
        if unknown and spec.node:
            raise UnknownThing(f"node '{spec.node}' has no GPU {', '.join(map(str, unknown))}")
        mask = node_class.mask_of(spec.indices)
    if spec.gpu_model:
        of_model = [d.index for d in node_class.devices if d.model == spec.gpu_model]
        mask &= node_class.mask_of(of_model)
    return mask


def _trusted(resources: NodeResources) -> int:
    """Devices that should be there then: heat and other people's programs pass."""
    if not resources.takes_work:
        return 0
    return resources.node_class.mask_of(
        [
            device.index
            for device in resources.node.devices
            if device.health is Health.HEALTHY and not device.paused and not device.quarantined
        ]
    )


def _held_at(
    state: ClusterState, spec: ReservationSpec, resources: NodeResources, start_ms: int
) -> tuple[int, int]:
    """Devices of a node that jobs may still hold then: that stay, and that can be preempted."""
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


def _refusal(state: ClusterState, spec: ReservationSpec, survey: _DeviceSurvey) -> str:
    """The request, the devices that match it, and what would fit."""
    obstacles = [
        f"{count} {obstacle}"
        for count, obstacle in (
            (survey.out, "paused, unhealthy, drained or not online"),
            (survey.reserved, "already reserved"),
            (survey.running, "used by jobs that may run longer"),
            (0 if spec.preempts else survey.stoppable, "used by jobs that could be preempted"),
        )
        if count
    ]
    advice = [f"ask for {survey.count} or fewer"] if survey.count else []
    if not spec.preempts and survey.count + survey.stoppable >= spec.gpus:
        advice.append("let the reservation preempt them (--preempt)")
    later_ms = _first_time(state, spec)
    if later_ms is not None:
        advice.append(f"begin at {format_utc(later_ms)}")
    return (
        f"{spec.gpus} GPUs cannot be free at {format_utc(spec.start_ms)}: of {survey.total} that "
        f"match, {survey.count} can"
        + (f" ({', '.join(obstacles)})" if obstacles else "")
        + f"; {', or '.join(advice) or 'choose other GPUs'}"
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
