"""What a job becomes in a database: its columns, and the texts that it shares with others.

Job rows and launches come in, tuples of columns go out, for writers of any database. What a new job
has in common with the one before it is not encoded again, and jobs with the same wishes share one
text. Numbers of texts are good only once they are committed: `restart` after a failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, TypeVar

from gpu_scheduler.model.job import ENDED, JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.request import Request
from gpu_scheduler.store.codec import JOB_LIFE, LAUNCH, LIFE_COLUMNS, SPEC, WORDS
from gpu_scheduler.store.rows import JobRow, NewJobs

# --- Parts that many rows have in common, each written once and then named by a number.
#
# Values come in, numbers go out, and the texts that have to be written for them. A number is good
# only once its text is committed: after a commit that failed, everything must be forgotten.

_MOST = 4096


class SharedParts:
    """The numbers of the parts seen lately. Keys are equal only for values with equal parts."""

    def __init__(self, encode: Callable[[Any], str]) -> None:
        """Start without memory; `encode` makes the text of a value's part."""
        self._encode = encode
        self.forget(0)

    def forget(self, last_number: int) -> None:
        """Begin anew behind the last number that is taken."""
        self.new: list[tuple[int, str]] = []
        self._last_number = last_number
        self._by_key: dict[Any, int] = {}
        self._by_text: dict[str, int] = {}
        # A key can hold the identity of an object, which must then live as long as the key.
        self._pinned: list[Any] = []
        self._previous: Any = None
        self._previous_number = 0

    def number(self, key: Any, value: Any) -> int:
        """The number of a value's part; its text goes to `new` if it was not seen before."""
        if key == self._previous:
            return self._previous_number
        number = self._by_key.get(key)
        if number is None:
            number = self._add(key, value)
        self._previous, self._previous_number = key, number
        return number

    def trim(self) -> None:
        """Forget everything when it has become much; nothing may wait in `new`."""
        if len(self._by_key) > _MOST:
            self.forget(self._last_number)

    def _add(self, key: Any, value: Any) -> int:
        text = self._encode(value)
        number = self._by_text.get(text)
        if number is None:
            number = self._last_number = self._last_number + 1
            self._by_text[text] = number
            self.new.append((number, text))
        self._by_key[key] = number
        self._pinned.append(value)
        return number


# --- What a job becomes in a database: its columns, and the texts that it shares with others.

FRESH_COLUMNS = (
    "number",
    "name",
    "tenant",
    "user",
    "reason",
    "priority",
    "gpu_milli",
    "command",
    "submit_ms",
    "life",
    "spec",
    "launch",
)
"""The columns of `JobValues.fresh`: all that a job which never started has."""
LATER_COLUMNS = (
    "other_id",
    "state",
    "ended",
    "first_start_ms",
    "start_ms",
    "end_ms",
    "attempt",
    "preemptions",
    "failures",
    "exit_code",
    "signal",
)
"""The columns of `later_values`."""
_lived = attrgetter(*LIFE_COLUMNS)
_wishes = attrgetter(*(name for name in SPEC.names if name != "members"))
_without_argv = attrgetter(*LAUNCH.names[1:])
_FRESH = (JobState.PENDING, 0, 0, 0, None, None, None, None, None)

Counts = Counter[tuple[int, str, str, str]]
"""Changes of the number of jobs by archived, tenant, user and state."""


class JobValues:
    """Makes columns, and remembers which texts have a number already."""

    def __init__(self) -> None:
        """Without any knowledge yet."""
        self.specs = SharedParts(lambda job: SPEC.encode(SPEC.values(job)))
        self.launches = SharedParts(LAUNCH.encode)
        # What the job before had, and its texts.
        self._command: tuple[str, ...] | None = None
        self._command_text = ""
        self._members: tuple[Request, ...] | None = None
        self._gpu_milli = 0
        self._life: tuple[Any, ...] | None = None
        self._life_text = ""

    def restart(self, last_spec: int, last_launch: int) -> None:
        """Begin with the numbers that the database says."""
        self.specs.forget(last_spec)
        self.launches.forget(last_launch)

    def fresh(self, row: JobRow, launch: Launch | None) -> tuple[Any, ...]:
        """The columns that every job has; a launch of 0 is none."""
        job = row.job
        if job.command != self._command:
            self._command, self._command_text = job.command, WORDS.encode(job.command)
        if job.members is not self._members:
            self._members, self._gpu_milli = job.members, job.gpu_milli
        life = JOB_LIFE.values(row)
        if life != self._life:
            self._life, self._life_text = life, JOB_LIFE.encode(life)
        return (
            job.number,
            job.name,
            job.tenant,
            job.user,
            row.reason,
            job.priority,
            self._gpu_milli,
            self._command_text,
            job.submit_ms,
            self._life_text,
            # Members are compared by identity, as control keeps equal ones as one object.
            self.specs.number((id(job.members), _wishes(job)), job),
            0 if launch is None else self.launch_number(launch, job.command),
        )

    def common(self, new: NewJobs) -> tuple[Any, ...]:
        """What new jobs have in common: tenant, user, priority, GPUs, time, spec and launch."""
        first = new.jobs[0]
        return (
            first.tenant,
            first.user,
            first.priority,
            first.gpu_milli,
            first.submit_ms,
            self.specs.number((id(first.members), _wishes(first)), first),
            self.launch_number(new.launch, new.launch.argv),
        )

    def launch_number(self, launch: Launch, command: tuple[str, ...] | None) -> int:
        """A launch of the job's own command is kept without it, and so shared with others."""
        own = launch.argv == command
        key = (None, *_without_argv(launch)) if own else LAUNCH.values(launch)
        return self.launches.number(key, key)


