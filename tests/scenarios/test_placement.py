"""Placement: packing and spreading."""

from gpu_scheduler.engine.policy import Ranking
from gpu_scheduler.model.node import node_name_labels
from tests.builders import a_cluster, a_job, a_policy
from tests.scenarios.lab import Lab


def devices_of(lab: Lab, name: str) -> tuple[str, list[int]]:
    (placement,) = lab.allocation(name).placements
    return placement.node_id, [share.index for share in placement.devices]


def test_packing_fills_one_device_before_next() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=2))
    lab.submit(*(a_job(number=number, gpus=0.5) for number in (1, 2, 3)))
    assert [devices_of(lab, name) for name in ("j1", "j2", "j3")] == [
        ("n0", [0]),
        ("n0", [0]),
        ("n0", [1]),
    ]


def test_spreading_stacks_shares_only_when_every_device_is_used() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=2), policy=a_policy(ranking=Ranking.SPREAD))
    lab.submit(*(a_job(number=number, gpus=0.3) for number in (1, 2, 3, 4, 5)))
    assert [devices_of(lab, f"j{number}") for number in (1, 2, 3, 4, 5)] == [
        ("n0", [0]),
        ("n1", [0]),
        ("n0", [1]),
        ("n1", [1]),
        ("n0", [0]),
    ]


def test_job_runs_only_on_named_nodes() -> None:
    lab = Lab(nodes=a_cluster(nodes=3, gpus=1))
    lab.submit(
        a_job(number=1, node_labels=node_name_labels(["n2"], [])),
        a_job(number=2, node_labels=node_name_labels(["n2"], [])),
        a_job(number=3, node_labels=node_name_labels([], ["n0", "n2"])),
    )
    assert (lab.nodes_of("j1"), lab.nodes_of("j3")) == (["n2"], ["n1"])
    assert "j2" not in lab.running()
    lab.ends("j1")
    assert lab.nodes_of("j2") == ["n2"]
