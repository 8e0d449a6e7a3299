"""What joins this machine to others and to its disks: NUMA nodes, RDMA adapters, GPUDirect Storage.

Reads /sys and /proc below `root`, writes nothing. What cannot be read is not there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.model.node import Adapter

ACTIVE = "ACTIVE"
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec")
_NODE = re.compile(r"node(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The NUMA nodes, the ports of RDMA adapters, and whether disks can write into GPUs."""

    numa_nodes: int = 0
    adapters: tuple[Adapter, ...] = ()
    direct_storage: bool = False


def find_fabric(root: Path = Path("/")) -> Fabric:
    """Look at what the kernel shows."""
    return Fabric(
        numa_nodes=_numa_nodes(root / "sys/devices/system/node"),
        adapters=tuple(_adapters(root / "sys/class/infiniband")),
        direct_storage=_has_direct_storage(root),
    )


def _numa_nodes(place: Path) -> int:
    return sum(_NODE.fullmatch(name) is not None for name in _names(place))


def _adapters(place: Path) -> list[Adapter]:
    """Every port of every adapter, in the order in which people count them."""
    return [
        _port(place / name, name, int(port))
        for name in sorted(_names(place), key=_as_counted)
        for port in sorted(_names(place / name / "ports"), key=_as_counted)
        if port.isdecimal()
    ]


def _port(adapter: Path, name: str, number: int) -> Adapter:
    port = adapter / "ports" / str(number)
    # Such as '4: ACTIVE', '400 Gb/sec (4X NDR)', 'InfiniBand' or 'Ethernet'.
    state = _text(port / "state").partition(":")[2].strip()
    rate = _RATE.match(_text(port / "rate"))
    numa = _text(adapter / "device/numa_node")
    return Adapter(
        name=name,
        port=number,
        link=_text(port / "link_layer") or "InfiniBand",
        rate_gbps=round(float(rate[1])) if rate else 0,
        numa_node=int(numa) if numa.lstrip("-").isdecimal() else -1,
        active=state == ACTIVE,
    )


def _has_direct_storage(root: Path) -> bool:
    """Tell whether the driver of GPUDirect Storage is loaded."""
    return (root / "sys/module/nvidia_fs").is_dir() or (root / "proc/driver/nvidia-fs").is_dir()


def _names(place: Path) -> list[str]:
    try:
        return [entry.name for entry in place.iterdir()]
    except OSError:
        return []


def _as_counted(name: str) -> tuple[str, int]:
    """So that mlx5_2 comes before mlx5_10."""
    digits = re.search(r"\d*$", name)
    tail = digits[0] if digits else ""
    return name[: len(name) - len(tail)], int(tail or 0)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
