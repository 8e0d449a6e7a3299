"""GpuReservation: GPUs that are kept for a queue from one time to another."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec

from gpu_scheduler.kubernetes.crds.claim import Name
from gpu_scheduler.kubernetes.crds.conditions import Conditions
from gpu_scheduler.kubernetes.crds.definition import Column, CustomResource
from gpu_scheduler.kubernetes.crds.node_status import Index
from gpu_scheduler.kubernetes.crds.schema import Rule, a_set, documented, keyed_by
from gpu_scheduler.kubernetes.objects import Object, Value


class ReservationPhase(StrEnum):
    """How far a reservation has come."""

    PENDING = "Pending"
    PLANNED = "Planned"
    ACTIVE = "Active"
    ENDED = "Ended"
    REJECTED = "Rejected"


class GpuReservationSpec(Value, frozen=True, kw_only=True):
    """Which GPUs are kept, for whom, and when."""

    queue: Annotated[
        str,
        documented("The GpuQueue whose claims may use the GPUs.", min_length=1, max_length=253),
    ]
    namespaces: Annotated[
        tuple[Name, ...],
        documented(
            "Only claims of these namespaces; by default all of the queue.",
            max_length=256,
            **a_set(),
        ),
    ] = ()
    count: Annotated[int, documented("The number of GPUs.", ge=1, le=100_000)]
    start_time: Annotated[datetime, documented("When the GPUs are free for the queue.")]
    end_time: Annotated[datetime, documented("When they are available to all again.")]
    model: Annotated[str, documented("The GPU model; by default any.", max_length=63)] = ""
    node: Annotated[str, documented("The node; by default any.", max_length=253)] = ""
    gpu_indices: Annotated[
        tuple[Index, ...],
        documented("Which GPUs of the node; by default any.", max_length=1024, **a_set()),
    ] = msgspec.field(default=(), name="gpuIndices")
    preempts: Annotated[
        bool,
        documented(
            "Evict preemptible pods that still use the GPUs shortly before the start. Without it, "
            "only GPUs that are free by then can be reserved."
        ),
    ] = False

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            expression="self.endTime > self.startTime",
            message="endTime must be after startTime",
            field=".endTime",
        ),
        Rule(
            expression="!has(self.gpuIndices) || size(self.gpuIndices) == 0 || has(self.node)",
            message="gpuIndices belong to a node; set node",
            field=".gpuIndices",
        ),
        Rule(
            expression="!has(self.gpuIndices) || size(self.gpuIndices) == 0"
            " || size(self.gpuIndices) >= self.count",
            message="gpuIndices must name at least as many GPUs as count",
            field=".gpuIndices",
        ),
        Rule(
            expression="self.queue == oldSelf.queue",
            message="the queue of a reservation cannot change; create another reservation",
            field=".queue",
        ),
    )


class ReservedDevices(Value, frozen=True, kw_only=True):
    """GPUs of one node that are kept."""

    node: Annotated[str, documented("The node.", max_length=253)]
    indices: Annotated[
        tuple[Index, ...], documented("The indices of the GPUs.", max_length=1024)
    ] = ()


class GpuReservationStatus(Value, frozen=True, kw_only=True):
    """What the scheduler has kept."""

    phase: Annotated[
        ReservationPhase | None,
        documented(
            "Pending is not decided, Planned has its GPUs for later, Active is between start and "
            "end, Ended is over, Rejected cannot be guaranteed."
        ),
    ] = None
    devices: Annotated[
        tuple[ReservedDevices, ...],
        documented("The GPUs that are kept.", max_length=4096, **keyed_by("node")),
    ] = ()
    where: Annotated[
        str, documented("The same for people, such as node-1[0,1].", max_length=4096)
    ] = ""
    missing: Annotated[int, documented("GPUs that broke and could not be replaced.", ge=0)] = 0
    reason: Annotated[
        str, documented("Why it was rejected or has too few GPUs, as a sentence.", max_length=4096)
    ] = ""
    observed_generation: Annotated[
        int | None, documented("The generation of the spec that this status is about.", minimum=0)
    ] = None
    conditions: Conditions = ()


class GpuReservation(Object, frozen=True, kw_only=True):
    """GPUs that are kept for the claims of a queue from one time to another. Other claims use them
    before if they end in time.
    """

    spec: Annotated[GpuReservationSpec, documented("Which GPUs are kept, for whom, and when.")]
    status: Annotated[GpuReservationStatus, documented("What the scheduler has kept.")] = (
        GpuReservationStatus()
    )


GPU_RESERVATIONS = CustomResource(
    type=GpuReservation,
    kind="GpuReservation",
    plural="gpureservations",
    is_namespaced=False,
    short_names=("gres",),
    columns=(
        Column(name="Phase", path=".status.phase"),
        Column(name="GPUs", path=".spec.count", type="integer"),
        Column(name="Queue", path=".spec.queue"),
        Column(name="Start", path=".spec.startTime"),
        Column(name="End", path=".spec.endTime"),
        Column(name="Where", path=".status.where", is_wide=True),
        Column(name="Reason", path=".status.reason"),
    ),
)
