"""GpuNodeStatus: the GPUs of a node, their health and connections, as its agent sees them."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from gpu_scheduler.kubernetes.crds.conditions import Conditions
from gpu_scheduler.kubernetes.crds.definition import Column, CustomResource
from gpu_scheduler.kubernetes.crds.schema import a_set, documented, keyed_by
from gpu_scheduler.kubernetes.objects import Object, Value

Index = Annotated[int, documented("The index of a GPU.", ge=0, le=1023)]


class GpuMode(StrEnum):
    """How a GPU is divided now."""

    WHOLE = "Whole"
    SHARED = "Shared"
    MIG = "MIG"


class HealthState(StrEnum):
    """Whether a GPU can be trusted with work."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    PROBATION = "Probation"


class Recovery(StrEnum):
    """What makes an unhealthy GPU usable again."""

    WAIT = "Wait"
    RESTART_PROCESS = "RestartProcess"
    RESET_GPU = "ResetGPU"
    REBOOT_NODE = "RebootNode"
    REPLACE_GPU = "ReplaceGPU"


class GpuHealth(Value, frozen=True, kw_only=True):
    """Whether a GPU can be trusted, why not, and the way back."""

    state: Annotated[
        HealthState,
        documented(
            "Healthy accepts work, Unhealthy does not, Probation is watched for a while after a "
            "recovery before it accepts work again."
        ),
    ] = HealthState.HEALTHY
    reason: Annotated[str, documented("What is wrong, as a sentence.", max_length=1024)] = ""
    xid: Annotated[int | None, documented("The last XID error of the driver.", minimum=0)] = None
    uncorrected_ecc_errors: Annotated[
        int | None, documented("ECC errors that could not be corrected.", minimum=0)
    ] = None
    since: Annotated[datetime | None, documented("When this state began.")] = None
    recovery: Annotated[
        Recovery | None, documented("What makes the GPU usable again, if it is not healthy.")
    ] = None
    probation_until: Annotated[
        datetime | None, documented("When a GPU on probation accepts work again.")
    ] = None


class MigSlice(Value, frozen=True, kw_only=True):
    """A slice of a GPU in MIG mode."""

    uuid: Annotated[str, documented("The UUID of the slice.", max_length=128)]
    profile: Annotated[str, documented("Its profile, such as 1g.10gb.", max_length=32)]


class ForeignProcess(Value, frozen=True, kw_only=True):
    """A process on a GPU that belongs to no pod of the scheduler."""

    pid: Annotated[int, documented("The process id on the node.", ge=0)]
    user: Annotated[str, documented("The user of the process.", max_length=256)] = ""
    memory_mib: Annotated[int, documented("The GPU memory that it uses, in MiB.", ge=0)] = (
        msgspec.field(default=0, name="memoryMiB")
    )
    command: Annotated[str, documented("The command.", max_length=256)] = ""


class Gpu(Value, frozen=True, kw_only=True):
    """One GPU of the node."""

    index: Annotated[int, documented("Its index, in the order of the PCI bus.", ge=0, le=1023)]
    uuid: Annotated[str, documented("Its UUID.", max_length=128)]
    model: Annotated[str, documented("Its model, such as NVIDIA H100 80GB HBM3.", max_length=128)]
    memory_mib: Annotated[int, documented("Its memory, in MiB.", ge=0)] = msgspec.field(
        name="memoryMiB"
    )
    mode: Annotated[GpuMode, documented("How it is divided: Whole, Shared or MIG.")] = GpuMode.WHOLE
    health: Annotated[GpuHealth, documented("Whether it can be trusted with work.")] = GpuHealth()
    is_hot: Annotated[
        bool, documented("It is above the temperature limit and accepts no new work.")
    ] = msgspec.field(default=False, name="hot")
    temperature_celsius: Annotated[int | None, documented("The temperature.")] = None
    power_watts: Annotated[int | None, documented("The power that it draws.")] = None
    power_limit_watts: Annotated[int | None, documented("The power that it may draw.")] = None
    utilization_percent: Annotated[
        int | None, documented("How busy it is.", minimum=0, maximum=100)
    ] = None
    memory_used_mib: Annotated[int | None, documented("The memory in use, in MiB.", minimum=0)] = (
        msgspec.field(default=None, name="memoryUsedMiB")
    )
    island: Annotated[
        int | None, documented("GPUs with the same number are connected by NVLink.", minimum=0)
    ] = None
    numa_node: Annotated[int | None, documented("The NUMA node that it is attached to.")] = None
    pci_bus_id: Annotated[str, documented("The PCI address.", max_length=32)] = msgspec.field(
        default="", name="pciBusID"
    )
    mps: Annotated[bool, documented("An MPS server shares it among processes.")] = False
    mig_slices: Annotated[
        tuple[MigSlice, ...], documented("Its MIG slices.", max_length=64, **keyed_by("uuid"))
    ] = ()
    foreign_processes: Annotated[
        tuple[ForeignProcess, ...],
        documented(
            "Processes that belong to no pod of the scheduler; while there are any, the GPU "
            "accepts no work.",
            max_length=64,
        ),
    ] = ()


