"""Estimates GPU memory: a model and its use in, bytes by part with an explanation out.

| part | rule |
|---|---|
| weights | parameters x bytes of the type; quantised models keep embeddings in 16 bit |
| KV cache | 2 x layers x KV heads x head size x context x batch x bytes (inference) |
| gradients, optimizer | full training in mixed precision with Adam: 16 bytes per parameter in all |
| adapters | LoRA on every linear layer, 16 bytes per adapter parameter |
| activations | training: inputs of every layer, one layer at its peak, and the logits |
| CUDA | context and libraries, on each GPU, and what the allocator cannot use |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.node import MODELS
from gpu_scheduler.sizing.model import Model

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
DTYPE_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}
GROUP_BITS = 20 / 128
"""Scale (16 bit) and zero (4 bit) of each group of 128 weights in GPTQ and AWQ."""
NF4_BITS = 4.127
"""QLoRA with double quantisation (Dettmers et al. 2023)."""
ADAM_BYTES = 16
"""Weights 2, gradients 2, and in 32 bit a copy, a mean and a variance: 4 each (ZeRO, 2020)."""
LAYER_BYTES = 34
"""Bytes per token and hidden unit at the peak of a layer, without attention scores (Korthikanti
et al. 2022); fused attention keeps no scores."""
CONTEXT_BYTES = 800 * MIB
SLACK = 0.05
IN_FLIGHT_TOKENS = 8192
"""The number of prompt tokens that are processed at once when serving."""


class Train(StrEnum):
    """How a model is trained."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How a model is used. An empty `dtype` means that of the model, else bf16."""

    dtype: str = ""
    context: int = 8192
    batch: int = 1
    train: Train | None = None
    rank: int = 16
    cache_dtype: str = ""
    checkpointing: bool = True

    def __post_init__(self) -> None:
        """Reject unknown data types and numbers below 1."""
        for name in (self.dtype, self.cache_dtype):
            if name and name not in DTYPE_BITS:
                raise InvalidRequest(
                    f"data type '{name}' is not known; use one of {', '.join(DTYPE_BITS)}"
                )
        if min(self.context, self.batch, self.rank) < 1:
            raise InvalidRequest("context, batch and rank must be 1 or more")


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of one part, and how they were computed."""

    name: str
    size_bytes: int
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The memory that a model needs. `per_gpu_bytes` is needed on each of its GPUs."""

    model: Model
    use: Use
    dtype: str
    parts: tuple[Part, ...]
    per_gpu_bytes: int = CONTEXT_BYTES

    @property
    def shared_bytes(self) -> int:
        """The bytes that are divided among the GPUs."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def total_bytes(self) -> int:
        """The bytes on one GPU that is large enough."""
        return self.shared_bytes + self.per_gpu_bytes

    def each_bytes(self, gpus: int) -> int:
        """The bytes on each of `gpus` GPUs."""
        return -(-self.shared_bytes // gpus) + self.per_gpu_bytes


def memory_need(model: Model, use: Use) -> Need:
    """All parts of the memory that a model needs."""
    dtype = use.dtype or model.dtype or "bf16"
    if dtype not in DTYPE_BITS:
        dtype = "bf16"
    if use.train is None:
        parts = [_weights(model, dtype, use), _cache(model, dtype, use), _prefill(model, use)]
    else:
        parts = _training(model, dtype, use)
    moving = sum(part.size_bytes for part in parts[1:])
    parts.append(
        Part("allocator", round(SLACK * moving), f"{SLACK:.0%} of all but the weights is unusable")
    )
    return Need(model=model, use=use, dtype=dtype, parts=tuple(parts))


def weight_bits(dtype: str) -> float:
    """Bits of one weight of a linear layer."""
    return DTYPE_BITS[dtype] + (GROUP_BITS if dtype == "int4" else 0)


def _weights(model: Model, dtype: str, use: Use) -> Part:
    if model.weight_bytes and dtype == model.dtype and not use.dtype:
        return Part("weights", model.weight_bytes, "as the files hold them")
    return _weights_at(model, dtype, weight_bits(dtype))


def _weights_at(model: Model, dtype: str, bits: float) -> Part:
    count = billions(model.parameters)
    if bits >= 16:
        size = round(model.parameters * bits / 8)
        return Part("weights", size, f"{count} parameters x {bits / 8:g} bytes ({dtype})")
    # Only linear layers are quantised.
    whole = min(model.parameters, model.shape.embedding_parameters)
    size = round((model.parameters - whole) * bits / 8 + whole * 2)
    return Part(
        "weights", size, f"{count} parameters at {bits:.3g} bits ({dtype}), embeddings in 16 bit"
    )


def _cache(model: Model, dtype: str, use: Use) -> Part:
    kind = use.cache_dtype or (dtype if DTYPE_BITS[dtype] >= 16 else "bf16")
    shape = model.shape
    per_token = shape.cache_values_per_token * DTYPE_BITS[kind] // 8
    what = (
        f"{shape.layers} layers x {shape.latent} values"
        if shape.latent
        else f"2 x {shape.layers} layers x {shape.kv_heads} KV heads x {shape.head_dim}"
    )
    return Part(
        "KV cache",
        per_token * use.context * use.batch,
        f"{per_token / KIB:g} KiB per token ({what}, {kind}) x {use.context:,} x {use.batch}",
    )


def _prefill(model: Model, use: Use) -> Part:
    shape = model.shape
    tokens = min(use.context * use.batch, IN_FLIGHT_TOKENS)
    wide = 2 * min(shape.intermediate, 8 * shape.hidden)
    size = tokens * (4 * shape.hidden + wide) * 2 + use.batch * shape.vocabulary * 4
    return Part("activations", size, f"{tokens:,} tokens in flight, and the logits")


def _training(model: Model, dtype: str, use: Use) -> list[Part]:
    parameters = model.parameters
    if use.train is Train.FULL:
        kept = DTYPE_BITS[dtype] // 8 if DTYPE_BITS[dtype] >= 16 else 2
        parts = [
            Part("weights", parameters * kept, f"{billions(parameters)} x {kept} bytes"),
            Part("gradients", parameters * kept, f"{kept} bytes per parameter"),
            Part(
                "optimizer",
                parameters * (8 if kept == 4 else ADAM_BYTES - 4),
                "Adam: mean and variance in 32 bit"
                + (", and a copy of the weights" if kept == 2 else ""),
            ),
        ]
    else:
        adapters = model.shape.adapter_parameters(use.rank)
        bits = NF4_BITS if use.train is Train.QLORA else max(16.0, weight_bits(dtype))
        kind = "nf4" if use.train is Train.QLORA else (dtype if bits != 16 else "bf16")
        parts = [
            _weights_at(model, kind, bits),
            Part(
                "adapters",
                adapters * ADAM_BYTES,
                f"rank {use.rank} on all linear layers: {billions(adapters)} x {ADAM_BYTES} bytes",
            ),
        ]
    return [*parts, _training_activations(model, use)]


def _training_activations(model: Model, use: Use) -> Part:
    shape = model.shape
    tokens = use.context * use.batch
    peak = LAYER_BYTES * tokens * shape.hidden
    logits = 8 * tokens * shape.vocabulary
    if use.checkpointing:
        size = 2 * tokens * shape.hidden * shape.layers + peak + logits
        how = "with activation checkpointing"
    else:
        size = peak * shape.layers + logits
        how = "all kept"
    return Part("activations", size, f"{tokens:,} tokens, {how}, and the logits in 32 bit")


def billions(count: int) -> str:
    """`32.8 B`, or `12.5 M` for small numbers."""
    if count >= 100_000_000:
        return f"{count / 1e9:.3g} B"
    return f"{count / 1e6:.3g} M"


# Choosing GPUs: the kinds on which a model fits, and how many it needs.

USABLE = 0.95
"""The usable share of the nominal memory: the driver, the display and ECC take the rest."""
COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Tensor parallelism divides heads, so by powers of two; beyond 8 over several nodes."""
SHARE_STEP = 0.05
MOST_OF_ONE = 0.75
"""A model that needs more than this share of a GPU gets a whole one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A number of GPUs of one kind, and the memory needed on each of them."""

    count: int
    gpu: str
    memory_mb: int
    each_mb: int


def fit_on(need: Need, gpu: str, memory_mb: int) -> Fit | None:
    """The fewest GPUs of this kind that suffice; None if the largest number does not."""
    usable = memory_mb * USABLE * MIB
    for count in COUNTS:
        if need.each_bytes(count) <= usable:
            each_mb = -(-need.each_bytes(count) // MIB)
            return Fit(count=count, gpu=gpu, memory_mb=memory_mb, each_mb=each_mb)
    return None


def fits(need: Need, kinds: Mapping[str, int]) -> list[Fit]:
    """The fit on each kind of GPU (name to MiB); fewest GPUs first, then smallest memory."""
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
    """The share of one GPU that is needed, rounded up; 1 if it is nearly the whole GPU."""
    part = need.total_bytes / (memory_mb * USABLE * MIB)
    if part > MOST_OF_ONE:
        return 1.0
    return round(max(SHARE_STEP, -(-part // SHARE_STEP) * SHARE_STEP), 2)
