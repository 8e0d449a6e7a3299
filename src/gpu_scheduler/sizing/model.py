"""A language model: parameters and shape, from its name or its files.

A model that is not in the table is estimated: its size comes from its name, and its shape from the
known model nearest in size.

Its own files are `config.json` and the headers of `.safetensors`, already parsed. No weights are
loaded: a header gives the type, the shape and the size of every tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpu_scheduler.model.errors import InvalidRequest

GATED = 3
"""Matrices of a gated feed-forward block: gate, up, down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a decoder, as in its `config.json`.

    `intermediate` is that of one expert where there are several. `latent` is the width of a
    compressed cache (DeepSeek's latent attention) and replaces the heads there. `layer_norms`
    counts vectors of the hidden size in each layer, `head_norms` those of the size of a head.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    attention_bias: bool = False
    experts: int = 1
    latent: int = 0
    layer_norms: int = 2
    head_norms: int = 0

    @property
    def embedding_parameters(self) -> int:
        """The embedding table, and the output layer if it is separate."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def attention_width(self) -> int:
        """The width of all heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """The width of all keys (or values)."""
        return self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """All parameters of a Llama-like decoder; exact for the models of `FAMILIES`."""
        attention = self.hidden * (2 * self.attention_width + 2 * self.kv_width)
        if self.attention_bias:
            attention += self.attention_width + 2 * self.kv_width
        feed_forward = self.experts * GATED * self.hidden * self.intermediate
        router = self.hidden * self.experts if self.experts > 1 else 0
        norms = self.layer_norms * self.hidden + self.head_norms * self.head_dim
        layer = attention + feed_forward + router + norms
        return self.layers * layer + self.embedding_parameters + self.hidden

    @property
    def cache_values_per_token(self) -> int:
        """Cached values per token: a key and a value in each layer."""
        per_layer = self.latent or 2 * self.kv_width
        return self.layers * per_layer

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of low-rank adapters on every linear layer of the blocks."""
        hidden, wide = self.hidden, self.intermediate
        attention = 2 * (hidden + self.attention_width) + 2 * (hidden + self.kv_width)
        feed_forward = self.experts * GATED * (hidden + wide)
        return self.layers * rank * (attention + feed_forward)


# Models with published shapes, from the `config.json` on the Hugging Face Hub. A test checks that
# `Shape.parameters` equals the published number of parameters.

_qwen2 = partial(Shape, head_dim=128, vocabulary=152_064, attention_bias=True)
_small_qwen2 = partial(_qwen2, kv_heads=2, vocabulary=151_936, tied=True)
_qwen3 = partial(Shape, head_dim=128, vocabulary=151_936, head_norms=2)
_llama3 = partial(Shape, head_dim=128, kv_heads=8, vocabulary=128_256)
_llama2 = partial(Shape, head_dim=128, vocabulary=32_000)
_phi14 = partial(
    Shape, layers=40, hidden=5120, heads=40, kv_heads=10, head_dim=128, intermediate=17_920
)
_gemma2 = partial(Shape, vocabulary=256_000, tied=True, layer_norms=4)

_QWEN2: dict[str, Shape] = {
    "0.5b": _small_qwen2(layers=24, hidden=896, heads=14, head_dim=64, intermediate=4864),
    "1.5b": _small_qwen2(layers=28, hidden=1536, heads=12, intermediate=8960),
    "3b": _small_qwen2(layers=36, hidden=2048, heads=16, intermediate=11_008),
    "7b": _qwen2(layers=28, hidden=3584, heads=28, kv_heads=4, intermediate=18_944),
    "14b": _qwen2(layers=48, hidden=5120, heads=40, kv_heads=8, intermediate=13_824),
    "32b": _qwen2(layers=64, hidden=5120, heads=40, kv_heads=8, intermediate=27_648),
    "72b": _qwen2(layers=80, hidden=8192, heads=64, kv_heads=8, intermediate=29_568),
}
_QWEN3: dict[str, Shape] = {
    "0.6b": _qwen3(layers=28, hidden=1024, heads=16, kv_heads=8, intermediate=3072, tied=True),
    "1.7b": _qwen3(layers=28, hidden=2048, heads=16, kv_heads=8, intermediate=6144, tied=True),
    "4b": _qwen3(layers=36, hidden=2560, heads=32, kv_heads=8, intermediate=9728, tied=True),
    "8b": _qwen3(layers=36, hidden=4096, heads=32, kv_heads=8, intermediate=12_288),
    "14b": _qwen3(layers=40, hidden=5120, heads=40, kv_heads=8, intermediate=17_408),
    "32b": _qwen3(layers=64, hidden=5120, heads=64, kv_heads=8, intermediate=25_600),
    "30b": _qwen3(layers=48, hidden=2048, heads=32, kv_heads=4, intermediate=768, experts=128),
    "235b": _qwen3(layers=94, hidden=4096, heads=64, kv_heads=4, intermediate=1536, experts=128),
}
_LLAMA3: dict[str, Shape] = {
    "1b": _llama3(layers=16, hidden=2048, heads=32, head_dim=64, intermediate=8192, tied=True),
    "3b": _llama3(layers=28, hidden=3072, heads=24, intermediate=8192, tied=True),
    "8b": _llama3(layers=32, hidden=4096, heads=32, intermediate=14_336),
    "70b": _llama3(layers=80, hidden=8192, heads=64, intermediate=28_672),
    "405b": _llama3(layers=126, hidden=16_384, heads=128, intermediate=53_248),
}
_LLAMA2: dict[str, Shape] = {
    "7b": _llama2(layers=32, hidden=4096, heads=32, kv_heads=32, intermediate=11_008),
    "13b": _llama2(layers=40, hidden=5120, heads=40, kv_heads=40, intermediate=13_824),
    "70b": _llama2(layers=80, hidden=8192, heads=64, kv_heads=8, intermediate=28_672),
}
_MISTRAL: dict[str, Shape] = {
    "7b": _llama2(layers=32, hidden=4096, heads=32, kv_heads=8, intermediate=14_336),
}
_MIXTRAL: dict[str, Shape] = {
    "8x7b": _llama2(layers=32, hidden=4096, heads=32, kv_heads=8, intermediate=14_336, experts=8),
    "8x22b": _llama2(layers=56, hidden=6144, heads=48, kv_heads=8, intermediate=16_384, experts=8),
}
_PHI3: dict[str, Shape] = {
    "mini": Shape(
        layers=32,
        hidden=3072,
        heads=32,
        kv_heads=32,
        head_dim=96,
        intermediate=8192,
        vocabulary=32_064,
    ),
    "medium": _phi14(vocabulary=32_064),
}
_PHI4: dict[str, Shape] = {
    "": _phi14(vocabulary=100_352),
}
_GEMMA2: dict[str, Shape] = {
    "2b": _gemma2(layers=26, hidden=2304, heads=8, kv_heads=4, head_dim=256, intermediate=9216),
    "9b": _gemma2(layers=42, hidden=3584, heads=16, kv_heads=8, head_dim=256, intermediate=14_336),
    "27b": _gemma2(
        layers=46, hidden=4608, heads=32, kv_heads=16, head_dim=128, intermediate=36_864
    ),
}

FAMILIES: dict[str, dict[str, Shape]] = {
    "qwen2.5": _QWEN2,
    "qwen3": _QWEN3,
    "llama-3.1": _LLAMA3,
    "llama-2": _LLAMA2,
    "mistral": _MISTRAL,
    "mixtral": _MIXTRAL,
    "phi-3": _PHI3,
    "phi-4": _PHI4,
    "gemma-2": _GEMMA2,
}
"""Shapes by family and size."""

SPELLINGS: tuple[tuple[str, str], ...] = (
    # Distilled models have the shape of the student model.
    ("distill-qwen", "qwen2.5"),
    ("distill-llama", "llama-3.1"),
    ("qwen2.5", "qwen2.5"),
    ("qwen-2.5", "qwen2.5"),
    ("qwen3", "qwen3"),
    ("qwen-3-", "qwen3"),
    ("llama-3", "llama-3.1"),
    ("llama3", "llama-3.1"),
    ("llama-2", "llama-2"),
    ("llama2", "llama-2"),
    ("codellama", "llama-2"),
    ("mixtral", "mixtral"),
    ("mistral", "mistral"),
    ("phi-3", "phi-3"),
    ("phi3", "phi-3"),
    ("phi-4", "phi-4"),
    ("phi4", "phi-4"),
    ("gemma-2-", "gemma-2"),
    ("gemma2", "gemma-2"),
)
"""Spellings of families in names; the first match counts."""

LATENT: dict[str, tuple[int, Shape]] = {
    "deepseek-v3": (
        671_000_000_000,
        Shape(
            layers=61,
            hidden=7168,
            heads=128,
            kv_heads=128,
            head_dim=128,
            intermediate=2048,
            vocabulary=129_280,
            experts=256,
            latent=576,
        ),
    ),
}
"""Models with a compressed cache, with their published number of parameters."""


def all_known() -> dict[str, Shape]:
    """Every known decoder, as `family-size`."""
    return {
        f"{family}-{size}".rstrip("-"): shape
        for family, sizes in FAMILIES.items()
        for size, shape in sizes.items()
    }


BILLION = 1_000_000_000
LARGEST = 100_000 * BILLION
"""Larger numbers are treated as typing errors."""
SHARED_BY_EXPERTS = 0.82
"""Experts share attention and embeddings: Mixtral 8x7B has 0.83 x 56 billion, 8x22B 0.80 x 176."""
_NUMBER = r"(\d+(?:\.\d+)?)"
_EXPERTS = re.compile(rf"(?<![a-z\d.])(\d+)x{_NUMBER}b(?![a-z])")
_SIZE = re.compile(rf"(?<![a-z\d.]){_NUMBER}(b|m)(?![a-z])")
_WORDS = re.compile(r"mini|medium|small|large|base")
_QUANTISED = (
    (re.compile(r"awq|gptq|int4|4bit|w4a16|nf4|q4_|bnb"), "int4"),
    (re.compile(r"int8|8bit|w8a8|q8_"), "int8"),
    (re.compile(r"fp8"), "fp8"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model: number of parameters, shape (or the nearest known one), and the source of both.

    `weight_bytes` is the size of the weight files, if they were read; `dtype` is the data type in
    the name or the files.
    """

    name: str
    parameters: int
    shape: Shape
    parameters_from: str
    shape_from: str
    dtype: str = ""
    weight_bytes: int = 0


def named_model(name: str, parameters: int | None = None) -> Model:
    """A model from its name, or from its name and a number of parameters."""
    plain = _plain(name)
    if parameters is None:
        for prefix, (stated, shape) in LATENT.items():
            if plain.startswith((prefix, "deepseek-r1")) and "distill" not in plain:
                return Model(
                    name=name,
                    parameters=stated,
                    shape=shape,
                    parameters_from="as published",
                    shape_from=f"{prefix} (compressed cache)",
                    dtype=_dtype_of(plain) or "fp8",
                )
        known = _known(plain)
        if known is not None:
            label, shape = known
            return Model(
                name=name,
                parameters=shape.parameters,
                shape=shape,
                parameters_from=f"the published shape of {label}",
                shape_from=f"the published shape of {label}",
                dtype=_dtype_of(plain),
            )
    count, how = (parameters, "as given") if parameters else size_in(name)
    label, shape = nearest(count)
    return Model(
        name=name,
        parameters=count,
        shape=shape,
        parameters_from=how,
        shape_from=f"that of {label}, the known model nearest in size",
        dtype=_dtype_of(plain),
    )


def can_be_sized(name: str) -> bool:
    """Whether the size of the model can be read from its name."""
    try:
        named_model(name)
    except InvalidRequest:
        return False
    return True


def size_in(name: str) -> tuple[int, str]:
    """The number of parameters in a name, and how it was read."""
    plain = _plain(name)
    if match := _EXPERTS.search(plain):
        amount = float(match[1]) * float(match[2]) * SHARED_BY_EXPERTS * BILLION
        return _checked(amount, match[0], name), (
            f"'{match[0]}' in the name, times {SHARED_BY_EXPERTS} for what the experts share"
        )
    if match := _SIZE.search(plain):
        unit = BILLION if match[2] == "b" else BILLION // 1000
        amount = float(match[1]) * unit
        return _checked(amount, match[0], name), f"'{match[0]}' in the name"
    raise InvalidRequest(
        f"the size of '{name}' cannot be read from its name; write it as in "
        f"{name or 'model'}-7b, or the directory of the model, as in ./model"
    )


def _checked(amount: float, word: str, name: str) -> int:
    """The number of parameters, if it is plausible."""
    if 1 <= amount < LARGEST:
        return round(amount)
    raise InvalidRequest(
        f"the model '{name}' would have {word} parameters, which is not plausible; write a size "
        "such as 7b or 350m, or the directory of the model, as in ./model"
    )


def nearest(parameters: int) -> tuple[str, Shape]:
    """The known model with the nearest size by ratio; on a tie the smaller one."""
    known = sorted(all_known().items(), key=lambda item: (item[1].parameters, item[0]))
    return min(
        (item for item in known if item[1].experts == 1),
        key=lambda item: abs(math.log(item[1].parameters / parameters)),
    )


def _plain(name: str) -> str:
    """Lower case, without the organisation before the slash."""
    return name.rstrip("/").rpartition("/")[2].casefold().replace("_", "-")


def _known(plain: str) -> tuple[str, Shape] | None:
    spelled = next(((s, family) for s, family in SPELLINGS if s in plain), None)
    if spelled is None or "-vl" in plain or "vision" in plain:
        return None
    spelling, family = spelled
    sizes = FAMILIES[family]
    rest = plain.partition(spelling)[2]
    words = [match[0] for match in (_EXPERTS.search(rest), _SIZE.search(rest)) if match]
    words += [match[0] for match in (_WORDS.search(rest),) if match]
    for word in (*words, ""):
        if word in sizes:
            return f"{family}-{word}".rstrip("-"), sizes[word]
    return None


def _dtype_of(plain: str) -> str:
    return next((dtype for pattern, dtype in _QUANTISED if pattern.search(plain)), "")


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
