"""Views of jobs, attempts and tasks for one caller, made from committed rows.

The owner sees the values of named environment variables that do not look like secrets; values of
captured environments are never shown. Other callers get a redacted view with the public fields.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, get_args, get_origin

from msgspec import Struct, structs

from gpu_scheduler.api.expected_times import (
    UNKNOWN,
    Explainer,
    describe_reason,
    expected_running_end,
)
from gpu_scheduler.api.ha.leadership_gate import note_stale
from gpu_scheduler.api.http.request import form_of, in_units
from gpu_scheduler.api.interfaces import Attach, Service
from gpu_scheduler.control.jobs.attempt_progress import running_reason
from gpu_scheduler.engine.explain import Reasons
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, HOLDING, Job, JobState
from gpu_scheduler.model.launch import Launch, Runner
from gpu_scheduler.model.measurements import AttemptMeasure, Measure
from gpu_scheduler.model.plan import Placement, Plan
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import AttemptRow, JobRow, TaskRow
from gpu_scheduler.wire.times import write_time


class HeldGpu(Struct):
    """A GPU, or a share of one; a whole GPU has `share` 1."""

    index: int
    share: float
    memory_mb: int
    mig_profile: str = ""


class Place(Struct):
    """The resources of one member on one node."""

    node: str
    gpus: list[HeldGpu]
    member: int = 0
    task: int | None = None
    cpu_cores: float = 0
    memory_mb: int = 0


class DependencyForm(Struct):
    """A dependency on another job."""

    type: str
    job_id: str


class ArrayForm(Struct):
    """The tasks of an array; `states` has the task numbers in each state."""

    tasks: str
    count: int
    max_running: int
    states: dict[str, str]


class SnapshotForm(Struct):
    """The copy of the code at submission."""

    path: str
    source: str
    tree: str
    commit: str = ""
    dirty: bool = False


class MeasureForm(Struct):
    """The measurements of a job's or attempt's GPUs; null where a GPU does not report a value.

    Power is divided between the jobs on a GPU by their shares; utilisation is that of the GPUs.
    """

    energy_wh: float | None
    utilisation_percent: float | None
    peak_utilisation_percent: int | None
    peak_memory_mb: int
    warning: str = ""


class JobForm(Struct):
    """A job as its owner sees it. `gpu_count` and the other amounts are over all members.

    `placed_members` is the number of members of a gang that run, or ran last; an elastic gang may
    have fewer than `members` (null: not a gang, or never placed). With `redacted` it is the job of
    another user: only its owner, size, placement and expected end are shown, and all other fields
    are empty. `script` is the text of a job that was submitted as a script: only its owner and
    admins see it, and lists omit it.
    are empty. A list of jobs has the `expected_start` of waiting ones; four in five such jobs start
    from `expected_start_earliest` to `expected_start_latest`.
    """

    id: str
    job_id: str
    number: int
    name: str
    tenant_id: str
    user: str
    state: str
    reason: str
    priority: int
    gpu_count: float
    gpu_memory_mb: int
    cpu_cores: float
    memory_mb: int
    command: list[str]
    image: str
    working_directory: str
    environment: dict[str, str]
    pool: str
    interactive: bool
    preemptible: bool
    gang_scheduling: bool
    members: int
    min_members: int
    max_runtime_minutes: float | None
    submitted_at: str | None
    started_at: str | None
    ended_at: str | None
    attempt: int
    preemptions: int
    exit_code: int | None
    signal: int | None
    array: ArrayForm | None
    allocation: list[Place]
    dependencies: list[DependencyForm]
    hold: bool
    retries: int
    deadline: str | None
    begin_at: str | None
    runner: str
    gpu_models: list[str] = []
    output: str = ""
    notify: list[str] = []
    task: int | None = None
    attach: list[str] = []
    sweep: str = ""
    params: dict[str, str] = {}
    snapshot: SnapshotForm | None = None
    expected_end: str | None = None
    redacted: bool = False
    allow_idle: bool = False
    measured: MeasureForm | None = None
    time_limit_minutes: float | None = None
    placed_members: int | None = None
    script: str = ""
    expected_start: str | None = None
    expected_start_earliest: str | None = None
    expected_start_latest: str | None = None


class JobLine(Struct):
    """A job in one line of a screen. `gpus` is over all members, `places` as in `box[0,1]`.

    For a running elastic gang, `gpus` is over its running members.
    """

    id: str
    name: str
    user: str
    tenant_id: str
    state: str
    reason: str
    gpus: float
    members: int
    priority: int
    interactive: bool
    hold: bool
    tasks: str
    submitted_at: str | None
    started_at: str | None
    max_runtime_minutes: float | None
    places: list[str]
    may_change: bool = False
    expected_start: str | None = None
    expected_end: str | None = None
    position: int | None = None
    time_limit_minutes: float | None = None
    expected_start_earliest: str | None = None
    expected_start_latest: str | None = None


def fill_in_starts(
    explainer: Explainer, rows: Sequence[JobRow], forms: Sequence[JobForm | JobLine]
) -> None:
    """Fill in the expected starts of those that wait, with the range of each."""
    waiting = [row.job.number for row in rows if row.state is JobState.PENDING]
    starts = explainer.expected_starts(waiting)
    for row, form in zip(rows, forms, strict=True):
        start = starts.get(row.job.number, UNKNOWN)
        form.expected_start = write_time(start.at_ms)
        form.expected_start_earliest = write_time(start.earliest_ms)
        form.expected_start_latest = write_time(start.latest_ms)


class AttemptForm(Struct):
    """One attempt of a job or task, running or ended; `cost` is that of its GPUs, so far."""

    id: str
    job_id: str
    task: int | None
    attempt: int
    state: str
    started_at: str | None
    ended_at: str | None
    exit_code: int | None
    signal: int | None
    detail: str
    allocation: list[Place]
    measured: MeasureForm | None = None
    gpu_hours: float = 0
    cost: float | None = None


class ArrayTask(Struct):
    """One task of an array that has started at least once."""

    id: str
    task: int
    state: str
    attempt: int
    preemptions: int
    exit_code: int | None
    signal: int | None
    started_at: str | None
    ended_at: str | None


HIDDEN = "***"
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|PRIVATE", re.IGNORECASE)
MOST_PLACES = 1000
MINUTE_MS = 60_000
PUBLIC_FIELDS = frozenset(
    (
        *("id", "job_id", "number", "tenant_id", "user", "state", "submitted_at", "started_at"),
        *("gpu_count", "gpu_memory_mb", "cpu_cores", "memory_mb", "members", "min_members"),
    )
)
"""The fields of a job that every caller sees, besides its placement and expected end."""
_NO_LAUNCH = Launch(argv=("",))


def _empty(kind: Any) -> Callable[[], Any]:
    """Return a factory of the empty value of a field type."""
    if type(None) in get_args(kind):
        return lambda: None
    return cast("Callable[[], Any]", get_origin(kind) or kind)


_EMPTY = {
    field.name: _empty(field.type)
    for field in structs.fields(JobForm)
    if field.name not in PUBLIC_FIELDS
}
"""The empty values of all other fields."""


class Details(Protocol):
    """What a view needs besides the row of the job: a store, or what was read of it before."""

    def launch(self, job_id: str) -> Launch | None: ...
    def attempts(self, job_id: str, task: int | None = None) -> list[AttemptRow]: ...
    def attempt_measures(self, job_id: str, task: int | None = None) -> list[AttemptMeasure]: ...
    def job_measures(self, job_ids: Sequence[str]) -> dict[str, Measure]: ...
    def tasks(self, job_id: str, *, only: IntervalSet | None = None) -> list[TaskRow]: ...


@dataclass(slots=True)
class StoredDetails:
    """The details of some jobs, read in advance."""

    launches: dict[str, Launch] = field(default_factory=dict)
    measures: dict[str, Measure] = field(default_factory=dict)
    ended: dict[str, list[AttemptRow]] = field(default_factory=dict)
    measured: dict[tuple[str, int | None], list[AttemptMeasure]] = field(default_factory=dict)
    held_tasks: dict[str, list[TaskRow]] = field(default_factory=dict)

    def launch(self, job_id: str) -> Launch | None:
        return self.launches.get(job_id)

    def attempts(self, job_id: str, task: int | None = None) -> list[AttemptRow]:
        return [row for row in self.ended.get(job_id, ()) if task in {None, row.task}]

    def attempt_measures(self, job_id: str, task: int | None = None) -> list[AttemptMeasure]:
        return self.measured.get((job_id, task), [])

    def job_measures(self, job_ids: Sequence[str]) -> dict[str, Measure]:
        return {name: self.measures[name] for name in job_ids if name in self.measures}

    def tasks(self, job_id: str, *, only: IntervalSet | None = None) -> list[TaskRow]:
        return [row for row in self.held_tasks.get(job_id, ()) if only is None or row.task in only]


def read_details(
    store: Store, rows: Sequence[JobRow], caller: Caller, task: int | None = None
) -> StoredDetails:
    """Read what the views of these jobs need; with `task`, also what that of one task needs."""
    seen = [row for row in rows if caller.may_see(row.job.user, row.job.tenant)]
    arrays = [row.job.id for row in seen if row.job.array is not None and row.tasks]
    found = StoredDetails(
        launches=store.launches([row.job.id for row in seen]),
        measures=store.job_measures(arrays) if arrays else {},
    )
    for row in rows:
        job_id = row.job.id
        if row.job.array is not None:
            numbers = IntervalSet() if task is None else IntervalSet.of([task])
            for state, some in row.tasks:
                numbers = numbers.union(some) if state in HOLDING else numbers
            if numbers:
                found.held_tasks[job_id] = store.tasks(job_id, only=numbers)
            reported = first_failed_task(row) if task is None else task
            if reported is not None:
                found.ended[job_id] = store.attempts(job_id, reported)
        elif row.attempt and row.state not in {*HOLDING, JobState.PENDING}:
            found.ended[job_id] = store.attempts(job_id)
    for row in seen:
        if row.job.array is None and row.attempt:
            found.measured[row.job.id, None] = store.attempt_measures(row.job.id)
        elif task is not None:
            found.measured[row.job.id, task] = store.attempt_measures(row.job.id, task)
    return found


async def job_views(
    service: Service,
    caller: Caller,
    rows: Sequence[JobRow],
    attach: Attach | None = None,
    task: int | None = None,
) -> JobViews:
    """Make the views of these jobs, with their details read in a thread."""
    details = await asyncio.to_thread(read_details, service.store, rows, caller, task)
    return JobViews(service, caller, attach, details)


class JobViews:
    """Makes the views of jobs for one caller."""

    def __init__(
        self,
        service: Service,
        caller: Caller,
        attach: Attach | None = None,
        details: Details | None = None,
    ) -> None:
        """The caller determines what is redacted. Without `details` the store is read."""
        self._attach = attach
        self._service = service
        self._store: Details = details or service.store
        self._caller = caller
        self._reasons: Reasons | None = None

    def job(self, row: JobRow) -> JobForm:
        """Return a job, or a whole array."""
        job = row.job
        if not self._caller.may_see(job.user, job.tenant):
            return self._redacted(row)
        launch = self._store.launch(job.id) or _NO_LAUNCH
        form = self._form(row, job, launch)
        form.allocation = self._places(row)
        form.placed_members = _placed(job, form.allocation)
        form.expected_end = self._expected_end(row)
        form.measured = self.measured(row)
        if not form.reason and row.state in ENDED:
            form.reason = first_failure_text(row, self._store)
        if job.array is None and row.state is JobState.RUNNING:
            form.attach = self._attach_command(job, launch, f"{job.id}.{row.attempt}")
        return form

    def script(self, row: JobRow) -> str:
        """Return the text of a job that is a script, for its owner and admins; empty for others."""
        launch = self._store.launch(row.job.id) or _NO_LAUNCH
        is_allowed = self._caller.is_admin or self._caller.user == row.job.user
        return launch.script if is_allowed else ""

    def line(self, row: JobRow) -> JobLine:
        """Return a job as one line of a list; of other users only the public fields."""
        job = row.job
        sees = self._caller.may_see(job.user, job.tenant)
        held = self._places(row) if row.state in HOLDING else []
        members = job.members[: _placed(job, held)]
        return JobLine(
            id=job.id,
            name=job.name if sees else "",
            user=job.user,
            tenant_id=job.tenant,
            state=row.state.value,
            reason=(row.reason or self._wait_reason(row)) if sees else "",
            gpus=in_units(sum(member.gpu_milli for member in members), WHOLE_MILLI) or 0,
            members=len(members),
            priority=job.priority if sees else 0,
            interactive=job.interactive and sees,
            hold=job.hold and sees,
            tasks="" if job.array is None or not sees else str(job.array.tasks),
            submitted_at=write_time(job.submit_ms),
            started_at=write_time(row.start_ms),
            max_runtime_minutes=(in_units(job.max_runtime_ms, MINUTE_MS) or None) if sees else None,
            places=_short_places(held),
            may_change=self._caller.may_touch(job.user, job.tenant),
            expected_end=self._expected_end(row),
            time_limit_minutes=self._time_limit(job) if sees else None,
        )

    def _redacted(self, row: JobRow) -> JobForm:
        """Return only the public fields; all others, including future ones, are empty."""
        form = self._form(row, row.job, _NO_LAUNCH)
        for name, empty in _EMPTY.items():
            setattr(form, name, empty())
        form.allocation = self._places(row)
        form.placed_members = _placed(row.job, form.allocation)
        for place in form.allocation:
            place.task = None
        if row.job.array is not None:
            count = len(row.job.array.tasks)
            form.array = ArrayForm(tasks="", count=count, max_running=0, states={})
        form.expected_end = self._expected_end(row)
        form.redacted = True
        return form

    def _expected_end(self, row: JobRow) -> str | None:
        """Return when a running job, or the last task of an array, is expected to end."""
        if row.state not in HOLDING:
            return None
        names = [f"{row.job.id}.{row.attempt}"]
        if row.job.array is not None:
            record = self._service.core.state.jobs.get(row.job.id)
            if record is None or record.pending:
                return None
            names = [task.allocation_id for task in record.tasks.values()]
        return self._latest_end(names)

    def _latest_end(self, names: list[str]) -> str | None:
        """Return when the last of these attempts ends, if that is known for all of them."""
        held = self._service.core.state.cluster.running
        if not names or not all(name in held for name in names):
            return None
        ends = [expected_running_end(self._service, held[name].running).at_ms for name in names]
        known = [end_ms for end_ms in ends if end_ms is not None]
        return write_time(max(known)) if len(known) == len(ends) else None

    def measured(self, row: JobRow, task: int | None = None) -> MeasureForm | None:
        """Return the measurements of all attempts of a job, or of one of its tasks."""
        job_id = row.job.id
        if not row.attempt and not row.tasks:
            return None
        if row.job.array is not None and task is None:
            total_measure = self._store.job_measures([job_id]).get(job_id)
            return None if total_measure is None else measure_form(total_measure)
        attempts = {one.allocation_id: one for one in self._store.attempt_measures(job_id, task)}
        name = attempt_id(job_id, task, last_attempt(self._store, row, task))
        gauge = self._service.core.state.gpu_meter.attempts.get(name)
        entry = self._service.core.state.cluster.running.get(name)
        if gauge is not None and entry is not None and gauge.has_data:
            attempts[name] = gauge.row(entry.running.allocation)
        if not attempts:
            return None
        total = Measure()
        for one in attempts.values():
            total = total.plus(one.measure)
        return measure_form(total, next(reversed(attempts.values())).warning)

    def _attach_command(self, job: Job, launch: Launch, allocation_id: str) -> list[str]:
        """Return the command to attach to the session of a running job."""
        running = self._service.core.state.cluster.running.get(allocation_id)
        if self._attach is None or running is None or launch.runner is Runner.PROCESS:
            return []
        return list(self._attach(job, launch, running.running.allocation))

    def task(self, row: JobRow, number: int) -> JobForm:
        """Return one task of an array as a job."""
        form = self.job(row)
        if form.redacted:
            return form
        form.id = form.job_id = f"{row.job.id}_{number}"
        form.task = number
        form.array = None
        form.measured = self.measured(row, number)
        state = task_state(row, number)
        form.state = state.value
        if row.state in ENDED or state in ENDED:
            form.reason = row.reason or _last_detail(self._store, row, number)
        elif row.job.array is not None and not row.reason:
            form.reason = self._task_reason(row, number)
        form.allocation = [place for place in form.allocation if place.task == number]
        form.placed_members = len(form.allocation) if row.job.is_gang and form.allocation else None
        form.attempt = form.preemptions = 0
        form.started_at = form.ended_at = form.exit_code = form.signal = form.expected_end = None
        for task in self._store.tasks(row.job.id, only=IntervalSet.of([number])):
            form.attempt, form.preemptions = task.attempt, task.preemptions
            form.started_at, form.ended_at = write_time(task.start_ms), write_time(task.end_ms)
            form.exit_code, form.signal = task.exit_code, task.signal
            if task.state is JobState.RUNNING:
                launch = self._store.launch(row.job.id) or _NO_LAUNCH
                allocation_id = attempt_id(row.job.id, number, task.attempt)
                form.expected_end = self._latest_end([allocation_id])
                form.attach = self._attach_command(row.job, launch, allocation_id)
                form.reason = form.reason or self._warning(allocation_id)
        return form

    def _form(self, row: JobRow, job: Job, launch: Launch) -> JobForm:
        members = job.members
        return JobForm(
            id=job.id,
            job_id=job.id,
            number=job.number,
            name=job.name,
            tenant_id=job.tenant,
            user=job.user,
            state=row.state.value,
            reason=row.reason or self._wait_reason(row),
            priority=job.priority,
            gpu_count=in_units(job.gpu_milli, WHOLE_MILLI) or 0,
            gpu_memory_mb=sum(member.gpu_memory_total_mb for member in members),
            cpu_cores=in_units(sum(member.cpu_milli for member in members), 1000) or 0,
            memory_mb=sum(member.memory_mb for member in members),
            command=list(job.command),
            image=launch.image,
            working_directory=launch.workdir,
            environment=self._environment(job, launch),
            pool=job.pool.value,
            interactive=job.interactive,
            preemptible=job.preemptible,
            gang_scheduling=job.is_gang or job.gpu_milli > WHOLE_MILLI,
            members=len(members),
            min_members=job.min_members,
            max_runtime_minutes=in_units(job.max_runtime_ms, MINUTE_MS) or None,
            submitted_at=write_time(job.submit_ms),
            started_at=write_time(row.start_ms),
            ended_at=write_time(row.end_ms),
            attempt=row.attempt,
            preemptions=row.preemptions,
            exit_code=row.exit_code,
            signal=row.signal,
            array=_array(row),
            allocation=[],
            dependencies=[DependencyForm(d.kind.value, d.job_id) for d in job.dependencies],
            hold=job.hold,
            retries=job.retries,
            deadline=write_time(job.deadline_ms or None),
            begin_at=write_time(job.begin_ms or None),
            runner=launch.runner.value,
            gpu_models=sorted({model for member in members for model in member.gpu_models}),
            output=launch.output,
            **self._owner_fields(job, launch),
            allow_idle=job.allow_idle,
            time_limit_minutes=self._time_limit(job),
        )

    def _time_limit(self, job: Job) -> float | None:
        """Return the limit in force: the job's own or that of the settings; none for a service."""
        limit_ms = 0 if job.service else self._service.core.state.cluster.limit_ms(job)
        return in_units(limit_ms, MINUTE_MS) or None

    def _owner_fields(self, job: Job, launch: Launch) -> dict[str, Any]:
        """Return the fields that only the owner sees: sweep, snapshot, notifications."""
        if self._caller.user != job.user:
            return {}
        shot = launch.snapshot
        return {
            "notify": list(map(str, job.notify)),
            "sweep": launch.sweep,
            "params": dict(launch.params),
            "snapshot": None
            if shot is None
            else SnapshotForm(shot.path, shot.source, shot.tree, shot.commit, shot.dirty),
        }

    def _wait_reason(self, row: JobRow) -> str:
        """Return why a queued job waits, by the last cycle.

        For a job with devices: that its node is lost, that it is being stopped, that its container
        is being prepared, or its current warning.
        """
        state = self._service.core.state
        record = state.jobs.get(row.job.id)
        if record is None and row.state not in ENDED:
            note_stale(row.job.id)
        if row.state in HOLDING and record is not None:
            found = describe_reason(running_reason(state, record))[1]
            return found or self._warning(f"{row.job.id}.{row.attempt}")
        if row.state is not JobState.PENDING or record is None or not record.queued:
            return ""
        if self._reasons is None:
            self._reasons = Reasons(state.cluster, self._service.last_plan or Plan())
        return describe_reason(self._reasons.brief(row.job.number))[1]

    def _task_reason(self, row: JobRow, number: int) -> str:
        """Return what to know of one task that has its devices, else why the array waits."""
        state = self._service.core.state
        record = state.jobs.get(row.job.id)
        if record is None or task_state(row, number) not in HOLDING:
            return self._wait_reason(row)
        return describe_reason(running_reason(state, record, number))[1]

    def _warning(self, allocation_id: str) -> str:
        gauge = self._service.core.state.gpu_meter.attempts.get(allocation_id)
        text = "" if gauge is None else gauge.active_warning
        return f"warned: {text}" if text else ""

    def _environment(self, job: Job, launch: Launch) -> dict[str, str]:
        is_owner = self._caller.user == job.user
        return {
            name: value if is_owner and not SECRET.search(name) else HIDDEN
            for name, value in launch.environment
        }

    def _places(self, row: JobRow) -> list[Place]:
        """Return the job's placement; after its end, that of its last attempt."""
        job = row.job
        if job.array is not None:
            return self._task_places(row)
        if row.state in HOLDING:
            return self._running_places(f"{job.id}.{row.attempt}", None)
        if row.attempt == 0 or row.state is JobState.PENDING:
            return []
        attempts = self._store.attempts(job.id)
        return places(attempts[-1].placements) if attempts else []

    def _task_places(self, row: JobRow) -> list[Place]:
        held = IntervalSet()
        for state, numbers in row.tasks:
            if state in HOLDING:
                held = held.union(numbers)
        if not held:
            return []
        places_of_tasks: list[Place] = []
        for task in self._store.tasks(row.job.id, only=held):
            if len(places_of_tasks) >= MOST_PLACES:
                break
            places_of_tasks += self._running_places(
                f"{row.job.id}_{task.task}.{task.attempt}", task.task
            )
        return places_of_tasks

    def _running_places(self, allocation_id: str, task: int | None) -> list[Place]:
        entry = self._service.core.state.cluster.running.get(allocation_id)
        if entry is None:
            note_stale(allocation_id)
            return []
        return places(entry.running.allocation.placements, task)


