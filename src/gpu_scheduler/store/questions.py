"""What a store can be asked for: which jobs, what somebody may see of them, and what is old."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.states import JobState

SORTS = frozenset(
    {"number", "priority", "submit_ms", "start_ms", "end_ms", "name", "user", "tenant", "state"}
)
"""By what jobs can be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Which records to list, the newest first; `before` continues behind that number."""

    user: str = ""
    action: str = ""
    outcome: str = ""
    since_ms: int = 0
    before: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCount:
    """The jobs of one sweep that are in one state; `first` and `last` are numbers of jobs."""

    name: str
    state: JobState
    jobs: int
    first: int
    last: int
    submit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Which jobs somebody gets to see: their own, those of some tenants, and of others what lives.

    `within` are the tenants in which own jobs count (None: in all). Without `others`, jobs of
    others are left out even while they live.
    """

    user: str
    within: frozenset[str] | None = None
    tenants: frozenset[str] = frozenset()
    others: bool = True

    def covers(self, user: str, tenant: str) -> bool:
        """Tell whether a job is one of those that are seen whether they live or not."""
        own = user == self.user and (self.within is None or tenant in self.within)
        return own or tenant in self.tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs to list, and in what order.

    An empty `states` means all, `name` is the whole name, `since_ms` the earliest submission,
    `ended_since_ms` and `ended_before_ms` are about the end, which others than ended jobs have not;
    `sweep` is the sweep that jobs belong to;
    `archived` adds jobs that were archived. `sort` is one of `SORTS`; what is missing comes before
    everything else, and ties go by rising number in both directions. `after_number` continues
    behind that job in the chosen order (a cursor; when sorted by anything but number and the job is
    not there, nothing follows), `offset` then counts rows. A `limit` of 0 lists nothing. With
    `sight`, only what that one sees is there.
    """

    states: tuple[JobState, ...] = ()
    tenant: str = ""
    user: str = ""
    name: str = ""
    numbers: IntervalSet | None = None
    since_ms: int | None = None
    ended_since_ms: int | None = None
    ended_before_ms: int | None = None
    sort: str = "number"
    descending: bool = False
    limit: int = 100
    offset: int = 0
    after_number: int | None = None
    archived: bool = False
    sweep: str = ""
    sight: Sight | None = None

    def __post_init__(self) -> None:
        """Refuse an order that does not exist."""
        if self.sort not in SORTS:
            raise InvalidRequest(
                f"jobs cannot be sorted by '{self.sort}'; sort by one of {', '.join(sorted(SORTS))}"
            )
        if self.limit < 0 or self.offset < 0:
            raise InvalidRequest(
                f"limit is {self.limit} and offset {self.offset}; both must be 0 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutoffs:
    """What was before these moments may be dropped; at 0 nothing is too old.

    `hours_ms` is about hourly readings of devices. Environments go by the ends of their jobs, and
    estimates with the events.
    """

    answers_ms: int = 0
    events_ms: int = 0
    environments_ms: int = 0
    hours_ms: int = 0
    audit_ms: int = 0
