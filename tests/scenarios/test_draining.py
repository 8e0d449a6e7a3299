"""Nodes that admins cordon, drain, label and remove, and the jobs on them."""

from dataclasses import replace

import pytest

from gpu_scheduler.control.messages import (
    Cordon,
    DeviceSample,
    DevicesSampled,
    Drain,
    LabelNode,
    NodeReported,
    NodeSilent,
    RemoveNode,
    Uncordon,
)
from gpu_scheduler.control.restore import restore
from gpu_scheduler.engine.explain import explain
from gpu_scheduler.model.errors import InvalidRequest, UnknownThing, WrongState
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.node import Device, DeviceMode, Health, Node, NodeClosure
from gpu_scheduler.model.plan import Plan
from tests.builders import MINUTE, a_cluster, a_core, a_job
from tests.scenarios.lab import Lab


def node(lab: Lab, node_id: str) -> Node:
    return lab.core.state.cluster.index.resources(node_id).node


def kinds(lab: Lab) -> list[str]:
    return [row.kind for _, row in lab.store.events(0) if row.kind.startswith("node_")]


def found(node_id: str, **labels: str) -> NodeReported:
    return NodeReported(
        node_id=node_id,
        cpu_milli=8000,
        memory_mb=64_000,
        devices=(Device(index=0, uuid=f"{node_id}-0", model="A100", memory_mb=80_000),),
        labels=tuple(sorted(labels.items())),
    )


# --- cordon and drain


def test_cordoned_node_keeps_its_jobs_and_gets_no_new_ones() -> None:
    lab = Lab(nodes=a_cluster(nodes=1, gpus=2))
    lab.submit(a_job(number=1))
    lab.do(Cordon("n0", "ann", "a fan is loud"))
    lab.submit(a_job(number=2))
    assert lab.running() == ["j1"]
    assert not lab.stops
    lab.do(Uncordon("n0"))
    assert lab.running() == ["j1", "j2"]


def test_drain_without_deadline_waits_for_jobs_and_then_completes() -> None:
    lab = Lab(nodes=a_cluster(nodes=1, gpus=1))
    lab.submit(a_job(number=1))
    lab.do(Drain("n0", "ann"))
    lab.at(100 * MINUTE)
    assert lab.running() == ["j1"]
    assert kinds(lab) == ["node_draining"]
    lab.ends("j1")
    assert lab.state("j1") is JobState.COMPLETED
    assert kinds(lab) == ["node_draining", "node_drained"]


def test_empty_node_is_drained_at_once() -> None:
    lab = Lab(nodes=a_cluster(nodes=1, gpus=1))
    lab.do(Drain("n0", "ann"))
    assert kinds(lab) == ["node_draining", "node_drained"]


def test_jobs_running_past_drain_deadline_are_requeued_elsewhere() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=1))
    lab.submit(a_job(number=1))
    assert lab.nodes_of("j1") == ["n0"]
    lab.do(Drain("n0", "ann", within_ms=10 * MINUTE))
    lab.at(9 * MINUTE)
    assert lab.nodes_of("j1") == ["n0"]
    lab.at(10 * MINUTE)
    assert lab.nodes_of("j1") == ["n1"]
    assert lab.allocation("j1").attempt == 2
    assert kinds(lab)[-1] == "node_drained"


def test_drain_with_requeue_stops_each_job_once_at_once() -> None:
    lab = Lab(nodes=a_cluster(nodes=1, gpus=2), obedient=False)
    lab.submit(a_job(number=1), a_job(number=2))
    lab.do(Drain("n0", "ann", within_ms=0), Drain("n0", "ann", within_ms=0))
    assert sorted(stop.why for stop in lab.stops) == ["preempted", "preempted"]


def test_draining_one_node_stops_whole_gang() -> None:
    lab = Lab(nodes=a_cluster(nodes=3, gpus=1))
    lab.submit(a_job(number=1, gpus=1, members=2))
    assert lab.nodes_of("j1") == ["n0", "n1"]
    lab.do(Drain("n1", "ann", within_ms=0))
    assert lab.nodes_of("j1") == ["n0", "n2"]


def test_uncordon_cancels_drain_before_deadline() -> None:
    lab = Lab(nodes=a_cluster(nodes=1, gpus=1))
    lab.submit(a_job(number=1))
    lab.do(Drain("n0", "ann", within_ms=10 * MINUTE), Uncordon("n0"))
    lab.at(20 * MINUTE)
    assert lab.running() == ["j1"]
    assert not lab.stops


