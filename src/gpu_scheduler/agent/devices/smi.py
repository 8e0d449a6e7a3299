"""GPUs through the nvidia-smi command, where the library cannot be loaded.

Runs the command and parses its CSV. XIDs, row remapping and the driver's recovery action are not
available this way. A field that an older driver does not know is omitted.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpu_scheduler.agent.devices.host import Host, cpu_list, plain_bus_id
from gpu_scheduler.agent.devices.source import (
    DetectedDevice,
    DetectedSlice,
    DevicesUnreadable,
    NodeInventory,
    Process,
    Reading,
    join_islands,
    link_gbps,
)
from gpu_scheduler.model.node import MODELS, short_model_name

MIG_MODE = "mig.mode.current"
STATIC = ("index", "uuid", "name", "pci.bus_id", "memory.total", MIG_MODE)
STATIC_ONCE = ("driver_version",)
DYNAMIC = (
    "uuid",
    "memory.used",
    "utilization.gpu",
    "temperature.gpu",
    "power.draw",
    "enforced.power.limit",
    "clocks.sm",
    "clocks.mem",
    "clocks_throttle_reasons.active",
    "ecc.errors.uncorrected.volatile.total",
)
IDLE = 1
_REFUSED_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
_SLICE = re.compile(r"MIG\s+(\S+)\s+Device\s+\d+:\s*\(UUID:\s*(\S+?)\)")
_GPU_LINE = re.compile(r"GPU\s+\d+:.*\(UUID:\s*(\S+?)\)")
_JOINED = re.compile(r"NV(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One row of `nvidia-smi topo -m`: the NVLink peers of a GPU, and its near CPUs."""

    peers: tuple[int, ...] = ()
    links: int = 0
    cpus: tuple[int, ...] = ()
    numa_node: int = -1


