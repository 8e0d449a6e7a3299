"""GpuReservations as advance reservations of the engine, and what their statuses say.

Pure. A reservation that has its GPUs keeps them: they stand in its status, which the next leader
reads, and until the caches show that status, in `ReservationMemory`. One that has none yet gets
them here, or a sentence that says what would fit; that is tried again every minute, because pods
end. Broken GPUs are replaced.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpu_scheduler.engine.reservation.advance_reservations import jobs_in_the_way
from gpu_scheduler.engine.reservation.reserved_devices import (
    Devices,
    broken_devices,
    choose_devices,
    with_replacements,
)
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.kubernetes.crds.reservation import (
    GpuReservation,
    GpuReservationStatus,
    ReservationPhase,
    ReservedDevices,
)
from gpu_scheduler.kubernetes.scheduler.objects_view import Key
from gpu_scheduler.kubernetes.scheduler.queues import DEFAULT_QUEUE, Queues
from gpu_scheduler.model.errors import CallerError, InvalidRequest, UnknownThing
from gpu_scheduler.model.node import canonical_model_name
from gpu_scheduler.model.plan import LONGEST_MS, AdvanceReservation, ReservationSpec

AGAIN_MS = 60_000
"""So often GPUs are searched for a reservation that has none, or too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found for one version of a reservation, and when."""

    generation: int
    at_ms: int
    devices: Devices = ()
    refusal: str = ""
    broken: int = 0


ReservationMemory = Mapping[str, Found]
"""What was found for reservations, by their uid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """All reservations of one moment.

    `found` is to be remembered; `statuses` is what objects should say, by the name of each.
    `in_the_way` are allocations that have to go, with the reservation that they are evicted for.
    """

    found: ReservationMemory = field(default_factory=dict)
    statuses: Mapping[str, GpuReservationStatus] = field(default_factory=dict)
    in_the_way: tuple[tuple[str, str], ...] = ()


def reserve(
    state: ClusterState,
    objects: Mapping[Key, GpuReservation],
    queues: Queues,
    memory: ReservationMemory,
    now_ms: int,
) -> Reserved:
    """Give the engine's state all reservations that have their GPUs, or can have them."""
    found: dict[str, Found] = {}
    ordered = sorted(
        objects.values(), key=lambda one: (_ms(one.metadata.creation_timestamp), one.key)
    )
    live = [one for one in ordered if _ms(one.spec.end_time) > now_ms]
    # Those that have GPUs come first, so that a new one never takes them.
    for number, one in enumerate(live, 1):
        known = _known(one, memory)
        if known is not None and known.devices:
            try:
                _check(one, queues, state)
                _add(state, one, number, queues, known.devices)
            except CallerError as error:
                known = replace(known, devices=(), at_ms=now_ms, refusal=str(error))
            found[one.metadata.uid] = known
    for number, one in enumerate(live, 1):
        known = found.get(one.metadata.uid)
        if known is None:
            known = _search(state, one, number, queues, memory.get(one.metadata.uid), now_ms)
        elif known.devices:
            known = _mend(state, one, known, now_ms)
        found[one.metadata.uid] = known
    return Reserved(
        found=found,
        statuses={
            one.metadata.name: _status(one, found.get(one.metadata.uid), now_ms) for one in ordered
        },
        in_the_way=tuple(_in_the_way(state, now_ms)),
    )


def _known(one: GpuReservation, memory: ReservationMemory) -> Found | None:
    """The GPUs that this version of a reservation has: what its status says, if it says any."""
    generation = one.metadata.generation
    remembered = memory.get(one.metadata.uid)
    if remembered is not None and remembered.generation != generation:
        remembered = None
    if one.status.observed_generation != (generation or None) or not one.status.devices:
        return remembered
    devices = tuple((part.node, part.indices) for part in one.status.devices)
    if remembered is not None and remembered.devices == devices:
        return remembered
    return Found(generation=generation, at_ms=0, devices=devices)


def _add(
    state: ClusterState, one: GpuReservation, number: int, queues: Queues, devices: Devices
) -> None:
    spec = one.spec
    state.advance_reservations[one.metadata.name] = AdvanceReservation(
        id=one.metadata.name,
        number=number,
        tenant=spec.queue,
        user=_user(one, queues),
        start_ms=_ms(spec.start_time),
        end_ms=_ms(spec.end_time),
        devices=devices,
        preempts=spec.preempts,
        asked_node=spec.node,
        asked_model=_model(one),
        asked_indices=spec.gpu_indices,
    )


