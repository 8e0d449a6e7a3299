"""Why a job waits, its position in the queue, and when it is expected to start and end.

Reasons come from the last plan. A forecast is computed on demand on the scheduling loop. So it has
a time limit, is cached until the state changes, and is not computed again before ten times its own
duration has passed. A time is given only with a basis (a reservation, a forecast); otherwise the
reason is given why it is unknown: no time is better than a wrong one.

An error of the engine costs the answer for which it was computed, and is logged; it stops neither
the request that lists other jobs as well, nor the control loop (`fails_alone`).
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

import structlog

from gpu_scheduler.api.interfaces import Service
from gpu_scheduler.control.gang_commit import preparing
from gpu_scheduler.control.job_record import JobRecord
from gpu_scheduler.control.jobs.attempt_progress import running_reason
from gpu_scheduler.control.nodes.lost_nodes import suspect_node_of
from gpu_scheduler.engine.arrivals import FIRST_NUMBER
from gpu_scheduler.engine.explain import explain
from gpu_scheduler.engine.fair_share import FairShare
from gpu_scheduler.engine.forecast import (
    MOST_GUESSES,
    Foresight,
    foresee,
    guesses_ahead,
    guesses_before,
    rough_start_ms,
)
from gpu_scheduler.engine.placement.capacity import open_room
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import Running, Waiting
from gpu_scheduler.model.errors import InternalError, SchedulerError
from gpu_scheduler.model.job import Dependency, Job, display_name
from gpu_scheduler.model.node import Node, NodeState
from gpu_scheduler.model.plan import Plan, Reservation
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.service import BEYOND_MS, ENDLESS_MS
from gpu_scheduler.predict.interface import (
    Predictor,
    RunTimeBasis,
    forecast_run_time,
    is_guess,
    run_time,
)

MOST_FORECAST_S = 0.1
"""A forecast is stopped after this time; then only reservations give start times."""
LEAST_PAUSE_S = 0.05
PAUSE_FACTOR = 10
PAUSE_AFTER_FAILURE_S = 10.0
"""A forecast that failed is not computed again before."""
SCREEN_FACTOR = 50
"""The pause after a forecast for a live screen, as a multiple of its duration."""
RESERVED = "reserved"
FORECAST = "forecast"
ROUGH = "rough"
KNOWN = "known"
DEPENDENCY = "dependency"
STEPS = 5
"""An expected run time is kept while the logarithm of the time a job has run grows by 1 / STEPS."""
MOST_RUN_TIMES = 50_000
LONGEST_CHAIN = 20
"""How many dependencies in a row are followed."""
MOST_NAMED = 3
UNKNOWN_RUN_TIME = "has no time limit of its own and no history"
FAILED = "the forecast failed with an internal error; the server's log has the trace"
SELF_EXPLAINING = frozenset({ReasonCode.NO_NODES, ReasonCode.NODES_CLOSED, ReasonCode.NO_RUNNER})
"""Wait reasons that also explain why the start is unknown."""
_NO_JOBS: frozenset[int] = frozenset()
P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
log = structlog.get_logger("api")


def fails_alone(answer: A) -> Callable[[Callable[P, R]], Callable[P, R | A]]:
    """Answer so after an unexpected error, which is logged."""

    def decorate(function: Callable[P, R]) -> Callable[P, R | A]:
        @wraps(function)
        def guarded(*args: P.args, **named: P.kwargs) -> R | A:
            try:
                return function(*args, **named)
            except Exception as error:
                if isinstance(error, SchedulerError) and not isinstance(error, InternalError):
                    raise
                log.exception("explanation failed", function=function.__name__)
                return answer

        return guarded

    return decorate


class StartForecast(NamedTuple):
    """When a queued job is expected to start, and how certain that is.

    `guesses` are the jobs of unknown run time on whose ends the start depends. `is_never` means
    that no expected end frees enough for it: a node must come back, or an admin must act. `after`
    is the job whose end lets it start. `failed` means that the engine failed when it considered it.
    """

    start_ms: int | None
    is_reserved: bool = False
    guesses: frozenset[int] = _NO_JOBS
    is_never: bool = False
    after: Job | None = None
    failed: bool = False


NO_FORECAST = StartForecast(None)


class ExpectedTime(NamedTuple):
    """A time and its basis (one of the words above); or no time, and why it is unknown.

    A start may have a range, from `earliest_ms` to `latest_ms`, in which four in five starts fall.
    `forecast_ms` is the start before its calibration, and `after` the job whose end lets it start.
    """

    at_ms: int | None
    basis: str = ""
    why_not: str = ""
    forecast_ms: int | None = None
    earliest_ms: int | None = None
    latest_ms: int | None = None
    after: Job | None = None


UNKNOWN = ExpectedTime(None)
FAILED_TIME = ExpectedTime(None, "", FAILED)


class ExpectedTimes(NamedTuple):
    """The expected times of a new job, and its queue position if it would queue at once."""

    start: ExpectedTime
    end: ExpectedTime
    position: int | None


NO_STARTS: Mapping[int, ExpectedTime] = {}
NO_TIMES = ExpectedTimes(FAILED_TIME, FAILED_TIME, None)


@dataclass(frozen=True, slots=True)
class _Forecast:
    """A cached forecast, the version of the state it is based on, and until when it is fresh."""

    version: int
    fresh_until: float
    foresight: Foresight


class Explainer:
    """Explains the jobs of one service."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without a cached forecast."""
        self.service = service
        self.clock = clock
        self._forecast = _Forecast(-1, 0.0, Foresight())
        self._screen_after = 0.0
        self._trial_after = 0.0
        self._limits_after = 0.0
        self._limit_starts: dict[int, int] = {}
        self._run_times: dict[tuple[int, int], int] = {}

    @fails_alone(Reason(ReasonCode.UNEXPLAINED))
    def reason(self, job_id: str) -> Reason | None:
        """Return why a job does not run; None if it runs or has ended."""
        state = self.service.core.state
        record = state.jobs.get(job_id)
        if record is None:
            return None
        if not record.queued:
            return record.why() or running_reason(state, record) or preparing(state, record)
        return explain(state.cluster, self.service.last_plan or Plan(), record.job.number)

    def running_reason(self, job_id: str, task: int | None = None) -> Reason | None:
        """Return what to know of a job, or a task, that has its devices: a lost node, a stop."""
        state = self.service.core.state
        record = state.jobs.get(job_id)
        return None if record is None else running_reason(state, record, task)

    def suspect_node(self, job_id: str, task: int | None = None) -> Node | None:
        """Return the node of a job that sends no heartbeats but does not count as lost yet."""
        state = self.service.core.state
        record = state.jobs.get(job_id)
        return None if record is None else suspect_node_of(state, record, task)

    @fails_alone(None)
    def position(self, number: int) -> int | None:
        """Return the position of a queued job; 1 is the head of the queue."""
        cluster = self.service.core.state.cluster
        entry = cluster.queue.entries.get(number)
        return None if entry is None else _position(cluster, entry)

    def start_forecast(self, number: int) -> StartForecast:
        """Return when a queued job starts, by a forecast or else by its reservation.

        The time of a reservation rests on the run times that order the queue, which may come from
        unlike jobs; so it is shown only where the forecast does not reach.
        """
        cluster = self.service.core.state.cluster
        if number not in cluster.queue.entries:
            return NO_FORECAST
        cached = self._refresh(number)
        forecast = _start_in(cached.foresight, number)
        reservation = self._reservation(number)
        if reservation is not None:
            if forecast.start_ms is None or forecast.guesses:
                return self._reserved_start(reservation)
            return forecast._replace(is_reserved=True)
        # An older forecast says nothing about jobs that were queued later.
        is_old = cached.version != self.service.loop_metrics.messages
        return NO_FORECAST if is_old and forecast.is_never else forecast

    def expected_start_ms(self, number: int) -> int | None:
        """Return the expected start of a queued job, if it depends on no unknown run time."""
        forecast = self.start_forecast(number)
        return None if forecast.guesses else forecast.start_ms

    @fails_alone(NO_STARTS)
    def expected_starts(self, numbers: list[int]) -> dict[int, ExpectedTime]:
        """Return expected starts for a screen of jobs in queue order; may be slightly older."""
        cluster = self.service.core.state.cluster
        queued = [number for number in numbers if number in cluster.queue.entries]
        began = self.clock()
        foresight = self._forecast.foresight
        if queued and began >= self._screen_after:
            # The forecast for the last of them covers the others.
            foresight = self._refresh(queued[-1]).foresight
            ended = self.clock()
            self._screen_after = ended + SCREEN_FACTOR * (ended - began)
        now_ms = self.service.now_ms()
        starts: dict[int, ExpectedTime] = {}
        for number in queued:
            reservation = self._reservation(number)
            found = _start_in(foresight, number)
            if reservation is not None and (found.start_ms is None or found.guesses):
                found = self._reserved_start(reservation)
            if found.start_ms is not None and not found.guesses:
                basis = FORECAST if reservation is None else RESERVED
                starts[number] = self.ranged(max(found.start_ms, now_ms), basis)
        return starts

    def ranged(self, forecast_ms: int, basis: str) -> ExpectedTime:
        """Return a forecast start with the range that such forecasts have had."""
        return self.ranged_at(self.service.now_ms(), forecast_ms, basis)

    def ranged_at(self, now_ms: int, forecast_ms: int, basis: str) -> ExpectedTime:
        """Return a start that was forecast at this time, with its range.

        A job that is forecast to start at once needs no range.
        """
        if forecast_ms <= now_ms:
            return ExpectedTime(now_ms, basis, "", forecast_ms, now_ms, now_ms)
        ranges = self.service.core.state.start_ranges
        found = ranges.range_of(basis, forecast_ms - now_ms, now_ms)
        return ExpectedTime(
            now_ms + found.likely_ms,
            basis,
            forecast_ms=forecast_ms,
            earliest_ms=now_ms + found.earliest_ms,
            latest_ms=now_ms + found.latest_ms,
        )

    @fails_alone(None)
    def limit_start_ms(self, number: int) -> int | None:
        """Return the latest start of a queued job if all jobs before it use their limits.

        None if one of them has no end, or if this cannot be worked out in time.
        """
        state, now_ms = self.service.core.state, self.service.now_ms()
        if self.clock() >= self._limits_after and number in state.cluster.queue.entries:
            foresight, began = Foresight(), self.clock()
            foresee(
                state.cluster,
                now_ms,
                foresight,
                run_ms_of=lambda job, _ran_ms: state.cluster.limit_ms(job),
                until=number,
                is_late=lambda: self.clock() > began + MOST_FORECAST_S,
            )
            ended = self.clock()
            self._limits_after = ended + PAUSE_FACTOR * (ended - began)
            self._limit_starts = foresight.starts
        found = self._limit_starts.get(number)
        return None if found is None else max(found, now_ms)

    def forecast_end_ms(self) -> int:
        """Return how far the last forecast reached: jobs without a start in it start later."""
        return max(self._forecast.foresight.starts.values(), default=0)

    def forecast_if_queued(self, waiting: Waiting) -> tuple[StartForecast, int | None]:
        """Return when a new job would start if it were queued now, and its position.

        The queue stays unchanged. Frequent calls get the position only.
        """
        cluster = self.service.core.state.cluster
        number = waiting.job.number
        with cluster.supposed(waiting) as entry:
            position = _position(cluster, entry)
            if self.clock() < self._trial_after:
                return NO_FORECAST, position
            foresight, began, ended = self._roll_out(number)
            self._trial_after = ended + PAUSE_FACTOR * (ended - began)
        return _start_in(foresight, number), position

    def is_guess(self, job: Job, ran_ms: int = 0) -> bool:
        """Whether the total run time of a job that has run for `ran_ms` is unknown."""
        return not job.service and is_guess(self.service.core.state.predictor, job, ran_ms)

    def _reservation(self, number: int) -> Reservation | None:
        """Return the reservation of a job, unless its time has passed."""
        reservation = self.service.core.state.cluster.reservations.get(number)
        is_over = reservation is None or reservation.at_ms < self.service.now_ms()
        return None if is_over else reservation

    def _reserved_start(self, reservation: Reservation) -> StartForecast:
        now_ms = self.service.now_ms()
        cluster = self.service.core.state.cluster
        guesses = guesses_before(cluster, reservation, now_ms, self.is_guess)
        return StartForecast(max(reservation.at_ms, now_ms), is_reserved=True, guesses=guesses)

    def _refresh(self, number: int) -> _Forecast:
        """Return the cached forecast; compute it again if it is old and lacks this job."""
        cached = self._forecast
        version = self.service.loop_metrics.messages
        is_current = cached.version == version and (
            number in cached.foresight.starts or cached.foresight.is_whole
        )
        if not is_current and self.clock() >= cached.fresh_until:
            foresight, began, ended = self._roll_out(number)
            least_s = PAUSE_AFTER_FAILURE_S if foresight.failed_at is not None else LEAST_PAUSE_S
            pause = max(least_s, PAUSE_FACTOR * (ended - began))
            cached = self._forecast = _Forecast(version, ended + pause, foresight)
        return cached

    def _roll_out(self, number: int) -> tuple[Foresight, float, float]:
        """Forecast until a job starts, within the time limit; also when that began and ended."""
        began = self.clock()
        state, now_ms = self.service.core.state, self.service.now_ms()
        run_times = _RunTimes(self, now_ms, began + MOST_FORECAST_S)
        foresight = Foresight()
        # Starts found before the end of the time, or an error, are valid; all others are later.
        try:
            foresee(
                state.cluster,
                now_ms,
                foresight,
                run_ms_of=run_times,
                is_guess=self.is_guess,
                until=number,
                arrivals=state.recent_arrivals,
            )
        except _OutOfTime:
            foresight.failed_at = None
        except Exception:
            log.exception("forecast failed", job=foresight.failed_at)
        return foresight, began, self.clock()

    def run_ms(self, job: Job, ran_ms: int, now_ms: int) -> int:
        """Return the total run time that a forecast counts with for a job that ran for `ran_ms`.

        The prediction is kept until the job has run a fifth longer, or longer than predicted: with
        thousands of running jobs, new predictions would take longer than the forecast itself.
        """
        if job.service:
            return ENDLESS_MS
        key = job.number, round(math.log1p(ran_ms) * STEPS)
        found = self._run_times.get(key)
        if found is None or found <= ran_ms:
            predictor = self.service.core.state.predictor
            found = forecast_run_time(predictor, job, ran_ms, now_ms)
            if len(self._run_times) >= MOST_RUN_TIMES:
                self._run_times.clear()
            self._run_times[key] = found
        return found