class SmiSource:
    """All GPUs of this node through nvidia-smi. `command` is a name on PATH or a path."""

    def __init__(
        self, command: str = "nvidia-smi", *, host: Host | None = None, timeout_s: float = 10.0
    ) -> None:
        self._command = command
        self._host = host or Host()
        self._timeout_s = timeout_s
        self._fields: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._devices: tuple[DetectedDevice, ...] | None = None
        self._can_split = False

    def find(self) -> NodeInventory:
        rows = self._query_gpus((*STATIC, *STATIC_ONCE))
        modes = {row.get(MIG_MODE) for row in rows}
        self._can_split = bool(modes & {"Enabled", "Disabled"})
        slices = self._slices() if "Enabled" in modes else None
        devices = [_device(row, slices or {}, self._host) for row in rows]
        devices.sort(key=lambda device: (device.pci_bus_id, device.index))
        topology: dict[int, Topology] = {}
        if len(devices) > 1:
            code, text = self._run("topo", "-m")
            topology = {} if code else parse_topology(text)
        self._devices = tuple(_placed(devices, topology))
        drivers = sorted({row["driver_version"] for row in rows if row.get("driver_version")})
        return NodeInventory(
            cpu_milli=self._host.cpu_milli(),
            memory_mb=self._host.memory_mb(),
            devices=self._devices,
            labels=tuple(("driver", driver) for driver in drivers[:1]),
            detection="nvidia-smi",
        )

    def read(self) -> list[Reading]:
        if self._devices is None:
            self.find()
        devices = self._devices or ()
        if not devices:
            return []
        rows = {row["uuid"]: row for row in self._query_gpus(DYNAMIC)}
        processes = self._processes()
        slices = self._slices() if self._can_split else None
        return [
            replace(
                _reading(device, rows[device.uuid], processes[device.uuid]),
                mig_uuids=None if slices is None else _mig_uuids(slices.get(device.uuid, ())),
            )
            if device.uuid in rows
            else _missing(device.index)
            for device in devices
        ]

    def close(self) -> None:
        """Nothing is open between two runs of the command."""

    def _query_gpus(self, wanted: tuple[str, ...]) -> list[dict[str, str]]:
        """Rows by field. Fields that the driver rejects are omitted from then on."""
        fields = self._fields.get(wanted, wanted)
        for _ in wanted:
            query = f"--query-gpu={','.join(fields)}"
            code, text = self._run(query, "--format=csv,noheader,nounits")
            refused = _REFUSED_FIELD.search(text)
            if refused is None or refused[1] not in fields:
                break
            fields = tuple(field for field in fields if field != refused[1])
        self._fields[wanted] = fields
        rows = parse_rows(text, fields)
        if code and not rows:
            first_line = text.strip().partition("\n")[0].strip()
            raise DevicesUnreadable(f"nvidia-smi: {first_line or f'exit code {code}'}")
        return rows

    def _processes(self) -> dict[str, list[Process]]:
        found: dict[str, list[Process]] = defaultdict(list)
        fields = ("gpu_uuid", "pid", "used_memory")
        query = f"--query-compute-apps={','.join(fields)}"
        _, text = self._run(query, "--format=csv,noheader,nounits")
        for row in parse_rows(text, fields):
            if row["pid"].isdigit():
                pid = int(row["pid"])
                user, command = self._host.process(pid)
                found[row["gpu_uuid"]].append(
                    Process(
                        pid=pid, user=user, command=command, memory_mb=number(row["used_memory"])
                    )
                )
        return found

    def _slices(self) -> dict[str, tuple[DetectedSlice, ...]] | None:
        """MIG slices by device; None if nvidia-smi fails."""
        code, text = self._run("-L")
        return None if code else parse_slices(text)

    def _run(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and stdout with stderr: errors appear on either."""
        program = shutil.which(self._command)
        if program is None:
            raise DevicesUnreadable(f"{self._command} is not on PATH")
        try:
            done = subprocess.run(  # noqa: S603 - a fixed command, without a shell
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DevicesUnreadable(
                f"nvidia-smi did not answer within {self._timeout_s:g} s"
            ) from error
        except OSError as error:
            raise DevicesUnreadable(f"{program} cannot be run: {error.strerror}") from error
        return done.returncode, done.stdout.decode(errors="replace")


def parse_rows(text: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """The lines with one value for every field; other lines are skipped."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [
        dict(zip(fields, (value.strip() for value in row), strict=True))
        for row in rows
        if len(row) == len(fields) and len(fields) > 1
    ]


def number(text: str | None, factor: int = 1) -> int | None:
    """A figure, or None for '[N/A]', '[Not Supported]', '[Unknown Error]' and their like."""
    try:
        return round(float(text or "") * factor)
    except ValueError:
        return None


def parse_slices(text: str) -> dict[str, tuple[DetectedSlice, ...]]:
    """MIG slices by the UUID of their device, from `nvidia-smi -L`."""
    found: dict[str, dict[str, list[str]]] = {}
    device = ""
    for line in text.splitlines():
        if gpu := _GPU_LINE.search(line):
            device = gpu[1]
        elif (part := _SLICE.search(line)) and device:
            found.setdefault(device, {}).setdefault(part[1], []).append(part[2])
    return {
        uuid: tuple(DetectedSlice(profile=p, uuids=tuple(u)) for p, u in sorted(profiles.items()))
        for uuid, profiles in found.items()
    }


