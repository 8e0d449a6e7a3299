"""The JSON schemas of services, and their conversion."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta, Struct

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.launch import Probe, ProbeKind, Runner
from gpu_scheduler.model.service import Restart, RestartRule, Service
from gpu_scheduler.wire.job_reader import JobReader
from gpu_scheduler.wire.jobs import (
    Arguments,
    Count,
    JobRequest,
    MemberRequest,
    Name,
    Notify,
    Priority,
    Script,
    Text,
    Variables,
)

MAX_PROBE_SECONDS = 86_400
Seconds = Annotated[float, Meta(gt=0, le=MAX_PROBE_SECONDS)]
Replicas = Annotated[int, Meta(ge=0, le=1000)]
Port = Annotated[int, Meta(ge=0, le=65_535)]


class ReadinessRequest(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The readiness probe of a replica: exactly one of http (a path), tcp and command."""

    http: Text = ""
    tcp: bool = False
    command: Arguments = []
    interval_seconds: Annotated[float, Meta(ge=0.1, le=MAX_PROBE_SECONDS)] = 5.0
    timeout_seconds: Annotated[float, Meta(ge=0.01, le=MAX_PROBE_SECONDS)] = 2.0
    failures: Annotated[int, Meta(ge=1, le=1000)] = 3
    grace_seconds: Annotated[float, Meta(ge=0, le=MAX_PROBE_SECONDS)] = 60.0


class RestartRequest(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """When a replica that has ended is restarted, and after which back-off."""

    policy: Restart = Restart.ALWAYS
    backoff_seconds: Seconds = 1.0
    max_backoff_seconds: Seconds = 300.0
    reset_after_seconds: Seconds = 60.0


class ServiceRequest(
    MemberRequest, Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """A service. One of command, script and image must be given.

    With `port` 0 each replica gets a free port in the variable PORT. The other fields are as for
    jobs.
    """

    name: Annotated[str, Meta(min_length=1, max_length=63)]
    replicas: Replicas = 1
    port: Port = 0
    readiness: ReadinessRequest | None = None
    restart: Restart | RestartRequest = Restart.ALWAYS
    surge: bool = False
    tenant_id: Name = ""
    priority: Priority = 750
    preemptible: bool = False
    requeue_on_node_loss: bool = False
    command: Arguments = []
    args: Arguments = []
    script: Script = ""
    image: Text = ""
    environment: Variables = {}
    working_directory: Text = ""
    umask: Annotated[int, Meta(ge=0, le=0o777)] | None = None
    runner: Literal["process", "container"] | None = None
    mounts: Annotated[list[Text], Meta(max_length=256)] = []
    conda: Text = ""
    grace_seconds: Annotated[float, Meta(ge=0, le=MAX_PROBE_SECONDS)] | None = None
    max_processes: Count = 0
    notify: Notify = []


_JOB_FIELDS = frozenset(JobRequest.__struct_fields__)


def read_service(request: ServiceRequest, reader: JobReader) -> Service:
    """Return the requested service; the caller comes from the reader."""
    names = [name for name in request.__struct_fields__ if name in _JOB_FIELDS]
    values = {name: getattr(request, name) for name in names}
    values["runner"] = None if request.runner is None else Runner(request.runner)
    submission = reader.read(JobRequest(**values, pool=Pool.ONLINE))
    launch = submission.launch
    if launch.runner not in {Runner.PROCESS, Runner.CONTAINER}:
        launch = replace(launch, runner=Runner.PROCESS)
    job = submission.job
    return Service(
        id="",
        number=0,
        name=request.name,
        tenant=job.tenant,
        user=job.user,
        job=job,
        launch=launch,
        replicas=request.replicas,
        port=request.port,
        probe=None if request.readiness is None else _probe(request.readiness),
        restart=_rule(request.restart),
        surge=request.surge,
    )


def _probe(request: ReadinessRequest) -> Probe:
    kinds = [
        kind
        for kind, is_given in (
            (ProbeKind.HTTP, request.http),
            (ProbeKind.TCP, request.tcp),
            (ProbeKind.COMMAND, request.command),
        )
        if is_given
    ]
    if len(kinds) != 1:
        named = " and ".join(kind.value for kind in kinds) or "nothing"
        raise InvalidRequest(
            f"readiness has {named}; give exactly one of http (a path such as /health), tcp: "
            "true, or command (a list of arguments)"
        )
    return Probe(
        kind=kinds[0],
        path=request.http or "/",
        argv=tuple(request.command),
        interval_ms=round(request.interval_seconds * 1000),
        timeout_ms=round(request.timeout_seconds * 1000),
        failures=request.failures,
        grace_ms=round(request.grace_seconds * 1000),
    )


def _rule(request: Restart | RestartRequest) -> RestartRule:
    if isinstance(request, Restart):
        return RestartRule(policy=request)
    backoff_ms = max(1, round(request.backoff_seconds * 1000))
    return RestartRule(
        policy=request.policy,
        backoff_ms=backoff_ms,
        max_backoff_ms=max(1, round(request.max_backoff_seconds * 1000)),
        reset_after_ms=max(1, round(request.reset_after_seconds * 1000)),
    )
