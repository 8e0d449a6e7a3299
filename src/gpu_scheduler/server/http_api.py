"""The HTTP applications of a server, made from its settings for what it is at the moment."""

from __future__ import annotations

import os
from functools import partial

from gpu_scheduler import __version__
from gpu_scheduler.agent.runners.registry import attach_command
from gpu_scheduler.agent.work import Work, WorkDevice
from gpu_scheduler.api.application import Applications, build
from gpu_scheduler.api.ha.gate import LeadershipStatus
from gpu_scheduler.api.ha.proxy import LeaderProxy
from gpu_scheduler.api.interfaces import ApiSettings, Bounds
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch, Runner
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.server.access import host_names
from gpu_scheduler.server.from_settings import prices_of
from gpu_scheduler.server.grpc import speaks_tls
from gpu_scheduler.server.ha.components import Parts
from gpu_scheduler.server.ha.leader import Leading
from gpu_scheduler.server.ha.standby import StandbyService
from gpu_scheduler.settings.schema import Settings

# --- How a person on this machine enters the session of a running job.


def attach_command_of(
    scratch: str, node: str, job: Job, launch: Launch, allocation: Allocation
) -> tuple[str, ...]:
    """The command for the first member; the same facts name the session as when it was made.

    None for a job on another node: what would enter its session does not lead there from here.
    """
    placement = allocation.placements[0]
    if placement.node_id != node:
        return ()
    return attach_command(
        Work(
            allocation_id=allocation.id,
            member=placement.member,
            job_id=job.id,
            task=allocation.task,
            attempt=allocation.attempt,
            name=job.name,
            uid=launch.uid,
            gid=launch.gid,
            user=launch.user,
            runner=launch.runner.value,
            image=launch.image,
            devices=tuple(WorkDevice(index=share.index) for share in placement.devices),
            scratch_dir=f"{scratch}/{allocation.id}.{placement.member}",
        )
    )


# --- The HTTP applications of a server, made from its settings for what it is at the moment.


def leading_api(
    parts: Parts, leading: Leading, standing: LeadershipStatus | None = None
) -> Applications:
    """What a leader answers with."""
    api = _api_settings(parts, leading, standing)
    terminals = leading.agents.terminals
    return build(leading.loop, api, logs=leading.logs, terminals=terminals, signed=parts.signed)


def standby_api(
    parts: Parts, service: StandbyService, standing: LeadershipStatus, forwarder: LeaderProxy
) -> Applications:
    """What a standby answers with; the rest is passed on."""
    api = _api_settings(parts, None, standing)
    return build(service, api, signed=parts.signed, forwarder=forwarder)


def _api_settings(
    parts: Parts, leading: Leading | None, standing: LeadershipStatus | None
) -> ApiSettings:
    settings = parts.settings
    return ApiSettings(
        server_uid=os.geteuid(),
        version=__version__,
        admins=settings.security.admins,
        runner=Runner(settings.jobs.runner),
        attach=partial(attach_command_of, parts.paths.scratch, parts.node),
        notifications=None if leading is None else leading.notifications,
        vitals=None if leading is None else leading.vitals,
        prices=prices_of(settings.costs),
        host_names=host_names(settings.api),
        auth=settings.auth.enabled,
        max_token_days=settings.auth.max_token_days,
        warnings=parts.warnings,
        plain_nodes=not speaks_tls(settings),
        bounds=bounds_of(settings),
        standing=standing,
        started=parts.started,
    )


def bounds_of(settings: Settings) -> Bounds:
    """How much may come in."""
    api = settings.api
    bulk_bytes = round(api.max_body_mb * (1 << 20))
    return Bounds(
        body_bytes=min(bulk_bytes, Bounds().body_bytes),
        bulk_bytes=bulk_bytes,
        bulk_jobs=api.max_jobs_per_request,
        receive_seconds=api.slow_request_s,
        requests_per_second=api.requests_per_second,
        requests_burst=api.requests_burst,
    )
