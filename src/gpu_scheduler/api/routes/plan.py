"""The plan: what ran, runs, is reserved and is forecast on every GPU, and advance reservations.

An answer is bounded: by nodes (a page at a time), by a time window and by a number of runs. It says
where it was cut. Every caller sees which jobs hold which GPUs and until when, as in the list of
GPUs; names of jobs, and who ran what has ended, are for those who may see the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from msgspec import Struct

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.openapi import Parameter, Router, integer_parameter
from gpu_scheduler.api.http.request import Request, Response, json_response
from gpu_scheduler.api.planning.planner import MOST_WAITING, Forecast
from gpu_scheduler.api.planning.starts import PlannedStarts
from gpu_scheduler.api.routes.cluster import natural_key, node_resources
from gpu_scheduler.api.routes.reports import PAGE, job_rows
from gpu_scheduler.api.routes.reservations import ReservationForm, write_reservation
from gpu_scheduler.engine.forecast import ForecastRun
from gpu_scheduler.model.errors import UnknownThing
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import Job, JobState, display_name
from gpu_scheduler.model.node import Node, NodeState
from gpu_scheduler.model.plan import Placement
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.service import BEYOND_MS
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import AttemptRow, JobRow
from gpu_scheduler.wire.jobs import read_job_name
from gpu_scheduler.wire.times import write_time

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
MOST_RUNS = 5_000
"""So many runs are in one answer, and as many ended attempts are read for it."""
MOST_NAMED = 20
"""So many jobs of unknown run time are named for one start."""
MOST_NODES = 200
NODES = 32
HOURS_BACK, MOST_HOURS_BACK = 6, 168
HOURS_AHEAD, MOST_HOURS_AHEAD = 24, 720


class PlannedGpu(Struct):
    """A GPU of the plan."""

    index: int
    model: str


class PlannedNode(Struct):
    """A node of the plan; `state` is online, cordoned, draining, suspect, lost or dead."""

    id: str
    rack: str
    state: str
    takes_work: bool
    gpus: list[PlannedGpu]


class PlannedPlace(Struct):
    """The GPUs that a run holds on one node; `shares` are those of the `gpu_ids`, 1 is whole."""

    node: str
    gpu_ids: list[int]
    shares: list[float]


class PlannedRun(Struct):
    """A job, or a task of an array, on its GPUs from `start` to `end`.

    `kind` is past (it ended), running, reserved (a start that later jobs do not delay) or forecast.
    The `end` of the last three is expected; it is null if the job runs until it is stopped, and
    with `end_unknown` it is a guess, because nothing says how long the job runs. `latest_end` is
    the end by the time limit. `depends_on` are the jobs of unknown run time on whose ends the start
    depends. Without a `job_id` it is the ended job of another user.

    The first run of a waiting job has an `expected_start` as in an explanation: half of such jobs
    start before it, four in five from `expected_start_earliest` to `expected_start_latest`. `start`
    is the forecast without this experience: only so do the runs on a GPU not overlap.
    """

    kind: str
    job_id: str
    task: int | None
    name: str
    user: str
    tenant_id: str
    state: str
    start: str | None
    end: str | None
    latest_end: str | None
    end_unknown: bool
    depends_on: list[str]
    places: list[PlannedPlace]
    expected_start: str | None = None
    expected_start_earliest: str | None = None
    expected_start_latest: str | None = None
    expected_start_limit: str | None = None
    expected_start_after: str | None = None
    expected_start_basis: str = ""


class PlanForm(Struct):
    """The plan of some nodes, from `begin` to `end`; the forecast was made at `made_at`.

    `next_node` is the parameter `after` of the next page of nodes; it is empty on the last one.
    `waiting` jobs could start; of those, `forecast` have an expected start. `cut` says what is
    missing, and why. `whole` tells whether the forecast came to its end: a waiting job without an
    expected start then gets none from any expected end.
    """

    made_at: str | None
    begin: str | None
    end: str | None
    nodes: list[PlannedNode]
    next_node: str
    runs: list[PlannedRun]
    reservations: list[ReservationForm]
    waiting: int
    forecast: int
    whole: bool
    cut: list[str]


@dataclass(frozen=True, slots=True)
class _Window:
    """What an answer covers: a time, and nodes by id."""

    from_ms: int
    until_ms: int
    nodes: Collection[str]

    def covers(self, start_ms: int, end_ms: int | None, placements: Iterable[Placement]) -> bool:
        """Whether a run is inside, at least in part."""
        return (
            start_ms < self.until_ms
            and (end_ms is None or end_ms > self.from_ms)
            and any(placement.node_id in self.nodes for placement in placements)
        )


router = Router("plan")


@router.operation(
    "GET",
    "/plan",
    response=PlanForm,
    query=(
        Parameter(name="after", description="Begin behind this node; `next_node` of a page."),
        Parameter(name="job", description="Only the nodes of this job, and of what is before it."),
        integer_parameter("limit", f"Nodes in the answer, {NODES} by default.", most=MOST_NODES),
        integer_parameter(
            "hours_back", f"Hours of the past, {HOURS_BACK} by default.", most=MOST_HOURS_BACK
        ),
        integer_parameter(
            "hours_ahead",
            f"Hours of the future, {HOURS_AHEAD} by default.",
            most=MOST_HOURS_AHEAD,
        ),
    ),
    errors=(404, 503),
)
async def get_plan(context: Context, request: Request) -> Response:
    """What ran, runs, is reserved and is forecast on every GPU, with expected ends."""
    query = context.parse_query(request, "after", "job", "limit", "hours_back", "hours_ahead")
    limit = query.number("limit", NODES, least=1, most=MOST_NODES)
    back = query.number("hours_back", HOURS_BACK, most=MOST_HOURS_BACK)
    ahead = query.number("hours_ahead", HOURS_AHEAD, least=1, most=MOST_HOURS_AHEAD)
    after, wanted = query.text("after"), query.text("job")
    number = _known_number(context, wanted) if wanted else 0
    forecast = await context.planner.forecast()
    now_ms = forecast.question.now_ms
    nodes = [resources.node for resources in node_resources(context)]
    if wanted:
        held = _nodes_of(forecast, number)
        nodes = [node for node in nodes if node.id in held]
    elif after:
        nodes = [node for node in nodes if natural_key(node.id) > natural_key(after)]
    shown, rest = nodes[:limit], nodes[limit:]
    window = _Window(now_ms - back * HOUR_MS, now_ms + ahead * HOUR_MS, {node.id for node in shown})
    past, cut = await asyncio.to_thread(
        _past_runs, context.service.store, window, now_ms, request.caller
    )
    starts = PlannedStarts(context.explainer, forecast.question, request.caller)
    runs = [*_future_runs(forecast, window, request.caller, starts), *reversed(past)]
    if len(runs) > MOST_RUNS:
        cut.append(f"{MOST_RUNS} of {len(runs)} runs are shown; ask for fewer nodes or hours")
        del runs[MOST_RUNS:]
    windows = await asyncio.to_thread(context.service.store.advance_reservations)
    calendar_ms = context.service.calendar_ms()
    offset_ms = calendar_ms - context.service.now_ms()
    reservations = [
        write_reservation(each, calendar_ms)
        for each in windows
        if each.over_ms is None
        and each.overlaps(window.from_ms + offset_ms, window.until_ms + offset_ms)
        and any(node in window.nodes for node, _ in each.devices)
    ]
    return json_response(
        PlanForm(
            made_at=write_time(now_ms),
            begin=write_time(window.from_ms),
            end=write_time(window.until_ms),
            nodes=[_node_form(node) for node in shown],
            next_node=shown[-1].id if rest and shown else "",
            runs=runs,
            reservations=reservations,
            waiting=forecast.waiting,
            forecast=len(forecast.answer.base.starts),
            whole=forecast.answer.base.is_whole,
            cut=[*cut, *cuts_of(forecast)],
        )
    )


def cuts_of(forecast: Forecast) -> list[str]:
    """Say where a forecast was cut."""
    cut = []
    base = forecast.answer.base
    considered = len(forecast.question.snapshot.waiting)
    if forecast.waiting > considered:
        cut.append(
            f"only the first {MOST_WAITING} of {forecast.waiting} waiting jobs are in the forecast"
        )
    if base.failed_at is not None:
        cut.append("an internal error ended the forecast early; the server's log has the trace")
    elif not base.is_whole and len(base.starts) < considered:
        cut.append(
            f"the forecast ran out of time at {write_time(base.reached_ms)}; "
            f"{considered - len(base.starts)} waiting jobs start later or were not reached"
        )
    return cut


def _known_number(context: Context, wanted: str) -> int:
    """The number of a job that waits or runs."""
    job_id, _ = read_job_name(wanted)
    record = context.state.jobs.get(job_id)
    if record is None:
        raise UnknownThing(f"{display_name(job_id)} is not known, or it has ended")
    return record.job.number


def _nodes_of(forecast: Forecast, number: int) -> set[str]:
    """The nodes on which a job runs or will run."""
    placements = [
        placement
        for running in forecast.question.snapshot.running
        if running.job.number == number
        for placement in running.allocation.placements
    ]
    placements += [
        placement
        for run in forecast.answer.base.runs or ()
        if run.number == number
        for placement in run.placements
    ]
    return {placement.node_id for placement in placements}


def _node_form(node: Node) -> PlannedNode:
    return PlannedNode(
        id=node.id,
        rack=node.rack,
        state=node.state.value if node.closed is None else _closed_state(node),
        takes_work=node.takes_work,
        gpus=[PlannedGpu(device.index, device.model) for device in node.devices],
    )


def _closed_state(node: Node) -> str:
    if node.state is not NodeState.ONLINE or node.closed is None:
        return node.state.value
    return "draining" if node.closed.drains else "cordoned"


def places_of(placements: Iterable[Placement]) -> list[PlannedPlace]:
    """Return the places of a run that hold GPUs."""
    return [
        PlannedPlace(
            node=placement.node_id,
            gpu_ids=[share.index for share in placement.devices],
            shares=[share.share_milli / WHOLE_MILLI for share in placement.devices],
        )
        for placement in placements
        if placement.devices
    ]


# The past


def _past_runs(
    store: Store, window: _Window, now_ms: int, caller: Caller
) -> tuple[list[PlannedRun], list[str]]:
    """Return the ended attempts in the window, and what is missing of them."""
    rows, begin_ms = _ended(store, window.from_ms, now_ms)
    cut = []
    if begin_ms > window.from_ms:
        cut.append(f"so much ran that the past is shown from {write_time(begin_ms)} on")
    # What ended after the forecast was made still runs in it.
    rows = [
        row
        for row in rows
        if row.end_ms <= now_ms and window.covers(row.start_ms, row.end_ms, row.placements)
    ]
    ids = sorted({row.job_id for row in rows})
    jobs: dict[str, JobRow] = {}
    for start in range(0, len(ids), PAGE):
        jobs |= job_rows(store, ids[start : start + PAGE])
    runs = []
    for row in rows:
        job = jobs[row.job_id].job if row.job_id in jobs else None
        shows = job is not None and caller.may_see(job.user, job.tenant)
        runs.append(_past_run(row, job if shows else None))
    return [run for run in runs if run.places], cut


def _ended(store: Store, from_ms: int, now_ms: int) -> tuple[list[AttemptRow], int]:
    """Return the attempts that ended since then; since later if there are too many."""
    while True:
        rows = store.attempts_between(from_ms, now_ms, limit=MOST_RUNS + 1)
        if len(rows) <= MOST_RUNS:
            return rows, from_ms
        if now_ms - from_ms < MINUTE_MS:
            return rows[:MOST_RUNS], from_ms
        from_ms = now_ms - (now_ms - from_ms) // 4


def _past_run(row: AttemptRow, job: Job | None) -> PlannedRun:
    return PlannedRun(
        kind="past",
        job_id="" if job is None else row.job_id,
        task=None if job is None else row.task,
        name="" if job is None else job.name,
        user="" if job is None else job.user,
        tenant_id="" if job is None else job.tenant,
        state=row.state.value if job is not None else "",
        start=write_time(row.start_ms),
        end=write_time(row.end_ms),
        latest_end=None,
        end_unknown=False,
        depends_on=[],
        places=places_of(row.placements),
    )


# Present and future


def _future_runs(
    forecast: Forecast, window: _Window, caller: Caller, starts: PlannedStarts
) -> Iterator[PlannedRun]:
    """Yield what runs, what is reserved, and what is forecast."""
    question, base = forecast.question, forecast.answer.base
    jobs = {waiting.job.number: waiting.job for waiting in question.snapshot.waiting}
    jobs |= {running.job.number: running.job for running in question.snapshot.running}
    for running in question.snapshot.running:
        allocation, job = running.allocation, running.job
        is_endless = running.expected_end_ms - question.now_ms >= BEYOND_MS
        end_ms = None if is_endless else max(running.expected_end_ms, question.now_ms)
        if window.covers(allocation.start_ms, end_ms, allocation.placements):
            yield PlannedRun(
                kind="running",
                job_id=job.id,
                task=allocation.task,
                name=_name(job, caller),
                user=job.user,
                tenant_id=job.tenant,
                state=JobState.RUNNING.value,
                start=write_time(allocation.start_ms),
                end=write_time(end_ms),
                latest_end=_latest(running.limit_end_ms, question.now_ms),
                end_unknown=job.number in question.guesses,
                depends_on=[],
                places=places_of(allocation.placements),
            )
    reserved = {each.job_number: each for each in question.snapshot.reservations}
    seen: set[int] = set()

    def planned(kind: str, run: ForecastRun, guesses: frozenset[int]) -> PlannedRun:
        job = jobs[run.number]
        limit_ms = job.max_runtime_ms or question.policy.default_limit_ms
        return PlannedRun(
            kind=kind,
            job_id=job.id,
            task=run.task,
            name=_name(job, caller),
            user=job.user,
            tenant_id=job.tenant,
            state=JobState.PENDING.value,
            start=write_time(run.start_ms),
            end=write_time(run.end_ms),
            latest_end=None if job.service else write_time(run.start_ms + limit_ms),
            end_unknown=run.number in question.guesses,
            depends_on=job_ids(guesses, jobs.get),
            places=places_of(run.placements),
        )

    for run in base.runs or ():
        is_first = run.number not in seen
        seen.add(run.number)
        if window.covers(run.start_ms, run.end_ms, run.placements):
            kind = "reserved" if is_first and run.number in reserved else "forecast"
            form = planned(kind, run, base.guesses.get(run.number, frozenset()))
            if is_first:
                starts.fill_in(form, jobs[run.number], kind, base, forecast.answer.limit_starts)
            yield form
    for number, kept in sorted(reserved.items()):
        if number in seen or number not in jobs:
            continue
        # The forecast did not reach it.
        if window.covers(kept.at_ms, kept.until_ms, kept.placements):
            run = ForecastRun(number, None, kept.at_ms, kept.until_ms, kept.placements)
            yield planned("reserved", run, frozenset())


def job_ids(numbers: Iterable[int], job_of: Callable[[int], Job | None]) -> list[str]:
    """Return the ids of jobs by their numbers, a bounded number of them."""
    found = [job.id for number in sorted(numbers) if (job := job_of(number)) is not None]
    return found[:MOST_NAMED]


def _name(job: Job, caller: Caller) -> str:
    return job.name if caller.may_see(job.user, job.tenant) else ""


def _latest(limit_end_ms: int, now_ms: int) -> str | None:
    return None if limit_end_ms - now_ms >= BEYOND_MS else write_time(limit_end_ms)
