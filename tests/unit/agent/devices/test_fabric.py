"""NUMA nodes, RDMA adapters and GPUDirect Storage, from a fake sysfs tree."""

from pathlib import Path

from gpu_scheduler.agent.devices.host import Fabric, find_fabric
from gpu_scheduler.model.node import Adapter


def a_port(root: Path, name: str, number: int, **facts: str) -> None:
    port = root / "sys/class/infiniband" / name / "ports" / str(number)
    port.mkdir(parents=True)
    for fact, text in facts.items():
        (port / fact).write_text(f"{text}\n", encoding="ascii")


def numa(root: Path, name: str, node: int) -> None:
    device = root / "sys/class/infiniband" / name / "device"
    device.mkdir(parents=True, exist_ok=True)
    (device / "numa_node").write_text(f"{node}\n", encoding="ascii")


def test_rdma_adapters_are_found_with_rate_numa_node_and_state(tmp_path: Path) -> None:
    up = {"state": "4: ACTIVE", "link_layer": "InfiniBand"}
    a_port(tmp_path, "mlx5_10", 1, rate="400 Gb/sec (4X NDR)", **up)
    a_port(
        tmp_path, "mlx5_2", 1, rate="25 Gb/sec (1X EDR)", state="4: ACTIVE", link_layer="Ethernet"
    )
    a_port(
        tmp_path, "mlx5_2", 2, rate="2.5 Gb/sec (1X SDR)", state="1: DOWN", link_layer="InfiniBand"
    )
    numa(tmp_path, "mlx5_10", 1)
    numa(tmp_path, "mlx5_2", 0)
    assert find_fabric(tmp_path).adapters == (
        Adapter(name="mlx5_2", port=1, link="Ethernet", rate_gbps=25, numa_node=0),
        Adapter(name="mlx5_2", port=2, rate_gbps=2, numa_node=0, active=False),
        Adapter(name="mlx5_10", port=1, rate_gbps=400, numa_node=1),
    )


def test_numa_nodes_and_gpudirect_storage_are_found(tmp_path: Path) -> None:
    for name in ("node0", "node1", "has_cpu", "power"):
        (tmp_path / "sys/devices/system/node" / name).mkdir(parents=True)
    assert find_fabric(tmp_path) == Fabric(numa_nodes=2)
    (tmp_path / "sys/module/nvidia_fs").mkdir(parents=True)
    assert find_fabric(tmp_path).direct_storage


def test_bare_machine_has_no_fabric(tmp_path: Path) -> None:
    assert find_fabric(tmp_path) == Fabric()


def test_adapter_with_missing_attributes_is_still_found(tmp_path: Path) -> None:
    a_port(tmp_path, "rxe0", 1, state="4: ACTIVE")
    assert find_fabric(tmp_path).adapters == (Adapter(name="rxe0"),)
