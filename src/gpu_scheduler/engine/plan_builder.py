"""What a cycle has found so far: who starts, who must leave, and why the others wait."""

from __future__ import annotations

from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.plan import Eviction, Plan, Reservation, Start
from gpu_scheduler.model.reasons import Reason


class PlanBuilder:
    """Starts and evictions in the order in which they were decided, and reasons.

    Reasons are kept `of_jobs` by number, `of_shapes` by the id of a job shape, and `of_tenants` by
    the tenant, the user if it is about one alone, and the id of a job shape.
    """

    __slots__ = ("evictions", "examined", "of_jobs", "of_shapes", "of_tenants", "starts")

    def __init__(self) -> None:
        """Start with nothing found."""
        self.starts: list[Start] = []
        self.evictions: list[Eviction] = []
        self.of_jobs: dict[int, Reason] = {}
        self.of_shapes: dict[int, Reason] = {}
        self.of_tenants: dict[tuple[str, str, int], Reason] = {}
        self.examined = 0

    def plan(
        self,
        state: ClusterState,
        kept: dict[int, Reservation],
        *,
        complete: bool,
        resume_after: int,
    ) -> Plan:
        """All of it in a fixed order, with the reservations that are `kept`."""
        entries = state.queue.entries
        shapes = state.job_shapes
        return Plan(
            starts=tuple(self.starts),
            evictions=tuple(self.evictions),
            reservations=tuple(kept[number] for number in sorted(kept)),
            job_reasons=tuple(
                (entries[number].waiting.job.id, self.of_jobs[number])
                for number in sorted(self.of_jobs)
            ),
            shape_reasons=tuple(
                sorted(
                    (shapes[shape].name, reason)
                    for shape, reason in self.of_shapes.items()
                    if shape in state.queue.of_shape
                )
            ),
            tenant_reasons=tuple(
                sorted(
                    (tenant, shapes[shape].name, reason)
                    for (tenant, _, shape), reason in self.of_tenants.items()
                )
            ),
            examined=self.examined,
            complete=complete,
            resume_after=resume_after,
        )
