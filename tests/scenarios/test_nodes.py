"""Nodes that join late, get lost, drain or overheat, and the jobs on them."""

from gpu_scheduler.control.messages import (
    Cordon,
    NodeFenced,
    NodeReported,
    SetNode,
    Uncordon,
)
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.node import NodeState
from tests.builders import HOUR, a_cluster, a_job, a_node
from tests.scenarios.lab import Lab


def test_job_submitted_before_any_node_is_split_when_nodes_join() -> None:
    lab = Lab()
    lab.submit(a_job(number=1, gpus=8))
    lab.do(*(SetNode(node) for node in a_cluster(nodes=2, gpus=4)))
    assert lab.nodes_of("j1") == ["n0", "n1"]


def test_job_submitted_before_any_node_reports_that_it_never_fits() -> None:
    lab = Lab()
    lab.submit(a_job(number=1, gpu_models=("H100",)), a_job(number=2))
    lab.do(SetNode(a_node()))
    assert lab.running() == ["j2"]
    assert "no known node could run it even when empty" in lab.row("j1").reason
    lab.do(SetNode(a_node(ordinal=1, device={"model": "H100"})))
    assert lab.nodes_of("j1") == ["n1"]


def test_repeatable_job_on_fenced_node_runs_elsewhere() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=1))
    lab.submit(a_job(number=1, requeue_on_node_loss=True))
    assert lab.nodes_of("j1") == ["n0"]
    lab.at(HOUR)
    lab.do(NodeFenced("n0"))
    assert lab.nodes_of("j1") == ["n1"]
    assert lab.allocation("j1").attempt == 2


def test_unrepeatable_job_on_fenced_node_fails() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=1))
    lab.submit(a_job(number=1))
    lab.do(NodeFenced("n0"))
    assert lab.state("j1") is JobState.FAILED
    assert lab.store.nodes()[0].state is NodeState.DEAD


def test_lost_node_gets_jobs_again_when_it_returns() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.do(NodeFenced("n0"))
    lab.submit(a_job(number=1))
    assert lab.running() == []
    lab.do(SetNode(a_node(gpus=1)))
    assert lab.running() == ["j1"]


def test_hot_device_gets_no_jobs_until_cooled() -> None:
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


def an_agent(unfit: str = "") -> NodeReported:
    return NodeReported(
        node_id="n0", cpu_milli=8_000, memory_mb=32_000, devices=a_node(gpus=2).devices, unfit=unfit
    )


def test_node_that_cannot_start_jobs_is_excluded_until_it_can() -> None:
    lab = Lab()
    lab.do(an_agent())
    lab.submit(a_job(number=1))
    lab.do(an_agent("the disk is full"))
    lab.submit(a_job(number=2))
    assert lab.running() == ["j1"]
    (node,) = lab.store.nodes()
    assert node.closed is not None
    assert (node.closed.reason, node.closed.is_fault) == ("the disk is full", True)
    lab.do(an_agent())
    assert lab.running() == ["j1", "j2"]
    kinds = [event.kind for _, event in lab.store.events(0) if event.kind.startswith("node_")]
    assert kinds[-2:] == ["node_set_aside", "node_uncordoned"]


def test_starts_that_fail_on_a_full_disk_neither_lengthen_the_pause_nor_fail_the_job() -> None:
    """The agent reports the disk before the start that failed for it."""
    lab = Lab()
    lab.do(an_agent())
    lab.submit(a_job(number=1))
    for _ in range(8):
        assert lab.running() == ["j1"]
        lab.do(an_agent("the disk is full"))
        lab.ends("j1", exit_code=None, ran=False, stopped_by="not_begun", detail="full")
        lab.at(lab.now_ms + CoreLimits().backoff_ms)
        assert lab.running() == []
        lab.do(an_agent())


def test_node_closed_by_admin_stays_closed_when_healthy_again() -> None:
    lab = Lab()
    lab.do(an_agent("the disk is full"), Cordon("n0", "ada", "a new disk comes"), an_agent())
    lab.submit(a_job(number=1))
    assert lab.running() == []
    lab.do(Uncordon("n0"))
    assert lab.running() == ["j1"]


def test_job_that_node_could_not_start_runs_elsewhere_without_using_retry() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=1))
    lab.submit(a_job(number=1))
    full = lab.nodes_of("j1")
    detail = "cannot write: No space left on device"
    lab.ends("j1", exit_code=None, ran=False, stopped_by="not_begun", detail=detail)
    lab.do(Cordon(full[0], "ada", ""))
    lab.at(HOUR)
    assert lab.nodes_of("j1") != full
    assert lab.row("j1").failures == 0
