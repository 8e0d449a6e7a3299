"""What if: how expected starts move if the cluster or its rules change, or if a job is submitted.

The production engine answers on a copy of the state, in a process of its own. Nothing is changed
and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from gpu_scheduler.api.context import Context, expect_admin
from gpu_scheduler.api.expected_times import FAILED, UNKNOWN_RUN_TIME, obstacle_of_new
from gpu_scheduler.api.http.openapi import Router
from gpu_scheduler.api.http.request import JSON, Request, Response, decode, json_response
from gpu_scheduler.api.planning.planner import MOST_WAITING, question_of
from gpu_scheduler.api.planning.starts import PlannedStarts
from gpu_scheduler.api.routes.plan import PlannedPlace, job_ids, places_of
from gpu_scheduler.api.routes.reservations import ReservationRequest, ReservedGpus, read_reservation
from gpu_scheduler.api.routes.submit import reader_for, submit_message
from gpu_scheduler.control.messages import SubmitAll
from gpu_scheduler.control.scheduling.reservation_commands import checked_wish
from gpu_scheduler.engine.forecast import Foresight
from gpu_scheduler.engine.what_if import Answer, Changes, Question, other_policy
from gpu_scheduler.model.errors import InvalidRequest, SchedulerError, UnknownThing
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.wire.jobs import JobRequest
from gpu_scheduler.wire.times import write_time

MOST_JOBS = 8
MOST_ADDED = 1_000
MOST_MOVED = 100
"""So many starts that move are listed, those that move most."""
MOST_OWNERS = 100
HOUR_MS = 3_600_000

Name = Annotated[str, Meta(min_length=1, max_length=256)]


class AddedNodes(Struct, forbid_unknown_fields=True):
    """Empty nodes with the hardware, rack and labels of the node `like`."""

    count: Annotated[int, Meta(ge=1, le=MOST_ADDED)]
    like: Name


class SupposedQuota(Struct, forbid_unknown_fields=True):
    """The GPU quota of a tenant; null is no limit."""

    tenant_id: Name
    max_gpus: Annotated[float, Meta(ge=0, le=1_000_000)] | None


class WhatIfRequest(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Either jobs, each supposed to be submitted alone, or changes of the cluster, all at once.

    Changes are for admins: nodes that drain (their jobs run to their end), nodes that are added, a
    reservation, GPU quotas of tenants, another policy.
    """

    jobs: Annotated[list[JobRequest], Meta(max_length=MOST_JOBS)] = []
    drain_nodes: Annotated[list[Name], Meta(max_length=MOST_ADDED)] = []
    add_nodes: AddedNodes | None = None
    reservation: ReservationRequest | None = None
    quotas: Annotated[list[SupposedQuota], Meta(max_length=100)] = []
    policy: Annotated[str, Meta(max_length=64)] = ""


class MovedStart(Struct):
    """A waiting job whose expected start moves by `seconds` (later: positive).

    Without one of the starts (null) `seconds` is null: the job gets an expected start, or loses it.
    With `is_guess` a start depends on jobs of unknown run time.
    """

    job_id: str
    user: str
    tenant_id: str
    gpus: float
    before: str | None
    after: str | None
    seconds: float | None
    is_guess: bool


class OwnerEffect(Struct):
    """The waiting jobs of a user: how many start earlier and later, and by how much in all."""

    user: str
    tenant_id: str
    earlier: int
    later: int
    gained_seconds: float
    lost_seconds: float


class Effect(Struct):
    """How the expected starts of waiting jobs move.

    Jobs with an expected start before and after are `compared`; `started` only get one, `stranded`
    lose it. `moved` lists the starts that move most, `owners` the users, the largest loss first.
    """

    compared: int
    earlier: int
    later: int
    started: int
    stranded: int
    gained_seconds: float
    lost_seconds: float
    moved: list[MovedStart]
    owners: list[OwnerEffect]


class SupposedJob(Struct):
    """The answer for one job of the request, in its order.

    With an `error` (and its `code`) the job would be rejected. `start_unknown` and `end_unknown`
    say why a time is missing; with `depends_on` a start is a guess, because nothing says how long
    these jobs run. `cost` is that of the GPUs until the expected end. `effect` is on other jobs.
    Expected starts have ranges, limits and a basis as in an explanation.
    """

    error: str = ""
    code: str = ""
    expected_start: str | None = None
    start_unknown: str = ""
    depends_on: list[str] = []
    expected_end: str | None = None
    end_unknown: str = ""
    latest_end: str | None = None
    gpus: float = 0
    cost: float | None = None
    places: list[PlannedPlace] = []
    effect: Effect | None = None
    expected_start_earliest: str | None = None
    expected_start_latest: str | None = None
    expected_start_limit: str | None = None
    expected_start_after: str | None = None
    expected_start_basis: str = ""


class WhatIfForm(Struct):
    """The answer. `effect` and `reserved` are those of the changes, `jobs` those of the jobs.

    `waiting` jobs could start. `cut` says what is missing, and why.
    """

    made_at: str | None
    waiting: int
    currency: str
    effect: Effect | None
    reserved: list[ReservedGpus]
    jobs: list[SupposedJob]
    cut: list[str]


