"""Advance reservations: create, list, show, cancel. Every caller may see them."""

from __future__ import annotations

import msgspec

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.operations import Router, boolean_parameter
from gpu_scheduler.api.http.request import JSON, Request, Response, decode, json_response
from gpu_scheduler.api.interfaces import ExtraWrites
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import CancelReservation, Reserve
from gpu_scheduler.model.errors import InternalError, UnknownThing
from gpu_scheduler.model.plan import AdvanceReservation
from gpu_scheduler.wire.reservations import (
    ReservationForm,
    ReservationList,
    ReservationRequest,
    read_reservation,
    write_reservation,
)

_REQUEST = msgspec.json.Decoder(ReservationRequest)


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
    asked = decode(_REQUEST, data)
    service = context.service
    wish = read_reservation(asked, context.resolve_tenant(asked.tenant_id), service.now_ms())

    def render(outcome: Outcome) -> Response:
        return json_response(_made(context, outcome), status=201)

    async def act(extra_writes: ExtraWrites | None) -> Outcome:
        message = Reserve(wish, request.caller.user)
        return await service.apply(message, request.caller, extra_writes=extra_writes)

    return await context.idempotency.run_once(request, data, act, render)


@router.operation(
    "GET",
    "/reservations",
    response=ReservationList,
    query=(boolean_parameter("all", "ExtraWrites the last ones that are over."),),
)
async def list_reservations(context: Context, request: Request) -> Response:
    """Future and active reservations, by start time."""
    query = context.parse_query(request, "all")
    windows = context.service.store.advance_reservations()
    if not query.flag("all"):
        windows = [window for window in windows if window.over_ms is None]
    windows.sort(key=lambda window: (window.start_ms, window.number))
    now_ms = context.service.now_ms()
    return json_response(ReservationList([write_reservation(window, now_ms) for window in windows]))


@router.operation("GET", "/reservations/{reservation_id}", response=ReservationForm, errors=(404,))
async def get_reservation(context: Context, request: Request) -> Response:
    """One reservation."""
    context.parse_query(request)
    return json_response(_kept(context, request.params["reservation_id"]))


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
    if outcome.window is None:  # a repeated request changes nothing
        return json_response(_kept(context, wanted))
    return json_response(_made(context, outcome))


def _kept(context: Context, wanted: str) -> ReservationForm:
    for window in context.service.store.advance_reservations():
        if window.id == wanted:
            return write_reservation(window, context.service.now_ms())
    raise UnknownThing(f"reservation '{wanted}' is not known")


def _made(context: Context, outcome: Outcome) -> ReservationForm:
    window: AdvanceReservation | None = outcome.window
    if window is None:
        raise InternalError("a reservation was changed and is not there")
    return write_reservation(window, context.service.now_ms())
