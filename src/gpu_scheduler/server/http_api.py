"""The HTTP applications of a server, made from its settings for what it is at the moment."""

from __future__ import annotations

import os
from functools import partial

from gpu_scheduler import __version__
from gpu_scheduler.api.application import Applications, build
from gpu_scheduler.api.forwarding import Forwarder
from gpu_scheduler.api.service import ApiSettings, Bounds
from gpu_scheduler.api.standing import Standing
from gpu_scheduler.model.launch import Runner
from gpu_scheduler.server.access import host_names
from gpu_scheduler.server.attaching import attach_command_of
from gpu_scheduler.server.grpc_access import speaks_tls
from gpu_scheduler.server.leading import Leading
from gpu_scheduler.server.parts import Parts
from gpu_scheduler.server.prices import prices_of
from gpu_scheduler.server.standby import StandbyService
from gpu_scheduler.settings.groups import Settings


def leading_api(parts: Parts, leading: Leading, standing: Standing | None = None) -> Applications:
    """What a leader answers with."""
    api = _api_settings(parts, leading, standing)
    terminals = leading.agents.terminals
    return build(leading.loop, api, logs=leading.logs, terminals=terminals, signed=parts.signed)


def standby_api(
    parts: Parts, service: StandbyService, standing: Standing, forwarder: Forwarder
) -> Applications:
    """What a standby answers with; the rest is passed on."""
    api = _api_settings(parts, None, standing)
    return build(service, api, signed=parts.signed, forwarder=forwarder)


def _api_settings(parts: Parts, leading: Leading | None, standing: Standing | None) -> ApiSettings:
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