def _start_in(foresight: Foresight, number: int) -> StartForecast:
    start_ms = foresight.starts.get(number)
    if start_ms is None:
        is_failed = foresight.failed_at in {0, number}
        return StartForecast(None, is_never=foresight.is_whole, failed=is_failed)
    guesses = foresight.guesses.get(number, _NO_JOBS)
    return StartForecast(start_ms, guesses=guesses, after=foresight.after.get(number))


def ran_so_far_ms(running: Running, now_ms: int) -> int:
    """Return how long it has run, with the progress it kept from earlier attempts."""
    return running.attained_ms + max(0, now_ms - running.allocation.start_ms)


class _OutOfTime(Exception):
    """The forecast has reached its time limit."""


class _RunTimes:
    """Expected run times of like jobs, which the forecast asks for at each start.

    Raising from there is a safe way to stop a forecast: no step is half done.
    """

    def __init__(self, explainer: Explainer, now_ms: int, deadline: float) -> None:
        """Forecast from this time on."""
        self._explainer = explainer
        self._now_ms = now_ms
        self._deadline = deadline
        self._entries = explainer.service.core.state.cluster.queue.entries

    def __call__(self, job: Job, ran_ms: int) -> int:
        """Return the total run time of a job that has run for `ran_ms`."""
        if self._explainer.clock() > self._deadline:
            raise _OutOfTime
        if job.number >= FIRST_NUMBER:
            return self._entries[job.number].waiting.expected_ms
        return self._explainer.run_ms(job, ran_ms, self._now_ms)


