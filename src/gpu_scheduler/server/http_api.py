"""The HTTP applications of a server, made from its settings for whoever serves at the moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from gpu_scheduler import __version__
from gpu_scheduler.api.application import Applications, build
from gpu_scheduler.api.bearer import Verifier
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.service import ApiSettings, Bounds
from gpu_scheduler.model.launch import Runner
from gpu_scheduler.server.access import host_names
from gpu_scheduler.server.attaching import attach_command_of
from gpu_scheduler.server.leading import Leading
from gpu_scheduler.server.prices import prices_of
from gpu_scheduler.settings.groups import Settings
from gpu_scheduler.settings.places import Paths

Signed = Callable[[Context], Verifier] | None


def leading_api(
    settings: Settings, paths: Paths, leading: Leading, signed: Signed, warnings: tuple[str, ...]
) -> Applications:
    """What a leader answers with."""
    api = ApiSettings(
        server_uid=os.geteuid(),
        version=__version__,
        admins=settings.security.admins,
        runner=Runner(settings.jobs.runner),
        attach=partial(attach_command_of, paths.scratch),
        notifications=leading.notifications,
        vitals=leading.vitals,
        prices=prices_of(settings.costs),
        host_names=host_names(settings.api),
        auth=settings.auth.enabled,
        max_token_days=settings.auth.max_token_days,
        warnings=warnings,
        bounds=bounds_of(settings),
    )
    return build(leading.loop, api, logs=leading.logs, signed=signed)


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
