"""Requests that can never run on this cluster, and their rejection messages."""

import pytest

from gpu_scheduler.engine.placement.capacity import described, ever_fits, largest_node_gpus, offered
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.equivalence_classes import RequestShape
from gpu_scheduler.model.node import ForeignUse, Health, NodeClosure, NodeState
from gpu_scheduler.model.request import Topology
from tests.builders import (
    a_cluster,
    a_device,
    a_job,
    a_mig_device,
    a_node,
    a_request,
    a_state,
    on,
    running,
)


def why_never(state: ClusterState, **fields) -> str:
    return ever_fits(state, state.job_shape(a_job(**fields)))


def test_busy_broken_and_drained_nodes_count_as_possible_capacity() -> None:
    node = a_node(
        gpus=2,
        state=NodeState.LOST,
        closed=NodeClosure(since_ms=0, drains=True),
        device={"paused": True, "health": Health.UNHEALTHY, "foreign": ForeignUse(pid=1)},
    )
    state = a_state(nodes=[node])
    assert why_never(state, gpus=2) == ""
    busy = a_state(nodes=[a_node(gpus=2)], held=[running(a_job(gpus=2), on("n0", [0, 1]))])
    assert why_never(busy, gpus=2) == ""
    assert why_never(busy, gpus=1, members=2) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"gpus": 9},
        {"cpus": 65},
        {"memory_mb": 999_999},
        {"gpu_models": ("H100",)},
        {"gpu_memory_mb": 80_001},
        {"mig_profile": "1g.10gb"},
        {"device_ids": (8,)},
        {"node_labels": (("zone", "a"),)},
        {"min_bandwidth_gbps": 600},
        {"gpus": 5, "topology": Topology.REQUIRE_ISLAND},
        {"gpus": 4, "members": 5},
    ],
    ids=str,
)
def test_request_that_no_node_offers_never_fits(fields) -> None:
    state = a_state(nodes=a_cluster(nodes=2, gpus=8, islands=2))
    assert why_never(state, **fields)


def test_labels_and_hardware_must_be_on_same_node() -> None:
    small = a_node(ordinal=0, gpus=1, labels=(("zone", "a"),))
    state = a_state(nodes=[small, a_node(ordinal=1, gpus=8)])
    assert why_never(state, gpus=8) == ""
    assert why_never(state, gpus=1, node_labels=(("zone", "a"),)) == ""
    assert why_never(state, gpus=8, node_labels=(("zone", "a"),))


def test_removed_node_no_longer_counts() -> None:
    state = a_state(nodes=[a_node(ordinal=0, gpus=8), a_node(ordinal=1, gpus=1)])
    state.remove_node("n0")
    assert why_never(state, gpus=8)
    assert largest_node_gpus(state.index, a_request(gpus=8)) == 1


def test_gang_that_never_fit_may_fit_after_node_joins() -> None:
    state = a_state(nodes=[a_node(ordinal=0, gpus=4)])
    assert why_never(state, gpus=4, members=2).startswith(
        "8 GPUs requested, but the largest node has 4 "
    )
    state.set_node(a_node(ordinal=1, gpus=4))
    assert why_never(state, gpus=4, members=2) == ""


def test_elastic_gang_needs_only_its_minimum() -> None:
    state = a_state(nodes=[a_node(gpus=4)])
    assert why_never(state, gpus=4, members=3, min_members=1) == ""


def test_largest_node_counts_allowed_models_only() -> None:
    mixed = [a_device(index=i, model="A100" if i < 3 else "V100") for i in range(8)]
    state = a_state(nodes=[a_node(devices=mixed)])
    assert largest_node_gpus(state.index, a_request(gpu_models=("A100",))) == 3
    assert largest_node_gpus(a_state().index, a_request()) == 0


def test_largest_node_excludes_mig_devices() -> None:
    devices = [a_mig_device(index=0), a_device(index=1), a_device(index=2)]
    state = a_state(nodes=[a_node(devices=devices)])
    assert largest_node_gpus(state.index, a_request(gpus=4)) == 2


