"""Job rows and launches as columns, and back, for all databases.

Jobs of one submission share most values, so a value that equals that of the job before is not
encoded again, and equal specs and launches are stored once and referred to by number. Numbers are
valid only once they are committed: call `restart` after a failed commit.

Jobs are decoded fast: a start of the server reads 100,000 of them within a second. What jobs share
(spec, life) is decoded and validated once; each job is then a copy with its own fields, because
constructors validate every field again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from itertools import groupby
from operator import attrgetter
from sys import intern
from typing import Any, TypeVar

from gpu_scheduler.model.job import ENDED, Job, JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.request import Request
from gpu_scheduler.store.codec import (
    JOB_LIFE,
    LAUNCH,
    LIFE_COLUMNS,
    SPEC,
    STATES,
    STRINGS,
    decode_command,
)
from gpu_scheduler.store.rows import JobRow, NewJobs

T = TypeVar("T")

MAX_CACHED_TEXTS = 4096
MAX_CACHED_CHARS = 4_000_000
"""A writer keeps so many specs or launches, of this length altogether: some have long scripts."""
MAX_CACHED_SPECS = 8192
MAX_CACHED_LIVES = 512
"""Jobs that wait share the text of their `life`; nearly every ended job has one of its own."""
BASE_COLUMNS = (
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
"""The columns of `JobEncoder.base_columns`; a job that never started needs no others."""
PROGRESS_COLUMNS = (
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
"""The columns of `progress_columns`."""
_progress = attrgetter(*LIFE_COLUMNS)
_without_argv = attrgetter(*LAUNCH.names[1:])
_NEVER_RUN = (JobState.PENDING, 0, 0, 0, None, None, None, None, None)

Counts = Counter[tuple[int, str, str, str]]
"""Changes of the number of jobs by archived, tenant, user and state."""


class SharedTexts:
    """The numbers of texts that many rows share, for the texts used lately."""

    def __init__(self, encode: Callable[[tuple[Any, ...]], str]) -> None:
        """Start empty; `encode` makes the text of a value."""
        self._encode = encode
        self.restart(0)

    def restart(self, last_number: int) -> None:
        """Drop everything and continue after the last number that the database has."""
        self.new: list[tuple[int, str]] = []
        self._last_number = last_number
        self._by_value: dict[tuple[Any, ...], int] = {}
        self._by_text: dict[str, int] = {}
        self._chars = 0
        self._previous: tuple[Any, ...] | None = None
        self._previous_number = 0

    def number(self, value: tuple[Any, ...]) -> int:
        """Return the number of a value's text; a text without a number is added to `new`."""
        if value == self._previous:
            return self._previous_number
        number = self._by_value.get(value)
        if number is None:
            text = self._encode(value)
            number = self._by_text.get(text)
            if number is None:
                number = self._last_number = self._last_number + 1
                self._by_text[text] = number
                self._chars += len(text)
                self.new.append((number, text))
            self._by_value[value] = number
        self._previous, self._previous_number = value, number
        return number

    def trim(self) -> None:
        """Drop everything once it has grown large; `new` must be empty."""
        if len(self._by_value) > MAX_CACHED_TEXTS or self._chars > MAX_CACHED_CHARS:
            self.restart(self._last_number)


class JobEncoder:
    """Makes the columns of jobs, and remembers the encoded values of the job before."""

    def __init__(self) -> None:
        """Start without numbers: `restart` comes before the first write."""
        self.specs = SharedTexts(SPEC.encode)
        self.launches = SharedTexts(LAUNCH.encode)
        self._command: tuple[str, ...] | None = None
        self._command_text = ""
        self._members: tuple[Request, ...] | None = None
        self._gpu_milli = 0
        self._life: tuple[Any, ...] | None = None
        self._life_text = ""

    def restart(self, last_spec: int, last_launch: int) -> None:
        """Continue after the last numbers that the database has."""
        self.specs.restart(last_spec)
        self.launches.restart(last_launch)

    def base_columns(self, row: JobRow, launch: Launch | None) -> tuple[Any, ...]:
        """Return the columns that every job has; the launch is 0 if there is none."""
        job = row.job
        if job.command != self._command:
            self._command, self._command_text = job.command, STRINGS.encode(job.command)
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
            self.specs.number(SPEC.values(job)),
            0 if launch is None else self.launch_number(launch, job.command),
        )

    def shared_columns(self, new: NewJobs) -> tuple[Any, ...]:
        """Return what new jobs share: tenant, user, priority, GPUs, time, spec and launch."""
        first = new.jobs[0]
        return (
            first.tenant,
            first.user,
            first.priority,
            first.gpu_milli,
            first.submit_ms,
            self.specs.number(SPEC.values(first)),
            self.launch_number(new.launch, new.launch.argv),
        )

    def launch_number(self, launch: Launch, command: tuple[str, ...] | None) -> int:
        """Return the number of a launch; one that runs the job's command is stored without it."""
        if launch.argv == command:
            return self.launches.number((None, *_without_argv(launch)))
        return self.launches.number(LAUNCH.values(launch))