def own_values(new: NewJobs) -> list[tuple[int, str, str, str]]:
    """What each of some new jobs has for itself: number, name, command and life."""
    lives = {expected_ms: _fresh_life(new, expected_ms) for expected_ms in {*new.expected_ms}}
    encode = WORDS.encode
    return [
        (job.number, job.name, encode(job.command), lives[expected_ms])
        for job, expected_ms in zip(new.jobs, new.expected_ms, strict=True)
    ]


def later_values(row: JobRow) -> tuple[Any, ...]:
    """The columns that a job which has never started does not need."""
    job = row.job
    return (
        "" if job.id == f"job-{job.number}" else job.id,
        row.state.value,
        int(row.state in ENDED),
        row.first_start_ms,
        row.start_ms,
        row.end_ms,
        row.attempt,
        row.preemptions,
        row.failures,
        row.exit_code,
        row.signal,
    )


def is_fresh(row: JobRow) -> bool:
    """Tell whether the columns of `later_values` are all at their defaults."""
    return _lived(row) == _FRESH and row.job.id == f"job-{row.job.number}"


def count(rows: Iterable[JobRow], counts: Counts) -> None:
    """Count rows; neighbours of one kind are counted together, as jobs come in runs."""
    for (tenant, user, state), alike in groupby(rows, key=_kind):
        counts[(0, tenant, user, state.value)] += sum(1 for _ in alike)


def count_new(new: NewJobs, counts: Counts) -> None:
    """Count new jobs, which are all of one kind."""
    first = new.jobs[0]
    counts[(0, first.tenant, first.user, JobState.PENDING.value)] += len(new.jobs)


def number_in(job_id: str) -> int | None:
    """The number in an id of the common form `job-<number>`; None in any other."""
    digits = job_id.removeprefix("job-")
    if digits != job_id and digits.isdecimal() and job_id == f"job-{int(digits)}":
        return int(digits)
    return None


_kind = attrgetter("job.tenant", "job.user", "state")


def _fresh_life(new: NewJobs, expected_ms: int) -> str:
    row = JobRow(
        job=new.jobs[0], state=JobState.PENDING, expected_ms=expected_ms, since_ms=new.at_ms
    )
    return JOB_LIFE.encode(JOB_LIFE.values(row))


# --- Many values that are alike but for a few fields, made fast.
#
# A checked value comes in, copies of it come out. A copy is made as a plain twin of its class,
# whose
# fields can be set without checks, and then becomes a value of the class itself: a fifth of the
# time
# of a constructor. So nothing is checked again, and whoever makes copies must change only fields
# that need no check.

T = TypeVar("T")


class Template(Generic[T]):
    """Makes copies of a value of a class with slots."""

    __slots__ = ("copy",)

    copy: Callable[..., T]
    """One more, with these values in the fields that change."""

    def __init__(self, value: T, changing: tuple[str, ...]) -> None:
        """`changing` are the fields that every copy is given anew, in this order."""
        kind: type = type(value)
        make, fixed = _maker(kind, changing)
        self.copy = make(*(getattr(value, name) for name in fixed))


@cache
def _maker(kind: type, changing: tuple[str, ...]) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """A function from the values of the fixed fields to a function that copies; and those fields.

    It is written out field by field, as a loop over them takes four times as long.
    """
    slots: tuple[str, ...] = kind.__slots__  # type: ignore[attr-defined]
    fixed = tuple(name for name in slots if name not in changing)
    lines = [
        f"def make({', '.join(f'fixed_{name}' for name in fixed)}):",
        f"    def copy({', '.join(changing)}):",
        "        made = Twin()",
        *(f"        made.{name} = {name}" for name in changing),
        *(f"        made.{name} = fixed_{name}" for name in fixed),
        "        made.__class__ = kind",
        "        return made",
        "    return copy",
    ]
    names: dict[str, Any] = {"Twin": type("Twin", (), {"__slots__": slots}), "kind": kind}
    # Only names of fields go into the text, as those of a dataclass do.
    exec("\n".join(lines), names)  # noqa: S102
    return names["make"], fixed
