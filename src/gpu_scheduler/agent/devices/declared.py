"""Declared (simulated) devices: '8xA100-80GB' comes in, a node with such devices goes out.

No driver is used, but jobs on declared devices are real processes. There are no sensors, so the
readings are empty and healthy, unless a file of readings is given: with it heat, faults and foreign
processes can be simulated.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpu_scheduler.agent.devices.host import Host
from gpu_scheduler.agent.devices.source import (
    DetectedDevice,
    DevicesUnreadable,
    NodeInventory,
    Process,
    Reading,
)
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.node import MODELS, canonical_model_name

EXAMPLE = "8xA100-80GB, or 4xH100-80GB,2xL4-24GB"
CORES_PER_GPU = 8
MEMORY_PER_GPU_MEMORY = 2
MOST_DEVICES = 1024
ISLAND_SIZE = 8
GPUS = "gpus"
_PART = re.compile(
    r"(?P<count>\d+)\s*[x*]\s*(?P<model>[A-Za-z][A-Za-z0-9 \-]*?)"
    r"(?:-(?P<size>\d+)\s*(?P<unit>GB|GiB|G|MB|MiB|M))?",
    re.IGNORECASE,
)
_NAMES = uuid.UUID("9f4e4c0e-6a0b-5d4f-8f0b-3d2c7f6c1a55")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """`count` devices of one model."""

    count: int
    model: str
    memory_mb: int
    nvlink_gbps: int = 0


def parse_declared(text: str) -> tuple[Declared, ...]:
    """Parse '8xA100-80GB' or a list of such; memory may be omitted where the model is known."""
    parts = [part.strip() for part in text.split(",")]
    declared = tuple(_parse_part(part, text) for part in parts)
    total = sum(group.count for group in declared)
    if total > MOST_DEVICES:
        raise InvalidRequest(
            f"simulated GPUs '{text}': {total} GPUs on one node; expected at most {MOST_DEVICES}"
        )
    return declared


def _parse_part(part: str, text: str) -> Declared:
    match = _PART.fullmatch(part)
    if match is None:
        raise InvalidRequest(
            f"simulated GPUs '{text}': cannot read '{part}'; expected COUNTxMODEL-MEMORY, "
            f"such as {EXAMPLE}"
        )
    count, name = int(match["count"]), canonical_model_name(match["model"])
    if count < 1:
        raise InvalidRequest(
            f"simulated GPUs '{text}': '{part}' asks for 0 GPUs; expected 1 or more, "
            f"such as {EXAMPLE}"
        )
    model = MODELS.get(name)
    if match["size"] is None and model is None:
        raise InvalidRequest(
            f"simulated GPUs '{text}': the memory of a '{name}' is not known; "
            f"add it, as in {count}x{name}-24GB"
        )
    memory_mb = 0
    if match["size"]:
        memory_mb = int(match["size"]) * (1024 if match["unit"].upper().startswith("G") else 1)
    if match["size"] and memory_mb < 1:
        raise InvalidRequest(
            f"simulated GPUs '{text}': '{part}' has no memory; expected such as {EXAMPLE}"
        )
    return Declared(
        count=count,
        model=name,
        memory_mb=memory_mb or (model.sizes_gb[0] * 1024 if model else 0),
        nvlink_gbps=model.nvlink_gbps if model else 0,
    )


def declared_devices(groups: tuple[Declared, ...], *, node: str) -> tuple[DetectedDevice, ...]:
    """The devices, with UUIDs that are the same on every start of this node.

    Eight devices in a row of a model with NVLink are one island; other devices are alone.
    """
    devices: list[DetectedDevice] = []
    island = 0
    for group in groups:
        for place in range(group.count):
            index = len(devices)
            joined = group.nvlink_gbps > 0 and group.count > 1
            if devices and not (joined and place % ISLAND_SIZE):
                island += 1
            devices.append(
                DetectedDevice(
                    index=index,
                    uuid=f"GPU-{uuid.uuid5(_NAMES, f'{node}/{index}')}",
                    name=f"{group.model}-{round(group.memory_mb / 1024)}GB (declared)",
                    model=group.model,
                    memory_mb=group.memory_mb,
                    island=island,
                    bandwidth_gbps=group.nvlink_gbps if joined else 0,
                )
            )
    return tuple(devices)


class DeclaredSource:
    """Devices that exist only by declaration.

    `readings_file` holds a JSON object of readings by index, such as {"0": {"temperature_c": 91}};
    every `read` reads the file again, and it need not exist. XIDs count once per change of the
    file. Its key "gpus" declares other devices, which the next `find` returns.
    """

    def __init__(
        self,
        text: str,
        *,
        node: str = "",
        cpu_milli: int | None = None,
        memory_mb: int | None = None,
        host: Host | None = None,
        readings_file: Path | None = None,
    ) -> None:
        self._text = text
        self._node = node
        self._devices = declared_devices(parse_declared(text), node=node)
        self._host = host or Host()
        self._cpu_milli = cpu_milli
        self._memory_mb = memory_mb
        self._readings_file = readings_file
        self._last_text = ""

    def find(self) -> NodeInventory:
        """The declared node; CPU and memory match the GPUs, but are at least those of the host."""
        now = str(self._file().get(GPUS, self._text))
        self._devices = declared_devices(parse_declared(now), node=self._node)
        gpu_memory_mb = sum(device.memory_mb for device in self._devices)
        return NodeInventory(
            cpu_milli=self._cpu_milli
            if self._cpu_milli is not None
            else max(self._host.cpu_milli(), len(self._devices) * CORES_PER_GPU * 1000),
            memory_mb=self._memory_mb
            if self._memory_mb is not None
            else max(self._host.memory_mb(), gpu_memory_mb * MEMORY_PER_GPU_MEMORY),
            devices=self._devices,
            detection="declared",
        )

    def read(self) -> list[Reading]:
        """The readings of the file; empty ones for all other devices."""
        values = self._file_readings()
        return [
            _reading(device.index, values.get(str(device.index), {})) for device in self._devices
        ]

    def close(self) -> None:
        """Nothing is open."""

    def _file(self) -> dict[str, Any]:
        """The content of the readings file."""
        try:
            text = "{}" if self._readings_file is None else self._readings_file.read_text("utf-8")
            content = json.loads(text)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DevicesUnreadable(f"{self._readings_file}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise self._unreadable() from error
        if not isinstance(content, dict):
            raise self._unreadable()
        return content

    def _unreadable(self) -> DevicesUnreadable:
        return DevicesUnreadable(
            f"{self._readings_file}: expected a JSON object of readings by index, such as "
            '{"0": {"temperature_c": 91}}'
        )

    def _file_readings(self) -> dict[str, dict[str, Any]]:
        """The values by device index; XIDs only if the file has changed since the last call."""
        content = self._file()
        text = json.dumps(content)
        content.pop(GPUS, None)
        try:
            by_index = {str(index): dict(values) for index, values in content.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise self._unreadable() from error
        if text == self._last_text:
            by_index = {index: {**values, "xids": ()} for index, values in by_index.items()}
        self._last_text = text
        return by_index


def _reading(index: int, content: dict[str, Any]) -> Reading:
    known = {field.name for field in fields(Reading)} - {"index"}
    values = {name: value for name, value in content.items() if name in known}
    try:
        values["xids"] = tuple(values.get("xids", ()))
        values["processes"] = tuple(Process(**process) for process in values.get("processes", ()))
        return Reading(index=index, **values)
    except TypeError as error:
        raise DevicesUnreadable(f"declared reading of GPU {index}: {error}") from error
