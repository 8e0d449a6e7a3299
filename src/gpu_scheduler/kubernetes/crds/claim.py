"""GpuClaim: what a pod, or each pod of a gang, needs of GPUs, and what it got."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec

from gpu_scheduler.kubernetes.crds.conditions import Conditions
from gpu_scheduler.kubernetes.crds.definition import Column, CustomResource
from gpu_scheduler.kubernetes.crds.schema import Rule, a_set, documented, keyed_by
from gpu_scheduler.kubernetes.objects import Object, Value

NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
Name = Annotated[str, documented("The name of an object.", max_length=253, pattern=NAME)]
Model = Annotated[str, documented("The name of a GPU model.", min_length=1, max_length=63)]
LabelValue = Annotated[str, documented("The value of a label.", max_length=63)]


class Policy(StrEnum):
    """Which devices of a node are preferred."""

    CONTIGUOUS = "contiguous"
    PACK = "pack"
    SPREAD = "spread"


class Exclusivity(StrEnum):
    """Whether a claim has its devices alone."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"


class TopologyMode(StrEnum):
    """Whether a wish about the topology must be met."""

    REQUIRED = "Required"
    PREFERRED = "Preferred"


class ClaimPhase(StrEnum):
    """How far a claim has come."""

    PENDING = "Pending"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    PREEMPTED = "Preempted"


class DeviceRequest(Value, frozen=True, kw_only=True):
    """How many GPUs each pod of the claim needs, and of which kind. All are on one node."""

    count: Annotated[
        int, documented("The number of GPUs, or of MIG slices with migProfile.", ge=1, le=1024)
    ] = 1
    policy: Annotated[
        Policy,
        documented(
            "Which GPUs of a node to prefer: 'pack' keeps whole GPUs and NVLink islands free for "
            "others, 'spread' avoids GPUs that are in use, 'contiguous' requires adjacent indices."
        ),
    ] = Policy.PACK
    exclusivity: Annotated[
        Exclusivity,
        documented(
            "'Exclusive' gives whole GPUs to this claim alone. 'Shared' gives a part of each GPU; "
            "then fraction, memory or migProfile says how large the part is."
        ),
    ] = Exclusivity.EXCLUSIVE
    fraction: Annotated[
        float | None,
        documented(
            "The part of each GPU, from 0.01 to 1 in steps of 0.01.", minimum=0.01, maximum=1
        ),
    ] = None
    memory: Annotated[
        int | str | None,
        documented(
            "GPU memory, as a quantity such as 16Gi. With 'Shared' it is the memory of each GPU "
            "that the claim may use; with 'Exclusive' each GPU has at least so much.",
            maxLength=32,
        ),
    ] = None
    mig_profile: Annotated[
        str,
        documented(
            "A slice of a MIG-capable GPU, such as 1g.10gb.",
            max_length=32,
            pattern=r"^[1-7]g\.[0-9]+gb(\+me)?$",
        ),
    ] = ""
    models: Annotated[
        tuple[Model, ...],
        documented(
            "The GPU models that are accepted, such as H100; empty accepts any. All GPUs of one "
            "pod are of one model.",
            max_length=32,
            **a_set(),
        ),
    ] = ()

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            expression="self.exclusivity == 'Shared' || !has(self.fraction)",
            message="a fraction is a part of a shared GPU; set exclusivity: Shared",
            field=".fraction",
        ),
        Rule(
            expression="self.exclusivity == 'Exclusive' || has(self.fraction) || has(self.memory)"
            " || has(self.migProfile)",
            message="a shared GPU needs its size; set fraction, memory or migProfile",
            field=".exclusivity",
        ),
        Rule(
            expression="!has(self.migProfile) || (!has(self.fraction) && !has(self.memory))",
            message="a MIG profile has a fixed size; leave out fraction and memory",
            field=".migProfile",
        ),
        Rule(
            # Kubernetes has no rounding in CEL; 0.07 is not exact as a binary number.
            expression="!has(self.fraction) || (self.fraction * 100.0"
            " - double(int(self.fraction * 100.0 + 0.001)) < 0.002)",
            message="the finest step of a fraction is 0.01",
            field=".fraction",
        ),
        Rule(
            expression="!has(self.memory) || (type(self.memory) == string"
            " ? isQuantity(self.memory) && quantity(self.memory).isGreaterThan(quantity('0'))"
            " : self.memory > 0)",
            message="memory must be a positive quantity such as 16Gi",
            field=".memory",
        ),
    )


