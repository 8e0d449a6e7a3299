"""The jobs that hold a reservation, in the order in which their promises are booked."""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.engine.picture import Picture
from gpu_scheduler.engine.queue import Entry


class Holders:
    """Places that are being cleared first, then the oldest promise first. For one pass."""

    def __init__(self, picture: Picture, used_up: set[int]) -> None:
        """Reservations of jobs with `used_up` numbers are of no matter."""
        reservations = picture.reservations
        entries = picture.queue.entries
        self._reservations = reservations
        self.everyone = self._rest = sorted(
            (entries[number] for number in reservations if number not in used_up),
            key=lambda holder: (
                not reservations[holder.number].claim,
                reservations[holder.number].made_ms,
                holder.key,
                holder.number,
            ),
        )

    def before(self, entry: Entry | None, value_of: Callable[[Entry], int]) -> list[Entry]:
        """Those whom a job must respect and who were not told before; None for all.

        `value_of` is the place in the order. A place that was cleared is respected by everybody.
        """
        if not self._rest:
            return []
        value = 0 if entry is None else value_of(entry)
        chosen: list[Entry] = []
        later: list[Entry] = []
        for holder in self._rest:
            comes_before = (
                entry is None
                or holder.static_class >= entry.static_class
                or value_of(holder) < value
                or self._reservations[holder.number].claim
            )
            (chosen if comes_before else later).append(holder)
        self._rest = later
        return chosen
