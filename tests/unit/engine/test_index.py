"""Node selection by free resources."""

from collections.abc import Iterable
from typing import Any

import pytest

from gpu_scheduler.engine.state import node_index as index_module
from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.model.errors import InternalError, UnknownThing
from gpu_scheduler.model.node import ForeignUse, Health, Node, NodeClosure, NodeState
from gpu_scheduler.model.request import Request, Topology
from tests.builders import GPU_MB, a_cluster, a_device, a_mig_device, a_node, a_request


def an_index(nodes: Iterable[Node]) -> NodeIndex:
    index = NodeIndex()
    for node in nodes:
        index.add_node(node)
    return index


def find(index: NodeIndex, request: Request, *, spread: bool = False) -> Grant | None:
    return index.find(index.shape(request), spread=spread)


def take(index: NodeIndex, *, spread: bool = False, **fields) -> tuple[str, list[int]] | None:
    """Place a request and keep it there: the node, and its devices by index."""
    grant = find(index, a_request(**fields), spread=spread)
    if grant is None:
        return None
    index.take(grant)
    placement = grant.placement()
    return (placement.node_id, [share.index for share in placement.devices])


# --- whole devices


def test_packing_fills_used_node_before_empty_one() -> None:
    index = an_index(a_cluster(nodes=2, gpus=4))
    assert [take(index, gpus=g) for g in (2, 1, 4, 1)] == [
        ("n0", [0, 1]),
        ("n0", [2]),
        ("n1", [0, 1, 2, 3]),
        ("n0", [3]),
    ]
    assert take(index, gpus=1) is None


def test_packing_takes_tightest_sufficient_node() -> None:
    index = an_index([a_node(ordinal=0, gpus=8), a_node(ordinal=1, gpus=4)])
    assert take(index, gpus=4) == ("n1", [0, 1, 2, 3])


def test_spreading_takes_freest_node() -> None:
    index = an_index(a_cluster(nodes=3, gpus=4))
    placed = [take(index, gpus=1, spread=True) for _ in range(4)]
    assert placed == [("n0", [0]), ("n1", [0]), ("n2", [0]), ("n0", [1])]


def test_spreading_gives_each_share_a_device_of_freest_node() -> None:
    index = an_index(a_cluster(nodes=2, gpus=2))
    placed = [take(index, gpus=0.5, spread=True) for _ in range(2)]
    assert placed == [("n0", [0]), ("n1", [0])]


def test_spreading_prefers_free_device_to_shared_one() -> None:
    index = an_index([a_node(gpus=3)])
    placed = [take(index, gpus=0.3, spread=True) for _ in range(4)]
    assert placed == [("n0", [0]), ("n0", [1]), ("n0", [2]), ("n0", [0])]


def test_spreading_takes_largest_remainder_when_no_device_is_free() -> None:
    index = an_index(a_cluster(nodes=2, gpus=1))
    for share in (0.2, 0.5):
        take(index, gpus=share, spread=True)
    assert take(index, gpus=0.1) == ("n1", [0])
    assert take(index, gpus=0.1, spread=True) == ("n0", [0])


def test_spreading_gives_each_share_of_request_a_free_device_first() -> None:
    index = an_index([a_node(gpus=4)])
    take(index, gpus=0.5)
    two_halves = Request(gpu_count=2, gpu_share_milli=500)
    placed = [find(index, two_halves, spread=spread) for spread in (False, True)]
    assert [[part[0] for part in grant.parts] for grant in placed if grant] == [[0, 1], [1, 2]]


def test_spreading_skips_free_devices_of_other_models() -> None:
    mixed = [a_device(index=0, model="A100"), a_device(index=1, model="H100")]
    index = an_index([a_node(ordinal=0, devices=mixed), a_node(ordinal=1, gpus=1)])
    fields = {"gpus": 0.5, "gpu_models": ("A100",), "spread": True}
    assert [take(index, **fields) for _ in range(3)] == [("n0", [0]), ("n1", [0]), ("n0", [0])]


