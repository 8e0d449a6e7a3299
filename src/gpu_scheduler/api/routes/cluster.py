"""The cluster as a whole: status, GPUs, the quota of online and batch work, and the overview.

Every caller sees which jobs run where and for whom; only the owner and admins see what they run.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from gpu_scheduler.api.context import Context, expect_admin
from gpu_scheduler.api.http.openapi import (
    Parameter,
    Router,
    boolean_parameter,
    integer_parameter,
)
from gpu_scheduler.api.http.request import Request, Response, in_units, json_response
from gpu_scheduler.api.queue_order import SORTS, SortedJobs
from gpu_scheduler.api.routes.job_views import (
    JobLine,
    JobViews,
    fill_in_starts,
    job_views,
)
from gpu_scheduler.control.messages import PauseDevice, ResumeDevice, SetPools
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.quota.node_shares import node_shares
from gpu_scheduler.engine.state.node_resources import NodeResources
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.errors import InvalidRequest, UnknownThing
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import NORMAL_PRIORITY, JobState, Pool
from gpu_scheduler.model.measurements import DeviceProcess, DeviceReading
from gpu_scheduler.model.node import NodeState, device_problem, device_state, node_problem
from gpu_scheduler.model.quota_tree import unmatched_names
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import JobRow
from gpu_scheduler.wire.times import write_time


class PoolUse(Struct):
    """The usage of a pool in GPUs, and its guaranteed quota (null: it has none).

    `borrowed_gpus` are above its quota, and are reclaimed when the other pool needs them.
    """

    pool: str
    percent: int | None
    elastic: bool
    held_gpus: float
    sure_of_gpus: float | None
    borrowed_gpus: float
    running_jobs: int
    waiting_jobs: int


class ClusterStatus(Struct):
    """The cluster in numbers. `available_gpus` are completely free and accept work.

    `pending_by_priority` (high, normal, low) only comes with `?detailed=true`.
    """

    total_nodes: int
    online_nodes: int
    total_gpus: int
    available_gpus: int
    total_jobs: int
    running_jobs: int
    pending_jobs: int
    scheduled_jobs: int = 0
    completed_jobs: int = 0
    failed_jobs: int = 0
    cancelled_jobs: int = 0
    queued_tasks: int = 0
    allocated_gpus: float = 0
    usable_gpus: int = 0
    users: dict[str, float] = {}
    pending_by_priority: dict[str, int] | None = None
    pools: list[PoolUse] = []


class GpuProcess(Struct):
    """A process on a GPU, of a job or not; `leaked` if its job has ended."""

    pid: int
    user: str
    memory_mb: int
    job_id: str = ""
    command: str = ""
    leaked: bool = False


class GpuForm(Struct):
    """A GPU: its allocations and its latest measurements.

    Mean and peak are since the start of the server. `why` is the reason for which it takes no new
    work.
    """

    node: str
    index: int
    uuid: str
    model: str
    memory_mb: int
    state: str
    allocated_share: float
    allocated_memory_mb: int
    jobs: list[str]
    users: list[str]
    paused: bool
    utilisation_percent: int | None = None
    utilisation_mean_percent: float | None = None
    utilisation_peak_percent: int | None = None
    memory_used_mb: int | None = None
    temperature_c: int | None = None
    power_watts: float | None = None
    processes: list[GpuProcess] = []
    why: str = ""
    mig: list[str] = []


class GpuList(Struct):
    """All devices, by node and index."""

    gpus: list[GpuForm]


class GpuChanged(Struct):
    """A device was paused or resumed."""

    node: str
    index: int
    paused: bool
    message: str


class QuotaRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The quota of online work in percent; batch work has the rest unless it is given too."""

    online_percent: Annotated[int, Meta(ge=0, le=100)]
    batch_percent: Annotated[int, Meta(ge=0, le=100)] | UnsetType = UNSET
    elastic: bool | UnsetType = UNSET


class QuotaForm(Struct):
    """The quotas of online and batch work."""

    online_percent: int
    batch_percent: int
    elastic: bool


class QuotaNodeForm(Struct):
    """A node of the quota tree: GPUs of one model in it and all below it; `*` is all models.

    `lent_gpus` are the part of its guarantee that other nodes have; the rest of what it does not
    use is free. `borrowed_gpus` are what it uses, and what nodes below keep free, beyond its
    guarantee. `max_gpus` is null without a maximum.
    """

    name: str
    parent: str
    level: int
    model: str
    used_gpus: float
    guaranteed_gpus: float
    max_gpus: float | None
    borrowed_gpus: float
    lent_gpus: float