def _search(
    state: ClusterState,
    one: GpuReservation,
    number: int,
    queues: Queues,
    last: Found | None,
    now_ms: int,
) -> Found:
    """Choose GPUs for a reservation that has none."""
    generation = one.metadata.generation
    if last is not None and last.generation == generation and now_ms < last.at_ms + AGAIN_MS:
        return last
    try:
        _check(one, queues, state)
        devices = choose_devices(state, _wish(one, queues, now_ms))
    except CallerError as error:
        return Found(generation=generation, at_ms=now_ms, refusal=str(error))
    _add(state, one, number, queues, devices)
    return Found(generation=generation, at_ms=now_ms, devices=devices)


def _check(one: GpuReservation, queues: Queues, state: ClusterState) -> None:
    """Reject what no GPUs could help."""
    spec = one.spec
    if spec.queue in queues.refusals:
        raise InvalidRequest(queues.refusals[spec.queue])
    if spec.queue not in queues.tenants and spec.queue != DEFAULT_QUEUE:
        raise UnknownThing(f"GpuQueue '{spec.queue}' does not exist; create it")
    if _ms(spec.end_time) - _ms(spec.start_time) > LONGEST_MS:
        raise InvalidRequest("it lasts more than a year; make it shorter")
    if spec.node and spec.node not in state.index.by_id:
        raise UnknownThing(f"node '{spec.node}' does not exist; name another one, or none")


def _wish(one: GpuReservation, queues: Queues, now_ms: int) -> ReservationSpec:
    spec = one.spec
    start_ms, end_ms = max(now_ms, _ms(spec.start_time)), _ms(spec.end_time)
    return ReservationSpec(
        tenant=spec.queue,
        user=_user(one, queues),
        gpus=spec.count,
        start_ms=start_ms,
        end_ms=end_ms,
        node=spec.node,
        gpu_model=_model(one),
        indices=spec.gpu_indices,
        preempts=spec.preempts,
    )


def _user(one: GpuReservation, queues: Queues) -> str:
    """The namespace that the reservation is for; empty for all of its queue."""
    wanted = set(one.spec.namespaces)
    of_queue = set(queues.namespaces(one.spec.queue))
    if not wanted or (of_queue and of_queue <= wanted):
        return ""
    if len(wanted) > 1:
        raise InvalidRequest(
            f"it is for {len(wanted)} of the namespaces of its queue; make one reservation for "
            "each, or leave namespaces out"
        )
    return next(iter(wanted))


def _mend(state: ClusterState, one: GpuReservation, known: Found, now_ms: int) -> Found:
    """Replace broken GPUs of a reservation, as many as possible."""
    reservation = state.advance_reservations[one.metadata.name]
    broken = broken_devices(state, reservation)
    if not broken:
        return replace(known, broken=0)
    if known.broken == len(broken) and now_ms < known.at_ms + AGAIN_MS:
        return known
    devices = with_replacements(state, reservation, broken, now_ms)
    mended = replace(reservation, devices=devices)
    state.advance_reservations[one.metadata.name] = mended
    left = len(broken_devices(state, mended))
    return replace(known, devices=devices, at_ms=now_ms, broken=left)


def _in_the_way(state: ClusterState, now_ms: int) -> Iterator[tuple[str, str]]:
    """What still runs on the GPUs of a reservation shortly before its start."""
    for name, reservation in sorted(state.advance_reservations.items()):
        if now_ms >= reservation.start_ms - state.policy.eviction_ms:
            for entry in jobs_in_the_way(state, reservation):
                if not entry.running.stopping:
                    yield entry.running.allocation.id, name


def _status(one: GpuReservation, found: Found | None, now_ms: int) -> GpuReservationStatus:
    """What the object should say; conditions are added by `reporting`."""
    if found is None:
        return GpuReservationStatus(
            phase=ReservationPhase.ENDED,
            devices=one.status.devices,
            where=one.status.where,
            observed_generation=one.metadata.generation or None,
        )
    if not found.devices:
        return GpuReservationStatus(
            phase=ReservationPhase.REJECTED,
            reason=found.refusal,
            observed_generation=one.metadata.generation or None,
        )
    begun = now_ms >= _ms(one.spec.start_time)
    lacks = ""
    if found.broken:
        lacks = (
            f"{found.broken} of its GPUs are broken or on a lost node, and no other could replace "
            "them yet"
        )
    return GpuReservationStatus(
        phase=ReservationPhase.ACTIVE if begun else ReservationPhase.PLANNED,
        devices=tuple(
            ReservedDevices(node=node, indices=tuple(indices)) for node, indices in found.devices
        ),
        where=" ".join(f"{node}[{','.join(map(str, indices))}]" for node, indices in found.devices)[
            :4096
        ],
        missing=found.broken,
        reason=lacks,
        observed_generation=one.metadata.generation or None,
    )


def _model(one: GpuReservation) -> str:
    return canonical_model_name(one.spec.model) if one.spec.model else ""


def _ms(at: datetime | None) -> int:
    return 0 if at is None else int(at.timestamp() * 1000)
