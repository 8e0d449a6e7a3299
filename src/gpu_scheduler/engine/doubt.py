"""On whose unknown run times the time of a reservation hangs.

A reservation is due when what runs on its nodes, and what is booked there before it, has ended. If
nobody knows how long one of those runs, then nobody knows when the reservation is due.
"""

from __future__ import annotations

from gpu_scheduler.engine.forecast import Guess
from gpu_scheduler.engine.picture import Picture
from gpu_scheduler.model.plan import Reservation


def guesses_before(
    picture: Picture, reservation: Reservation, now_ms: int, is_guess: Guess
) -> frozenset[int]:
    """The numbers of those jobs; none if the reservation is due."""
    found: set[int] = set()
    left = [reservation]
    seen = {reservation.job_number}
    while left:
        one = left.pop()
        if one.at_ms <= now_ms + 1:
            continue
        found |= _running_before(picture, one, now_ms, is_guess)
        nodes = _nodes(one)
        for other in picture.reservations.values():
            if other.job_number in seen or other.until_ms > one.at_ms or not nodes & _nodes(other):
                continue
            seen.add(other.job_number)
            left.append(other)
            waiting = picture.queue.entries[other.job_number].waiting
            if is_guess(waiting.job, waiting.attained_ms):
                found.add(other.job_number)
    return frozenset(found)


def _running_before(
    picture: Picture, reservation: Reservation, now_ms: int, is_guess: Guess
) -> set[int]:
    found = set()
    for node_id in sorted(_nodes(reservation)):
        slot = picture.index.by_id.get(node_id)
        entries = {} if slot is None else picture.by_node.get(slot.ordinal, {})
        for entry in entries.values():
            running = entry.running
            if running.stopping or running.expected_end_ms > reservation.at_ms:
                continue
            ran_ms = running.attained_ms + max(0, now_ms - running.allocation.start_ms)
            if is_guess(running.job, ran_ms):
                found.add(running.job.number)
    return found


def _nodes(reservation: Reservation) -> set[str]:
    return {placement.node_id for placement in reservation.placements}
