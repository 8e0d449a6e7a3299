"""Reservations by hand: made, begun, ended and cancelled, each with its row and its event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.jobs.stop import PREEMPTED, stop
from gpu_scheduler.control.messages import CancelReservation, Reserve
from gpu_scheduler.control.state import Book
from gpu_scheduler.engine.reservation.advance import (
    Place,
    broken_devices,
    choose_devices,
    intruders,
    mended_devices,
)
from gpu_scheduler.model.advance_reservation import LONGEST_MS, Window, Wish
from gpu_scheduler.model.errors import InvalidRequest, QuotaTooSmall, UnknownThing, WrongState
from gpu_scheduler.model.utc import moment_text
from gpu_scheduler.store.rows import EventRow, RemovedWindow

WINDOW = "window"
DEFAULT_TENANT = "default"
LATE_MS = 60_000
"""A start that passed this long ago at most is meant as now."""
AGAIN_MS = 60_000
"""After so long another device is looked for again, in place of one that broke."""
More = tuple[tuple[str, str], ...]
KEPT = 100
"""So many reservations that are over can still be listed."""


def apply(book: Book, message: Reserve | CancelReservation, now_ms: int, outcome: Outcome) -> None:
    """Do what an admin asks for."""
    if isinstance(message, Reserve):
        reserve(book, message, now_ms, outcome)
    else:
        cancel(book, message.reservation_id, now_ms, outcome)


def reserve(book: Book, message: Reserve, now_ms: int, outcome: Outcome) -> None:
    """Keep devices, or raise and say what would fit."""
    wish = _checked(book, message.wish, now_ms)
    number = book.next_window
    window = Window(
        id=f"res-{number}",
        number=number,
        tenant=wish.tenant,
        user=wish.user,
        name=wish.name,
        start_ms=wish.start_ms,
        end_ms=wish.end_ms,
        devices=choose_devices(book.picture, wish),
        preempts=wish.preempts,
        made_by=message.made_by,
        made_ms=now_ms,
        asked_node=wish.node,
        asked_model=wish.gpu_model,
        asked_indices=wish.indices,
    )
    keep(book, window)
    outcome.window = window
    _write(window, "reservation_made", now_ms, outcome)


def keep(book: Book, window: Window) -> None:
    """Know a window, and look at it when it begins and ends."""
    if window.over_ms is not None:
        book.past_windows[window.number] = window
        return
    book.picture.windows[window.id] = window
    book.changed = True
    clear_ms = window.start_ms - book.policy.eviction_ms
    for at_ms in (clear_ms, window.start_ms, window.end_ms):
        book.set_timer(at_ms, WINDOW, window.id)


def cancel(book: Book, window_id: str, now_ms: int, outcome: Outcome) -> None:
    """Give the devices back to everybody."""
    window = book.picture.windows.get(window_id)
    if window is None:
        if any(past.id == window_id for past in book.past_windows.values()):
            raise WrongState(f"reservation {window_id} is over")
        raise UnknownThing(f"reservation '{window_id}' is not known")
    outcome.window = _end(book, replace(window, cancelled=True), now_ms, outcome)


def on_timer(book: Book, window_id: str, now_ms: int, outcome: Outcome) -> None:
    """A window is about to begin, begins or ends. What is out of date by now does no harm."""
    window = book.picture.windows.get(window_id)
    if window is None:
        return
    book.changed = True
    if now_ms >= window.end_ms:
        _end(book, window, now_ms, outcome)
        return
    for entry in intruders(book.picture, window):
        # Whoever is here was placed, or found, on the condition that it can be stopped for this.
        running = entry.running
        if running.stopping:
            continue
        allocation = running.allocation
        stop(book, allocation.id, PREEMPTED, outcome)
        data = (("for", window.id), ("ground", "reservation"))
        outcome.writes.append(
            EventRow(
                at_ms=now_ms,
                kind="evicting",
                job_id=running.job.id,
                task=allocation.task,
                user=running.job.user,
                data=data,
            )
        )
    if now_ms >= window.start_ms and window.id not in book.begun_windows:
        book.begun_windows[window.id] = None
        outcome.writes.append(_event(window, "reservation_begun", now_ms))


def mend(book: Book, now_ms: int, outcome: Outcome) -> None:
    """Let other devices take the place of reserved ones that broke; if none fit, say so once.

    It is tried again after a while: what is missing may be free by then.
    """
    for window in sorted(book.picture.windows.values(), key=lambda window: window.number):
        broken = broken_devices(book.picture, window)
        told = book.short_windows.get(window.id)
        if not broken:
            book.short_windows.pop(window.id, None)
            continue
        if told is not None and told[0] == broken and now_ms < told[1] + AGAIN_MS:
            continue
        mended = mended_devices(book.picture, window, broken, now_ms)
        if mended != window.devices:
            fresh = replace(window, devices=mended)
            keep(book, fresh)
            _write(fresh, "reservation_changed", now_ms, outcome, _moved(window, fresh))
            on_timer(book, window.id, now_ms, outcome)
        left = broken_devices(book.picture, book.picture.windows[window.id])
        if left:
            book.short_windows[window.id] = (left, now_ms)
            book.set_timer(now_ms + AGAIN_MS, WINDOW, window.id)
            if told is None or told[0] != left:
                more = (("broken", places_text(left)),)
                outcome.writes.append(_event(window, "reservation_short", now_ms, more))


def _moved(before: Window, after: Window) -> tuple[tuple[str, str], ...]:
    """Which devices went, and which came."""
    old, new = _places(before), _places(after)
    return (("from", places_text(sorted(old - new))), ("to", places_text(sorted(new - old))))


def _places(window: Window) -> set[Place]:
    return {(node_id, index) for node_id, indices in window.devices for index in indices}


def places_text(places: Iterable[Place]) -> str:
    """As people write devices: `n0[1,2] n1[0]`."""
    by_node: dict[str, list[int]] = {}
    for node_id, index in places:
        by_node.setdefault(node_id, []).append(index)
    return " ".join(
        f"{node_id}[{','.join(map(str, indices))}]" for node_id, indices in by_node.items()
    )


def _end(book: Book, window: Window, now_ms: int, outcome: Outcome) -> Window:
    del book.picture.windows[window.id]
    book.begun_windows.pop(window.id, None)
    book.short_windows.pop(window.id, None)
    book.changed = True
    window = replace(window, over_ms=now_ms)
    book.past_windows[window.number] = window
    kind = "reservation_cancelled" if window.cancelled else "reservation_ended"
    _write(window, kind, now_ms, outcome)
    if len(book.past_windows) > KEPT:
        oldest = book.past_windows.pop(min(book.past_windows))
        outcome.writes.append(RemovedWindow(oldest.id))
    return window


def _checked(book: Book, wish: Wish, now_ms: int) -> Wish:
    if wish.tenant != DEFAULT_TENANT and wish.tenant not in book.picture.tenants:
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
            f"the start {moment_text(wish.start_ms)} has passed; write 'now' or a later time"
        )
    tenant = book.picture.tenant(wish.tenant)
    most = tenant.quota.gpu_milli
    if most is not None and not tenant.elastic and wish.gpus * 1000 > most:
        raise QuotaTooSmall(
            f"tenant '{wish.tenant}' may hold {most / 1000:g} GPUs, so a reservation of "
            f"{wish.gpus} would be of no use; ask for {most // 1000} or fewer, or raise max_gpus"
        )
    if wish.start_ms < now_ms:
        wish = replace(wish, start_ms=now_ms)
    return wish


def _write(window: Window, kind: str, now_ms: int, outcome: Outcome, more: More = ()) -> None:
    outcome.writes += [window, _event(window, kind, now_ms, more)]


def _event(window: Window, kind: str, now_ms: int, more: More = ()) -> EventRow:
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