class TopologyRequest(Value, frozen=True, kw_only=True):
    """How well the GPUs should be connected."""

    mode: Annotated[
        TopologyMode,
        documented(
            "'Required' waits until the GPUs are so connected; 'Preferred' takes others if there "
            "are none."
        ),
    ] = TopologyMode.PREFERRED
    min_bandwidth_gbps: Annotated[
        int,
        documented(
            "The NVLink bandwidth between any two GPUs of a pod, in GB/s; 0 asks for none.",
            ge=0,
            le=100_000,
        ),
    ] = msgspec.field(default=0, name="minBandwidthGBps")
    same_rack: Annotated[
        bool, documented("All pods of the gang are on nodes of one rack (or 'Preferred' to be).")
    ] = False


class Gang(Value, frozen=True, kw_only=True):
    """Pods that start together or not at all."""

    group: Annotated[
        str,
        documented(
            "The name of the gang. Pods of one namespace whose claims name the same group belong "
            "together; empty means all pods that use this claim.",
            max_length=63,
        ),
    ] = ""
    min_members: Annotated[
        int, documented("No pod starts until so many can start together.", ge=1, le=100_000)
    ]
    max_members: Annotated[
        int | None,
        documented(
            "At most so many pods run at once; by default as many as exist.",
            minimum=1,
            maximum=100_000,
        ),
    ] = None

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            expression="!has(self.maxMembers) || self.maxMembers >= self.minMembers",
            message="maxMembers must not be less than minMembers",
            field=".maxMembers",
        ),
    )


class GpuClaimSpec(Value, frozen=True, kw_only=True):
    """What the claim asks for: GPUs, how they are connected, whose quota they use, and when."""

    devices: Annotated[DeviceRequest, documented("The GPUs that each pod of the claim needs.")]
    topology: Annotated[
        TopologyRequest | None, documented("How well these GPUs should be connected.")
    ] = None
    node_selector: Annotated[
        dict[str, LabelValue],
        documented(
            "Labels that a node must have, in addition to the node selector of the pod.",
            max_length=64,
        ),
    ] = msgspec.field(default_factory=dict)
    gang: Annotated[Gang | None, documented("Several pods that start together or not at all.")] = (
        None
    )
    queue: Annotated[
        str,
        documented(
            "The GpuQueue whose quota pays for the claim; by default the queue of the namespace.",
            max_length=253,
        ),
    ] = ""
    priority: Annotated[
        int | None,
        documented(
            "The urgency within the cluster; more is more urgent. 250 is low, 750 normal, 1500 "
            "high, 2500 urgent. By default the priority class of the pod decides.",
            minimum=0,
            maximum=10_000,
        ),
    ] = None
    max_run_time_seconds: Annotated[
        int | None,
        documented(
            "The pod is stopped after this time. A limit lets the claim start in gaps before "
            "reservations.",
            minimum=1,
        ),
    ] = None
    preemptible: Annotated[
        bool | None,
        documented(
            "Whether the pod may be evicted for more urgent work; by default the queue decides."
        ),
    ] = None
    begin_time: Annotated[
        datetime | None, documented("The claim waits at least until this time.")
    ] = None


class AllocatedDevice(Value, frozen=True, kw_only=True):
    """A GPU, or a part of one, that the claim has."""

    index: Annotated[int, documented("The index of the GPU on its node, for people.", ge=0)]
    uuid: Annotated[
        str, documented("The UUID of the GPU or MIG slice, which programs use.", max_length=128)
    ]
    model: Annotated[str, documented("The model of the GPU.", max_length=128)] = ""
    fraction: Annotated[float | None, documented("The part of it; absent if it is whole.")] = None
    memory_mib: Annotated[
        int | None, documented("The GPU memory that the claim may use, in MiB.")
    ] = msgspec.field(default=None, name="memoryMiB")


class ClaimMember(Value, frozen=True, kw_only=True):
    """A pod of the claim, and the GPUs that it has."""

    pod: Annotated[str, documented("The name of the pod.", max_length=253)]
    uid: Annotated[str, documented("The uid of the pod.", max_length=64)] = ""
    node: Annotated[str, documented("The node that the pod is assigned to.", max_length=253)] = ""
    devices: Annotated[
        tuple[AllocatedDevice, ...], documented("The GPUs of this pod.", max_length=1024)
    ] = ()