def _position(cluster: ClusterState, entry: Entry) -> int:
    """Count the jobs before it, by binary search in the queue of each account and shape."""
    standings = FairShare(cluster)
    value = entry.key + standings.penalty_ms(entry.group.key)
    before = 0
    for group in cluster.queue.groups.values():
        bound = (value - standings.penalty_ms(group.key), entry.number)
        before += sum(bisect_left(line, bound) for line in group.by_shape.values())
    return before + 1


def describe_reason(reason: Reason | None) -> tuple[str, str]:
    """Return the code of a reason and its text; empty without a reason."""
    if reason is None:
        return "", ""
    if reason.code is ReasonCode.NOT_EXAMINED:
        return reason.code.value, "waiting for its turn"
    return reason.code.value, str(reason)


# Expected times


@fails_alone(FAILED_TIME)
def expected_start(explainer: Explainer, job_id: str, depth: int = 0) -> ExpectedTime:
    """Return when a job that waits is expected to start."""
    state = explainer.service.core.state
    record = state.jobs.get(job_id)
    if record is None:
        return UNKNOWN
    if not record.queued:
        return _start_after_obstacles(explainer, record, depth)
    reason = explainer.reason(job_id)
    if reason is not None and reason.code is ReasonCode.BUDGET:
        renewed_ms = reason.get("turns_ms")
        return ExpectedTime(renewed_ms, KNOWN) if isinstance(renewed_ms, int) else UNKNOWN
    if reason is not None and reason.code in SELF_EXPLAINING:
        return UNKNOWN
    entry = state.cluster.queue.entries[record.job.number]
    return _queued_start(explainer, entry, explainer.start_forecast(entry.number))