def test_repeated_drain_keeps_reason_and_start() -> None:
    lab = Lab(nodes=a_cluster(nodes=1, gpus=1))
    lab.do(Cordon("n0", "ann", "a fan is loud"))
    lab.at(MINUTE)
    lab.do(Drain("n0", "ben", within_ms=MINUTE))
    assert node(lab, "n0").closed == NodeClosure(
        since_ms=0, by="ben", reason="a fan is loud", drains=True, requeue_ms=2 * MINUTE
    )


def test_waiting_job_reason_mentions_draining_nodes() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=1))
    lab.do(Drain("n0", "ann"), Cordon("n1", "ann"))
    lab.submit(a_job(number=1))
    why = explain(lab.core.state.cluster, lab.last_plan or Plan(), 1)
    assert "1 x being drained, 1 x cordoned" in str(why)


def test_drain_and_deadline_survive_restart() -> None:
    lab = Lab(nodes=[])
    lab.do(found("box"))
    lab.submit(a_job(number=1))
    lab.do(Drain("box", "ann", "new fans", within_ms=10 * MINUTE))
    lab.store.commit(lab.core.ledger_writes())
    lab.core = a_core(nodes=[])
    restore(lab.core.state, lab.store, lab.now_ms)
    lab.do(found("box"))
    closed = node(lab, "box").closed
    assert closed is not None
    assert (closed.by, closed.reason, closed.drains) == ("ann", "new fans", True)
    lab.submit(a_job(number=2, gpus=0))
    assert lab.running() == ["j1"]
    lab.at(10 * MINUTE)
    assert lab.running() == []
    assert lab.state("j1") is JobState.PENDING


def test_unknown_node_cannot_be_drained() -> None:
    lab = Lab(nodes=a_cluster(nodes=1, gpus=1))
    with pytest.raises(UnknownThing, match="node 'x' is not known; known: n0"):
        lab.do(Drain("x"))


# --- labels


def test_admin_labels_override_agent_labels_and_persist() -> None:
    lab = Lab(nodes=[])
    lab.do(found("box", zone="a", ib="yes"))
    lab.do(LabelNode("box", (("zone", "b"), ("ib", None), ("owner", "vision"))))
    assert dict(node(lab, "box").labels) == {"owner": "vision", "zone": "b"}
    lab.do(NodeSilent("box"), found("box", zone="a", ib="yes", disk="ssd"))
    assert dict(node(lab, "box").labels) == {"disk": "ssd", "owner": "vision", "zone": "b"}
    lab.do(LabelNode("box", (("zone", "a"), ("ib", "yes"), ("owner", None))))
    assert node(lab, "box").given_labels == ()
    assert dict(node(lab, "box").labels) == {"disk": "ssd", "ib": "yes", "zone": "a"}


def test_job_starts_when_node_gets_required_label() -> None:
    lab = Lab(nodes=[])
    lab.do(found("one", zone="a"), found("two"))
    lab.submit(
        a_job(number=1, node_labels=(("zone", "a"),)), a_job(number=2, node_labels=(("zone", "a"),))
    )
    assert lab.running() == ["j1"]
    lab.do(LabelNode("two", (("zone", "a"),)))
    assert lab.nodes_of("j2") == ["two"]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("", "x", "a name has letters"),
        ("a b", "x", "a name has letters"),
        ("tgpu.runner.process", "no", "is set by agents"),
        ("zone", "x\ny", "cannot be"),
    ],
)
def test_invalid_labels_are_rejected(name: str, value: str, says: str) -> None:
    lab = Lab(nodes=a_cluster(nodes=1, gpus=1))
    with pytest.raises(InvalidRequest, match=says):
        lab.do(LabelNode("n0", ((name, value),)))


# --- removal


def test_node_is_removed_only_when_idle_and_disconnected() -> None:
    lab = Lab(nodes=[])
    lab.do(found("box"), found("other"))
    lab.submit(a_job(number=1))
    with pytest.raises(WrongState, match=r"j1\.1 may still run there"):
        lab.do(RemoveNode("box"))
    lab.ends("j1")
    with pytest.raises(WrongState, match="its agent is connected"):
        lab.do(RemoveNode("box"))
    lab.do(NodeSilent("box"), RemoveNode("box"))
    assert [kept.id for kept in lab.store.nodes()] == ["other"]


def test_nodes_can_join_and_get_jobs_after_removal() -> None:
    lab = Lab(nodes=[])
    lab.do(found("a"), found("b"), found("c"), NodeSilent("a"), RemoveNode("a"))
    lab.do(found("d"), found("e"))
    lab.submit(*(a_job(number=number) for number in range(1, 5)))
    assert sorted(lab.nodes_of(f"j{number}")[0] for number in range(1, 5)) == ["b", "c", "d", "e"]


