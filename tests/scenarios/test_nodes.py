"""Nodes that come late, get lost, drain or run hot, and the jobs on them."""

from gpu_scheduler.control.messages import (
    NodeFenced,
    SetNode,
)
from gpu_scheduler.control.node_messages import (
    Drain,
    Uncordon,
)
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.states import JobState
from tests.builders import HOUR, a_cluster, a_job, a_node
from tests.scenarios.lab import Lab


def test_a_job_that_was_submitted_before_any_node_is_divided_when_nodes_come() -> None:
    lab = Lab()
    lab.submit(a_job(number=1, gpus=8))
    lab.do(*(SetNode(node) for node in a_cluster(nodes=2, gpus=4)))
    assert lab.nodes_of("j1") == ["n0", "n1"]


def test_a_job_that_was_submitted_before_any_node_says_that_it_never_fits() -> None:
    lab = Lab()
    lab.submit(a_job(number=1, gpu_models=("H100",)), a_job(number=2))
    lab.do(SetNode(a_node()))
    assert lab.running() == ["j2"]
    assert "no known node could run it even when empty" in lab.row("j1").reason
    lab.do(SetNode(a_node(ordinal=1, device={"model": "H100"})))
    assert lab.nodes_of("j1") == ["n1"]


def test_a_job_on_a_fenced_node_runs_elsewhere_if_it_may_be_repeated() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=1))
    lab.submit(a_job(number=1, requeue_on_node_loss=True))
    assert lab.nodes_of("j1") == ["n0"]
    lab.at(HOUR)
    lab.do(NodeFenced("n0"))
    assert lab.nodes_of("j1") == ["n1"]
    assert lab.allocation("j1").attempt == 2


def test_a_job_on_a_fenced_node_has_failed_if_it_may_not_be_repeated() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=1))
    lab.submit(a_job(number=1))
    lab.do(NodeFenced("n0"))
    assert lab.state("j1") is JobState.FAILED
    assert lab.store.nodes()[0].state is NodeState.DEAD


def test_a_lost_node_takes_work_again_when_it_comes_back() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.do(NodeFenced("n0"))
    lab.submit(a_job(number=1))
    assert lab.running() == []
    lab.do(SetNode(a_node(gpus=1)))
    assert lab.running() == ["j1"]


def test_a_draining_node_lets_its_jobs_end_and_takes_no_more() -> None:
    lab = Lab(nodes=[a_node(gpus=2)])
    lab.submit(a_job(number=1))
    lab.do(Drain("n0"))
    lab.submit(a_job(number=2))
    assert lab.running() == ["j1"]
    lab.ends("j1")
    assert lab.running() == []
    lab.do(Uncordon("n0"))
    assert lab.running() == ["j2"]


def test_a_hot_device_gets_no_new_work_until_it_has_cooled() -> None:
    def node(*, hot: bool):
        return a_node(gpus=1, device={"hot": hot, "temperature_c": 90 if hot else 60})

    lab = Lab(nodes=[node(hot=False)])
    lab.submit(a_job(number=1))
    lab.do(SetNode(node(hot=True)))
    assert lab.running() == ["j1"], "what runs is left alone"
    lab.submit(a_job(number=2))
    lab.ends("j1")
    assert lab.running() == []
    lab.do(SetNode(node(hot=False)))
    assert lab.running() == ["j2"]
