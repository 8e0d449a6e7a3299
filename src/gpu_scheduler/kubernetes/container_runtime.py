"""Which ways of giving devices to containers a node supports, by what its Node object says.

containerd injects devices by CDI from 2.0 on; 1.7 only if its configuration says
`enable_cdi = true`, which cannot be seen from outside; older ones ignore the names of devices
silently, and a container would start without its GPU. CRI-O does so from 1.28 on. A kubelet older
than 1.34 starts a pod with a ResourceClaim silently without its devices.
"""

from __future__ import annotations

import re

from gpu_scheduler.kubernetes.objects import NodeSystemInfo

_VERSION = re.compile(r"v?(\d+)\.(\d+)")
FIRST_DRA_KUBELET = (1, 34)
FIRST_CDI_KUBELET = (1, 29)
"""The first kubelet that takes CDI names from device plugins without a feature gate."""


def supports_cdi(node: NodeSystemInfo) -> bool | None:
    """True or False; None if an administrator has to say it."""
    name, _, text = node.container_runtime_version.partition("://")
    version = _version(text)
    if version is None:
        return None
    if name == "containerd":
        return True if version >= (2, 0) else None if version >= (1, 7) else False
    if name == "cri-o":
        return version >= (1, 28)
    return None


def kubelet_version(node: NodeSystemInfo) -> tuple[int, int]:
    """Major and minor version; (0, 0) if it is not known."""
    return _version(node.kubelet_version) or (0, 0)


def _version(text: str) -> tuple[int, int] | None:
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None