def within_limits(start: ExpectedTime, limit_ms: int | None) -> ExpectedTime:
    """Return the start of a reserved job with no later end of its range than the limits allow.

    Later submissions do not delay a reservation; other jobs may be overtaken.
    """
    if start.basis != RESERVED or start.at_ms is None or start.latest_ms is None or not limit_ms:
        return start
    return start._replace(latest_ms=max(start.at_ms, min(start.latest_ms, limit_ms)))


@fails_alone(NO_TIMES)
def expected_times_of_new(explainer: Explainer, job: Job) -> ExpectedTimes:
    """Return when a job would start and end if it were submitted now."""
    state = explainer.service.core.state
    now_ms = explainer.service.now_ms()
    obstacle = obstacle_of_new(explainer, job)
    if obstacle is not None:
        end = UNKNOWN
        if explainer.is_guess(job):
            end = ExpectedTime(None, "", f"it {UNKNOWN_RUN_TIME}; give --time or --estimate")
        elif obstacle.at_ms is not None:
            end = ExpectedTime(obstacle.at_ms + state.predictor.expect(job, now_ms), obstacle.basis)
        return ExpectedTimes(obstacle, end, None)
    number = state.next_number
    waiting = Waiting(
        job=replace(job, id=f"job-{number}", number=number, submit_ms=now_ms),
        expected_ms=state.predictor.expect(job, now_ms),
        tasks=None if job.array is None else job.array.tasks,
        since_ms=now_ms,
    )
    forecast, position = explainer.forecast_if_queued(waiting)
    with state.cluster.supposed(waiting) as entry:
        start = _queued_start(explainer, entry, forecast)
        return ExpectedTimes(start, expected_queued_end(explainer, entry, start), position)