def test_high_ordinals_are_found_in_any_registration_order() -> None:
    nodes = a_cluster(nodes=300, gpus=1)
    rising, falling = an_index(nodes), an_index(reversed(nodes))
    for index in (rising, falling):
        placed = [take(index, gpus=gpus) for gpus in [0.5] * 3 + [1] * 298]
        assert placed[:4] == [("n0", [0]), ("n0", [0]), ("n1", [0]), ("n2", [0])]
        assert placed[-1] == ("n299", [0])
    assert rising.width == falling.width


def test_bitmaps_grow_when_node_with_high_ordinal_joins() -> None:
    index = an_index(a_cluster(nodes=3, gpus=1))
    index.watch()
    take(index, gpus=0.5)
    index.add_node(a_node(ordinal=1000, gpus=1))
    assert [
        resources.ordinal
        for resources in index.nodes_in(index.of_node_classes(index.shape(a_request())))
    ] == [
        *(0, 1, 2),
        1000,
    ]
    assert sorted(index.first_in(bits) for bits in index.vectors.values()) == [0, 1]
    assert [take(index, gpus=0.5), take(index, gpus=1)] == [("n0", [0]), ("n1", [0])]


def test_vector_numbers_are_evicted_and_never_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "SPARE_NUMBERS", 3)
    index = an_index(a_cluster(nodes=2, gpus=4))
    index.watch()
    meaning: dict[int, object] = {}
    for share in [*range(1, 40), *range(1, 40)]:
        grant = find(index, a_request(gpus=share / 100))
        assert grant is not None
        index.take(grant)
        for number, bits in index.vectors.items():
            (vector,) = {resources.vector for resources in index.nodes_in(bits)}
            assert meaning.setdefault(number, vector) == vector
        index.give(grant)
    assert len(index._numbers) <= 3 + 2 * 2 + 1


def test_lowest_ordinal_wins_tie_in_any_registration_order() -> None:
    nodes = a_cluster(nodes=3, gpus=2)
    assert (
        take(an_index(reversed(nodes)), gpus=2) == take(an_index(nodes), gpus=2) == ("n0", [0, 1])
    )


def test_released_resources_can_be_taken_again() -> None:
    index = an_index([a_node(gpus=2)])
    grant = find(index, a_request(gpus=2, cpus=64))
    assert grant is not None
    index.take(grant)
    assert take(index, gpus=1) is None
    index.give(grant)
    assert take(index, gpus=2, cpus=64) == ("n0", [0, 1])


def test_cpu_and_memory_are_limits_like_gpus() -> None:
    index = an_index([a_node(ordinal=0, cpus=8), a_node(ordinal=1, cpus=64, memory_mb=1000)])
    assert take(index, gpus=1, cpus=9) == ("n1", [0])
    assert take(index, gpus=1, memory_mb=2000) == ("n0", [0])
    assert take(index, gpus=1, cpus=9, memory_mb=2000) is None


def test_cpu_job_needs_no_gpu_node() -> None:
    index = an_index([a_node(gpus=0, cpus=4)])
    assert take(index, gpus=0, cpus=4) == ("n0", [])
    assert take(index, gpus=0, cpus=1) is None


def test_last_cpu_core_can_be_used_and_no_more() -> None:
    index = an_index([a_node(gpus=8, cpus=7)])
    for _ in range(7):
        assert take(index, gpus=1, cpus=1) is not None
    assert take(index, gpus=1, cpus=0.001) is None
    assert take(index, gpus=1) is not None


# --- shares


def test_shares_take_smallest_sufficient_remainder() -> None:
    index = an_index([a_node(gpus=4)])
    assert take(index, gpus=0.5) == ("n0", [0])
    assert take(index, gpus=0.7) == ("n0", [1])
    assert take(index, gpus=0.3) == ("n0", [1])
    assert take(index, gpus=0.3) == ("n0", [0])
    assert take(index, gpus=0.3) == ("n0", [2])


def test_shares_are_best_fit_over_all_nodes() -> None:
    index = an_index(a_cluster(nodes=2, gpus=1))
    assert take(index, gpus=0.5) == ("n0", [0])
    assert take(index, gpus=0.6) == ("n1", [0])
    assert take(index, gpus=0.4) == ("n1", [0])


def test_hundred_hundredths_fill_device_exactly() -> None:
    index = an_index([a_node(gpus=1)])
    assert all(take(index, gpus=0.01, gpu_memory_mb=1) for _ in range(100))
    assert take(index, gpus=0.01, gpu_memory_mb=1) is None