class QuotaTreeForm(Struct):
    """The quota tree; each node comes after its parent, the cluster first. Empty without one.

    `(others)` is what a node has beside its children, and `(missing)` what is guaranteed to them
    and the node does not have. `warnings` are about nodes that match no tenant, and GPU models that
    no node has.
    """

    nodes: list[QuotaNodeForm]
    warnings: list[str]


class Overview(Struct):
    """The data of a live screen. `counts` is over all jobs, `total` over the selected ones.

    `jobs` begin at `offset`. `found` is the position of the requested job.
    """

    version: str
    now: str | None
    uptime_seconds: float
    nodes: int
    online_nodes: int
    problem: str
    counts: dict[str, int]
    gpus: list[GpuForm]
    jobs: list[JobLine]
    offset: int
    total: int
    found: int | None = None


def pool_uses(state: ControlState) -> list[PoolUse]:
    """Return what both pools hold and are guaranteed, online first."""
    cluster = state.cluster
    runs = dict.fromkeys(Pool, 0)
    for entry in cluster.running.values():
        runs[entry.running.job.pool] += 1
    waits = dict.fromkeys(Pool, 0)
    for (_, _, pool), group in list(cluster.queue.groups.items()):
        waits[pool] += group.size
    uses = []
    guarantees = cluster.pool_guarantees()
    for pool in Pool:
        quota = cluster.pools.get(pool)
        held_milli = cluster.holdings.pools.get(pool, 0)
        guaranteed_milli = guarantees.get(pool)
        borrowed = 0 if guaranteed_milli is None else max(0, held_milli - guaranteed_milli)
        uses.append(
            PoolUse(
                pool=pool.value,
                percent=None if quota is None else quota.percent,
                elastic=quota is None or quota.elastic,
                held_gpus=held_milli / WHOLE_MILLI,
                sure_of_gpus=None if guaranteed_milli is None else guaranteed_milli / WHOLE_MILLI,
                borrowed_gpus=borrowed / WHOLE_MILLI,
                running_jobs=runs[pool],
                waiting_jobs=waits[pool],
            )
        )
    return uses


MOST_PROBLEMS = 20
WHOLE = 100


@dataclass(slots=True)
class DeviceAllocation:
    """What is allocated of one device, and to whom."""

    share_milli: int = 0
    memory_mb: int = 0
    jobs: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)


def device_allocations(context: Context) -> dict[tuple[str, int], DeviceAllocation]:
    """Return what is allocated, by node and device index."""
    allocations: dict[tuple[str, int], DeviceAllocation] = {}
    for allocation_id, entry in context.state.cluster.running.items():
        running = entry.running
        name = allocation_id.rpartition(".")[0]
        for placement in running.allocation.placements:
            for share in placement.devices:
                use = allocations.setdefault((placement.node_id, share.index), DeviceAllocation())
                use.share_milli += share.share_milli
                use.memory_mb += share.memory_mb
                use.jobs.append(name)
                if running.job.user not in use.users:
                    use.users.append(running.job.user)
    return allocations


def node_resources(context: Context) -> list[NodeResources]:
    """Return all nodes with their free resources, by name; n2 comes before n10."""
    by_id = context.state.cluster.index.by_id
    return sorted(by_id.values(), key=lambda resources: natural_key(resources.node.id))


