"""What blocked jobs were promised outlives the process: it is written, and taken up again.

Nodes come back one by one after a restart, and until then nothing can be planned on them. So a
promise from before stays as it was until all of its nodes have been heard of, for a while.
"""

from __future__ import annotations

from gpu_scheduler.control.book import Book
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.engine.policy import MINUTE_MS
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.plan import Reservation
from gpu_scheduler.store.contract import Store
from gpu_scheduler.store.rows import PromiseRow, RemovedPromise

RETURN_MS = 10 * MINUTE_MS
"""A node that has not come back by then is not waited for."""


def write_promises(book: Book, outcome: Outcome) -> None:
    """Write what has changed since the last time."""
    held = book.picture.reservations
    for number, reservation in held.items():
        if book.promises.get(number) != reservation:
            outcome.writes.append(PromiseRow(reservation.job_id, reservation))
    for number, reservation in book.promises.items():
        if number not in held:
            outcome.writes.append(RemovedPromise(reservation.job_id))
    book.promises = dict(held)


def take_up_promises(book: Book, store: Store, now_ms: int) -> None:
    """Give waiting jobs what they were promised by a former process."""
    rows = store.promises()
    book.promises = {reservation.job_number: reservation for reservation in rows}
    book.picture.set_reservations(tuple(row for row in rows if _is_possible(book, row)))
    book.unheard = dict(book.picture.reservations)
    book.unheard_until_ms = now_ms + RETURN_MS


def hold_unheard(book: Book, now_ms: int) -> None:
    """After a cycle: what could not be planned, as nodes are still missing, stays as it was."""
    for number, reservation in list(book.unheard.items()):
        if (
            number not in book.picture.queue.entries
            or now_ms >= book.unheard_until_ms
            or not _is_missing_nodes(book, reservation)
        ):
            del book.unheard[number]
        else:
            book.picture.reservations[number] = reservation


def _is_possible(book: Book, reservation: Reservation) -> bool:
    """Tell whether the nodes and devices are known."""
    by_id = book.picture.index.by_id
    for placement in reservation.placements:
        slot = by_id.get(placement.node_id)
        known = () if slot is None else tuple(device.index for device in slot.node.devices)
        if slot is None or any(share.index not in known for share in placement.devices):
            return False
    return True


def _is_missing_nodes(book: Book, reservation: Reservation) -> bool:
    slots = [book.picture.index.by_id.get(p.node_id) for p in reservation.placements]
    return any(slot is not None and slot.node.state is not NodeState.ONLINE for slot in slots)
