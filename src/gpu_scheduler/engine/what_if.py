"""What if: expected starts on a copy of the cluster state, as it is and after a supposed change.

A `Question` comes in: a snapshot, what is not part of it, and what to suppose. An `Answer` goes
out: one roll-out of the state as it is, and one for each supposition. Both are plain values, so
that another process can compute them. The engine decides as it does for real; like every forecast,
an answer counts on no eviction and on no later submission.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gpu_scheduler.engine.decide import Cycle
from gpu_scheduler.engine.forecast import Foresight, foresee
from gpu_scheduler.engine.policy import Policy, Preemption
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.engine.reservation.reserved_devices import choose_devices
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import Snapshot, Waiting
from gpu_scheduler.model.errors import InvalidRequest, SchedulerError, UnknownThing
from gpu_scheduler.model.node import Device, Node, NodeClosure
from gpu_scheduler.model.plan import AdvanceReservation, ReservationSpec
from gpu_scheduler.model.quota_tree import QuotaNode

ALL_JOBS = -1
"""No job has this number: a roll-out until it covers all jobs."""
SUPPOSED = "res-supposed"
"""The id of a supposed advance reservation."""
_FORECAST_WITHOUT_EVICTIONS = (Preemption.NONE, Preemption.CLASS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The supposed changes of the cluster, all applied together.

    Nodes drain without a deadline: their jobs run to their end. `added_nodes` nodes like the node
    `added_like` join. `gpu_quotas` are the new GPU quotas of tenants (None: no limit). `policy` is
    the name of a preset; what the settings choose beside the preset stays.
    """

    drained_nodes: tuple[str, ...] = ()
    added_nodes: int = 0
    added_like: str = ""
    reservation: ReservationSpec | None = None
    gpu_quotas: tuple[tuple[str, int | None], ...] = ()
    policy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The state to roll forward, and what to suppose.

    `guesses` are the numbers of the jobs whose run time is unknown. Each of the `jobs` is supposed
    to be submitted alone, and the `changes` without any of them.
    """

    snapshot: Snapshot
    policy: Policy
    now_ms: int
    quota_nodes: tuple[QuotaNode, ...] = ()
    guesses: frozenset[int] = frozenset()
    jobs: tuple[Waiting, ...] = ()
    changes: Changes | None = None


@dataclass(slots=True)
class Answer:
    """The roll-outs of the state as it is, with each supposed job, and with the changes.

    `reserved` are the devices of a supposed reservation. `error` says why the changes are not
    possible. `traces` are those of errors of the engine: such a roll-out ended early.
    """

    base: Foresight = field(default_factory=Foresight)
    with_job: list[Foresight] = field(default_factory=list)
    changed: Foresight | None = None
    reserved: tuple[tuple[str, tuple[int, ...]], ...] = ()
    error: SchedulerError | None = None
    traces: list[str] = field(default_factory=list)
    limit_starts: dict[int, int] = field(default_factory=dict)
    """By job number: the start of the supposed jobs, or without any supposition of all waiting
    jobs, if all jobs before them use their full limits."""


def answer(question: Question, is_late: Callable[[float], bool] = lambda _part: False) -> Answer:
    """Answer a question. `is_late` tells whether this part (0 to 1) of the time has passed.

    The roll-outs share the time: one that takes too long ends early and leaves time to the others.
    Starts by limits come last, in the time that is left.
    """
    found = Answer()
    parts = 1 + len(question.jobs) + (question.changes is not None)
    done = 0

    def roll_out(state: ClusterState, limits_until: int | None = None) -> Foresight:
        """Roll out with expected run times; with `limits_until`, with limits until that job."""
        nonlocal done
        done += 1
        part = min(1.0, done / parts)
        foresight = Foresight(runs=[], reached_ms=question.now_ms)
        try:
            _reserve(state, question.now_ms)
            foresee(
                state,
                question.now_ms,
                foresight,
                run_ms_of=None
                if limits_until is None
                else lambda job, _ran_ms: state.limit_ms(job),
                is_guess=lambda job, _ran_ms: job.number in question.guesses,
                until=limits_until,
                is_late=lambda: is_late(part),
            )
        except Exception:  # noqa: BLE001 - the caller logs the trace
            found.traces.append(traceback.format_exc())
            foresight.failed_at = foresight.failed_at or 0
        return foresight

    state = copy_of(question, question.policy)
    found.base = roll_out(state)
    reservations = tuple(state.reservations.values())

    def supposed(waiting: Waiting, limits_until: int | None = None) -> Foresight:
        nonlocal state
        if state.trials:
            state = copy_of(question, question.policy)
        state.set_reservations(reservations)
        with state.supposed(waiting):
            return roll_out(state, limits_until)

    for waiting in question.jobs:
        found.with_job.append(supposed(waiting))
    if question.changes is not None:
        try:
            changed, found.reserved = _changed_state(question, question.changes)
        except SchedulerError as error:
            found.error = error
        else:
            found.changed = roll_out(changed)
    elif not question.jobs and not state.trials:
        found.limit_starts = roll_out(state, ALL_JOBS).starts
    for waiting in question.jobs:
        number = waiting.job.number
        starts = supposed(waiting, limits_until=number).starts
        if number in starts:
            found.limit_starts[number] = starts[number]
    return found


def _reserve(state: ClusterState, now_ms: int) -> None:
    """Make the reservations that the next cycle would make after the change.

    A roll-out keeps the reservations with which it begins, and makes its own from pass to pass.
    """
    with state.trial() as transaction:
        cycle = Cycle(state, transaction, with_evictions=False)
        cycle.run(now_ms)
        plan = cycle.plan()
    state.set_reservations(plan.reservations)


def copy_of(question: Question, policy: Policy) -> ClusterState:
    """Build a cluster state of its own, whose cycles always come to the end of the queue."""
    most_examined = max(policy.max_examined, 2 * (len(question.snapshot.waiting) + 1))
    policy = replace(policy, max_examined=most_examined)
    state = ClusterState.from_snapshot(question.snapshot, policy)
    if question.quota_nodes != tuple(state.quota_nodes.values()):
        state.set_quota_tree(question.quota_nodes)
    return state


def _changed_state(
    question: Question, changes: Changes
) -> tuple[ClusterState, tuple[tuple[str, tuple[int, ...]], ...]]:
    """The state with all changes, and the devices of the supposed reservation."""
    policy = question.policy
    if changes.policy:
        policy = other_policy(policy, changes.policy)
    state = copy_of(question, policy)
    for tenant_id, gpu_milli in changes.gpu_quotas:
        tenant = state.tenant(tenant_id)
        state.set_tenant(replace(tenant, quota=replace(tenant.quota, gpu_milli=gpu_milli)))
    if changes.added_nodes:
        _add_nodes(state, changes.added_nodes, changes.added_like)
    for node_id in changes.drained_nodes:
        node = _node(state, node_id)
        if node.closed is None:
            closed = NodeClosure(since_ms=question.now_ms, reason="supposed", drains=True)
            state.set_node(replace(node, closed=closed))
    if changes.reservation is None:
        return state, ()
    wish = changes.reservation
    devices = choose_devices(state, wish)
    number = 1 + max((one.number for one in state.advance_reservations.values()), default=0)
    state.advance_reservations[SUPPOSED] = AdvanceReservation(
        id=SUPPOSED,
        number=number,
        tenant=wish.tenant,
        user=wish.user,
        start_ms=wish.start_ms,
        end_ms=wish.end_ms,
        devices=devices,
        preempts=wish.preempts,
    )
    return state, devices


def other_policy(current: Policy, name: str) -> Policy:
    """Another preset, with what the settings choose beside the preset."""
    chosen = preset(name)
    if chosen.preemption not in _FORECAST_WITHOUT_EVICTIONS:
        raise InvalidRequest(
            f"policy '{name}' works by preempting running jobs, which a forecast does not count "
            "on; compare it on a trace with 'tgpu simulate'"
        )
    return replace(
        chosen,
        default_limit_ms=current.default_limit_ms,
        max_running=current.max_running,
        interactive_gpu_milli=current.interactive_gpu_milli,
        fills_gaps=current.fills_gaps,
        user_quota=current.user_quota,
        quota_tree=current.quota_tree,
        budget_period=current.budget_period,
    )


def _add_nodes(state: ClusterState, count: int, like: str) -> None:
    """Add empty nodes with the hardware and the labels of a node, all in good health."""
    model = _node(state, like)
    ordinal = 1 + max(resources.node.ordinal for resources in state.index.by_id.values())
    added = 0
    number = 0
    while added < count:
        number += 1
        node_id = f"{like}+{number}"
        if node_id not in state.index.by_id:
            state.set_node(blank_copy(model, node_id, ordinal + added))
            added += 1


def blank_copy(node: Node, node_id: str, ordinal: int) -> Node:
    """An empty node that takes work, with the hardware, rack and labels of another one."""
    devices = tuple(
        Device(
            index=device.index,
            model=device.model,
            memory_mb=device.memory_mb,
            mode=device.mode,
            mig_slices=device.mig_slices,
            island=device.island,
            bandwidth_gbps=device.bandwidth_gbps,
        )
        for device in node.devices
    )
    return Node(
        id=node_id,
        ordinal=ordinal,
        cpu_milli=node.cpu_milli,
        memory_mb=node.memory_mb,
        devices=devices,
        labels=node.labels,
        rack=node.rack,
        numa_nodes=node.numa_nodes,
        direct_storage=node.direct_storage,
        adapters=node.adapters,
    )


def _node(state: ClusterState, node_id: str) -> Node:
    resources = state.index.by_id.get(node_id)
    if resources is None:
        raise UnknownThing(f"node '{node_id}' is not known; 'tgpu nodes' lists all")
    return resources.node
