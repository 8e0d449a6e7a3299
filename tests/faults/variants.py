"""Schedulers broken on purpose, each in one way, to show that the audit detects it.

Each variant patches a single decision of the real code, or of a model of a real part, for the
duration of its block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from gpu_scheduler.agent.jobs.orders import Assignments
from gpu_scheduler.api.nodes.missed_heartbeats import LivenessTimers
from gpu_scheduler.api.nodes.reports import ReportHandler
from gpu_scheduler.control import restore as restoring
from gpu_scheduler.control import services
from gpu_scheduler.control.core import HANDLERS
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.gang_commit import GangStatus
from gpu_scheduler.control.job_record import TaskRecord
from gpu_scheduler.control.jobs import attempt_events, commands, retries
from gpu_scheduler.control.jobs.queueing import NOT_BEGUN
from gpu_scheduler.control.messages import Cancel, NodeFenced
from gpu_scheduler.control.nodes import admin
from gpu_scheduler.control.nodes.reconcile import Repairs
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.decide import _BlockedJobs
from gpu_scheduler.engine.quota.admission import Admission
from gpu_scheduler.model.job import ENDED
from gpu_scheduler.model.node import Node, NodeState
from gpu_scheduler.model.plan import AdvanceReservation, Allocation
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.service import Service
from gpu_scheduler.server.ha.election import LeaderElector
from gpu_scheduler.store.rows import JobRow, TaskRow
from tests.faults.disk import Disk, DiskWriter
from tests.faults.launcher import Attempt, ModelLauncher
from tests.faults.world import WorldResult, run_world

Variant = Callable[[], AbstractContextManager[None]]


@contextmanager
def acknowledge_before_commit() -> Iterator[None]:
    """A submission is acknowledged before its commit."""
    run = DiskWriter.run

    def run_later(self: DiskWriter, work: Callable[[], Any]) -> asyncio.Future[Any]:
        run(self, work)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(0)
        return answer

    with patch.object(DiskWriter, "run", run_later):
        yield


@contextmanager
def forget_before_commit() -> Iterator[None]:
    """A node may forget an end as soon as the server has received it."""
    over = ReportHandler.member_ended

    def forget_first(self: ReportHandler, allocation: Allocation, member: int, end: Any) -> None:
        heard: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        heard.set_result(Outcome())
        self._on_end_committed(allocation, heard)
        over(self, allocation, member, end)

    with patch.object(ReportHandler, "member_ended", forget_first):
        yield


@contextmanager
def orders_not_idempotent() -> Iterator[None]:
    """A repeated order is executed again."""

    def start_again(self: ModelLauncher, work: Any, done: Callable[..., None]) -> None:
        key = (work.allocation_id, work.member)
        attempt = self.attempts[key] = Attempt(key, work)
        attempt.recorded.append(done)
        self._later(0.01, self._record, attempt)

    with patch.object(ModelLauncher, "_do_start", start_again):
        yield


@contextmanager
def begin_before_the_record() -> Iterator[None]:
    """A command starts before its record is written."""

    def begin(self: ModelLauncher, attempt: Attempt) -> None:
        if attempt.over is None:
            attempt.is_recorded = True
            self._answer(attempt)
            self._go(attempt)
            self._later(0.5, self._journal.write, "accepted", attempt.key, attempt.work)

    with patch.object(ModelLauncher, "_record", begin):
        yield


@contextmanager
def requeue_what_is_silent() -> Iterator[None]:
    """A silent node is taken for dead."""
    mark_suspect = LivenessTimers.mark_suspect

    def fence(self: LivenessTimers, node_id: str, **more: Any) -> None:
        mark_suspect(self, node_id, **more)
        self._post(NodeFenced(node_id))

    with patch.object(LivenessTimers, "mark_suspect", fence):
        yield


@contextmanager
def requeue_before_the_lease_ends() -> Iterator[None]:
    """Jobs with a lease are started elsewhere when a quarter of it is over."""
    later = LivenessTimers._later

    def sooner(
        self: LivenessTimers, wait_s: float, act: Callable[[], object]
    ) -> asyncio.TimerHandle:
        is_lease = wait_s > self._timeouts.lost_s
        return later(self, wait_s / 4 if is_lease else wait_s, act)

    with patch.object(LivenessTimers, "_later", sooner):
        yield


@contextmanager
def no_fencing() -> Iterator[None]:
    """Commits, orders and answers of a server whose lease has expired are accepted."""
    with (
        patch.object(Disk, "check_term", lambda self, term: None),
        patch.object(LeaderElector, "is_held", property(lambda self: self.term > 0)),
    ):
        yield


@contextmanager
def commit_before_all_are_prepared() -> Iterator[None]:
    """A gang over several nodes runs as soon as its first member is ready."""
    prepared = GangStatus.on_prepared

    def any_is_enough(
        self: GangStatus, allocation: Allocation, member: int, port: int
    ) -> int | None:
        prepared(self, allocation, member, port)
        return port

    with patch.object(GangStatus, "on_prepared", any_is_enough):
        yield


@contextmanager
def orders_are_not_repeated() -> Iterator[None]:
    """The jobs of a reconnecting agent are not reconciled."""

    def nothing(*_: object) -> Any:
        return Repairs()

    with patch("gpu_scheduler.api.nodes.protocol.reconcile", nothing):
        yield


@contextmanager
def a_failure_is_told_once() -> Iterator[None]:
    """A reconnecting node is not told that a member has failed elsewhere."""
    with patch.object(GangStatus, "to_stop_on", lambda *_: []):
        yield


@contextmanager
def what_is_late_is_not_cancelled() -> Iterator[None]:
    """A cancel is forgotten for an attempt that is being timed out."""
    cancel = commands.cancel

    def forget(state: ControlState, command: Cancel, *rest: Any) -> None:
        task = state.job(command.job_id).only_task
        if task is None or task.stop_why != NOT_BEGUN:
            cancel(state, command, *rest)

    with patch.dict(HANDLERS, {Cancel: forget}):
        yield


@contextmanager
def quotas_are_not_kept() -> Iterator[None]:
    """Tenants have no quota."""
    with patch.object(Admission, "_over_limit", lambda *_, **__: None):
        yield


@contextmanager
def arrays_know_no_limit() -> Iterator[None]:
    """All tasks of an array may run at once."""
    refusal = _BlockedJobs.refusal

    def no_limit(self: Any, entry: Any, reservation: Any = None) -> Reason | None:
        found = refusal(self, entry, reservation)
        return None if found is not None and found.code is ReasonCode.ARRAY_LIMIT else found

    with patch.object(_BlockedJobs, "refusal", no_limit):
        yield


@contextmanager
def dependencies_are_met_by_any_end() -> Iterator[None]:
    """A job starts even after a failed dependency."""
    with patch("gpu_scheduler.control.jobs.dependencies.is_met", lambda _, state: state in ENDED):
        yield


@contextmanager
def closed_nodes_take_work() -> Iterator[None]:
    """Cordoned and drained nodes get new jobs."""
    is_online = property(lambda node: node.state is NodeState.ONLINE)
    with patch.object(Node, "takes_work", is_online):
        yield


@contextmanager
def reservations_are_for_everybody() -> Iterator[None]:
    """Reserved GPUs are given to any tenant."""
    with patch.object(AdvanceReservation, "admits", lambda *_: True):
        yield


@contextmanager
def pauses_end_with_a_restart() -> Iterator[None]:
    """A restarted server does not know which jobs are in back-off."""
    fill = restoring._fill_task

    def forget(task: TaskRecord, row: JobRow | TaskRow) -> None:
        fill(task, replace(row, resume_ms=0))

    with patch.object(restoring, "_fill_task", forget):
        yield


@contextmanager
def ports_are_not_remembered() -> Iterator[None]:
    """An agent assigns any port on which no process listens yet."""
    with (
        patch.object(Assignments, "set_port", lambda *_, **__: None),
        patch("gpu_scheduler.agent.jobs.orders.free_port", lambda _: 20_000),
    ):
        yield


@contextmanager
def one_replica_too_many() -> Iterator[None]:
    """A service has one replica too many."""
    wanted = services._wanted
    with patch.object(services, "_wanted", lambda service: wanted(service) + 1):
        yield


@contextmanager
def services_are_deleted_without_their_replicas() -> Iterator[None]:
    """A service is deleted at once, and its replicas are not stopped."""
    leave = services._leave

    def forget(state: Any, service: Service, *rest: Any) -> Service:
        if service.deleted:
            return replace(service, members=())
        return leave(state, service, *rest)

    with patch.object(services, "_leave", forget):
        yield


@contextmanager
def a_failed_prolog_fails_the_job() -> Iterator[None]:
    """A job fails when its prolog fails on one node."""
    with ExitStack() as patches:
        for module in (attempt_events, retries):
            patches.enter_context(patch.object(module, "failed_in_prolog", lambda *_: False))
        yield


@contextmanager
def nodes_with_bad_hooks_are_kept() -> Iterator[None]:
    """A node with a failed hook gets the next job as well."""
    with patch.object(admin, "set_aside", lambda *_: None):
        yield


VARIANTS: dict[str, Variant] = {
    "acknowledge-before-commit": acknowledge_before_commit,
    "forget-before-commit": forget_before_commit,
    "orders-not-idempotent": orders_not_idempotent,
    "begin-before-the-record": begin_before_the_record,
    "requeue-before-the-lease-ends": requeue_before_the_lease_ends,
    "requeue-what-is-silent": requeue_what_is_silent,
    "commit-before-all-are-prepared": commit_before_all_are_prepared,
    "no-fencing": no_fencing,
    "orders-are-not-repeated": orders_are_not_repeated,
    "a-failure-is-told-once": a_failure_is_told_once,
    "what-is-late-is-not-cancelled": what_is_late_is_not_cancelled,
    "quotas-are-not-kept": quotas_are_not_kept,
    "arrays-know-no-limit": arrays_know_no_limit,
    "dependencies-are-met-by-any-end": dependencies_are_met_by_any_end,
    "closed-nodes-take-work": closed_nodes_take_work,
    "reservations-are-for-everybody": reservations_are_for_everybody,
    "pauses-end-with-a-restart": pauses_end_with_a_restart,
    "ports-are-not-remembered": ports_are_not_remembered,
    "one-replica-too-many": one_replica_too_many,
    "services-are-deleted-without-their-replicas": services_are_deleted_without_their_replicas,
    "a-failed-prolog-fails-the-job": a_failed_prolog_fails_the_job,
    "nodes-with-bad-hooks-are-kept": nodes_with_bad_hooks_are_kept,
}


def one(
    seed: int, *, fault_kinds: tuple[str, ...], trace: bool, variant: str | None
) -> WorldResult:
    """One world with a scheduler that may be broken on purpose."""
    with ExitStack() as stack:
        if variant is not None:
            stack.enter_context(VARIANTS[variant]())
        return run_world(seed, keep_trace=trace, fault_kinds=fault_kinds)
