"""Notification targets: list them, and send a test notification."""

from __future__ import annotations

from msgspec import Struct

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.openapi import Router
from gpu_scheduler.api.http.request import Request, Response, json_response
from gpu_scheduler.model.errors import UnknownThing
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.notify.event_rules import default_target
from gpu_scheduler.notify.retry_queue import ADDRESSES, Lane
from gpu_scheduler.notify.service import Notifications
from gpu_scheduler.settings.fields import Target
from gpu_scheduler.wire.times import write_time


class TargetForm(Struct):
    """A notification target. Its queue and errors are for admins."""

    name: str
    kind: str
    events: list[str]
    tenants: list[str]
    for_jobs: bool
    is_default: bool
    waiting: int | None = None
    oldest_at: str | None = None
    next_try_at: str | None = None
    last_error: str | None = None
    delivered: int | None = None
    failed_tries: int | None = None
    given_up: int | None = None


class TargetList(Struct):
    """All targets that the caller may use."""

    targets: list[TargetForm]
    job_webhooks: bool


class TargetTested(Struct):
    """Whether a test notification was delivered, and if not, why."""

    target: str
    delivered: bool
    error: str = ""


router = Router("notifications")


@router.operation("GET", "/notifications", name="list_notification_targets", response=TargetList)
async def list_targets(context: Context, request: Request) -> Response:
    """The notification targets, and (for admins) their queues."""
    context.parse_query(request)
    notifications = context.settings.notifications
    if notifications is None:
        return json_response(TargetList([], job_webhooks=False))
    settings = notifications.settings
    default = default_target(settings, request.caller.tenant)
    forms = []
    for name, target in settings.targets.items():
        if not _may_know(request.caller, target):
            continue
        form = TargetForm(
            name=name,
            kind=target.kind,
            events=list(target.events),
            tenants=list(target.tenants),
            for_jobs=target.for_jobs,
            is_default=name == default,
        )
        if request.caller.is_admin:
            _add_lane(form, notifications.lanes.get(name, Lane()))
        forms.append(form)
    if request.caller.is_admin and settings.allow_job_webhooks:
        form = TargetForm(ADDRESSES, "webhook", [], [], for_jobs=True, is_default=False)
        _add_lane(form, notifications.lanes.get(ADDRESSES, Lane()))
        forms.append(form)
    return json_response(TargetList(forms, job_webhooks=settings.allow_job_webhooks))


@router.operation(
    "POST",
    "/notifications/{target}/test",
    name="test_notification_target",
    response=TargetTested,
    errors=(404,),
)
async def test_target(context: Context, request: Request) -> Response:
    """Send a test notification at once, and return whether it was delivered."""
    context.parse_query(request)
    notifications = context.settings.notifications
    name = request.params["target"]
    known = None if notifications is None else notifications.settings.targets.get(name)
    if known is None or notifications is None or not _may_know(request.caller, known):
        raise UnknownThing(
            f"there is no target '{name[:60]}'; {_named(notifications, request.caller)}"
        )
    if not request.caller.is_admin:
        # A test is delivered at once, by a program of the site perhaps.
        context.target_tests.take(request.caller.user)
    error = await notifications.test(name, request.caller.user)
    return json_response(TargetTested(target=name, delivered=not error, error=error))


def _may_know(caller: Caller, target: Target) -> bool:
    """Whether a caller may see a target: admins all, users those that their jobs may use."""
    mine = not target.tenants or any(map(caller.may_submit_to, target.tenants))
    return caller.is_admin or (target.for_jobs and mine)


def _named(notifications: Notifications | None, caller: Caller) -> str:
    targets = {} if notifications is None else notifications.settings.targets
    names = [name for name, target in targets.items() if _may_know(caller, target)]
    return f"known: {', '.join(names)}" if names else "none is set up (notifications.targets)"


def _add_lane(form: TargetForm, lane: Lane) -> None:
    form.waiting = len(lane.waiting)
    form.oldest_at = write_time(lane.oldest_ms)
    next_ms = min((row.next_ms for row in lane.waiting.values()), default=None)
    form.next_try_at = write_time(None if next_ms is None else max(next_ms, lane.paused_until_ms))
    form.last_error = lane.last_error
    form.delivered = lane.delivered
    form.failed_tries = lane.failures
    form.given_up = lane.given_up
