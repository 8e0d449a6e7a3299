"""Schedulers broken on purpose, each in one way, to show that the audit detects it.

`python -m tests.kubernetes.faults.variants NAME ...` runs such a scheduler as a process, with short
times of the leader election; what follows the name are the options of the scheduler, and the name
`as-it-is` breaks nothing. In the simulation the patches apply to every scheduler of the world.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.leader_election import ElectionSettings, LeaderElector
from gpu_scheduler.kubernetes.objects import Lease, Pod
from gpu_scheduler.kubernetes.scheduler import __main__ as process
from gpu_scheduler.kubernetes.scheduler import filters, loop, repair, workloads
from gpu_scheduler.kubernetes.scheduler.decision import AssignedPod, Assignment
from gpu_scheduler.kubernetes.scheduler.objects_view import has_ended, is_being_deleted
from gpu_scheduler.kubernetes.scheduler.repair import Repairs
from gpu_scheduler.kubernetes.scheduler.writer import Writer, allocation_annotations

Variant = Callable[[], AbstractContextManager[None]]
Assigned = tuple[list[Lease], list[AssignedPod]]


@contextmanager
def bind_before_the_leases() -> Iterator[None]:
    """Pods are bound first; the leases of their GPUs follow."""
    assign = Writer._assign

    async def reversed_order(self: Writer, assignment: Assignment) -> Assigned:
        bound = await self._all(
            self._bind(one.pod, one.node, allocation_annotations(one)) for one in assignment.pods
        )
        leases, _ = await assign(self, assignment)
        done = [one for one, is_done in zip(assignment.pods, bound, strict=True) if is_done is True]
        return leases, done

    with patch.object(Writer, "_assign", reversed_order):
        yield


@contextmanager
def ignore_the_lease_of_another() -> Iterator[None]:
    """A lease that names another pod counts as one's own."""

    async def careless(_: Writer, lease: Lease, *_others: Any) -> Lease:
        return lease

    with patch.object(Writer, "_join", careless):
        yield


@contextmanager
def repair_nothing() -> Iterator[None]:
    """What an interrupted scheduler left behind stays as it is."""

    def nothing(*_: Any, **__: Any) -> Repairs:
        return Repairs()

    with patch.object(loop, "find_repairs", nothing):
        yield


@contextmanager
def give_up_without_a_fence() -> Iterator[None]:
    """Leases of an assignment are released although its Binding may still arrive."""
    bind = ApiClient.bind

    async def careless(self: Writer, _: Pod) -> bool:
        return True

    async def any_version(self: ApiClient, name: str, namespace: str, **given: Any) -> None:
        await bind(self, name, namespace, **{**given, "resource_version": ""})

    with patch.object(Writer, "_fence", careless), patch.object(ApiClient, "bind", any_version):
        yield


@contextmanager
def ignore_taints() -> Iterator[None]:
    """Nodes with taints take every pod."""
    with patch.object(filters, "untolerated", lambda _pod, _node: None):
        yield


@contextmanager
def release_before_the_end() -> Iterator[None]:
    """The GPUs of a pod are free as soon as it is told to end."""

    def ends(pod: Pod) -> bool:
        return has_ended(pod) or is_being_deleted(pod)

    with ExitStack() as patches:
        for module in (repair, workloads, filters):
            patches.enter_context(patch.object(module, "has_ended", ends))
        yield


@contextmanager
def keep_the_leases_of_ended_pods() -> Iterator[None]:
    """A lease is released only when its pod is deleted, not when it has ended."""
    find = repair.find_repairs

    def forgetful(*given: Any, **more: Any) -> Repairs:
        found = find(*given, **more)
        gone = tuple(one for one in found.releases if one.is_gone)
        return Repairs(
            releases=gone,
            completions=found.completions,
            rollbacks=found.rollbacks,
            missing=found.missing,
            half_gangs=found.half_gangs,
            limits=found.limits,
        )

    with patch.object(loop, "find_repairs", forgetful):
        yield


@contextmanager
def bind_what_got_its_leases() -> Iterator[None]:
    """Of a gang, those pods are bound whose GPUs could be leased; the others are forgotten."""
    assign = Writer._assign

    async def piecemeal(self: Writer, assignment: Assignment) -> Assigned:
        leases: list[Lease] = []
        bound: list[AssignedPod] = []
        for number, one in enumerate(assignment.pods):
            if number == len(assignment.pods) - 1 > 0:
                break
            some, done = await assign(self, Assignment(job_id=assignment.job_id, pods=(one,)))
            leases += some
            bound += done
        return leases, bound

    def never(*given: Any, **more: Any) -> Repairs:
        found = repair.find_repairs(*given, **{**more, "incomplete_since_ms": {}})
        return Repairs(releases=found.releases, completions=found.completions)

    with (
        patch.object(Writer, "_assign", piecemeal),
        patch.object(loop, "find_repairs", never),
    ):
        yield


VARIANTS: Mapping[str, Variant] = {
    "bind-before-the-leases": bind_before_the_leases,
    "ignore-the-lease-of-another": ignore_the_lease_of_another,
    "repair-nothing": repair_nothing,
    "give-up-without-a-fence": give_up_without_a_fence,
    "ignore-taints": ignore_taints,
    "release-before-the-end": release_before_the_end,
    "keep-the-leases-of-ended-pods": keep_the_leases_of_ended_pods,
    "bind-what-got-its-leases": bind_what_got_its_leases,
}


AS_IT_IS = "as-it-is"
SHORT_ELECTION = ElectionSettings(
    lease_duration_seconds=4, renew_deadline_seconds=3.0, retry_period_seconds=0.5
)


def run(name: str, options: list[str]) -> int:
    elector = partial(LeaderElector, settings=SHORT_ELECTION)
    with ExitStack() as patches:
        patches.enter_context(patch.object(process, "LeaderElector", elector))
        if name != AS_IT_IS:
            patches.enter_context(VARIANTS[name]())
        return process.main(options)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
