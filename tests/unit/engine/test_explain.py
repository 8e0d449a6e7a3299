"""Wait reasons as sentences."""

import pytest

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.explain import explain
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.errors import UnknownThing
from gpu_scheduler.model.node import NodeClosure, NodeState
from gpu_scheduler.model.plan import Plan
from gpu_scheduler.model.reasons import ReasonCode
from tests.builders import (
    DAY,
    HOUR,
    a_cluster,
    a_job,
    a_node,
    a_policy,
    a_state,
    a_tenant,
    on,
    running,
)


def why(state: ClusterState, number: int) -> str:
    return str(explain(state, decide(state, state.policy, 0), number))


def test_reason_counts_nodes_per_missing_resource() -> None:
    nodes = [
        a_node(ordinal=0, gpus=4),
        a_node(ordinal=1, gpus=2),
        a_node(ordinal=2, gpus=4, state=NodeState.LOST),
        a_node(ordinal=3, gpus=4, device={"paused": True}),
        a_node(ordinal=4, gpus=4, cpus=8),
        a_node(ordinal=5, gpus=4, closed=NodeClosure(since_ms=0, drains=True)),
        a_node(ordinal=6, gpus=4, closed=NodeClosure(since_ms=0)),
    ]
    held = [
        running(a_job(number=9, gpus=2), on("n0", [0, 1])),
        running(a_job(number=8, gpus=0, cpus=6), on("n4")),
    ]
    state = a_state(nodes=nodes, held=held, queue=[a_job(number=1, gpus=3, cpus=4)])
    assert why(state, 1) == (
        "waiting for 3 GPUs, 4 CPU cores; of 7 nodes: "
        "1 x GPUs paused, hot, unhealthy or in foreign use, 1 x being drained, "
        "1 x cordoned, 1 x not online, "
        "1 x too few free GPUs, 1 x too little free CPU, 1 x too small or of another model"
    )


def test_reason_names_wrong_labels_and_too_little_memory() -> None:
    nodes = [
        a_node(ordinal=0),
        a_node(ordinal=1, labels=(("zone", "a"),), memory_mb=1000),
    ]
    held = [running(a_job(number=9, gpus=0, memory_mb=500), on("n1"))]
    job = a_job(number=1, memory_mb=600, node_labels=(("zone", "a"),))
    state = a_state(nodes=nodes, held=held, queue=[job])
    assert why(state, 1).endswith(
        "of 2 nodes: 1 x too little free memory, 1 x without label zone=a"
    )


def test_gang_reason_counts_members_that_fit() -> None:
    held = [running(a_job(number=9, gpus=4), on("n0", range(4)))]
    state = a_state(
        nodes=a_cluster(nodes=2, gpus=4), held=held, queue=[a_job(number=1, gpus=4, members=2)]
    )
    assert why(state, 1) == (
        "waiting for 4 GPUs for each of 2 members; of 2 nodes: 1 x too few free GPUs; "
        "1 node could take a member, 2 are wanted"
    )


def test_rack_gang_reason_gives_capacity_of_best_rack() -> None:
    held = [running(a_job(number=9, gpus=4), on("n0", range(4)))]
    job = a_job(number=1, gpus=4, members=2, same_rack=True)
    state = a_state(nodes=a_cluster(nodes=2, racks=1, gpus=4), held=held, queue=[job])
    assert why(state, 1) == (
        "waiting for 4 GPUs for each of 2 members in one rack; of 2 nodes: 1 x too few free GPUs; "
        "1 node could take a member, 2 are wanted; "
        "the rack with the most room, r0, could take 1 of 2"
    )


def test_job_not_yet_examined_gets_reason_from_state() -> None:
    """As on a standby, or right after a start."""
    held = [running(a_job(number=9, gpus=4), on("n0", range(4)))]
    queue = [a_job(number=1, requeue_on_node_loss=True), a_job(number=2, gpus=4, members=2)]
    state = a_state(nodes=[a_node(gpus=4)], held=held, queue=queue)
    told = str(explain(state, Plan(), 1))
    assert told == "waiting for 1 GPU; the one node: too few free GPUs"
    assert "for each of 2 members" in str(explain(state, Plan(), 2))
    before = a_state(nodes=[a_node(gpus=4)], held=held, queue=queue).snapshot()
    assert state.snapshot() == before


def test_reason_is_no_node_online() -> None:
    state = a_state(nodes=[a_node(state=NodeState.LOST)], queue=[a_job(number=1)])
    assert why(state, 1) == "no node is online"


def test_blocking_reservation_is_named_for_every_job_of_shape() -> None:
    state = a_state(
        nodes=[a_node(gpus=4)],
        held=[running(a_job(number=9, gpus=3), on("n0", [0, 1, 2]), end_ms=HOUR)],
        queue=[
            a_job(number=1, gpus=4),
            a_job(number=2, gpus=1, estimate_ms=DAY),
            a_job(number=3, gpus=1, estimate_ms=2 * DAY),
        ],
    )
    said = "starting now would push back the reservation of job j1"
    assert (why(state, 2), why(state, 3)) == (said, said)


def test_blocked_queue_names_head_of_line() -> None:
    state = a_state(
        policy=a_policy(name="fifo"),
        nodes=[a_node(gpus=4)],
        queue=[a_job(number=n, gpus=g) for n, g in enumerate((3, 2, 1), start=1)],
    )
    assert why(state, 3) == "waiting behind job j2, which is first in line"


def test_quota_reason_is_given_to_every_job_it_blocks() -> None:
    state = a_state(
        nodes=[a_node()],
        tenants=[a_tenant(gpus=1)],
        queue=[a_job(number=n) for n in (1, 2, 3)],
    )
    plan = decide(state, state.policy, 0)
    for number in (2, 3):
        assert explain(state, plan, number).code is ReasonCode.QUOTA


def test_reason_says_that_job_was_not_examined() -> None:
    state = a_state(nodes=[a_node()], queue=[a_job(number=1)])
    assert explain(state, Plan(), 1).code is ReasonCode.NOT_EXAMINED


def test_job_that_does_not_wait_has_no_reason() -> None:
    with pytest.raises(UnknownThing, match="job number 7 does not wait"):
        explain(a_state(), Plan(), 7)