class NvLink(Value, frozen=True, kw_only=True):
    """The connection of two GPUs."""

    a: Annotated[int, documented("The index of one GPU.", ge=0, le=1023)]
    b: Annotated[int, documented("The index of the other GPU.", ge=0, le=1023)]
    links: Annotated[int, documented("The number of links.", ge=0)] = 0
    bandwidth_gbps: Annotated[int, documented("The bandwidth, in GB/s.", ge=0)] = msgspec.field(
        default=0, name="bandwidthGBps"
    )


class NetworkAdapter(Value, frozen=True, kw_only=True):
    """A port of a network adapter that NCCL can use."""

    name: Annotated[str, documented("The adapter, such as mlx5_0.", max_length=64)]
    port: Annotated[int, documented("The port of the adapter.", ge=1)] = 1
    link: Annotated[str, documented("InfiniBand or Ethernet.", max_length=32)] = "InfiniBand"
    rate_gbps: Annotated[int, documented("The rate, in Gbit/s.", ge=0)] = msgspec.field(
        default=0, name="rateGbps"
    )
    numa_node: Annotated[int | None, documented("The NUMA node that it is attached to.")] = None
    active: Annotated[bool, documented("The link is up.")] = False


class GpuNodeStatusSpec(Value, frozen=True, kw_only=True):
    """What an administrator wants of the node."""

    paused_gpus: Annotated[
        tuple[Index, ...],
        documented(
            "Indices of GPUs that must not get new work; running pods continue.",
            max_length=1024,
            **a_set(),
        ),
    ] = msgspec.field(default=(), name="pausedGPUs")
    pause_reason: Annotated[str, documented("Why, for those who wait.", max_length=1024)] = ""


class GpuNodeStatusStatus(Value, frozen=True, kw_only=True):
    """What the agent on the node sees."""

    heartbeat_time: Annotated[
        datetime | None, documented("When the agent last wrote this status.")
    ] = None
    agent_version: Annotated[str, documented("The version of the agent.", max_length=64)] = ""
    driver_version: Annotated[str, documented("The version of the GPU driver.", max_length=64)] = ""
    cuda_version: Annotated[
        str, documented("The newest CUDA version that the driver supports.", max_length=64)
    ] = ""
    supports_cdi: Annotated[
        bool | None,
        documented("Whether the container runtime injects devices by CDI, which DRA needs."),
    ] = msgspec.field(default=None, name="supportsCDI")
    gpu_count: Annotated[int, documented("The number of GPUs.", ge=0)] = 0
    available_gpus: Annotated[
        int, documented("The number of GPUs that accept work: healthy, cool, not paused.", ge=0)
    ] = msgspec.field(default=0, name="availableGPUs")
    gpu_model: Annotated[str, documented("The model of the GPUs, or 'mixed'.", max_length=128)] = ""
    max_temperature_celsius: Annotated[
        int | None, documented("The temperature of the hottest GPU.")
    ] = None
    gpus: Annotated[
        tuple[Gpu, ...], documented("The GPUs of the node.", max_length=1024, **keyed_by("index"))
    ] = ()
    links: Annotated[
        tuple[NvLink, ...],
        documented("The NVLink connections.", max_length=4096, **keyed_by("a", "b")),
    ] = ()
    adapters: Annotated[
        tuple[NetworkAdapter, ...],
        documented("The fast network adapters.", max_length=256, **keyed_by("name", "port")),
    ] = ()
    conditions: Conditions = ()


class GpuNodeStatus(Object, frozen=True, kw_only=True):
    """The GPUs of the node of the same name: inventory, health, temperature, NVLink connections and
    use by others. The agent on the node writes the status.
    """

    spec: Annotated[GpuNodeStatusSpec, documented("What an administrator wants of the node.")] = (
        GpuNodeStatusSpec()
    )
    status: Annotated[GpuNodeStatusStatus, documented("What the agent on the node sees.")] = (
        GpuNodeStatusStatus()
    )


GPU_NODE_STATUSES = CustomResource(
    type=GpuNodeStatus,
    kind="GpuNodeStatus",
    plural="gpunodestatuses",
    is_namespaced=False,
    short_names=("gns",),
    columns=(
        Column(name="GPUs", path=".status.gpuCount", type="integer"),
        Column(name="Available", path=".status.availableGPUs", type="integer"),
        Column(name="Model", path=".status.gpuModel"),
        Column(name="Temp", path=".status.maxTemperatureCelsius", type="integer"),
        Column(name="Driver", path=".status.driverVersion", is_wide=True),
        Column(name="CUDA", path=".status.cudaVersion", is_wide=True),
        Column(name="Agent", path=".status.agentVersion", is_wide=True),
        Column(name="Heartbeat", path=".status.heartbeatTime", type="date"),
    ),
)
