"""What one attempt held, from when to when: the unit of all that is charged and billed.

An allocation and its end come in, an interval comes out; it can be cut at any moment, and the
pieces together always amount to the whole. Amounts do not change within an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpu_scheduler.ledger.units import Period
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.job import ENDED, Job, JobState
from gpu_scheduler.model.plan import Allocation

OUTCOMES = ENDED | {JobState.PREEMPTED, JobState.PENDING}
"""How an attempt can end; pending means that it went back to the queue, as when a node is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageInterval:
    """What an allocation held from `start_ms` up to, not including, `end_ms`.

    `gpu_models` divides `gpu_milli` by model, in the order of names. `outcome` is how the attempt
    ended, None while it runs. `lost_ms` is run time whose result was lost, `energy_uj` what its
    devices were measured to draw; like the outcome both belong to the moment of the end.
    """

    allocation_id: str
    job_id: str
    task: int | None = None
    tenant: str
    user: str
    attempt: int
    start_ms: int
    end_ms: int
    gpu_milli: int = 0
    gpu_memory_mb: int = 0
    cpu_milli: int = 0
    memory_mb: int = 0
    gpu_models: tuple[tuple[str, int], ...] = ()
    outcome: JobState | None = None
    lost_ms: int = 0
    energy_uj: int = 0

    def __post_init__(self) -> None:
        """Refuse what would make a total shrink or a bill miss a GPU."""
        if self.end_ms < self.start_ms:
            raise InternalError(f"{self._name} ends at {self.end_ms}, before {self.start_ms}")
        amounts = (
            *(self.gpu_milli, self.gpu_memory_mb, self.cpu_milli, self.memory_mb),
            *(self.lost_ms, self.energy_uj),
        )
        if min(amounts) < 0:
            raise InternalError(f"{self._name} holds a negative amount: {amounts}")
        if sum(milli for _, milli in self.gpu_models) != self.gpu_milli:
            raise InternalError(
                f"{self._name} holds {self.gpu_milli} milli-GPU, by model {self.gpu_models}"
            )
        models = [model for model, _ in self.gpu_models]
        if models != sorted(set(models)) or any(milli < 0 for _, milli in self.gpu_models):
            raise InternalError(f"{self._name} has models out of order: {self.gpu_models}")
        if self.outcome is not None and self.outcome not in OUTCOMES:
            raise InternalError(f"{self._name} cannot have ended as {self.outcome}")

    @property
    def duration_ms(self) -> int:
        return self.end_ms - self.start_ms

    @property
    def gpu_milli_ms(self) -> int:
        """GPU time."""
        return self.gpu_milli * self.duration_ms

    @property
    def lost_gpu_milli_ms(self) -> int:
        """GPU time whose result was lost."""
        return self.gpu_milli * self.lost_ms

    @property
    def _name(self) -> str:
        return f"the interval of allocation {self.allocation_id}"

    def split_at(self, at_ms: int) -> tuple[UsageInterval, UsageInterval]:
        """Cut in two. What belongs to the end of the attempt stays with the later part."""
        return (
            replace(self, end_ms=at_ms, outcome=None, lost_ms=0, energy_uj=0),
            replace(self, start_ms=at_ms),
        )

    def pieces(self, period: Period) -> Iterator[UsageInterval]:
        """Cut at the boundaries of periods, earliest piece first."""
        rest = self
        boundary_ms = period.next_after(rest.start_ms)
        while boundary_ms < rest.end_ms:
            piece, rest = rest.split_at(boundary_ms)
            yield piece
            boundary_ms = period.next_after(boundary_ms)
        yield rest

    def within(self, start_ms: int, end_ms: int) -> UsageInterval | None:
        """The part between two moments, if there is any."""
        if self.end_ms <= start_ms or self.start_ms >= end_ms:
            return None
        part = self if self.start_ms >= start_ms else self.split_at(start_ms)[1]
        return part if part.end_ms <= end_ms else part.split_at(end_ms)[0]


def interval_of(
    job: Job,
    allocation: Allocation,
    *,
    end_ms: int,
    model_of: Callable[[str, int], str],
    outcome: JobState | None = None,
    lost_ms: int = 0,
    energy_uj: int = 0,
) -> UsageInterval:
    """What an allocation has held until now, or until its end.

    `model_of` names the GPU model of a node's device. A clock that stepped back gives an empty
    interval, never a negative one.
    """
    models: dict[str, int] = {}
    for placement in allocation.placements:
        for device in placement.devices:
            model = model_of(placement.node_id, device.index)
            models[model] = models.get(model, 0) + device.share_milli
    return UsageInterval(
        allocation_id=allocation.id,
        job_id=job.id,
        task=allocation.task,
        tenant=job.tenant,
        user=job.user,
        attempt=allocation.attempt,
        start_ms=allocation.start_ms,
        end_ms=max(allocation.start_ms, end_ms),
        gpu_milli=allocation.gpu_milli,
        gpu_memory_mb=sum(placement.gpu_memory_mb for placement in allocation.placements),
        cpu_milli=sum(placement.cpu_milli for placement in allocation.placements),
        memory_mb=sum(placement.memory_mb for placement in allocation.placements),
        gpu_models=tuple(sorted(models.items())),
        outcome=outcome,
        lost_ms=lost_ms,
        energy_uj=energy_uj,
    )
