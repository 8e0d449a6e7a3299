"""Silent, lost and dead nodes and their jobs, with and without leases."""

import pytest

from gpu_scheduler.control.messages import (
    ConfirmDead,
    Drain,
    Ended,
    LeasesExpired,
    NodeFenced,
    NodeLost,
    NodeReported,
    NodeSilent,
    Started,
)
from gpu_scheduler.control.nodes.lost_nodes import LEASE_LABEL, leases_on, on_lost_node
from gpu_scheduler.control.restore import restore
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.model.errors import UnknownThing, WrongState
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.node import Device, NodeState
from gpu_scheduler.store.rows import EventRow
from tests.builders import HOUR, MINUTE, a_core, a_job
from tests.scenarios.lab import Lab

LEASE, MARGIN = 10 * MINUTE, 30_000
LIMITS = CoreLimits(lease_ms=LEASE, lease_margin_ms=MARGIN, requeue_after_death=True)


def found(node_id: str, *, gpus: int = 1, leases: bool = True) -> NodeReported:
    return NodeReported(
        node_id=node_id,
        cpu_milli=64_000,
        memory_mb=256_000,
        devices=tuple(
            Device(index=i, uuid=f"{node_id}-{i}", memory_mb=80_000) for i in range(gpus)
        ),
        labels=((LEASE_LABEL, "yes"),) if leases else (),
    )


def two_nodes(**more: bool) -> Lab:
    lab = Lab(nodes=[], limits=LIMITS)
    lab.at(1_000)
    lab.do(found("n0", **more))
    lab.do(found("n1", **more))
    return lab


def node_state(lab: Lab, node_id: str = "n0") -> NodeState:
    return lab.core.state.cluster.index.resources(node_id).node.state


def restart(lab: Lab, limits: CoreLimits = LIMITS) -> None:
    """A new server on the same store."""
    lab.store.commit(lab.core.ledger_writes())
    lab.core = a_core(nodes=[], limits=limits)
    restore(lab.core.state, lab.store, lab.now_ms)


def test_silent_node_becomes_suspect_then_lost_with_since_time() -> None:
    lab = two_nodes()
    lab.at(HOUR)
    lab.do(NodeSilent("n0"))
    assert node_state(lab) is NodeState.SUSPECT
    lab.at(HOUR + MINUTE)
    lab.do(NodeLost("n0"), NodeSilent("n0"))
    node = lab.store.nodes()[0]
    assert (node.state, node.silent_ms) == (NodeState.LOST, HOUR)
    lab.do(found("n0"))
    node = lab.store.nodes()[0]
    assert (node.state, node.silent_ms) == (NodeState.ONLINE, 0)


def test_loss_of_a_node_is_an_event_with_its_jobs() -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1), a_job(number=2))
    lab.tell(NodeSilent("n0"))
    writes = lab.tell(NodeLost("n0")).writes
    (event,) = [row for row in writes if isinstance(row, EventRow) and row.kind == "node_lost"]
    assert dict(event.data) == {"node": "n0", "jobs": 1}


def test_node_silence_counts_from_last_heartbeat() -> None:
    lab = two_nodes()
    lab.at(MINUTE)
    lab.do(NodeSilent("n0", 15_000))
    assert lab.core.state.cluster.index.resources("n0").node.silent_ms == MINUTE - 15_000


def test_job_on_lost_node_keeps_devices_and_is_not_restarted() -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1))
    lab.do(NodeSilent("n0"), NodeLost("n0"))
    lab.at(HOUR)
    lab.do(LeasesExpired("n0", HOUR))
    assert (lab.state("j1"), lab.nodes_of("j1")) == (JobState.RUNNING, ["n0"])
    assert len(lab.orders) == 1


