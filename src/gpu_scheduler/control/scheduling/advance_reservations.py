"""Advance reservations: create, begin, repair, end and cancel, each with a row and an event.

In the code an advance reservation is often called `window`, since `Reservation` is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.jobs.queueing import PREEMPTED, stop
from gpu_scheduler.control.messages import CancelReservation, Reserve
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.reservation.advance import (
    Place,
    broken_devices,
    choose_devices,
    jobs_in_the_way,
    with_replacements,
)
from gpu_scheduler.model.errors import InvalidRequest, QuotaTooSmall, UnknownThing, WrongState
from gpu_scheduler.model.plan import LONGEST_MS, AdvanceReservation, ReservationSpec
from gpu_scheduler.model.utc import format_utc
from gpu_scheduler.store.rows import EventRow, Removed

WINDOW = "window"
DEFAULT_TENANT = "default"
LATE_MS = 60_000
"""A start time that is at most this far in the past means now."""
AGAIN_MS = 60_000
"""How often to search a replacement for a broken device."""
More = tuple[tuple[str, str], ...]
KEPT = 100
"""How many ended reservations can still be listed."""


def reserve(state: ControlState, message: Reserve, now_ms: int, outcome: Outcome) -> None:
    """Reserve devices, or raise and say what would fit."""
    wish = _checked(state, message.wish, now_ms)
    number = state.next_window
    window = AdvanceReservation(
        id=f"res-{number}",
        number=number,
        tenant=wish.tenant,
        user=wish.user,
        name=wish.name,
        start_ms=wish.start_ms,
        end_ms=wish.end_ms,
        devices=choose_devices(state.cluster, wish),
        preempts=wish.preempts,
        made_by=message.made_by,
        made_ms=now_ms,
        asked_node=wish.node,
        asked_model=wish.gpu_model,
        asked_indices=wish.indices,
    )
    keep(state, window)
    outcome.window = window
    _write(window, "reservation_made", now_ms, outcome)


def keep(state: ControlState, window: AdvanceReservation) -> None:
    """Add a reservation and set the timers of its start and end."""
    if window.over_ms is not None:
        state.past_windows[window.number] = window
        return
    state.cluster.advance_reservations[window.id] = window
    state.changed = True
    clear_ms = window.start_ms - state.policy.eviction_ms
    for at_ms in (clear_ms, window.start_ms, window.end_ms):
        state.set_timer(at_ms, WINDOW, window.id)


def cancel(state: ControlState, message: CancelReservation, now_ms: int, outcome: Outcome) -> None:
    """End a reservation before its end time, so that any job may use its devices."""
    window_id = message.reservation_id
    window = state.cluster.advance_reservations.get(window_id)
    if window is None:
        if any(past.id == window_id for past in state.past_windows.values()):
            raise WrongState(f"reservation {window_id} is over")
        raise UnknownThing(f"reservation '{window_id}' is not known")
    outcome.window = _end(state, replace(window, cancelled=True), now_ms, outcome)


def on_timer(state: ControlState, window_id: str, now_ms: int, outcome: Outcome) -> None:
    """A reservation is about to begin, begins or ends; a stale timer has no effect."""
    window = state.cluster.advance_reservations.get(window_id)
    if window is None:
        return
    state.changed = True
    if now_ms >= window.end_ms:
        _end(state, window, now_ms, outcome)
        return
    for entry in jobs_in_the_way(state.cluster, window):
        # The engine places jobs here only if they can be preempted for the reservation.
        running = entry.running
        if running.stopping:
            continue
        allocation = running.allocation
        stop(state, allocation.id, PREEMPTED, outcome)
        data = (("for", window.id), ("ground", "reservation"))
        outcome.job_event(running.job, "evicting", now_ms, task=allocation.task, data=data)
    if now_ms >= window.start_ms and window.id not in state.begun_windows:
        state.begun_windows[window.id] = None
        outcome.writes.append(_event(window, "reservation_begun", now_ms))


def replace_broken_devices(state: ControlState, now_ms: int, outcome: Outcome) -> None:
    """Replace broken reserved devices by others; write one event if there are none.

    The search is repeated after a while, since devices may have become free.
    """
    for window in sorted(
        state.cluster.advance_reservations.values(), key=lambda window: window.number
    ):
        broken = broken_devices(state.cluster, window)
        last_search = state.short_windows.get(window.id)
        if not broken:
            state.short_windows.pop(window.id, None)
            continue
        if last_search and last_search[0] == broken and now_ms < last_search[1] + AGAIN_MS:
            continue
        mended = with_replacements(state.cluster, window, broken, now_ms)
        if mended != window.devices:
            fresh = replace(window, devices=mended)
            keep(state, fresh)
            _write(fresh, "reservation_changed", now_ms, outcome, _moved(window, fresh))
            on_timer(state, window.id, now_ms, outcome)
        left = broken_devices(state.cluster, state.cluster.advance_reservations[window.id])
        if left:
            state.short_windows[window.id] = (left, now_ms)
            state.set_timer(now_ms + AGAIN_MS, WINDOW, window.id)
            if last_search is None or last_search[0] != left:
                more = (("broken", places_text(left)),)
                outcome.writes.append(_event(window, "reservation_short", now_ms, more))


def _moved(before: AdvanceReservation, after: AdvanceReservation) -> tuple[tuple[str, str], ...]:
    """Event data: which devices were replaced, and by which."""
    old, new = _places(before), _places(after)
    return (("from", places_text(sorted(old - new))), ("to", places_text(sorted(new - old))))


def _places(window: AdvanceReservation) -> set[Place]:
    return {(node_id, index) for node_id, indices in window.devices for index in indices}


def places_text(places: Iterable[Place]) -> str:
    """Devices as text: `n0[1,2] n1[0]`."""
    by_node: dict[str, list[int]] = {}
    for node_id, index in places:
        by_node.setdefault(node_id, []).append(index)
    return " ".join(
        f"{node_id}[{','.join(map(str, indices))}]" for node_id, indices in by_node.items()
    )


def _end(
    state: ControlState, window: AdvanceReservation, now_ms: int, outcome: Outcome
) -> AdvanceReservation:
    del state.cluster.advance_reservations[window.id]
    state.begun_windows.pop(window.id, None)
    state.short_windows.pop(window.id, None)
    state.changed = True
    window = replace(window, over_ms=now_ms)
    state.past_windows[window.number] = window
    kind = "reservation_cancelled" if window.cancelled else "reservation_ended"
    _write(window, kind, now_ms, outcome)
    if len(state.past_windows) > KEPT:
        oldest = state.past_windows.pop(min(state.past_windows))
        outcome.writes.append(Removed(AdvanceReservation, oldest.id))
    return window


def _checked(state: ControlState, wish: ReservationSpec, now_ms: int) -> ReservationSpec:
    if wish.tenant != DEFAULT_TENANT and wish.tenant not in state.cluster.tenants:
        raise UnknownThing(f"tenant '{wish.tenant}' is not known; create it first")
    if wish.gpus < 1:
        raise InvalidRequest("gpus is 0; a reservation is for 1 or more")
    if wish.indices and wish.gpus > len(wish.indices):
        raise InvalidRequest(
            f"gpus is {wish.gpus} and gpu_ids names {len(wish.indices)}; name at least as many"
        )
    lasts_ms = wish.end_ms - wish.start_ms
    if not 0 < lasts_ms <= LONGEST_MS:
        raise InvalidRequest("the duration must be more than nothing and at most a year")
    if wish.start_ms < now_ms - LATE_MS:
        raise InvalidRequest(
            f"the start {format_utc(wish.start_ms)} has passed; write 'now' or a later time"
        )
    tenant = state.cluster.tenant(wish.tenant)
    most = tenant.quota.gpu_milli
    if most is not None and not tenant.elastic and wish.gpus * 1000 > most:
        raise QuotaTooSmall(
            f"tenant '{wish.tenant}' may hold {most / 1000:g} GPUs, so a reservation of "
            f"{wish.gpus} would be of no use; ask for {most // 1000} or fewer, or raise max_gpus"
        )
    if wish.start_ms < now_ms:
        wish = replace(wish, start_ms=now_ms)
    return wish


def _write(
    window: AdvanceReservation, kind: str, now_ms: int, outcome: Outcome, more: More = ()
) -> None:
    outcome.writes += [window, _event(window, kind, now_ms, more)]


def _event(window: AdvanceReservation, kind: str, now_ms: int, more: More = ()) -> EventRow:
    data: tuple[tuple[str, str | int], ...] = (
        ("reservation", window.id),
        ("tenant", window.tenant),
        ("gpus", window.gpu_count),
        ("start_ms", window.start_ms),
        ("end_ms", window.end_ms),
        ("by", window.made_by),
        *more,
    )
    return EventRow(at_ms=now_ms, kind=kind, data=data)