def individual_columns(new: NewJobs) -> list[tuple[int, str, str, str]]:
    """Return what each of the new jobs has for itself: number, name, command and life."""
    lives = {}
    for expected_ms in {*new.expected_ms}:
        row = JobRow(
            job=new.jobs[0], state=JobState.PENDING, expected_ms=expected_ms, since_ms=new.at_ms
        )
        lives[expected_ms] = JOB_LIFE.encode(JOB_LIFE.values(row))
    encode = STRINGS.encode
    return [
        (job.number, job.name, encode(job.command), lives[expected_ms])
        for job, expected_ms in zip(new.jobs, new.expected_ms, strict=True)
    ]


def progress_columns(row: JobRow) -> tuple[Any, ...]:
    """Return the columns that are at their defaults until a job starts."""
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


def has_never_run(row: JobRow) -> bool:
    """Tell whether `progress_columns` are all at their defaults."""
    return _progress(row) == _NEVER_RUN and row.job.id == f"job-{row.job.number}"


def count_jobs(rows: Iterable[JobRow]) -> Counts:
    """Count rows; equal neighbours are counted together, because jobs come in series."""
    counts: Counts = Counter()
    for (tenant, user, state), group in groupby(rows, key=_counted_by):
        counts[(0, tenant, user, state.value)] += sum(1 for _ in group)
    return counts


_counted_by = attrgetter("job.tenant", "job.user", "state")


def count_new(new: NewJobs) -> Counts:
    """Count new jobs, which all have one tenant, user and state."""
    first = new.jobs[0]
    return Counter({(0, first.tenant, first.user, JobState.PENDING.value): len(new.jobs)})


def job_number(job_id: str) -> int | None:
    """Return the number in an id of the form `job-<number>`; None for any other id."""
    digits = job_id.removeprefix("job-")
    if digits != job_id and digits.isdecimal() and job_id == f"job-{int(digits)}":
        return int(digits)
    return None


def copy_factory(value: T, changing: tuple[str, ...]) -> Callable[..., T]:
    """Return a function that copies `value` with new values in the `changing` fields, in order.

    It takes a fifth of the time of a constructor: it fills a plain class with the same slots, and
    then changes the class of the object. So nothing is validated again, and callers may change only
    fields that need no validation.
    """
    kind: type = type(value)
    make, fixed = _compile_copy(kind, changing)
    found: Callable[..., T] = make(*(getattr(value, name) for name in fixed))
    return found


@cache
def _compile_copy(
    kind: type, changing: tuple[str, ...]
) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Return a function from the fixed values to the copying function, and the fixed fields.

    The code is generated field by field, because a loop over the fields takes four times as long.
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
    # The text contains only names of fields, as the generated methods of a dataclass do.
    exec("\n".join(lines), names)  # noqa: S102
    return names["make"], fixed


_JOB_FIELDS = ("id", "number", "submit_ms", "tenant", "user", "name", "command", "priority")
_ROW_FIELDS = ("job", "state", "reason", *LIFE_COLUMNS[1:])


@lru_cache(maxsize=MAX_CACHED_SPECS)
def _job_factory(spec: str) -> Callable[..., Job]:
    """Return a function that makes the jobs of one spec, which is validated here."""
    return copy_factory(Job(id="job-0", number=0, submit_ms=0, **SPEC.decode(spec)), _JOB_FIELDS)


@lru_cache(maxsize=MAX_CACHED_LIVES)
def _row_factory(life: str) -> Callable[..., JobRow]:
    """Return a function that makes the rows of jobs with the same `life`."""
    placeholder = Job(id="job-0", number=0, submit_ms=0)
    row = JobRow(job=placeholder, state=JobState.PENDING, **JOB_LIFE.decode(life))
    return copy_factory(row, _ROW_FIELDS)


def decode_job(row: tuple[Any, ...]) -> JobRow:
    """Return a job; the columns are those of `job_columns`, and then the text of its spec."""
    number, other_id, name, tenant, user, state, reason, priority, command, submit_ms = row[:10]
    first_start_ms, start_ms, end_ms, attempt, preemptions, failures = row[10:16]
    exit_code, signal, life, _, spec = row[16:]
    job = _job_factory(spec)(
        other_id or f"job-{number}",
        number,
        submit_ms,
        intern(tenant),
        intern(user),
        intern(name),
        decode_command(command),
        priority,
    )
    return _row_factory(life)(
        job,
        STATES[state],
        reason,
        attempt,
        preemptions,
        failures,
        exit_code,
        signal,
        first_start_ms,
        start_ms,
        end_ms,
    )


def decode_launch(row: tuple[str, str]) -> Launch:
    """Return the launch of a job, which runs the job's command unless it has its own."""
    fields = LAUNCH.decode(row[1])
    if fields["argv"] is None:
        fields["argv"] = decode_command(row[0])
    return Launch(**fields)
