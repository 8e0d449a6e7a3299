"""On which GPUs a model fits, and on how many of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu_scheduler.model.gpu_models import MODELS
from gpu_scheduler.predict.llm.memory import GIB, MIB, Need

USABLE = 0.95
"""The driver, the display and ECC take some of what is on the label."""
COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Tensor parallelism divides heads, so by powers of two; beyond 8 over several nodes."""
SHARE_STEP = 0.05
MOST_OF_ONE = 0.75
"""What takes more than this of a GPU gets all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """So many GPUs of one kind, and what each of them would hold."""

    count: int
    gpu: str
    memory_mb: int
    each_mb: int


def fit_on(need: Need, gpu: str, memory_mb: int) -> Fit | None:
    """The fewest GPUs of this kind; None if even the most are too few."""
    usable = memory_mb * USABLE * MIB
    for count in COUNTS:
        if need.each_bytes(count) <= usable:
            each_mb = -(-need.each_bytes(count) // MIB)
            return Fit(count=count, gpu=gpu, memory_mb=memory_mb, each_mb=each_mb)
    return None


def fits(need: Need, kinds: Mapping[str, int]) -> list[Fit]:
    """On each kind of GPU (name to MiB); the fewest first, then the smallest memory."""
    found = [fit_on(need, gpu, memory_mb) for gpu, memory_mb in kinds.items()]
    return sorted(
        (fit for fit in found if fit is not None),
        key=lambda fit: (fit.count, fit.memory_mb, fit.gpu),
    )


def known_kinds(names: Iterable[str] = ()) -> dict[str, int]:
    """GPU models with their memory in MiB, as `A100-80GB`; all, or only these models."""
    wanted = set(names)
    return {
        f"{name}-{size}GB": size * GIB // MIB
        for name, model in MODELS.items()
        for size in model.sizes_gb
        if name != "GPU" and (not wanted or name in wanted)
    }


def share_of_one(need: Need, memory_mb: int) -> float:
    """The part of one GPU of this size that is needed, in steps; 1 if it is nearly all."""
    part = need.total_bytes / (memory_mb * USABLE * MIB)
    if part > MOST_OF_ONE:
        return 1.0
    return round(max(SHARE_STEP, -(-part // SHARE_STEP) * SHARE_STEP), 2)
