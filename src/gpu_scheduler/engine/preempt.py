"""Who must yield. Only if it lets the waiting job start, and the cheapest victims first.

Grounds: a static class higher by at least the policy's gap; a place that was only lent (elastic
quota) and is wanted back; a backfilled job that overran its prediction and stands in the way of a
due reservation; and, for the feedback policies, a lower level of attained service. Aging and fair
share are no ground, so evictions cannot go in circles (docs/explanation/preemption.md).
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.engine.admit import Admission, Amounts, job_amounts
from gpu_scheduler.engine.draft import Draft
from gpu_scheduler.engine.order import level_of
from gpu_scheduler.engine.picture import Picture, RunningEntry
from gpu_scheduler.engine.policy import Preemption
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.shape import Shape
from gpu_scheduler.engine.slot import Hold
from gpu_scheduler.model.plan import Eviction
from gpu_scheduler.model.request import WHOLE_MILLI

Finder = Callable[[Shape, int | None], Hold | None]


class Preemptor:
    """Looks for victims in one cycle."""

    def __init__(
        self,
        picture: Picture,
        draft: Draft,
        admission: Admission,
        now_ms: int,
        leaving: set[str],
    ) -> None:
        """`leaving` allocations have been chosen already."""
        self._picture = picture
        self._policy = picture.policy
        self._draft = draft
        self._admission = admission
        self._now_ms = now_ms
        self._leaving = leaving

    def clear_place(
        self, entry: Entry, find: Finder, within: int | None
    ) -> tuple[list[Hold], list[Eviction]] | None:
        """Find who must leave so that every member fits. The draft is left as it was."""
        victims = self._candidates(entry)
        if not victims:
            return None
        mark = self._draft.mark()
        chosen: list[RunningEntry] = []
        holds: list[Hold] = []
        for member, shape in enumerate(entry.shape.members):
            hold = find(shape, within)
            if hold is None:
                hold = self._make_room(shape, victims, chosen, within)
            if hold is None:
                if member >= entry.shape.min_members:
                    break
                self._draft.undo(mark)
                return None
            hold.member = member
            self._draft.take(hold)
            holds.append(hold)
        evictions = [
            Eviction(
                victim.running.allocation.id,
                victim.running.job.id,
                entry.waiting.job.id,
                victims[victim.running.allocation.id][1],
            )
            for victim in chosen
        ]
        self._draft.undo(mark)
        self._leaving.update(eviction.allocation_id for eviction in evictions)
        return holds, evictions

    def _make_room(
        self,
        shape: Shape,
        victims: dict[str, tuple[RunningEntry, str]],
        chosen: list[RunningEntry],
        within: int | None,
    ) -> Hold | None:
        """Let the cheapest victims go in the draft, and place one member where they were."""
        found = self._cheapest_room(shape, victims, chosen, within)
        if found is None:
            return None
        ordinal, room = found
        for victim in room:
            chosen.append(victim)
            for held in victim.holds:
                self._draft.give(held)
        return self._picture.index.slots[ordinal].choose_any(shape)

    def _candidates(self, entry: Entry) -> dict[str, tuple[RunningEntry, str]]:
        """Everyone who may be stopped for this job, by allocation, with the ground."""
        found: dict[str, tuple[RunningEntry, str]] = {}
        kind = self._policy.preemption
        if kind is Preemption.CLASS:
            job = entry.waiting.job
            if not self._picture.tenant(job.tenant).can_preempt_others:
                return found
            reclaims = self._admission.is_within_guarantee(job, self._wanted(entry))
            for static_class in sorted(self._picture.by_class):
                lower = static_class + self._policy.preempt_gap <= entry.static_class
                if not lower and not reclaims and static_class > entry.static_class:
                    break
                for allocation_id, victim in self._picture.by_class[static_class].items():
                    ground = self._class_ground(entry, victim, lower=lower, reclaims=reclaims)
                    if ground and self._may_stop(victim):
                        found[allocation_id] = (victim, ground)
            return found
        for allocation_id, victim in self._picture.running.items():
            if self._is_worse(entry, victim) and self._may_stop(victim):
                found[allocation_id] = (victim, kind.value)
        return found

    def _class_ground(
        self, entry: Entry, victim: RunningEntry, *, lower: bool, reclaims: bool
    ) -> str:
        if lower:
            return "class"
        if reclaims and self._admission.borrows(victim.running.job.tenant):
            return "lent"
        reservation = self._picture.reservations.get(entry.number)
        if (
            victim.running.backfilled
            and victim.running.overrun
            and victim.static_class <= entry.static_class
            and reservation is not None
            and reservation.at_ms <= self._now_ms
        ):
            return "overrun"
        return ""

    def _is_worse(self, entry: Entry, victim: RunningEntry) -> bool:
        running = victim.running
        ran_ms = self._now_ms - running.allocation.start_ms
        if self._policy.preemption is Preemption.REMAINING:
            waiting = entry.waiting
            left = running.expected_end_ms - self._now_ms
            return left > waiting.expected_ms - waiting.attained_ms + self._policy.eviction_ms
        feedback = self._policy.feedback
        if running.protected or ran_ms < feedback.quantum_ms:
            return False
        waiting = entry.waiting
        mine = level_of(
            waiting.attained_ms, waiting.job.gpu_milli, feedback, protected=waiting.protected
        )
        theirs = level_of(running.attained_ms + ran_ms, running.job.gpu_milli, feedback)
        return theirs > mine

    def _may_stop(self, victim: RunningEntry) -> bool:
        running = victim.running
        if (
            running.stopping
            or running.allocation.id in self._leaving
            or not running.job.preemptible
        ):
            return False
        if running.expected_end_ms - self._now_ms <= self._policy.eviction_ms:
            return False
        if self._policy.preemption is not Preemption.CLASS:
            return True
        tenant = self._picture.tenant(running.job.tenant)
        return tenant.allow_preemption and running.preemptions < tenant.max_preemptions

    def _cheapest_room(
        self,
        shape: Shape,
        victims: dict[str, tuple[RunningEntry, str]],
        chosen: list[RunningEntry],
        within: int | None,
    ) -> tuple[int, list[RunningEntry]] | None:
        """The node where the least is lost, and who must leave it."""
        by_node: dict[int, list[RunningEntry]] = {}
        taken = {id(victim) for victim in chosen}
        for victim, _ in victims.values():
            if id(victim) not in taken:
                for ordinal in dict.fromkeys(hold.slot.ordinal for hold in victim.holds):
                    by_node.setdefault(ordinal, []).append(victim)
        selected = self._picture.index.selected(shape.request)
        best: tuple[int, int, list[RunningEntry]] | None = None
        looked = 0
        for ordinal in sorted(by_node):
            slot = self._picture.index.slots[ordinal]
            if slot.bucket < 0 or (within is not None and not within & slot.bit):
                continue
            if selected is not None and not selected & slot.bit:
                continue
            looked += 1
            if looked > self._policy.max_victim_nodes:
                break
            room = self._room_on(ordinal, shape, by_node[ordinal])
            if room is not None:
                cost = sum(self._cost(victim) for victim in room)
                if best is None or cost < best[0]:
                    best = (cost, ordinal, room)
        return None if best is None else best[1:]

    def _room_on(
        self, ordinal: int, shape: Shape, victims: list[RunningEntry]
    ) -> list[RunningEntry] | None:
        """The cheapest victims on one node that make room, none of them needless."""
        index = self._picture.index
        shadow = index.slots[ordinal].copy()
        leaving: list[RunningEntry] = []
        for victim in sorted(victims, key=lambda v: (self._cost(v), v.end_key)):
            for hold in victim.holds:
                if hold.slot.ordinal == ordinal:
                    index.give(hold.on(shadow))
            leaving.append(victim)
            if shadow.choose_any(shape) is not None:
                break
        else:
            return None
        for victim in reversed(leaving[:-1]):
            parts = [hold.on(shadow) for hold in victim.holds if hold.slot.ordinal == ordinal]
            for part in parts:
                index.take(part)
            if shadow.choose_any(shape) is None:
                for part in parts:
                    index.give(part)
            else:
                leaving.remove(victim)
        return leaving

    def _cost(self, victim: RunningEntry) -> int:
        """Work since the last checkpoint, more for those who were stopped before."""
        running = victim.running
        if running.backfilled and running.overrun:
            return 0
        since = max(running.allocation.start_ms, running.checkpoint_ms)
        lost_ms = max(0, self._now_ms - since) + self._policy.eviction_ms
        gpu_milli = max(WHOLE_MILLI, victim.amounts.gpu_milli)
        return lost_ms * gpu_milli // WHOLE_MILLI * (1 + running.preemptions)

    def _wanted(self, entry: Entry) -> Amounts:
        job = entry.waiting.job
        return job_amounts(job, self._picture.limit_ms(job))