def attempt_id(job_id: str, task: int | None, attempt: int) -> str:
    """Return the id of an attempt: `job-12.1`, or `job-12_4.1` for a task of an array."""
    return f"{job_id}.{attempt}" if task is None else f"{job_id}_{task}.{attempt}"


def last_attempt(store: Details, row: JobRow, task: int | None) -> int:
    """Return the number of the last attempt of a job or task; 0 if there was none."""
    if task is None:
        return row.attempt
    tasks = store.tasks(row.job.id, only=IntervalSet.of([task]))
    return tasks[0].attempt if tasks else 0


def places(placements: tuple[Placement, ...], task: int | None = None) -> list[Place]:
    """Return the placements of the members."""
    return [
        Place(
            node=placement.node_id,
            gpus=[
                HeldGpu(
                    index=share.index,
                    share=in_units(share.share_milli, WHOLE_MILLI) or 0,
                    memory_mb=share.memory_mb,
                    mig_profile=share.mig_profile,
                )
                for share in placement.devices
            ],
            member=placement.member,
            task=task,
            cpu_cores=in_units(placement.cpu_milli, 1000) or 0,
            memory_mb=placement.memory_mb,
        )
        for placement in placements
    ]


def _placed(job: Job, held: list[Place]) -> int | None:
    """Return how many members of a gang are placed; None for an array, whose tasks differ."""
    return len(held) if job.is_gang and job.array is None and held else None