router = Router("plan")


@router.operation(
    "POST",
    "/what-if",
    name="what_if",
    body=WhatIfRequest,
    response=WhatIfForm,
    errors=(403, 404, 409, 413, 415, 422, 503),
    example={"jobs": [{"command": ["python", "train.py"], "gpu_count": 4}]},
)
async def ask_what_if(context: Context, request: Request) -> Response:
    """How expected starts move if jobs are submitted, or (for admins) the cluster changes."""
    request.expect_media(JSON)
    context.parse_query(request)
    body = decode(WhatIfRequest, await request.body(context.settings.bounds.body_bytes))
    changes = _read_changes(context, request, body)
    if bool(body.jobs) == (changes is not None):
        raise InvalidRequest(
            "give either jobs, or changes: drain_nodes, add_nodes, reservation, quotas or policy"
        )
    with context.what_ifs.hold(request.caller.user):
        forms, jobs = await _read_jobs(context, request, body.jobs)
        state = context.state
        now_ms = context.service.now_ms()
        question = question_of(state, now_ms, jobs=jobs, changes=changes)
        waiting = len(state.cluster.queue)
        answer = await context.planner.ask(question)
    if answer.error is not None:
        raise answer.error
    accepted = [form for form in forms if not form.error]
    starts = PlannedStarts(context.explainer, question, request.caller)
    for place, form in enumerate(accepted):
        _fill_in(context, form, question, answer, place, starts)
    return json_response(
        WhatIfForm(
            made_at=write_time(now_ms),
            waiting=waiting,
            currency=context.settings.prices.at(now_ms).currency,
            effect=None if answer.changed is None else _effect(question, answer, answer.changed),
            reserved=[ReservedGpus(node, list(indices)) for node, indices in answer.reserved],
            jobs=forms,
            cut=_cuts(question, answer, waiting),
        )
    )


def _read_changes(context: Context, request: Request, body: WhatIfRequest) -> Changes | None:
    """Return the supposed changes, checked; None without any."""
    if not (body.drain_nodes or body.add_nodes or body.reservation or body.quotas or body.policy):
        return None
    expect_admin(request.caller, "ask what a change of the cluster would do")
    state = context.state
    nodes = list(body.drain_nodes)
    nodes += [body.add_nodes.like] if body.add_nodes else []
    for node_id in nodes:
        if node_id not in state.cluster.index.by_id:
            raise UnknownThing(f"node '{node_id}' is not known; GET /nodes lists all")
    if body.policy:
        other_policy(state.policy, body.policy)
    wish = None
    if body.reservation is not None:
        tenant = context.resolve_tenant(body.reservation.tenant_id)
        wish = read_reservation(body.reservation, tenant, context.service.calendar_ms())
        wish = checked_wish(state, wish, context.service.now_ms())
    return Changes(
        drained_nodes=tuple(dict.fromkeys(body.drain_nodes)),
        added_nodes=body.add_nodes.count if body.add_nodes else 0,
        added_like=body.add_nodes.like if body.add_nodes else "",
        reservation=wish,
        gpu_quotas=tuple(
            (
                context.resolve_tenant(quota.tenant_id),
                None if quota.max_gpus is None else round(quota.max_gpus * WHOLE_MILLI),
            )
            for quota in body.quotas
        ),
        policy=body.policy,
    )


async def _read_jobs(
    context: Context, request: Request, jobs: Sequence[JobRequest]
) -> tuple[list[SupposedJob], list[Job]]:
    """Check each job like a submission; return a form for each, and the jobs to be accepted."""
    forms: list[SupposedJob] = []
    accepted: list[Job] = []
    for job in jobs:
        form = SupposedJob()
        forms.append(form)
        try:
            message = submit_message(reader_for(context, request.caller).read(job))
            outcome = await context.service.apply(
                SubmitAll((message,), dry_run=True), request.caller
            )
        except SchedulerError as error:
            form.error, form.code = str(error), error.code
        else:
            accepted.append(outcome.jobs[0])
    return forms, accepted


