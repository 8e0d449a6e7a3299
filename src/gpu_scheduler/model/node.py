"""Nodes and their GPUs: state, labels, problems, and the table of GPU models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import display_name
from gpu_scheduler.model.request import WHOLE_MILLI


class NodeState(StrEnum):
    """Connection of a node: heartbeats arrive, are late, have timed out, or the node is dead."""

    ONLINE = "online"
    SUSPECT = "suspect"
    LOST = "lost"
    DEAD = "dead"


class DeviceMode(StrEnum):
    """How a device is divided at this moment."""

    WHOLE = "whole"
    SHARED = "shared"
    MIG = "mig"


class Health(StrEnum):
    """Whether a device can be trusted with work."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignUse:
    """A process on the device that belongs to no running job.

    It is foreign, or, if `leaked`, left behind by the ended `job` (or task). The PID is 0 if no
    process is visible.
    """

    pid: int
    user: str = ""
    memory_mb: int = 0
    command: str = ""
    leaked: bool = False
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU. `island` groups the devices of a node that NVLink joins at `bandwidth_gbps`.

    An admin has `paused` it; it is `quarantined` because jobs failed on it at once. `why` explains
    bad health. `forgiven` processes do not block the device. `trust_ms` is when an admin last
    resumed it; 0 once its node has confirmed that.
    """

    index: int
    uuid: str = ""
    model: str = "GPU"
    memory_mb: int = 0
    mode: DeviceMode = DeviceMode.WHOLE
    mig_slices: tuple[tuple[str, int], ...] = ()
    island: int = 0
    bandwidth_gbps: int = 0
    temperature_c: int = 0
    hot: bool = False
    health: Health = Health.HEALTHY
    paused: bool = False
    quarantined: bool = False
    foreign: ForeignUse | None = None
    why: str = ""
    forgiven: tuple[int, ...] = ()
    trust_ms: int = 0
    pause_reason: str = ""

    def __post_init__(self) -> None:
        """Reject negative amounts, and slices on a device without MIG."""
        if self.index < 0 or self.memory_mb < 0:
            raise InvalidRequest(
                f"device {self.index} with {self.memory_mb} MiB: both must be 0 or more"
            )
        if (self.mode is DeviceMode.MIG) != bool(self.mig_slices):
            raise InvalidRequest(f"device {self.index}: MIG mode and MIG slices go together")

    @property
    def takes_work(self) -> bool:
        """Tell whether new work may be placed here."""
        return (
            self.health is Health.HEALTHY
            and not self.paused
            and not self.quarantined
            and not self.hot
            and self.foreign is None
        )


def is_hot_after(*, was_hot: bool, temperature_c: int, threshold_c: int, hysteresis_c: int) -> bool:
    """A device becomes hot above the threshold and cool again only well below it."""
    if was_hot:
        return temperature_c > threshold_c - hysteresis_c
    return temperature_c > threshold_c


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A port of a network adapter that NCCL can use; `link` is InfiniBand or Ethernet (RoCE)."""

    name: str
    port: int = 1
    link: str = "InfiniBand"
    rate_gbps: int = 0
    numa_node: int = -1
    active: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClosure:
    """A cordon or drain of a node, by an admin or by the scheduler (`is_fault`).

    With `drains` the node should become empty: jobs that still run at `requeue_ms` are stopped and
    requeued (None: they run to their end). With `heals` it ends when the agent reports no problem.
    """

    since_ms: int
    by: str = ""
    reason: str = ""
    drains: bool = False
    requeue_ms: int | None = None
    is_fault: bool = False
    heals: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine. `ordinal` is given once, at registration, and decides ties between nodes.

    `labels` are those of its agent, changed by the `given_labels` of admins, where None removes
    one. `address` is used by gang members on other nodes; `version` is that of its agent.
    `silent_ms` is the time of the last heartbeat of a silent node; 0 if it is connected, or was at
    the start of the server.
    """

    id: str
    ordinal: int
    cpu_milli: int = 0
    memory_mb: int = 0
    devices: tuple[Device, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    rack: str = ""
    state: NodeState = NodeState.ONLINE
    closed: NodeClosure | None = None
    found_labels: tuple[tuple[str, str], ...] = ()
    given_labels: tuple[tuple[str, str | None], ...] = ()
    address: str = ""
    version: str = ""
    numa_nodes: int = 0
    direct_storage: bool = False
    adapters: tuple[Adapter, ...] = ()
    silent_ms: int = 0

    def __post_init__(self) -> None:
        """Reject negative amounts and device indices that are not unique."""
        if self.cpu_milli < 0 or self.memory_mb < 0 or self.ordinal < 0:
            raise InvalidRequest(f"node {self.id}: CPU, memory and ordinal must be 0 or more")
        indices = [device.index for device in self.devices]
        if len(set(indices)) != len(indices):
            raise InvalidRequest(f"node {self.id}: two devices have the same index")

    @property
    def gpu_count(self) -> int:
        """How many devices the node has."""
        return len(self.devices)

    @property
    def takes_work(self) -> bool:
        """Tell whether new work may be placed here."""
        return self.state is NodeState.ONLINE and self.closed is None


def merge_labels(
    found: tuple[tuple[str, str], ...], given: tuple[tuple[str, str | None], ...]
) -> tuple[tuple[str, str], ...]:
    """The labels of a node: those of its agent, overridden by those of admins."""
    merged: dict[str, str | None] = {**dict(found), **dict(given)}
    return tuple(sorted((name, value) for name, value in merged.items() if value is not None))


# Labels that the scheduler sets for the features of a node. Messages describe them in words.

RUNNER_LABEL = "tgpu.runner."
"""Prefix of the labels for the runners of a node."""
TERMINAL_LABEL = "tgpu.terminals"
"""Label of nodes whose job terminals can be reached through the server."""
RULES_LABEL = "tgpu.rules"
"""Label of nodes that the placement rules of some jobs allow; the value is the set of rules."""
_RUNNERS = {"container": "a container engine"}


def runner_label(runner: str) -> str:
    """The label of nodes with this runner."""
    return f"{RUNNER_LABEL}{runner}"


def label_feature(label: str) -> str:
    """The feature that a scheduler label stands for; empty for any other label."""
    if label == TERMINAL_LABEL:
        return "terminals through the server"
    if not label.startswith(RUNNER_LABEL):
        return ""
    runner = label.removeprefix(RUNNER_LABEL)
    return _RUNNERS.get(runner, runner)


# Requested and excluded node names are passed along with the labels of a request, as two special
# labels that hold lists of names. `matches_labels` understands them.

ONLY = "tgpu.only-nodes"
NOT = "tgpu.not-nodes"
Labels = tuple[tuple[str, str], ...]


def node_name_labels(only: Iterable[str], excluded: Iterable[str]) -> Labels:
    """Requested and excluded names as labels; reject a node that is in both lists."""
    wanted, unwanted = set(only), set(excluded)
    both = sorted(wanted & unwanted)
    if both:
        raise InvalidRequest(
            f"node '{both[0]}' is in both 'nodes' and 'exclude_nodes'; leave it out of one of them"
        )
    for name in sorted(wanted | unwanted):
        if not name or "," in name or not name.isprintable():
            raise InvalidRequest(
                f"'{name[:63]}' cannot be the name of a node; 'tgpu nodes' has all"
            )
    lists = ((ONLY, wanted), (NOT, unwanted))
    return tuple((label, ",".join(sorted(names))) for label, names in lists if names)


def matches_labels(wanted: Labels, node_id: str, labels: Labels) -> bool:
    """Tell whether a node has all wanted labels and an allowed name."""
    has = set(labels)
    for label, value in wanted:
        if label == ONLY:
            if node_id not in value.split(","):
                return False
        elif label == NOT:
            if node_id in value.split(","):
                return False
        elif (label, value) not in has:
            return False
    return True


def describe_labels(wanted: Labels) -> list[str]:
    """The wanted labels as phrases for messages."""
    found = dict(wanted)
    only, excluded = found.pop(ONLY, ""), found.pop(NOT, "")
    found.pop(RULES_LABEL, "")
    words = []
    asked = [f"{name}={value}" for name, value in found.items() if not label_feature(name)]
    if asked:
        words.append("labels " + ", ".join(asked))
    words += [f"with {offer}" for name in found if (offer := label_feature(name))]
    if only:
        words.append(f"on {only.replace(',', ' or ')}")
    if excluded:
        words.append(f"not on {excluded.replace(',', ' or ')}")
    return words


def user_labels(wanted: Labels) -> Labels:
    """The labels that the user asked for, without those of the scheduler."""
    return tuple(label for label in wanted if not label_feature(label[0]))


def is_node_name_label(label: str) -> bool:
    """Tell whether a label holds node names."""
    return label in {ONLY, NOT}


def label_mismatch(label: tuple[str, str]) -> str:
    """Why a node does not match one wanted label."""
    if label[0] == ONLY:
        return "not named by --nodelist"
    if label[0] == NOT:
        return "excluded by name"
    if label[0] == RULES_LABEL:
        return "excluded by its placement rules"
    return f"without {label_feature(label[0]) or f'label {label[0]}={label[1]}'}"


def device_state(device: Device, *, jobs: int, share_milli: int) -> str:
    """The state of a device in one word; `jobs` hold `share_milli` of it together."""
    if device.quarantined:
        return "quarantined"
    if device.health is not Health.HEALTHY:
        return "unhealthy"
    if device.paused:
        return "paused"
    if jobs:
        return "used" if jobs == 1 and share_milli >= WHOLE_MILLI else "shared"
    if device.foreign is not None:
        return "leaking" if device.foreign.leaked else "foreign"
    return "hot" if device.hot else "free"


def device_problem(device: Device) -> str:
    """Why a device takes no new work, the most severe cause first; otherwise empty."""
    if device.health is not Health.HEALTHY:
        return device.why or "it is not to be trusted"
    if device.quarantined:
        return "different jobs kept dying on it at once; resume-gpu gives it back"
    if device.paused:
        return "an admin has paused it" + (
            f": {device.pause_reason}" if device.pause_reason else ""
        )
    if device.foreign is not None:
        return _taken(device.foreign)
    if device.hot:
        return f"it became hot ({device.temperature_c} C) and rests until it has cooled down"
    return ""


def node_problem(node: Node) -> str:
    """Why a node takes no new work; empty if it does."""
    if node.state is not NodeState.ONLINE:
        return "its node does not answer"
    closed = node.closed
    if closed is None:
        return ""
    status = "set aside" if closed.is_fault else "closed"
    if closed.by and not closed.is_fault:
        status = f"closed by {closed.by}"
    return f"its node is {status}" + (f": {closed.reason}" if closed.reason else "")


def _taken(use: ForeignUse) -> str:
    what = f"process {use.pid}" + (f" ({use.command})" if use.command else "")
    whose = f" of {use.user}" if use.user else ""
    memory = f" {use.memory_mb} MiB" if use.memory_mb else " it"
    if not use.leaked:
        if not use.pid:
            return f"a process that the agent cannot see holds{memory}"
        return f"{what}{whose} holds{memory}"
    if not use.pid:
        return f"{use.memory_mb} MiB were not given back by the last job, and no process holds them"
    job = display_name(use.job) if use.job else "the job"
    return f"{job} is over, and {what}{whose} still holds{memory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """Memory sizes of a GPU model, the default first, and its NVLink bandwidth.

    `nvlink_gbps` is the sum over all links and both directions, as in data sheets (0: none).
    """

    sizes_gb: tuple[int, ...]
    nvlink_gbps: int = 0


MODELS: dict[str, GpuModel] = {
    "P100": GpuModel(sizes_gb=(16, 12), nvlink_gbps=160),
    "V100": GpuModel(sizes_gb=(32, 16), nvlink_gbps=300),
    "A100": GpuModel(sizes_gb=(80, 40), nvlink_gbps=600),
    "A800": GpuModel(sizes_gb=(80, 40), nvlink_gbps=400),
    "H100": GpuModel(sizes_gb=(80, 94), nvlink_gbps=900),
    "H800": GpuModel(sizes_gb=(80,), nvlink_gbps=400),
    "H20": GpuModel(sizes_gb=(96, 141), nvlink_gbps=900),
    "H200": GpuModel(sizes_gb=(141,), nvlink_gbps=900),
    "B100": GpuModel(sizes_gb=(192,), nvlink_gbps=1800),
    "B200": GpuModel(sizes_gb=(180, 192), nvlink_gbps=1800),
    "B300": GpuModel(sizes_gb=(288,), nvlink_gbps=1800),
    "T4": GpuModel(sizes_gb=(16,)),
    "L4": GpuModel(sizes_gb=(24,)),
    "L40": GpuModel(sizes_gb=(48,)),
    "L40S": GpuModel(sizes_gb=(48,)),
    "A2": GpuModel(sizes_gb=(16,)),
    "A10": GpuModel(sizes_gb=(24,)),
    "A10G": GpuModel(sizes_gb=(24,)),
    "A16": GpuModel(sizes_gb=(16,)),
    "A30": GpuModel(sizes_gb=(24,)),
    "A40": GpuModel(sizes_gb=(48,)),
    "RTXA4000": GpuModel(sizes_gb=(16,)),
    "RTXA5000": GpuModel(sizes_gb=(24,)),
    "RTXA6000": GpuModel(sizes_gb=(48,)),
    "RTX6000Ada": GpuModel(sizes_gb=(48,)),
    "RTX2080Ti": GpuModel(sizes_gb=(11,)),
    "RTX3080": GpuModel(sizes_gb=(10, 12)),
    "RTX3090": GpuModel(sizes_gb=(24,)),
    "RTX4080": GpuModel(sizes_gb=(16,)),
    "RTX4090": GpuModel(sizes_gb=(24,)),
    "RTX5080": GpuModel(sizes_gb=(16,)),
    "RTX5090": GpuModel(sizes_gb=(32,)),
    "GTX1080Ti": GpuModel(sizes_gb=(11,)),
    "GPU": GpuModel(sizes_gb=(16,)),
}

# Words of a product name that do not identify the chip.
_PACKAGING = re.compile(
    r"nvidia|tesla|geforce|quadro|generation|graphics|gpu|sxm\d*|pcie?|nvl|nvlink|hbm\w*"
    r"|\d+gb|\d+gb\w*",
    re.IGNORECASE,
)


def short_model_name(name: str) -> str:
    """The short name: 'NVIDIA A100-SXM4-80GB' is A100, 'GeForce RTX 4090' is RTX4090."""
    bare = name.partition(" MIG ")[0]
    words = [word for word in re.split(r"[\s\-/]+", bare) if word]
    kept = [word for word in words if not _PACKAGING.fullmatch(word)]
    return "".join(kept) or "GPU"


def canonical_model_name(name: str) -> str:
    """The spelling of a model in the table; an unknown name is returned unchanged."""
    plain = name.replace("-", "").replace(" ", "").casefold()
    return next((model for model in MODELS if model.casefold() == plain), name)
