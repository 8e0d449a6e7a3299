"""Rendezvous variables of gang members."""

from dataclasses import dataclass

from gpu_scheduler.agent.jobs.environment import (
    NEVER_PASSED,
    nccl_hints,
    rendezvous_environment,
    rendezvous_files,
)
from gpu_scheduler.wire import agent_pb2 as pb

GANG = pb.Rendezvous(
    rank=2,
    world_size=3,
    master_address="10.0.0.1",
    master_port=29_500,
    hosts=["10.0.0.1", "10.0.0.2", "10.0.0.2"],
    gpus=[8, 2, 4],
    nodes=["a", "b", "b"],
)


@dataclass(frozen=True)
class Port:
    name: str
    numa_node: int = -1
    active: bool = True
    port: int = 1


def test_member_knows_global_and_local_rank_and_torchrun_variables() -> None:
    told = rendezvous_environment(GANG, 0, "/scratch")
    assert told == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "NNODES": "2",
        "PET_NNODES": "3",
        "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "29500",
        "TGPU_NODELIST": "10.0.0.1,10.0.0.2",
        "TGPU_HOSTFILE": "/scratch/hostfile",
        "TGPU_MACHINEFILE": "/scratch/machinefile",
    }
    assert set(told) <= set(NEVER_PASSED), "names that a job inside a job must not inherit"


def test_nodes_with_same_address_count_as_several_nodes() -> None:
    same = pb.Rendezvous(
        rank=1, world_size=2, master_address="127.0.0.1", hosts=["127.0.0.1"] * 2, nodes=["a", "b"]
    )
    told = rendezvous_environment(same, 4711, "/s")
    assert (told["LOCAL_WORLD_SIZE"], told["NNODES"], told["NODE_RANK"]) == ("1", "2", "1")


def test_hosts_are_listed_once_with_slots_of_all_members() -> None:
    assert rendezvous_files(GANG) == {
        "hostfile": "10.0.0.1 slots=8\n10.0.0.2 slots=6\n",
        "machinefile": "10.0.0.1:8\n10.0.0.2:6\n",
    }


def test_member_without_gpu_has_one_slot() -> None:
    cpus = pb.Rendezvous(rank=0, world_size=2, hosts=["a", "b"], gpus=[0, 0])
    assert rendezvous_files(cpus)["hostfile"] == "a slots=1\nb slots=1\n"


def test_nccl_uses_active_adapters_near_gpus_by_exact_name() -> None:
    adapters = [Port("mlx5_10", 1), Port("mlx5_1", 0), Port("mlx5_2", 1, active=False)]
    assert nccl_hints(adapters, [1, 1]) == {"NCCL_IB_HCA": "=mlx5_10:1"}
    assert nccl_hints(adapters, [-1]) == {"NCCL_IB_HCA": "=mlx5_10:1,mlx5_1:1"}
    assert nccl_hints(adapters, [3], "ib0") == {
        "NCCL_IB_HCA": "=mlx5_10:1,mlx5_1:1",
        "NCCL_SOCKET_IFNAME": "=ib0",
        "GLOO_SOCKET_IFNAME": "ib0",
    }


def test_nccl_is_not_configured_without_adapters_or_on_loopback() -> None:
    assert nccl_hints([], [0]) == {}