def test_device_memory_is_never_allocated_twice() -> None:
    index = an_index([a_node(gpus=1)])
    assert take(index, gpus=0.1, gpu_memory_mb=50_000) == ("n0", [0])
    assert take(index, gpus=0.1, gpu_memory_mb=40_000) is None
    assert take(index, gpus=0.1, gpu_memory_mb=30_000) == ("n0", [0])
    assert take(index, gpus=0.1) is None, "a tenth of the GPU comes with a tenth of its memory"


def test_share_without_memory_request_gets_proportional_memory() -> None:
    grant = find(an_index([a_node(gpus=1)]), a_request(gpus=0.25))
    assert grant is not None
    assert grant.placement().devices[0].memory_mb == GPU_MB // 4


def test_memory_only_request_fits_device_with_all_shares_taken() -> None:
    index = an_index([a_node(gpus=1)])
    for _ in range(2):
        assert take(index, gpus=0.5, gpu_memory_mb=10_000) is not None
    only_memory = Request(gpu_count=1, gpu_share_milli=0, gpu_memory_mb=50_000)
    grant = find(index, only_memory)
    assert grant is not None
    index.take(grant)
    assert find(index, only_memory) is None


def test_one_and_a_half_gpus_take_whole_device_and_half_of_another() -> None:
    index = an_index([a_node(gpus=3)])
    assert take(index, gpus=1.5) == ("n0", [0, 1])
    assert take(index, gpus=1.5) == ("n0", [1, 2]), "the halves share a device"
    assert take(index, gpus=0.5) is None


def test_one_and_a_half_gpus_wait_while_only_halves_are_free() -> None:
    index = an_index([a_node(gpus=2)])
    assert take(index, gpus=0.5) == ("n0", [0])
    assert take(index, gpus=1.5) == ("n0", [0, 1])
    index = an_index([a_node(gpus=2)])
    assert take(index, gpus=0.6) == ("n0", [0])
    assert take(index, gpus=1.5) is None


def test_shared_device_is_whole_again_after_last_share() -> None:
    index = an_index([a_node(gpus=1)])
    grants = []
    for _ in range(2):
        grant = find(index, a_request(gpus=0.5))
        assert grant is not None
        index.take(grant)
        grants.append(grant)
    index.give(grants[0])
    assert take(index, gpus=1) is None
    index.give(grants[1])
    assert take(index, gpus=1) == ("n0", [0])


# --- MIG


def test_mig_slices_are_counted_per_device_and_profile() -> None:
    devices = [a_mig_device(index=0, slices={"1g.10gb": 2, "3g.40gb": 1}), a_device(index=1)]
    index = an_index([a_node(devices=devices)])
    assert [take(index, mig_profile="1g.10gb") for _ in range(3)] == [
        ("n0", [0]),
        ("n0", [0]),
        None,
    ]
    assert take(index, mig_profile="3g.40gb") == ("n0", [0])
    assert take(index, mig_profile="2g.20gb") is None


def test_slices_come_from_device_with_fewest_left() -> None:
    devices = [a_mig_device(index=0), a_mig_device(index=1, slices={"1g.10gb": 2})]
    index = an_index([a_node(devices=devices)])
    assert take(index, mig_profile="1g.10gb") == ("n0", [1])


def test_mig_device_takes_neither_whole_nor_shared_jobs() -> None:
    index = an_index([a_node(devices=[a_mig_device(index=0)])])
    assert take(index, gpus=1) is None
    assert take(index, gpus=0.5) is None


def test_device_without_mig_gives_no_slices() -> None:
    assert take(an_index([a_node(gpus=1)]), mig_profile="1g.10gb") is None


# --- topology


def test_several_gpus_prefer_tightest_island() -> None:
    index = an_index([a_node(gpus=8, islands=2)])
    assert take(index, gpus=1) == ("n0", [0])
    assert take(index, gpus=2) == ("n0", [1, 2]), "the island in use has three left"
    assert take(index, gpus=4) == ("n0", [4, 5, 6, 7])


def test_several_gpus_span_islands_if_needed_and_allowed() -> None:
    index = an_index([a_node(gpus=4, islands=2)])
    assert take(index, gpus=1) == ("n0", [0])
    assert take(index, gpus=3) == ("n0", [1, 2, 3])


