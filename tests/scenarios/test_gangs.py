"""Gangs over several GPUs and nodes start together or not at all."""

from dataclasses import replace

import pytest

from gpu_scheduler.control.effects import StopOrder
from gpu_scheduler.control.messages import Cancel, NodeFenced, NodeLost, NodeSilent, Retry
from gpu_scheduler.model.errors import NeverFits
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.request import Topology
from tests.builders import HOUR, a_cluster, a_device, a_job, a_node, a_policy
from tests.scenarios.lab import Lab


def member_gpus(job: Job) -> list[int]:
    return [member.gpu_count for member in job.members]


def test_gang_waits_until_every_member_fits() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=4))
    lab.submit(a_job(number=1, gpus=4), a_job(number=2, gpus=4, members=2))
    assert lab.running() == ["j1"]
    lab.ends("j1")
    assert lab.nodes_of("j2") == ["n0", "n1"]


def test_no_gang_member_starts_while_one_does_not_fit() -> None:
    lab = Lab(nodes=a_cluster(nodes=3, gpus=4), policy=a_policy(name="skip"))
    lab.submit(a_job(number=1, gpus=2), a_job(number=2, gpus=4, members=3))
    assert lab.running() == ["j1"]
    assert lab.core.state.cluster.index.free_devices == 10


def test_elastic_gang_starts_with_minimum_plus_members_that_fit() -> None:
    lab = Lab(nodes=a_cluster(nodes=4, gpus=4))
    lab.submit(a_job(number=1, gpus=4), a_job(number=2, gpus=4, members=6, min_members=2))
    assert len(lab.nodes_of("j2")) == 3


def test_elastic_gang_continues_with_one_member_fewer_after_kill() -> None:
    lab = Lab(nodes=a_cluster(nodes=4, gpus=4))
    lab.submit(a_job(number=1, gpus=4, members=4, min_members=2))
    for left in (3, 2):
        lab.ends("j1", exit_code=None, signal=9, detail="member 1 on n1: signal 9")
        lab.at(lab.now_ms + HOUR)
        assert len(lab.nodes_of("j1")) == left
        # Stored, so that a restarted server knows it too.
        assert lab.row("j1").most_members == left
        assert len(lab.row("j1").job.members) == 4
    assert lab.events("j1").count("resized") == 2
    # It has no retries, and cannot continue with fewer than the minimum.
    lab.ends("j1", exit_code=None, signal=9)
    assert lab.state("j1") is JobState.FAILED


def test_elastic_gang_shrinks_from_its_actual_size() -> None:
    lab = Lab(nodes=a_cluster(nodes=3, gpus=4))
    lab.submit(a_job(number=1, gpus=4, members=8, min_members=2))
    assert len(lab.nodes_of("j1")) == 3
    # As a shell reports a killed program.
    lab.ends("j1", exit_code=137)
    lab.at(lab.now_ms + HOUR)
    assert len(lab.nodes_of("j1")) == 2


def test_elastic_gang_at_minimum_survives_node_loss() -> None:
    lab = Lab(nodes=a_cluster(nodes=4, gpus=4))
    lab.submit(a_job(number=1, gpus=4, members=3, min_members=2))
    lab.ends("j1", exit_code=None, signal=9)
    lab.at(lab.now_ms + 60_000)
    lost = lab.nodes_of("j1")[0]
    lab.do(NodeSilent(lost), NodeLost(lost), NodeFenced(lost))
    lab.ends("j1", exit_code=None, signal=15, stopped_by="preempted")
    lab.at(lab.now_ms + 60_000)
    assert len(lab.nodes_of("j1")) == 2
    assert lost not in lab.nodes_of("j1")


def test_long_running_or_retried_elastic_gang_starts_at_full_size() -> None:
    lab = Lab(nodes=a_cluster(nodes=4, gpus=4))
    lab.submit(a_job(number=1, gpus=4, members=4, min_members=2))
    lab.ends("j1", exit_code=None, signal=9)
    lab.at(lab.now_ms + HOUR)
    assert len(lab.nodes_of("j1")) == 3
    lab.at(lab.now_ms + HOUR)
    lab.do(Cancel("j1"))
    lab.do(Retry("j1"))
    assert len(lab.nodes_of("j1")) == 4


def test_elastic_gang_stopped_by_scheduler_does_not_shrink() -> None:
    lab = Lab(nodes=a_cluster(nodes=1, gpus=4))
    lab.submit(a_job(number=1, gpus=1, members=4, min_members=2, retries=1))
    lab.ends("j1", exit_code=None, signal=15, stopped_by="not_begun")
    lab.at(lab.now_ms + HOUR)
    assert len(lab.allocation("j1").placements) == 4


def test_run_time_of_gang_that_lost_member_does_not_affect_predictions() -> None:
    lab = Lab(nodes=a_cluster(nodes=4, gpus=4))
    hours = {"gpus": 4, "members": 4, "min_members": 2, "name": "train", "estimate_ms": 10 * HOUR}
    lab.submit(a_job(number=1, **hours))
    lab.at(30_000)
    lab.ends("j1", exit_code=None, signal=9)
    lab.do(Cancel("j1"))
    lab.submit(a_job(number=2, **hours))
    assert lab.row("j2").expected_ms == 10 * HOUR