def _fill_in(
    context: Context,
    form: SupposedJob,
    question: Question,
    answer: Answer,
    place: int,
    starts: PlannedStarts,
) -> None:
    """Fill in what an accepted job may expect."""
    waiting, found = question.jobs[place], answer.with_job[place]
    job, number = waiting.job, waiting.job.number
    form.gpus = job.gpu_milli / WHOLE_MILLI
    is_guess = number in question.guesses
    if job.service:
        form.end_unknown = "a service runs until it is deleted"
    elif is_guess:
        form.end_unknown = f"it {UNKNOWN_RUN_TIME}; give --time or --estimate"
    left_ms = max(1, waiting.expected_ms - waiting.attained_ms)
    limit_ms = job.max_runtime_ms or question.policy.default_limit_ms
    if not form.end_unknown:
        form.cost = _cost(context, question, found, waiting.job, left_ms)
    obstacle = obstacle_of_new(context.explainer, job)
    if obstacle is not None:
        # It would not queue at once, so it has no place in the forecast.
        form.expected_start, form.start_unknown = write_time(obstacle.at_ms), obstacle.why_not
        if obstacle.at_ms is not None and not form.end_unknown:
            form.expected_end = write_time(obstacle.at_ms + left_ms)
        return
    form.effect = _effect(question, answer, found)
    start_ms = found.starts.get(number)
    if start_ms is None and found.failed_at is not None:
        form.start_unknown = FAILED
        return
    if start_ms is None:
        form.start_unknown = (
            "no job that is expected to end frees enough for it"
            if found.is_whole
            else "the forecast ran out of time before it started"
        )
        return
    form.expected_start = write_time(start_ms)
    start = starts.fill_in(form, job, "forecast", found, answer.limit_starts)
    form.depends_on = job_ids(found.guesses.get(number, ()), _jobs_by_number(question).get)
    form.places = [
        one
        for run in found.runs or ()
        if run.number == number and run.start_ms == start_ms
        for one in places_of(run.placements)
    ]
    if not job.service:
        form.latest_end = write_time(start_ms + limit_ms)
    if not form.end_unknown:
        form.expected_end = write_time((start.at_ms or start_ms) + left_ms)


def _cost(
    context: Context, question: Question, found: Foresight, job: Job, run_ms: int
) -> float | None:
    """The cost of the GPUs of a job, all its tasks, where it is placed; None without a place."""
    prices = context.settings.prices.at(question.now_ms)
    models = {
        (node.id, device.index): device.model
        for node in question.snapshot.nodes
        for device in node.devices
    }
    run = next((run for run in found.runs or () if run.number == job.number), None)
    if run is None:
        return None
    micro = 0
    for placement in run.placements:
        for share in placement.devices:
            try:
                price = prices.of_gpu(models.get((placement.node_id, share.index), ""))
            except UnknownThing:
                return None
            micro += price * share.share_milli * run_ms // (WHOLE_MILLI * HOUR_MS)
    return micro * job.task_count / 10**6


def _jobs_by_number(question: Question) -> dict[int, Job]:
    snapshot = question.snapshot
    jobs = {running.job.number: running.job for running in snapshot.running}
    jobs |= {waiting.job.number: waiting.job for waiting in snapshot.waiting}
    return jobs


def _effect(question: Question, answer: Answer, changed: Foresight) -> Effect:
    """Compare the expected starts of the waiting jobs, before and after."""
    base = answer.base
    effect = Effect(0, 0, 0, 0, 0, 0.0, 0.0, [], [])
    owners: dict[tuple[str, str], OwnerEffect] = {}
    for waiting in question.snapshot.waiting:
        job = waiting.job
        before, after = base.starts.get(job.number), changed.starts.get(job.number)
        if before == after:
            effect.compared += before is not None
            continue
        if before is None or after is None:
            # Only a roll-out that came to its end shows that a job has no expected start.
            if not (base if before is None else changed).is_whole:
                continue
            seconds = None
            effect.started += before is None
            effect.stranded += after is None
        else:
            seconds = (after - before) / 1000
            effect.compared += 1
            _count(effect, seconds)
            key = (job.tenant, job.user)
            if key not in owners:
                owners[key] = OwnerEffect(job.user, job.tenant, 0, 0, 0.0, 0.0)
            _count(owners[key], seconds)
        effect.moved.append(
            MovedStart(
                job_id=job.id,
                user=job.user,
                tenant_id=job.tenant,
                gpus=job.gpu_milli / WHOLE_MILLI,
                before=write_time(before),
                after=write_time(after),
                seconds=seconds,
                is_guess=bool(base.guesses.get(job.number) or changed.guesses.get(job.number)),
            )
        )
    # Those without a start before or after first: they move most.
    effect.moved.sort(key=lambda one: -abs(float("inf") if one.seconds is None else one.seconds))
    del effect.moved[MOST_MOVED:]
    effect.owners = sorted(
        owners.values(), key=lambda one: (one.gained_seconds - one.lost_seconds, one.user)
    )[:MOST_OWNERS]
    return effect


def _count(effect: Effect | OwnerEffect, seconds: float) -> None:
    """Count one start that moves."""
    if seconds < 0:
        effect.earlier += 1
        effect.gained_seconds -= seconds
    else:
        effect.later += 1
        effect.lost_seconds += seconds


def _cuts(question: Question, answer: Answer, waiting: int) -> list[str]:
    """Say where the roll-outs were cut."""
    cut = []
    considered = len(question.snapshot.waiting)
    if waiting > considered:
        cut.append(f"only the first {MOST_WAITING} of {waiting} waiting jobs were considered")
    further = [answer.changed] if answer.changed is not None else answer.with_job
    if answer.traces:
        cut.append("an internal error ended a forecast early; the server's log has the trace")
    late = [one for one in (answer.base, *further) if not one.is_whole and one.failed_at is None]
    if late:
        until = write_time(min(one.reached_ms for one in late))
        cut.append(f"the time ran out: starts after {until} were not compared")
    return cut
