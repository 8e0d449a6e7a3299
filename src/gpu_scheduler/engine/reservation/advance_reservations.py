"""Advance reservations in a pass: which devices are closed to a job, and when.

A job without a right to an advance reservation may start on its devices only if it ends before the
reservation begins. Its run time limit counts; a job that can be preempted may also rely on its
expected run time, as it is stopped in time if that was wrong. `eviction_ms` is left for stopping.

Devices that are closed to a job are unusable in the index while the job is considered, so every
search respects that. Without advance reservations none of this is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_scheduler.engine.policy import Preemption
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.state.cluster_state import ClusterState, RunningEntry
from gpu_scheduler.engine.state.node_resources import Grant, NodeResources
from gpu_scheduler.model.plan import AdvanceReservation
from gpu_scheduler.model.reasons import Reason, ReasonCode

Masks = dict[int, int]
"""Devices by the ordinal of their node."""


@dataclass(frozen=True, slots=True, eq=False)
class ExclusionRule:
    """The advance reservations that one job has no right to.

    `reach_ms` after its start the job has ended in any case.
    """

    _reservations: tuple[tuple[AdvanceReservation, Masks], ...]
    reach_ms: int

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
        for _, masks in self._closing(at_ms):
            closed |= masks.get(ordinal, 0)
        return closed

    def closed(self, at_ms: int | None) -> Masks:
        """The same for all nodes; for None, whatever is ever closed."""
        return _joined(masks for _, masks in self._closing(at_ms))

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
        for reservation, _ in self._closing(at_ms):
            data: tuple[tuple[str, str | int], ...] = (
                ("from_ms", reservation.start_ms),
                ("gpus", reservation.gpu_count),
                ("owner", reservation.owner),
                ("reservation", reservation.id),
                ("until_ms", reservation.end_ms),
            )
            if at_ms < reservation.start_ms:
                return Reason(ReasonCode.WINDOW_AHEAD, data)
            return Reason(ReasonCode.WINDOW, data)
        return Reason(ReasonCode.RESOURCES)

    def _closing(self, at_ms: int | None) -> Iterator[tuple[AdvanceReservation, Masks]]:
        """The reservations on whose devices the job must not start then; None: all of them."""
        for reservation, masks in self._reservations:
            if at_ms is None or (
                at_ms < reservation.end_ms and at_ms + self.reach_ms > reservation.start_ms
            ):
                yield reservation, masks


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
        current = [
            (reservation.end_ms, masks)
            for reservation, masks in self._all
            if reservation.start_ms <= self._now_ms and reservation.admits(entry.waiting.job)
        ]
        own = _joined(masks for _, masks in current)
        if not own or not entry.shape.uses_gpus:
            return None
        closed = {} if rule is None else rule.closed(self._now_ms)
        all_nodes = self._state.index.nodes
        outside = {o: self.usable_of(all_nodes[o]) & ~own[o] | closed.get(o, 0) for o in own}
        nodes = 0
        for ordinal in own:
            nodes |= all_nodes[ordinal].bit
        return outside, nodes, max(end_ms for end_ms, _ in current)

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
    known = [
        (state.index.by_id[node_id], indices)
        for node_id, indices in reservation.devices
        if node_id in state.index.by_id
    ]
    return _joined({node.ordinal: node.node_class.mask_of(indices)} for node, indices in known)


def _joined(all_masks: Iterable[Masks]) -> Masks:
    """The devices of all these masks."""
    joined: Masks = {}
    for masks in all_masks:
        for ordinal, mask in masks.items():
            joined[ordinal] = joined.get(ordinal, 0) | mask
    return joined


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


def touched_devices(grant: Grant) -> int:
    """All devices that a grant takes any part of."""
    mask = grant.mask
    for position, _, _ in grant.parts:
        mask |= 1 << position
    for position, _ in grant.slices:
        mask |= 1 << position
    return mask
