"""Collects the plan of a cycle: starts, evictions, and why the other jobs wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter

from gpu_scheduler.engine.queue import GroupKey
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.plan import Eviction, Plan, Reservation, ResumePoint, Start
from gpu_scheduler.model.reasons import Reason


@dataclass(slots=True, eq=False)
class PlanBuilder:
    """Starts and evictions in the order in which they were decided, and reasons.

    `job_reasons` are kept by job number, `shape_reasons` by the id of a job shape, and
    `tenant_reasons` by tenant, user (empty: all users) and the id of a job shape. `account_reasons`
    are kept by account, with the least GPUs of the jobs that they are for.
    """

    starts: list[Start] = field(default_factory=list)
    evictions: list[Eviction] = field(default_factory=list)
    job_reasons: dict[int, Reason] = field(default_factory=dict)
    shape_reasons: dict[int, Reason] = field(default_factory=dict)
    tenant_reasons: dict[tuple[str, str, int], Reason] = field(default_factory=dict)
    account_reasons: dict[GroupKey, tuple[int, Reason]] = field(default_factory=dict)
    examined: int = 0

    def plan(
        self,
        state: ClusterState,
        kept: dict[int, Reservation],
        *,
        complete: bool,
        resume_after: ResumePoint | None,
    ) -> Plan:
        """All of it in a fixed order, with the reservations that are `kept`."""
        entries = state.queue.entries
        shapes = state.job_shapes
        return Plan(
            starts=tuple(self.starts),
            evictions=tuple(self.evictions),
            reservations=tuple(kept[number] for number in sorted(kept)),
            job_reasons=tuple(
                (entries[number].waiting.job.id, self.job_reasons[number])
                for number in sorted(self.job_reasons)
            ),
            shape_reasons=tuple(
                sorted(
                    (shapes[shape].name, reason)
                    for shape, reason in self.shape_reasons.items()
                    if shape in state.queue.of_shape
                )
            ),
            tenant_reasons=tuple(
                # Reasons of two users have data of several types: they cannot be compared.
                (tenant, name, reason)
                for tenant, name, _, _, reason in sorted(
                    (
                        (tenant, shapes[shape].name, reason.code, user, reason)
                        for (tenant, user, shape), reason in self.tenant_reasons.items()
                    ),
                    key=itemgetter(0, 1, 2, 3),
                )
            ),
            account_reasons=tuple(
                sorted((*key, *reason) for key, reason in self.account_reasons.items())
            ),
            examined=self.examined,
            complete=complete,
            resume_after=resume_after,
        )
