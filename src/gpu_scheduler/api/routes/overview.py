"""What a live screen needs, in one answer: the GPUs, the numbers, and a window onto the queue.

Only the jobs of the window are read. Of other people's jobs it shows what everybody may know.
"""

from __future__ import annotations

import time

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.operations import V1, Operation, Parameter, integer_parameter
from gpu_scheduler.api.http.request import Request, Response, json_response
from gpu_scheduler.api.queue_order import SORTS, SortedJobs
from gpu_scheduler.api.routes.cluster import gpu_forms, node_resources
from gpu_scheduler.api.routes.job_views import JobViews
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.wire.answers import JobLine, Overview
from gpu_scheduler.wire.times import write_time

DEFAULT_ROWS = 50
MOST_ROWS = 500


async def overview(context: Context, request: Request) -> Response:
    """GPUs, numbers, and a window onto what runs and waits."""
    query = context.parse_query(request, "sort", "filter", "user", "limit", "offset", "find")
    sort = query.text("sort", "queue")
    if sort.removeprefix("-") not in SORTS:
        raise InvalidRequest(
            f"sort '{sort[:80]}' is not known; use one of {', '.join(SORTS)}, with - before it "
            "for the other way round"
        )
    words = tuple(query.text("filter").lower().split())
    limit = query.number("limit", DEFAULT_ROWS, most=MOST_ROWS)
    offset = query.number("offset", 0)
    user = context.user_filter(request, query)
    order = context.sorted_jobs.find(request.caller, sort, words, user, offset + limit)
    offset = min(offset, max(0, order.total - limit))
    nodes = node_resources(context)
    return json_response(
        Overview(
            version=context.settings.version,
            now=write_time(context.service.now_ms()),
            uptime_seconds=round(time.monotonic() - context.started, 3),
            nodes=len(nodes),
            online_nodes=sum(resources.node.state is NodeState.ONLINE for resources in nodes),
            problem=_problem(context),
            counts=order.counts,
            gpus=list(gpu_forms(context, request.caller)),
            jobs=_lines(context, request.caller, order.ids[offset : offset + limit]),
            offset=offset,
            total=order.total,
            found=_place(context, order, query.text("find")),
        )
    )


def _place(context: Context, order: SortedJobs, job_id: str) -> int | None:
    """Where a job stands, also beyond what was worked out of the queue."""
    place = order.places.get(job_id)
    record = context.service.core.state.jobs.get(job_id)
    if place is not None or record is None or order.reaches(order.total):
        return place
    position = context.explainer.position(record.job.number)
    return order.total - 1 if position is None else order.leading + position - 1


def _problem(context: Context) -> str:
    problems = [found.problem for found in context.service.telemetry.values() if found.problem]
    return problems[0] if problems else ""


def _lines(context: Context, caller: Caller, ids: list[str]) -> list[JobLine]:
    """The jobs of the window that are stored and not over."""
    views = JobViews(context.service, caller)
    rows = [row for job_id in ids if (row := context.service.store.job(job_id)) is not None]
    waiting = [row.job.number for row in rows if row.state is JobState.PENDING]
    starts = context.explainer.expected_starts(waiting)
    lines = []
    for row in rows:
        line = views.line(row)
        line.expected_start = write_time(starts.get(row.job.number))
        if row.state is JobState.PENDING:
            line.position = context.explainer.position(row.job.number)
        lines.append(line)
    return lines


OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/overview",
        handler=overview,
        name="overview",
        summary="GPUs, numbers and a window onto the queue, in one answer: for live screens.",
        tag="cluster",
        response=Overview,
        query=(
            Parameter(
                name="sort",
                description="By what to sort; a - before it turns it round. Default: queue.",
                schema={
                    "type": "string",
                    "enum": [sign + name for name in SORTS for sign in ("", "-")],
                },
            ),
            Parameter(
                name="filter", description="Jobs in whose id, user, state or name all words occur."
            ),
            Parameter(name="user", description="Jobs of this user; @me for your own."),
            integer_parameter("limit", "How many jobs at most.", most=MOST_ROWS),
            integer_parameter("offset", "How many jobs to leave out first."),
            Parameter(name="find", description="A job whose place is told as `found`."),
        ),
    ),
)
