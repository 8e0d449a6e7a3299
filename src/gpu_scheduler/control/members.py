"""From what the members of an attempt report to what the core hears of the attempt as a whole.

An attempt has begun when all its members have, and is over when all of them are. When one of
several fails, the others are to be stopped; the attempt then ends as the first one that failed by
itself, in whatever order the ends are told: after a restart they come in any.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_scheduler.control.messages import Ended
from gpu_scheduler.model.allocation import Allocation

GANG = "gang"
"""Why a member is stopped when another one has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEnd:
    """How one member ended."""

    exit_code: int | None
    signal: int | None
    ran: bool = True
    stopped_by: str = ""
    detail: str = ""
    at_ms: int = 0

    @property
    def went_well(self) -> bool:
        """Tell whether the member did what it should."""
        return self.ran and self.exit_code == 0 and self.signal is None


@dataclass(slots=True)
class _Attempt:
    members: frozenset[int]
    began: set[int] = field(default_factory=set)
    ends: dict[int, MemberEnd] = field(default_factory=dict)
    told_to_stop: bool = False


class Members:
    """All attempts that are under way."""

    def __init__(self) -> None:
        """Start with none."""
        self._attempts: dict[str, _Attempt] = {}

    def began(self, allocation: Allocation, member: int) -> bool:
        """A member runs; True if that was the last one to begin."""
        attempt = self._of(allocation)
        if member in attempt.began or member not in attempt.members:
            return False
        attempt.began.add(member)
        return attempt.began == attempt.members

    def over(self, allocation: Allocation, member: int, end: MemberEnd) -> Ended | None:
        """A member is over; the end of the whole attempt, if it was the last one."""
        attempt = self._of(allocation)
        if member in attempt.members:
            attempt.ends.setdefault(member, end)
        if attempt.ends.keys() != attempt.members:
            return None
        failed = [e for e in attempt.ends.values() if not e.went_well]
        decisive = min(failed, key=lambda e: (e.stopped_by == GANG, e.at_ms), default=end)
        return Ended(
            allocation.id,
            exit_code=decisive.exit_code,
            signal=decisive.signal,
            ran=decisive.ran,
            stopped_by="" if decisive.stopped_by == GANG else decisive.stopped_by,
            detail=decisive.detail,
        )

    def to_stop(self, allocation: Allocation) -> list[int]:
        """The members that must stop because another one failed; told once."""
        attempt = self._of(allocation)
        if attempt.told_to_stop or all(end.went_well for end in attempt.ends.values()):
            return []
        attempt.told_to_stop = True
        return sorted(attempt.members - attempt.ends.keys())

    def reconnected(self) -> None:
        """Orders to stop may have been lost with an agent: let them be told again."""
        for attempt in self._attempts.values():
            attempt.told_to_stop = False

    def forget(self, allocation_id: str) -> None:
        """The attempt has ended for the core too."""
        self._attempts.pop(allocation_id, None)

    def _of(self, allocation: Allocation) -> _Attempt:
        attempt = self._attempts.get(allocation.id)
        if attempt is None:
            members = frozenset(placement.member for placement in allocation.placements)
            attempt = self._attempts[allocation.id] = _Attempt(members)
        return attempt