@fails_alone(FAILED_TIME)
def obstacle_of_new(explainer: Explainer, job: Job) -> ExpectedTime | None:
    """Return when a new job may queue that has a hold, a begin time or dependencies; else None."""
    if job.hold:
        return ExpectedTime(None, "", "it is held until it is released")
    found = []
    if job.begin_ms > explainer.service.calendar_ms():
        found.append(ExpectedTime(job.begin_ms, KNOWN))
    for dependency in job.dependencies:
        if dependency.job_id in explainer.service.core.state.jobs:
            end = _dependency_end(explainer, dependency.job_id, 0)
            if end.at_ms is None:
                return end
            found.append(ExpectedTime(end.at_ms, DEPENDENCY))
    return max(found, key=lambda one: one.at_ms or 0) if found else None


def _queued_start(explainer: Explainer, entry: Entry, forecast: StartForecast) -> ExpectedTime:
    """Return the expected start of a queued job: exact, rough, or why it is unknown."""
    cluster, now_ms = explainer.service.core.state.cluster, explainer.service.now_ms()
    if forecast.guesses:
        return ExpectedTime(None, "", _unknown_run_times(cluster, forecast.guesses))
    if forecast.start_ms is not None:
        basis = RESERVED if forecast.is_reserved else FORECAST
        return explainer.ranged(forecast.start_ms, basis)._replace(after=forecast.after)
    if forecast.failed:
        return FAILED_TIME
    if not open_room(cluster, entry.shape):
        return ExpectedTime(None, "", _too_few_nodes(entry))
    if forecast.is_never:
        return ExpectedTime(None, "", "no job that is expected to end frees enough for it")
    guesses = guesses_ahead(cluster, entry.number, now_ms, explainer.is_guess)
    if guesses:
        return ExpectedTime(None, "", _unknown_run_times(cluster, guesses, sampled=True))
    rough_ms = rough_start_ms(cluster, entry.number, now_ms)
    if rough_ms is None or rough_ms - now_ms >= BEYOND_MS:
        return UNKNOWN
    return explainer.ranged(max(rough_ms, explainer.forecast_end_ms()), ROUGH)


