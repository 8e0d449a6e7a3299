"""A model from its own files: `config.json` and the headers of `.safetensors`, already parsed.

No weights are loaded: a header gives the type, the shape and the size of every tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.sizing.model import Model, Shape

_DTYPES = {
    "F64": "fp64",
    "F32": "fp32",
    "BF16": "bf16",
    "F16": "fp16",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "I8": "int8",
    "U8": "uint8",
    "I32": "int32",
}
_CONFIG_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_WEIGHT = {"fp64", "fp32", "bf16", "fp16", "fp8", "int8"}
WORD_BITS = 32
BYTE_BITS = 8


@dataclass(slots=True)
class Weights:
    """The tensors of a model: parameters and bytes, by data type."""

    parameters: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0

    @property
    def total(self) -> int:
        """All parameters."""
        return sum(self.parameters.values())

    @property
    def main_dtype(self) -> str:
        """The data type of most parameters."""
        return max(sorted(self.parameters), key=lambda name: self.parameters[name], default="")


def weights_of(headers: Iterable[Mapping[str, Any]], bits: int = 0) -> Weights:
    """Parameters and bytes of all tensors; packed tensors count as their unpacked weights.

    `bits` is the size of a quantised weight, from the configuration: an I32 holds eight 4-bit
    weights (GPTQ, AWQ), a U8 holds two (bitsandbytes).
    """
    found = Weights()
    for header in headers:
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            try:
                dtype = _DTYPES.get(str(tensor["dtype"]), str(tensor["dtype"]).lower())
                count = math.prod(int(size) for size in tensor["shape"])
                begin, end = tensor["data_offsets"]
                found.size_bytes += int(end) - int(begin)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise InvalidRequest(f"tensor '{name}' has no readable header: {error}") from None
            kind, factor = _unpacked(name, dtype, bits)
            if kind:
                found.parameters[kind] = found.parameters.get(kind, 0) + count * factor
    return found


def _unpacked(name: str, dtype: str, bits: int) -> tuple[str, int]:
    """The data type of a tensor, and its weights per stored number (0 for scales and indices)."""
    if bits and name.endswith(".qweight"):
        return f"int{bits}", WORD_BITS // bits
    if bits and dtype == "uint8" and name.endswith("weight"):
        return f"int{bits}", BYTE_BITS // bits
    is_helper = name.endswith((".scales", ".qzeros", ".g_idx", "_scale", "_scale_inv", ".absmax"))
    return (dtype, 1) if dtype in _WEIGHT and not is_helper else ("", 0)


def quantised_bits(config: Mapping[str, Any]) -> int:
    """Bits of each weight if the configuration describes quantisation, else 0."""
    about = config.get("quantization_config")
    if not isinstance(about, Mapping):
        return 0
    if about.get("load_in_4bit"):
        return 4
    bits = about.get("bits", 0)
    return bits if isinstance(bits, int) and bits in (2, 4, 8) else 0


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape that a `config.json` describes, under the names that different models use."""
    about = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    about = about or config

    def number(*names: str, default: int | None = None) -> int:
        for name in names:
            value = about.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        if default is None:
            raise InvalidRequest(
                f"config.json has no {names[0]}, so the shape of the model is not known"
            )
        return default

    hidden = number("hidden_size", "n_embd", "d_model")
    heads = number("num_attention_heads", "n_head", "n_heads")
    rank = about.get("kv_lora_rank")
    kind = str(about.get("model_type") or "")
    return Shape(
        layers=number("num_hidden_layers", "n_layer", "n_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", "num_kv_heads", "n_kv_heads", default=heads),
        head_dim=number("head_dim", default=max(1, hidden // heads)),
        intermediate=number(
            *("moe_intermediate_size", "intermediate_size", "n_inner", "ffn_dim"),
            default=4 * hidden,
        ),
        vocabulary=number("vocab_size", default=32_000),
        tied=bool(about.get("tie_word_embeddings", False)),
        experts=number("num_local_experts", "num_experts", "n_routed_experts", default=1),
        latent=rank + number("qk_rope_head_dim", default=64) if isinstance(rank, int) else 0,
        attention_bias=bool(about.get("attention_bias", kind == "qwen2")),
        layer_norms=4 if kind.startswith("gemma2") else 2,
        head_norms=2 if kind.startswith("qwen3") else 0,
    )


def model_from_files(name: str, config: Mapping[str, Any], weights: Weights) -> Model:
    """A model by its configuration, with the parameters of its tensors where there are any."""
    shape = shape_of(config)
    bits = quantised_bits(config)
    stated = str(config.get("torch_dtype") or config.get("dtype") or "")
    stated = stated.removeprefix("torch.")
    if weights.total:
        how = "the headers of its safetensors files"
        dtype = weights.main_dtype
    else:
        how = "the shape in its config.json (there are no safetensors files)"
        dtype = f"int{bits}" if bits else _CONFIG_DTYPES.get(stated, "")
    return Model(
        name=name,
        parameters=weights.total or shape.parameters,
        shape=shape,
        parameters_from=how,
        shape_from="its config.json",
        dtype=dtype,
        weight_bytes=weights.size_bytes if weights.total else 0,
    )
