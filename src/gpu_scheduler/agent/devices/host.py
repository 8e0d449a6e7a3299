"""This machine according to the kernel: cores, memory, topology, processes, network adapters.

Reads /proc and /sys below `root`, writes nothing; what cannot be read counts as absent. The limits
of the agent's own control group (v1 or v2) and its CPU affinity apply, as jobs cannot exceed them.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.agent.machine import call_with_timeout
from gpu_scheduler.model.node import Adapter

MOST_NAMES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """This machine. `cores` is the CPU affinity; None means that of this process.

    Jobs get the configured amounts in place of those that the kernel reports.
    """

    root: Path = Path("/")
    cores: int | None = None
    configured_cpu_milli: int | None = None
    configured_memory_mb: int | None = None

    def cpu_milli(self) -> int:
        """The cores that jobs can use, in thousandths."""
        if self.configured_cpu_milli is not None:
            return self.configured_cpu_milli
        cores = self.cores if self.cores is not None else len(os.sched_getaffinity(0))
        limits = [limit for group in self._groups() if (limit := _cpu_limit(group))]
        return min([cores * 1000, *limits])

    def memory_mb(self) -> int:
        """The memory that jobs can use."""
        if self.configured_memory_mb is not None:
            return self.configured_memory_mb
        lines = _text(self.root / "proc/meminfo").splitlines()
        total_kb = next((int(line.split()[1]) for line in lines if line.startswith("MemTotal:")), 0)
        limits = [limit for group in self._groups() if (limit := _memory_limit(group))]
        return min([total_kb * 1024, *limits]) // 1024**2

    def numa_node(self, bus_id: str) -> int:
        """The NUMA node that a PCI device is attached to, or -1."""
        text = _text(self._pci(bus_id) / "numa_node")
        return int(text) if text.lstrip("-").isdigit() else -1

    def near_cpus(self, bus_id: str) -> tuple[int, ...]:
        """The CPUs near a PCI device, or none if that is not known."""
        return cpu_list(_text(self._pci(bus_id) / "local_cpulist"))

    def gpus(self) -> tuple[str, ...]:
        """The bus ids of the GPUs that the driver has now."""
        place = self.root / "proc/driver/nvidia/gpus"
        try:
            return tuple(sorted(entry.name for entry in place.iterdir()))
        except OSError:
            return ()

    def device_path(self, bus_id: str) -> str:
        """The device node of a GPU, found by the driver's minor number."""
        facts = self.root / "proc/driver/nvidia/gpus" / bus_id / "information"
        for line in _text(facts).splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Device Minor" and value.strip().isdigit():
                return f"/dev/nvidia{value.strip()}"
        return ""

    def process(self, pid: int) -> tuple[str, str]:
        """The user and the command of a process; empty if it cannot be seen from here."""
        place = self.root / "proc" / str(pid)
        try:
            user = _user_name(place.stat().st_uid)
        except OSError:
            return "", ""
        first = _text(place / "cmdline").partition("\0")[0]
        # Servers overwrite argv with their title, so only its first word is the program.
        words = first.split()
        return user, Path(words[0]).name if words else _text(place / "comm")

    def _pci(self, bus_id: str) -> Path:
        return self.root / "sys/bus/pci/devices" / bus_id

    def _groups(self) -> Iterator[Path]:
        """The cgroup directories of this process, from its own up to the top of each mount."""
        mounts = tuple(self._mounts())
        for line in _text(self.root / "proc/self/cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            wanted = frozenset(controllers.split(",")) if controllers else frozenset()
            for names, top, place in mounts:
                if wanted == names or wanted & names:
                    highest = self.root / place.lstrip("/")
                    group = highest / _below(path, top)
                    yield group
                    while group != highest:
                        group = group.parent
                        yield group

    def _mounts(self) -> Iterator[tuple[frozenset[str], str, str]]:
        """Each cgroup mount: its controllers (v2: none), its root group, and its mount point."""
        for line in _text(self.root / "proc/self/mountinfo").splitlines():
            left, _, right = line.partition(" - ")
            fields, kind = left.split(), right.split()
            if len(fields) < 5 or len(kind) < 3:
                continue
            if kind[0] == "cgroup2":
                yield frozenset(), fields[3], fields[4]
            elif kind[0] == "cgroup":
                names = frozenset(kind[2].split(",")) - {"rw", "ro"}
                yield names, fields[3], fields[4]


def plain_bus_id(text: str) -> str:
    """A PCI bus id as the kernel writes it: '00000000:3B:00.0' becomes '0000:3b:00.0'."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest and domain else text.strip().lower()


def cpu_list(text: str) -> tuple[int, ...]:
    """'0-2,8' as (0, 1, 2, 8). A text that is no such list has no CPUs."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            continue
        cpus.update(range(int(first), int(last if dash else first) + 1))
    return tuple(sorted(cpus))


def _below(path: str, top: str) -> str:
    """The path of a group inside a mount whose top is the group `top`."""
    if top == "/":
        return path.strip("/")
    inside = path == top or path.startswith(f"{top}/")
    return path[len(top) :].strip("/") if inside else ""


def _cpu_limit(group: Path) -> int | None:
    quota, _, period = _text(group / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) * 1000 // int(period)


def _memory_limit(group: Path) -> int | None:
    text = _text(group / "memory.max") or _text(group / "memory.limit_in_bytes")
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\n ")
    except OSError:
        return ""


_names: dict[int, str] = {}


def _user_name(uid: int) -> str:
    """The user's name; the uid while a directory service hangs, which must not block a reading."""
    name = _names.get(uid, "")
    if not name and (name := call_with_timeout(f"uid {uid}", lambda: _asked_name(uid), "")):
        if len(_names) >= MOST_NAMES:
            _names.clear()
        _names[uid] = name
    return name or str(uid)


def _asked_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
    except OSError:
        return ""


ACTIVE = "ACTIVE"
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec")
_NODE = re.compile(r"node(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The NUMA nodes, the ports of RDMA adapters, and whether GPUDirect Storage is available."""

    numa_nodes: int = 0
    adapters: tuple[Adapter, ...] = ()
    direct_storage: bool = False


def find_fabric(root: Path = Path("/")) -> Fabric:
    """Read the fabric from the kernel."""
    return Fabric(
        numa_nodes=sum(
            _NODE.fullmatch(name) is not None
            for name in _entry_names(root / "sys/devices/system/node")
        ),
        adapters=tuple(_adapters(root / "sys/class/infiniband")),
        # Whether the driver of GPUDirect Storage is loaded.
        direct_storage=(root / "sys/module/nvidia_fs").is_dir()
        or (root / "proc/driver/nvidia-fs").is_dir(),
    )


def _adapters(place: Path) -> list[Adapter]:
    """Every port of every adapter, in natural order: mlx5_2 before mlx5_10."""
    return [
        _port(place / name, name, int(port))
        for name in sorted(_entry_names(place), key=_as_counted)
        for port in sorted(_entry_names(place / name / "ports"), key=_as_counted)
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


def _entry_names(place: Path) -> list[str]:
    try:
        return [entry.name for entry in place.iterdir()]
    except OSError:
        return []


def _as_counted(name: str) -> tuple[str, int]:
    """So that mlx5_2 comes before mlx5_10."""
    digits = re.search(r"\d*$", name)
    tail = digits[0] if digits else ""
    return name[: len(name) - len(tail)], int(tail or 0)