class ExpectedStart(Value, frozen=True, kw_only=True):
    """When the claim should start, by the forecast of the scheduler."""

    likely: Annotated[
        datetime | None,
        documented("The start that is likely by the run times of like pods that have ended."),
    ] = None
    latest: Annotated[
        datetime | None,
        documented("The start if everything ahead runs up to its time limit."),
    ] = None


class NeededCapacity(Value, frozen=True, kw_only=True):
    """What nodes that were added would have to offer for the pods that wait."""

    pods: Annotated[int, documented("How many pods wait for room.", ge=0)]
    gpus_per_pod: Annotated[
        int, documented("The GPUs of each, all on one node; parts of GPUs are rounded up.", ge=0)
    ] = msgspec.field(name="gpusPerPod")
    models: Annotated[
        tuple[Model, ...],
        documented("GPU models that are accepted; empty is any.", max_length=32),
    ] = ()
    cpu_per_pod: Annotated[str, documented("The CPU of each, such as 8000m.", max_length=32)] = (
        msgspec.field(default="", name="cpuPerPod")
    )
    memory_per_pod: Annotated[
        str, documented("The memory of each, such as 65536Mi.", max_length=32)
    ] = msgspec.field(default="", name="memoryPerPod")


class GpuClaimStatus(Value, frozen=True, kw_only=True):
    """What the scheduler has found and done."""

    phase: Annotated[
        ClaimPhase | None,
        documented(
            "Pending waits for GPUs, Scheduled has them and its pods are being started, Running, "
            "Completed, Failed; Preempted had to give its GPUs back and waits again."
        ),
    ] = None
    node: Annotated[str, documented("The node of the first pod of the claim.", max_length=253)] = ""
    gpus: Annotated[
        str, documented("The indices of the GPUs on that node, such as 0,1.", max_length=4096)
    ] = ""
    members: Annotated[
        tuple[ClaimMember, ...],
        documented("The pods of the claim with their GPUs.", max_length=4096, **keyed_by("pod")),
    ] = ()
    reason: Annotated[
        str, documented("Why the claim waits or has failed, as a sentence.", max_length=4096)
    ] = ""
    queue_position: Annotated[
        int | None, documented("The place in line; 1 is next.", minimum=1)
    ] = None
    expected_start: Annotated[
        ExpectedStart | None, documented("When a waiting claim should start.")
    ] = None
    needed: Annotated[
        NeededCapacity | None,
        documented("While pods wait for room: what nodes that were added would have to offer."),
    ] = None
    observed_generation: Annotated[
        int | None, documented("The generation of the spec that this status is about.", minimum=0)
    ] = None
    conditions: Conditions = ()


class GpuClaim(Object, frozen=True, kw_only=True):
    """GPUs for a pod. The pod names the claim in its annotation gpu.scheduling/claim and has
    schedulerName: gpu-scheduler; the status says which GPUs it got, or why it waits and until when.
    """

    spec: Annotated[
        GpuClaimSpec,
        documented(
            "What the claim asks for: GPUs, how they are connected, whose quota they use, and when."
        ),
    ]
    status: Annotated[GpuClaimStatus, documented("What the scheduler has found and done.")] = (
        GpuClaimStatus()
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            expression="!has(oldSelf.status) || !has(oldSelf.status.node)"
            " || self.spec.devices == oldSelf.spec.devices",
            message="devices cannot change while the claim has GPUs; create another claim",
            field=".spec.devices",
        ),
    )


GPU_CLAIMS = CustomResource(
    type=GpuClaim,
    kind="GpuClaim",
    plural="gpuclaims",
    short_names=("gclaim",),
    columns=(
        Column(name="Phase", path=".status.phase"),
        Column(name="Node", path=".status.node"),
        Column(name="GPUs", path=".status.gpus", description="Indices of the GPUs on the node."),
        Column(name="Count", path=".spec.devices.count", type="integer", is_wide=True),
        Column(name="Queue", path=".spec.queue", is_wide=True),
        Column(name="Position", path=".status.queuePosition", type="integer", is_wide=True),
        Column(
            name="Expected start",
            path=".status.expectedStart.likely",
            description="When a waiting claim is likely to start.",
        ),
        Column(name="Reason", path=".status.reason"),
    ),
)
