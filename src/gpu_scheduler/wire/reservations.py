"""The JSON schemas of advance reservations, and their conversion."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from gpu_scheduler.model.errors import InvalidRequest
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
    for field in ("user", "name", "node", "gpu_model"):
        if not getattr(request, field).isprintable():
            raise InvalidRequest(f"{field} contains a control character; remove it")
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


def write_reservation(window: AdvanceReservation, now_ms: int) -> ReservationForm:
    """Return the JSON form of a reservation."""
    state = "planned" if now_ms < window.start_ms else "active"
    if window.over_ms is not None:
        state = "cancelled" if window.cancelled else "ended"
    return ReservationForm(
        id=window.id,
        state=state,
        tenant_id=window.tenant,
        user=window.user,
        name=window.name,
        gpus=window.gpu_count,
        start=write_time(window.start_ms),
        end=write_time(window.end_ms),
        places=[ReservedGpus(node, list(indices)) for node, indices in window.devices],
        preempt=window.preempts,
        made_by=window.made_by,
        made_at=write_time(window.made_ms),
        over_at=write_time(window.over_ms),
    )