def test_largest_node_counts_devices_of_one_model() -> None:
    mixed = [a_device(index=i, model="A100" if i < 3 else "V100") for i in range(8)]
    state = a_state(nodes=[a_node(devices=mixed)])
    assert largest_node_gpus(state.index, a_request(gpus=8)) == 5


def test_largest_node_counts_large_enough_and_allowed_devices() -> None:
    mixed = [a_device(index=i, memory_mb=80_000 if i < 3 else 40_000) for i in range(8)]
    state = a_state(nodes=[a_node(devices=mixed)])
    index = state.index
    assert largest_node_gpus(index, a_request(gpus=8, gpu_memory_mb_per_gpu=60_000)) == 3
    assert largest_node_gpus(index, a_request(gpus=2, device_ids=(0, 7))) == 2


def test_largest_node_is_updated_when_nodes_join_and_leave() -> None:
    state = a_state(nodes=[a_node(ordinal=0, gpus=2)])
    request = a_request(gpus=16)
    assert largest_node_gpus(state.index, request) == 2
    state.set_node(a_node(ordinal=1, gpus=8))
    state.set_node(a_node(ordinal=2, gpus=8))
    assert largest_node_gpus(state.index, request) == 8
    state.remove_node("n1")
    assert largest_node_gpus(state.index, request) == 8
    state.remove_node("n2")
    assert largest_node_gpus(state.index, request) == 2
    state.set_node(a_node(ordinal=3, gpus=8))
    assert largest_node_gpus(state.index, request) == 8
    assert "the largest node has 8" in why_never(state, gpus=9)


def test_additional_share_needs_room_in_required_island() -> None:
    state = a_state(nodes=[a_node(gpus=4, islands=2)])
    assert why_never(state, gpus=1.5, topology=Topology.REQUIRE_ISLAND) == ""
    assert why_never(state, gpus=2.5, topology=Topology.REQUIRE_ISLAND)


def test_node_with_labels_may_join_later() -> None:
    state = a_state(nodes=[a_node(ordinal=0)])
    fields = {"gpus": 8, "node_labels": (("zone", "a"),)}
    assert why_never(state, **fields)
    state.set_node(a_node(ordinal=1, labels=(("zone", "a"),)))
    assert why_never(state, **fields) == ""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus": 2}, "2 GPUs"),
        ({"gpus": 0.5}, "0.5 GPU"),
        ({"gpus": 0, "gpu_memory_mb": 10}, "1 shared GPU, 10 MiB of GPU memory each"),
        ({"gpus": 1, "gpu_models": ("A100", "H100")}, "1 GPU (A100 or H100)"),
        ({"gpus": 2, "mig_profile": "1g.10gb"}, "2 x MIG 1g.10gb"),
        (
            {"gpus": 1, "gpu_memory_mb": 10, "cpus": 1.5, "memory_mb": 20},
            "1 GPU, 10 MiB of GPU memory each, 1.5 CPU cores, 20 MiB of memory",
        ),
        (
            {"gpus": 1, "gpu_memory_mb": 40 << 10, "memory_mb": 100 << 20},
            "1 GPU, 40 GB of GPU memory each, 102,400 GB of memory",
        ),
        ({"gpus": 0, "node_labels": (("zone", "a"),)}, "a place, labels zone=a"),
        ({"gpus": 0}, "nothing"),
    ],
)
def test_request_is_described_briefly(fields, words) -> None:
    assert described(RequestShape(0, a_request(**fields))) == words


def test_largest_node_is_described_briefly() -> None:
    state = a_state(nodes=[a_node(ordinal=0, gpus=2), a_node(ordinal=1, gpus=4, cpus=32)])
    assert offered(state.index) == (
        "the largest node has 4 A100 GPUs, 32 CPU cores and 500 GB of memory"
    )
    assert offered(a_state(nodes=[a_node(gpus=0, cpus=2)]).index) == (
        "the largest node has no GPU, 2 CPU cores and 500 GB of memory"
    )
    assert offered(a_state().index) == "no node is known"