def test_elastic_gang_with_failing_program_does_not_shrink() -> None:
    lab = Lab(nodes=a_cluster(nodes=3, gpus=4))
    lab.submit(a_job(number=1, gpus=4, members=3, min_members=2, retries=1))
    lab.ends("j1", exit_code=1)
    lab.at(lab.now_ms + HOUR)
    assert len(lab.nodes_of("j1")) == 3
    lab.ends("j1", exit_code=1)
    assert lab.state("j1") is JobState.FAILED


def test_inelastic_gang_fails_when_member_is_killed() -> None:
    lab = Lab(nodes=a_cluster(nodes=3, gpus=4))
    lab.submit(a_job(number=1, gpus=4, members=3))
    lab.ends("j1", exit_code=None, signal=9)
    assert lab.state("j1") is JobState.FAILED


def test_job_larger_than_node_is_split_into_whole_nodes_and_remainder() -> None:
    lab = Lab(nodes=a_cluster(nodes=3, gpus=8))
    lab.submit(a_job(number=1, gpus=20))
    assert member_gpus(lab.row("j1").job) == [8, 8, 4]
    assert sorted(lab.nodes_of("j1")) == ["n0", "n1", "n2"]


def test_split_job_counts_gpus_of_one_model() -> None:
    mixed = [a_device(index=i, model="A100" if i < 4 else "V100") for i in range(8)]
    lab = Lab(nodes=[a_node(ordinal=ordinal, devices=mixed) for ordinal in range(2)])
    lab.submit(a_job(number=1, gpus=8))
    assert lab.nodes_of("j1") == ["n0", "n1"]


def test_split_job_counts_gpus_with_enough_memory() -> None:
    small = a_node(ordinal=0, gpus=8, device={"memory_mb": 40_000})
    large = [a_node(ordinal=ordinal, gpus=4) for ordinal in (1, 2)]
    lab = Lab(nodes=[small, *large])
    lab.submit(a_job(number=1, gpus=8, gpu_memory_mb_per_gpu=60_000))
    assert lab.nodes_of("j1") == ["n1", "n2"]


def test_gang_prefers_one_rack() -> None:
    lab = Lab(nodes=a_cluster(nodes=4, racks=2, gpus=4))
    lab.submit(a_job(number=1, gpus=4), a_job(number=2, gpus=4, members=2))
    assert lab.nodes_of("j1") == ["n0"]
    assert lab.nodes_of("j2") == ["n2", "n3"]


def test_gang_that_requires_one_rack_waits_for_it() -> None:
    nodes = a_cluster(nodes=4, racks=2, gpus=4)
    lab = Lab(nodes=[replace(node, labels=(("rack", node.rack),)) for node in nodes])
    lab.submit(
        a_job(number=1, gpus=4, node_labels=(("rack", "r0"),)),
        a_job(number=2, gpus=4, node_labels=(("rack", "r1"),)),
        a_job(number=3, gpus=4, members=2, same_rack=True),
    )
    assert lab.running() == ["j1", "j2"]
    assert lab.core.state.cluster.index.free_devices == 8
    lab.ends("j2")
    assert lab.nodes_of("j3") == ["n2", "n3"]


def test_gang_of_gpu_shares_can_use_one_rack_of_partly_used_gpus() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, racks=2, gpus=1))
    lab.submit(a_job(number=1, gpus=0.5, members=2, same_rack=True))
    assert lab.nodes_of("j1") == ["n0", "n0"]


def test_gang_that_can_never_fit_is_rejected_at_submit() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=8))
    with pytest.raises(NeverFits, match="24 GPUs requested, but the 2 nodes have 16 in total"):
        lab.submit(a_job(number=1, gpus=8, members=3))


def test_gpus_that_must_share_island_wait_for_one() -> None:
    lab = Lab(nodes=[a_node(gpus=8, islands=2)])
    lab.submit(a_job(number=1, gpus=2), a_job(number=2, gpus=3))
    lab.submit(a_job(number=3, gpus=3, topology=Topology.REQUIRE_ISLAND))
    assert lab.running() == ["j1", "j2"]
    assert lab.core.state.cluster.index.free_devices == 3
    lab.ends("j1")
    held = [share.index for share in lab.allocation("j3").placements[0].devices]
    assert held == [0, 1, 2]


def test_gang_with_member_on_dead_node_is_stopped_everywhere_before_retry() -> None:
    lab = Lab(nodes=a_cluster(nodes=3, gpus=4), obedient=False)
    lab.submit(a_job(number=1, gpus=4, members=2, requeue_on_node_loss=True))
    assert lab.nodes_of("j1") == ["n0", "n1"]
    outcome = lab.tell(NodeFenced("n0"))
    assert [e.allocation_id for e in outcome.effects if isinstance(e, StopOrder)] == ["j1.1"]
    lab.submit(a_job(number=2, gpus=4), a_job(number=3, gpus=4))
    places = [lab.nodes_of(name) for name in lab.running() if name != "j1"]
    assert places == [["n2"]], "n1 still runs a member of j1, so nobody else may have its GPUs"