# --- devices that are lost


def test_only_jobs_on_lost_device_are_notified() -> None:
    lab = Lab(nodes=[])
    both = (
        Device(index=0, uuid="a", model="A100", memory_mb=80_000),
        Device(index=1, uuid="b", model="A100", memory_mb=80_000),
    )
    box = replace(found("box"), devices=both)
    lab.do(box)
    lab.submit(a_job(number=1), a_job(number=2))
    lab.do(replace(box, devices=both[:1]))
    lab.do(replace(box, devices=both[:1]))
    assert [(warning.allocation_id, warning.text) for warning in lab.warnings] == [
        ("j2.1", "GPU 1 of box cannot be trusted any more: it is not there any more")
    ]
    lab.submit(a_job(number=3))
    lab.ends("j1", "j2")
    assert lab.running() == ["j3"]
    assert len(node(lab, "box").devices) == 1


def test_job_on_failing_device_is_notified_once() -> None:
    lab = Lab(nodes=[])
    lab.do(found("box"))
    lab.submit(a_job(number=1))
    ill = DeviceSample(index=0, healthy=False, why="fallen off the bus")
    lab.do(DevicesSampled("box", (ill,)), DevicesSampled("box", (ill,)))
    assert [warning.text for warning in lab.warnings] == [
        "GPU 0 of box cannot be trusted any more: fallen off the bus"
    ]


def test_added_device_is_used_at_once() -> None:
    lab = Lab(nodes=[])
    lab.do(found("box"))
    lab.submit(a_job(number=1), a_job(number=2))
    assert lab.running() == ["j1"]
    more = Device(index=1, uuid="box-1", model="A100", memory_mb=80_000)
    lab.do(replace(found("box"), devices=(*found("box").devices, more)))
    assert lab.running() == ["j1", "j2"]


# --- devices that are split otherwise


SMALL, LARGE = "1g.10gb", "3g.40gb"


def split(small: int = 0, large: int = 0) -> NodeReported:
    """Node `box` with one GPU in MIG mode; without slices it is whole."""
    pieces = tuple((name, count) for name, count in ((SMALL, small), (LARGE, large)) if count)
    mode = DeviceMode.MIG if pieces else DeviceMode.WHOLE
    device = Device(index=0, uuid="a", model="A100", memory_mb=80_000, mode=mode, mig_slices=pieces)
    return replace(found("box"), devices=(device,))


def on_a_slice(number: int, profile: str) -> Job:
    return a_job(number=number, gpus=1, mig_profile=profile)


def test_new_mig_slices_are_used_beside_held_ones() -> None:
    lab = Lab(nodes=[])
    lab.do(split(large=2))
    lab.submit(on_a_slice(1, LARGE))
    lab.do(split(small=2, large=1))
    lab.submit(on_a_slice(2, SMALL), on_a_slice(3, SMALL))
    assert lab.running() == ["j1", "j2", "j3"]
    assert node(lab, "box").devices[0].health is Health.HEALTHY


def test_destroyed_mig_slices_are_not_allocated() -> None:
    lab = Lab(nodes=[])
    lab.do(split(small=3))
    lab.submit(on_a_slice(1, SMALL))
    lab.do(split(small=2))
    lab.submit(on_a_slice(2, SMALL), on_a_slice(3, SMALL))
    assert lab.running() == ["j1", "j2"]


def test_mig_slice_destroyed_under_job_disappears_when_job_ends() -> None:
    lab = Lab(nodes=[])
    lab.do(split(large=1))
    lab.submit(on_a_slice(1, LARGE))
    lab.do(split(small=1))
    lab.submit(on_a_slice(2, SMALL), on_a_slice(3, LARGE))
    assert lab.running() == ["j1", "j2"]
    lab.ends("j1")
    assert lab.running() == ["j2"]
    assert node(lab, "box").devices[0].mig_slices == ((SMALL, 1),)


def test_unsplit_device_becomes_whole_when_last_job_ends() -> None:
    lab = Lab(nodes=[])
    lab.do(split(large=1))
    lab.submit(on_a_slice(1, LARGE))
    lab.do(split())
    # A reading of the device itself does not bring its old slices back.
    lab.do(DevicesSampled("box", (DeviceSample(index=0),)))
    assert node(lab, "box").devices[0].health is Health.UNHEALTHY
    lab.ends("j1")
    lab.submit(a_job(number=2, gpus=1))
    assert lab.running() == ["j2"]
    assert node(lab, "box").devices[0].health is Health.HEALTHY