def test_required_island_is_never_left() -> None:
    index = an_index([a_node(gpus=4, islands=2)])
    assert take(index, gpus=1) == ("n0", [0])
    assert take(index, gpus=3, topology=Topology.REQUIRE_ISLAND) is None
    assert take(index, gpus=2, topology=Topology.REQUIRE_ISLAND) == ("n0", [2, 3])


def test_required_island_also_holds_additional_share() -> None:
    index = an_index([a_node(gpus=4, islands=2)])
    assert take(index, gpus=1) == ("n0", [0])
    assert take(index, gpus=0.5, device_ids=(3,)) == ("n0", [3])
    placed = take(index, gpus=1.5, topology=Topology.REQUIRE_ISLAND)
    assert placed == ("n0", [2, 3])


def test_additional_share_waits_for_room_in_required_island() -> None:
    index = an_index([a_node(gpus=4, islands=2)])
    assert take(index, gpus=1) == ("n0", [0])
    assert take(index, gpus=1, device_ids=(2,)) == ("n0", [2])
    assert take(index, gpus=1.5, topology=Topology.REQUIRE_ISLAND) is None
    assert take(index, gpus=1.5) == ("n0", [1, 3])


def test_required_island_is_searched_on_every_node() -> None:
    index = an_index([a_node(ordinal=0, gpus=4, islands=2), a_node(ordinal=1, gpus=8, islands=2)])
    assert take(index, gpus=4, topology=Topology.REQUIRE_ISLAND) == ("n1", [0, 1, 2, 3])


def test_contiguous_devices_are_adjacent() -> None:
    index = an_index([a_node(gpus=6)])
    assert take(index, gpus=1, device_ids=(1,)) == ("n0", [1])
    assert take(index, gpus=3, contiguous=True) == ("n0", [2, 3, 4])
    assert take(index, gpus=2, contiguous=True) is None
    assert take(index, gpus=2) == ("n0", [0, 5])


def test_minimum_bandwidth_excludes_slower_devices() -> None:
    slow = a_node(ordinal=0, device={"bandwidth_gbps": 32})
    fast = a_node(ordinal=1, device={"bandwidth_gbps": 600})
    index = an_index([slow, fast])
    assert take(index, gpus=2, min_bandwidth_gbps=300) == ("n1", [0, 1])


# --- constraints


def test_only_allowed_devices_are_taken() -> None:
    index = an_index([a_node(gpus=4)])
    assert take(index, gpus=2, device_ids=(1, 3)) == ("n0", [1, 3])
    assert take(index, gpus=1, device_ids=(1, 3)) is None


def test_devices_are_addressed_by_their_own_index() -> None:
    index = an_index([a_node(devices=[a_device(index=7), a_device(index=3)])])
    assert take(index, gpus=1) == ("n0", [3])
    assert take(index, gpus=1, device_ids=(7,)) == ("n0", [7])


def test_all_labels_must_match() -> None:
    nodes = [
        a_node(ordinal=0, labels=(("zone", "a"),)),
        a_node(ordinal=1, labels=(("disk", "ssd"), ("zone", "a"))),
    ]
    index = an_index(nodes)
    assert take(index, gpus=1, node_labels=(("zone", "a"), ("disk", "ssd"))) == ("n1", [0])
    assert take(index, gpus=1, node_labels=(("zone", "b"),)) is None


def test_changed_labels_are_noticed() -> None:
    index = an_index([a_node()])
    labels = (("zone", "a"),)
    assert take(index, gpus=1, node_labels=labels) is None
    index.add_node(a_node(labels=labels))
    assert take(index, gpus=1, node_labels=labels) == ("n0", [0])


def test_gpus_of_one_request_are_of_one_model() -> None:
    devices = [a_device(index=i, model="A100" if i < 2 else "V100") for i in range(5)]
    index = an_index([a_node(devices=devices)])
    assert take(index, gpus=3) == ("n0", [2, 3, 4])
    assert take(index, gpus=3) is None
    assert take(index, gpus=2, gpu_models=("A100", "H100")) == ("n0", [0, 1])


