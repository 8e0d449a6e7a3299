"""Clusters from flags and from files, and what an empty one can hold."""

from pathlib import Path

import pytest

from gpu_scheduler.model.errors import InvalidRequest, NeverFits
from gpu_scheduler.model.node import Device, DeviceMode, Node
from gpu_scheduler.model.request import Request, Topology
from gpu_scheduler.simulator.traces.detect import read_cluster
from gpu_scheduler.simulator.workload import Cluster, EmptyCluster, NodeGroup, cluster_of, nodes_of
from tests.simulation.trace_files import Refusal, a_cluster, a_file, gzipped

HEADER = "id,count,gpus,model,gpu_memory_mb,cpu_cores,memory_mb,rack,labels,island_size,island_gbps"


def test_flags_give_identical_nodes() -> None:
    cluster = cluster_of(
        3, 8, model="A100", gpu_memory_mb=40_960, gpus_per_island=4, nodes_per_rack=2
    )
    assert [node.id for node in cluster.nodes] == ["node-000", "node-001", "node-002"]
    assert [node.ordinal for node in cluster.nodes] == [0, 1, 2]
    assert [node.rack for node in cluster.nodes] == ["rack-0", "rack-0", "rack-1"]
    assert [device.island for device in cluster.nodes[0].devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert cluster.nodes[0].devices[0].memory_mb == 40_960
    assert cluster.gpu_count == 24


def test_cpu_and_memory_follow_gpus_unless_given() -> None:
    assert cluster_of(1, 2).nodes[0].cpu_milli == 32_000
    assert cluster_of(1, 2, cpu_milli=500, memory_mb=7).nodes[0].memory_mb == 7
    assert cluster_of(1, 0).nodes[0].cpu_milli == 16_000


@pytest.mark.parametrize(
    ("nodes", "gpus", "options"),
    [
        (0, 8, {}),
        (-1, 8, {}),
        (1, -1, {}),
        (1, 1, {"gpu_memory_mb": -1}),
        (1, 1, {"gpus_per_island": -1}),
        (1, 1, {"nodes_per_rack": -1}),
        (1, 1, {"cpu_milli": -1}),
        (10**9, 8, {}),
    ],
)
def test_impossible_flags_are_rejected(nodes: int, gpus: int, options: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        cluster_of(nodes, gpus, **options)  # type: ignore[arg-type]


def test_mig_gpus_hold_as_many_jobs_as_slices(
    tmp_path: Path,
) -> None:
    path = a_file(
        tmp_path, "cluster.csv", "id,gpus,mig_slices", "split,2,1g.10gb=3;3g.40gb=1", "plain,1,"
    )
    split, plain = read_cluster(path).nodes
    assert [device.mig_slices for device in split.devices] == [(("1g.10gb", 3), ("3g.40gb", 1))] * 2
    assert plain.devices[0].mode is DeviceMode.WHOLE
    cluster = EmptyCluster((split, plain))
    assert cluster.spread(Request(gpu_count=6, mig_profile="1g.10gb"))
    with pytest.raises(NeverFits):
        cluster.spread(Request(gpu_count=7, mig_profile="1g.10gb"))


@pytest.mark.parametrize("slices", ["3g.40gb", "3g.40gb=0", "3g.40gb=3", "3g.40gb=x", "big=1"])
def test_impossible_slices_are_rejected(tmp_path: Path, slices: str) -> None:
    path = a_file(tmp_path, "cluster.csv", "id,gpus,mig_slices", f"split,2,{slices}")
    with Refusal(path, 2):
        read_cluster(path)


def test_node_list_is_read_from_csv(tmp_path: Path) -> None:
    path = a_file(
        tmp_path,
        "cluster.csv",
        HEADER,
        "big,2,8,A100,81920,64,524288,r1,zone=a;disk=ssd,4,600",
        "login,,0,,,2.5,1024,,,,",
    )
    for form in (path, gzipped(path)):
        nodes = read_cluster(form).nodes
        assert [node.id for node in nodes] == ["big-000", "big-001", "login"]
        assert nodes[1].labels == (("disk", "ssd"), ("zone", "a"))
        assert nodes[1].devices[7] == Device(
            index=7, model="A100", memory_mb=81_920, island=1, bandwidth_gbps=600
        )
        assert (nodes[2].cpu_milli, nodes[2].gpu_count, nodes[2].ordinal) == (2500, 0, 2)


def test_node_list_is_read_from_json(tmp_path: Path) -> None:
    path = a_file(tmp_path, "cluster.json", '{"nodes": [{"id": "n", "count": 2, "gpus": 4}]}')
    assert read_cluster(path) == Cluster.pool(nodes_of([NodeGroup(id="n", count=2, gpus=4)]))


def test_virtual_clusters_are_partitions_and_can_be_joined(tmp_path: Path) -> None:
    path = a_file(tmp_path, "vc_nodes.csv", "vc,nodes,gpus_per_node", "a,1,8", "b,2,4")
    cluster = read_cluster(path)
    assert cluster.is_divided
    assert [(name, len(nodes)) for name, nodes in cluster.parts] == [("a", 1), ("b", 2)]
    assert [(node.id, node.ordinal) for node in cluster.nodes] == [
        ("a-000", 0),
        ("b-000", 1),
        ("b-001", 2),
    ]


def test_openb_node_list_is_read(tmp_path: Path) -> None:
    path = a_file(tmp_path, "n.csv", "sn,cpu_milli,memory_mib,gpu,model", "x,1000,10,2,T4")
    assert read_cluster(path).gpu_count == 2


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        (("id,gpus", "a,-1"), 2, "gpus is '-1'"),
        (("id,gpus", "a,x"), 2, "gpus is 'x'"),
        (("id,gpus", ",1"), 2, "id is empty"),
        (("id,gpus", "a,"), 2, "gpus is empty"),
        (("id,gpus,count", "a,8,0"), 2, "count is 0"),
        (("id,gpus,count", "a,8,999999999"), 2, "at most"),
        (("id,gpus,labels", "a,8,zone"), 2, "labels is 'zone'"),
        (("id,gpus,colour", "a,8,red"), 1, "unknown column 'colour'"),
        (("id,model", "a,A100"), 1, "'gpus' is missing"),
        (("id,gpus", "a,1", "a,1"), 3, "named twice"),
        (("id,gpus",), None, "no nodes"),
        (('{"nodes": [{"id": "a", "gpus": -1}]}',), 1, "gpus is '-1'"),
        (('{"nodes": [{"id": "a", "colour": 1}]}',), 1, "unknown field 'colour'"),
        (('{"nodes": 3}',), 1, "not a valid trace"),
    ],
)
def test_invalid_node_list_error_names_file_and_line(
    tmp_path: Path, lines: tuple[str, ...], line: int | None, words: str
) -> None:
    path = a_file(tmp_path, "cluster", *lines)
    with Refusal(path, line) as refusal:
        read_cluster(path)
    assert words in refusal.message


