"""Advance reservations: create, begin, repair, end and cancel, each with a row and an event.

In this module `reservation` is always an advance reservation, never one of the engine. Rows and
events have calendar times; the engine's cluster state and the timers have scheduler times, which
differ after the wall clock was set.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.jobs.queueing import PREEMPTED, stop
from gpu_scheduler.control.messages import CancelReservation, Reserve
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.reservation.advance_reservations import jobs_in_the_way
from gpu_scheduler.engine.reservation.reserved_devices import (
    Place,
    broken_devices,
    by_node,
    choose_devices,
    with_replacements,
)
from gpu_scheduler.model.errors import InvalidRequest, QuotaTooSmall, UnknownThing, WrongState
from gpu_scheduler.model.identity import DEFAULT_TENANT
from gpu_scheduler.model.plan import (
    LONGEST_MS,
    AdvanceReservation,
    PreemptionReason,
    ReservationSpec,
)
from gpu_scheduler.model.utc import format_utc
from gpu_scheduler.store.rows import EventRow, Removed

ADVANCE_RESERVATION = "window"
"""The kind of the timers of an advance reservation; its name is the id of the reservation."""
LATE_MS = 60_000
"""A start time that is at most this far in the past means now."""
AGAIN_MS = 60_000
"""How often to search a replacement for a broken device."""
More = tuple[tuple[str, str], ...]
KEPT = 100
"""How many ended reservations can still be listed."""


def reserve(state: ControlState, message: Reserve, now_ms: int, outcome: Outcome) -> None:
    """Reserve devices, or raise and say what would fit."""
    wish = checked_wish(state, message.wish, now_ms)
    number = state.next_reservation_number
    reservation = AdvanceReservation(
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
    _add(state, reservation)
    outcome.advance_reservation = _on_calendar(state, reservation)
    _write(state, reservation, "reservation_made", now_ms, outcome)


def keep(state: ControlState, reservation: AdvanceReservation) -> None:
    """Add a reservation of the store, with calendar times."""
    if reservation.over_ms is not None:
        state.past_advance_reservations[reservation.number] = reservation
    else:
        _add(state, _moved_by(reservation, -state.calendar.offset_ms))


def move_all(state: ControlState, by_ms: int, now_ms: int) -> None:
    """Move the scheduler times of all reservations; their calendar times stay.

    One that had begun begins again if its start is in the future again.
    """
    for reservation in list(state.cluster.advance_reservations.values()):
        moved = _moved_by(reservation, by_ms)
        _add(state, moved)
        if moved.start_ms > now_ms:
            state.begun_advance_reservations.pop(moved.id, None)


def _moved_by(reservation: AdvanceReservation, by_ms: int) -> AdvanceReservation:
    if not by_ms:
        return reservation
    return replace(
        reservation, start_ms=reservation.start_ms + by_ms, end_ms=reservation.end_ms + by_ms
    )


def _on_calendar(state: ControlState, reservation: AdvanceReservation) -> AdvanceReservation:
    """The reservation with calendar times, from one with scheduler times."""
    return _moved_by(reservation, state.calendar.offset_ms)


def _add(state: ControlState, reservation: AdvanceReservation) -> None:
    """Give the engine a reservation, and set the timers of its start and end."""
    state.cluster.advance_reservations[reservation.id] = reservation
    state.changed = True
    clear_ms = reservation.start_ms - state.policy.eviction_ms
    for at_ms in (clear_ms, reservation.start_ms, reservation.end_ms):
        state.set_timer(at_ms, ADVANCE_RESERVATION, reservation.id)


def cancel(state: ControlState, message: CancelReservation, now_ms: int, outcome: Outcome) -> None:
    """End a reservation before its end time, so that any job may use its devices."""
    reservation_id = message.reservation_id
    reservation = state.cluster.advance_reservations.get(reservation_id)
    if reservation is None:
        if any(past.id == reservation_id for past in state.past_advance_reservations.values()):
            raise WrongState(f"reservation {reservation_id} is over")
        raise UnknownThing(f"reservation '{reservation_id}' is not known")
    outcome.advance_reservation = _end(state, replace(reservation, cancelled=True), now_ms, outcome)


def on_timer(state: ControlState, reservation_id: str, now_ms: int, outcome: Outcome) -> None:
    """A reservation is about to begin, begins or ends; a stale timer has no effect."""
    reservation = state.cluster.advance_reservations.get(reservation_id)
    if reservation is None:
        return
    state.changed = True
    if now_ms >= reservation.end_ms:
        _end(state, reservation, now_ms, outcome)
        return
    if now_ms < reservation.start_ms - state.policy.eviction_ms:
        return
    for entry in jobs_in_the_way(state.cluster, reservation):
        # The engine places jobs here only if they can be preempted for the reservation.
        running = entry.running
        if running.stopping:
            continue
        allocation = running.allocation
        cause = f"preempted for reservation {reservation.id}"
        stop(state, allocation.id, PREEMPTED, outcome, cause=cause)
        data = (("for", reservation.id), ("ground", PreemptionReason.RESERVATION.value))
        outcome.job_event(running.job, "evicting", now_ms, task=allocation.task, data=data)
    if now_ms >= reservation.start_ms and reservation.id not in state.begun_advance_reservations:
        state.begun_advance_reservations[reservation.id] = None
        outcome.writes.append(_event(state, reservation, "reservation_begun", now_ms))


def replace_broken_devices(state: ControlState, now_ms: int, outcome: Outcome) -> None:
    """Replace broken reserved devices by others; write one event if there are none.

    The search is repeated after a while, since devices may have become free.
    """
    for reservation in sorted(
        state.cluster.advance_reservations.values(), key=lambda reservation: reservation.number
    ):
        broken = broken_devices(state.cluster, reservation)
        last_search = state.short_advance_reservations.get(reservation.id)
        if not broken:
            state.short_advance_reservations.pop(reservation.id, None)
            continue
        if last_search and last_search[0] == broken and now_ms < last_search[1] + AGAIN_MS:
            continue
        mended = with_replacements(state.cluster, reservation, broken, now_ms)
        if mended != reservation.devices:
            fresh = replace(reservation, devices=mended)
            _add(state, fresh)
            _write(state, fresh, "reservation_changed", now_ms, outcome, _moved(reservation, fresh))
            on_timer(state, reservation.id, now_ms, outcome)
        left = broken_devices(state.cluster, state.cluster.advance_reservations[reservation.id])
        if left:
            state.short_advance_reservations[reservation.id] = (left, now_ms)
            state.set_timer(now_ms + AGAIN_MS, ADVANCE_RESERVATION, reservation.id)
            if last_search is None or last_search[0] != left:
                more = (("broken", places_text(left)),)
                outcome.writes.append(_event(state, reservation, "reservation_short", now_ms, more))


def _moved(before: AdvanceReservation, after: AdvanceReservation) -> tuple[tuple[str, str], ...]:
    """Event data: which devices were replaced, and by which."""
    old, new = _places(before), _places(after)
    return (("from", places_text(sorted(old - new))), ("to", places_text(sorted(new - old))))


def _places(reservation: AdvanceReservation) -> set[Place]:
    return {(node_id, index) for node_id, indices in reservation.devices for index in indices}


def places_text(places: Iterable[Place]) -> str:
    """Devices as text: `n0[1,2] n1[0]`."""
    return " ".join(
        f"{node_id}[{','.join(map(str, indices))}]" for node_id, indices in by_node(places)
    )


def _end(
    state: ControlState, reservation: AdvanceReservation, now_ms: int, outcome: Outcome
) -> AdvanceReservation:
    del state.cluster.advance_reservations[reservation.id]
    state.begun_advance_reservations.pop(reservation.id, None)
    state.short_advance_reservations.pop(reservation.id, None)
    state.changed = True
    reservation = replace(reservation, over_ms=now_ms)
    past = _on_calendar(state, reservation)
    state.past_advance_reservations[past.number] = past
    kind = "reservation_cancelled" if reservation.cancelled else "reservation_ended"
    _write(state, reservation, kind, now_ms, outcome)
    if len(state.past_advance_reservations) > KEPT:
        oldest = state.past_advance_reservations.pop(min(state.past_advance_reservations))
        outcome.writes.append(Removed(AdvanceReservation, oldest.id))
    return past


def checked_wish(state: ControlState, wish: ReservationSpec, now_ms: int) -> ReservationSpec:
    """Check a wish, whose times are calendar times; return it with scheduler times."""
    calendar_ms = state.calendar_ms(now_ms)
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
    if wish.start_ms < calendar_ms - LATE_MS:
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
    offset_ms = state.calendar.offset_ms
    return replace(
        wish,
        start_ms=max(wish.start_ms, calendar_ms) - offset_ms,
        end_ms=wish.end_ms - offset_ms,
    )


def _write(
    state: ControlState,
    reservation: AdvanceReservation,
    kind: str,
    now_ms: int,
    outcome: Outcome,
    more: More = (),
) -> None:
    event = _event(state, reservation, kind, now_ms, more)
    outcome.writes += [_on_calendar(state, reservation), event]


def _event(
    state: ControlState, reservation: AdvanceReservation, kind: str, now_ms: int, more: More = ()
) -> EventRow:
    reservation = _on_calendar(state, reservation)
    data: tuple[tuple[str, str | int], ...] = (
        ("reservation", reservation.id),
        ("tenant", reservation.tenant),
        ("gpus", reservation.gpu_count),
        ("start_ms", reservation.start_ms),
        ("end_ms", reservation.end_ms),
        ("by", reservation.made_by),
        *more,
    )
    return EventRow(at_ms=now_ms, kind=kind, data=data)