def test_gang_whose_nodes_are_all_dead_is_retried_at_once() -> None:
    lab = Lab(nodes=a_cluster(nodes=4, gpus=4), obedient=False)
    lab.submit(a_job(number=1, gpus=4, members=2, requeue_on_node_loss=True))
    lab.do(NodeFenced("n0"))
    assert lab.allocation("j1").attempt == 1
    lab.do(NodeFenced("n1"))
    assert lab.nodes_of("j1") == ["n2", "n3"]


def test_failed_member_ends_gang_and_frees_every_node() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=4))
    lab.submit(a_job(number=1, gpus=4, members=2))
    lab.now_ms = HOUR
    lab.ends("j1", exit_code=1)
    assert lab.state("j1") is JobState.FAILED
    assert lab.core.state.cluster.index.free_devices == 8


def test_gang_that_fits_one_rack_skips_partly_used_racks() -> None:
    """Three racks of two nodes; one node of the first is used."""
    lab = Lab(nodes=a_cluster(nodes=6, racks=3, gpus=8))
    lab.submit(a_job(number=1, gpus=8), a_job(number=2, gpus=8, members=2))
    racks = {lab.core.state.cluster.index.resources(n).node.rack for n in lab.nodes_of("j2")}
    assert racks == {"r1"}


def test_each_member_in_rack_stays_on_one_nvlink_island() -> None:
    nodes = [a_node(ordinal=i, gpus=8, islands=2, rack=f"r{i // 2}") for i in range(4)]
    lab = Lab(nodes=nodes)
    lab.submit(a_job(number=1, gpus=2), a_job(number=2, gpus=4, members=4))
    placements = lab.allocation("j2").placements
    assert {lab.core.state.cluster.index.resources(p.node_id).node.rack for p in placements} == {
        "r1"
    }
    for placement in placements:
        devices = [share.index for share in placement.devices]
        assert devices in ([0, 1, 2, 3], [4, 5, 6, 7]), "one island for each member"


def test_gang_that_requires_rack_is_rejected_when_no_rack_is_large_enough() -> None:
    lab = Lab(nodes=a_cluster(nodes=4, racks=2, gpus=8))
    with pytest.raises(NeverFits):
        lab.submit(a_job(number=1, gpus=8, members=3, same_rack=True))
    lab.submit(a_job(number=2, gpus=8, members=3))
    assert len(lab.nodes_of("j2")) == 3


def racks_of(lab: Lab, job_id: str) -> set[str]:
    return {lab.core.state.cluster.index.resources(name).node.rack for name in lab.nodes_of(job_id)}


def test_gang_too_large_for_one_rack_uses_fewest_racks() -> None:
    """Racks of one, three, one and two nodes, in search order."""
    racks = ["r0", "r1", "r2", "r3", "r3", "r1", "r1"]
    lab = Lab(nodes=[a_node(ordinal=i, gpus=4, rack=rack) for i, rack in enumerate(racks)])
    lab.submit(a_job(number=1, gpus=4, members=5))
    assert racks_of(lab, "j1") == {"r1", "r3"}


def test_tightest_rack_that_completes_gang_is_chosen() -> None:
    racks = ["r0", "r0", "r0", "r1", "r1", "r1", "r2", "r3"]
    lab = Lab(nodes=[a_node(ordinal=i, gpus=4, rack=rack) for i, rack in enumerate(racks)])
    lab.submit(a_job(number=1, gpus=4, members=3), a_job(number=2, gpus=4, members=4))
    assert racks_of(lab, "j1") <= {"r0", "r1"}
    assert len(racks_of(lab, "j1")) == 1
    assert racks_of(lab, "j2") in ({"r0", "r2"}, {"r1", "r2"})


def test_elastic_gang_does_not_drop_members_for_fewer_racks() -> None:
    racks = ["r0", "r1", "r2"]
    lab = Lab(nodes=[a_node(ordinal=i, gpus=4, rack=rack) for i, rack in enumerate(racks)])
    lab.submit(a_job(number=1, gpus=4, members=3, min_members=2))
    assert racks_of(lab, "j1") == {"r0", "r1", "r2"}


def test_gang_rejection_names_rack_or_label_that_is_too_small() -> None:
    nodes = a_cluster(nodes=4, racks=2, gpus=4)
    lab = Lab(nodes=[replace(nodes[0], labels=(("zone", "a"),)), *nodes[1:]])
    with pytest.raises(NeverFits, match="the largest rack, r0, has room for 2 of 3"):
        lab.submit(a_job(number=1, gpus=4, members=3, same_rack=True))
    labels = (("zone", "a"),)
    with pytest.raises(NeverFits, match=r"1 node has zone=a, with room for 1 of 2"):
        lab.submit(a_job(number=1, gpus=4, members=2, node_labels=labels))
    labels = (("zone", "b"),)
    with pytest.raises(NeverFits, match="no node has label zone=b, but zone=a;"):
        lab.submit(a_job(number=1, gpus=4, members=2, node_labels=labels))
