"""Services: create, list, show, scale, update, delete, and the endpoints of their replicas.

A caller sees its own services and those of tenants that it administers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.expected_times import describe_reason
from gpu_scheduler.api.ha.leadership_gate import note_stale
from gpu_scheduler.api.http.openapi import Router
from gpu_scheduler.api.http.request import JSON, Request, Response, decode, form_of, json_response
from gpu_scheduler.api.routes.submit import reader_for
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import (
    CreateService,
    DeleteService,
    ScaleService,
    ServiceCommand,
    UpdateService,
)
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.errors import InternalError, InvalidRequest, UnknownThing
from gpu_scheduler.model.launch import Probe, ProbeKind
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.service import Replica, Service
from gpu_scheduler.store.rows import JobRow
from gpu_scheduler.wire.services import Replicas, ServiceRequest, read_service
from gpu_scheduler.wire.times import write_time


class ScaleRequest(Struct, forbid_unknown_fields=True):
    """The desired number of replicas."""

    replicas: Replicas


class Endpoint(Struct):
    """The address of one ready replica."""

    host: str
    port: int
    replica: int
    job_id: str
    node: str


class EndpointList(Struct):
    """The ready replicas of a service."""

    service: str
    endpoints: list[Endpoint]


class ReplicaForm(Struct):
    """One replica. `state` is that of its job, or `stopping`, or `over`."""

    replica: int
    job_id: str
    state: str
    ready: bool
    is_current: bool
    node: str
    host: str
    port: int
    restarts: int
    last_end: str
    detail: str
    since: str | None


class ReadinessForm(Struct):
    """The readiness probe of the replicas."""

    kind: str
    path: str
    command: list[str]
    interval_seconds: float
    timeout_seconds: float
    failures: int
    grace_seconds: float


class RestartForm(Struct):
    """The restart policy of the replicas."""

    policy: str
    backoff_seconds: float
    max_backoff_seconds: float
    reset_after_seconds: float


class ServiceForm(Struct):
    """A service; `state` is ready, starting, failing, degraded, updating, stopped, ended, deleting.

    A failing service has replicas that ended twice or more in a row, and no ready one.
    """

    id: str
    name: str
    tenant_id: str
    user: str
    state: str
    replicas: int
    ready: int
    updated: int
    restarts: int
    generation: int
    port: int
    gpu_count: float
    priority: int
    preemptible: bool
    requeue_on_node_loss: bool
    surge: bool
    command: list[str]
    image: str
    restart: RestartForm
    readiness: ReadinessForm | None
    made_at: str | None
    changed_at: str | None
    problem: str
    members: list[ReplicaForm]


class ServiceList(Struct):
    """Services by number."""

    services: list[ServiceForm]


FAILING_AFTER = 2
"""After so many failures in a row a starting service is shown as failing."""


_ERRORS = (403, 404, 409, 413, 415, 422, 503)
_EXAMPLE = {
    "name": "llama",
    "replicas": 2,
    "gpu_count": 1,
    "command": ["vllm", "serve", "/models/llama", "--port", "8000"],
    "port": 8000,
    "readiness": {"http": "/health", "grace_seconds": 300},
    "restart": "always",
}
router = Router("services")


@router.operation(
    "POST",
    "/services",
    body=ServiceRequest,
    response=ServiceForm,
    status=201,
    errors=_ERRORS,
    keyed=True,
    example=_EXAMPLE,
)
async def create_service(context: Context, request: Request) -> Response:
    """Create a service: a number of replicas of a program, each with a port."""
    request.expect_media(JSON)
    data = await request.body(context.settings.bounds.body_bytes)
    service = read_service(decode(ServiceRequest, data), reader_for(context, request.caller))
    return await _changed(context, request, data, CreateService(service), status=201)


@router.operation("GET", "/services", response=ServiceList)
async def list_services(context: Context, request: Request) -> Response:
    """Services with their replicas: yours, and those of tenants that you administer."""
    context.parse_query(request)
    seen = await _seen(context, request)
    ended = await _ended(context, *seen)
    return json_response(ServiceList([_form(context, service, ended) for service in seen]))


@router.operation("GET", "/services/{service}", response=ServiceForm, errors=(404,))
async def get_service(context: Context, request: Request) -> Response:
    """One service, by its id or its name."""
    context.parse_query(request)
    service = await _named(context, request)
    return json_response(_form(context, service, await _ended(context, service)))


@router.operation("GET", "/services/{service}/endpoints", response=EndpointList, errors=(404,))
async def get_endpoints(context: Context, request: Request) -> Response:
    """Host and port of every ready replica."""
    context.parse_query(request)
    service = await _named(context, request)
    state = context.state
    endpoints = [
        Endpoint(
            host=host_of(node),
            port=replica.port,
            replica=replica.index,
            job_id=replica.job_id,
            node=node.id,
        )
        for replica in sorted(service.live, key=lambda replica: replica.index)
        if (node := _node_of(state, replica)) is not None and is_reached(replica, node)
    ]
    return json_response(EndpointList(service.name, endpoints))


@router.operation(
    "PUT",
    "/services/{service}",
    body=ServiceRequest,
    response=ServiceForm,
    errors=_ERRORS,
    keyed=True,
    example=_EXAMPLE,
)
async def update_service(context: Context, request: Request) -> Response:
    """Change a service; its replicas are replaced one by one."""
    request.expect_media(JSON)
    data = await request.body(context.settings.bounds.body_bytes)
    service = await _named(context, request)
    body = decode(ServiceRequest, data)
    if body.name != service.name:
        raise InvalidRequest(
            f"service '{service.name}' cannot be renamed to '{body.name}'; create another service "
            "and delete this one"
        )
    body.tenant_id = body.tenant_id or service.tenant
    wanted = read_service(body, reader_for(context, request.caller))
    if wanted.tenant != service.tenant:
        raise InvalidRequest(
            f"service '{service.name}' is of tenant '{service.tenant}', which cannot be changed"
        )
    return await _changed(context, request, data, UpdateService(service.id, wanted), service)


@router.operation(
    "POST",
    "/services/{service}/scale",
    body=ScaleRequest,
    response=ServiceForm,
    errors=_ERRORS,
    keyed=True,
    example={"replicas": 3},
)
async def scale_service(context: Context, request: Request) -> Response:
    """Change the number of replicas."""
    request.expect_media(JSON)
    data = await request.body(context.settings.bounds.body_bytes)
    service = await _named(context, request)
    command = ScaleService(service.id, decode(ScaleRequest, data).replicas)
    return await _changed(context, request, data, command, service)


@router.operation(
    "DELETE", "/services/{service}", response=ServiceForm, errors=(403, 404, 409, 503)
)
async def delete_service(context: Context, request: Request) -> Response:
    """Stop all replicas; the service is deleted with the last of them."""
    context.parse_query(request)
    service = await _named(context, request)
    outcome = await context.service.apply(DeleteService(service.id), request.caller)
    # A repeated request changes nothing and has no service in its outcome.
    ended = await _ended(context, service)
    return json_response(_form(context, outcome.service or service, ended))


async def _changed(
    context: Context,
    request: Request,
    data: bytes,
    command: ServiceCommand,
    *services: Service,
    status: int = 200,
) -> Response:
    ended = await _ended(context, *services)

    def render(outcome: Outcome) -> Response:
        return json_response(_form(context, _made(outcome), ended), status=status)

    return await context.idempotency.run_once(request, data, command, render)


def _made(outcome: Outcome) -> Service:
    if outcome.service is None:
        raise InternalError("a service was changed and is not there")
    return outcome.service


async def _seen(context: Context, request: Request) -> list[Service]:
    services = await asyncio.to_thread(context.service.store.services)
    return [s for s in services if request.caller.may_see(s.user, s.tenant)]


async def _ended(context: Context, *services: Service) -> dict[str, JobRow]:
    """Read the jobs of replicas that have ended and say nothing themselves."""
    store, jobs = context.service.store, context.state.jobs
    replicas = [replica for service in services for replica in service.members]
    ids = [one.job_id for one in replicas if not one.detail and one.job_id not in jobs]
    rows = await asyncio.to_thread(lambda: [store.job(job_id) for job_id in ids]) if ids else []
    return {row.job.id: row for row in rows if row is not None}


async def _named(context: Context, request: Request) -> Service:
    """Return the service in the path, by id or name."""
    wanted = request.params["service"]
    seen = await _seen(context, request)
    matches = [s for s in seen if s.id == wanted] or [s for s in seen if s.name == wanted]
    if not matches:
        raise UnknownThing(f"service '{wanted}' is not known; 'tgpu service list' shows yours")
    if len(matches) > 1:
        ids = ", ".join(f"{s.id} (tenant {s.tenant})" for s in matches)
        raise InvalidRequest(f"service '{wanted}' is ambiguous: {ids}; give the id")
    return matches[0]


def is_reached(replica: Replica, node: Node) -> bool:
    """Whether a replica can be used: it is ready and its node is not silent.

    A server that has just started has no reports yet, and removes no endpoint for that.
    """
    return replica.ready and replica.port > 0 and not node.silent_ms


def host_of(node: Node) -> str:
    """Return the address of a node."""
    return node.address or node.id


def _node_of(state: ControlState, replica: Replica) -> Node | None:
    """Return the node of a replica, if it is placed."""
    record = state.jobs.get(replica.job_id)
    task = None if record is None else record.only_task
    running = None if task is None else state.cluster.running.get(task.allocation_id)
    if running is None:
        if record is None or replica.ready:
            note_stale(replica.job_id)
        return None
    return state.cluster.index.resources(running.running.allocation.placements[0].node_id).node


def _form(context: Context, service: Service, ended: Mapping[str, JobRow]) -> ServiceForm:
    state = context.state
    job = service.job
    return form_of(
        ServiceForm,
        service,
        tenant_id=service.tenant,
        state=shown_state(state, service),
        ready=service.ready_count,
        updated=service.updated_count,
        gpu_count=job.gpu_milli / WHOLE_MILLI,
        priority=job.priority,
        preemptible=job.preemptible,
        requeue_on_node_loss=job.requeue_on_node_loss,
        command=list(service.launch.argv),
        image=service.launch.image,
        restart=RestartForm(
            policy=service.restart.policy.value,
            backoff_seconds=service.restart.backoff_ms / 1000,
            max_backoff_seconds=service.restart.max_backoff_ms / 1000,
            reset_after_seconds=service.restart.reset_after_ms / 1000,
        ),
        readiness=None if service.probe is None else _readiness(service.probe),
        made_at=write_time(service.made_ms),
        changed_at=write_time(service.changed_ms),
        members=[
            _replica(context, service, replica, ended)
            for replica in sorted(service.members, key=lambda r: (r.index, r.job_id))
        ],
    )


def _readiness(probe: Probe) -> ReadinessForm:
    return ReadinessForm(
        kind=probe.kind.value,
        path=probe.path if probe.kind is ProbeKind.HTTP else "",
        command=list(probe.argv),
        interval_seconds=probe.interval_ms / 1000,
        timeout_seconds=probe.timeout_ms / 1000,
        failures=probe.failures,
        grace_seconds=probe.grace_ms / 1000,
    )


def shown_state(state: ControlState, service: Service) -> str:
    """Return the displayed state; a service that keeps failing at its start is "failing"."""
    if service.state != "starting":
        return service.state
    tasks = [state.jobs[r.job_id].only_task for r in service.live if r.job_id in state.jobs]
    return "failing" if any(t and t.failures >= FAILING_AFTER for t in tasks) else "starting"


def _detail(context: Context, replica: Replica, ended: Mapping[str, JobRow]) -> str:
    """Return the detail of a replica: its probe's message, why it waits, or how it ended."""
    if replica.detail:
        return replica.detail
    if replica.job_id in context.state.jobs:
        return describe_reason(context.explainer.reason(replica.job_id))[1]
    row = ended.get(replica.job_id)
    if row is None:
        return ""
    if row.signal is not None:
        return row.reason or f"ended by signal {row.signal}"
    return row.reason or ("" if row.exit_code is None else f"ended with exit code {row.exit_code}")


def _replica(
    context: Context, service: Service, replica: Replica, ended: Mapping[str, JobRow]
) -> ReplicaForm:
    state = context.state
    record = state.jobs.get(replica.job_id)
    node = _node_of(state, replica)
    replica_state = "over" if record is None else record.state.value
    return form_of(
        ReplicaForm,
        replica,
        replica=replica.index,
        state="stopping" if replica.leaving else replica_state,
        ready=replica.ready and node is not None and not node.silent_ms,
        is_current=replica.generation == service.generation,
        node="" if node is None else node.id,
        host="" if node is None else host_of(node),
        detail=_detail(context, replica, ended),
        since=write_time(replica.since_ms),
    )