def _short_places(held: list[Place]) -> list[str]:
    """Return a short text for each node: `box[0,1]`."""
    devices: dict[str, set[int]] = {}
    for place in held:
        devices.setdefault(place.node, set()).update(gpu.index for gpu in place.gpus)
    return [
        f"{node}[{','.join(map(str, sorted(indices)))}]" if indices else node
        for node, indices in devices.items()
    ]


def task_state(row: JobRow, number: int) -> JobState:
    """Return the state of one array task."""
    for state, numbers in row.tasks:
        if number in numbers:
            return state
    return row.state


def first_failed_task(row: JobRow) -> int | None:
    """Return the lowest number of a failed task of an array; None if no task has failed."""
    failed = dict(row.tasks).get(JobState.FAILED)
    return min(failed) if failed else None


def first_failure_text(row: JobRow, store: Details) -> str:
    """Return how the first failed task of an array ended: `task 3 failed with exit code 1`."""
    number = first_failed_task(row)
    return "" if number is None else f"task {number} {task_end_text(row, number, store)}"


def task_end_text(row: JobRow, number: int, store: Details) -> str:
    """Return how a task ended, with the detail of its last attempt: `failed: cannot enter ...`."""
    state = task_state(row, number)
    attempts = [one for one in store.attempts(row.job.id, number) if one.task == number]
    if not attempts:
        return state.value
    text = exit_text(state, attempts[-1].exit_code, attempts[-1].signal)
    return f"{text}: {attempts[-1].detail}" if attempts[-1].detail else text