def test_job_on_lost_node_shows_what_it_waits_for() -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1), a_job(number=2, requeue_on_node_loss=True))
    lab.at(HOUR)
    for node in ("n0", "n1"):
        lab.do(NodeSilent(node))
    state = lab.core.state
    assert on_lost_node(state, state.jobs["j1"]) is None, "it is only suspect"
    lab.do(NodeLost("n0"), NodeLost("n1"))
    plain, leased = (str(on_lost_node(state, state.jobs[name])) for name in ("j1", "j2"))
    assert plain.startswith("on a lost node since 1970-01-01 01:00 UTC; nothing is heard of n0")
    assert "only when that node is back, or known to be dead" in plain
    assert "when its lease has expired" in leased
    lab.do(found("n0"))
    assert on_lost_node(state, state.jobs["j1"]) is None


def test_reports_of_returning_node_count() -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1))
    lab.do(NodeSilent("n0"), NodeLost("n0"), found("n0"), Ended("j1.1", exit_code=0))
    assert lab.state("j1") is JobState.COMPLETED


def test_jobs_of_confirmed_dead_node_run_elsewhere() -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1))
    lab.do(NodeSilent("n0"), ConfirmDead("n0", "ann"))
    assert (lab.nodes_of("j1"), lab.allocation("j1").attempt) == (["n1"], 2)
    assert node_state(lab) is NodeState.DEAD
    (attempt,) = lab.store.attempts("j1")
    assert attempt.detail == "its node n0 is dead, confirmed by ann"
    (event,) = [e for _, e in lab.store.events(0) if e.kind == "node_dead"]
    assert event.data == (("node", "n0"), ("by", "ann"), ("jobs", 1))


def test_interactive_job_is_not_restarted_after_node_death() -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1, interactive=True))
    lab.do(NodeSilent("n0"), ConfirmDead("n0", "ann"))
    assert lab.state("j1") is JobState.FAILED


def test_confirmation_for_one_outage_does_not_apply_to_next() -> None:
    lab = two_nodes()
    lab.do(NodeSilent("n0"), NodeLost("n0"))
    first_ms = lab.now_ms
    lab.do(found("n0"))
    lab.at(first_ms + MINUTE)
    lab.do(NodeSilent("n0"), NodeLost("n0"))
    with pytest.raises(WrongState, match="silent again"):
        lab.do(ConfirmDead("n0", "the fencing command", first_ms))
    lab.do(ConfirmDead("n0", "the fencing command", first_ms + MINUTE))
    assert node_state(lab) is NodeState.DEAD


def test_connected_node_cannot_be_confirmed_dead() -> None:
    lab = two_nodes()
    with pytest.raises(WrongState, match="node 'n0' is connected, so it is not dead; to empty it"):
        lab.do(ConfirmDead("n0", "ann"))
    with pytest.raises(UnknownThing, match="node 'nx' is not known; known: n0, n1"):
        lab.do(ConfirmDead("nx", "ann"))


def test_drained_node_can_be_lost_and_dead_and_stays_drained() -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1))
    lab.do(Drain("n0"), NodeSilent("n0"), NodeLost("n0"))
    assert node_state(lab) is NodeState.LOST
    lab.do(ConfirmDead("n0", "ann"), found("n0"))
    assert lab.nodes_of("j1") == ["n1"]
    assert lab.core.state.cluster.index.resources("n0").node.closed is not None


def test_reports_of_abandoned_attempt_change_nothing() -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1, requeue_on_node_loss=True))
    lab.do(NodeSilent("n0"), LeasesExpired("n0", LEASE + MARGIN), found("n0"))
    assert lab.allocation("j1").id == "j1.2"
    lab.do(Started("j1.1"), Ended("j1.1", exit_code=0), Ended("j1.1", exit_code=9))
    assert (lab.state("j1"), lab.allocation("j1").id) == (JobState.RUNNING, "j1.2")


# --- leases