def test_empty_cluster_file_is_rejected(tmp_path: Path) -> None:
    path = a_file(tmp_path, "cluster.csv")
    with Refusal(path):
        read_cluster(path)


def test_request_is_split_over_largest_suitable_nodes() -> None:
    groups = [NodeGroup(id="big", gpus=8), NodeGroup(id="small", count=4, gpus=4)]
    cluster = EmptyCluster(nodes_of(groups))
    assert [part.gpu_count for part in cluster.spread(Request(gpu_count=12))] == [8, 4]
    # Two nodes of 8 do not exist, but four shares of 4 do.
    assert [part.gpu_count for part in cluster.spread(Request(gpu_count=16))] == [4, 4, 4, 4]


@pytest.mark.parametrize(
    "request_",
    [
        Request(gpu_count=9, device_ids=tuple(range(9))),
        Request(gpu_count=9, contiguous=True),
        Request(gpu_count=33),
        Request(gpu_count=8, gpu_extra_milli=10),
        Request(gpu_count=5, topology=Topology.REQUIRE_ISLAND, contiguous=True),
        Request(gpu_count=9, gpu_models=("B",)),
        Request(cpu_milli=128_001),
    ],
)
def test_request_too_large_for_empty_cluster_never_fits(request_: Request) -> None:
    with pytest.raises(NeverFits):
        EmptyCluster(a_cluster(gpus_per_island=4).nodes).spread(request_)


@pytest.mark.parametrize(
    "members",
    [
        [Request(gpu_count=8)] * 5,
        [Request(gpu_count=8, cpu_milli=65_000)] * 3 + [Request(gpu_count=8)] * 2,
        [Request(cpu_milli=65_000)] * 5,
        [Request(memory_mb=1_000_000)] * 5,
        [Request(gpu_count=1, mig_profile="4g.40gb")] * 33,
    ],
)
def test_gang_must_fit_at_once(members: list[Request]) -> None:
    with pytest.raises(NeverFits):
        EmptyCluster(a_cluster().nodes).check(tuple(members))


def test_memory_only_share_has_no_count() -> None:
    shared = Request(gpu_count=1, gpu_share_milli=0, gpu_memory_mb=9)
    EmptyCluster(a_cluster().nodes).check((shared,) * 99)


def test_nothing_fits_without_nodes() -> None:
    with pytest.raises(NeverFits, match="no nodes"):
        EmptyCluster([]).check((Request(gpu_count=1),))


def test_one_request_uses_one_model() -> None:
    node = Node(
        id="n",
        ordinal=0,
        devices=tuple(Device(index=place, model="AB"[place % 2]) for place in range(8)),
    )
    assert len(EmptyCluster([node]).spread(Request(gpu_count=5))) == 2
    with pytest.raises(NeverFits):
        EmptyCluster([node]).spread(Request(gpu_count=5, gpu_models=("A",)))