def natural_key(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key that orders numbers inside names by value."""
    parts = enumerate(re.split(r"([0-9]+)", name))
    return [(int(part), "") if place % 2 else (-1, part) for place, part in parts], name


def free_gpus(resources: NodeResources) -> int:
    """Return how many devices of a node are free and accept work."""
    return resources.free_mask.bit_count() if resources.node.takes_work else 0


_REASON = (Parameter(name="reason", description="Why, for others to see."),)
_GPU_CHANGE: dict[str, Any] = {"response": GpuChanged, "errors": (403, 404, 409, 503)}
LONGEST_REASON = 256
router = Router("cluster")


@router.operation(
    "GET",
    "/cluster/status",
    query=(boolean_parameter("detailed", "Also count waiting jobs by priority."),),
    response=ClusterStatus,
)
async def cluster_status(context: Context, request: Request) -> Response:
    """The cluster status: nodes, GPUs and jobs in numbers."""
    detailed = context.parse_query(request, "detailed").flag("detailed")
    counts = await asyncio.to_thread(context.service.store.count_states)
    nodes = node_resources(context)
    online = [resources for resources in nodes if resources.node.state is NodeState.ONLINE]
    state = context.state
    users: dict[str, float] = {}
    for entry in state.cluster.running.values():
        gpus = entry.running.allocation.gpu_milli / WHOLE_MILLI
        users[entry.running.job.user] = users.get(entry.running.job.user, 0) + gpus
    status = ClusterStatus(
        total_nodes=len(nodes),
        online_nodes=len(online),
        total_gpus=sum(resources.node.gpu_count for resources in nodes),
        available_gpus=sum(map(free_gpus, nodes)),
        total_jobs=sum(counts.values()),
        running_jobs=counts.get(JobState.RUNNING, 0),
        pending_jobs=counts.get(JobState.PENDING, 0) + counts.get(JobState.PREEMPTED, 0),
        scheduled_jobs=counts.get(JobState.SCHEDULED, 0),
        completed_jobs=counts.get(JobState.COMPLETED, 0),
        failed_jobs=counts.get(JobState.FAILED, 0),
        cancelled_jobs=counts.get(JobState.CANCELLED, 0),
        queued_tasks=state.queued_tasks,
        allocated_gpus=sum(users.values()),
        usable_gpus=sum(resources.usable.bit_count() for resources in online),
        users=dict(sorted(users.items())),
        pending_by_priority=_by_priority(context) if detailed else None,
        pools=pool_uses(state),
    )
    return json_response(status)


def _by_priority(context: Context) -> dict[str, int]:
    """Count the waiting jobs by priority."""
    counts = {"high": 0, "normal": 0, "low": 0}
    for record in context.state.jobs.values():
        if record.queued or record.waiting_on:
            above = record.job.priority - NORMAL_PRIORITY
            counts["high" if above > 0 else "low" if above else "normal"] += 1
    return counts


# GPUs


@router.operation("GET", "/gpus", response=GpuList)
async def list_gpus(context: Context, request: Request) -> Response:
    """All GPUs with their allocations and measurements."""
    context.parse_query(request)
    return json_response(GpuList(list(gpu_forms(context, request.caller))))


def gpu_forms(context: Context, caller: Caller) -> Iterator[GpuForm]:
    """Yield the view of each GPU."""
    allocations = device_allocations(context)
    running = context.state.cluster.running

    def sees(process: DeviceProcess) -> bool:
        """Whether the caller may see a command: foreign processes, and those of visible jobs."""
        if not process.allocation_id:
            return True
        entry = running.get(process.allocation_id)
        return caller.may_see(process.user, "" if entry is None else entry.running.job.tenant)

    for resources in node_resources(context):
        node_id = resources.node.id
        telemetry = context.service.telemetry.get(node_id)
        readings = (
            {} if telemetry is None else {reading.index: reading for reading in telemetry.readings}
        )
        for device in resources.node.devices:
            use = allocations.get((node_id, device.index), DeviceAllocation())
            form = GpuForm(
                node=node_id,
                index=device.index,
                uuid=device.uuid,
                model=device.model,
                memory_mb=device.memory_mb,
                state=device_state(device, jobs=len(use.jobs), share_milli=use.share_milli),
                allocated_share=in_units(use.share_milli, WHOLE_MILLI) or 0,
                allocated_memory_mb=use.memory_mb,
                jobs=use.jobs,
                users=use.users,
                paused=device.paused,
                why=device_problem(device) or node_problem(resources.node),
                mig=[f"{count} x {profile}" for profile, count in device.mig_slices],
            )
            _add_reading(form, readings.get(device.index), sees, running)
            load = context.service.loop_metrics.loads.get((node_id, device.index))
            if load is not None:
                form.utilisation_mean_percent = round(load.mean_percent, 1)
                form.utilisation_peak_percent = load.most_percent
            yield form


def _add_reading(
    form: GpuForm,
    reading: DeviceReading | None,
    sees: Callable[[DeviceProcess], bool],
    held: Container[str],
) -> None:
    if reading is None:
        return
    if reading.load_percent is not None or reading.utilisation_percent:
        form.utilisation_percent = reading.utilisation_percent
    form.memory_used_mb = reading.memory_used_mb
    form.temperature_c = reading.temperature_c
    form.power_watts = round(reading.power_mw / 1000, 1)
    form.processes = [
        GpuProcess(
            pid=process.pid,
            user=process.user,
            memory_mb=process.memory_mb,
            job_id=process.allocation_id.rpartition(".")[0],
            command=process.command if sees(process) else "",
            leaked=bool(process.allocation_id) and process.allocation_id not in held,
        )
        for process in reading.processes
    ]


@router.operation("POST", "/gpus/{index}/pause", query=_REASON, **_GPU_CHANGE)
@router.operation(
    "POST",
    "/gpus/{node}/{index}/pause",
    name="pause_gpu_of_node",
    query=_REASON,
    **_GPU_CHANGE,
)
async def pause_gpu(context: Context, request: Request) -> Response:
    """Stop allocating a GPU; its running jobs continue (for admins)."""
    return await _set_paused(context, request, paused=True)


@router.operation("POST", "/gpus/{index}/resume", **_GPU_CHANGE)
@router.operation("POST", "/gpus/{node}/{index}/resume", name="resume_gpu_of_node", **_GPU_CHANGE)
async def resume_gpu(context: Context, request: Request) -> Response:
    """Allocate a GPU again (for admins)."""
    return await _set_paused(context, request, paused=False)


async def _set_paused(context: Context, request: Request, *, paused: bool) -> Response:
    expect_admin(request.caller, "pause a GPU" if paused else "resume a GPU")
    query = context.parse_query(request, *(("reason",) if paused else ()))
    reason = query.text("reason") if paused else ""
    if len(reason) > LONGEST_REASON or not reason.isprintable():
        raise InvalidRequest(f"reason is not printable text of at most {LONGEST_REASON} characters")
    node_id = request.params.get("node") or _only_node(context)
    text = request.params["index"]
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise UnknownThing(f"GPU '{text[:40]}' is not known; give its number")
    index = int(text)
    message = PauseDevice(node_id, index, reason) if paused else ResumeDevice(node_id, index)
    await context.service.apply(message, request.caller)
    result = f"GPU {index} of {node_id} is {'paused' if paused else 'resumed'}"
    resources = context.state.cluster.index.by_id.get(node_id)
    if paused:
        result += "; its running jobs continue"
    elif resources is not None and resources.node.state is not NodeState.ONLINE:
        result += "; its node is not connected and gets the order when it reconnects"
    return json_response(GpuChanged(node=node_id, index=index, paused=paused, message=result))


def _only_node(context: Context) -> str:
    nodes = node_resources(context)
    if len(nodes) != 1:
        raise InvalidRequest(
            f"there are {len(nodes)} nodes, so a number alone is ambiguous; write NODE:INDEX, as "
            "'tgpu gpus' shows it (in REST: /gpus/NODE/INDEX)"
        )
    return nodes[0].node.id


def device_problems(context: Context) -> dict[str, str]:
    """Return why GPUs accept no work, by node and index; at most the first few."""
    problems = (
        (f"{resources.node.id}:{device.index}", problem)
        for resources in node_resources(context)
        for device in resources.node.devices
        if (problem := device_problem(device))
    )
    return dict(islice(problems, MOST_PROBLEMS))


# The quota of online and batch work


@router.operation("GET", "/quota", response=QuotaForm)
async def get_quota(context: Context, request: Request) -> Response:
    """How the GPUs are divided between online and batch work."""
    context.parse_query(request)
    return json_response(await _quota(context))


@router.operation("GET", "/quota/tree", response=QuotaTreeForm)
async def get_quota_tree(context: Context, request: Request) -> Response:
    """The nodes of the quota tree, with what each uses, is guaranteed, borrows and lends."""
    context.parse_query(request)
    nodes = [
        QuotaNodeForm(
            name=share.name,
            parent=share.parent,
            level=share.level,
            model=share.model,
            used_gpus=share.used_milli / WHOLE_MILLI,
            guaranteed_gpus=share.guaranteed_milli / WHOLE_MILLI,
            max_gpus=in_units(share.maximum_milli, WHOLE_MILLI),
            borrowed_gpus=share.borrowed_milli / WHOLE_MILLI,
            lent_gpus=share.lent_milli / WHOLE_MILLI,
        )
        for share in node_shares(context.state.cluster)
    ]
    tenants = await asyncio.to_thread(context.service.store.tenants)
    cluster = context.state.cluster
    warnings = unmatched_names(
        cluster.quota_nodes.values(),
        tenants={tenant.id for tenant in tenants},
        models=cluster.gpu_models(),
    )
    return json_response(QuotaTreeForm(nodes, warnings))


@router.operation(
    "PUT",
    "/quota",
    body=QuotaRequest,
    response=QuotaForm,
    errors=(403, 413, 415, 503),
    example={"online_percent": 30, "elastic": True},
)
async def put_quota(context: Context, request: Request) -> Response:
    """Divide the GPUs between online and batch work (for admins)."""
    expect_admin(request.caller, "change the quota")
    body = await request.read_json(QuotaRequest, context.settings.bounds.body_bytes)
    batch = (
        WHOLE - body.online_percent if body.batch_percent is msgspec.UNSET else body.batch_percent
    )
    is_undivided = body.online_percent == batch == WHOLE
    if body.online_percent + batch > WHOLE and not is_undivided:
        raise InvalidRequest(
            f"online_percent {body.online_percent} and batch_percent {batch} are more than 100; "
            "with 100 for both, nothing is divided"
        )
    elastic = (await _quota(context)).elastic if body.elastic is msgspec.UNSET else body.elastic
    parts = ((Pool.ONLINE, body.online_percent), (Pool.BATCH, batch))
    quotas = tuple(PoolQuota(pool=pool, percent=part, elastic=elastic) for pool, part in parts)
    await context.service.apply(SetPools(quotas), request.caller)
    return json_response(await _quota(context))


async def _quota(context: Context) -> QuotaForm:
    """Return the quota; without one, each pool may use all GPUs."""
    pools = await asyncio.to_thread(context.service.store.pools)
    known = {quota.pool: quota for quota in pools}
    online = known.get(Pool.ONLINE, PoolQuota(pool=Pool.ONLINE, percent=100))
    batch = known.get(Pool.BATCH, PoolQuota(pool=Pool.BATCH, percent=100))
    return QuotaForm(
        online_percent=online.percent,
        batch_percent=batch.percent,
        elastic=online.elastic and batch.elastic,
    )


# The overview for live screens

DEFAULT_ROWS = 50
MOST_ROWS = 500


@router.operation(
    "GET",
    "/overview",
    response=Overview,
    query=(
        Parameter(
            name="sort",
            description="Sort key; a leading - reverses the order. Default: queue.",
            schema={
                "type": "string",
                "enum": [sign + name for name in SORTS for sign in ("", "-")],
            },
        ),
        Parameter(
            name="filter", description="Jobs whose id, user, state or name contain all words."
        ),
        Parameter(name="user", description="Jobs of this user; @me for your own."),
        integer_parameter("limit", "How many jobs at most.", most=MOST_ROWS),
        integer_parameter("offset", "How many jobs to skip."),
        Parameter(name="find", description="A job whose position is returned as `found`."),
        boolean_parameter("without_gpus", "Leave the GPUs out: the list is empty."),
    ),
)
async def overview(context: Context, request: Request) -> Response:
    """GPUs, counts and a window of the job list in one response, for live screens."""
    names = ("sort", "filter", "user", "limit", "offset", "find", "without_gpus")
    query = context.parse_query(request, *names)
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
    ids = order.ids[offset : offset + limit]
    rows = await asyncio.to_thread(_stored, context.service.store, ids)
    views = await job_views(context.service, request.caller, rows)
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
            gpus=[] if query.flag("without_gpus") else list(gpu_forms(context, request.caller)),
            jobs=_lines(context, views, rows),
            offset=offset,
            total=order.total,
            found=_position(context, order, query.text("find")),
        )
    )


def _position(context: Context, order: SortedJobs, job_id: str) -> int | None:
    """Return the index of a job in the list, also beyond the computed part."""
    place = order.positions.get(job_id)
    record = context.state.jobs.get(job_id)
    if place is not None or record is None or order.covers(order.total):
        return place
    position = context.explainer.position(record.job.number)
    return order.total - 1 if position is None else order.running + position - 1


def _problem(context: Context) -> str:
    problems = [found.problem for found in context.service.telemetry.values() if found.problem]
    return problems[0] if problems else ""


def _stored(store: Store, ids: list[str]) -> list[JobRow]:
    """Read the jobs of the window."""
    return [row for job_id in ids if (row := store.job(job_id)) is not None]


def _lines(context: Context, views: JobViews, rows: list[JobRow]) -> list[JobLine]:
    """Return the lines of the window."""
    lines = [views.line(row) for row in rows]
    fill_in_starts(context.explainer, rows, lines)
    for row, line in zip(rows, lines, strict=True):
        if row.state is JobState.PENDING:
            line.position = context.explainer.position(row.job.number)
    return lines