def test_leases_are_given_only_on_request_to_capable_nodes() -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1, requeue_on_node_loss=True), a_job(number=2))
    leases = [lab.allocation(name).placements[0].lease_ms for name in ("j1", "j2")]
    assert leases == [LEASE, 0]
    assert (leases_on(lab.core.state, "n0"), leases_on(lab.core.state, "n1")) == ({LEASE}, set())
    old = two_nodes(leases=False)
    old.submit(a_job(number=1, requeue_on_node_loss=True))
    assert old.allocation("j1").placements[0].lease_ms == 0


@pytest.mark.parametrize("waited_ms", [0, LEASE, LEASE + MARGIN - 1])
def test_leased_job_is_not_restarted_before_lease_and_margin_expire(
    waited_ms: int,
) -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1, requeue_on_node_loss=True))
    lab.do(NodeSilent("n0"), LeasesExpired("n0", waited_ms))
    assert len(lab.orders) == 1
    lab.do(LeasesExpired("n0", LEASE + MARGIN))
    assert lab.nodes_of("j1") == ["n1"]
    assert "its lease has expired" in lab.store.attempts("j1")[0].detail


def test_node_that_returns_in_time_keeps_leased_job() -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1, requeue_on_node_loss=True))
    lab.do(NodeSilent("n0"), found("n0"), LeasesExpired("n0", LEASE + MARGIN))
    assert (lab.nodes_of("j1"), len(lab.orders)) == (["n0"], 1)


def test_lease_lasts_as_granted_despite_changed_settings() -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1, requeue_on_node_loss=True))
    restart(lab, CoreLimits(lease_ms=MINUTE, lease_margin_ms=MARGIN))
    assert node_state(lab) is NodeState.SUSPECT, "it has not been heard of since the restart"
    lab.do(NodeSilent("n0"), LeasesExpired("n0", MINUTE + MARGIN))
    assert len(lab.orders) == 1
    lab.do(found("n1"), LeasesExpired("n0", LEASE + MARGIN))
    assert lab.nodes_of("j1") == ["n1"]


def test_newly_started_server_accepts_no_dead_confirmation() -> None:
    lab = two_nodes()
    restart(lab)
    with pytest.raises(WrongState, match="may still reconnect after the start"):
        lab.do(ConfirmDead("n0", "ann"))
    lab.at(MINUTE)
    lab.do(NodeSilent("n0"), ConfirmDead("n0", "ann"))
    assert node_state(lab) is NodeState.DEAD


def test_gang_with_expired_lease_on_one_node_is_stopped_on_others_first() -> None:
    lab = Lab(nodes=[], limits=LIMITS, obedient=False)
    for name in ("n0", "n1", "n2"):
        lab.do(found(name))
    lab.submit(a_job(number=1, gpus=1, members=2, requeue_on_node_loss=True))
    lab.do(NodeSilent("n0"), LeasesExpired("n0", LEASE + MARGIN))
    assert [stop.why for stop in lab.stops] == ["preempted"]
    assert lab.allocation("j1").id == "j1.1"
    lab.do(Ended("j1.1", None, 15))
    assert lab.nodes_of("j1") == ["n1", "n2"]


@pytest.mark.parametrize("how", ["dead", "lease over", "stopped by its node"])
def test_node_loss_is_not_counted_as_preemption(how: str) -> None:
    lab = two_nodes()
    lab.submit(a_job(number=1, requeue_on_node_loss=True))
    (node,) = lab.nodes_of("j1")
    lab.do(NodeSilent(node))
    if how == "dead":
        lab.do(ConfirmDead(node, "ann"))
    elif how == "lease over":
        lab.do(LeasesExpired(node, LEASE + MARGIN))
    else:
        lab.do(found(node), Ended("j1.1", None, 15, stopped_by="lease"))
    assert lab.allocation("j1").attempt == 2
    assert lab.core.state.jobs["j1"].task(None).preemptions == 0


def test_repeated_dead_confirmation_changes_nothing() -> None:
    lab = two_nodes()
    lab.do(NodeSilent("n0"), NodeFenced("n0"))
    before = lab.store.last_event()
    lab.do(NodeFenced("n0"))
    assert lab.store.last_event() == before
