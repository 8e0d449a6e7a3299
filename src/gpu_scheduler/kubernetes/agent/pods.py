"""The pods of a node: the GPUs that the scheduler has given to each, and whose a process is.

Only the annotation that the scheduler writes with the Binding counts. The GPUs of a pod are dealt
out to its containers in the order of the manifest, each as many as it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_scheduler.kubernetes.names import ALLOCATED_ANNOTATION
from gpu_scheduler.kubernetes.objects import Container, Pod

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
_POD_GROUP = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


class NotAllocated(Exception):
    """A container wants GPUs that the scheduler has not given to its pod; the text says why."""


def allocated_uuids(pod: Pod) -> tuple[str, ...]:
    """The GPUs and MIG slices that the scheduler has given to a pod.

    For a node without a GpuNodeStatus these are indices of GPUs.
    """
    text = pod.metadata.annotations.get(ALLOCATED_ANNOTATION, "")
    return tuple(part.strip() for part in text.split(",") if part.strip())


def uuids_of_container(
    pod: Pod, container_name: str, resource: str, uuids: Sequence[str]
) -> tuple[str, ...]:
    """The GPUs of one container among those of its pod; raises `NotAllocated`.

    Sidecars come before the other containers. Without a name it is about an init container, which
    ends before the others start and so may use all of them.
    """
    if not container_name:
        return tuple(uuids)
    sidecars = [one for one in pod.spec.init_containers if one.restart_policy == "Always"]
    place = 0
    for container in [*sidecars, *pod.spec.containers]:
        count = requested(container, resource)
        if container.name == container_name:
            return tuple(uuids[place : place + count])
        place += count
    raise NotAllocated(f"pod {'/'.join(pod.key)} has no container {container_name!r}")


def requested(container: Container, resource: str) -> int:
    """How many of an extended resource a container asks for; these are whole numbers."""
    text = container.resources.limits.get(resource) or container.resources.requests.get(resource)
    return int(text) if text and text.isdecimal() else 0


class PodProcesses:
    """Tells which pod a process belongs to, by its control group, which it cannot leave."""

    def __init__(self, pods: Mapping[tuple[str, str], Pod], proc: Path = Path("/proc")) -> None:
        """`pods` is a live view of the pods of this node."""
        self._pods = pods
        self._proc = proc

    def owner_of(self, pid: int) -> str | None:
        """The uid of the pod with GPUs of the scheduler that the process runs in."""
        try:
            text = (self._proc / str(pid) / "cgroup").read_text(errors="replace")
        except OSError:
            return None
        uids = {found.replace("_", "-") for found in _POD_GROUP.findall(text)}
        return next((uid for uid in sorted(uids) if uid in self._allocated()), None)

    def _allocated(self) -> set[str]:
        return {pod.metadata.uid for pod in list(self._pods.values()) if allocated_uuids(pod)}
