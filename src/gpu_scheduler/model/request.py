"""The resource request of one member of a job, on one node.

The many ways to write a GPU request (2, 0.5, 1.5, total memory, memory per GPU,
exclusive, a MIG profile) become one normal form here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpu_scheduler.model.errors import InvalidRequest

WHOLE_MILLI = 1000
"""One GPU in milli-GPU."""
ONE_CORE_MILLI = 1_000
"""One CPU core in milli-cores."""
SHARE_STEP_MILLI = 10
"""The finest share that can be asked for: 0.01 GPU."""
MIG_SLICES = 7
"""A MIG-capable GPU has seven compute slices."""
MB_PER_GB = 1024


class Topology(StrEnum):
    """Whether the GPUs of one member should be in one NVLink island."""

    ANY = "any"
    PREFER_ISLAND = "prefer_island"
    REQUIRE_ISLAND = "require_island"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`gpu_count` devices at `gpu_share_milli` each, plus CPU and memory, all on one node.

    `gpu_extra_milli` is the share of one further device (1.5 GPUs = 1 x 1000 + 500).
    A share of 0 takes only memory of a shared device. All GPUs of one request are of one model.
    With `spread`, devices and nodes that are in use are avoided. An island with
    `preferred_bandwidth_gbps` is taken if there is one.
    """

    gpu_count: int = 0
    gpu_share_milli: int = WHOLE_MILLI
    gpu_extra_milli: int = 0
    gpu_memory_mb: int = 0
    gpu_extra_memory_mb: int = 0
    gpu_models: tuple[str, ...] = ()
    mig_profile: str = ""
    cpu_milli: int = 0
    memory_mb: int = 0
    device_ids: tuple[int, ...] = ()
    node_labels: tuple[tuple[str, str], ...] = ()
    topology: Topology = Topology.PREFER_ISLAND
    contiguous: bool = False
    min_bandwidth_gbps: int = 0
    preferred_bandwidth_gbps: int = 0
    spread: bool = False

    def __post_init__(self) -> None:
        """Reject invalid amounts and combinations."""
        amounts = {
            "gpu_count": self.gpu_count,
            "gpu_memory_mb": self.gpu_memory_mb,
            "gpu_extra_memory_mb": self.gpu_extra_memory_mb,
            "cpu_milli": self.cpu_milli,
            "memory_mb": self.memory_mb,
            "min_bandwidth_gbps": self.min_bandwidth_gbps,
            "preferred_bandwidth_gbps": self.preferred_bandwidth_gbps,
        }
        for name, amount in amounts.items():
            if amount < 0:
                raise InvalidRequest(f"{name} is {amount}; it must be 0 or more")
        for name, share in (
            ("gpu_share_milli", self.gpu_share_milli),
            ("gpu_extra_milli", self.gpu_extra_milli),
        ):
            if not 0 <= share <= WHOLE_MILLI or share % SHARE_STEP_MILLI:
                raise InvalidRequest(
                    f"{name} is {share}; a share of a GPU goes from 0.01 to 1 in steps of 0.01"
                )
        if self.gpu_extra_milli and (
            self.gpu_share_milli != WHOLE_MILLI or self.gpu_extra_milli == WHOLE_MILLI
        ):
            raise InvalidRequest("a part of a further GPU goes only with whole GPUs, as in 1.5")
        if self.gpu_count and not self.gpu_share_milli and not self.gpu_memory_mb:
            raise InvalidRequest(
                "the request for a shared GPU has neither a share nor GPU memory; give one of them"
            )
        if self.mig_profile:
            if self.gpu_extra_milli or self.gpu_share_milli != WHOLE_MILLI:
                raise InvalidRequest("a MIG profile is a whole slice; leave the fraction away")
            mig_share_milli(self.mig_profile)
        if self.device_ids and len(self.device_ids) < self.device_count:
            raise InvalidRequest(
                f"{self.device_count} GPUs were asked for from a list of "
                f"{len(self.device_ids)} allowed devices; allow more devices or ask for fewer"
            )

    @classmethod
    def for_gpus(  # noqa: PLR0913 - the many ways to write one request
        cls,
        gpus_milli: int,
        *,
        gpu_memory_mb: int = 0,
        gpu_memory_mb_per_gpu: int = 0,
        exclusive: bool = False,
        gpu_models: tuple[str, ...] = (),
        mig_profile: str = "",
        cpu_milli: int = 0,
        memory_mb: int = 0,
        device_ids: tuple[int, ...] = (),
        node_labels: tuple[tuple[str, str], ...] = (),
        topology: Topology = Topology.PREFER_ISLAND,
        contiguous: bool = False,
        min_bandwidth_gbps: int = 0,
    ) -> Request:
        """Bring an amount such as 2000, 500 or 1500 milli-GPU into the normal form.

        `gpu_memory_mb` is the total over all GPUs, divided in proportion to the shares. GPU memory
        without GPUs is memory of one shared device (of a whole one with `exclusive`).
        """
        if gpus_milli < 0:
            raise InvalidRequest(
                f"{gpus_milli / WHOLE_MILLI:g} GPUs were asked for; ask for 0 or more"
            )
        if gpu_memory_mb and gpu_memory_mb_per_gpu:
            raise InvalidRequest("GPU memory was given in total and per GPU; give one of them")
        if gpus_milli % SHARE_STEP_MILLI:
            raise InvalidRequest(
                f"{gpus_milli / WHOLE_MILLI:g} GPUs were asked for; the finest step is 0.01"
            )
        memory_only = not gpus_milli and bool(gpu_memory_mb or gpu_memory_mb_per_gpu)
        if exclusive:
            gpus_milli = max(-(-gpus_milli // WHOLE_MILLI), int(memory_only)) * WHOLE_MILLI
        count, rest = divmod(gpus_milli, WHOLE_MILLI)
        per_gpu = extra = gpu_memory_mb_per_gpu
        if gpu_memory_mb and gpus_milli:
            per_gpu = -(-gpu_memory_mb * WHOLE_MILLI // gpus_milli)
            extra = -(-gpu_memory_mb * rest // gpus_milli)
        share = WHOLE_MILLI
        if count == 0 and rest:
            count, share, rest, per_gpu = 1, rest, 0, extra
        elif count == 0 and memory_only:
            count, share, per_gpu = 1, 0, gpu_memory_mb or gpu_memory_mb_per_gpu
        return cls(
            gpu_count=count,
            gpu_share_milli=share,
            gpu_extra_milli=rest,
            gpu_memory_mb=per_gpu,
            gpu_extra_memory_mb=extra if rest else 0,
            gpu_models=tuple(sorted(set(gpu_models))),
            mig_profile=mig_profile,
            cpu_milli=cpu_milli,
            memory_mb=memory_mb,
            device_ids=tuple(sorted(set(device_ids))),
            node_labels=tuple(sorted(node_labels)),
            topology=topology,
            contiguous=contiguous,
            min_bandwidth_gbps=min_bandwidth_gbps,
        )

    @property
    def device_count(self) -> int:
        """The number of devices that the request uses."""
        return self.gpu_count + (1 if self.gpu_extra_milli else 0)

    @property
    def gpu_milli(self) -> int:
        """Milli-GPUs that count against quotas and fair share."""
        if self.mig_profile:
            return self.gpu_count * mig_share_milli(self.mig_profile)
        return self.gpu_count * self.gpu_share_milli + self.gpu_extra_milli

    @property
    def gpu_memory_total_mb(self) -> int:
        """GPU memory over all devices, as far as it was stated."""
        return self.gpu_count * self.gpu_memory_mb + self.gpu_extra_memory_mb

    @property
    def takes_whole_devices_only(self) -> bool:
        """Tell whether the request uses its devices exclusively."""
        return (
            self.gpu_count > 0
            and self.gpu_share_milli == WHOLE_MILLI
            and not self.gpu_extra_milli
            and not self.mig_profile
        )


def mig_share_milli(profile: str) -> int:
    """How much of a GPU a MIG profile such as `3g.40gb` counts for."""
    slices, dot, memory = profile.partition("g.")
    if not (dot and slices.isdecimal() and 1 <= int(slices) <= MIG_SLICES and memory):
        raise InvalidRequest(f"MIG profile '{profile}' is not known; write for example 1g.10gb")
    return int(slices) * WHOLE_MILLI // MIG_SLICES


def mig_memory_mb(profile: str) -> int:
    """How much GPU memory a MIG profile such as `3g.40gb` has; 0 if its name does not say."""
    amount, unit, _ = profile.partition("g.")[2].partition("gb")
    return int(amount) * MB_PER_GB if unit and amount.isdecimal() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalShape:
    """A usual request and how often it came, for rankings that ask what rests are good for."""

    cpu_milli: int
    memory_mb: int
    gpu_count: int
    gpu_share_milli: int
    gpu_models: tuple[str, ...]
    count: int