def _last_detail(store: Details, row: JobRow, number: int) -> str:
    attempts = store.attempts(row.job.id, number)
    return attempts[-1].detail if attempts else ""


def exit_text(state: JobState, exit_code: int | None, signal: int | None) -> str:
    """Return how a job or task ended: `failed with exit code 1`, `failed by signal 9`."""
    if signal is not None:
        return f"{state.value} by signal {signal}"
    if exit_code is not None:
        return f"{state.value} with exit code {exit_code}"
    return state.value


def states_of(row: JobRow) -> dict[str, str]:
    """Return the task numbers by state."""
    return {state.value: str(numbers) for state, numbers in row.tasks if numbers}


def _array(row: JobRow) -> ArrayForm | None:
    array = row.job.array
    if array is None:
        return None
    return ArrayForm(
        tasks=str(array.tasks),
        count=len(array.tasks),
        max_running=array.max_running,
        states=states_of(row),
    )


def measure_form(measure: Measure, warning: str = "") -> MeasureForm:
    """Return measurements in common units."""
    energy_wh, mean = measure.energy_wh, measure.mean_percent
    return MeasureForm(
        energy_wh=None if energy_wh is None else round(energy_wh, 3),
        utilisation_percent=None if mean is None else round(mean, 1),
        peak_utilisation_percent=None if mean is None else measure.peak_percent,
        peak_memory_mb=measure.peak_memory_mb,
        warning=warning,
    )


def attempt_form(row: AttemptRow, measured: AttemptMeasure | None = None) -> AttemptForm:
    """Return an attempt that has ended."""
    return form_of(
        AttemptForm,
        row,
        id=row.allocation_id,
        started_at=write_time(row.start_ms),
        ended_at=write_time(row.end_ms),
        allocation=places(row.placements, row.task),
        measured=None if measured is None else measure_form(measured.measure, measured.warning),
    )


def task_form(row: TaskRow) -> ArrayTask:
    """Return one array task."""
    return form_of(
        ArrayTask,
        row,
        id=f"{row.job_id}_{row.task}",
        started_at=write_time(row.start_ms),
        ended_at=write_time(row.end_ms),
    )
