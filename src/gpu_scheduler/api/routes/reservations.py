"""Advance reservations: create, list, show, cancel. Every caller may see them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.openapi import Router, boolean_parameter
from gpu_scheduler.api.http.request import JSON, Request, Response, decode, form_of, json_response
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import CancelReservation, Reserve
from gpu_scheduler.model.errors import InternalError, InvalidRequest, UnknownThing
from gpu_scheduler.model.names import check_name
from gpu_scheduler.model.plan import AdvanceReservation, ReservationSpec
from gpu_scheduler.wire.times import read_time, write_time

Name = Annotated[str, Meta(max_length=256)]

MAX_MINUTES = 366 * 24 * 60


class ReservationRequest(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """GPUs for a tenant, or for one of its users, until `end` or for `duration_minutes`."""

    gpus: Annotated[int, Meta(ge=1, le=100_000)]
    tenant_id: Annotated[str, Meta(min_length=1, max_length=256)]
    start: str | float | UnsetType = UNSET
    end: str | float | UnsetType = UNSET
    duration_minutes: Annotated[float, Meta(gt=0, le=MAX_MINUTES)] | UnsetType = UNSET
    user: Name = ""
    name: Name = ""
    node: Name = ""
    gpu_model: Name = ""
    gpu_ids: Annotated[list[Annotated[int, Meta(ge=0, le=99_999)]], Meta(max_length=10_000)] = []
    preempt: bool = False


class ReservedGpus(Struct):
    """The reserved GPUs of one node."""

    node: str
    gpu_ids: list[int]


class ReservationForm(Struct):
    """A reservation; `state` is planned, active, ended or cancelled."""

    id: str
    state: str
    tenant_id: str
    user: str
    name: str
    gpus: int
    start: str | None
    end: str | None
    places: list[ReservedGpus]
    preempt: bool
    made_by: str
    made_at: str | None
    over_at: str | None


class ReservationList(Struct):
    """Reservations by their start."""

    reservations: list[ReservationForm]


def read_reservation(request: ReservationRequest, tenant: str, now_ms: int) -> ReservationSpec:
    """Return the requested reservation, with its times in milliseconds."""
    start_ms = now_ms if request.start is UNSET else read_time(request.start, "start")
    if (request.end is UNSET) == (request.duration_minutes is UNSET):
        raise InvalidRequest("give either the end or duration_minutes of the reservation")
    if request.end is not UNSET:
        end_ms = read_time(request.end, "end")
    else:
        end_ms = start_ms + round((request.duration_minutes or 0) * 60_000)
    if end_ms <= start_ms:
        raise InvalidRequest("the end of the reservation is not after its start")
    for field in ("user", "name", "node"):
        if name := getattr(request, field):
            check_name(name, f"the {field} of a reservation")
    if not request.gpu_model.isprintable():
        raise InvalidRequest("gpu_model contains a control character; remove it")
    return ReservationSpec(
        tenant=tenant,
        gpus=request.gpus,
        start_ms=start_ms,
        end_ms=end_ms,
        user=request.user,
        name=request.name,
        node=request.node,
        gpu_model=request.gpu_model,
        indices=tuple(sorted(set(request.gpu_ids))),
        preempts=request.preempt,
    )


def write_reservation(window: AdvanceReservation, calendar_ms: int) -> ReservationForm:
    """Return the JSON form of a reservation."""
    state = "planned" if calendar_ms < window.start_ms else "active"
    if window.over_ms is not None:
        state = "cancelled" if window.cancelled else "ended"
    return form_of(
        ReservationForm,
        window,
        state=state,
        tenant_id=window.tenant,
        gpus=window.gpu_count,
        start=write_time(window.start_ms),
        end=write_time(window.end_ms),
        places=[ReservedGpus(node, list(indices)) for node, indices in window.devices],
        preempt=window.preempts,
        made_at=write_time(window.made_ms),
        over_at=write_time(window.over_ms),
    )


router = Router("reservations")


@router.operation(
    "POST",
    "/reservations",
    body=ReservationRequest,
    response=ReservationForm,
    status=201,
    errors=(403, 404, 409, 413, 415, 422, 503),
    keyed=True,
    example={
        "gpus": 1,
        "tenant_id": "default",
        "start": "2030-01-04T18:00:00Z",
        "duration_minutes": 60,
    },
)
async def create_reservation(context: Context, request: Request) -> Response:
    """Reserve GPUs for a tenant or user for a time (for admins)."""
    request.expect_media(JSON)
    data = await request.body(context.settings.bounds.body_bytes)
    body = decode(ReservationRequest, data)
    tenant = context.resolve_tenant(body.tenant_id)
    wish = read_reservation(body, tenant, context.service.calendar_ms())
    command = Reserve(wish, request.caller.user)

    def render(outcome: Outcome) -> Response:
        return json_response(_outcome_form(context, outcome), status=201)

    return await context.idempotency.run_once(request, data, command, render)


@router.operation(
    "GET",
    "/reservations",
    response=ReservationList,
    query=(boolean_parameter("all", "Also the last ones that are over."),),
)
async def list_reservations(context: Context, request: Request) -> Response:
    """Future and active reservations, by start time."""
    query = context.parse_query(request, "all")
    windows = await asyncio.to_thread(context.service.store.advance_reservations)
    if not query.flag("all"):
        windows = [window for window in windows if window.over_ms is None]
    windows.sort(key=lambda window: (window.start_ms, window.number))
    calendar_ms = context.service.calendar_ms()
    forms = [write_reservation(window, calendar_ms) for window in windows]
    return json_response(ReservationList(forms))


@router.operation("GET", "/reservations/{reservation_id}", response=ReservationForm, errors=(404,))
async def get_reservation(context: Context, request: Request) -> Response:
    """One reservation."""
    context.parse_query(request)
    return json_response(await _stored_form(context, request.params["reservation_id"]))


@router.operation(
    "DELETE",
    "/reservations/{reservation_id}",
    response=ReservationForm,
    errors=(403, 404, 409, 503),
)
async def cancel_reservation(context: Context, request: Request) -> Response:
    """Cancel a reservation before or during its time (for admins)."""
    context.parse_query(request)
    wanted = request.params["reservation_id"]
    outcome = await context.service.apply(CancelReservation(wanted), request.caller)
    if outcome.advance_reservation is None:  # a repeated request changes nothing
        return json_response(await _stored_form(context, wanted))
    return json_response(_outcome_form(context, outcome))


async def _stored_form(context: Context, wanted: str) -> ReservationForm:
    for window in await asyncio.to_thread(context.service.store.advance_reservations):
        if window.id == wanted:
            return write_reservation(window, context.service.calendar_ms())
    raise UnknownThing(f"reservation '{wanted}' is not known")


def _outcome_form(context: Context, outcome: Outcome) -> ReservationForm:
    window: AdvanceReservation | None = outcome.advance_reservation
    if window is None:
        raise InternalError("a reservation was changed and is not there")
    return write_reservation(window, context.service.calendar_ms())
