"""Services: a reconciler that creates, replaces, moves and stops replicas.

Every change of a replica marks its service. `reconcile` compares the service with its replicas and
takes the next step, so a step that was lost is taken again. A replica is a job, with
all the guarantees of jobs.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.jobs.commands import cancel
from gpu_scheduler.control.jobs.queueing import PREEMPTED, stop
from gpu_scheduler.control.jobs.submit import check_pending, check_room, submit, would_accept
from gpu_scheduler.control.messages import (
    Cancel,
    CreateService,
    DeleteService,
    ReplicaChecked,
    ScaleService,
    ServiceCommand,
    Submit,
    UpdateService,
)
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.errors import (
    AlreadyExists,
    Forbidden,
    SchedulerError,
    UnknownThing,
    WrongState,
)
from gpu_scheduler.model.job import Job, JobState, Pool
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.service import Replica, Service
from gpu_scheduler.store.rows import EventRow, Removed

SERVICE = "service"
TRY_AGAIN_MS = 10_000
LONGEST_DETAIL = 300


def apply(state: ControlState, message: ServiceCommand, now_ms: int, outcome: Outcome) -> None:
    """Carry out a command about a service, or raise and change nothing."""
    match message:
        case CreateService(service):
            service = _create(state, service, now_ms)
            kind = "service_created"
        case UpdateService(service_id, wanted):
            service = _update(state, _known(state, service_id), wanted, now_ms)
            kind = "service_updated"
        case ScaleService(service_id, replicas):
            service = _scale(state, _known(state, service_id), replicas, now_ms)
            kind = "service_scaled"
        case DeleteService(service_id):
            service = replace(_known(state, service_id), deleted=True, changed_ms=now_ms)
            kind = "service_deleted"
    data = (("replicas", service.replicas), ("generation", service.generation))
    outcome.writes.append(_event(service, kind, now_ms, *data))
    _keep(state, service, outcome)
    state.services_to_reconcile[service.id] = None
    reconcile(state, now_ms, outcome)
    outcome.service = state.services.get(service.id, service)


def on_replica_checked(
    state: ControlState, fact: ReplicaChecked, now_ms: int, outcome: Outcome
) -> None:
    """A readiness probe of a replica has changed its result; a stale report is ignored."""
    found = state.running(fact.allocation_id)
    if found is None or found[2].state is not JobState.RUNNING or found[2].stop_why:
        return
    job = found[0].job
    service = state.services.get(job.service)
    replica = None if service is None else _replica_of(service, job.id)
    if service is None or replica is None:
        return
    detail = fact.detail[:LONGEST_DETAIL]
    is_new = fact.is_ready != replica.ready
    changed = replace(
        replica,
        ready=fact.is_ready,
        port=fact.port or replica.port,
        detail=detail,
        since_ms=now_ms if is_new else replica.since_ms,
    )
    if changed == replica:
        return
    if is_new or (detail and not replica.detail):
        kind = "service_ready" if fact.is_ready else "service_not_ready"
        _write_event(service, replica, kind, now_ms, outcome, ("detail", detail))
    _keep(state, _with(service, changed), outcome)
    state.services_to_reconcile[service.id] = None


def note_restart(state: ControlState, job_id: str, why: str, now_ms: int, outcome: Outcome) -> None:
    """A replica has ended by itself and will be started again."""
    service = state.services[state.jobs[job_id].job.service]
    replica = _replica_of(service, job_id)
    if replica is None:
        return
    why = why[:LONGEST_DETAIL]
    changed = replace(replica, restarts=replica.restarts + 1, last_end=why)
    _keep(state, _with(service, changed), outcome)
    data = (("restarts", changed.restarts), ("detail", why))
    _write_event(service, replica, "service_restart", now_ms, outcome, *data)


def mark(state: ControlState, service_id: str) -> None:
    """Let `reconcile` check a service; ignored if there is none with this id."""
    if service_id in state.services:
        state.services_to_reconcile[service_id] = None


def reconcile(state: ControlState, now_ms: int, outcome: Outcome) -> None:
    """Take the next step of every service that is marked."""
    while state.services_to_reconcile:
        service_id = next(iter(state.services_to_reconcile))
        del state.services_to_reconcile[service_id]
        service = state.services.get(service_id)
        if service is not None:
            _reconcile_one(state, service, now_ms, outcome)


def _create(state: ControlState, service: Service, now_ms: int) -> Service:
    for other in state.services.values():
        if (other.tenant, other.name) == (service.tenant, service.name):
            raise AlreadyExists(
                f"service '{service.name}' already exists in tenant '{service.tenant}' as "
                f"{other.id}; choose another name, or update that one"
            )
    number = state.next_number
    service = replace(service, id=f"svc-{number}", number=number, made_ms=now_ms, changed_ms=now_ms)
    _check(state, service, service.replicas)
    state.next_number += 1
    return service


def _update(state: ControlState, service: Service, wanted: Service, now_ms: int) -> Service:
    if wanted.user != service.user:
        raise Forbidden(
            f"service '{service.name}' runs as '{service.user}'; only that user may change what it "
            "runs (others who may touch it can scale and delete it)"
        )
    changed = replace(
        service,
        job=wanted.job,
        launch=wanted.launch,
        replicas=wanted.replicas,
        port=wanted.port,
        probe=wanted.probe,
        restart=wanted.restart,
        surge=wanted.surge,
        problem="",
    )
    if changed == service:
        return service
    is_other = _what_runs(changed) != _what_runs(service)
    _check(state, changed, max(1, changed.replicas - service.replicas))
    # An update gives ended replicas another chance.
    members = tuple(r for r in changed.members if not (is_other and r.is_over))
    generation = service.generation + is_other
    return replace(changed, generation=generation, changed_ms=now_ms, members=members)


def _scale(state: ControlState, service: Service, replicas: int, now_ms: int) -> Service:
    changed = replace(service, replicas=replicas, problem="", changed_ms=now_ms)
    more = replicas - service.replicas
    if more > 0:
        _check(state, changed, more)
    return changed


def _check(state: ControlState, service: Service, replicas: int) -> None:
    """Reject a replica that could never run, or more replicas than may wait."""
    job = _job(service, 0)
    would_accept(state, Submit(job, service.launch), service.changed_ms)
    check_room(state, replicas)
    check_pending(state, [(job, replicas)])


def _reconcile_one(state: ControlState, service: Service, now_ms: int, outcome: Outcome) -> None:
    members = (_refreshed(state, service, replica, now_ms, outcome) for replica in service.members)
    now = replace(service, members=tuple(replica for replica in members if replica is not None))
    if now.deleted:
        # Ended replicas only block their index, which a deleted service does not need.
        now = replace(now, members=tuple(r for r in now.members if not r.is_over))
        now = _leave(state, now, list(now.live), now_ms, outcome)
        if not now.members:
            del state.services[now.id]
            outcome.writes += [Removed(Service, now.id), _event(now, "service_gone", now_ms)]
            return
    else:
        now = _shrink(state, now, now_ms, outcome)
        now = _grow(state, now, now_ms, outcome)
        _leave_drained_nodes(state, now, outcome)
    if now != state.services[service.id] or now != service:
        _keep(state, now, outcome)


def _refreshed(
    state: ControlState, service: Service, replica: Replica, now_ms: int, outcome: Outcome
) -> Replica | None:
    """The replica updated from its job; None if it is gone and may be replaced."""
    if replica.is_over:
        return replica
    record = state.jobs.get(replica.job_id)
    if record is None:
        end = state.ended.get(replica.job_id)
        ended_itself = end is not None and end.state in {JobState.COMPLETED, JobState.FAILED}
        if replica.leaving or not ended_itself:
            return None
        _write_event(service, replica, "service_replica_over", now_ms, outcome)
        return replace(replica, is_over=True, ready=False, since_ms=now_ms)
    task = record.only_task
    runs = task is not None and task.state is JobState.RUNNING and not task.stop_why
    if not runs and replica.ready:
        _write_event(service, replica, "service_not_ready", now_ms, outcome)
        return replace(replica, ready=False, port=0, since_ms=now_ms)
    if not runs and (replica.port or replica.detail):
        return replace(replica, port=0, detail="")
    if runs and service.probe is None and not replica.ready:
        _write_event(service, replica, "service_ready", now_ms, outcome)
        return replace(replica, ready=True, detail="", since_ms=now_ms)
    return replica


def _shrink(state: ControlState, service: Service, now_ms: int, outcome: Outcome) -> Service:
    """Stop surplus replicas; during an update also old ones, while enough others are ready."""
    live = sorted(service.live, key=lambda r: (r.ready, -r.index))
    old = [replica for replica in live if replica.generation != service.generation]
    wanted = _wanted(service)
    extra = len(live) - wanted - (service.surge and bool(old))
    first = [r for r in old if not r.ready] + [r for r in old if r.ready]
    first += [replica for replica in live if replica not in first]
    gone = first[: max(0, extra)]
    spare = service.ready_count - sum(r.ready for r in gone) - _needed(service)
    for replica in old:
        if replica in gone:
            continue
        if not replica.ready:
            gone.append(replica)
        elif spare > 0:
            gone.append(replica)
            spare -= 1
    return _leave(state, service, gone, now_ms, outcome)


def _grow(state: ControlState, service: Service, now_ms: int, outcome: Outcome) -> Service:
    """Create missing replicas; if one is rejected, try again later."""
    live = service.live
    old = any(replica.generation != service.generation for replica in live)
    wanted = _wanted(service)
    most = wanted + (service.surge and old)
    missing = min(most - len(live), wanted - service.updated_count)
    for _ in range(missing):
        index = _free_index(service)
        made = Outcome()
        try:
            submit(state, Submit(_job(service, index), _launch(service, index)), now_ms, made)
        except SchedulerError as error:
            state.set_timer(now_ms + TRY_AGAIN_MS, SERVICE, service.id)
            return replace(service, problem=str(error))
        outcome.writes += made.writes
        outcome.effects += made.effects
        replica = Replica(
            index=index,
            job_id=made.jobs[0].id,
            generation=service.generation,
            since_ms=now_ms,
        )
        service = replace(service, members=(*service.members, replica), problem="")
    return service if missing > 0 or not service.problem else replace(service, problem="")


def _leave_drained_nodes(state: ControlState, service: Service, outcome: Outcome) -> None:
    """Move replicas away from draining nodes, one at a time while they are ready."""
    spare = service.ready_count - _needed(service)
    for replica in service.live:
        record = state.jobs[replica.job_id]
        task = record.only_task
        if task is None or not task.allocation_id or task.stop_why:
            continue
        placements = state.cluster.running[task.allocation_id].running.allocation.placements
        nodes = (state.cluster.index.resources(placement.node_id).node for placement in placements)
        if not any(node.closed is not None and node.closed.drains for node in nodes):
            continue
        if not replica.ready or spare > 0:
            spare -= replica.ready
            stop(state, task.allocation_id, PREEMPTED, outcome)


def _leave(
    state: ControlState, service: Service, gone: list[Replica], now_ms: int, outcome: Outcome
) -> Service:
    """Stop these replicas and do not replace them."""
    names = {replica.job_id for replica in gone}
    if not names:
        return service
    members = tuple(
        replace(r, leaving=True, ready=False) if r.job_id in names else r for r in service.members
    )
    service = replace(service, members=members)
    # Stored before the jobs are cancelled, because their end refers to it.
    state.services[service.id] = service
    for replica in gone:
        if replica.job_id in state.jobs:
            cancel(state, Cancel(replica.job_id), now_ms, outcome)
    left = tuple(r for r in members if r.is_over or r.job_id in state.jobs)
    return replace(service, members=left)


def _wanted(service: Service) -> int:
    return max(0, service.replicas - sum(replica.is_over for replica in service.members))


def _needed(service: Service) -> int:
    """The number of replicas that must stay ready when another one is stopped."""
    wanted = _wanted(service)
    return wanted if service.surge else max(0, wanted - 1)


def _what_runs(service: Service) -> tuple[object, ...]:
    """The fields whose change requires new replicas."""
    return service.job, service.launch, service.port, service.probe


def _known(state: ControlState, service_id: str) -> Service:
    service = state.services.get(service_id)
    if service is None:
        raise UnknownThing(f"service '{service_id}' is not known; 'tgpu service list' shows yours")
    if service.deleted:
        raise WrongState(f"service '{service.name}' is being deleted")
    return service


def _job(service: Service, index: int) -> Job:
    return replace(
        service.job,
        id="",
        name=f"{service.name}.{index}",
        tenant=service.tenant,
        user=service.user,
        pool=Pool.ONLINE,
        allow_idle=True,
        service=service.id,
        port=service.port,
    )


def _launch(service: Service, index: int) -> Launch:
    own = (("TGPU_SERVICE", service.name), ("TGPU_REPLICA", str(index)))
    environment = (*service.launch.environment, *own)
    return replace(service.launch, environment=environment, probe=service.probe)


def _free_index(service: Service) -> int:
    taken = {replica.index for replica in service.members if not replica.leaving}
    return next(index for index in range(len(taken) + 1) if index not in taken)


def _replica_of(service: Service, job_id: str) -> Replica | None:
    return next((replica for replica in service.members if replica.job_id == job_id), None)


def _with(service: Service, changed: Replica) -> Service:
    members = tuple(changed if r.job_id == changed.job_id else r for r in service.members)
    return replace(service, members=members)


def _keep(state: ControlState, service: Service, outcome: Outcome) -> None:
    state.services[service.id] = service
    outcome.writes.append(service)


def _write_event(
    service: Service,
    replica: Replica,
    kind: str,
    now_ms: int,
    outcome: Outcome,
    *data: tuple[str, str | int],
) -> None:
    index = ("replica", replica.index)
    outcome.writes.append(_event(service, kind, now_ms, index, *data, job_id=replica.job_id))


def _event(
    service: Service, kind: str, now_ms: int, *data: tuple[str, str | int], job_id: str = ""
) -> EventRow:
    own = (("service", service.id), ("name", service.name), ("tenant", service.tenant))
    return EventRow(at_ms=now_ms, kind=kind, job_id=job_id, user=service.user, data=(*own, *data))