def parse_topology(text: str) -> dict[int, Topology]:
    """The rows of GPUs in `nvidia-smi topo -m`, by its own index."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    head = next((line for line in lines if "GPU0" in line and "X" not in line.split()), "")
    gpus = [name for name in head.split() if re.fullmatch(r"GPU\d+", name)]
    others = [name for name in re.split(r"\t+|\s{2,}", head.strip()) if name and name not in gpus]
    tail = [name for name in others if name in {"CPU Affinity", "NUMA Affinity", "GPU NUMA ID"}]
    found: dict[int, Topology] = {}
    for line in lines:
        words = line.split()
        if not words or words[0] not in gpus or "X" not in words:
            continue
        found[int(words[0][3:])] = _topology_row(words[1:], gpus, tail)
    return found


def _topology_row(words: list[str], gpus: list[str], tail: list[str]) -> Topology:
    ties = words[: len(gpus)]
    peers = [int(gpus[i][3:]) for i, tie in enumerate(ties) if _JOINED.fullmatch(tie)]
    links = [int(tie[2:]) for tie in ties if _JOINED.fullmatch(tie)]
    # Columns at the end may be empty, so they are recognised by their values.
    ends = words[len(words) - len(tail) :] if tail else []
    cpus = next((cpu_list(word) for word in ends[:1] if cpu_list(word)), ())
    numa = ends[1] if len(ends) > 1 and ends[1].isdigit() else ""
    return Topology(
        peers=tuple(peers),
        links=max(links, default=0),
        cpus=cpus,
        numa_node=int(numa) if numa else -1,
    )


def _mig_uuids(pieces: Iterable[DetectedSlice]) -> tuple[str, ...]:
    return tuple(uuid for piece in pieces for uuid in piece.uuids)


def _device(
    row: dict[str, str], slices: dict[str, tuple[DetectedSlice, ...]], host: Host
) -> DetectedDevice:
    bus_id = plain_bus_id(row["pci.bus_id"])
    return DetectedDevice(
        index=number(row["index"]) or 0,
        uuid=row["uuid"],
        name=row["name"],
        model=short_model_name(row["name"]),
        memory_mb=number(row["memory.total"]) or 0,
        mig_slices=slices.get(row["uuid"], ()),
        pci_bus_id=bus_id,
        path=host.device_path(bus_id),
        numa_node=host.numa_node(bus_id),
        cpus=host.near_cpus(bus_id),
    )


def _placed(devices: list[DetectedDevice], topology: dict[int, Topology]) -> list[DetectedDevice]:
    """Number the devices in bus order, and add their topology."""
    rows = [topology.get(device.index, Topology()) for device in devices]
    islands = join_islands(
        [str(device.index) for device in devices],
        [[str(peer) for peer in row.peers] for row in rows],
    )
    return [
        replace(
            device,
            index=place,
            island=island,
            bandwidth_gbps=_bandwidth(device.model, row.links),
            cpus=device.cpus or row.cpus,
            numa_node=device.numa_node if device.numa_node >= 0 else row.numa_node,
        )
        for place, (device, row, island) in enumerate(zip(devices, rows, islands, strict=True))
    ]


def _bandwidth(model: str, links: int) -> int:
    """By model, else by the links to one peer: the matrix does not show the total of links."""
    known = MODELS[model].nvlink_gbps if model in MODELS else 0
    return (known or links * 2 * link_gbps(None)) if links else 0


def _reading(device: DetectedDevice, row: dict[str, str], processes: list[Process]) -> Reading:
    lost = any("lost" in value.lower() for value in row.values())
    return Reading(
        index=device.index,
        utilisation_percent=number(row.get("utilization.gpu")),
        memory_used_mb=number(row.get("memory.used")),
        temperature_c=number(row.get("temperature.gpu")),
        power_mw=number(row.get("power.draw"), 1000),
        power_limit_mw=number(row.get("enforced.power.limit"), 1000),
        sm_clock_mhz=number(row.get("clocks.sm")),
        memory_clock_mhz=number(row.get("clocks.mem")),
        throttle_reasons=_mask(row.get("clocks_throttle_reasons.active")) & ~IDLE,
        ecc_errors=number(row.get("ecc.errors.uncorrected.volatile.total")),
        fault="the GPU is lost: it has fallen off the bus or cannot be reached" if lost else "",
        needs_reset=lost,
        processes=tuple(sorted(processes, key=lambda process: process.pid)),
    )


def _missing(index: int) -> Reading:
    """A device that falls off the bus is no longer listed, or comes without values."""
    fault = "nvidia-smi does not list the GPU any more"
    return Reading(index=index, fault=fault, needs_reset=True)


def _mask(text: str | None) -> int:
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0