@fails_alone(FAILED_TIME)
def expected_queued_end(explainer: Explainer, entry: Entry, start: ExpectedTime) -> ExpectedTime:
    """Return when a queued job is expected to end if it starts at `start`."""
    waiting = entry.waiting
    if waiting.job.service:
        return ExpectedTime(None, "", "a service runs until it is deleted")
    if explainer.is_guess(waiting.job, waiting.attained_ms):
        return ExpectedTime(None, "", f"it {UNKNOWN_RUN_TIME}; give --time or --estimate")
    if start.at_ms is None:
        return UNKNOWN
    now_ms, attained_ms = explainer.service.now_ms(), waiting.attained_ms
    predictor = explainer.service.core.state.predictor
    total_ms = run_time(predictor, waiting.job, attained_ms, now_ms)[0]
    return ExpectedTime(start.at_ms + max(1, total_ms - attained_ms), start.basis)


@fails_alone(FAILED_TIME)
def expected_running_end(service: Service, running: Running) -> ExpectedTime:
    """Return when a running attempt is expected to end."""
    job = running.job
    if job.service:
        return ExpectedTime(None, "", "a service runs until it is deleted")
    by_id = service.core.state.cluster.index.by_id
    for placement in running.allocation.placements:
        resources = by_id.get(placement.node_id)
        if resources is not None and resources.node.state is NodeState.LOST:
            return ExpectedTime(None, "", "its node does not answer")
    now_ms = service.now_ms()
    predictor = service.core.state.predictor
    ran_ms = ran_so_far_ms(running, now_ms)
    if running.stopping:
        return ExpectedTime(max(now_ms, running.expected_end_ms), FORECAST)
    if is_guess(predictor, job, ran_ms):
        return ExpectedTime(None, "", f"it {UNKNOWN_RUN_TIME}")
    total_ms = run_time(predictor, job, ran_ms, now_ms)[0]
    return ExpectedTime(now_ms + max(0, total_ms - ran_ms), FORECAST)


@fails_alone("")
def describe_run_time(explainer: Explainer, job: Job) -> str:
    """Return what the run time of a job is based on, in words."""
    state = explainer.service.core.state
    running = [
        entry.running
        for entry in state.cluster.running.values()
        if entry.running.job.number == job.number
    ]
    now_ms = explainer.service.now_ms()
    return run_time_text(state.predictor, job, running[0] if running else None, now_ms)


def run_time_text(predictor: Predictor, job: Job, running: Running | None, now_ms: int) -> str:
    """Return what the run time of a job, which may be running, is based on, in words."""
    ran_ms = 0 if running is None else ran_so_far_ms(running, now_ms)
    return basis_text(run_time(predictor, job, ran_ms, now_ms)[1])


_WHOSE_RUNS = {
    "command": "of this command",
    "script": "of this script or program",
    "user": "of this user",
    "tenant": "of this tenant",
}


