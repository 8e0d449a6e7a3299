"""What people have reserved, as it bears on one job: which devices are closed to it, and when.

A job without a right to a window may start on its devices only if it is over before the window
begins. What counts is its limit; a job that can be preempted may also rely on its expected run
time, as it is stopped in time if that was wrong. `eviction_ms` is left for the last one to leave.

Closed devices are taken out of the index for as long as a job is looked at that may not have them,
so every search obeys without knowing. Nothing here is made while nobody has reserved anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.engine.picture import Picture, RunningEntry
from gpu_scheduler.engine.policy import Preemption
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.slot import Hold, Slot
from gpu_scheduler.model.allocation import Placement
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.window import Window

Masks = dict[int, int]
"""Devices by the ordinal of their node."""


class Rule:
    """The windows that one job has no right to, and how far ahead it must look."""

    __slots__ = ("_windows", "reach_ms")

    def __init__(self, windows: tuple[tuple[Window, Masks], ...], reach_ms: int) -> None:
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

    def narrowed(self, slot: Slot, at_ms: int) -> Slot:
        """A node as the job may use it from that moment on."""
        closed = self.closed_at(slot.ordinal, at_ms) & slot.usable
        if not closed:
            return slot
        twin = slot.copy()
        twin.usable &= ~closed
        return twin

    def bars(self, hold: Hold, at_ms: int) -> bool:
        """Tell whether the job must not take certain devices at that moment."""
        return bool(touched(hold) & self.closed_at(hold.slot.ordinal, at_ms))

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


class Windows:
    """The windows of one pass, and what is closed on the index for the job that is looked at."""

    def __init__(self, picture: Picture, now_ms: int) -> None:
        """Look at all windows that are not over."""
        self._picture = picture
        self._now_ms = now_ms
        self._all = tuple(
            (window, masks_of(picture, window))
            for window in sorted(
                picture.windows.values(), key=lambda window: (window.start_ms, window.number)
            )
            if now_ms < window.end_ms
        )
        self._rules: dict[tuple[str, str, int], Rule | None] = {}
        self._open: Masks = {}
        self._closures: dict[tuple[tuple[int, int], ...], int] = {(): 0}

    def rule_for(self, entry: Entry, duration_ms: int) -> Rule | None:
        """What a waiting job must keep to; None if it may go everywhere at any time."""
        job = entry.waiting.job
        reach_ms = self._reach_ms(entry, duration_ms)
        key = (job.tenant, job.user, reach_ms)
        if key not in self._rules:
            windows = tuple(item for item in self._all if not item[0].admits(job))
            self._rules[key] = Rule(windows, reach_ms) if windows else None
        return self._rules[key]

    def close(self, masks: Masks) -> int:
        """Have just these devices closed on the index; returns a number for this very choice."""
        key = tuple(sorted(item for item in masks.items() if item[1]))
        index = self._picture.index
        for ordinal in sorted({*self._open, *masks}):
            slot = index.slots[ordinal]
            usable = self._open.setdefault(ordinal, slot.usable) & ~masks.get(ordinal, 0)
            if usable != slot.usable:
                index.set_usable(slot, usable)
        return self._closures.setdefault(key, len(self._closures))

    def usable_of(self, slot: Slot) -> int:
        """The devices that take work, closed or not."""
        return self._open.get(slot.ordinal, slot.usable)

    def own_of(self, entry: Entry, rule: Rule | None) -> tuple[Masks, int, int] | None:
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
        slots = self._picture.index.slots
        outside = {o: self.usable_of(slots[o]) & ~own[o] | closed.get(o, 0) for o in own}
        nodes = 0
        for ordinal in own:
            nodes |= slots[ordinal].bit
        return outside, nodes, until_ms

    def _reach_ms(self, entry: Entry, duration_ms: int) -> int:
        policy = self._picture.policy
        waiting = entry.waiting
        tenant = self._picture.tenant(waiting.job.tenant)
        yields = (
            policy.fills_gaps
            and policy.preemption is not Preemption.NONE
            and waiting.job.preemptible
            and tenant.allow_preemption
            and waiting.preemptions < tenant.max_preemptions
        )
        lasts_ms = duration_ms if yields else self._picture.limit_ms(waiting.job)
        return lasts_ms + policy.eviction_ms


def masks_of(picture: Picture, window: Window) -> Masks:
    """The devices of a window on the nodes that are known."""
    masks: Masks = {}
    for node_id, indices in window.devices:
        slot = picture.index.by_id.get(node_id)
        if slot is not None:
            masks[slot.ordinal] = masks.get(slot.ordinal, 0) | mask_of(slot, indices)
    return masks


def mask_of(slot: Slot, indices: Iterable[int]) -> int:
    """Devices of a node by their positions."""
    wanted = set(indices)
    mask = 0
    for position, device in enumerate(slot.kind.devices):
        if device.index in wanted:
            mask |= 1 << position
    return mask


def intruders(picture: Picture, window: Window) -> list[RunningEntry]:
    """What runs on the devices of a window, has no right to that, and may not be gone in time."""
    masks = masks_of(picture, window)
    found: dict[str, RunningEntry] = {}
    for ordinal, mask in sorted(masks.items()):
        for allocation_id, entry in sorted(picture.by_node.get(ordinal, {}).items()):
            running = entry.running
            if window.admits(running.job) or running.limit_end_ms <= window.start_ms:
                continue
            if any(touched(h) & mask for h in entry.holds if h.slot.ordinal == ordinal):
                found[allocation_id] = entry
    return list(found.values())


def can_yield(picture: Picture, entry: RunningEntry) -> bool:
    """Tell whether a running job may be stopped for a window."""
    running = entry.running
    tenant = picture.tenant(running.job.tenant)
    return (
        running.job.preemptible
        and tenant.allow_preemption
        and running.preemptions < tenant.max_preemptions
    )


def is_barred(windows: Iterable[Window], job: Job, placements: tuple[Placement, ...]) -> bool:
    """Tell whether a placement lies on devices that are somebody else's; for tests and checks."""
    held = {(p.node_id, share.index) for p in placements for share in p.devices}
    return any(
        (node_id, index) in held
        for window in windows
        if not window.admits(job)
        for node_id, indices in window.devices
        for index in indices
    )


def touched(hold: Hold) -> int:
    """All devices that a hold takes any part of."""
    mask = hold.mask
    for position, _, _ in hold.parts:
        mask |= 1 << position
    for position, _ in hold.slices:
        mask |= 1 << position
    return mask