def test_memory_per_gpu_excludes_smaller_devices() -> None:
    devices = [a_device(index=i, memory_mb=40_000 if i < 2 else GPU_MB) for i in range(4)]
    index = an_index([a_node(devices=devices)])
    assert take(index, gpus=2, gpu_memory_mb_per_gpu=60_000) == ("n0", [2, 3])
    assert take(index, gpus=1, gpu_memory_mb_per_gpu=60_000) is None


# --- unavailable devices and nodes


@pytest.mark.parametrize(
    "changes",
    [
        {"paused": True},
        {"hot": True},
        {"health": Health.UNHEALTHY},
        {"foreign": ForeignUse(pid=4711)},
    ],
)
@pytest.mark.parametrize("gpus", [0.5, 1])
def test_unfit_devices_are_skipped(changes, gpus) -> None:
    index = an_index([a_node(devices=[a_device(index=0, **changes), a_device(index=1)])])
    assert take(index, gpus=gpus) == ("n0", [1])
    assert take(index, gpus=1) is None


def test_shared_device_that_overheats_takes_no_further_share() -> None:
    index = an_index([a_node(gpus=1)])
    assert take(index, gpus=0.5) == ("n0", [0])
    index.add_node(a_node(gpus=1, device={"hot": True}))
    assert take(index, gpus=0.5) is None
    index.add_node(a_node(gpus=1))
    assert take(index, gpus=0.5) == ("n0", [0])


@pytest.mark.parametrize("why", [{"closed": NodeClosure(since_ms=0)}, {"state": NodeState.LOST}])
def test_closed_nodes_are_skipped(why: dict[str, Any]) -> None:
    index = an_index([a_node(ordinal=0, **why), a_node(ordinal=1)])
    assert take(index, gpus=1) == ("n1", [0])
    assert take(index, gpus=0, cpus=1) == ("n1", [])
    assert index.free_devices == 7


def test_draining_node_keeps_its_holdings() -> None:
    index = an_index([a_node(gpus=2)])
    grant = find(index, a_request(gpus=1))
    assert grant is not None
    index.take(grant)
    index.add_node(a_node(gpus=2, closed=NodeClosure(since_ms=0, drains=True)))
    index.give(grant)
    index.add_node(a_node(gpus=2))
    assert index.free_devices == 2


# --- adding and removing nodes


def test_removed_node_takes_no_jobs_and_frees_its_ordinal() -> None:
    index = an_index(a_cluster(nodes=2, gpus=1))
    index.remove_node("n0")
    assert take(index, gpus=1) == ("n1", [0])
    with pytest.raises(UnknownThing, match="node 'n0' is not known"):
        index.resources("n0")
    index.add_node(a_node(ordinal=0, gpus=1))
    assert take(index, gpus=1) == ("n0", [0])


@pytest.mark.parametrize(
    "fields",
    [
        {"gpus": 1},
        {"gpus": 0.5},
        {"gpus": 0, "cpus": 1},
        {"gpus": 0, "memory_mb": 100},
        {"mig_profile": "1g.10gb"},
    ],
)
def test_node_that_holds_anything_cannot_be_removed(fields) -> None:
    index = an_index([a_node(devices=[a_device(index=0), a_mig_device(index=1)])])
    assert take(index, **fields) is not None
    with pytest.raises(InternalError, match="node n0 is still in use"):
        index.remove_node("n0")


def test_node_cannot_change_ordinal_or_hardware_in_place() -> None:
    index = an_index([a_node(ordinal=0), a_node(ordinal=1)])
    with pytest.raises(InternalError, match="cannot change its ordinal"):
        index.add_node(a_node(ordinal=2, id="n0"))
    with pytest.raises(InternalError, match="changed its hardware"):
        index.add_node(a_node(ordinal=0, gpus=4))
    with pytest.raises(InternalError, match="two nodes have the ordinal 1"):
        index.add_node(a_node(ordinal=1, id="other"))


def test_new_node_kind_is_found_by_earlier_request_shapes() -> None:
    index = an_index([a_node(ordinal=0, gpus=2)])
    assert take(index, gpus=4) is None
    index.add_node(a_node(ordinal=1, gpus=4))
    assert take(index, gpus=4) == ("n1", [0, 1, 2, 3])