def basis_text(basis: RunTimeBasis) -> str:
    """Return what a run time is based on, in words."""
    if basis.kind == "estimate":
        return "the estimate given with it"
    if basis.kind == "model":
        return f"the model of run times, trained on {basis.runs} jobs"
    whose = _WHOSE_RUNS.get(basis.kind)
    if whose is None:
        return "nothing known: the limit"
    if not basis.runs:
        return f"it has run longer than all runs {whose}"
    return f"the last run {whose}" if basis.runs == 1 else f"the last {basis.runs} runs {whose}"


def _unknown_run_times(
    cluster: ClusterState, numbers: frozenset[int], *, sampled: bool = False
) -> str:
    """Name the jobs whose unknown run time makes a start time uncertain."""
    entries = cluster.queue.entries
    running = {
        entry.running.job.number: entry.running.job
        for entry in cluster.running.values()
        if entry.running.job.number in numbers
    }
    jobs: list[Job] = [
        entries[number].waiting.job if number in entries else running[number]
        for number in sorted(numbers)
        if number in entries or number in running
    ]
    if len(jobs) == 1:
        return f"{display_name(jobs[0].id)} comes before it and {UNKNOWN_RUN_TIME}"
    named = ", ".join(job.id.removeprefix("job-") for job in jobs[:MOST_NAMED])
    named += ", ..." if len(jobs) > MOST_NAMED else ""
    is_least = sampled or len(numbers) >= MOST_GUESSES
    count = f"{len(numbers)} or more" if is_least else str(len(numbers))
    return f"{count} jobs before it ({named}) have no time limits of their own and no history"


def _too_few_nodes(entry: Entry) -> str:
    """Explain that nodes or GPUs must come back before the job can start."""
    members = entry.shape.min_members
    if members == 1:
        return "no node that could run it accepts work now"
    rack = " in one rack" * entry.shape.same_rack
    return (
        f"the nodes that accept work now could not hold {members} members{rack} even if they were "
        "empty"
    )


def _start_after_obstacles(explainer: Explainer, record: JobRecord, depth: int) -> ExpectedTime:
    """Return the latest of all begin times, pauses and dependencies; unknown for a hold."""
    times_ms: list[int] = []
    basis = KNOWN
    for obstacle, reason in (record.waiting_on or {}).items():
        at_ms: int | None = None
        if isinstance(obstacle, Dependency):
            end = _dependency_end(explainer, obstacle.job_id, depth)
            if end.at_ms is None:
                return end
            at_ms = end.at_ms
            basis = DEPENDENCY
        else:
            value = reason.get("begin_ms") or reason.get("until_ms")
            at_ms = value if isinstance(value, int) else None
        if at_ms is None:
            return UNKNOWN
        times_ms.append(at_ms)
    return ExpectedTime(max(times_ms), basis) if times_ms else UNKNOWN


def _dependency_end(explainer: Explainer, job_id: str, depth: int) -> ExpectedTime:
    """Return when a job that another one depends on is expected to have ended."""
    service = explainer.service
    state = service.core.state
    record = state.jobs.get(job_id)
    if record is None or depth >= LONGEST_CHAIN:
        return UNKNOWN
    ends = [
        expected_running_end(service, state.cluster.running[task.allocation_id].running)
        for task in (record.only_task, *record.tasks.values())
        if task is not None and task.allocation_id in state.cluster.running
    ]
    unknown = [end for end in ends if end.at_ms is None]
    if unknown or explainer.is_guess(record.job):
        why = unknown[0].why_not.removeprefix("it ") if unknown else UNKNOWN_RUN_TIME
        return ExpectedTime(None, "", f"{display_name(job_id)}, which it waits for, {why}")
    if ends and not record.pending:
        return max(ends, key=lambda end: end.at_ms or 0)
    start = expected_start(explainer, job_id, depth + 1)
    if start.at_ms is None:
        return start
    expected_ms = record.expected_ms or state.predictor.expect(record.job, service.now_ms())
    return ExpectedTime(start.at_ms + max(1, expected_ms), DEPENDENCY)
