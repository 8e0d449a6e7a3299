"""CDI specifications: the devices of one container or claim go in, a file for the runtime goes out.

The container runtime reads the directory when it creates a container, and applies the edits of each
device that the kubelet names. Files are replaced atomically, so that it never reads half of one.

What a GPU needs inside a container is taken from the specification that NVIDIA's container toolkit
has written on the node (`nvidia-ctk cdi generate`), if there is one: device nodes, libraries and
hooks. Otherwise the device nodes are injected, and NVIDIA_VISIBLE_DEVICES names the GPUs for an
NVIDIA runtime, which adds the libraries.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpu_scheduler.agent.devices.source import DetectedDevice

CDI_VERSION = "0.5.0"
VENDOR = "gpu.scheduling"
TOOLKIT_KIND = "nvidia.com/gpu"
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
NO_GPUS = "void"
"""Tells an NVIDIA runtime to add nothing; images of CUDA ask for all GPUs unless told otherwise."""

UNUSED_SECONDS = 3600.0
"""An init container, which the kubelet does not list, is created long before this time."""

Edits = dict[str, Any]


class DeviceUnknown(Exception):
    """A GPU was allocated that this node does not have; the text says which."""


class CdiDirectory:
    """The specifications that this agent writes, one file for each CDI device."""

    def __init__(self, directory: Path) -> None:
        """The directory is made if it is missing."""
        self.directory = directory

    def write(self, group: str, name: str, devices: Mapping[str, Edits]) -> list[str]:
        """Replace the specification `name` of a group; returns the qualified device names."""
        kind = f"{VENDOR}/{group}"
        content = {
            "cdiVersion": CDI_VERSION,
            "kind": kind,
            "devices": [{"name": one, "containerEdits": edits} for one, edits in devices.items()],
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self._path(group, name)
        # A name without .json or .yaml, which runtimes ignore.
        fresh = path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.chmod(0o644)
        fresh.replace(path)
        return [self.qualified(group, one) for one in devices]

    @staticmethod
    def qualified(group: str, device: str) -> str:
        """The name of a device by which the kubelet asks the runtime for it."""
        return f"{VENDOR}/{group}={device}"

    def remove(self, group: str, name: str) -> None:
        """Remove a specification, if there is one."""
        self._path(group, name).unlink(missing_ok=True)

    def remove_unused(self, group: str, used: Collection[str]) -> None:
        """Remove specifications that are not in use and not fresh: runtimes read all of them."""
        limit = time.time() - UNUSED_SECONDS
        kept = {self._path(group, name).name for name in used}
        for path in self.directory.glob(f"{VENDOR}-{group}-*.json"):
            if path.name not in kept and path.stat().st_mtime < limit:
                path.unlink(missing_ok=True)

    def _path(self, group: str, name: str) -> Path:
        return self.directory / f"{VENDOR}-{group}-{name}.json"


class ContainerEdits:
    """Makes the edits that give GPUs of this node to a container."""

    def __init__(
        self,
        *,
        driver_root: Path = Path("/"),
        toolkit_directories: Sequence[Path] = (Path("/etc/cdi"), Path("/var/run/cdi")),
    ) -> None:
        """`driver_root` is where the driver lives on the host; a containerised one has its own."""
        self._driver_root = driver_root
        self._toolkit_directories = toolkit_directories

    def of(
        self,
        uuids: Sequence[str],
        devices: Sequence[DetectedDevice],
        *,
        names_devices: bool = True,
    ) -> Edits:
        """The edits for these GPUs and MIG slices; raises `DeviceUnknown`.

        Without `names_devices` the variables are left to other edits of the same container.
        """
        chosen = [_device_of(uuid, devices) for uuid in uuids]
        toolkit = self._toolkit_edits(uuids, chosen)
        if toolkit is not None:
            edits, visible = toolkit, NO_GPUS
        else:
            edits, visible = self._device_nodes(chosen), ",".join(uuids)
        if not names_devices:
            return _with_variables(edits, {"NVIDIA_VISIBLE_DEVICES": NO_GPUS})
        return _with_variables(
            edits, {"NVIDIA_VISIBLE_DEVICES": visible, "CUDA_VISIBLE_DEVICES": ",".join(uuids)}
        )

    def _device_nodes(self, chosen: Sequence[DetectedDevice]) -> Edits:
        """The nodes of the GPUs, and those that every CUDA program opens, where they exist."""
        paths = dict.fromkeys(device.path for device in chosen if device.path)
        for name in CONTROL_NODES:
            path = f"/dev/{name}"
            if self._on_host(path).exists():
                paths[path] = None
        nodes = []
        for path in paths:
            node = {"path": path, "permissions": "rw"}
            if self._driver_root != Path("/"):
                node["hostPath"] = str(self._on_host(path))
            nodes.append(node)
        return {"deviceNodes": nodes} if nodes else {}

    def _on_host(self, path: str) -> Path:
        return self._driver_root / path.lstrip("/")

    def _toolkit_edits(
        self, uuids: Sequence[str], chosen: Sequence[DetectedDevice]
    ) -> Edits | None:
        """What the toolkit's specification says of these devices; None if it does not know all."""
        for specification in self._toolkit_specifications():
            known = {
                str(one.get("name")): one.get("containerEdits") or {}
                for one in specification.get("devices") or ()
            }
            parts = []
            for uuid, device in zip(uuids, chosen, strict=True):
                name = uuid if uuid in known else str(device.index)
                # An index means the whole GPU, which is more than a MIG slice.
                if name not in known or uuid not in {name, device.uuid}:
                    break
                parts.append(known[name])
            else:
                return _merged([specification.get("containerEdits") or {}, *parts])
        return None

    def _toolkit_specifications(self) -> Iterator[dict[str, Any]]:
        for directory in self._toolkit_directories:
            for path in sorted([*directory.glob("*.json"), *directory.glob("*.yaml")]):
                if path.name.startswith(f"{VENDOR}-"):
                    continue
                try:
                    found = yaml.safe_load(path.read_text(encoding="utf-8"))
                except (OSError, yaml.YAMLError):
                    continue
                if isinstance(found, dict) and found.get("kind") == TOOLKIT_KIND:
                    yield found


def _device_of(uuid: str, devices: Sequence[DetectedDevice]) -> DetectedDevice:
    for device in devices:
        if uuid == device.uuid or uuid in device.mig_uuids:
            return device
    raise DeviceUnknown(f"this node has no GPU or MIG slice {uuid}")


def _merged(parts: Sequence[Edits]) -> Edits:
    """All edits in order; what several devices need is there once."""
    merged: Edits = {}
    for part in parts:
        for key, values in part.items():
            if not isinstance(values, list):
                merged[key] = values
                continue
            known = merged.setdefault(key, [])
            known += [value for value in values if value not in known]
    return merged


def _with_variables(edits: Edits, variables: Mapping[str, str]) -> Edits:
    """Set variables in place of those of the same name."""
    kept = [line for line in edits.get("env", ()) if line.partition("=")[0] not in variables]
    return {**edits, "env": [*kept, *(f"{name}={value}" for name, value in variables.items())]}
